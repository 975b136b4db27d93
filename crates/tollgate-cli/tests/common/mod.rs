//! Running the tool, and an oracle that knows nothing of it: its own reading of a log, its own sorting, and every
//! rule as its definition says, from the bare list of admissions.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "tests")]

use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs the tool to its end.
pub(crate) fn tollgate(arguments: &[&str]) -> Output {
    tollgate_with_input(arguments, Stdio::null())
}

pub(crate) fn tollgate_with_input(arguments: &[&str], input: Stdio) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).stdin(input).output().unwrap()
}

/// The same, for what must succeed.
pub(crate) fn text(arguments: &[&str]) -> String {
    let output = tollgate(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    serde_json::from_str(&text(&arguments)).unwrap()
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Generated traffic in a file of `directory`; the name says the format.
pub(crate) fn generated(directory: &Path, name: &str, requests: u64) -> PathBuf {
    let file = directory.join(name);
    let requests = requests.to_string();
    text(&["generate", "--requests", &requests, "--clients", "300", "--duration", "600", "-o", path(&file)]);
    file
}

/// A log that was not generated, if there is one beside the project or named by `TOLLGATE_ACCESS_LOG`.
pub(crate) fn access_log() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/apache_logs");
    let file = std::env::var_os("TOLLGATE_ACCESS_LOG").map_or(beside, PathBuf::from);
    if !file.is_file() {
        println!("skipped: there is no {}", file.display());
        return None;
    }
    Some(file)
}

/// One request, as a plain reading of a common or combined log has it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at_s: i64,
    pub(crate) ip: String,
    pub(crate) method: String,
    pub(crate) path: String,
}

/// All requests of a log in order of time; of one second, as they stand.
pub(crate) fn requests(log: &str) -> Vec<Request> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut requests: Vec<_> = log
        .lines()
        .map(|line| {
            let time = line.split(['[', ']']).nth(1).unwrap();
            let parts: Vec<&str> = time.split(['/', ':', ' ']).collect();
            let number = |index: usize| parts[index].parse::<i64>().unwrap();
            let (day, month, year) =
                (number(0), i64::try_from(MONTHS.find(parts[1]).unwrap() / 3).unwrap() + 1, number(2));
            // Days by counting: slow, and hard to get wrong.
            let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let mut days = (1970..year).map(|year| 365 + i64::from(is_leap(year))).sum::<i64>();
            for past in 1..month {
                days += match past {
                    2 => 28 + i64::from(is_leap(year)),
                    4 | 6 | 9 | 11 => 30,
                    _ => 31,
                };
            }
            assert_eq!(parts[6], "+0000");
            let request: Vec<&str> = line.split('"').nth(1).unwrap().split(' ').collect();
            Request {
                at_s: (days + day - 1) * 86_400 + number(3) * 3_600 + number(4) * 60 + number(5),
                ip: written_once(line.split(' ').next().unwrap()),
                method: request[0].to_owned(),
                path: (*request.get(1).unwrap_or(&"")).to_owned(),
            }
        })
        .collect();
    requests.sort_by_key(|request| request.at_s);
    requests
}

/// An address in its shortest writing.
fn written_once(host: &str) -> String {
    host.parse::<std::net::IpAddr>().map_or_else(|_| host.to_owned(), |ip| ip.to_string())
}

/// A rule by its definition; times in whole seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// In every span: at most `burst` and `count` for each `period_s` of it.
    Bucket { count: i64, period_s: i64, burst: i64 },
    /// In every aligned window.
    Fixed { count: i64, period_s: i64 },
    /// In this window, and in the one before by the share still in view.
    Sliding { count: i64, period_s: i64 },
    /// In every trailing window.
    Log { count: i64, period_s: i64 },
}

impl Bound {
    fn fits(self, past: &[i64], at_s: i64) -> bool {
        let within = |from_s: i64, to_s: i64| {
            i64::try_from(past.iter().filter(|&&time| time >= from_s && time < to_s).count()).unwrap()
        };
        match self {
            Self::Bucket { count, period_s, burst } => {
                let more = i64::try_from(past.len()).unwrap() + 1;
                let spans = (0..more).zip(past.iter().copied().chain([at_s]));
                spans.into_iter().all(|(earlier, from_s)| {
                    (more - earlier) * period_s <= burst * period_s + count * (at_s - from_s)
                })
            }
            Self::Fixed { count, period_s } => within(at_s - at_s % period_s, at_s + 1) < count,
            Self::Sliding { count, period_s } => {
                let start_s = at_s - at_s % period_s;
                let before = within(start_s - period_s, start_s);
                let left_s = period_s - at_s % period_s;
                before * left_s + (within(start_s, at_s + 1) + 1) * period_s <= count * period_s
            }
            Self::Log { count, period_s } => within(at_s - period_s + 1, at_s + 1) < count,
        }
    }
}

/// What is admitted of each key under all bounds together.
#[derive(Clone, Default)]
pub(crate) struct Oracle {
    admissions: HashMap<String, Vec<i64>>,
    pub(crate) counts: HashMap<String, (u64, u64)>,
}

impl Oracle {
    pub(crate) fn fits(&self, key: &str, at_s: i64, bounds: &[Bound]) -> bool {
        let none = Vec::new();
        let past = self.admissions.get(key).unwrap_or(&none);
        bounds.iter().all(|bound| bound.fits(past, at_s))
    }

    /// Counts a request, as admitted or refused.
    pub(crate) fn count(&mut self, key: &str, at_s: i64, is_admitted: bool) {
        let counts = self.counts.entry(key.to_owned()).or_default();
        if is_admitted {
            counts.0 += 1;
            self.admissions.entry(key.to_owned()).or_default().push(at_s);
        } else {
            counts.1 += 1;
        }
    }

    pub(crate) fn of(requests: &[Request], bounds: &[Bound]) -> Self {
        let mut oracle = Self::default();
        for Request { at_s, ip, .. } in requests {
            let is_admitted = oracle.fits(ip, *at_s, bounds);
            oracle.count(ip, *at_s, is_admitted);
        }
        oracle
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.counts.values().map(|counts| counts.0).sum()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.counts.values().map(|counts| counts.1).sum()
    }
}
