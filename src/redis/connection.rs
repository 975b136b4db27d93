//! Connections to the server: striped, made when first needed, thrown away when they fail.
//!
//! The same slot serves a single node, the master that sentinels name, and a cluster. A slot that lost its
//! connection makes a new one for the next call, within that call's deadline; sentinels are asked anew each time.

use super::error::RedisError;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::cluster::ClusterClient;
use ::redis::cluster_async::ClusterConnection;
use ::redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use ::redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, ServerErrorKind, Value};
use std::fmt;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// What becomes of a command whose connection was lost before the answer came: it may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfLost {
    /// Sent once more. For what only takes: taken twice is on the safe side.
    Repeat,
    /// An error. For what gives back, which must not be given twice, and for what must be the first to come.
    GiveUp,
}

/// Where the server is.
#[derive(Clone, Debug)]
pub(super) enum Address {
    Node(String),
    Cluster(Vec<String>),
    Sentinel { sentinels: Vec<String>, master: String, node: Option<String> },
}

#[allow(clippy::large_enum_variant, reason = "a limiter has one")]
enum Endpoint {
    Node(Client),
    Cluster(ClusterClients),
    /// A client for each sentinel, and whose turn it is: one that does not answer must not hide the others.
    Sentinel(Vec<Mutex<SentinelClient>>, AtomicU64),
}

/// The client of a cluster repeats by itself, all commands alike: so there is one for each kind.
struct ClusterClients {
    repeating: ClusterClient,
    giving_up: ClusterClient,
}

#[derive(Clone)]
enum Connection {
    Node(MultiplexedConnection),
    Cluster { repeating: ClusterConnection, giving_up: ClusterConnection },
}

impl Connection {
    async fn send(&mut self, command: &Cmd, if_lost: IfLost) -> Result<Value, ::redis::RedisError> {
        let sent = match (self, if_lost) {
            (Self::Node(connection), _) => connection.req_packed_command(command).await,
            (Self::Cluster { repeating, .. }, IfLost::Repeat) => repeating.req_packed_command(command).await,
            (Self::Cluster { giving_up, .. }, IfLost::GiveUp) => giving_up.req_packed_command(command).await,
        };
        sent?.extract_error()
    }
}

#[derive(Default)]
struct Slot {
    /// The connection and its number, so that only who failed with it throws it away.
    current: RwLock<Option<(u64, Connection)>>,
    connecting: Mutex<()>,
}

pub(super) struct Pool {
    endpoint: Endpoint,
    slots: Box<[Slot]>,
    next_slot: AtomicU64,
    next_number: AtomicU64,
    connect_timeout: Duration,
}

