//! The keyed limiter: a policy over one table of state words.

use crate::charge::{self, Cells, NoRoom};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::Error;
use crate::policy::{Compiled, Policy};
use crate::sync::{Fault, is_broken};
use crate::table::{Place, SlotRef, Table, WhenFull, Worth};
use ahash::RandomState;
use std::fmt;
use std::hash::Hash;

/// Room for this many live keys unless told otherwise: some 1.5 MB under a single rule.
const MAX_KEYS_DEFAULT: usize = 65_536;
/// Cells of one key that share a pair of buckets; the next ones go to another pair.
const CELLS_TOGETHER: usize = 4;
/// How many keys of a batch are looked up before the first is decided.
const BATCH: usize = 16;

/// A limit for each key, in fixed memory: `&self` everywhere, never waits, never allocates after build.
///
/// A key is anything that hashes. It is not stored: 64 bits of its hash find its state, so two keys with the
/// same hash would share one budget (see [`LimiterBuilder::seeds`] for how unlikely that is).
///
/// ```
/// use tollgate::Limiter;
///
/// let limiter = Limiter::new("100/min burst 20")?;
/// assert!(limiter.try_acquire("203.0.113.7").is_allowed());
/// assert_eq!(limiter.try_acquire_n(&(42, "upload"), 5).remaining(), 15);
/// # Ok::<(), tollgate::Error>(())
/// ```
pub struct Limiter {
    table: Table,
    compiled: Compiled,
    clock: Clock,
    hasher: RandomState,
    policy: Policy,
    max_keys: usize,
}

impl Limiter {
    /// A limiter with the defaults of [`Limiter::builder`].
    ///
    /// # Errors
    ///
    /// A text that does not parse, or a policy that [`Policy::validate`] refuses.
    pub fn new<P>(policy: P) -> Result<Self, Error>
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        Self::builder().policy(policy).build()
    }

    /// A limiter built step by step.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder {
            policy: None,
            max_keys: MAX_KEYS_DEFAULT,
            when_full: WhenFull::default(),
            clock: None,
            seeds: None,
            prefault: None,
        }
    }

    /// Takes one for `key`, or says when to come back.
    #[inline]
    pub fn try_acquire<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.try_acquire_n(key, 1)
    }

    /// Takes `cost` at once for `key`, or nothing. A cost of 0 always passes.
    #[inline]
    pub fn try_acquire_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        charge::acquire(&self.compiled, &self.cells(key), cost)
    }

    /// Takes one for each of `keys` and writes the decisions beside them. The time is read once for every 16.
    ///
    /// Reads ahead: while one key is decided, the next ones are already on their way from memory. Beyond the
    /// shorter of the two slices nothing is done; the number of decisions made is returned.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("2/s")?;
    /// let keys = ["a", "b", "a", "a"];
    /// let mut decisions = keys.map(|key| limiter.peek(key));
    /// assert_eq!(limiter.try_acquire_many(&keys, &mut decisions), 4);
    /// assert_eq!(decisions.map(|decision| decision.is_allowed()), [true, true, true, false]);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn try_acquire_many<K: Hash>(&self, keys: &[K], decisions: &mut [Decision]) -> usize {
        for (keys, decisions) in keys.chunks(BATCH).zip(decisions.chunks_mut(BATCH)) {
            let mut hashes = [0; BATCH];
            let mut touched = 0;
            for (key, hash) in keys.iter().zip(&mut hashes) {
                *hash = self.hasher.hash_one(key);
                touched ^= self.table.touch(self.table.place(*hash, 0));
            }
            // The loads above are the prefetch; without a use they would be left out.
            std::hint::black_box(touched);
            let mut now_ns = self.clock.now_ns();
            for ((_, hash), decision) in keys.iter().zip(hashes).zip(decisions) {
                *decision = charge::acquire_at(&self.compiled, &self.cells_of(hash), now_ns, 1);
                // Making room for a key takes a later time; a key that comes twice must not see it go back.
                now_ns = decision.at_ns();
            }
        }
        keys.len().min(decisions.len())
    }

    /// What [`try_acquire`](Self::try_acquire) would say, without taking anything.
    pub fn peek<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.peek_n(key, 1)
    }

    /// What [`try_acquire_n`](Self::try_acquire_n) would say, without taking anything.
    pub fn peek_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        charge::peek(&self.compiled, &self.cells(key), cost)
    }

    /// Gives back the newest `cost` that was taken for `key`, at most all of it.
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        charge::refund(&self.compiled, &self.cells(key), cost);
    }

    /// Forgets all that was taken for `key`.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        charge::reset(&self.compiled, &self.cells(key));
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What the table holds and what it has had to do. Walks the whole table: for a dashboard, not for every
    /// request.
    pub fn stats(&self) -> Stats {
        let worth = self.worth(self.clock.now_ns());
        let totals = self.table.totals();
        Stats {
            live_keys: self.table.live_keys(&worth),
            max_keys: self.max_keys,
            slots: self.table.slots(),
            bytes: self.table.bytes(),
            evicted: totals.evicted,
            forgiven_cost: totals.forgiven_cost,
            denied_for_room: totals.denied_for_room,
            allowed_for_room: totals.allowed_for_room,
        }
    }

    /// Begins to make room for `key` and stops for ever. Not part of the interface.
    #[cfg(any(test, tollgate_loom))]
    #[doc(hidden)]
    pub fn abandon<K: Hash + ?Sized>(&self, key: &K, after: crate::table::TakeoverStep) {
        let now_ns = self.clock.now_ns();
        self.table.abandon(self.cells(key).place(0), after, now_ns, &self.worth(now_ns));
    }

    /// A key's home bucket, its other one, and the way it prefers in either. Not part of the interface.
    #[cfg(tollgate_loom)]
    #[doc(hidden)]
    pub fn placement<K: Hash + ?Sized>(&self, key: &K) -> (usize, usize, usize) {
        self.table.placement(self.cells(key).place(0))
    }

    fn worth(&self, now_ns: u64) -> PolicyWorth<'_> {
        PolicyWorth { compiled: &self.compiled, clock: &self.clock, now_ns }
    }

    #[inline]
    fn cells<K: Hash + ?Sized>(&self, key: &K) -> TableCells<'_> {
        self.cells_of(self.hasher.hash_one(key))
    }

    #[inline]
    fn cells_of(&self, hash: u64) -> TableCells<'_> {
        TableCells { limiter: self, hash }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policy", &format_args!("{}", self.policy))
            .field("max_keys", &self.max_keys)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// One key's cells in the table.
