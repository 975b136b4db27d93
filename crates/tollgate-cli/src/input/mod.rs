//! Logs: read, unpacked and parsed by a thread each, then put in order of time.

mod batch;
mod clf;
mod csv;
mod excerpt;
mod json;
mod lines;
mod order;
mod record;
mod source;

pub(crate) mod time;

pub(crate) use batch::{Batch, Found, Keying, Touch, Touches};
pub(crate) use lines::Place;
pub(crate) use order::{Ordered, Totals};
pub(crate) use record::{FieldNames, Record};
pub(crate) use source::{Format, Reading, Source};
