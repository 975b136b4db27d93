//! What is noted of decisions for those who watch: counts, and a sample of the refusals.
//!
//! A limiter that nobody watches has no part in this: its fast path asks one word whether anything at all is out
//! of the ordinary, and being watched is.

use crate::charge::{self, Cells, Seat};
use crate::counts::Counts;
use crate::decision::Decision;
use crate::limiter::{COUNTED, Limiter, TOLD};
use crate::stats::Stats;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use crate::table::WhenFull;
use crate::trace::{self, Rarely, Refusals};

/// Tells apart what is read again and again from what has come in its place: no two are the same in a process.
#[derive(Debug)]
pub(crate) struct Identity(#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "as below"))] u64);

impl Identity {
    #[cfg(feature = "metrics")]
    pub(crate) fn number(&self) -> u64 {
        self.0
    }
}

impl Default for Identity {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: nothing but the number is read.
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Watch {
    #[cfg_attr(
        not(feature = "metrics"),
        allow(dead_code, reason = "only the facade is told of differences")
    )]
    pub(crate) identity: Identity,
    pub(crate) name: Option<Box<str>>,
    pub(crate) counts: Option<Counts>,
    pub(crate) refusals: Refusals,
    pub(crate) full_table: Rarely,
}

impl Watch {
    pub(crate) fn table_full(&self, now_ns: u64, action: WhenFull) {
        trace::table_full(&self.full_table, now_ns, self.name.as_deref(), action);
    }
}

impl Limiter {
    /// Notes a decision of a tier about the key of these cells.
    #[inline]
    pub(crate) fn note(&self, tier: usize, cells: &impl Cells, decision: &Decision) {
        if let Some(counts) = &self.watch.counts {
            // Where the rule that decided keeps its words: under a later policy, not with the first ones.
            let cell = || self.compiled(tier).rules.get(decision.rule()).map_or(0, |rule| rule.first_cell);
            counts.count(tier, decision, || cells.reach(cell()));
        }
        if decision.is_denied() {
            self.watch.refusals.tell(self.name(), decision);
        }
    }

    /// The name given at [build](crate::LimiterBuilder::named).
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// assert_eq!(Limiter::builder().policy("1/s").named("api").build()?.name(), Some("api"));
    /// assert_eq!(Limiter::new("1/s")?.name(), None);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.watch.name.as_deref()
    }

    /// What the table holds, what it has had to do, and what was decided. Walks the whole table: for a dashboard,
    /// not for every request.
    ///
    /// ```
    /// use tollgate::{Cause, Limiter};
    ///
    /// let limiter = Limiter::builder().policy("2/min named api").count_decisions(true).build()?;
    /// for _ in 0..5 {
    ///     let _ = limiter.try_acquire("203.0.113.7");
    /// }
    /// let stats = limiter.stats();
    /// assert_eq!(stats.live_keys, 1);
    /// let api = stats.decisions.iter().find(|stats| stats.rule == "api").ok_or("no such rule")?;
    /// assert_eq!((api.allowed, api.denied), (2, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::of(&self.table, self.table.live_keys(&self.worth()), self.max_keys);
        if let Some(counts) = &self.watch.counts {
            stats.decisions = counts.decisions(&self.policies);
            stats.probes = counts.probes();
        }
        stats
    }

    /// Spends under the first tier where something is out of the ordinary, and be it that decisions are counted.
    ///
    /// The common case is counted before there is a decision: one that was made, looked at and returned would be
    /// copied on the way, which takes longer than to make it.
    #[cold]
    #[inline(never)]
    pub(crate) fn spend_specially(&self, special: u64, cells: &impl Cells, cost: u64) -> Decision {
        let policy = &self.policies.at_build;
        let (Some(counts), COUNTED) = (&self.watch.counts, special) else {
            return self.spend_more_specially(special, cells, cost);
        };
        let Some((outcome, debt_units, now_ns)) = charge::acquire_plainly(policy, cells, cost) else {
            return self.spend_noted(cells, cost);
        };
        let near_limit = || policy.bucket.plan.debt_of(debt_units).is_near_limit();
        counts.count_rule(0, outcome, near_limit, || cells.reach(0));
        policy.bucket.decision(0, outcome, debt_units, now_ns, cost)
    }

    /// Apart, because what calls much has to save what it holds.
    #[inline(never)]
    fn spend_more_specially(&self, special: u64, cells: &impl Cells, cost: u64) -> Decision {
        if special & !(COUNTED | TOLD) == 0 {
            return self.spend_noted(cells, cost);
        }
        self.decide(0, cells, cells.now_ns(), cost, Seat::Ask).0
    }

    #[inline(never)]
    fn spend_noted(&self, cells: &impl Cells, cost: u64) -> Decision {
        let decision = charge::acquire(&self.policies.at_build, cells, cost);
        self.note(0, cells, &decision);
        decision
    }
}