impl Pool {
    pub(super) fn new(
        address: &Address,
        connections: usize,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Result<Self, RedisError> {
        Ok(Self {
            endpoint: Endpoint::new(address, connect_timeout, response_timeout)
                .map_err(|error| RedisError::Config(error.to_string()))?,
            slots: (0..connections.max(1)).map(|_| Slot::default()).collect(),
            next_slot: AtomicU64::new(0),
            next_number: AtomicU64::new(0),
            connect_timeout,
        })
    }

    /// Sends a command, and once more over a new connection if the old one was gone and `if_lost` allows it.
    pub(super) async fn send(&self, command: &Cmd, if_lost: IfLost) -> Result<Value, ::redis::RedisError> {
        // Relaxed: it only spreads calls over the slots.
        let turn = self.next_slot.fetch_add(1, Ordering::Relaxed);
        let slot = &self.slots[usize::try_from(turn).unwrap_or(0) % self.slots.len()];
        let mut retried = false;
        loop {
            let (number, mut connection) = self.connection(slot).await?;
            let error = match connection.send(command, if_lost).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let lost = error.is_unrecoverable_error() || error.is_connection_dropped();
            // The master of yesterday: the sentinels know the one of today.
            if lost || error.code() == Some("READONLY") {
                slot.discard(Some(number));
            }
            // A node that has given the slot away has done nothing, and the client knows by now who took it.
            let is_elsewhere = error.kind() == ::redis::ErrorKind::Server(ServerErrorKind::Moved);
            let may_repeat = is_elsewhere || (lost && if_lost == IfLost::Repeat);
            if retried || !may_repeat {
                return Err(error);
            }
            retried = true;
        }
    }

    /// Makes sure that every slot has a connection.
    pub(super) async fn connect_all(&self) -> Result<(), ::redis::RedisError> {
        for slot in &self.slots {
            self.connection(slot).await?;
        }
        Ok(())
    }

    /// Throws all connections away: whatever is still waiting on one is not worth an answer any more.
    pub(super) fn discard_all(&self) {
        for slot in &self.slots {
            slot.discard(None);
        }
    }

    async fn connection(&self, slot: &Slot) -> Result<(u64, Connection), ::redis::RedisError> {
        if let Some(current) = slot.get() {
            return Ok(current);
        }
        let _alone = slot.connecting.lock().await;
        if let Some(current) = slot.get() {
            return Ok(current);
        }
        let made = timeout(self.connect_timeout, self.endpoint.connect()).await;
        let connection = made.map_err(|_| {
            let text = "the connection was not made in time";
            ::redis::RedisError::from(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
        })??;
        // Relaxed: only has to differ.
        let current = (self.next_number.fetch_add(1, Ordering::Relaxed), connection);
        *slot.current.write().unwrap_or_else(PoisonError::into_inner) = Some(current.clone());
        Ok(current)
    }
}

impl Slot {
    fn get(&self) -> Option<(u64, Connection)> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Throws the connection of that number away, or whichever it is.
    fn discard(&self, number: Option<u64>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if number.is_none() || current.as_ref().map(|(held, _)| *held) == number {
            *current = None;
        }
    }
}

impl Endpoint {
    fn new(address: &Address, connect: Duration, response: Duration) -> Result<Self, ::redis::RedisError> {
        Ok(match address {
            Address::Node(url) => Self::Node(Client::open(url.as_str())?),
            Address::Cluster(urls) => {
                let client = |retries| {
                    ClusterClient::builder(urls.iter().map(String::as_str))
                        .retries(retries)
                        // Half, so that one node that does not answer leaves time for the others.
                        .connection_timeout(connect / 2)
                        .response_timeout(response)
                        .build()
                };
                // Redirections count as repeats there, and are followed as long as the deadline allows.
                Self::Cluster(ClusterClients { repeating: client(1)?, giving_up: client(0)? })
            }
            Address::Sentinel { sentinels, master, node } => {
                let node = match node {
                    Some(url) => {
                        let info = url.as_str().into_connection_info()?;
                        let tls = url.starts_with("rediss:").then_some(::redis::TlsMode::Secure);
                        let mut wanted = SentinelNodeConnectionInfo::default()
                            .set_redis_connection_info(info.redis_settings().clone());
                        if let Some(tls) = tls {
                            wanted = wanted.set_tls_mode(tls);
                        }
                        Some(wanted)
                    }
                    None => None,
                };
                let client = |url: &String| {
                    SentinelClient::build(
                        vec![url.as_str()],
                        master.clone(),
                        node.clone(),
                        SentinelServerType::Master,
                    )
                };
                let clients =
                    sentinels.iter().map(|url| client(url).map(Mutex::new)).collect::<Result<_, _>>()?;
                Self::Sentinel(clients, AtomicU64::new(0))
            }
        })
    }

    async fn connect(&self) -> Result<Connection, ::redis::RedisError> {
        // The deadline is the caller's, round everything; what the client would wait for is longer.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        Ok(match self {
            Self::Node(client) => {
                Connection::Node(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Self::Cluster(clients) => {
                // Both at once: a node that does not answer is waited for in both.
                let giving_up = clients.giving_up.clone();
                let giving_up = tokio::spawn(async move { giving_up.get_async_connection().await });
                let repeating = clients.repeating.get_async_connection().await?;
                Connection::Cluster { repeating, giving_up: giving_up.await.map_err(std::io::Error::other)?? }
            }
            Self::Sentinel(clients, turn) => {
                let none = || std::io::Error::new(std::io::ErrorKind::NotFound, "no sentinel was named");
                let mut failure = ::redis::RedisError::from(none());
                for _ in clients {
                    // Relaxed: it only spreads attempts. The next attempt begins with the next one, even if this one
                    // is never answered.
                    let turn = turn.fetch_add(1, Ordering::Relaxed);
                    let mut client = clients[usize::try_from(turn).unwrap_or(0) % clients.len()].lock().await;
                    match client.get_async_connection_with_config(&config).await {
                        Ok(connection) => return Ok(Connection::Node(connection)),
                        Err(error) => failure = error,
                    }
                }
                return Err(failure);
            }
        })
    }
}

/// Whether the server does not know a script by its hash.
pub(super) fn is_unknown_script(error: &::redis::RedisError) -> bool {
    error.kind() == ::redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("connections", &self.slots.len()).finish_non_exhaustive()
    }
}
