//! The whole answer to one request, kept as raw values and computed only when asked.

use crate::algorithm::{Headroom, Seen, View};
use std::fmt;
use std::time::Duration;

/// What became of a request.
///
/// ```
/// use tollgate::{Gate, Outcome};
///
/// let gate = Gate::new("2/h")?;
/// assert_eq!(gate.try_acquire_n(2).outcome(), Outcome::Allowed);
/// assert_eq!(gate.try_acquire().outcome(), Outcome::Denied);
/// assert_eq!(gate.try_acquire_n(3).outcome(), Outcome::NeverFits);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It may pass, and was charged (or would be, for a peek).
    Allowed,
    /// It may not pass now; nothing was charged. [`Decision::retry_after`] says when it will fit.
    Denied,
    /// It costs more than a rule ever admits at once: waiting will not help.
    NeverFits,
}

impl Outcome {
    /// As dashboards and logs have it: `allowed`, `denied` or `never_fits`.
    ///
    /// ```
    /// let outcome = tollgate::Gate::new("1/h")?.try_acquire_n(2).outcome();
    /// assert_eq!((outcome.as_str(), outcome.to_string()), ("never_fits", "never_fits".to_owned()));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NeverFits => "never_fits",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What decided.
///
/// ```
/// use tollgate::{Cause, Limiter};
///
/// let limiter = Limiter::new("1/h")?;
/// limiter.deny("mallory")?;
/// assert!(limiter.try_acquire("alice").is_allowed());
/// assert_eq!(limiter.try_acquire("alice").cause(), Cause::Rule);
/// assert_eq!(limiter.try_acquire("mallory").cause(), Cause::List);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// A rule of the policy: [`Decision::rule`].
    Rule,
    /// The table had no room for the key ([`WhenFull::Deny`](crate::WhenFull::Deny)).
    NoRoom,
    /// The key is locked out after repeated refusals ([`Penalties`](crate::Penalties)).
    Penalty,
    /// The key is on a list ([`Limiter::allow`](crate::Limiter::allow), [`Limiter::deny`](crate::Limiter::deny)).
    List,
    /// The limiter was closed ([`Limiter::close`](crate::Limiter::close)).
    Closed,
    /// What is shared between processes could not be asked, and the limiter was told what to say then.
    Unavailable,
}

impl Cause {
    /// As dashboards and logs have it: `rule`, `no_room`, `penalty`, `list`, `closed` or `unavailable`.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1/h")?;
    /// limiter.deny("mallory")?;
    /// let decision = limiter.try_acquire("mallory");
    /// assert_eq!(format!("{} by a {}", decision.outcome(), decision.cause()), "denied by a list");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::NoRoom => "no_room",
            Self::Penalty => "penalty",
            Self::List => "list",
            Self::Closed => "closed",
            Self::Unavailable => "unavailable",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether a request may pass, and everything a caller may want to tell its client.
///
/// Copying it is cheap and computing nothing costs nothing: the methods do their arithmetic when called.
/// Where a policy has several rules, the decision speaks of the one that binds most: among those that
/// refuse, the one with the longest wait; else the one with the least remaining.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, Gate, Outcome};
///
/// let (clock, hand) = Clock::manual();
/// let gate = Gate::with_clock("2/s named api", clock)?;
/// assert_eq!(gate.try_acquire().remaining(), 1);
/// assert!(gate.try_acquire().is_allowed());
///
/// let decision = gate.try_acquire();
/// assert_eq!(decision.outcome(), Outcome::Denied);
/// assert_eq!(decision.rule_name(), Some("api"));
/// assert_eq!(decision.retry_after(), Some(Duration::from_millis(500)));
/// assert_eq!(decision.reset_after(), Duration::from_secs(1));
///
/// hand.advance(Duration::from_millis(500));
/// assert!(gate.try_acquire().is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use = "a decision that nobody looks at limits nothing"]
pub struct Decision {
    outcome: Outcome,
    cause: Cause,
    rule: u8,
    /// A bit for each shadow rule that would have refused, the first rule's the lowest.
    shadows: u16,
    name: Option<&'static str>,
    now_ns: u64,
    cost: u64,
    view: View,
}

impl Decision {
    #[inline]
    pub(crate) fn new(
        outcome: Outcome,
        index: usize,
        name: Option<&'static str>,
        view: View,
        now_ns: u64,
        cost: u64,
    ) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a policy has at most 16 rules")]
        Self { outcome, cause: Cause::Rule, rule: index as u8, shadows: 0, name, now_ns, cost, view }
    }

    /// The same, decided by something other than a rule.
    pub(crate) fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// The same, noting that a shadow rule would have refused.
    pub(crate) fn noting_shadow(self, index: usize) -> Self {
        Self { shadows: self.shadows | 1 << index, ..self }
    }

