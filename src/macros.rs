//! What the code needs that [`rate_limit`](crate::rate_limit) writes. Not part of the interface.

use crate::decision::Denied;
use crate::error::Error;
use crate::limiter::Limiter;

/// What a function returns that may be refused.
#[diagnostic::on_unimplemented(
    message = "a function that `#[rate_limit]` may refuse has to return a `Result`, and this returns `{Self}`",
    label = "no `Result`",
    note = "say what else a refused call returns, `on_limit = EXPR` or `on_limit = wait else EXPR`"
)]
pub trait FromDenied {
    fn from_denied(denied: Denied) -> Self;
}

impl<T, E: From<Denied>> FromDenied for Result<T, E> {
    #[cold]
    fn from_denied(denied: Denied) -> Self {
        Err(E::from(denied))
    }
}

/// Gives a closure the type of its argument.
pub fn answer<R>(denied: Denied, answer: impl FnOnce(Denied) -> R) -> R {
    answer(denied)
}

/// The limiter of a function, whose policy the compiler has seen.
pub fn built(function: &str, limiter: Result<Limiter, Error>) -> Limiter {
    match limiter {
        Ok(limiter) => limiter,
        Err(error) => panic!("the limiter of `{function}` cannot be built: {error}"),
    }
}