struct TableCells<'t> {
    limiter: &'t Limiter,
    hash: u64,
}

impl TableCells<'_> {
    /// Where a cell lives: a few cells share their buckets, a long log spreads over more.
    #[inline(always)]
    fn place(&self, index: usize) -> Place {
        let group = (index / CELLS_TOGETHER) as u64;
        self.limiter.table.place(self.hash.wrapping_add(group.wrapping_mul(0x9e37_79b9_7f4a_7c15)), index)
    }
}

impl Cells for TableCells<'_> {
    type Cell<'a>
        = SlotRef<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn glance(&self, index: usize) -> Option<SlotRef<'_>> {
        self.limiter.table.glance(self.place(index))
    }

    fn find(&self, index: usize) -> Option<SlotRef<'_>> {
        self.limiter.table.find(self.place(index))
    }

    #[inline(never)]
    fn claim(&self, index: usize, now_ns: u64, may_displace: &mut bool) -> Result<SlotRef<'_>, NoRoom> {
        let worth = self.limiter.worth(now_ns);
        self.limiter.table.claim(self.place(index), now_ns, &worth, may_displace)
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        self.limiter.clock.now_ns()
    }
}

/// What the words of a policy are worth at a moment.
struct PolicyWorth<'p> {
    compiled: &'p Compiled,
    clock: &'p Clock,
    now_ns: u64,
}

impl Worth for PolicyWorth<'_> {
    fn reset_ns(&self, cell: usize, payload: u64) -> u64 {
        let plan = self.compiled.plan_of(cell);
        match plan.reset_ns(payload, self.now_ns) {
            // Before a word is called worthless, the time is read again: the first may have been read long
            // before the word, whose owner has spent since.
            0 if !is_broken(Fault::TrustsOldTime) => plan.reset_ns(payload, self.clock.now_ns()),
            reset_ns => reset_ns,
        }
    }

    fn spent(&self, cell: usize, payload: u64) -> u64 {
        self.compiled.plan_of(cell).spent(payload, self.now_ns)
    }
}

