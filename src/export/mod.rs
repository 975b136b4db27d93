#![doc = include_str!("../../docs/links.md")]
#![doc = include_str!("../../docs/observability.md")]

mod backend;
mod families;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "prometheus")]
mod prometheus;
#[cfg(feature = "prometheus")]
mod text;

pub use backend::{Backend, BackendState};

use crate::limiter::Limiter;
use crate::sync::unmodelled::{AtomicU64, Ordering};
#[cfg(feature = "prometheus")]
use families::Family;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// What a limiter is shown under that has no name.
const UNNAMED: &str = "unnamed";

/// Limiters and backends by the names they are to have on a dashboard.
///
/// Copies are of the same list: one goes to a registry or to the task that publishes, another stays with whoever
/// builds limiters. Nothing is counted here; everything is read when it is asked for. What is on the list is kept
/// alive by it, until something else has its name or it is [removed](Self::remove).
///
/// ```
/// use std::sync::{Arc, LazyLock};
/// use tollgate::Limiter;
/// use tollgate::export::Exporter;
///
/// static LOGIN: LazyLock<Limiter> = LazyLock::new(|| Limiter::new("5/min").expect("a policy"));
/// let api = Limiter::builder().policy("100/min").named("api").count_decisions(true).build()?;
/// let exporter = Exporter::new();
/// exporter.add_named(Arc::new(api));
/// exporter.add("login", &*LOGIN);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Exporter {
    sources: Arc<Mutex<Vec<Source>>>,
    #[cfg(feature = "metrics")]
    told: Arc<Mutex<metrics::Told>>,
}

/// A limiter that is there for as long as it is shown: an [`Arc`], or a `static`.
///
/// ```
/// use std::sync::{Arc, LazyLock};
/// use tollgate::Limiter;
/// use tollgate::export::{Exporter, SharedLimiter};
///
/// static LOGIN: LazyLock<Limiter> = LazyLock::new(|| Limiter::new("5/min").expect("a valid policy"));
///
/// let shared: [SharedLimiter; 2] = [Arc::new(Limiter::new("100/min")?).into(), (&*LOGIN).into()];
/// let exporter = Exporter::new();
/// for (name, limiter) in ["api", "login"].into_iter().zip(shared) {
///     exporter.add(name, limiter);
/// }
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedLimiter(Holding);

#[derive(Clone, Debug)]
enum Holding {
    Counted(Arc<Limiter>),
    Static(&'static Limiter),
}

impl From<Arc<Limiter>> for SharedLimiter {
    fn from(limiter: Arc<Limiter>) -> Self {
        Self(Holding::Counted(limiter))
    }
}

impl From<&Arc<Limiter>> for SharedLimiter {
    fn from(limiter: &Arc<Limiter>) -> Self {
        Self(Holding::Counted(Arc::clone(limiter)))
    }
}

impl From<&'static Limiter> for SharedLimiter {
    fn from(limiter: &'static Limiter) -> Self {
        Self(Holding::Static(limiter))
    }
}

impl Deref for SharedLimiter {
    type Target = Limiter;

    fn deref(&self) -> &Limiter {
        match &self.0 {
            Holding::Counted(limiter) => limiter,
            Holding::Static(limiter) => limiter,
        }
    }
}

#[derive(Clone)]
struct Source {
    /// The value of the label `limiter`.
    name: Arc<str>,
    numbers: Numbers,
}

/// Where the numbers of a source come from.
#[derive(Clone)]
enum Numbers {
    Limiter(SharedLimiter),
    Backend(Arc<BackendSource>),
    /// As many limiters as there are rules, under the names of those.
    #[cfg(feature = "tower")]
    Rules(crate::tower::RulesHandle),
}

struct BackendSource {
    read: Box<dyn Fn() -> Backend + Send + Sync>,
    /// The most that were ever said to be spent: where that is worked out from other numbers, it may seem to go
    /// back by a few for an instant, and a counter that goes back is taken for one that began anew.
    spent: AtomicU64,
}

impl BackendSource {
    fn read(&self) -> Backend {
        let mut backend = (self.read)();
        let spent = backend.lease_tokens_spent;
        // Relaxed: nothing but the value is read.
        backend.lease_tokens_spent = spent.max(self.spent.fetch_max(spent, Ordering::Relaxed));
        backend
    }
}

impl Exporter {
    /// Nothing to show yet.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::Limiter;
    /// use tollgate::export::Exporter;
    ///
    /// let exporter = Exporter::new();
    /// let elsewhere = exporter.clone(); // the same list
    /// elsewhere.add("api", &Arc::new(Limiter::new("100/min")?));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows a limiter under a name, in the place of the limiter that had the name before.
    ///
    /// Its decisions are shown only if it [counts](crate::LimiterBuilder::count_decisions) them.
    pub fn add(&self, name: &str, limiter: impl Into<SharedLimiter>) {
        self.put(name, Numbers::Limiter(limiter.into()));
    }

