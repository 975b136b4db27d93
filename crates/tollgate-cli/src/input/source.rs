//! One log: which format it is in, and a thread that turns its lines into batches.

use super::batch::{BadLine, Batch, Keying};
use super::clf;
use super::csv::CsvLines;
use super::excerpt::beginning;
use super::json::JsonLines;
use super::lines::{Blocks, Place};
use super::record::{FieldNames, Record};
use super::time::NS_PER_S;
use crate::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender};

const BATCH_ENTRIES: usize = 4_096;
/// Of each batch; what is shown in the end is fewer still.
const EXAMPLES_MAX: usize = 5;
/// How many lines are tried to find out the format.
const TRIED_LINES: usize = 50;
/// A single line that is further ahead of both its neighbours than this has a wrong time.
const LEAP_NS: u64 = 3_600 * NS_PER_S;

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Common or combined log format, as Apache and nginx write it
    Clf,
    /// JSON lines
    Json,
    /// CSV with a time and a key
    Csv,
}

/// How lines are to be read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// Found out if it is not given.
    pub(crate) format: Option<Format>,
    pub(crate) fields: FieldNames,
}

/// The parser of one log.
enum Parser {
    Clf,
    Json(JsonLines),
    Csv(CsvLines),
}

impl Parser {
    fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Record<'a>, String> {
        match self {
            Self::Clf => clf::parse(line).map_err(str::to_owned),
            Self::Json(json) => json.parse(line),
            Self::Csv(csv) => csv.parse(line),
        }
    }
}

/// Chooses the parser by the first lines. Also says whether the first line that is not blank is a heading.
fn parser_for(reading: &Reading, first_block: &[u8], name: &str) -> Result<(Parser, bool), Failure> {
    let lines = || {
        first_block
            .split(|&byte| byte == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty())
            .take(TRIED_LINES)
    };
    let Some(first) = lines().next() else { return Ok((Parser::Clf, false)) };
    let csv =
        || CsvLines::new(first, &reading.fields).map(|(csv, is_heading)| (Parser::Csv(csv), is_heading));
    let json = || Parser::Json(JsonLines::new(reading.fields.clone()));
    match reading.format {
        Some(Format::Clf) => return Ok((Parser::Clf, false)),
        Some(Format::Json) => return Ok((json(), false)),
        Some(Format::Csv) => {
            return csv().map_err(|cause| Failure::usage(format!("`{name}` cannot be read as CSV: {cause}")));
        }
        None => {}
    }
    if lines().any(|line| clf::parse(line).is_ok()) {
        return Ok((Parser::Clf, false));
    }
    let mut tried = json();
    if lines().any(|line| tried.parse(line).is_ok()) {
        return Ok((json(), false));
    }
    if let Ok((mut parser, is_heading)) = csv() {
        if lines().skip(usize::from(is_heading)).any(|line| parser.parse(line).is_ok())
            || lines().count() == 1
        {
            return csv().map_err(Failure::usage);
        }
    }
    let shown = beginning(first);
    Err(Failure::usage(format!(
        "`{name}` is in no format that is known. Its first line is\n  {shown}\n\
         Known are the common and combined log formats, JSON lines, and CSV with a time and a key.\n\
         Name one with `--format clf|json|csv`, and fields with `--field time=NAME --field ip=NAME`."
    )))
}

/// Reads one log to its end. Batches that come back are used again.
pub(crate) struct Source {
    pub(crate) place: Place,
    pub(crate) reading: Reading,
    pub(crate) keying: Arc<dyn Keying>,
    pub(crate) bytes_read: Arc<AtomicU64>,
}

impl Source {
    /// Sends batches until the end, a failure, or nobody listens any more.
    pub(crate) fn run(self, batches: &SyncSender<Result<Batch, Failure>>, used: &Receiver<Batch>) {
        let send = |batch: &mut Batch| {
            let next = used.try_recv().map(|mut batch: Batch| {
                batch.clear();
                batch
            });
            batches.send(Ok(std::mem::replace(batch, next.unwrap_or_default()))).is_ok()
        };
        if let Err(failure) = self.read(send) {
            // If nobody listens any more, nobody wants to know.
            let _ = batches.send(Err(failure));
        }
    }

