//! The front door: one limit over many processes.

use super::backend::Backend;
use super::builder::RedisLimiterBuilder;
use super::endpoint::IfLost;
use super::error::RedisError;
use super::fallback::Fallback;
use super::leased::{self, Leases, Local};
use super::protocol::{Protocol, cost_arg, odd_reply};
use super::scripts::Scripts;
use super::stats::{BackendStats, Decisions};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::policy::Policy;
use crate::sync::unmodelled::{AtomicU64, Ordering, fence};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A limit that many processes share, kept on a Redis or Valkey server: cheap to clone, `&self` everywhere.
///
/// Takes the same [`Policy`] as a [`Limiter`](crate::Limiter) and gives the same [`Decision`], by the server's clock.
/// Every call ends within its deadline: where the server cannot be asked, the limiter decides as it was
/// [told to](super::OnFailure).
///
/// ```no_run
/// use tollgate::redis::RedisLimiter;
///
/// # async fn example() -> Result<(), tollgate::redis::RedisError> {
/// let limiter = RedisLimiter::builder("redis://127.0.0.1/").policy("100/min burst 20").build().await?;
/// let decision = limiter.try_acquire("203.0.113.7").await;
/// if decision.is_denied() {
///     println!("come back in {:?}", decision.retry_after());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisLimiter(Arc<Inner>);

pub(super) struct Inner {
    pub(super) policy: Policy,
    pub(super) protocol: Protocol,
    pub(super) scripts: Scripts,
    pub(super) backend: Arc<Backend>,
    pub(super) fallback: Fallback,
    pub(super) leases: Option<Leases>,
    /// If they are counted.
    pub(super) decisions: Option<Decisions>,
    /// 1 once no more leases are taken.
    pub(super) closed: AtomicU64,
    /// Reserved for tests: what the scripts take for the time.
    pub(super) time: Option<Clock>,
    pub(super) marks: Marks,
}

/// What nobody else signs with: one for each guard against a repeat.
#[derive(Default)]
pub(super) struct Marks {
    random: RandomState,
    drawn: AtomicU64,
}

impl Marks {
    fn next(&self) -> String {
        // Relaxed: only has to differ.
        format!("{:016x}", self.random.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed)))
    }
}

