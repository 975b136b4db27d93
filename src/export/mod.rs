#![doc = include_str!("../../docs/links.md")]
#![doc = include_str!("../../docs/observability.md")]

mod backend;
mod families;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "prometheus")]
mod prometheus;

pub use backend::{Backend, BackendState};

use crate::limiter::Limiter;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use families::Family;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Limiters and backends by the names they are to have on a dashboard.
///
/// Copies are of the same list: one goes to a registry or to the task that publishes, another stays with whoever
/// builds limiters. Nothing is counted here; everything is read when it is asked for.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::Limiter;
/// use tollgate::export::Exporter;
///
/// let api = Arc::new(Limiter::builder().policy("100/min").count_decisions(true).build()?);
/// let exporter = Exporter::new();
/// exporter.add("api", &api);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Exporter {
    sources: Arc<Mutex<Vec<Source>>>,
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
    Limiter(Arc<Limiter>),
    Backend(Arc<BackendSource>),
}

struct BackendSource {
    read: Box<dyn Fn() -> Backend + Send + Sync>,
    /// The most that were ever said to be spent: where that is worked out from other numbers, it may seem to go
    /// back by a few for an instant, and a counter that goes back is taken for one that began anew.
    spent: AtomicU64,
    /// How many latencies of each class have been published.
    #[cfg_attr(
        not(feature = "metrics"),
        allow(dead_code, reason = "only the facade is told of differences")
    )]
    published: Mutex<Vec<u64>>,
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

    /// Shows a limiter under a name, in the place of what had the name before.
    ///
    /// Its decisions are shown only if it [counts](crate::LimiterBuilder::count_decisions) them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::Limiter;
    /// use tollgate::export::Exporter;
    ///
    /// let limiter = Arc::new(Limiter::builder().policy("100/min").count_decisions(true).build()?);
    /// Exporter::new().add("api", &limiter);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn add(&self, name: &str, limiter: &Arc<Limiter>) {
        self.put(name, Numbers::Limiter(Arc::clone(limiter)));
    }

    /// Shows a backend under a name, as `read` says at every scrape.
    ///
    /// A backend and a limiter may have the same name; of two backends the later one has it.
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
        let source =
            BackendSource { read: Box::new(read), spent: AtomicU64::new(0), published: Mutex::default() };
        self.put(name, Numbers::Backend(Arc::new(source)));
    }

    /// Shows what a limiter has asked of its Redis server.
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

    /// Shows nothing more under this name.
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
        self.sources().retain(|source| &*source.name != name);
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

    /// Everything there is to show, as it is now.
    fn families(&self) -> Vec<Family> {
        // Outside the lock: reading walks whole tables, and calls what others have given.
        let sources = self.sources().clone();
        families::of(&sources)
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.sources().iter().map(|source| Arc::clone(&source.name)).collect();
        f.debug_struct("Exporter").field("names", &names).finish()
    }
}
