//! Requests on their way from a reader to the engine, many at a time: when, and under which keys.

use super::record::Record;
use super::source::FormatSeen;
use super::time::NS_PER_S;
use ahash::RandomState;
use std::ops::Range;
use std::sync::LazyLock;

/// The longest part of a key that is shown; all of it is hashed.
const LABEL_BYTES_MAX: u8 = 200;

/// Fixed, so that a run can be repeated.
static HASHER: LazyLock<RandomState> = LazyLock::new(|| RandomState::with_seeds(11, 13, 17, 19));

/// One request: its time and its touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) at_ns: u64,
    /// Where its touches begin, among all of the batch, and how many they are.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// One key of a request, in one scope: the policy's only one, or a rule of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) hash: u64,
    label: u32,
    len: u8,
    /// Whether the request lacks the key and shares the budget of all that do.
    pub(crate) is_shared: bool,
    pub(crate) scope: u16,
}

/// What came of looking for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Key,
    /// None of its own: what stands there is for all that have none.
    Shared,
}

impl std::hash::Hash for Touch {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A line that could not be read.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct BadLine {
    pub(crate) source: String,
    pub(crate) line: u64,
    pub(crate) cause: String,
    /// The beginning of it.
    pub(crate) text: String,
}

/// What was read beside the requests.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) lines: u64,
    pub(crate) blank: u64,
    pub(crate) bad: u64,
    pub(crate) examples: Vec<BadLine>,
    /// Whether a time is more exact than to the second.
    pub(crate) has_fractions: bool,
    /// Told once, at the end of a log.
    pub(crate) format: Option<FormatSeen>,
}

#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    touches: Vec<Touch>,
    text: Vec<u8>,
    pub(crate) seen: Seen,
}

/// Turns a record into touches.
pub(crate) trait Keying: Send + Sync {
    fn touch(&self, record: &Record<'_>, touches: &mut Touches<'_>);
}

/// Where a [`Keying`] puts the keys of one request.
pub(crate) struct Touches<'a>(&'a mut Batch);

impl Touches<'_> {
    /// Adds a key of a scope: `write` appends its text, or says that there is none.
    pub(crate) fn add(&mut self, scope: u16, write: impl FnOnce(&mut Vec<u8>) -> Found) {
        let text = &mut self.0.text;
        let start = text.len();
        let found = write(text);
        if found == Found::Nothing {
            text.truncate(start);
            return;
        }
        let hash = HASHER.hash_one(&text[start..]);
        text.truncate(start + usize::from(LABEL_BYTES_MAX));
        let len = u8::try_from(text.len() - start).unwrap_or(LABEL_BYTES_MAX);
        let label = u32::try_from(start).unwrap_or(u32::MAX);
        self.0.touches.push(Touch { hash, label, len, is_shared: found == Found::Shared, scope });
    }
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.touches.clear();
        self.text.clear();
        self.seen = Seen::default();
    }

    pub(crate) fn push(&mut self, record: &Record<'_>, keying: &dyn Keying) {
        let first = self.touches.len();
        keying.touch(record, &mut Touches(self));
        self.seen.has_fractions |= record.at_ns % NS_PER_S != 0;
        self.close(record.at_ns, first);
    }

    fn close(&mut self, at_ns: u64, first: usize) {
        // A batch is of some thousand requests with at most a few hundred bytes each.
        let count = u32::try_from(self.touches.len() - first).unwrap_or(u32::MAX);
        self.entries.push(Entry { at_ns, first: u32::try_from(first).unwrap_or(u32::MAX), count });
    }

    /// Takes requests back.
    pub(crate) fn remove(&mut self, range: Range<usize>) {
        let from = |entries: &[Entry], at: usize, end: u32| entries.get(at).map_or(end, |entry| entry.first);
        let end = u32::try_from(self.touches.len()).unwrap_or(u32::MAX);
        let (first, next) = (from(&self.entries, range.start, end), from(&self.entries, range.end, end));
        self.touches.drain(first as usize..next as usize);
        self.entries[range.end..].iter_mut().for_each(|entry| entry.first -= next - first);
        self.entries.drain(range);
    }

    /// Copies a request of another batch, at a time of its own.
    pub(crate) fn push_from(&mut self, other: &Self, index: usize, at_ns: u64) {
        let first = self.touches.len();
        for touch in other.touches(&other.entries[index]) {
            let label = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
            self.text.extend_from_slice(other.label(touch));
            self.touches.push(Touch { label, ..*touch });
        }
        self.close(at_ns, first);
    }

    pub(crate) fn touches(&self, entry: &Entry) -> &[Touch] {
        &self.touches[entry.first as usize..][..entry.count as usize]
    }

    /// The touches of all requests, in order.
    pub(crate) fn all_touches(&self) -> &[Touch] {
        &self.touches
    }

    pub(crate) fn label(&self, touch: &Touch) -> &[u8] {
        &self.text[touch.label as usize..][..usize::from(touch.len)]
    }
}
