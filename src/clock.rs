//! Where time comes from.
//!
//! All clocks count nanoseconds in a `u64`. Real clocks count from the Unix epoch (read once a process, and
//! carried on monotonically from there, so that windows line up with the hours of the day); a manual clock
//! counts from zero.

use crate::cpu::{self, HAS_TICKS};
use crate::sync::unmodelled::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of time for gates and limiters. Cloning shares the source.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, Limiter};
///
/// let (clock, hand) = Clock::manual();
/// let limiter = Limiter::builder().policy("1/min").clock(clock.clone()).build()?;
/// assert!(limiter.try_acquire("key").is_allowed());
/// hand.advance(Duration::from_secs(60));
/// assert!(limiter.try_acquire("key").is_allowed());
/// assert_eq!(clock.now_ns(), 60_000_000_000);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct Clock {
    /// The processor's counter, where that is the time and can be read in passing.
    ticks: Option<&'static Precise>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Precise(&'static Precise),
    Coarse(#[allow(dead_code, reason = "held only to keep the thread alive")] Arc<Refresher>),
    Manual(Arc<Hands>),
}

impl Clock {
    /// The processor's own counter, by quanta: the default. Reading it costs some ten nanoseconds.
    ///
    /// The first call in a process calibrates the counter, which takes up to a fifth of a second.
    ///
    /// ```
    /// use tollgate::Clock;
    ///
    /// let clock = Clock::precise();
    /// let earlier_ns = clock.now_ns();
    /// assert!(clock.now_ns() >= earlier_ns);
    /// ```
    #[must_use]
    pub fn precise() -> Self {
        let precise = Precise::shared();
        Self { ticks: precise.is_ticks.then_some(precise), source: Source::Precise(precise) }
    }

    /// A time that one background thread refreshes at least every `period`, and everybody else just loads.
    ///
    /// All coarse clocks of a process share one thread, which keeps to the shortest period asked for and ends
    /// with the last clock. The time shown lags by up to the period, and more while the thread is kept from
    /// running, but never leads: counted from any refresh on, a limiter admits no more than it would have
    /// with the precise clock. Within one period, refill arrives all at once.
    ///
    /// Should the system refuse the thread, the clock reads the precise time instead.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let clock = Clock::coarse(Duration::from_micros(500));
    /// let limiter = Limiter::builder().policy("100/min").clock(clock).build()?;
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn coarse(period: Duration) -> Self {
        match Refresher::shared(period) {
            Some(refresher) => Self { ticks: None, source: Source::Coarse(refresher) },
            None => Self::precise(),
        }
    }

    /// A clock that only moves by hand, for tests, simulation and replay.
    ///
    /// ```
    /// use std::time::Duration;
    /// let (clock, hand) = tollgate::Clock::manual();
    /// hand.advance(Duration::from_secs(5));
    /// hand.set(Duration::from_secs(3));
    /// assert_eq!(hand.now(), Duration::from_secs(3));
    /// # let _ = clock;
    /// ```
    #[must_use]
    pub fn manual() -> (Self, ManualHand) {
        let hands = Arc::new(Hands { set_ns: AtomicU64::new(0), latest_ns: AtomicU64::new(0) });
        (Self { ticks: None, source: Source::Manual(Arc::clone(&hands)) }, ManualHand(hands))
    }

    /// The time, in nanoseconds from the clock's zero: the Unix epoch for real clocks.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (clock, hand) = tollgate::Clock::manual();
    /// hand.set(Duration::from_micros(7));
    /// assert_eq!(clock.now_ns(), 7_000);
    /// ```
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        // The usual one first, by itself: a jump table would make it pay for the others.
        if let Source::Precise(precise) = &self.source {
            precise.now_ns()
        } else if let Source::Manual(hands) = &self.source {
            // Relaxed: the time is a number of its own; nothing is published by it.
            hands.latest_ns.load(Ordering::Relaxed)
        } else {
            // Relaxed: as above.
            COARSE_NS.load(Ordering::Relaxed)
        }
    }
}