/// Builds a [`Limiter`].
///
/// ```
/// use tollgate::{Clock, Limiter, WhenFull};
///
/// let limiter = Limiter::builder()
///     .policy("100/min")
///     .max_keys(1_000_000)
///     .when_full(WhenFull::Deny)
///     .clock(Clock::precise())
///     .build()?;
/// assert_eq!(limiter.stats().max_keys, 1_000_000);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder {
    policy: Option<Result<Policy, Error>>,
    max_keys: usize,
    when_full: WhenFull,
    clock: Option<Clock>,
    seeds: Option<[u64; 4]>,
    prefault: Option<bool>,
}

impl LimiterBuilder {
    /// The policy: a [`Policy`], a [`Rule`](crate::Rule) or a text. Required.
    pub fn policy<P>(mut self, policy: P) -> Self
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        self.policy = Some(policy.try_into().map_err(Into::into));
        self
    }

    /// How many keys there is room for at the same time; 65 536 unless given.
    ///
    /// A key takes room only while it is worth less than a fresh one. All memory is taken at build: 24 bytes a
    /// key under one rule, 71 under two, 178 under three, and 100 for each request a longer log remembers.
    /// Tables of a few thousand keys are given twice that.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// What to do for a key that finds no room; [`WhenFull::Evict`] unless given.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Where time comes from; [`Clock::precise`] unless given.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Seeds for the hash, so that a run can be repeated; random for each limiter unless given.
    ///
    /// With random seeds nobody outside can aim two keys at the same place. Two keys share a budget when 35
    /// bits of their hashes and one of two buckets agree: among a million live keys the chance that any two
    /// do is 1 in 6 400.
    pub fn seeds(mut self, seeds: [u64; 4]) -> Self {
        self.seeds = Some(seeds);
        self
    }

    /// Whether to touch all memory at build, so that no later call waits for the system to provide a page.
    ///
    /// Unless given, tables of up to 256 MiB (some 11 million keys) are; a larger one grows into its memory as
    /// keys arrive, and a call that is the first to reach a page takes microseconds longer.
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = Some(prefault);
        self
    }

    /// Builds the limiter and takes all its memory.
    ///
    /// # Errors
    ///
    /// No policy, or one that does not parse or that [`Policy::validate`] refuses; a `max_keys` of 0 or
    /// beyond memory.
    pub fn build(self) -> Result<Limiter, Error> {
        let policy = self.policy.unwrap_or_else(|| Err(Error::new("a limiter needs a policy")))?;
        let compiled = policy.compile()?;
        if self.max_keys == 0 {
            return Err(Error::new("max_keys of 0 leaves no room for any key"));
        }
        let table = Table::new(self.max_keys, compiled.cells, self.when_full, self.prefault)?;
        let hasher = match self.seeds {
            Some([a, b, c, d]) => RandomState::with_seeds(a, b, c, d),
            None => RandomState::new(),
        };
        let clock = self.clock.unwrap_or_default();
        Ok(Limiter { table, compiled, clock, hasher, policy, max_keys: self.max_keys })
    }
}

/// What a limiter's table holds, and what it has had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are worth less than a fresh one just now. A sliding log counts once for each four requests
    /// it remembers.
    pub live_keys: usize,
    /// Live keys there is room for.
    pub max_keys: usize,
    /// Words there is room for, in all.
    pub slots: usize,
    /// Memory of the table.
    pub bytes: usize,
    /// Live entries forgotten to make room ([`WhenFull::Evict`]).
    pub evicted: u64,
    /// What those entries had spent that still counted.
    pub forgiven_cost: u64,
    /// Requests refused because there was no room ([`WhenFull::Deny`]).
    pub denied_for_room: u64,
    /// Requests that passed uncounted because there was no room ([`WhenFull::Allow`]).
    pub allowed_for_room: u64,
}
