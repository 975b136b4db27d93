use tollgate::{Denied, rate_limit};

struct NoHash;

#[rate_limit("10/min", key = who)]
fn key(who: NoHash) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", cost = n)]
fn cost(n: i32) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limiter = "10/min")]
fn limiter() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