    fn read(self, mut send: impl FnMut(&mut Batch) -> bool) -> Result<(), Failure> {
        let name = self.place.name();
        let mut blocks = Blocks::open(&self.place, &self.bytes_read)?;
        let mut parser = None;
        let mut lines = Lines::new(name, self.keying);
        while let Some((too_long, block)) = blocks.next()? {
            lines.pass_over(too_long);
            let parser = match &mut parser {
                Some(parser) => parser,
                unknown => {
                    let (chosen, is_heading) = parser_for(&self.reading, block, &lines.name)?;
                    lines.is_heading = is_heading;
                    unknown.insert(chosen)
                }
            };
            let mut start = 0;
            while start < block.len() {
                let end = memchr::memchr(b'\n', &block[start..]).map_or(block.len(), |at| start + at);
                lines.take(&block[start..end], parser);
                start = end + 1;
                if lines.is_full() && !send(&mut lines.batch) {
                    return Ok(());
                }
            }
        }
        send(&mut lines.batch);
        Ok(())
    }
}

/// The lines of one log, on their way into a batch.
struct Lines {
    name: String,
    keying: Arc<dyn Keying>,
    batch: Batch,
    /// Of the line in hand, from 1.
    number: u64,
    /// Whether the first line is a heading.
    is_heading: bool,
    /// The time of the last request and the number of its line; and the time of the one before.
    last: Option<(u64, u64)>,
    before_ns: Option<u64>,
}

impl Lines {
    fn new(name: String, keying: Arc<dyn Keying>) -> Self {
        let batch = Batch::default();
        Self { name, keying, batch, number: 0, is_heading: false, last: None, before_ns: None }
    }

    fn take(&mut self, line: &[u8], parser: &mut Parser) {
        self.number += 1;
        self.batch.seen.lines += 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii_start().is_empty() || std::mem::take(&mut self.is_heading) {
            self.batch.seen.blank += 1;
            return;
        }
        match parser.parse(line) {
            Ok(record) => {
                self.doubt_last(record.at_ns);
                self.before_ns = self.last.map(|(at_ns, _)| at_ns);
                self.last = Some((record.at_ns, self.number));
                self.batch.push(&record, &*self.keying);
            }
            Err(cause) => self.note_bad(self.number, &cause, line),
        }
    }

    /// Takes the last request back if it is far ahead of both the one before and the one that comes at `next_ns`.
    fn doubt_last(&mut self, next_ns: u64) {
        let Some((last_ns, number)) = self.last else { return };
        let is_ahead = last_ns > next_ns.saturating_add(LEAP_NS) && self.has_leapt();
        if is_ahead && !self.batch.entries.is_empty() {
            self.batch.pop();
            self.note_bad(number, "its time is hours ahead of the lines around it", b"");
            self.last = self.before_ns.map(|before_ns| (before_ns, number));
        }
    }

    /// Whether the last request is far ahead of the one before it.
    fn has_leapt(&self) -> bool {
        let leaps = |(last_ns, _): (u64, u64)| {
            self.before_ns.is_none_or(|before_ns| last_ns > before_ns.saturating_add(LEAP_NS))
        };
        self.last.is_some_and(leaps)
    }

    /// Whether the batch can go. A request that is far ahead stays until the next has confirmed it.
    fn is_full(&self) -> bool {
        let requests = self.batch.entries.len();
        requests >= BATCH_ENTRIES && (!self.has_leapt() || requests >= 2 * BATCH_ENTRIES)
    }

    /// Counts lines that were too long to read.
    fn pass_over(&mut self, lines: u64) {
        for _ in 0..lines {
            self.number += 1;
            self.batch.seen.lines += 1;
            self.note_bad(self.number, "longer than a mebibyte", b"");
        }
    }

    fn note_bad(&mut self, line: u64, cause: &str, text: &[u8]) {
        let seen = &mut self.batch.seen;
        seen.bad += 1;
        if seen.examples.len() < EXAMPLES_MAX {
            seen.examples.push(BadLine {
                source: self.name.clone(),
                line,
                cause: cause.to_owned(),
                text: beginning(text),
            });
        }
    }
}
