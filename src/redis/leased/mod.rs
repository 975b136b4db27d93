//! Leased mode: tokens taken from the server a batch at a time and spent in nanoseconds.
//!
//! `entry` is what one subject has in hand, `table` finds it in bounded memory, `flight` brings tokens from the server,
//! `returns` gives back what was not spent in time. A request is decided here as long as there are tokens in hand, or until the moment before which the server is known
//! to refuse. Else one flight goes out for all who wait for it.

mod entry;
mod flight;
mod returns;
mod table;

use super::error::RedisError;
use super::protocol::{Protocol, WireRule};
use crate::algorithm::{Gcra, Summary, View};
use crate::clock::Clock;
use crate::decision::{Decision, Outcome};
use crate::guard::whole_ns;
pub(super) use entry::Origin;
use entry::{Entry, TOKENS_MAX, tick};
pub(super) use flight::{acquire, close, launch, reset};
use returns::Returns;
use std::sync::Arc;
use std::time::Duration;
use table::Table;

/// How leased mode trades calls to the server against how evenly processes share.
///
/// ```
/// use std::time::Duration;
/// use tollgate::redis::Leasing;
///
/// let leasing = Leasing::new().hold(Duration::from_millis(50)).interval(Duration::from_millis(5));
/// # let _ = leasing;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Leasing {
    hold: Duration,
    interval: Duration,
    max_keys: usize,
    whole_burst: bool,
}

impl Default for Leasing {
    fn default() -> Self {
        Self::new()
    }
}

impl Leasing {
    /// Leases good for 100 ms, no more than one in 10 ms for a subject that is short of tokens, room for 65 536
    /// subjects.
    ///
    /// ```
    /// use tollgate::redis::Leasing;
    /// assert_eq!(Leasing::new(), Leasing::default());
    /// ```
    pub fn new() -> Self {
        Self {
            hold: Duration::from_millis(100),
            interval: Duration::from_millis(10),
            max_keys: 65_536,
            whole_burst: false,
        }
    }

    /// How long leased tokens are good for, from 5 ms to 60 s. As much of the burst as comes back in that time is out of
    /// use. Longer than the [deadline](super::RedisLimiterBuilder::deadline): tokens that come later than they are good
    /// for are of no use.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::redis::Leasing;
    /// assert_eq!(Leasing::new().hold(Duration::from_millis(100)), Leasing::new());
    /// ```
    pub fn hold(mut self, time: Duration) -> Self {
        self.hold = time;
        self
    }

    pub(super) fn hold_time(&self) -> Duration {
        self.hold
    }

    /// The least time between two leases of a subject that the server gave less than it was asked for. A lease is
    /// meant to last for two of them. At most 60 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::redis::Leasing;
    /// assert_eq!(Leasing::new().interval(Duration::from_millis(10)), Leasing::new());
    /// ```
    pub fn interval(mut self, time: Duration) -> Self {
        self.interval = time;
        self
    }

    /// How many subjects may have tokens in hand; beyond that, requests are decided by the server one by one.
    ///
    /// ```
    /// use tollgate::redis::Leasing;
    /// assert_eq!(Leasing::new().max_keys(65_536), Leasing::new());
    /// ```
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Leases from the whole burst. In exchange, as much as comes back while a lease is held may pass above the limit:
    /// at most `burst + rate·(t + hold)` in any span `t`.
    ///
    /// ```
    /// use tollgate::redis::Leasing;
    /// let leasing = Leasing::new().whole_burst();
    /// assert_ne!(leasing, Leasing::new());
    /// ```
    pub fn whole_burst(mut self) -> Self {
        self.whole_burst = true;
        self
    }
}

