//! What stands above the rules: lists of keys that always or never pass, lockouts after repeated refusals, and
//! requests that pass once. Their state is in the table, in cells that no rule has.

use crate::algorithm::{Gcra, LEVELS_MAX, Penalty, STRIKES_MAX, Step};
use crate::compile::LAYOUT_CELLS_MAX;
use crate::error::Error;
use std::time::Duration;

/// The cell of a lockout.
pub(crate) const PENALTY_CELL: usize = LAYOUT_CELLS_MAX;
/// The cell of a list entry.
pub(crate) const LIST_CELL: usize = LAYOUT_CELLS_MAX + 1;
/// The cell of a mark that a request has been here.
pub(crate) const ONCE_CELL: usize = LAYOUT_CELLS_MAX + 2;

/// Lockouts that grow with repeated refusals, and are forgiven after good behaviour.
///
/// A key that a rule refuses is given a strike. So many strikes lock it out for the first time of the schedule;
/// as many again, once that is over, for the second, and so on; the last one repeats. A key that goes without
/// a refusal for long enough after that begins anew. What a key asks for while it is locked out is refused and
/// counts as nothing: waiting always helps.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Cause, Clock, Limiter, Penalties};
///
/// let (clock, hand) = Clock::manual();
/// let minutes = |n: u64| Duration::from_secs(60 * n);
/// let logins = Limiter::builder()
///     .policy("3/min")
///     .penalties(Penalties::new([minutes(1), minutes(5), minutes(60)]).after(2))
///     .clock(clock)
///     .build()?;
/// for _ in 0..3 {
///     assert!(logins.try_acquire("mallory").is_allowed());
/// }
/// assert!(logins.try_acquire("mallory").is_denied());
/// assert!(logins.try_acquire("mallory").is_denied());
/// hand.advance(Duration::from_secs(30));
/// let decision = logins.try_acquire("mallory");
/// assert_eq!(decision.cause(), Cause::Penalty);
/// assert!(decision.retry_after() > Some(Duration::from_secs(29)));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Penalties {
    lockouts: Vec<Duration>,
    strikes: u64,
    forgiven_after: Duration,
}

impl Penalties {
    /// Lockouts of these lengths, one after the other. Each follows one refusal, and all are forgiven after a
    /// day, unless told otherwise.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Penalties;
    ///
    /// let schedule = Penalties::new([Duration::from_secs(60), Duration::from_secs(600)]);
    /// assert_eq!(schedule, Penalties::new(vec![Duration::from_secs(60), Duration::from_secs(600)]).after(1));
    /// ```
    pub fn new(lockouts: impl Into<Vec<Duration>>) -> Self {
        Self { lockouts: lockouts.into(), strikes: 1, forgiven_after: Duration::from_secs(86_400) }
    }

    /// How many refusals lead to a lockout.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Cause, Limiter, Penalties};
    ///
    /// let lockouts = Penalties::new([Duration::from_secs(60)]).after(3);
    /// let limiter = Limiter::builder().policy("1/h").penalties(lockouts).build()?;
    /// let causes: Vec<Cause> = (0..5).map(|_| limiter.try_acquire("mallory").cause()).collect();
    /// assert_eq!(causes[1..], [Cause::Rule, Cause::Rule, Cause::Rule, Cause::Penalty]);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn after(mut self, refusals: u64) -> Self {
        self.strikes = refusals;
        self
    }

    /// How long a key has to go without a refusal, counted from the last or from the end of the last lockout.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter, Penalties};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    /// let lockouts = Penalties::new([minute, hour]).forgiven_after(hour);
    /// let limiter = Limiter::builder().policy("1/s").penalties(lockouts).clock(clock).build()?;
    /// let locked_out = || {
    ///     while limiter.try_acquire("mallory").is_allowed() {}
    ///     limiter.peek("mallory").retry_after()
    /// };
    /// assert!(locked_out() <= Some(minute * 2));
    /// hand.advance(minute + hour * 2);
    /// assert!(locked_out() <= Some(minute * 2)); // the first of the schedule again
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn forgiven_after(mut self, time: Duration) -> Self {
        self.forgiven_after = time;
        self
    }

    pub(crate) fn compile(&self) -> Result<Penalty, Error> {
        if self.lockouts.is_empty() || self.lockouts.len() > LEVELS_MAX {
            return Err(Error::new(format!(
                "a schedule has 1 to {LEVELS_MAX} lockouts, this has {}",
                self.lockouts.len()
            )));
        }
        if self.lockouts.contains(&Duration::ZERO) {
            return Err(Error::new("a lockout of 0 locks nobody out"));
        }
        if self.strikes == 0 || self.strikes > STRIKES_MAX {
            return Err(Error::new(format!(
                "a lockout follows 1 to {STRIKES_MAX} refusals, not {}",
                self.strikes
            )));
        }
        let schedule_ns: Vec<u64> = self.lockouts.iter().copied().map(whole_ns).collect();
        Ok(Penalty::new(&schedule_ns, self.strikes, whole_ns(self.forgiven_after)))
    }
}

/// Nanoseconds, or as many as there are.
pub(crate) fn whole_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a list says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    Allow,
    /// For so long, counted from when it was asked; the largest number is for ever.
    Deny {
        left_ns: u64,
    },
}

/// ```text
/// word: | denied: 1 | listed: 1 | until: 54, in 2^20 ns |
/// ```
const LISTED: u64 = 1 << 54;
const DENIED: u64 = 1 << 55;
const UNTIL_SHIFT: u32 = 20;
const FOR_EVER: u64 = LISTED - 1;

pub(crate) const UNLISTED: u64 = 0;
pub(crate) const ALLOWED: u64 = LISTED | FOR_EVER;

/// The word of a key that is denied for so long.
pub(crate) fn denied_word(now_ns: u64, time_ns: u64) -> u64 {
    let until = match now_ns.checked_add(time_ns) {
        Some(until_ns) if time_ns < u64::MAX => until_ns.div_ceil(1 << UNTIL_SHIFT),
        _ => FOR_EVER,
    };
    LISTED | DENIED | until
}

/// What a word says, if it still says anything.
pub(crate) fn listing(word: u64, now_ns: u64) -> Option<Listing> {
    let left_ns = match word & FOR_EVER {
        FOR_EVER => u64::MAX,
        until => until.saturating_mul(1 << UNTIL_SHIFT).saturating_sub(now_ns),
    };
    match (word & LISTED, word & DENIED) {
        (0, _) => None,
        (_, 0) => Some(Listing::Allow),
        _ if left_ns == 0 => None,
        _ => Some(Listing::Deny { left_ns }),
    }
}

/// How long until a list entry says nothing any more.
pub(crate) fn listing_reset_ns(word: u64, now_ns: u64) -> u64 {
    match listing(word, now_ns) {
        None => 0,
        Some(Listing::Allow) => u64::MAX,
        Some(Listing::Deny { left_ns }) => left_ns,
    }
}

/// How long until a mark is forgotten.
pub(crate) fn mark_reset_ns(word: u64, now_ns: u64) -> u64 {
    Gcra::mark(0).reset_ns(word, now_ns)
}
