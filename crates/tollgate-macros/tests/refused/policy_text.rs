use tollgate::{Denied, rate_limit};

#[rate_limit("5/s; 10/sc")]
fn unit() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("leaky 5/s")]
fn algorithm() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("")]
fn nothing() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min;")]
fn half() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(r#"10 / "min""#)]
fn raw() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/s\t; 10/\u{e9}")]
fn escaped() -> Result<(), Denied> {
    Ok(())
}

fn main() {
    // The functions are there all the same, so that nothing else is reported.
    let _ = (unit(), algorithm(), nothing(), half(), raw(), escaped());
}
