//! Pages beside the reference: which algorithm, what is promised, coming from elsewhere, and how it works inside.
//!
//! Only there for who reads, or runs, the documentation.

// The first definition of a link counts, so the charts themselves come before the page's links to their files.
#[doc = include_str!("../docs/charts/embedded.md")]
#[doc = include_str!("../docs/algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("../docs/promises.md")]
pub mod promises {}

#[doc = include_str!("../docs/migrating.md")]
pub mod migrating {}

#[doc = include_str!("../docs/architecture.md")]
pub mod architecture {}

#[doc = include_str!("../docs/memory-ordering.md")]
pub mod memory_ordering {}

#[doc = include_str!("../docs/verification.md")]
pub mod verification {}
