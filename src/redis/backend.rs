//! The server as the limiter sees it: a script in, numbers out, within a deadline or not at all.

use super::breaker::{Breaker, BreakerState, Pauses};
use super::connection::{IfLost, Pool, is_unknown_script};
use super::error::RedisError;
use super::scripts::{Call, Source};
use super::stats::Counters;
use ::redis::{Cmd, FromRedisValue, Value};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

#[derive(Debug)]
pub(super) struct Backend {
    pub(super) pool: Pool,
    pub(super) breaker: Breaker,
    pub(super) counters: Counters,
    /// How long anybody waits for an answer.
    pub(super) deadline: Duration,
    /// How long the probe does, which has to make connections first.
    pub(super) probe_deadline: Duration,
    pub(super) runtime: Handle,
    /// The key of the last call that failed: what the probe has to reach again, in a cluster of several nodes.
    pub(super) failed_key: Mutex<String>,
}

impl Backend {
    /// Runs a script, unless the breaker is open.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: &Source,
        call: &Call,
        if_lost: IfLost,
    ) -> Result<Vec<i64>, RedisError> {
        let value = self.guarded(call.keys.first(), async {
            match self.pool.send(&script.command(true, call), if_lost).await {
                // A server that was restarted, flushed or just promoted. The text goes where the keys are.
                Err(error) if is_unknown_script(&error) => {
                    self.pool.send(&script.command(false, call), if_lost).await
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
        // Until it returns, what was taken is to be forgotten: twice is no more than that.
        self.guarded(keys.first(), self.pool.send(&command, IfLost::Repeat)).await.map(|_| ())
    }

    async fn guarded(
        self: &Arc<Self>,
        key: Option<&String>,
        sending: impl Future<Output = Result<Value, ::redis::RedisError>>,
    ) -> Result<Value, RedisError> {
        if !self.breaker.is_closed() {
            return Err(RedisError::BreakerOpen);
        }
        let sent = self.timed(self.deadline, sending).await;
        match &sent {
            // Who refuses one command is there.
            Ok(_) | Err(RedisError::Rejected(_)) => self.breaker.succeeded(),
            Err(error) => {
                if let Some(key) = key {
                    key.clone_into(&mut self.failed_key.lock().unwrap_or_else(PoisonError::into_inner));
                }
                if self.breaker.failed(&self.counters, error) {
                    self.start_probe();
                }
            }
        }
        sent
    }

    /// Waits no longer than the deadline, and counts what came of it.
    async fn timed<T>(
        &self,
        deadline: Duration,
        sending: impl Future<Output = Result<T, ::redis::RedisError>>,
    ) -> Result<T, RedisError> {
        let began = Instant::now();
        let result = match timeout(deadline, sending).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if error.is_timeout() => Err(RedisError::Timeout(deadline)),
            Ok(Err(error)) => Err(RedisError::from(&error)),
            Err(_) => Err(RedisError::Timeout(deadline)),
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
        self.pool.discard_all();
        self.runtime.spawn(probe_until_back(Arc::downgrade(self)));
    }

    /// Connects and writes: a server that only reads is of no use. In a cluster, to the node that failed.
    async fn probe(&self) -> Result<(), RedisError> {
        let failed = self.failed_key.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The tag of the failed key, and an end of its own.
        let start = failed.rfind("}:").map_or("tollgate:{#probe}:", |end| &failed[..end + 2]);
        let mut command = Cmd::new();
        command.arg("SET").arg(format!("{start}probe")).arg(1).arg("PX").arg(1_000);
        self.timed(self.probe_deadline, async {
            self.pool.connect_all().await?;
            self.pool.send(&command, IfLost::Repeat).await
        })
        .await
        .map(|_| ())
    }
}

async fn probe_until_back(backend: Weak<Backend>) {
    for pause in Pauses::new() {
        // Not held while asleep, so that the last limiter to go ends it.
        sleep(pause).await;
        let Some(backend) = backend.upgrade() else { return };
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