impl RedisLimiter {
    /// A limiter on one server: `redis://[user:password@]host[:port][/database]`, `rediss://` with the feature
    /// `redis-tls`, or `unix:///path`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let limiter = RedisLimiter::builder("redis://user:secret@10.0.0.5:6379/2").policy("100/min").build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: impl Into<String>) -> RedisLimiterBuilder {
        RedisLimiterBuilder::node(url.into())
    }

    /// A limiter on a cluster, of which some nodes are named.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let nodes = ["redis://10.0.0.1:7000/", "redis://10.0.0.2:7000/"];
    /// let limiter = RedisLimiter::cluster(nodes).policy("100/min").build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedisLimiterBuilder {
        RedisLimiterBuilder::cluster(urls.into_iter().map(Into::into).collect())
    }

    /// A limiter on the server that sentinels name as the master of `service`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/", "redis://10.0.0.3:26379/"];
    /// let limiter = RedisLimiter::sentinel(sentinels, "shop").policy("100/min").build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sentinel<U: Into<String>>(
        sentinels: impl IntoIterator<Item = U>,
        service: impl Into<String>,
    ) -> RedisLimiterBuilder {
        RedisLimiterBuilder::sentinel(sentinels.into_iter().map(Into::into).collect(), service.into())
    }

    pub(super) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// Takes one for `subject`, or says when to come back.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// limiter.try_acquire("203.0.113.7").await.into_result()?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(&self, subject: &str) -> Decision {
        self.try_acquire_n(subject, 1).await
    }

    /// Takes `cost` at once for `subject`, or nothing. A cost of 0 passes every rule.
    ///
    /// In [leased mode](RedisLimiterBuilder::leased) the decision usually comes from what this process has in hand,
    /// without asking anybody.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// let decision = limiter.try_acquire_n("tenant", 25).await;
    /// println!("{} left", decision.remaining());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire_n(&self, subject: &str, cost: u64) -> Decision {
        match self.try_acquire_local(subject, cost) {
            Some(decision) => decision,
            None => self.acquire_afar(subject, cost).await,
        }
    }

    /// The same, where this process cannot say by itself.
    async fn acquire_afar(&self, subject: &str, cost: u64) -> Decision {
        // One deadline, whoever is asked in the end.
        let until = self.0.backend.until();
        let leased = match self.leasing() {
            Some(leases) => leased::acquire(&self.0, leases, subject, cost, until).await,
            None => None,
        };
        let decided = match leased {
            Some(decided) => decided,
            None => self.0.ask(subject, cost, true, until).await,
        };
        let decision =
            decided.unwrap_or_else(|_| self.0.fall_back(|fallback| fallback.acquire(subject, cost)));
        self.0.count(&decision);
        decision
    }

    /// In leased mode, what can be decided by what this process has in hand or knows, at once: `None` if the server
    /// has to be asked, and always in strict mode.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::redis::{Leasing, RedisLimiter};
    ///
    /// let builder = RedisLimiter::builder("redis://127.0.0.1/").policy("10000/s").leased(Leasing::new());
    /// let limiter = builder.build().await?;
    /// let decision = match limiter.try_acquire_local("tenant", 1) {
    ///     Some(decision) => decision,
    ///     None => limiter.try_acquire("tenant").await,
    /// };
    /// println!("{} left", decision.remaining());
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn try_acquire_local(&self, subject: &str, cost: u64) -> Option<Decision> {
        let inner = &self.0;
        match self.leasing()?.decide(subject, cost, |entry| leased::launch(inner, entry, 1)) {
            Local::Decided(decision) => {
                inner.count(&decision);
                Some(decision)
            }
            Local::Ask(_) | Local::Strict => None,
        }
    }

    /// What [`try_acquire`](Self::try_acquire) would say by what the server knows, without taking anything.
    ///
    /// What processes have in hand counts as spent there.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// println!("{} left", limiter.peek("203.0.113.7").await.remaining());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self, subject: &str) -> Decision {
        self.peek_n(subject, 1).await
    }

    /// The same for a cost.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// let would_fit = limiter.peek_n("tenant", 25).await.is_allowed();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek_n(&self, subject: &str, cost: u64) -> Decision {
        let asked = self.0.ask(subject, cost, false, self.0.backend.until()).await;
        asked.unwrap_or_else(|_| self.0.fall_back(|fallback| fallback.peek(subject, cost)))
    }

    /// Gives back the newest `cost` that was taken for `subject`, at most all of it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// if limiter.try_acquire_n("tenant", 25).await.is_allowed() {
    ///     limiter.refund("tenant", 5).await?; // it took only twenty
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The server could not be asked. It may or may not have been given back.
    pub async fn refund(&self, subject: &str, cost: u64) -> Result<(), RedisError> {
        let inner = &self.0;
        let call = inner.protocol.call(subject, [cost_arg(cost), inner.time_arg()]);
        let until = inner.backend.until();
        let refunded = inner.backend.run(&inner.scripts.refund, &call, IfLost::GiveUp, until).await;
        if let Some(leases) = &inner.leases {
            leases.forget_refusal(subject);
        }
        refunded.map(|_| ())
    }

    /// Forgets all that was taken for `subject`. What other processes have in hand stays there.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// limiter.reset("203.0.113.7").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn reset(&self, subject: &str) -> Result<(), RedisError> {
        let keys = self.0.protocol.keys(subject);
        let deleting = self.0.backend.delete(&keys);
        match &self.0.leases {
            Some(leases) => leased::reset(&self.0, leases, subject, deleting).await,
            None => deleting.await,
        }
    }

    /// Lets a request pass the first time, and refuses its repeats until `window` has gone, over all processes. At
    /// most 208 days. The mark is beside all rules.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// if limiter.once("alice, order 7", std::time::Duration::from_secs(300)).await.is_denied() {
    ///     println!("this order is here already");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn once(&self, id: &str, window: Duration) -> Decision {
        let inner = &self.0;
        let call = inner.protocol.once_call(id, window, inner.time_arg(), inner.marks.next());
        // Sent again, it knows its own mark.
        let until = inner.backend.until();
        let asked = inner.backend.run(&inner.scripts.once, &call, IfLost::Repeat, until).await;
        asked
            .and_then(|reply| Protocol::once_decision(&reply))
            .unwrap_or_else(|_| inner.fall_back(|fallback| fallback.once(id, window)))
    }

    /// Gives back what is in hand. Requests that come later are decided by the server, one by one.
    ///
    /// Call it before a process ends; a process that does not loses what it has in hand, until that has come back by
    /// itself.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate::redis::{Leasing, RedisLimiter};
    /// # let builder = RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").leased(Leasing::new());
    /// # let limiter = builder.build().await?;
    /// // The last thing before the process ends.
    /// limiter.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self) {
        // Relaxed, with the fence: a flight that takes off at the same time either finds this or is found, with its
        // entry, by the search for what is in hand. See `is_closed_to_flights`.
        self.0.closed.store(1, Ordering::Relaxed);
        // SeqCst: the other side has one too, between its take-off and its look at `closed`.
        fence(Ordering::SeqCst);
        if let Some(leases) = &self.0.leases {
            leased::close(&self.0, leases).await;
        }
    }

    /// The policy in force.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let limiter = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100 per minute").build().await?;
    /// assert_eq!(limiter.policy().to_string(), "100/min");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// What was asked of the server and what became of it. Walks all subjects with tokens in hand: for a dashboard,
    /// not for every request.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use tollgate::redis::RedisLimiter;
    ///
    /// // Nobody listens there.
    /// let limiter = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min").build().await?;
    /// assert!(limiter.try_acquire("203.0.113.7").await.is_allowed());
    /// assert_eq!(limiter.stats().fallback_decisions, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> BackendStats {
        let backend = &self.0.backend;
        let in_hand = self.0.leases.as_ref().map_or(0, Leases::in_hand);
        let decisions = self.0.decisions.as_ref().map(Decisions::read).unwrap_or_default();
        BackendStats { decisions, ..backend.counters.read(backend.breaker.state(), in_hand) }
    }

    #[inline]
    fn leasing(&self) -> Option<&Leases> {
        // Relaxed: whoever misses it finds it before a flight, or spends what is in hand as if before.
        self.0.leases.as_ref().filter(|_| self.0.closed.load(Ordering::Relaxed) == 0)
    }
}