impl Clock {
    /// The system's time of day at a moment that this clock has shown, which may have been set since the process
    /// began. A clock moved by hand knows no other day than its own.
    #[cfg(feature = "tower")]
    pub(crate) fn wall_ns(&self, at_ns: u64) -> u64 {
        if let Source::Manual(_) = &self.source {
            return at_ns;
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ago_ns = self.now_ns().saturating_sub(at_ns);
        u64::try_from(since_epoch.as_nanos()).unwrap_or(at_ns).saturating_sub(ago_ns)
    }

    /// The time, if it can be read without a call that might leave this function.
    #[inline(always)]
    pub(crate) fn quick_ns(&self) -> Option<u64> {
        if let Some(precise) = self.ticks {
            return Some(precise.at_ticks(cpu::ticks()));
        }
        // Relaxed: the time is a number of its own; nothing is published by it.
        matches!(self.source, Source::Coarse(_)).then(|| COARSE_NS.load(Ordering::Relaxed))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::precise()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.source {
            Source::Precise(_) => "precise",
            Source::Coarse(_) => "coarse",
            Source::Manual(_) => "manual",
        };
        f.debug_struct("Clock").field("kind", &kind).field("now_ns", &self.now_ns()).finish()
    }
}

/// The processor's counter, anchored to the Unix epoch when the process first asked.
struct Precise {
    counter: quanta::Clock,
    /// Nanoseconds in 2^64 ticks: quanta's scale, kept so that a reading is the upper half of one product. A counter that
    /// ticks less than once a nanosecond has more than there are numbers, and is read by quanta.
    ns_per_ticks: u64,
    /// What the counter's own nanoseconds are behind the epoch's.
    offset_ns: u64,
    /// Whether the counter is the processor's.
    is_ticks: bool,
}

/// Of how many ticks quanta is asked what they are in nanoseconds: as many as it can say, at two a nanosecond or less.
const ASKED_BITS: u32 = 48;

impl Precise {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Precise> = OnceLock::new();
        SHARED.get_or_init(|| {
            let counter = quanta::Clock::new();
            let asked_ns = counter.delta_as_nanos(0, 1 << ASKED_BITS);
            let is_ticks = HAS_TICKS && asked_ns >> ASKED_BITS == 0 && counts_ticks(&counter);
            let ns_per_ticks = asked_ns << (u64::BITS - ASKED_BITS);
            let mut precise = Self { counter, ns_per_ticks, offset_ns: 0, is_ticks };
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let epoch_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(0);
            precise.offset_ns = epoch_ns.wrapping_sub(precise.now_ns());
            precise
        })
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        let ticks = self.counter.raw();
        if self.is_ticks {
            return self.at_ticks(ticks);
        }
        self.counter.delta_as_nanos(0, ticks).wrapping_add(self.offset_ns)
    }

    #[inline(always)]
    fn at_ticks(&self, ticks: u64) -> u64 {
        let counted_ns = ((u128::from(ticks) * u128::from(self.ns_per_ticks)) >> u64::BITS) as u64;
        counted_ns.wrapping_add(self.offset_ns)
    }
}

/// Whether quanta reads the processor's counter, which it does not say: then its readings lie between ours.
fn counts_ticks(counter: &quanta::Clock) -> bool {
    // What is not the processor's counter may lie between by chance; not eight times over.
    (0..8).all(|_| {
        let before = cpu::ticks();
        let between = counter.raw();
        (before..=cpu::ticks()).contains(&between)
    })
}

/// What every coarse clock shows. On a line of its own, which all cores share until the next refresh.
static COARSE_NS: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));

/// The thread that keeps [`COARSE_NS`], for as long as a coarse clock lives.
struct Refresher {
    period_ns: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Refresher {
    /// The one refresher of the process, started if there is none, quickened if it is too slow.
    fn shared(period: Duration) -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Refresher>> = Mutex::new(Weak::new());
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            // Relaxed: the unpark below is what makes the thread look.
            if running.period_ns.fetch_min(period_ns, Ordering::Relaxed) > period_ns {
                running.wake();
            }
            return Some(running);
        }
        let refresher = Arc::new(Self { period_ns: AtomicU64::new(period_ns), thread: OnceLock::new() });
        // Before the thread first runs, or the clock would start in the year 1970.
        refresh();
        let watched = Arc::downgrade(&refresher);
        let spawned = thread::Builder::new().name("tollgate-clock".to_owned()).spawn(move || {
            while let Some(refresher) = watched.upgrade() {
                refresh();
                // Relaxed: as above.
                let period = Duration::from_nanos(refresher.period_ns.load(Ordering::Relaxed));
                // Not held while asleep: the last clock to go must find nobody else holding on.
                drop(refresher);
                thread::park_timeout(period);
            }
        });
        refresher.thread.set(spawned.ok()?.thread().clone()).ok()?;
        *shared = Arc::downgrade(&refresher);
        Some(refresher)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.wake();
    }
}

