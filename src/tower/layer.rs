//! The layer, and the handle by which its rules are changed while it serves.

use super::builder::{Notice, Options, RateLimitBuilder};
use super::head::RequestHead;
use super::live::Live;
use super::refusal::ProblemJson;
use super::service::RateLimit;
use super::watch::Watch;
use crate::rules::{RuleSet, RulesError};
use crate::{Clock, Error, Limiter, Policy, Stats};
use ahash::RandomState;
use arc_swap::ArcSwap;
use http::Request;
use std::fmt;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tower_layer::Layer;

/// Limits the requests of a service. See the [module](super) for what it does.
///
/// ```
/// use tollgate::tower::RateLimitLayer;
///
/// let layer = RateLimitLayer::new("100/min")?;      // by the client's address
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone)]
pub struct RateLimitLayer<R = ProblemJson> {
    pub(super) shared: Arc<Shared>,
    pub(super) respond: R,
}

/// What all services of a layer share.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) live: ArcSwap<Live>,
    /// Keys are hashed before a limiter hashes them: the same for all rules, and after a reload too.
    pub(super) hasher: RandomState,
    /// The key of those who have none.
    pub(super) nobody: u64,
    /// Held while rules are changed.
    pub(super) reloading: Mutex<()>,
    /// Set once a missing key was told of, ...
    pub(super) told_of_key: OnceLock<()>,
    /// ... and once a body that nobody counts was.
    pub(super) told_of_body: OnceLock<()>,
}

impl Shared {
    pub(super) fn head<'a, B>(&self, request: &'a Request<B>) -> RequestHead<'a> {
        let (headers, extensions) = (request.headers(), request.extensions());
        RequestHead {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers,
            extensions,
            client_ip: self.options.client_ip.find(headers, extensions),
        }
    }

    pub(super) fn warn_of_missing_key(&self, rule: &str) {
        if self.told_of_key.set(()).is_ok() {
            self.tell(&Notice::MissingKey { rule });
        }
    }

    pub(super) fn warn_of_uncounted_body(&self, rule: &str) {
        if self.told_of_body.set(()).is_ok() {
            self.tell(&Notice::UncountedBody { rule });
        }
    }

    /// The time of day at a moment that the limiters' clock has shown.
    pub(super) fn wall_ns(&self, at_ns: u64) -> u64 {
        match &self.options.clock {
            Some(clock) => clock.wall_ns(at_ns),
            None => Clock::default().wall_ns(at_ns),
        }
    }

    fn tell(&self, notice: &Notice<'_>) {
        #[cfg(feature = "tracing")]
        let is_heard = {
            match notice {
                Notice::Reloaded => tracing::info!(target: "tollgate", "{notice}"),
                Notice::NotReloaded(_) => tracing::error!(target: "tollgate", "{notice}"),
                _ => tracing::warn!(target: "tollgate", "{notice}"),
            }
            tracing::dispatcher::has_been_set()
        };
        #[cfg(not(feature = "tracing"))]
        let is_heard = false;
        match &self.options.on_notice {
            Some(tell) => {
                // It has nothing to do with the request, nor with the watch, in which it happens to be told.
                let _ = catch_unwind(AssertUnwindSafe(|| tell(notice)));
            }
            None if is_heard || matches!(notice, Notice::Reloaded) => {}
            // Somebody has to hear of it. If that is closed too, nobody can.
            None => {
                let _ = writeln!(io::stderr(), "tollgate: {notice}");
            }
        }
    }
}

impl RateLimitLayer {
    /// A limit for all requests, by the client's address, with the defaults of [`builder`](Self::builder).
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// assert!(RateLimitLayer::new("100/min burst 20").is_ok());
    /// assert!(RateLimitLayer::new("100/mn").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// A text that does not parse, or a policy that [`Policy::validate`] refuses.
    pub fn new<P>(limit: P) -> Result<Self, RulesError>
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        Self::builder().limit(limit).build()
    }

    /// A layer built step by step.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    /// let layer = RateLimitLayer::builder().limit("100/min").exclude("/health").build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn builder() -> RateLimitBuilder {
        RateLimitBuilder::new()
    }
}

impl<R> RateLimitLayer<R> {
    /// Where the rules can be changed from.
    ///
    /// ```
    /// let layer = tollgate::tower::RateLimitLayer::new("100/min")?;
    /// let handle = layer.handle(); // the layer itself goes into the server
    /// assert_eq!(handle.stats("default").expect("the rule").live_keys, 0);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn handle(&self) -> RulesHandle {
        RulesHandle { shared: Arc::clone(&self.shared) }
    }
}

impl<S, R: Clone> Layer<S> for RateLimitLayer<R> {
    type Service = RateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, shared: Arc::clone(&self.shared), respond: self.respond.clone() }
    }
}

impl<R> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("rules", &self.shared.live.load().set).finish_non_exhaustive()
    }
}

