//! Connections to the server: striped, made when first needed, thrown away when they fail or fall silent.
//!
//! The same slot serves a single node, the master that sentinels name, and a cluster. A slot that lost its connection
//! gets a new one beside the calls as long as another slot has one; else the next call waits for it, within its
//! deadline. Sentinels are asked anew each time.

use super::endpoint::{Address, Connection, Endpoint, IfLost, is_elsewhere};
use super::error::RedisError;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use ::redis::{Cmd, Value};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// So many calls in a row without an answer, and the connection is thrown away: its other end may be gone without a
/// word, and the system would go on waiting for a quarter of an hour.
const SILENT_MAX: u64 = 2;
/// The least time between two such ends of a cluster's connection, which is to all nodes and made at some cost.
const CLUSTER_PAUSE_MS: u64 = 1_000;
/// The least time between two attempts to connect that nobody waits for.
const BESIDE_PAUSE_MS: u64 = 100;
/// A connection that has been silent for so long may have been closed meanwhile: what must not be repeated is not sent
/// over it without a look.
const IDLE_MS: u64 = 100;
/// Who gives up sooner than after this part of the deadline has not waited long enough to tell.
pub(super) const TOO_SOON: u32 = 10;

struct Slot {
    /// The connection and its number, so that only who failed with it throws it away.
    current: RwLock<Option<(u64, Connection)>>,
    /// Held while a connection is made.
    connecting: Arc<Mutex<()>>,
    next_number: AtomicU64,
    /// How many answers came, and when the last one did, in milliseconds of the pool.
    answers: AtomicU64,
    answered_ms: AtomicU64,
    /// Calls that were not answered: of a node since its last answer, of a cluster since its connection was made.
    silent: AtomicU64,
    /// When the connection was last thrown away for being silent, and when one was last made beside the calls.
    given_up_ms: AtomicU64,
    attempted_ms: AtomicU64,
}

pub(super) struct Pool {
    endpoint: Arc<Endpoint>,
    slots: Box<[Arc<Slot>]>,
    next_slot: AtomicU64,
    connect_limit: Duration,
    /// From when on a call that was given up counts as unanswered.
    patience: Duration,
    born: Instant,
}

impl Pool {
    pub(super) fn new(
        address: &Address,
        connections: usize,
        connect_timeout: Duration,
        deadline: Duration,
    ) -> Result<Self, RedisError> {
        let endpoint = Endpoint::new(address, connect_timeout, deadline)
            .map_err(|error| RedisError::Config(error.to_string()))?;
        Ok(Self {
            connect_limit: endpoint.connect_limit(connect_timeout),
            endpoint: Arc::new(endpoint),
            slots: (0..connections.max(1)).map(|_| Arc::new(Slot::new())).collect(),
            next_slot: AtomicU64::new(0),
            patience: deadline / TOO_SOON,
            born: Instant::now(),
        })
    }

    /// How long it takes at most to make all connections, one of which may be under way already.
    pub(super) fn connect_all_limit(&self) -> Duration {
        let connections = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.connect_limit.saturating_mul(connections.saturating_add(1))
    }

