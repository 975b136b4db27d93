//! Why the server could not be asked, or a limiter not be built.

use std::fmt;
use std::time::Duration;

/// Why a [`RedisLimiter`](super::RedisLimiter) was not built, or could not do what has no answer of its own.
///
/// A decision is never an error: where the server cannot be asked, the limiter decides as it was
/// [told to](super::OnFailure).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::redis::{RedisError, RedisLimiter};
///
/// let limiter = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min").build().await?;
/// match limiter.reset("203.0.113.7").await {
///     Ok(()) | Err(RedisError::BreakerOpen) => {}
///     Err(error) => println!("{error}"),
/// }
/// assert!(limiter.reset("203.0.113.7").await.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RedisError {
    /// The policy, an address or a setting cannot be used, for the reason given.
    Config(String),
    /// There was no answer within this time.
    Timeout(Duration),
    /// The breaker is open: the server has failed of late, and is not asked until a probe has found it again.
    BreakerOpen,
    /// The connection was lost, or there is none to be had.
    Connection(String),
    /// The server refuses all such commands for now, or answered with something else than the protocol says.
    Server(String),
    /// The server refused this one command, and would carry out another: a key holds something of somebody else's.
    Rejected(String),
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(why) => f.write_str(why),
            Self::Timeout(after) => write!(f, "the Redis server did not answer within {after:?}"),
            Self::BreakerOpen => f.write_str(
                "the Redis server has failed of late and is not asked until a probe finds it again",
            ),
            Self::Connection(why) => write!(f, "no connection to the Redis server: {why}"),
            Self::Server(why) | Self::Rejected(why) => write!(f, "the Redis server refused: {why}"),
        }
    }
}

impl std::error::Error for RedisError {}

impl From<crate::Error> for RedisError {
    fn from(error: crate::Error) -> Self {
        Self::Config(error.to_string())
    }
}

/// What the client reports.
impl From<&::redis::RedisError> for RedisError {
    fn from(error: &::redis::RedisError) -> Self {
        use ::redis::ErrorKind;
        match error.kind() {
            ErrorKind::InvalidClientConfig => Self::Config(error.to_string()),
            _ if error.is_io_error() || error.is_connection_dropped() || error.is_connection_refusal() => {
                Self::Connection(error.to_string())
            }
            _ if matches!(error.code(), Some("ERR" | "WRONGTYPE")) => Self::Rejected(error.to_string()),
            _ => Self::Server(error.to_string()),
        }
    }
}
