use tollgate::{Denied, rate_limit};

#[rate_limit("10/min", key = 1, max_keys = 0)]
fn no_room() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
