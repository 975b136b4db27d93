//! Several logs as one, in order of time.
//!
//! Logs are merged by the times of their next lines. Lines within a log may be out of order, as servers write a
//! line when a request ends and time it when it begins: so requests wait in a window before they are let
//! go. One that comes too late for the window is let go at the time of the one before it, and counted.

use super::batch::{BadLine, Batch, Keying};
use super::lines::Place;
use super::source::{FormatSeen, Reading, Sent, Source};
use crate::failure::Failure;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;

/// How many requests the window holds at most; beyond, the oldest is let go early.
const WINDOW_ENTRIES: usize = 1 << 18;
const CHUNK_ENTRIES: usize = 1_024;
/// Batches a reader may be ahead.
const AHEAD: usize = 4;
const EXAMPLES_MAX: usize = 5;

/// What has been read so far, over all logs.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Totals {
    pub(crate) lines: u64,
    pub(crate) blank: u64,
    pub(crate) bad: u64,
    pub(crate) bad_examples: Vec<BadLine>,
    pub(crate) requests: u64,
    /// Requests whose line came after one of a later time.
    pub(crate) out_of_order: u64,
    /// Of those, the ones that came too late for the window.
    pub(crate) too_late: u64,
    /// By how much the latest of them did.
    pub(crate) latest_by_ns: u64,
    /// Whether no time is more exact than to the second.
    pub(crate) whole_seconds: bool,
    /// How each log was read.
    pub(crate) formats: Vec<FormatSeen>,
}

impl Totals {
    /// Whether so many came too late that what was decided says little of the traffic.
    pub(crate) fn is_disordered(&self) -> bool {
        self.too_late.saturating_mul(100) > self.requests
    }
}

/// A log's reader, seen from here.
struct Feed {
    name: String,
    batches: Receiver<Sent>,
    used: Sender<Batch>,
    /// The place of the batch in hand, and the next request in it.
    at: Option<(usize, usize)>,
}

/// A batch, some of whose requests are still in the window.
struct Held {
    batch: Batch,
    left: usize,
    feed: usize,
}

/// A request in the window. Ordered by time, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    at_ns: u64,
    arrival: u64,
    held: usize,
    index: usize,
}

/// The requests of all logs, in order of time.
pub(crate) struct Ordered {
    feeds: Vec<Feed>,
    held: Vec<Option<Held>>,
    window_ns: u64,
    /// Requests in order, and those that came late, to be taken from whichever is first.
    in_order: VecDeque<Waiting>,
    late: BinaryHeap<Reverse<Waiting>>,
    newest_ns: u64,
    /// The time of the last one let go.
    now_ns: u64,
    pub(crate) totals: Totals,
    bytes_read: Arc<AtomicU64>,
}

