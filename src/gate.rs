//! The un-keyed limiter: one row of words, and no table.

use crate::algorithm::{STORER_BITS, Step};
use crate::charge::{self, Cell, Cells, NoRoom, Seat, Stale};
use crate::clock::Clock;
use crate::compile::Compiled;
use crate::decision::{Decision, Denied};
use crate::error::Error;
use crate::permit::Permit;
use crate::policy::Policy;
use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::fmt;

/// Words on one cache line (two on processors that fetch lines in pairs).
const LINE_WORDS: usize = 16;

/// One limiter for everybody who holds it: a single state word a rule, `&self` everywhere, never waits.
///
/// ```
/// use tollgate::{Gate, Rule};
///
/// let gate = Gate::new(Rule::per_second(50_000).burst(100))?;
/// if gate.try_acquire().is_allowed() {
///     // the work
/// }
/// # Ok::<(), tollgate::Error>(())
/// ```
///
/// A gate counts nothing: [`Limiter::stats`](crate::Limiter::stats) is for limiters, of which one may have room for
/// a single key.
///
/// A gate decides at once. Whoever wants to wait for a turn, in the order of coming, takes a
/// [`Limiter`](crate::Limiter) with room for one key:
///
/// ```
/// use tollgate::Limiter;
///
/// let throttle = Limiter::builder().policy("1000/s burst 1").max_keys(1).build()?;
/// for _job in 0..3 {
///     assert!(throttle.acquire_blocking(&()).is_allowed()); // or `acquire(&()).await`
/// }
/// # Ok::<(), tollgate::Error>(())
/// ```
pub struct Gate {
    lines: Box<[Line]>,
    compiled: Compiled,
    clock: Clock,
    policy: Policy,
}

impl Gate {
    /// A gate under a policy, a rule or a text, with the [precise clock](Clock::precise).
    ///
    /// ```
    /// use tollgate::{Gate, Rule};
    ///
    /// let gate = Gate::new("50000/s burst 100; 1000000/h")?;
    /// assert_eq!(gate.try_acquire().limit(), 100);
    /// let gate = Gate::new(Rule::per_second(10))?;
    /// assert_eq!(gate.try_acquire().limit(), 10);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A text that does not parse, or a policy that [`Policy::validate`] refuses.
    pub fn new<P>(policy: P) -> Result<Self, Error>
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        Self::with_clock(policy, Clock::precise())
    }

    /// The same with a clock of one's own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Gate};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let gate = Gate::with_clock("1/s", clock)?;
    /// assert!(gate.try_acquire().is_allowed());
    /// assert_eq!(gate.try_acquire().retry_after(), Some(Duration::from_secs(1)));
    /// hand.advance(Duration::from_secs(1));
    /// assert!(gate.try_acquire().is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Gate::new`].
    pub fn with_clock<P>(policy: P, clock: Clock) -> Result<Self, Error>
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        let policy = policy.try_into().map_err(Into::into)?;
        let compiled = policy.compile()?;
        let lines = fresh_lines(&compiled, clock.now_ns());
        Ok(Self { lines, compiled, clock, policy })
    }

    /// Takes one, or says when to come back.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("2/min")?;
    /// assert_eq!(gate.try_acquire().remaining(), 1);
    /// assert!(gate.try_acquire().is_allowed());
    /// assert!(gate.try_acquire().is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self) -> Decision {
        self.try_acquire_n(1)
    }

    /// Takes `cost` at once, or nothing. A cost of 0 always passes.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1000/min")?; // of bytes, tokens, rows
    /// assert!(gate.try_acquire_n(800).is_allowed());
    /// assert!(gate.try_acquire_n(300).is_denied());
    /// assert!(gate.try_acquire_n(200).is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    pub fn try_acquire_n(&self, cost: u64) -> Decision {
        charge::acquire(&self.compiled, &self, cost)
    }

    /// Begins one piece of work, or says why not: the permit ends it when dropped. Takes one of the places of a
    /// rule of [so many at once](crate::Rule::at_once), which [`try_acquire`](Self::try_acquire) only asks for.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1 at once")?;
    /// let work = gate.try_start()?;
    /// assert!(gate.try_start().is_err());
    /// drop(work);
    /// assert!(gate.try_start().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`] unless it may begin; nothing is spent then.
    pub fn try_start(&self) -> Result<Permit<'_>, Denied> {
        let (decision, place) =
            charge::acquire_all(&self.compiled, &self, self.clock.now_ns(), 1, Seat::Take);
        decision.into_result().map(|decision| Permit::new(self.into(), 0, place, decision))
    }

    /// What [`try_acquire`](Self::try_acquire) would say, without taking anything.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1/min")?;
    /// assert!(gate.peek().is_allowed() && gate.peek().is_allowed());
    /// assert!(gate.try_acquire().is_allowed());
    /// assert!(gate.peek().is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// What [`try_acquire_n`](Self::try_acquire_n) would say, without taking anything.
    ///
    /// ```
    /// use tollgate::{Gate, Outcome};
    ///
    /// let gate = Gate::new("5/min")?;
    /// assert!(gate.peek_n(5).is_allowed());
    /// assert_eq!(gate.peek_n(6).outcome(), Outcome::NeverFits);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peek_n(&self, cost: u64) -> Decision {
        charge::peek(&self.compiled, &self, self.clock.now_ns(), cost)
    }

    /// Gives back the newest `cost` that was taken, at most all of it.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1/h")?;
    /// assert!(gate.try_acquire().is_allowed());
    /// gate.refund(1);
    /// assert!(gate.try_acquire().is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn refund(&self, cost: u64) {
        charge::refund(&self.compiled, &self, cost);
    }

    /// Forgets all that was taken.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1/h")?;
    /// assert!(gate.try_acquire().is_allowed());
    /// gate.reset();
    /// assert!(gate.try_acquire().is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn reset(&self) {
        charge::reset(&self.compiled, &self);
    }

    /// The policy in force.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("10 per second")?;
    /// assert_eq!(gate.policy().to_string(), "10/s");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("policy", &format_args!("{}", self.policy))
            .field("state", &self.peek())
            .finish()
    }
}

