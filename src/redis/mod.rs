#![doc = include_str!("../../docs/links.md")]
#![doc = include_str!("../../docs/redis.md")]

mod backend;
mod breaker;
mod builder;
mod connection;
mod endpoint;
mod error;
mod fallback;
mod leased;
mod limiter;
mod protocol;
mod scripts;
mod stats;

pub use breaker::BreakerState;
pub use builder::RedisLimiterBuilder;
pub use error::RedisError;
pub use fallback::OnFailure;
pub use leased::Leasing;
pub use limiter::RedisLimiter;
pub use stats::{BackendStats, LatencyHistogram, LeaseStats};
