use tollgate::{Denied, rate_limit};

#[rate_limit("0/min")]
fn zero() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min; sliding 2000000/s")]
fn too_large() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("log 1000/s; log 1000/min")]
fn too_long() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("2 at once; 3 at once")]
fn twice_at_once() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min burst 3", cost = 4)]
fn never_fits() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
