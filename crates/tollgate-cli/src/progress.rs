//! A bar on the terminal while something long goes on; nothing if nobody watches.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const WIDTH: usize = 32;
const EVERY: Duration = Duration::from_millis(100);

pub(crate) struct Progress {
    what: &'static str,
    total: Option<u64>,
    shown: Option<Instant>,
    is_watched: bool,
}

impl Progress {
    /// Towards a total, if it is known.
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        Self { what, total, shown: None, is_watched: io::stderr().is_terminal() }
    }

    /// Shows how far it is, unless it has just been shown.
    pub(crate) fn at(&mut self, done: u64, detail: impl FnOnce() -> String) {
        if !self.is_watched || self.shown.is_some_and(|shown| shown.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let bar = self.total.filter(|&total| total > 0).map(|total| {
            let done = done.min(total);
            let full = usize::try_from(done * WIDTH as u64 / total).unwrap_or(0);
            format!("{}{} {:3} %  ", "█".repeat(full), "░".repeat(WIDTH - full), done * 100 / total)
        });
        // A terminal that cannot be written to shows no bar.
        let _ = write!(io::stderr(), "\r{} {}{}\x1b[K", self.what, bar.unwrap_or_default(), detail());
    }

    /// Wipes the bar away.
    pub(crate) fn end(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
