use tollgate::{Denied, Limiter, rate_limit};

#[rate_limit]
fn nothing() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(10)]
fn number() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", kee = 1)]
fn unknown() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min" key = 1)]
fn comma() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", key)]
fn no_value() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", key = 1, key = 2)]
fn twice() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", max_keys = 10)]
fn room_for_one() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", max_wait = std::time::Duration::ZERO)]
fn patient() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", limiter = _limiter)]
fn both(_limiter: &Limiter) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limiter = _limiter, clock = tollgate::Clock::precise())]
fn built_already(_limiter: &Limiter) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("2 at once", on_limit = wait)]
fn wait_for_a_place() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min", name = "with space")]
fn name() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min named a", name = "b")]
fn two_names() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/min; 20/h", name = "both")]
fn a_name_for_two() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