impl Inner {
    async fn ask(
        &self,
        subject: &str,
        cost: u64,
        spends: bool,
        until: Instant,
    ) -> Result<Decision, RedisError> {
        let mode = if spends { "1" } else { "0" };
        let call = self.protocol.call(subject, [mode.to_owned(), cost_arg(cost), self.time_arg()]);
        let reply = self.backend.run(&self.scripts.acquire, &call, IfLost::Repeat, until).await?;
        self.protocol.decision(&reply, cost, spends)
    }

    /// Takes tokens (at least, at most, charged ahead by so many microseconds), and gives back what is left of others.
    pub(super) async fn lease(
        &self,
        tag: &str,
        [need, want, hold_us]: [u64; 3],
        left: u64,
        origin: leased::Origin,
    ) -> Result<Vec<u64>, RedisError> {
        let gives_back = left > 0;
        let numbers =
            [need, want, hold_us, left, origin.taken, origin.at_us].map(|number| number.to_string());
        let [need, want, hold, left, taken, at] = numbers;
        let call = self.protocol.tagged_call(tag, [need, want, hold, left, taken, at, self.time_arg()]);
        let if_lost = if gives_back { IfLost::GiveUp } else { IfLost::Repeat };
        let reply = self.backend.run(&self.scripts.lease, &call, if_lost, self.backend.until()).await?;
        reply.into_iter().map(|number| u64::try_from(number).map_err(|_| odd_reply())).collect()
    }

    /// Whether no more leases are taken; asked after a flight took off.
    pub(super) fn is_closed_to_flights(&self) -> bool {
        // SeqCst: of this fence and the one in `close`, one is first. If this one, whoever closes sees the flight (and
        // waits for it); if that one, this sees that it is closed.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order it.
        self.closed.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn count(&self, decision: &Decision) {
        if let Some(decisions) = &self.decisions {
            decisions.count(decision);
        }
    }

    fn fall_back(&self, decide: impl FnOnce(&Fallback) -> Decision) -> Decision {
        self.backend.counters.fell_back();
        decide(&self.fallback)
    }

    fn time_arg(&self) -> String {
        self.time.as_ref().map_or_else(String::new, |clock| (clock.now_ns() / 1_000).to_string())
    }
}

impl fmt::Debug for RedisLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimiter")
            .field("policy", &format_args!("{}", self.0.policy))
            .field("state", &self.0.backend.breaker.state())
            .finish_non_exhaustive()
    }
}
