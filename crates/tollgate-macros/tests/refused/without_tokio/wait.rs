use tollgate::rate_limit;

#[rate_limit("10/min", on_limit = wait)]
async fn waits() {}

fn main() {}
