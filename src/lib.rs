#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod charge;
mod clock;
mod decision;
mod error;
mod gate;
mod limiter;
mod parse;
mod policy;
mod sync;
mod table;

pub use clock::{Clock, ManualHand};
pub use decision::{Decision, Denied, Outcome};
pub use error::Error;
pub use gate::Gate;
pub use limiter::{Limiter, LimiterBuilder, Stats};
pub use policy::{Algorithm, Policy, Rule};
pub use table::WhenFull;

/// What the models need to break the algorithms on purpose. Not part of the interface.
#[cfg(tollgate_loom)]
#[doc(hidden)]
pub mod model {
    pub use crate::sync::Fault;
    pub use crate::sync::modelled::{with_counted_loads, with_fault, with_generations};
    pub use crate::table::TakeoverStep;
}
