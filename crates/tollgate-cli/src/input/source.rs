//! One log: which format it is in, and a thread that turns its lines into batches.

use super::batch::{BadLine, Batch, Keying, Seen};
use super::clf;
use super::csv::CsvLines;
use super::excerpt::beginning;
use super::json::JsonLines;
use super::lines::{Blocks, Place, Torn};
use super::record::{FieldNames, Record};
use super::time::NS_PER_S;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender};

const BATCH_ENTRIES: usize = 4_096;
/// Of each batch; what is shown in the end is fewer still.
const EXAMPLES_MAX: usize = 5;
/// How many lines are tried to find out the format.
const TRIED_LINES: usize = 50;
/// A few lines that are further ahead than this of what is before and after them have a wrong time.
const LEAP_NS: u64 = 3_600 * NS_PER_S;
/// More lines in a row than this are right: the log goes on after a pause.
const DOUBTED_MAX: usize = 64;

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
    let mut cause = String::new();
    match csv() {
        Err(as_csv) => cause = format!("\nAs CSV: {as_csv}."),
        Ok((mut parser, is_heading)) => {
            let mut requests = lines().skip(usize::from(is_heading));
            if requests.any(|line| parser.parse(line).is_ok()) || lines().count() == 1 {
                return csv().map_err(Failure::usage);
            }
        }
    }
    if let (b"{", Err(as_json)) = (&first[..1], tried.parse(first)) {
        cause = format!("\nAs JSON: {as_json}.");
    }
    let shown = beginning(first);
    Err(Failure::usage(format!(
        "`{name}` is in no format that is known. Its first line is\n  {shown}\n\
         Known are the common and combined log formats, JSON lines, and CSV with a time and a key.\n\
         Name one with `--format clf|json|csv`, and fields with `--field time=NAME --field ip=NAME`.{cause}"
    )))
}

/// How a log was read: its format, and the names its fields had.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct FormatSeen {
    pub(crate) source: String,
    pub(crate) format: Format,
    pub(crate) fields: BTreeMap<&'static str, String>,
}

impl FormatSeen {
    fn of(source: &str, parser: &Parser) -> Self {
        let (format, found) = match parser {
            Parser::Clf => (Format::Clf, Vec::new()),
            Parser::Json(json) => (Format::Json, json.found()),
            Parser::Csv(csv) => (Format::Csv, csv.found().to_vec()),
        };
        let mut fields = BTreeMap::<_, String>::new();
        for (field, name) in found {
            let names = fields.entry(field.name()).or_default();
            *names = if names.is_empty() { name } else { format!("{names} or {name}") };
        }
        Self { source: source.to_owned(), format, fields }
    }
}

/// Batches, then nothing to say that the end was reached, or why it was not.
pub(crate) type Sent = Result<Option<Batch>, Failure>;

/// Reads one log to its end. Batches that come back are used again.
pub(crate) struct Source {
    pub(crate) place: Place,
    pub(crate) reading: Reading,
    /// If there is none, requests are parsed and not kept.
    pub(crate) keying: Option<Arc<dyn Keying>>,
    pub(crate) bytes_read: Arc<AtomicU64>,
}

impl Source {
    pub(crate) fn run(self, batches: &SyncSender<Sent>, used: &Receiver<Batch>) {
        let send = |batch: &mut Batch| {
            let next = used.try_recv().map(|mut batch: Batch| {
                batch.clear();
                batch
            });
            batches.send(Ok(Some(std::mem::replace(batch, next.unwrap_or_default())))).is_ok()
        };
        // If nobody listens any more, nobody wants to know.
        let _ = batches.send(self.read(send).map(|_| None));
    }

    /// Reads and parses; says how many requests there were, and what else there was.
    pub(crate) fn parse_only(self) -> Result<(u64, Seen), Failure> {
        let mut seen = Seen::default();
        let requests = self.read(|batch| {
            seen = std::mem::take(&mut batch.seen);
            true
        })?;
        Ok((requests, seen))
    }

    fn read(self, mut send: impl FnMut(&mut Batch) -> bool) -> Result<u64, Failure> {
        let mut blocks = Blocks::open(&self.place, &self.bytes_read)?;
        let mut parser = None;
        let mut lines = Lines::new(self.place.name(), self.keying);
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
                    return Ok(lines.parsed);
                }
            }
        }
        lines.end(blocks.torn());
        lines.batch.seen.format = parser.map(|parser| FormatSeen::of(&lines.name, &parser));
        send(&mut lines.batch);
        Ok(lines.parsed)
    }
}

/// The lines of one log, on their way into a batch.
struct Lines {
    name: String,
    keying: Option<Arc<dyn Keying>>,
    batch: Batch,
    /// Of the line in hand, from 1.
    number: u64,
    /// Whether the first line is a heading.
    is_heading: bool,
    parsed: u64,
    /// The newest time that is not in doubt.
    newest_ns: Option<u64>,
    /// Requests in a row that are all far ahead of it: their lines and times.
    doubted: Vec<(u64, u64)>,
    /// How many have come since that are not.
    back: usize,
}

