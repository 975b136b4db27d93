//! Pages beside the reference: which algorithm, what is promised, coming from elsewhere, and how it works inside.
//!
//! Only there for who reads, or runs, the documentation.

// The first definition of a link counts: those of `links.md` come before the pages' own, which lead to files.
#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/charts/embedded.md")]
#[doc = include_str!("../docs/algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/promises.md")]
pub mod promises {}

#[doc = include_str!("../docs/migrating.md")]
pub mod migrating {}

#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/architecture.md")]
pub mod architecture {}

#[doc = include_str!("../docs/memory-ordering.md")]
pub mod memory_ordering {}

#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/verification.md")]
pub mod verification {}

#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/scaling.md")]
pub mod scaling {}

#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/tool.md")]
pub mod tool {}

// A link to the page of another package, whose files this one cannot have otherwise.
#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../docs/benchmarks.md")]
pub mod benchmarks {}

#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../CONTRIBUTING.md")]
pub mod contributing {}

#[doc = include_str!("../docs/links.md")]
#[doc = include_str!("../SECURITY.md")]
pub mod security {}

#[doc = "[Unreleased]: #unreleased"]
#[doc = include_str!("../CHANGELOG.md")]
pub mod changelog {}
