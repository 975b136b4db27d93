#![doc = include_str!("../../docs/links.md")]
#![doc = include_str!("../../docs/tower.md")]

mod builder;
mod client_ip;
mod future;
mod grpc;
mod head;
mod headers;
mod layer;
mod live;
mod meter;
mod refusal;
mod service;
mod settle;
mod watch;

pub use builder::{MissingKey, Notice, RateLimitBuilder};
pub use client_ip::{ClientIp, PeerAddr};
pub use future::ResponseFuture;
pub use head::RequestHead;
pub use headers::HeaderStyle;
pub use layer::{RateLimitLayer, RulesHandle};
pub use meter::{Meter, MeterBytes, MeterBytesLayer, MeteredBody, MeteredFuture};
pub use refusal::{NoBody, ProblemJson, Refusal, Respond, RespondWith};
pub use service::RateLimit;
pub(crate) use settle::Spent;
pub use settle::{ResponseHead, Settle};
pub use watch::Watch;