impl Lines {
    fn new(name: String, keying: Option<Arc<dyn Keying>>) -> Self {
        Self {
            name,
            keying,
            batch: Batch::default(),
            number: 0,
            is_heading: false,
            parsed: 0,
            newest_ns: None,
            doubted: Vec::new(),
            back: 0,
        }
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
                self.parsed += 1;
                match &self.keying {
                    Some(keying) => {
                        self.batch.push(&record, &**keying);
                        self.weigh(record.at_ns);
                    }
                    None => drop(black_box(record)),
                }
            }
            Err(cause) => self.note_bad(self.number, &cause, line),
        }
    }

    /// Doubts the newest request if it is far ahead, and settles older doubts. A few lines with a wrong time, which
    /// would make all that follow late, are told from a log that goes on after a pause by what comes next: two lines
    /// that are back where the log was.
    fn weigh(&mut self, at_ns: u64) {
        let is_ahead = |newest_ns: u64| at_ns > newest_ns.saturating_add(LEAP_NS);
        if self.newest_ns.is_some_and(is_ahead) {
            if self.back > 0 {
                self.trust();
            }
            if self.newest_ns.is_some_and(is_ahead) {
                self.doubted.push((self.number, at_ns));
                if self.doubted.len() == DOUBTED_MAX {
                    self.trust();
                }
                return;
            }
        }
        self.newest_ns = self.newest_ns.max(Some(at_ns));
        if let Some(least_ns) = self.doubted.iter().map(|doubted| doubted.1).min() {
            self.back += 1;
            if least_ns <= at_ns.saturating_add(LEAP_NS) {
                self.trust();
            } else if self.back == 2 {
                self.drop_doubted();
            }
        }
    }

    fn trust(&mut self) {
        self.newest_ns = self.newest_ns.max(self.doubted.iter().map(|doubted| doubted.1).max());
        self.doubted.clear();
        self.back = 0;
    }

    fn drop_doubted(&mut self) {
        let end = self.batch.entries.len() - std::mem::take(&mut self.back);
        self.batch.remove(end - self.doubted.len()..end);
        for (number, _) in std::mem::take(&mut self.doubted) {
            self.note_bad(number, "its time is hours ahead of the lines around it", b"");
        }
    }

    /// Whether the batch can go. Requests that are in doubt stay.
    fn is_full(&self) -> bool {
        self.batch.entries.len() >= BATCH_ENTRIES && self.doubted.is_empty()
    }

    fn end(&mut self, torn: Option<&Torn>) {
        if self.back > 0 {
            self.drop_doubted();
        }
        if let Some(Torn { cause, line }) = torn {
            self.number += 1;
            self.batch.seen.lines += 1;
            self.note_bad(self.number, cause, line);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{Found, Touches};

    struct Nobody;

    impl Keying for Nobody {
        fn touch(&self, record: &Record<'_>, touches: &mut Touches<'_>) {
            touches.add(0, |text| {
                text.extend_from_slice(record.ip);
                Found::Key
            });
        }
    }

    /// The times that are kept of lines at these times (in hours and seconds), and the numbers of those that are not.
    fn kept(times: &[(u64, u64)]) -> (Vec<(u64, u64)>, Vec<u64>) {
        const START_S: u64 = 1_700_000_000;
        let mut lines = Lines::new(String::new(), Some(Arc::new(Nobody)));
        let names = FieldNames::new(&[]).unwrap_or_else(|error| panic!("{error}"));
        let mut parser = Parser::Csv(CsvLines::new(b"time,ip", &names).expect("a heading").0);
        for (hours, seconds) in times {
            let at_s = START_S + hours * 3_600 + seconds;
            lines.take(format!("{at_s},{at_s}").as_bytes(), &mut parser);
        }
        lines.end(None);
        let Batch { entries, seen, .. } = &lines.batch;
        let times = entries.iter().map(|entry| {
            let at_s = entry.at_ns / NS_PER_S;
            let touches = lines.batch.touches(entry);
            assert_eq!(lines.batch.label(&touches[0]), at_s.to_string().as_bytes(), "its own key");
            ((at_s - START_S) / 3_600, (at_s - START_S) % 3_600)
        });
        (times.collect(), seen.examples.iter().map(|bad| bad.line).collect())
    }

    #[test]
    fn late_lines_cast_no_doubt_on_others() {
        for times in [
            // Long requests end now and then.
            &[(9, 0), (7, 0), (9, 1), (6, 0), (9, 2), (9, 3)][..],
            &[(9, 0), (7, 0), (7, 1), (9, 1)],
            // The newest first.
            &[(9, 0), (7, 0), (5, 0), (3, 0), (1, 0)],
            // A pause, and a long request that began in it.
            &[(1, 0), (5, 0), (2, 0), (5, 1), (5, 2)],
            &[(1, 0), (5, 0), (9, 0), (13, 0)],
            &[(1, 0), (5, 0)],
        ] {
            assert_eq!(kept(times), (times.to_vec(), Vec::new()), "{times:?}");
        }
        let pause: Vec<_> = (0..3).chain(1_000_000..1_000_200).map(|second| (0, second)).collect();
        assert_eq!(kept(&pause).0.len(), pause.len());
    }

    #[test]
    fn a_few_lines_from_the_future_are_bad() {
        for (times, bad) in [
            (&[(1, 0), (9, 0), (1, 1), (1, 2), (1, 3)][..], &[2][..]),
            (&[(1, 0), (9, 0), (8, 0), (1, 1), (1, 2), (9, 0), (1, 3)], &[2, 3, 6]),
        ] {
            let good: Vec<_> = times.iter().copied().filter(|time| time.0 == 1).collect();
            assert_eq!(kept(times), (good, bad.to_vec()), "{times:?}");
        }
    }
}