impl Ordered {
    /// Starts a reader for each log.
    pub(crate) fn open(
        places: &[Place],
        reading: &Reading,
        keying: &Arc<dyn Keying>,
        window_ns: u64,
    ) -> Result<Self, Failure> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        let mut feeds = Vec::new();
        for place in places {
            let (batches_in, batches) = sync_channel(AHEAD);
            let (used, used_out) = channel();
            let source = Source {
                place: place.clone(),
                reading: reading.clone(),
                keying: Some(Arc::clone(keying)),
                bytes_read: Arc::clone(&bytes_read),
            };
            thread::Builder::new()
                .name("tollgate-read".to_owned())
                .spawn(move || source.run(&batches_in, &used_out))
                .map_err(|error| {
                    Failure::input(format!("cannot start a thread to read `{}`: {error}", place.name()))
                })?;
            feeds.push(Feed { name: place.name(), batches, used, at: None });
        }
        let mut ordered = Self {
            feeds,
            held: Vec::new(),
            window_ns,
            in_order: VecDeque::new(),
            late: BinaryHeap::new(),
            newest_ns: 0,
            now_ns: 0,
            totals: Totals { whole_seconds: true, ..Totals::default() },
            bytes_read,
        };
        for feed in 0..ordered.feeds.len() {
            ordered.refill(feed)?;
        }
        Ok(ordered)
    }

    /// Bytes read from all logs, before they are unpacked.
    pub(crate) fn bytes_read(&self) -> u64 {
        // Relaxed: a number for the progress bar.
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// The next requests; false when there are no more.
    pub(crate) fn next(&mut self, chunk: &mut Batch) -> Result<bool, Failure> {
        chunk.clear();
        while chunk.entries.len() < CHUNK_ENTRIES {
            if !self.take_run(chunk)? {
                while chunk.entries.len() < CHUNK_ENTRIES && self.let_go(chunk) {}
                return Ok(!chunk.entries.is_empty());
            }
        }
        Ok(true)
    }

    /// Moves requests of one log into the window, until another log's turn; false at the end of all.
    fn take_run(&mut self, chunk: &mut Batch) -> Result<bool, Failure> {
        let (mut first, mut next_ns) = (None::<(u64, usize)>, u64::MAX);
        for (feed, at) in self.feeds.iter().map(|feed| feed.at).enumerate() {
            let Some((held, index)) = at else { continue };
            let Some(held) = &self.held[held] else { continue };
            let at_ns = held.batch.entries[index].at_ns;
            match first {
                Some((first_ns, _)) if first_ns <= at_ns => next_ns = next_ns.min(at_ns),
                _ => {
                    next_ns = next_ns.min(first.map_or(u64::MAX, |(first_ns, _)| first_ns));
                    first = Some((at_ns, feed));
                }
            }
        }
        let Some((_, feed)) = first else { return Ok(false) };
        while let Some((held, index)) = self.feeds[feed].at {
            let Some(in_hand) = &self.held[held] else { break };
            let Some(entry) = in_hand.batch.entries.get(index).copied() else {
                self.refill(feed)?;
                break;
            };
            if entry.at_ns > next_ns || chunk.entries.len() >= CHUNK_ENTRIES {
                break;
            }
            self.feeds[feed].at = Some((held, index + 1));
            self.wait(Waiting { at_ns: entry.at_ns, arrival: self.totals.requests, held, index });
            self.totals.requests += 1;
            while self.is_due() && self.let_go(chunk) {}
        }
        // A log whose batch is used up must have its next in hand before the times are compared again.
        if let Some((held, index)) = self.feeds[feed].at {
            if self.held[held].as_ref().is_none_or(|held| index >= held.batch.entries.len()) {
                self.refill(feed)?;
            }
        }
        Ok(true)
    }

    fn wait(&mut self, request: Waiting) {
        if request.at_ns >= self.newest_ns {
            self.newest_ns = request.at_ns;
            self.in_order.push_back(request);
        } else {
            self.totals.out_of_order += 1;
            self.late.push(Reverse(request));
        }
    }

    fn is_due(&self) -> bool {
        let oldest_ns = self.in_order.front().map_or(u64::MAX, |first| first.at_ns);
        let oldest_ns = oldest_ns.min(self.late.peek().map_or(u64::MAX, |late| late.0.at_ns));
        oldest_ns <= self.newest_ns.saturating_sub(self.window_ns)
            || self.in_order.len() + self.late.len() > WINDOW_ENTRIES
    }

    /// Lets the oldest request of the window go; false if there is none.
    fn let_go(&mut self, chunk: &mut Batch) -> bool {
        let from_late = match (self.in_order.front(), self.late.peek()) {
            (Some(first), Some(Reverse(late))) => late < first,
            (first, _) => first.is_none(),
        };
        let oldest = if from_late { self.late.pop().map(|late| late.0) } else { self.in_order.pop_front() };
        let Some(request) = oldest else { return false };
        if request.at_ns < self.now_ns {
            self.totals.too_late += 1;
            self.totals.latest_by_ns = self.totals.latest_by_ns.max(self.now_ns - request.at_ns);
        }
        self.now_ns = self.now_ns.max(request.at_ns);
        if let Some(held) = &mut self.held[request.held] {
            chunk.push_from(&held.batch, request.index, self.now_ns);
            held.left -= 1;
            if held.left == 0 && !self.feeds.iter().any(|feed| feed.at.is_some_and(|at| at.0 == request.held))
            {
                self.release(request.held);
            }
        }
        true
    }

    fn release(&mut self, place: usize) {
        if let Some(Held { batch, feed, .. }) = self.held[place].take() {
            // A reader that has ended wants nothing back.
            let _ = self.feeds[feed].used.send(batch);
        }
    }

    /// Puts a log's next batch in hand, or none at its end.
    fn refill(&mut self, feed: usize) -> Result<(), Failure> {
        if let Some((place, _)) = self.feeds[feed].at.take() {
            if self.held[place].as_ref().is_some_and(|held| held.left == 0) {
                self.release(place);
            }
        }
        loop {
            let Ok(sent) = self.feeds[feed].batches.recv() else {
                let name = &self.feeds[feed].name;
                return Err(Failure::input(format!(
                    "reading `{name}` ended by a fault of this program, before the end of the log"
                )));
            };
            let Some(mut batch) = sent? else { break };
            let seen = std::mem::take(&mut batch.seen);
            self.totals.whole_seconds &= !seen.has_fractions;
            self.totals.formats.extend(seen.format);
            self.totals.lines += seen.lines;
            self.totals.blank += seen.blank;
            self.totals.bad += seen.bad;
            let room = EXAMPLES_MAX.saturating_sub(self.totals.bad_examples.len());
            self.totals.bad_examples.extend(seen.examples.into_iter().take(room));
            if batch.entries.is_empty() {
                continue;
            }
            let place = self.held.iter().position(Option::is_none).unwrap_or_else(|| {
                self.held.push(None);
                self.held.len() - 1
            });
            let left = batch.entries.len();
            self.held[place] = Some(Held { batch, left, feed });
            self.feeds[feed].at = Some((place, 0));
            break;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{FieldNames, Record, Touches};
    use std::io::Write;

    /// Fails at the tenth request.
    struct Faulty(AtomicU64);

    impl Keying for Faulty {
        fn touch(&self, _record: &Record<'_>, _touches: &mut Touches<'_>) {
            // Relaxed: one thread counts.
            assert!(self.0.fetch_add(1, Ordering::Relaxed) < 9, "a fault that is meant");
        }
    }

    #[test]
    fn a_reader_that_dies_is_no_end_of_its_log() {
        let mut log = tempfile::NamedTempFile::new().expect("a file");
        for second in 0..20 {
            writeln!(log, "{},x", 1_700_000_000 + second).expect("written");
        }
        let fields = FieldNames::new(&[]).unwrap_or_else(|error| panic!("{error}"));
        let keying: Arc<dyn Keying> = Arc::new(Faulty(AtomicU64::new(0)));
        let opened = Ordered::open(&[Place::new(log.path())], &Reading { format: None, fields }, &keying, 0);
        let failure = opened.err().expect("the reader died");
        assert!(failure.to_string().contains("by a fault of this program"), "{failure}");
    }
}
