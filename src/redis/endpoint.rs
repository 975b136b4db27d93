//! Where the server is, and what a connection to it is: to one node, to a cluster, or to the master that sentinels name.

use crate::sync::unmodelled::{AtomicU64, Ordering};
use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::cluster::ClusterClient;
use ::redis::cluster_async::ClusterConnection;
use ::redis::cluster_routing::SingleNodeRoutingInfo;
use ::redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use ::redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind, Value,
};
use std::time::Duration;
use tokio::sync::Mutex;

/// How long a connection may be silent before the system asks whether the other end is still there.
const SILENCE: Duration = Duration::from_secs(10);
/// How long what was sent may go without a sign that it has arrived.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const UNHEARD: Duration = Duration::from_secs(5);

/// What becomes of a command whose connection was lost before the answer came: it may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfLost {
    /// Sent once more. For what only takes (taken twice is on the safe side), and for what knows its own mark again.
    Repeat,
    /// An error. For what gives back, which must not be given twice.
    GiveUp,
}

/// Where the server is.
#[derive(Clone, Debug)]
pub(super) enum Address {
    Node(String),
    Cluster(Vec<String>),
    Sentinel { sentinels: Vec<String>, master: String, node: Option<String> },
}

#[cfg(feature = "redis-tls")]
impl Address {
    fn urls(&self) -> impl Iterator<Item = &String> {
        let (one, many) = match self {
            Self::Node(url) => (Some(url), &[][..]),
            Self::Cluster(urls) => (None, &urls[..]),
            Self::Sentinel { sentinels, node, .. } => (node.as_ref(), &sentinels[..]),
        };
        one.into_iter().chain(many)
    }
}

#[allow(clippy::large_enum_variant, reason = "a limiter has one")]
pub(super) enum Endpoint {
    Node(Client),
    Cluster(ClusterClients),
    /// A client for each sentinel, and whose turn it is: one that does not answer must not hide the others.
    Sentinel(Vec<Mutex<SentinelClient>>, AtomicU64),
}

/// The client of a cluster repeats by itself, all commands alike: so there is one for each kind.
pub(super) struct ClusterClients {
    repeating: ClusterClient,
    giving_up: ClusterClient,
}

#[derive(Clone)]
pub(super) enum Connection {
    Node(MultiplexedConnection),
    Cluster { repeating: ClusterConnection, giving_up: ClusterConnection },
}

impl Connection {
    pub(super) async fn send(&mut self, command: &Cmd, if_lost: IfLost) -> Result<Value, RedisError> {
        let sent = match (self, if_lost) {
            (Self::Node(connection), _) => connection.req_packed_command(command).await,
            (Self::Cluster { repeating, .. }, IfLost::Repeat) => repeating.req_packed_command(command).await,
            (Self::Cluster { giving_up, .. }, IfLost::GiveUp) => {
                let sent = giving_up.req_packed_command(command).await.and_then(Value::extract_error);
                match sent {
                    // Nothing was done: another node has the key, or will have it.
                    Err(error) if error.redirect_node().is_some() => follow(giving_up, command, error).await,
                    sent => sent,
                }
            }
        };
        sent?.extract_error()
    }
}

/// Sends a command where a node that has given its slot away points to; or one that is about to, and then the other
/// takes it only if told that it was pointed to.
async fn follow(
    connection: &mut ClusterConnection,
    command: &Cmd,
    pointer: RedisError,
) -> Result<Value, RedisError> {
    let node = pointer.redirect_node().and_then(|(address, _)| address.rsplit_once(':'));
    let Some((host, port)) = node.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?))) else {
        return Err(pointer);
    };
    let mut pipeline = ::redis::Pipeline::with_capacity(2);
    let asks = usize::from(!is_elsewhere(&pointer));
    if asks > 0 {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(command.clone());
    let node = SingleNodeRoutingInfo::ByAddress { host, port };
    let answers = connection.route_pipeline(pipeline, asks, 1, node).await?;
    answers.into_iter().next().ok_or(pointer)
}

/// Small messages leave at once, and a connection whose other end is gone is noticed while nobody uses it.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 4);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(UNHEARD);
    settings
}

/// The client takes what encrypts from the process. Where several are compiled in and none was chosen it would panic.
#[cfg(feature = "redis-tls")]
fn choose_encryption(address: &Address) {
    let is_needed = address.urls().any(|url| url.starts_with("rediss:"));
    if is_needed && rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody else may have been faster, and has chosen.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(not(feature = "redis-tls"))]
fn choose_encryption(_address: &Address) {}

impl Endpoint {
    pub(super) fn new(address: &Address, connect: Duration, response: Duration) -> Result<Self, RedisError> {
        choose_encryption(address);
        let info =
            |url: &str| Ok::<_, RedisError>(url.into_connection_info()?.set_tcp_settings(tcp_settings()));
        Ok(match address {
            Address::Node(url) => Self::Node(Client::open(info(url)?)?),
            Address::Cluster(urls) => {
                let client = |retries| {
                    ClusterClient::builder(urls.iter().map(String::as_str))
                        .retries(retries)
                        // Half, so that one node that does not answer leaves time for the others.
                        .connection_timeout(connect / 2)
                        .response_timeout(response)
                        .tcp_settings(tcp_settings())
                        .build()
                };
                // Redirections count as repeats there, and are followed as long as the deadline allows.
                Self::Cluster(ClusterClients { repeating: client(1)?, giving_up: client(0)? })
            }
            Address::Sentinel { sentinels, master, node } => {
                let mut wanted = SentinelNodeConnectionInfo::default().set_tcp_settings(tcp_settings());
                if let Some(url) = node {
                    wanted = wanted.set_redis_connection_info(info(url)?.redis_settings().clone());
                    if url.starts_with("rediss:") {
                        wanted = wanted.set_tls_mode(::redis::TlsMode::Secure);
                    }
                }
                let client = |url: &String| {
                    SentinelClient::build(
                        vec![info(url)?],
                        master.clone(),
                        Some(wanted.clone()),
                        SentinelServerType::Master,
                    )
                };
                let clients =
                    sentinels.iter().map(|url| client(url).map(Mutex::new)).collect::<Result<_, _>>()?;
                Self::Sentinel(clients, AtomicU64::new(0))
            }
        })
    }

    /// How long connecting may take: a cluster is met by the nodes that are named, then by those that they name.
    pub(super) fn connect_limit(&self, connect: Duration) -> Duration {
        match self {
            Self::Cluster(_) => connect.saturating_mul(2),
            Self::Node(_) | Self::Sentinel(..) => connect,
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    pub(super) async fn connect(&self) -> Result<Connection, RedisError> {
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
                let mut failure = RedisError::from(none());
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
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether a node has given the slot away: it has done nothing, and the client knows by now who took it.
pub(super) fn is_elsewhere(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Moved)
}
