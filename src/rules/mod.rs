#![doc = include_str!("../../docs/links.md")]
#![doc = include_str!("../../docs/rules.md")]

mod error;
mod file;
mod key;
mod path;
mod pattern;
mod route;
mod set;

pub use error::RulesError;
#[cfg(feature = "tower")]
pub(crate) use file::{contents, parse_contents};
pub use key::{IpPrefix, KeyChoice, KeyPart, KeySource, KeySpec};
pub use path::RequestPath;
pub use pattern::PathPattern;
pub use route::{RouteMatch, RouteRule};
pub use set::{Matches, RuleSet};