/// Changes the rules of a layer while it serves, from anywhere.
///
/// The rules that the program gave to the builder stay; those of the file are replaced: each request goes by all the
/// old ones or by all the new ones. What is wrong changes nothing.
///
/// A rule that keeps its name, its key, its tiers and its room keeps what was spent, and its limits change as by
/// [`Limiter::set_policy`](crate::Limiter::set_policy). Those limits change one after the other, right before the rules
/// do: for the microseconds in between, a request may go by the old rules and find the new limit of one of them. A
/// rule that cannot go on is told of by [`Notice::BegunAnew`].
///
/// ```
/// use tollgate::tower::RateLimitLayer;
///
/// let rules = "[[rule]]\nname = 'api'\nlimit = '100/min'".parse()?;
/// let layer = RateLimitLayer::builder().rules(rules).build()?;
/// let handle = layer.handle();
/// handle.reload("[[rule]]\nname = 'api'\nlimit = '200/min'")?;
///
/// let error = handle.reload("[[rule]]\nname = 'api'\nlimit = '200/mn'").unwrap_err();
/// assert!(error.to_string().starts_with("line 3, column 14: rule `api`: limit: unknown unit `mn`"));
/// assert_eq!(handle.rules().rules()[0].limit().unwrap().to_string(), "200/min named api");
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone)]
pub struct RulesHandle {
    shared: Arc<Shared>,
}

impl RulesHandle {
    /// Puts the rules of this text in force.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let rules = "[[rule]]\nname = 'api'\nlimit = '100/min'".parse()?;
    /// let handle = RateLimitLayer::builder().rules(rules).build()?.handle();
    /// handle.reload("[[rule]]\nname = 'api'\nlimit = '200/min'")?;
    /// assert_eq!(handle.limiter("api").expect("there is that rule").policy().to_string(), "200/min named api");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Whatever is wrong with them: those before stay in force.
    pub fn reload(&self, text: &str) -> Result<(), RulesError> {
        self.put(text.parse())
    }

    /// Reads a file and puts its rules in force. Reads and builds in the caller's thread: for a thread of its own, or
    /// for a task that waits for a signal.
    ///
    /// ```
    /// let handle = tollgate::tower::RateLimitLayer::new("100/min")?.handle();
    /// assert!(handle.reload_file("no/such/rules.toml").is_err());
    /// assert_eq!(handle.rules().rules().len(), 1); // those before
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`reload`](Self::reload).
    pub fn reload_file(&self, path: impl AsRef<Path>) -> Result<(), RulesError> {
        self.put(RuleSet::from_path(path))
    }

    /// Looks at a file every `period`, in a thread of its own, and puts its rules in force when it has changed and
    /// then been the same for a period. What is wrong is told by [`on_notice`](RateLimitBuilder::on_notice), once for
    /// each version of the file, and so is a file that is not there, from the beginning.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let handle = RateLimitLayer::new("100/min")?.handle();
    /// let watch = handle.watch("rules.toml", Duration::from_secs(2))?;
    /// drop(watch); // when the server ends
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No thread to be had.
    pub fn watch(&self, path: impl Into<PathBuf>, period: Duration) -> io::Result<Watch> {
        Watch::start(self.clone(), path.into(), period)
    }

    pub(super) fn put(&self, rules: Result<RuleSet, RulesError>) -> Result<(), RulesError> {
        let done = rules.and_then(|rules| self.replace(&rules));
        // After the lock is released: who is told may put other rules in force.
        match done {
            Ok(begun_anew) => {
                self.shared.tell(&Notice::Reloaded);
                begun_anew.iter().for_each(|rule| self.shared.tell(&Notice::BegunAnew { rule }));
                Ok(())
            }
            Err(error) => {
                self.shared.tell(&Notice::NotReloaded(&error));
                Err(error)
            }
        }
    }

    /// The names of those that had to begin anew.
    fn replace(&self, rules: &RuleSet) -> Result<Vec<Box<str>>, RulesError> {
        let _one_at_a_time = self.shared.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.shared.live.load_full();
        let change = before.changed_to(&self.shared.options, rules)?;
        self.shared.live.store(Arc::new(change.live));
        change.amended.iter().for_each(|limiter| limiter.amend());
        Ok(change.begun_anew)
    }

    /// The rules in force, the program's own first.
    ///
    /// ```
    /// let handle = tollgate::tower::RateLimitLayer::new("100/min")?.handle();
    /// assert_eq!(handle.rules().rules()[0].name(), "default");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.shared.live.load().set.clone()
    }

    /// What the table of a rule's limiter holds; `None` if there is no such rule.
    ///
    /// ```
    /// let handle = tollgate::tower::RateLimitLayer::new("100/min")?.handle();
    /// assert!(handle.stats("default").is_some() && handle.stats("login").is_none());
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn stats(&self, rule: &str) -> Option<Stats> {
        self.shared.live.load().limiter(rule).map(|limiter| limiter.stats())
    }

    /// The limiter of a rule, for an `export::Exporter` or to look at its statistics; `None` if
    /// there is no such rule. Its keys are hashes that only the layer makes.
    ///
    /// After a reload the rule may have another one: if its key, its tiers or its room have changed.
    ///
    /// ```
    /// let handle = tollgate::tower::RateLimitLayer::new("100/min")?.handle();
    /// let limiter = handle.limiter("default").expect("there is that rule");
    /// assert_eq!(limiter.policy().to_string(), "100/min named default");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn limiter(&self, rule: &str) -> Option<Arc<Limiter>> {
        self.shared.live.load().limiter(rule).map(Arc::clone)
    }
}

impl fmt::Debug for RulesHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesHandle").finish_non_exhaustive()
    }
}