    /// Sends a command about a key, and once more over a new connection if the old one was gone and `if_lost` allows it.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        if_lost: IfLost,
        key: &str,
    ) -> Result<Value, ::redis::RedisError> {
        // Relaxed: it only spreads calls over the slots.
        let turn = self.next_slot.fetch_add(1, Ordering::Relaxed);
        let (slot, mut current) = self.connected(turn).await?;
        let mut retried = false;
        loop {
            let (number, mut connection) = current;
            if if_lost == IfLost::GiveUp && self.is_idle(slot) {
                let look = Cmd::new().arg("EXISTS").arg(key).clone();
                let seen = self.sent(slot, number, &mut connection, &look, if_lost).await;
                if seen.is_err_and(|error| is_lost(&error)) {
                    current = self.connect(slot).await?;
                    continue;
                }
            }
            let error = match self.sent(slot, number, &mut connection, command, if_lost).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let may_repeat = is_elsewhere(&error) || (is_lost(&error) && if_lost == IfLost::Repeat);
            if retried || !may_repeat {
                return Err(error);
            }
            retried = true;
            // The same slot again: where one connection was closed, the others may have been, too.
            current = self.connect(slot).await?;
        }
    }

    /// Sends a command over one connection, and throws that away if it is of no more use.
    async fn sent(
        &self,
        slot: &Slot,
        number: u64,
        connection: &mut Connection,
        command: &Cmd,
        if_lost: IfLost,
    ) -> Result<Value, ::redis::RedisError> {
        let mut waiting = Waiting::new(self, slot, number);
        let sent = connection.send(command, if_lost).await;
        waiting.is_over = match &sent {
            Ok(_) => true,
            Err(error) => !error.is_timeout(),
        };
        match &sent {
            Err(error) if is_lost(error) => slot.discard(Some(number)),
            // The master of yesterday: the sentinels know the one of today.
            Err(error) if error.code() == Some("READONLY") => slot.discard(Some(number)),
            _ if waiting.is_over => slot.answered(self.now_ms(), self.endpoint.is_cluster()),
            _ => {}
        }
        sent
    }

    /// Makes sure that every slot has a connection.
    pub(super) async fn connect_all(&self) -> Result<(), ::redis::RedisError> {
        for slot in &self.slots {
            self.connect(slot).await?;
        }
        Ok(())
    }

    /// Throws all connections away: whatever is still waiting on one is not worth an answer any more.
    pub(super) fn discard_all(&self) {
        for slot in &self.slots {
            slot.discard(None);
        }
    }

    /// A connection: of the slot whose turn it is, or of the next that has one.
    async fn connected(&self, turn: u64) -> Result<(&Arc<Slot>, (u64, Connection)), ::redis::RedisError> {
        let first = usize::try_from(turn % self.slots.len() as u64).unwrap_or(0);
        for index in (first..self.slots.len()).chain(0..first) {
            if let Some(current) = self.slots[index].get() {
                if index != first {
                    self.connect_beside(&self.slots[first]);
                }
                return Ok((&self.slots[index], current));
            }
        }
        Ok((&self.slots[first], self.connect(&self.slots[first]).await?))
    }

    async fn connect(&self, slot: &Arc<Slot>) -> Result<(u64, Connection), ::redis::RedisError> {
        if let Some(current) = slot.get() {
            return Ok(current);
        }
        let alone = Arc::clone(&slot.connecting).lock_owned().await;
        if let Some(current) = slot.get() {
            return Ok(current);
        }
        self.attempt(slot, alone).await.map_err(std::io::Error::other)?
    }

    /// Makes a connection that nobody waits for, unless that was tried just now.
    fn connect_beside(&self, slot: &Arc<Slot>) {
        let now_ms = self.now_ms();
        // Relaxed: a pause, which guards nothing.
        if now_ms < slot.attempted_ms.load(Ordering::Relaxed).saturating_add(BESIDE_PAUSE_MS) {
            return;
        }
        if let Ok(alone) = Arc::clone(&slot.connecting).try_lock_owned() {
            slot.attempted_ms.store(now_ms, Ordering::Relaxed);
            drop(self.attempt(slot, alone));
        }
    }

    /// In a task of its own: whoever gives up waiting must not take the attempt with them, or a deadline that is
    /// shorter than connecting takes would be missed by every call in turn.
    fn attempt(
        &self,
        slot: &Arc<Slot>,
        alone: OwnedMutexGuard<()>,
    ) -> JoinHandle<Result<(u64, Connection), ::redis::RedisError>> {
        let (endpoint, slot, limit) = (Arc::clone(&self.endpoint), Arc::clone(slot), self.connect_limit);
        let born = self.born;
        tokio::spawn(async move {
            let _alone = alone;
            let made = timeout(limit, endpoint.connect()).await;
            let connection = made.map_err(|_| {
                let text = "the connection was not made in time";
                ::redis::RedisError::from(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
            })??;
            Ok(slot.put(connection, millis(born.elapsed())))
        })
    }

    fn is_idle(&self, slot: &Slot) -> bool {
        // Relaxed: at worst one look too many or too few, and then what is lost is an error, as it may be at any time.
        self.now_ms() >= slot.answered_ms.load(Ordering::Relaxed).saturating_add(IDLE_MS)
    }

    fn now_ms(&self) -> u64 {
        millis(self.born.elapsed())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn is_lost(error: &::redis::RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_connection_dropped()
}

/// One who waits for an answer over a connection. Dropped without one (the deadline has passed, or whoever asked has
/// gone), it counts against the connection.
struct Waiting<'a> {
    pool: &'a Pool,
    slot: &'a Slot,
    number: u64,
    since: Instant,
    answers: u64,
    is_over: bool,
}

impl<'a> Waiting<'a> {
    fn new(pool: &'a Pool, slot: &'a Slot, number: u64) -> Self {
        // Relaxed: only compared with what it is later.
        let answers = slot.answers.load(Ordering::Relaxed);
        Self { pool, slot, number, since: Instant::now(), answers, is_over: false }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_over || self.since.elapsed() < self.pool.patience || !self.slot.holds(self.number) {
            return;
        }
        let is_cluster = self.pool.endpoint.is_cluster();
        // Relaxed, all of them: counts by which a connection is given up sooner or later, and nothing else.
        // Where there are several nodes, an answer of one says nothing of another.
        if !is_cluster && self.slot.answers.load(Ordering::Relaxed) != self.answers {
            return;
        }
        let silent = self.slot.silent.fetch_add(1, Ordering::Relaxed) + 1;
        let now_ms = self.pool.now_ms();
        let from_ms = self.slot.given_up_ms.load(Ordering::Relaxed).saturating_add(CLUSTER_PAUSE_MS);
        if silent >= SILENT_MAX && (!is_cluster || now_ms >= from_ms) {
            // Relaxed: as above.
            self.slot.given_up_ms.store(now_ms, Ordering::Relaxed);
            self.slot.discard(Some(self.number));
        }
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            current: RwLock::new(None),
            connecting: Arc::default(),
            next_number: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            answered_ms: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            given_up_ms: AtomicU64::new(0),
            attempted_ms: AtomicU64::new(0),
        }
    }

    fn get(&self) -> Option<(u64, Connection)> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, connection: Connection, now_ms: u64) -> (u64, Connection) {
        // Relaxed: only has to differ.
        let current = (self.next_number.fetch_add(1, Ordering::Relaxed), connection);
        self.answered(now_ms, false);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(current.clone());
        current
    }

    /// Notes an answer. That of one node of a cluster says nothing of those that another one owes.
    fn answered(&self, now_ms: u64, is_cluster: bool) {
        // Relaxed, all of them: counts. Written only where they change, as most calls are answered.
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.answered_ms.store(now_ms, Ordering::Relaxed);
        if !is_cluster && self.silent.load(Ordering::Relaxed) != 0 {
            self.silent.store(0, Ordering::Relaxed);
        }
    }

    fn holds(&self, number: u64) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().is_some_and(|(held, _)| *held == number)
    }

    /// Throws the connection of that number away, or whichever it is.
    fn discard(&self, number: Option<u64>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if number.is_none() || current.as_ref().map(|(held, _)| *held) == number {
            *current = None;
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("connections", &self.slots.len()).finish_non_exhaustive()
    }
}