type Line = CachePadded<[AtomicU64; LINE_WORDS]>;

fn fresh_lines(policy: &Compiled, now_ns: u64) -> Box<[Line]> {
    let fresh = |cell: usize| {
        let rule = policy.rules.iter().find(|rule| rule.cells().contains(&cell));
        AtomicU64::new(rule.map_or(0, |rule| rule.plan.fresh(now_ns) << STORER_BITS))
    };
    (0..policy.cells.div_ceil(LINE_WORDS))
        .map(|line| CachePadded::new(std::array::from_fn(|word| fresh(line * LINE_WORDS + word))))
        .collect()
}

impl Cells for &Gate {
    type Cell<'a>
        = &'a AtomicU64
    where
        Self: 'a;

    #[inline]
    fn glance(&self, index: usize) -> Option<&AtomicU64> {
        self.find(index)
    }

    #[inline]
    fn find(&self, index: usize) -> Option<&AtomicU64> {
        Some(&self.lines[index / LINE_WORDS][index % LINE_WORDS])
    }

    #[inline(always)]
    fn quick_ns(&self) -> Option<u64> {
        self.clock.quick_ns()
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    // Never called: a gate's cells are always there, and always its own.
    fn claim(&self, index: usize, _now_ns: u64, _may_displace: &mut bool) -> Result<&AtomicU64, NoRoom> {
        self.find(index).ok_or(NoRoom::Allow)
    }
}

impl Cell for &AtomicU64 {
    #[inline]
    fn load(&self, _fresh: impl FnOnce() -> u64) -> Result<(u64, u64), Stale> {
        // Relaxed: a word is the whole state of its rule, and guards nothing beside itself.
        let word = AtomicU64::load(self, Ordering::Relaxed);
        Ok((word, word >> STORER_BITS))
    }

    #[inline]
    fn replace(&self, stored: u64, payload: u64) -> bool {
        self.replace_live(stored, payload << STORER_BITS)
    }

    #[inline(always)]
    fn load_live(&self) -> Option<u64> {
        // Relaxed: as in `load`.
        Some(AtomicU64::load(self, Ordering::Relaxed))
    }

    #[inline(always)]
    fn replace_live(&self, stored: u64, next: u64) -> bool {
        // Relaxed: as above; the bound rests on the one order in which all threads see a single word change.
        self.compare_exchange(stored, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