    /// All shadow rules that would have refused this request, the last one first.
    #[inline]
    pub(crate) fn would_all_deny(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.shadows;
        std::iter::from_fn(move || {
            let index = left.checked_ilog2()?;
            left -= 1 << index;
            Some(index as usize)
        })
    }

    /// The same for another cost.
    pub(crate) fn of_cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same state, for a request that passes whatever it is.
    #[cfg(feature = "redis")]
    pub(crate) fn as_allowed(self) -> Self {
        Self { outcome: Outcome::Allowed, ..self }
    }

    /// The same, speaking of the rule by another number.
    #[allow(clippy::cast_possible_truncation, reason = "a policy has at most 16 rules")]
    pub(crate) fn of_rule(self, index: usize) -> Self {
        Self { rule: index as u8, ..self }
    }

    /// The same, where the rules it speaks of are these ones of a policy of more.
    #[cfg(feature = "redis")]
    pub(crate) fn of_rules(self, indices: &[usize]) -> Self {
        let of = |index: usize| indices.get(index).copied().unwrap_or(0);
        let shadows = self.would_all_deny().fold(0, |shadows, index| shadows | 1 << of(index));
        #[allow(clippy::cast_possible_truncation, reason = "a policy has at most 16 rules")]
        Self { rule: of(self.rule()) as u8, shadows, ..self }
    }

    /// How long until the request fits, in nanoseconds; the largest number if nobody can say.
    pub(crate) fn wait_ns(&self) -> u64 {
        self.view.wait_ns(self.cost)
    }

    /// The time that was decided by.
    pub(crate) fn at_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn headroom(&self) -> Headroom {
        self.view.headroom()
    }

    /// Whether the request may pass.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1/h")?;
    /// assert!(gate.try_acquire().is_allowed());
    /// assert!(!gate.try_acquire().is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }

    /// Whether the request may not pass, now or ever.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1/h")?;
    /// assert!(!gate.try_acquire().is_denied());
    /// assert!(gate.try_acquire().is_denied());
    /// assert!(gate.try_acquire_n(2).is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// What became of the request.
    ///
    /// ```
    /// use tollgate::{Gate, Outcome};
    ///
    /// let gate = Gate::new("10/s")?;
    /// match gate.try_acquire_n(50).outcome() {
    ///     Outcome::Allowed => println!("go ahead"),
    ///     Outcome::Denied => println!("later"),
    ///     _ => println!("ask for less at once"),
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The most that the binding rule admits at once: the burst of a token bucket, else the count.
    ///
    /// ```
    /// use tollgate::Gate;
    ///
    /// assert_eq!(Gate::new("100/min burst 20")?.peek().limit(), 20);
    /// assert_eq!(Gate::new("fixed 100/min")?.peek().limit(), 100);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.view.limit()
    }

    /// The largest cost that would still pass under the binding rule, after this request.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("5/h; fixed 100/d")?;
    /// assert_eq!(gate.try_acquire_n(3).remaining(), 2);
    /// assert_eq!(gate.peek().remaining(), 2);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.headroom().remaining()
    }

    /// Whether at least 80 % of what the binding rule admits is spent, this request included: time to warn
    /// whoever it is for.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("5/h")?;
    /// assert!(!gate.try_acquire_n(3).is_near_limit());
    /// assert!(gate.try_acquire_n(2).is_near_limit());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.view.is_near_limit()
    }

    /// How long until the same request fits, if nobody else spends: exact to the nanosecond.
    ///
    /// `None` when it was allowed, when it can never fit, and when nobody can say: where too many are at work
    /// at once, the key is on the deny list, or the limiter is closed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Gate};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let gate = Gate::with_clock("1/s", clock)?;
    /// assert_eq!(gate.try_acquire().retry_after(), None);
    /// hand.advance(Duration::from_millis(300));
    /// assert_eq!(gate.try_acquire().retry_after(), Some(Duration::from_millis(700)));
    /// assert_eq!(gate.try_acquire_n(2).retry_after(), None); // never fits
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Denied => match self.wait_ns() {
                u64::MAX => None,
                wait_ns => Some(Duration::from_nanos(wait_ns)),
            },
            Outcome::Allowed | Outcome::NeverFits => None,
        }
    }

    /// What decided: a rule, or something above all rules.
    ///
    /// ```
    /// use tollgate::{Cause, Limiter};
    ///
    /// let limiter = Limiter::new("1/h")?;
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// assert_eq!(limiter.try_acquire("key").cause(), Cause::Rule);
    /// limiter.allow("key")?;
    /// assert_eq!(limiter.try_acquire("key").cause(), Cause::List);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// The first shadow rule that would have refused this request, counted from 0 among all rules.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("100/h; shadow 1/h")?;
    /// assert_eq!(gate.try_acquire().would_deny(), None);
    /// assert_eq!(gate.try_acquire().would_deny(), Some(1));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn would_deny(&self) -> Option<usize> {
        (self.shadows > 0).then(|| self.shadows.trailing_zeros() as usize)
    }

    /// How long until the binding rule has forgotten all that was spent, if nobody spends more.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Gate};
    ///
    /// let (clock, _hand) = Clock::manual();
    /// let gate = Gate::with_clock("10/s", clock)?;
    /// assert_eq!(gate.try_acquire_n(5).reset_after(), Duration::from_millis(500));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.view.reset_ns())
    }

    /// What the request asked for.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("10/s")?;
    /// assert_eq!(gate.try_acquire_n(7).cost(), 7);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Which rule of the policy the decision speaks of, counted from 0.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("10/s; 15/h")?;
    /// assert_eq!(gate.try_acquire_n(9).rule(), 0); // one left, and six of the hour's
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn rule(&self) -> usize {
        usize::from(self.rule)
    }

    /// The name of that rule, if it has one.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("10/s named short; 15/h named long")?;
    /// assert_eq!(gate.try_acquire_n(9).rule_name(), Some("short"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn rule_name(&self) -> Option<&'static str> {
        self.name
    }

    /// The decision as a result, for `?`.
    ///
    /// ```
    /// use tollgate::{Denied, Limiter};
    ///
    /// fn export(limiter: &Limiter, user: u64) -> Result<(), Denied> {
    ///     limiter.try_acquire(&user).into_result()?;
    ///     // the work
    ///     Ok(())
    /// }
    ///
    /// let limiter = Limiter::new("1/h")?;
    /// assert!(export(&limiter, 7).is_ok());
    /// assert!(export(&limiter, 7).is_err());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`] unless the request may pass.
    pub fn into_result(self) -> Result<Self, Denied> {
        if self.is_allowed() { Ok(self) } else { Err(Denied(self)) }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome)
            .field("cause", &self.cause())
            .field("cost", &self.cost)
            .field("rule", &self.rule)
            .field("rule_name", &self.name)
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("would_deny", &self.would_deny())
            .finish()
    }
}

