use tollgate::rate_limit;

#[rate_limit("10/min")]
fn nothing() {}

#[rate_limit("10/min")]
async fn number() -> u32 {
    1
}

struct NotFromDenied;

#[rate_limit("10/min")]
fn other_error() -> Result<(), NotFromDenied> {
    Ok(())
}

#[rate_limit("10/min", cost = n, on_limit = wait)]
fn may_never_fit(n: u64) -> u64 {
    n
}

#[rate_limit("10/min", on_limit = "too many")]
fn other_type() -> u32 {
    1
}

fn main() {}
