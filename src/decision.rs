//! The whole answer to one request, kept as raw values and computed only when asked.

use crate::algorithm::{FixedWindow, Gcra, Headroom, InFlight, Plan, SlidingWindow, Step, Summary};
use std::fmt;
use std::time::Duration;

/// What became of a request.
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

/// What decided.
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

/// A rule and what was found of its state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    Gcra(Gcra, u64),
    FixedWindow(FixedWindow, u64),
    SlidingWindow(SlidingWindow, u64),
    InFlight(InFlight, u64),
    Summary(Cause, Summary),
}

impl View {
    /// The view of a plan that keeps its state in one word.
    pub(crate) fn of_word(plan: &Plan, word: u64) -> Self {
        match *plan {
            Plan::Gcra(plan) => Self::Gcra(plan, word),
            Plan::FixedWindow(plan) => Self::FixedWindow(plan, word),
            Plan::SlidingWindow(plan) => Self::SlidingWindow(plan, word),
            Plan::InFlight(plan) => Self::InFlight(plan, word),
            // A single token of a log is a bucket of its own.
            Plan::SlidingLog(plan) => Self::Gcra(plan.token, word),
        }
    }

    /// The view of a rule whose words there is no room for.
    pub(crate) fn no_room(cause: Cause, limit: u64, wait_ns: u64) -> Self {
        Self::Summary(cause, Summary { limit, remaining: 0, wait_ns, reset_ns: wait_ns })
    }

    fn cause(&self) -> Cause {
        match self {
            Self::Summary(cause, _) => *cause,
            _ => Cause::Rule,
        }
    }

    fn limit(&self) -> u64 {
        match self {
            Self::Gcra(plan, _) => plan.burst,
            Self::FixedWindow(plan, _) => plan.limit,
            Self::SlidingWindow(plan, _) => plan.limit,
            Self::InFlight(plan, _) => plan.limit,
            Self::Summary(_, summary) => summary.limit,
        }
    }

    pub(crate) fn headroom(&self, now_ns: u64) -> Headroom {
        match *self {
            Self::Gcra(plan, word) => plan.headroom(word, now_ns),
            Self::FixedWindow(plan, word) => plan.headroom(word, now_ns),
            Self::SlidingWindow(plan, word) => plan.headroom(word, now_ns),
            Self::InFlight(plan, word) => plan.headroom(word, now_ns),
            Self::Summary(_, summary) => Headroom::whole(summary.remaining),
        }
    }

    pub(crate) fn wait_ns(&self, now_ns: u64, cost: u64) -> u64 {
        match *self {
            Self::Gcra(plan, word) => plan.wait_ns(word, now_ns, cost),
            Self::FixedWindow(plan, word) => plan.wait_ns(word, now_ns, cost),
            Self::SlidingWindow(plan, word) => plan.wait_ns(word, now_ns, cost),
            Self::InFlight(plan, word) => plan.wait_ns(word, now_ns, cost),
            Self::Summary(_, summary) => summary.wait_ns,
        }
    }

    /// Whether four fifths of what the rule admits are spent.
    #[inline]
    fn is_near_limit(&self, now_ns: u64) -> bool {
        match *self {
            Self::Gcra(plan, word) => plan.is_near_limit(word, now_ns),
            _ => self.headroom(now_ns).remaining() <= self.limit() / 5,
        }
    }

    fn reset_ns(&self, now_ns: u64) -> u64 {
        match *self {
            Self::Gcra(plan, word) => plan.reset_ns(word, now_ns),
            Self::FixedWindow(plan, word) => plan.reset_ns(word, now_ns),
            Self::SlidingWindow(plan, word) => plan.reset_ns(word, now_ns),
            Self::InFlight(plan, word) => plan.reset_ns(word, now_ns),
            Self::Summary(_, summary) => summary.reset_ns,
        }
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
    rule: u8,
    /// The first shadow rule that would have refused, counted from 1; 0 if none would.
    shadow: u8,
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
        Self { outcome, rule: index as u8, shadow: 0, name, now_ns, cost, view }
    }

    /// The same, noting that a shadow rule would have refused; the first of them is kept.
    pub(crate) fn noting_shadow(mut self, index: usize) -> Self {
        if self.shadow == 0 {
            #[allow(clippy::cast_possible_truncation, reason = "a policy has at most 16 rules")]
            let number = index as u8 + 1;
            self.shadow = number;
        }
        self
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
    pub(crate) fn of_rule(self, index: usize) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a policy has at most 16 rules")]
        Self { rule: index as u8, ..self }
    }

    /// How long until the request fits, in nanoseconds; the largest number if nobody can say.
    pub(crate) fn wait_ns(&self) -> u64 {
        self.view.wait_ns(self.now_ns, self.cost)
    }

    /// The time that was decided by.
    pub(crate) fn at_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn headroom(&self) -> Headroom {
        self.view.headroom(self.now_ns)
    }

    /// Whether the request may pass.
    #[inline]
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }

    /// Whether the request may not pass, now or ever.
    #[inline]
    #[must_use]
    pub fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// What became of the request.
    #[inline]
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The most that the binding rule admits at once: the burst of a token bucket, else the count.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.view.limit()
    }

    /// The largest cost that would still pass under the binding rule, after this request.
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
        self.view.is_near_limit(self.now_ns)
    }

    /// How long until the same request fits, if nobody else spends: exact to the nanosecond.
    ///
    /// `None` when it was allowed, when it can never fit, and when nobody can say: where too many are at work
    /// at once, or where the key is on the deny list.
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
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.view.cause()
    }

    /// The first shadow rule that would have refused this request, counted from 0 among all rules.
    #[must_use]
    pub fn would_deny(&self) -> Option<usize> {
        (self.shadow > 0).then(|| usize::from(self.shadow) - 1)
    }

    /// How long until the binding rule has forgotten all that was spent, if nobody spends more.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.view.reset_ns(self.now_ns))
    }

    /// What the request asked for.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Which rule of the policy the decision speaks of, counted from 0.
    #[must_use]
    pub fn rule(&self) -> usize {
        usize::from(self.rule)
    }

    /// The name of that rule, if it has one.
    #[must_use]
    pub fn rule_name(&self) -> Option<&'static str> {
        self.name
    }

    /// The decision as a result, for `?`.
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
            .field("cost", &self.cost)
            .field("rule", &self.rule)
            .field("rule_name", &self.name)
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
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
    pub fn decision(&self) -> Decision {
        self.0
    }

    /// How long until the same request fits; `None` if it never will.
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