/// The error of a request that may not pass: a [`Decision`] that is not allowed.
///
/// ```
/// # let gate = tollgate::Gate::new("1/h named export")?;
/// # let _ = gate.try_acquire();
/// let error = gate.try_acquire_n(7).into_result().unwrap_err();
/// assert_eq!(error.to_string(), "a cost of 7 can never pass rule `export`, which admits at most 1 at once");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Denied(Decision);

impl Denied {
    /// The decision behind the error.
    ///
    /// ```
    /// let gate = tollgate::Gate::new("1/h named export")?;
    /// assert!(gate.try_acquire().is_allowed());
    /// let error = gate.try_acquire().into_result().unwrap_err();
    /// assert_eq!(error.decision().rule_name(), Some("export"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn decision(&self) -> Decision {
        self.0
    }

    /// How long until the same request fits; `None` if it never will, and where nobody can say: where too many are
    /// at work at once, the key is on the deny list, or the limiter is closed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Gate};
    ///
    /// let (clock, _hand) = Clock::manual();
    /// let gate = Gate::with_clock("1/s", clock)?;
    /// assert!(gate.try_acquire().is_allowed());
    /// let error = gate.try_acquire().into_result().unwrap_err();
    /// assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = match self.0.name {
            Some(name) => format!("rule `{name}`"),
            None => format!("rule {}", self.0.rule),
        };
        let why = match (self.0.outcome, self.0.cause()) {
            (Outcome::NeverFits, _) => {
                return write!(
                    f,
                    "a cost of {} can never pass {rule}, which admits at most {} at once",
                    self.0.cost,
                    self.0.limit()
                );
            }
            (_, Cause::Rule) => format!("rate limit reached by {rule}"),
            (_, Cause::NoRoom) => "no room for another key".to_owned(),
            (_, Cause::Penalty) => "locked out after repeated refusals".to_owned(),
            (_, Cause::List) => "on the deny list".to_owned(),
            (_, Cause::Closed) => "the limiter is closed".to_owned(),
            (_, Cause::Unavailable) => "the shared limit cannot be asked at the moment".to_owned(),
        };
        match self.0.retry_after() {
            Some(wait) => write!(f, "{why}: retry after {wait:?}"),
            None => f.write_str(&why),
        }
    }
}

impl std::error::Error for Denied {}
