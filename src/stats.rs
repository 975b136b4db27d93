//! What a limiter says of itself: [`Limiter::stats`](crate::Limiter::stats).

use crate::decision::Cause;
use crate::table::Table;

/// What a limiter's table holds, and what it has had to do and has decided.
///
/// All counts are since the build and only ever grow, so two readings can be subtracted.
///
/// ```
/// use tollgate::Limiter;
///
/// let limiter = Limiter::builder().policy("1/h").max_keys(1).build()?;
/// (0..1_000).for_each(|key| drop(limiter.try_acquire(&key).into_result()));
/// let stats = limiter.stats();
/// assert_eq!(stats.evicted, 1_000 - stats.slots as u64);
/// assert_eq!(stats.forgiven_cost, stats.evicted);
/// println!("{} keys in {} bytes", stats.live_keys, stats.bytes);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are worth less than a fresh one just now. A key counts once for every four of its words: a
    /// rule has one, a sliding log one for each request that it remembers.
    pub live_keys: usize,
    /// Live keys there is room for.
    pub max_keys: usize,
    /// Words there is room for, in all.
    pub slots: usize,
    /// Memory of the table.
    pub bytes: usize,
    /// Live entries forgotten to make room ([`WhenFull::Evict`](crate::WhenFull::Evict)).
    pub evicted: u64,
    /// Of those, the ones that found no room when a limiter was [restored](crate::LimiterBuilder::restore).
    pub lost_in_restore: u64,
    /// Refusals that could not be counted towards a [lockout](crate::Penalties), because there was no room.
    pub lost_strikes: u64,
    /// Entries that had come to nothing by themselves, and whose place was given to another key.
    pub expired: u64,
    /// What the entries that were evicted had spent that still counted.
    pub forgiven_cost: u64,
    /// Requests refused because there was no room ([`WhenFull::Deny`](crate::WhenFull::Deny)).
    pub denied_for_room: u64,
    /// Requests that passed uncounted because there was no room ([`WhenFull::Allow`](crate::WhenFull::Allow)).
    pub allowed_for_room: u64,
    /// Requests that passed although a [shadow rule](crate::Rule::shadow) would have refused them, once a
    /// rule; by rule in [`DecisionStats::shadow_denied`], if decisions are counted.
    pub shadow_denied: u64,
    /// Decisions by what decided and how; empty unless they are
    /// [counted](crate::LimiterBuilder::count_decisions).
    pub decisions: Vec<DecisionStats>,
    /// How far one has to look for a key; zero unless decisions are counted.
    pub probes: Probes,
}

impl Stats {
    pub(crate) fn of(table: &Table, live_keys: usize, max_keys: usize) -> Self {
        let totals = table.totals();
        Self {
            live_keys,
            max_keys,
            slots: table.slots(),
            bytes: table.bytes(),
            evicted: totals.evicted,
            lost_in_restore: totals.lost_in_restore,
            lost_strikes: totals.lost_strikes,
            expired: totals.expired,
            forgiven_cost: totals.forgiven_cost,
            denied_for_room: totals.denied_for_room,
            allowed_for_room: totals.allowed_for_room,
            shadow_denied: totals.shadow_denied,
            decisions: Vec::new(),
            probes: Probes::default(),
        }
    }
}

/// How one rule has decided, or whatever else did.
///
/// A decision counts for the rule it [speaks of](crate::Decision::rule): the one that refused, or the one that
/// came nearest to it. Peeks are not counted, nor is [`Limiter::once`](crate::Limiter::once). Who waits is counted
/// once, at the end. What a [lease](crate::Lease) lets pass is counted when its batch is over.
///
/// ```
/// use tollgate::{Cause, Limiter};
///
/// let limiter = Limiter::builder().policy("5/h named api").count_decisions(true).build()?;
/// for cost in [3, 2, 1, 9] {
///     let _ = limiter.try_acquire_n("key", cost);
/// }
/// let api = &limiter.stats().decisions[0];
/// assert_eq!((&*api.rule, api.cause), ("api", Cause::Rule));
/// assert_eq!((api.allowed, api.near_limit, api.denied, api.never_fits), (2, 1, 1, 1));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionStats {
    /// The [tier](crate::LimiterBuilder::tier) whose rule it is; `None` for the limiter's own policy, and where no
    /// rule decided.
    pub tier: Option<Box<str>>,
    /// What decided.
    pub cause: Cause,
    /// The rule's name, else its place in the policy, counted from 0; empty where no rule decided.
    ///
    /// A name keeps its count when the [policy changes](crate::Limiter::set_policy), wherever the new one puts
    /// it, and rules that are no longer in force are still listed. Rules of the same name count as one.
    pub rule: String,
    /// Requests that passed.
    pub allowed: u64,
    /// Of those, the ones that left the rule [near its limit](crate::Decision::is_near_limit).
    pub near_limit: u64,
    /// Requests that did not pass.
    pub denied: u64,
    /// Requests that never could.
    pub never_fits: u64,
    /// Whether the rule only watches: a [shadow](crate::Rule::shadow) rule, which decides nothing.
    pub is_shadow: bool,
    /// Requests that passed although this rule, which only watches, would have refused them. They are counted
    /// as passed too, for the rule that let them.
    pub shadow_denied: u64,
}

/// How far one has to look for a key's state: of a sample of the requests (one in sixteen), those of keys that the
/// table has.
///
/// A key has a cache line of four places where it nearly always is. In a table that is as full as it may be, one in ten
/// is on another line, of the same bucket or of a second one, which is a line or more to read.
///
/// ```
/// use tollgate::Limiter;
///
/// let limiter = Limiter::builder().policy("1000/s").count_decisions(true).build()?;
/// for _ in 0..1_000 {
///     let _ = limiter.try_acquire("key");
/// }
/// let probes = limiter.stats().probes;
/// assert_eq!(probes.in_partner, 0); // an empty table has room where one looks first
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probes {
    /// On the line where it is looked for first.
    pub at_once: u64,
    /// On another line of the first bucket.
    pub in_home: u64,
    /// In the second bucket.
    pub in_partner: u64,
}