    /// Shows a limiter under the name that it was given at [build](crate::LimiterBuilder::named), `unnamed` if it
    /// was given none.
    pub fn add_named(&self, limiter: impl Into<SharedLimiter>) {
        let limiter = limiter.into();
        let name: Arc<str> = limiter.name().unwrap_or(UNNAMED).into();
        self.put(&name, Numbers::Limiter(limiter));
    }

    /// Shows the limiters of a layer under the names of their rules: at every scrape those that are in force then,
    /// so that a reload needs nothing to be done. A rule whose name another limiter has is not shown.
    ///
    /// ```
    /// use tollgate::export::Exporter;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder().limit("100/min").count_decisions(true).build()?;
    /// Exporter::new().add_rules(&layer.handle());
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[cfg(feature = "tower")]
    pub fn add_rules(&self, rules: &crate::tower::RulesHandle) {
        self.sources().push(Source { name: "".into(), numbers: Numbers::Rules(rules.clone()) });
    }

    /// Shows a backend under a name, as `read` says at every scrape.
    ///
    /// A backend and a limiter may have the same name (the decisions are the limiter's then); of two backends the
    /// later one has it.
    ///
    /// ```
    /// use tollgate::export::{Backend, Exporter};
    ///
    /// let exporter = Exporter::new();
    /// exporter.add_backend("sessions", || {
    ///     let mut backend = Backend::default();
    ///     backend.answered = 3;
    ///     backend
    /// });
    /// ```
    pub fn add_backend(&self, name: &str, read: impl Fn() -> Backend + Send + Sync + 'static) {
        let source = BackendSource { read: Box::new(read), spent: AtomicU64::new(0) };
        self.put(name, Numbers::Backend(Arc::new(source)));
    }

    /// Shows what a limiter has asked of its Redis server, and what it decided if it
    /// [counts](crate::redis::RedisLimiterBuilder::count_decisions) that.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::export::Exporter;
    /// use tollgate::redis::RedisLimiter;
    ///
    /// let limiter = RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
    /// Exporter::new().add_redis("shared", &limiter);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis")]
    pub fn add_redis(&self, name: &str, limiter: &crate::redis::RedisLimiter) {
        let limiter = limiter.clone();
        self.add_backend(name, move || limiter.stats().into());
    }

    /// Shows nothing more under this name, and lets go of what had it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::Limiter;
    /// use tollgate::export::Exporter;
    ///
    /// let exporter = Exporter::new();
    /// exporter.add("tenant-7", &Arc::new(Limiter::new("100/min")?));
    /// exporter.remove("tenant-7"); // with the tenant
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn remove(&self, name: &str) {
        self.sources().retain(|source| &*source.name != name || source.is_of_rules());
    }

    fn put(&self, name: &str, numbers: Numbers) {
        let source = Source { name: name.into(), numbers };
        let kind = std::mem::discriminant(&source.numbers);
        let mut sources = self.sources();
        let known = sources
            .iter_mut()
            .find(|known| known.name == source.name && std::mem::discriminant(&known.numbers) == kind);
        match known {
            Some(known) => *known = source,
            None => sources.push(source),
        }
    }

    fn sources(&self) -> std::sync::MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limiters and backends there are to show, one of a name and kind.
    fn shown(&self) -> Vec<Source> {
        let sources = self.sources().clone();
        #[cfg(feature = "tower")]
        let sources = with_rules(sources);
        sources
    }

    /// Everything there is to show, as it is now.
    #[cfg(feature = "prometheus")]
    fn families(&self) -> Vec<Family> {
        // Outside the lock: reading walks whole tables, and calls what others have given.
        families::of(&self.shown())
    }
}

impl Source {
    fn is_of_rules(&self) -> bool {
        !matches!(self.numbers, Numbers::Limiter(_) | Numbers::Backend(_))
    }
}

/// The same with the limiters of rules by themselves.
#[cfg(feature = "tower")]
fn with_rules(sources: Vec<Source>) -> Vec<Source> {
    let (handles, mut shown): (Vec<_>, Vec<_>) = sources.into_iter().partition(Source::is_of_rules);
    for source in &handles {
        let Numbers::Rules(handle) = &source.numbers else { continue };
        for rule in handle.rules().rules() {
            let is_taken =
                |known: &Source| &*known.name == rule.name() && matches!(known.numbers, Numbers::Limiter(_));
            let limiter = handle.limiter(rule.name()).filter(|_| !shown.iter().any(is_taken));
            if let Some(limiter) = limiter {
                shown.push(Source { name: rule.name().into(), numbers: Numbers::Limiter(limiter.into()) });
            }
        }
    }
    shown
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.shown().into_iter().map(|source| source.name).collect();
        f.debug_struct("Exporter").field("names", &names).finish()
    }
}