fn refresh() {
    // Relaxed: the time is a number of its own. A maximum, because a thread that is on its way out may be
    // overtaken by the next one.
    COARSE_NS.fetch_max(Precise::shared().now_ns(), Ordering::Relaxed);
}

/// The two hands of a manual clock: where it was set, and the furthest it has been.
///
/// Limiters read the furthest. To them a clock that was set back stands still until it catches up, however
/// far back that was: a step back never re-credits.
struct Hands {
    set_ns: AtomicU64,
    latest_ns: AtomicU64,
}

/// Moves a [manual clock](Clock::manual). Clones move the same clock.
///
/// ```
/// use std::time::Duration;
///
/// let (clock, hand) = tollgate::Clock::manual();
/// let other = hand.clone();
/// hand.advance(Duration::from_secs(1));
/// other.advance(Duration::from_secs(2));
/// assert_eq!(clock.now_ns(), 3_000_000_000);
/// ```
#[derive(Clone)]
pub struct ManualHand(Arc<Hands>);

impl ManualHand {
    /// Moves the clock on. Time stops at the end of a `u64` of nanoseconds, 584 years from zero.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (_clock, hand) = tollgate::Clock::manual();
    /// hand.advance(Duration::from_secs(2));
    /// hand.advance(Duration::from_secs(3));
    /// assert_eq!(hand.now(), Duration::from_secs(5));
    /// ```
    pub fn advance(&self, by: Duration) {
        let by_ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: the time is a number of its own; a test that moves it from several threads orders them itself.
        let set_ns = self.0.set_ns.load(Ordering::Relaxed);
        self.move_to(set_ns.saturating_add(by_ns));
    }

    /// Sets the clock to a time from its zero. It may step back; limiters then see time stand still until
    /// the clock has caught up.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Gate};
    ///
    /// let (clock, hand) = Clock::manual();
    /// hand.set(Duration::from_secs(100));
    /// let gate = Gate::with_clock("1/s", clock)?;
    /// assert!(gate.try_acquire().is_allowed());
    /// hand.set(Duration::from_secs(99)); // back: nothing is given back for that
    /// assert!(gate.try_acquire().is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn set(&self, time: Duration) {
        self.move_to(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Where the clock was set, from its zero.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (_clock, hand) = tollgate::Clock::manual();
    /// hand.set(Duration::from_secs(7));
    /// assert_eq!(hand.now(), Duration::from_secs(7));
    /// ```
    #[must_use]
    pub fn now(&self) -> Duration {
        // Relaxed: as above.
        Duration::from_nanos(self.0.set_ns.load(Ordering::Relaxed))
    }

    fn move_to(&self, time_ns: u64) {
        // Relaxed: as above.
        self.0.set_ns.store(time_ns, Ordering::Relaxed);
        self.0.latest_ns.fetch_max(time_ns, Ordering::Relaxed);
    }
}

impl fmt::Debug for ManualHand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualHand").field(&self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, because all coarse clocks of the process share what it looks at.
    #[test]
    fn coarse_clocks_share_a_thread_that_never_leads_and_ends_with_the_last() {
        let slow = Clock::coarse(Duration::from_millis(5));
        let quick = Clock::coarse(Duration::from_micros(100));
        let (Source::Coarse(first), Source::Coarse(second)) = (&slow.source, &quick.source) else {
            panic!("no thread to be had");
        };
        assert!(Arc::ptr_eq(first, second));
        // Relaxed: this thread wrote it.
        assert_eq!(first.period_ns.load(Ordering::Relaxed), 100_000);

        let precise = Clock::precise();
        let mut last = 0;
        for _ in 0..100_000 {
            let shown = slow.now_ns();
            assert!(shown >= last);
            // A microsecond for counters that differ between cores.
            assert!(shown <= precise.now_ns() + 1_000);
            last = shown;
        }

        let watch = Arc::downgrade(first);
        drop(slow);
        assert!(watch.upgrade().is_some());
        drop(quick);
        // The thread holds the refresher only for the instant of a refresh.
        while watch.upgrade().is_some() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_clock_set_back_stands_still() {
        let (clock, hand) = Clock::manual();
        hand.set(Duration::from_nanos(10));
        hand.set(Duration::from_nanos(3));
        assert_eq!((clock.now_ns(), hand.now()), (10, Duration::from_nanos(3)));
        hand.advance(Duration::from_nanos(5));
        assert_eq!((clock.now_ns(), hand.now()), (10, Duration::from_nanos(8)));
        hand.advance(Duration::MAX);
        assert_eq!(clock.now_ns(), u64::MAX);
    }
}
