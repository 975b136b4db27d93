//! How a limiter over many processes is built.

use super::backend::Backend;
use super::breaker::Breaker;
use super::connection::Pool;
use super::endpoint::Address;
use super::error::RedisError;
use super::fallback::{Fallback, OnFailure};
use super::leased::{Leases, Leasing};
use super::limiter::{Inner, Marks, RedisLimiter};
use super::protocol::Protocol;
use super::scripts::Scripts;
use super::stats::{Counters, Decisions};
use crate::clock::Clock;
use crate::error::Error;
use crate::policy::Policy;
use crate::sync::unmodelled::AtomicU64;
use crate::trace;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;

/// How many words are kept for deciding without the server.
const LOCAL_WORDS: usize = 65_536;
/// The longest that anything may wait for.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Builds a [`RedisLimiter`]; begun by [`RedisLimiter::builder`], [`RedisLimiter::cluster`] or
/// [`RedisLimiter::sentinel`].
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tollgate::redis::{OnFailure, RedisLimiter};
///
/// let limiter = RedisLimiter::builder("redis://127.0.0.1/")
///     .policy("1000/s burst 2000 named api")
///     .prefix("shop:api")
///     .deadline(Duration::from_millis(20))
///     .on_failure(OnFailure::LocalShare)
///     .nodes(8)
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct RedisLimiterBuilder {
    address: Address,
    policy: Option<Result<Policy, Error>>,
    prefix: String,
    connections: usize,
    deadline: Duration,
    connect_timeout: Duration,
    leasing: Option<Leasing>,
    on_failure: OnFailure,
    on_failure_of: Vec<(String, OnFailure)>,
    nodes: Option<u64>,
    local_keys: Option<usize>,
    count_decisions: bool,
    time: Option<Clock>,
}

impl RedisLimiterBuilder {
    pub(super) fn node(url: String) -> Self {
        Self::new(Address::Node(url))
    }

    pub(super) fn cluster(urls: Vec<String>) -> Self {
        Self::new(Address::Cluster(urls))
    }

    pub(super) fn sentinel(sentinels: Vec<String>, master: String) -> Self {
        Self::new(Address::Sentinel { sentinels, master, node: None })
    }

    fn new(address: Address) -> Self {
        Self {
            address,
            policy: None,
            prefix: "tollgate".to_owned(),
            connections: 2,
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(250),
            leasing: None,
            on_failure: OnFailure::default(),
            on_failure_of: Vec::new(),
            nodes: None,
            local_keys: None,
            count_decisions: false,
            time: None,
        }
    }

