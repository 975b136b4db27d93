//! A file that is looked at again and again.

use super::layer::RulesHandle;
use crate::rules::{contents, parse_contents};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, ThreadId};
use std::time::Duration;

const PERIOD_MIN: Duration = Duration::from_millis(10);
/// How long whoever ends a watch waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Watches a file until it is dropped: see [`RulesHandle::watch`].
///
/// The file is read each time and compared with what was read before: neither a coarse time stamp nor a file that is
/// moved into its place goes unseen. What is no regular file is refused.
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
    /// Closed once it has.
    ended: Receiver<()>,
    thread: ThreadId,
}

impl Watch {
    pub(super) fn start(handle: RulesHandle, path: PathBuf, period: Duration) -> io::Result<Self> {
        let ((stop, stopped), (ending, ended)) = (channel(), channel());
        let watch = move || {
            // Dropped at the end, whatever brings it about.
            let _ending: Sender<()> = ending;
            watch(&handle, &path, period.max(PERIOD_MIN), &stopped);
        };
        let thread = thread::Builder::new().name("tollgate-rules".into()).spawn(watch)?;
        Ok(Self { stop: Some(stop), ended, thread: thread.thread().id() })
    }
}

fn watch(handle: &RulesHandle, path: &Path, period: Duration, stopped: &Receiver<()>) {
    let (mut in_force, mut before) = (None, None);
    loop {
        let read = look(path);
        let found = Some(read.as_ref().ok().cloned());
        if stopped.try_recv() == Err(TryRecvError::Disconnected) {
            return;
        }
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

/// What is in the file. Whoever opens something else, such as a pipe, may wait for ever.
fn look(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    contents(path)
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It may be that very thread that drops this, by what a notice does.
        if self.thread != thread::current().id() {
            // A file of a server that does not answer holds the thread up, and must not hold up whoever ends the watch:
            // once it does answer, the thread ends without a deed.
            let _ = self.ended.recv_timeout(PATIENCE);
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
