use tollgate::{Denied, rate_limit};

#[rate_limit("10/min")]
struct Structure;

#[rate_limit("10/min")]
const fn constant() -> Result<(), Denied> {
    Ok(())
}

trait Bodiless {
    #[rate_limit("10/min")]
    fn declared(&self) -> Result<(), Denied>;
}

fn main() {}
