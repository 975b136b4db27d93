//! A file that is looked at again and again.

use super::layer::RulesHandle;
use crate::rules::{contents, parse_contents};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PERIOD_MIN: Duration = Duration::from_millis(10);

/// Watches a file until it is dropped: see [`RulesHandle::watch`].
///
/// The file is read each time and compared with what was read before: neither a coarse time stamp nor a file that is
/// moved into its place goes unseen.
///
/// ```
/// use std::time::Duration;
/// use tollgate::tower::{RateLimitLayer, Watch};
///
/// struct Server { _watch: Watch }
///
/// let layer = RateLimitLayer::new("100/min")?;
/// let watch = layer.handle().watch("rules.toml", Duration::from_secs(2))?;
/// let server = Server { _watch: watch };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the watch ends once this is dropped"]
pub struct Watch {
    /// Dropped first, which ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(handle: RulesHandle, path: PathBuf, period: Duration) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let watch = move || watch(&handle, &path, period.max(PERIOD_MIN), &stopped);
        let thread = thread::Builder::new().name("tollgate-rules".into()).spawn(watch)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

fn watch(handle: &RulesHandle, path: &Path, period: Duration, stopped: &Receiver<()>) {
    let (mut in_force, mut before) = (None, None);
    loop {
        let read = contents(path);
        let found = read.as_ref().ok().cloned();
        // Twice the same: a file that is being written is left alone.
        if found == before && found != in_force {
            // What was compared, not what is there a moment later. What is wrong is told by the handle; it would be
            // the same again for the same bytes.
            let _ = handle.put(parse_contents(path, read));
            in_force.clone_from(&found);
        }
        before = found;
        if stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It may be that very thread that drops this, by what a notice does.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