    /// The rules, as text or as a [`Policy`]. Whatever a [`Limiter`](crate::Limiter) takes, but for limits of so many
    /// at once, and within what the [protocol](super#ranges) can count.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let limiter = RedisLimiter::builder("redis://127.0.0.1:1/").policy("5/h; log 2/min").build().await?;
    /// assert_eq!(limiter.policy().rules().len(), 2);
    /// let error = RedisLimiter::builder("redis://127.0.0.1:1/").policy("5 at once").build().await;
    /// assert!(error.is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn policy<P>(mut self, policy: P) -> Self
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        self.policy = Some(policy.try_into().map_err(Into::into));
        self
    }

    /// What all keys begin with; `tollgate` unless given.
    ///
    /// **Give every limit a prefix of its own, or its rules names.** Limiters of the same prefix and subject share the
    /// state of rules of the same kind and name, and unnamed token buckets are all of one kind, whatever their rate:
    /// with the same prefix, `10/s` of one service and `1000/d` of another spend from one bucket, and the one with
    /// the shorter memory makes the other [forget](super#keys).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let url = "redis://127.0.0.1/";
    /// let api = RedisLimiter::builder(url).policy("100/min").prefix("shop:api").build().await?;
    /// let mail = RedisLimiter::builder(url).policy("5/d").prefix("shop:mail").build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How many connections calls are spread over; 2 unless given. Each carries many calls at once.
    /// In a cluster, each is two to every node: one repeats what it lost, the other does not.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let builder = RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").connections(4);
    /// let limiter = builder.build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How long anybody waits for the server, connecting and repeating included; 50 ms unless given,
    /// and at most an hour.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use std::time::Duration;
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let builder = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min");
    /// assert!(builder.deadline(Duration::ZERO).build().await.is_err());
    /// let builder = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min");
    /// assert!(builder.deadline(Duration::from_millis(5)).build().await.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = time;
        self
    }

    /// How long making a connection may take, where no request is waiting for it; 250 ms unless given, and at most
    /// an hour.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tollgate::redis::RedisLimiter;
    ///
    /// // A server on another continent.
    /// let builder = RedisLimiter::builder("redis://far.example/").policy("100/min");
    /// let limiter = builder.connect_timeout(Duration::from_secs(2)).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// Decide by leased tokens instead of asking the server each time: [leased mode](super#leased-mode). For policies
    /// of token buckets.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::{Leasing, RedisLimiter};
    ///
    /// let builder = RedisLimiter::builder("redis://127.0.0.1/").policy("10000/s burst 20000");
    /// let limiter = builder.leased(Leasing::new()).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn leased(mut self, leasing: Leasing) -> Self {
        self.leasing = Some(leasing);
        self
    }

    /// What becomes of a request while the server cannot be asked; [`OnFailure::LocalShare`] unless given.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::Cause;
    /// use tollgate::redis::{OnFailure, RedisLimiter};
    ///
    /// let builder = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min");
    /// let limiter = builder.on_failure(OnFailure::Closed).build().await?;
    /// assert_eq!(limiter.try_acquire("key").await.cause(), Cause::Unavailable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_failure(mut self, choice: OnFailure) -> Self {
        self.on_failure = choice;
        self
    }

    /// The same for the rules of one name.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::{OnFailure, RedisLimiter};
    ///
    /// let builder = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min; 5/d named mail");
    /// let limiter = builder
    ///     .on_failure(OnFailure::Open)
    ///     .on_failure_of("mail", OnFailure::Closed)
    ///     .build()
    ///     .await?;
    /// assert_eq!(limiter.try_acquire("key").await.rule_name(), Some("mail"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_failure_of(mut self, rule_name: impl Into<String>, choice: OnFailure) -> Self {
        self.on_failure_of.push((rule_name.into(), choice));
        self
    }

    /// Over how many processes a limit is divided while the server cannot be asked. **Unless given, each process admits
    /// the whole of it**, and says so once as a `tracing` event (`nodes(1)`: it is the only one).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// // Nobody listens there: each of ten processes enforces a tenth.
    /// let builder = RedisLimiter::builder("redis://127.0.0.1:1/").policy("50/h").nodes(10);
    /// let limiter = builder.build().await?;
    /// assert_eq!(limiter.try_acquire("key").await.remaining(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// For how many subjects there is room while the server cannot be asked. Allocated at build; unless given, 65 536
    /// words' worth, where most rules take one and a sliding log one for each request it remembers.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let builder = RedisLimiter::builder("redis://127.0.0.1:1/").policy("50/h").local_keys(1_000);
    /// assert!(builder.build().await?.try_acquire("key").await.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_keys(mut self, keys: usize) -> Self {
        self.local_keys = Some(keys);
        self
    }

    /// Whether to count decisions by rule and outcome, for [`RedisLimiter::stats`]; not unless asked for. Counted is
    /// what was said in the end, by the server, by tokens in hand or for want of the server.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// // Nobody listens there: what is counted was decided by this process alone.
    /// let builder = RedisLimiter::builder("redis://127.0.0.1:1/").policy("5/h").nodes(1);
    /// let limiter = builder.count_decisions(true).build().await?;
    /// let _ = limiter.try_acquire("key").await;
    /// assert_eq!(limiter.stats().decisions[0].allowed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn count_decisions(mut self, count: bool) -> Self {
        self.count_decisions = count;
        self
    }

    /// The user, password, database and TLS of the master itself, which sentinels do not tell: as an address whose
    /// host counts for nothing, such as `redis://user:password@any/0`. Without effect unless there are sentinels.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let limiter = RedisLimiter::sentinel(["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/"], "shop")
    ///     .sentinel_node("redis://limiter:secret@any/0")
    ///     .policy("100/min")
    ///     .build()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sentinel_node(mut self, url: impl Into<String>) -> Self {
        if let Address::Sentinel { node, .. } = &mut self.address {
            *node = Some(url.into());
        }
        self
    }

    /// What the scripts take for the time. Reserved for tests, and not part of the interface: everybody else goes by
    /// the server's clock.
    #[doc(hidden)]
    pub fn time(mut self, clock: Clock) -> Self {
        self.time = Some(clock);
        self
    }

    /// Builds it, within the current tokio runtime.
    ///
    /// A server that is not there is no error: the breaker begins open, and requests are decided without it until a
    /// probe has found it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::{RedisError, RedisLimiter};
    ///
    /// // That nobody listens there is no error; a mistake is.
    /// assert!(RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min").build().await.is_ok());
    /// let error = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/mn").build().await.unwrap_err();
    /// assert!(matches!(error, RedisError::Config(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A policy, an address or a time that cannot be used; no runtime.
    pub async fn build(self) -> Result<RedisLimiter, RedisError> {
        let config = |why: &str| RedisError::Config(why.to_owned());
        let runtime = Handle::try_current()
            .map_err(|_| config("a Redis limiter is built within a tokio runtime, and there is none here"))?;
        let policy = self.policy.ok_or_else(|| config("a limiter needs a policy, and none was given"))??;
        if self.deadline.is_zero() || self.nodes == Some(0) {
            return Err(config("the deadline and the number of nodes cannot be 0"));
        }
        if self.deadline.max(self.connect_timeout) > WAIT_MAX {
            return Err(config("the deadline and the time for connecting cannot be longer than an hour"));
        }
        let protocol = Protocol::new(&self.prefix, &policy)?;
        let mut choices = vec![self.on_failure; policy.rules().len()];
        for (name, choice) in &self.on_failure_of {
            let mut named =
                policy.rules().iter().zip(&mut choices).filter(|(rule, _)| rule.name() == Some(name));
            let Some((_, first)) = named.next() else {
                return Err(RedisError::Config(format!("there is no rule named `{name}` in `{policy}`")));
            };
            *first = *choice;
            named.for_each(|(_, other)| *other = *choice);
        }
        if self.nodes.is_none() && choices.contains(&OnFailure::LocalShare) {
            trace::backend_unsettled(
                "`nodes` was not given: while the server is away, each process admits the whole limit",
            );
        }
        if self.leasing.is_some_and(|leasing| leasing.hold_time() <= self.deadline) {
            trace::backend_unsettled(
                "leases are held for no longer than the deadline: a slow answer brings tokens that are of no use",
            );
        }
        let pool = Pool::new(&self.address, self.connections, self.connect_timeout, self.deadline)?;
        let backend = Arc::new(Backend {
            probe_deadline: pool.connect_all_limit().saturating_add(self.deadline),
            pool,
            breaker: Breaker::default(),
            counters: Counters::default(),
            deadline: self.deadline,
            runtime,
            failed_key: Mutex::new(protocol.key("#probe", "")),
            probing: AtomicU64::new(0),
        });
        let compiled = policy.compile()?;
        let local_keys = self.local_keys.unwrap_or(LOCAL_WORDS / compiled.cells.max(1));
        let inner = Inner {
            fallback: Fallback::new(&policy, &compiled, &choices, self.nodes.unwrap_or(1), local_keys)?,
            leases: self.leasing.map(|leasing| Leases::new(leasing, &protocol)).transpose()?,
            decisions: self.count_decisions.then(|| Decisions::of(&policy)).transpose()?,
            policy,
            protocol,
            scripts: Scripts::default(),
            backend: Arc::clone(&backend),
            closed: AtomicU64::new(0),
            time: self.time,
            marks: Marks::default(),
        };
        backend.greet().await;
        Ok(RedisLimiter::new(inner))
    }
}