/// Tokens in hand, for all subjects.
#[derive(Debug)]
pub(super) struct Leases {
    table: Table,
    returns: Returns,
    rules: Vec<(Gcra, Option<&'static str>)>,
    clock: Clock,
    /// The clock's reading at build: ticks count from here.
    born_ns: u64,
    hold_ns: u64,
    /// What a token is charged ahead by.
    charged_hold_us: u64,
    interval_ns: u64,
    /// The largest cost that a lease can ever serve.
    cost_max: u64,
}

/// What can be said without the server.
pub(super) enum Local {
    Decided(Decision),
    /// Nothing, but this is where tokens would be.
    Ask(Arc<Entry>),
    /// Nothing, and no tokens can be kept.
    Strict,
}

impl Leases {
    pub(super) fn new(leasing: Leasing, protocol: &Protocol) -> Result<Self, RedisError> {
        let refuse = |why: String| Err(RedisError::Config(why));
        let (hold_ns, interval_ns) = (whole_ns(leasing.hold), whole_ns(leasing.interval));
        if !(5_000_000..=60_000_000_000).contains(&hold_ns) || !(1..=60_000_000_000).contains(&interval_ns) {
            return refuse("leases are held for 5 ms to 60 s, and their interval is 1 ns to 60 s".to_owned());
        }
        if leasing.max_keys == 0 {
            return refuse("leased mode needs room for at least one subject".to_owned());
        }
        let charged_hold_us = if leasing.whole_burst { 0 } else { hold_ns.div_ceil(1_000) };
        let mut rules = Vec::new();
        let mut cost_max = TOKENS_MAX;
        for rule in protocol.rules() {
            let Some(plan) = WireRule::bucket(rule) else {
                return refuse(
                    "leased mode is for token buckets that are in force: use strict mode".to_owned(),
                );
            };
            let held_units = charged_hold_us.saturating_mul(1_000 << plan.unit());
            cost_max = cost_max.min(plan.full_units.saturating_sub(held_units) / plan.interval_units);
            rules.push((plan, rule.name));
        }
        if cost_max == 0 {
            return refuse(format!(
                "nothing of the burst could be leased for {:?}: it comes back sooner. Shorten the lease, raise the \
                 burst, or use strict mode",
                leasing.hold
            ));
        }
        let clock = Clock::precise();
        Ok(Self {
            table: Table::new(leasing.max_keys),
            returns: Returns::default(),
            rules,
            born_ns: clock.now_ns(),
            clock,
            hold_ns,
            charged_hold_us,
            interval_ns,
            cost_max,
        })
    }

    /// Nanoseconds since the build.
    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.now_ns().wrapping_sub(self.born_ns)
    }

    /// Decides by what is in hand or known. Never waits; allocates only for a subject that is new, or to say that
    /// tokens should be brought before they run out (`prefetch`).
    #[inline]
    pub(super) fn decide(&self, subject: &str, cost: u64, prefetch: impl FnOnce(&Arc<Entry>)) -> Local {
        if cost.wrapping_sub(1) >= self.cost_max {
            return Local::Strict;
        }
        let now_ns = self.now_ns();
        let decided = self.table.with(subject, |entry| match entry.take(cost, tick(now_ns)) {
            Some(taken) => {
                if taken.is_low && entry.may_fly(now_ns, 1) {
                    prefetch(entry);
                }
                Ok(self.decision(entry, Outcome::Allowed, taken.left, 0, now_ns, cost))
            }
            None if !entry.may_fly(now_ns, cost) => {
                entry.count_refused(cost);
                Ok(self.decision(entry, Outcome::Denied, 0, entry.wait_ns(now_ns), now_ns, cost))
            }
            None => Err(Arc::clone(entry)),
        });
        match decided {
            Some(Ok(decision)) => Local::Decided(decision),
            Some(Err(entry)) => Local::Ask(entry),
            None => self.table.insert(subject, now_ns).map_or(Local::Strict, Local::Ask),
        }
    }

    /// A decision of this process, by what the server last said.
    #[inline]
    fn decision(
        &self,
        entry: &Entry,
        outcome: Outcome,
        in_hand: u64,
        wait_ns: u64,
        now_ns: u64,
        cost: u64,
    ) -> Decision {
        let seen = entry.seen();
        let (plan, name) = &self.rules[seen.rule.min(self.rules.len() - 1)];
        let remaining = if wait_ns == 0 { in_hand + seen.available } else { 0 };
        let summary = Summary {
            limit: plan.burst,
            remaining: remaining.min(plan.burst),
            wait_ns,
            reset_ns: seen.fresh_at_ns.saturating_sub(now_ns).max(wait_ns),
        };
        Decision::new(outcome, seen.rule, *name, View::Summary(summary), now_ns, cost)
    }

    /// Forgets that the server refused: something was given back.
    pub(super) fn forget_refusal(&self, subject: &str) {
        self.table.with(subject, |entry| entry.refuse_nothing());
    }

    pub(super) fn in_hand(&self) -> u64 {
        self.table.entries().iter().map(|entry| entry.in_hand()).sum()
    }
}
