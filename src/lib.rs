#![doc = include_str!("../docs/links.md")]
#![doc = include_str!("../README.md")]
// The guides of features are in their modules: without them, there is nothing to link to.
#![cfg_attr(
    not(all(feature = "macros", feature = "metrics", feature = "redis", feature = "tower")),
    allow(rustdoc::broken_intra_doc_links)
)]

mod algorithm;
mod builder;
mod cells;
mod charge;
mod clock;
mod compile;
mod counts;
mod cpu;
mod decision;
mod error;
#[cfg(any(feature = "metrics", feature = "prometheus"))]
pub mod export;
mod gate;
mod guard;
mod handle;
mod horizon;
mod lease;
mod limiter;
mod parse;
mod permit;
mod policies;
mod policy;
#[cfg(feature = "redis")]
pub mod redis;
mod reserve;
#[cfg(feature = "rules")]
pub mod rules;
mod snapshot;
mod stats;
mod stripe;
mod sync;
mod table;
mod tier;
mod top;
#[cfg(feature = "tower")]
pub mod tower;
mod trace;
mod watch;

pub use builder::LimiterBuilder;
pub use clock::{Clock, ManualHand};
pub use decision::{Cause, Decision, Denied, Outcome};
pub use error::Error;
pub use gate::Gate;
pub use guard::Penalties;
pub use handle::KeyHandle;
pub use lease::Lease;
pub use limiter::Limiter;
pub use permit::Permit;
pub use policy::{Algorithm, Policy, Rule};
#[cfg(feature = "tokio")]
pub use reserve::Acquire;
pub use reserve::{Reservation, Wait};
pub use stats::{DecisionStats, Probes, Stats};
pub use table::WhenFull;
pub use tier::Tier;
pub use top::{Offender, TopKeys};

#[cfg(feature = "macros")]
#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/rate_limit.md")]
pub use tollgate_macros::rate_limit;

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "macros.rs"]
pub mod __macros;

#[cfg(any(doc, doctest))]
pub mod guide;

/// What the models need to break the algorithms on purpose. Not part of the interface.
#[cfg(tollgate_loom)]
#[doc(hidden)]
pub mod model {
    pub use crate::reserve::Waiter;
    pub use crate::sync::Fault;
    pub use crate::sync::modelled::{with_counted_loads, with_fault, with_generations};
    pub use crate::table::TakeoverStep;
}
