//! The server as the limiter sees it: a script in, numbers out, within a deadline or not at all.

use super::breaker::{Breaker, BreakerState, Pauses};
use super::connection::{Pool, TOO_SOON};
use super::endpoint::{IfLost, is_unknown_script};
use super::error::RedisError;
use super::scripts::{Call, PROBE, Source};
use super::stats::Counters;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use ::redis::{Cmd, FromRedisValue, Value};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

#[derive(Debug)]
pub(super) struct Backend {
    pub(super) pool: Pool,
    pub(super) breaker: Breaker,
    pub(super) counters: Counters,
    /// How long anybody waits for an answer.
    pub(super) deadline: Duration,
    /// How long the probe does, which has to make connections first.
    pub(super) probe_deadline: Duration,
    /// Where it was built, for what is begun outside of any.
    pub(super) runtime: Handle,
    /// The key of the last call that failed: what the probe has to reach again, in a cluster of several nodes.
    pub(super) failed_key: Mutex<String>,
    /// 1 while there is a probe.
    pub(super) probing: AtomicU64,
}

impl Backend {
    /// Until when whoever asks now will wait.
    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Whether the server is asked. If not, there is a probe: a runtime that ended has taken its tasks with it.
    pub(super) fn is_closed(self: &Arc<Self>) -> bool {
        let is_closed = self.breaker.is_closed();
        // Relaxed: at worst it is seen by the next who comes.
        if !is_closed && self.probing.load(Ordering::Relaxed) == 0 {
            self.start_probe();
        }
        is_closed
    }

    /// Runs a task where whoever begins it runs, who may have outlived the runtime that the limiter was built in.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        Handle::try_current().unwrap_or_else(|_| self.runtime.clone()).spawn(task)
    }

    /// Runs a script, unless the breaker is open.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: &Source,
        call: &Call,
        if_lost: IfLost,
        until: Instant,
    ) -> Result<Vec<i64>, RedisError> {
        let key = call.keys.first().map_or("", String::as_str);
        let value = self.guarded(key, until, async {
            match self.pool.send(&script.command(true, call), if_lost, key).await {
                // A server that was restarted, flushed or just promoted. The text goes where the keys are.
                Err(error) if is_unknown_script(&error) => {
                    self.pool.send(&script.command(false, call), if_lost, key).await
                }
                sent => sent,
            }
        });
        Vec::<i64>::from_redis_value(value.await?).map_err(|_| super::protocol::odd_reply())
    }

    /// Deletes keys of one subject.
    pub(super) async fn delete(self: &Arc<Self>, keys: &[String]) -> Result<(), RedisError> {
        let mut command = Cmd::new();
        command.arg("DEL");
        for key in keys {
            command.arg(key.as_str());
        }
        let key = keys.first().map_or("", String::as_str);
        // Until it returns, what was taken is to be forgotten: twice is no more than that.
        let sending = self.pool.send(&command, IfLost::Repeat, key);
        self.guarded(key, self.until(), sending).await.map(|_| ())
    }

    async fn guarded(
        self: &Arc<Self>,
        key: &str,
        until: Instant,
        sending: impl Future<Output = Result<Value, ::redis::RedisError>>,
    ) -> Result<Value, RedisError> {
        if !self.is_closed() {
            return Err(RedisError::BreakerOpen);
        }
        let mut asking = Asking {
            backend: self,
            key,
            since: Instant::now(),
            answers: self.breaker.answers(),
            is_over: false,
        };
        let sent = self.timed(until, sending).await;
        asking.is_over = true;
        match &sent {
            // Who refuses one command is there.
            Ok(_) | Err(RedisError::Rejected(_)) => self.breaker.succeeded(),
            Err(error) => self.failed(key, error),
        }
        sent
    }

    fn failed(self: &Arc<Self>, key: &str, error: &RedisError) {
        key.clone_into(&mut self.failed_key.lock().unwrap_or_else(PoisonError::into_inner));
        if self.breaker.failed(&self.counters, error) {
            self.start_probe();
        }
    }

    /// Waits no longer than until then, and counts what came of it.
    async fn timed<T>(
        &self,
        until: Instant,
        sending: impl Future<Output = Result<T, ::redis::RedisError>>,
    ) -> Result<T, RedisError> {
        let began = Instant::now();
        let too_late = || RedisError::Timeout(until.saturating_duration_since(began));
        let result = match timeout_at(until, sending).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if error.is_timeout() => Err(too_late()),
            Ok(Err(error)) => Err(RedisError::from(&error)),
            Err(_) => Err(too_late()),
        };
        match &result {
            Ok(_) => self.counters.answered(began.elapsed()),
            Err(error) => self.counters.failed(matches!(error, RedisError::Timeout(_))),
        }
        result
    }

    /// Asks the server once, before anybody needs it; opens the breaker if it is not there.
    pub(super) async fn greet(self: &Arc<Self>) {
        if let Err(error) = self.probe().await {
            if self.breaker.open(&self.counters, &error) {
                self.start_probe();
            }
        }
    }

    /// Looks for the server in the background until it is back or nobody holds the limiter any more.
    fn start_probe(self: &Arc<Self>) {
        // Relaxed: the exchange alone says who was first.
        let (set, seen) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.probing.compare_exchange(0, 1, set, seen).is_ok() {
            let prober = Prober(Arc::downgrade(self));
            self.pool.discard_all();
            self.spawn(prober.look_until_back());
        }
    }

    /// Connects and runs a script that writes: a server that only reads, or runs no scripts, is of no use. In a cluster,
    /// on the node that failed.
    async fn probe(&self) -> Result<(), RedisError> {
        let failed = self.failed_key.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The tag of the failed key, and an end of its own.
        let start = failed.rfind("}:").map_or("tollgate:{#probe}:", |end| &failed[..end + 2]);
        let key = format!("{start}probe");
        let mut command = Cmd::new();
        command.arg("EVAL").arg(PROBE).arg(1).arg(&key);
        self.timed(Instant::now() + self.probe_deadline, async {
            self.pool.connect_all().await?;
            self.pool.send(&command, IfLost::Repeat, &key).await
        })
        .await
        .map(|_| ())
    }
}

/// One who asks and may go away before there is an answer or the deadline has passed. Nobody else would notice that
/// the server does not answer, if all of them are in such a hurry.
struct Asking<'a> {
    backend: &'a Arc<Backend>,
    key: &'a str,
    since: Instant,
    answers: u64,
    is_over: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        let was_heard = self.backend.breaker.answers() != self.answers;
        if self.is_over || was_heard || waited < self.backend.deadline / TOO_SOON {
            return;
        }
        self.backend.counters.failed(true);
        self.backend.failed(self.key, &RedisError::Timeout(waited));
    }
}

/// The one who looks for the server; when it goes, for whatever reason, there may be another.
struct Prober(Weak<Backend>);

impl Prober {
    async fn look_until_back(self) {
        for pause in Pauses::new() {
            // Not held while asleep, so that the last limiter to go ends it.
            sleep(pause).await;
            let Some(backend) = self.0.upgrade() else { return };
            backend.breaker.set(BreakerState::Probing, &backend.counters, &"looking for the server");
            match backend.probe().await {
                Ok(()) => {
                    backend.breaker.set(BreakerState::Closed, &backend.counters, &"the server is back");
                    return;
                }
                Err(error) => {
                    backend.pool.discard_all();
                    backend.breaker.set(BreakerState::Open, &backend.counters, &error);
                }
            }
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(backend) = self.0.upgrade() {
            // Relaxed: whoever finds the breaker open later starts anew.
            backend.probing.store(0, Ordering::Relaxed);
        }
    }
}
