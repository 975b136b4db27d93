//! The keyed limiter: policies over one table of state words.

use crate::algorithm::{Penalty, Step, Summary, View};
use crate::builder::LimiterBuilder;
use crate::cells::{PolicyWorth, TableCells};
#[cfg(feature = "tower")]
use crate::charge::Charged;
use crate::charge::{self, Cells, Seat};
use crate::clock::Clock;
use crate::compile::Compiled;
use crate::decision::{Cause, Decision, Denied, Outcome};
use crate::error::Error;
use crate::guard::{self, LIST_CELL, Listing, ONCE_CELL, PENALTY_CELL, whole_ns};
use crate::handle::KeyHandle;
use crate::horizon::Horizon;
use crate::lease::Lease;
use crate::permit::Permit;
use crate::policies::{Policies, SetNumber};
use crate::policy::Policy;
use crate::reserve::Line;
#[cfg(feature = "tower")]
use crate::reserve::{spend_beyond, spend_what_fits};
use crate::sync::{AtomicU64, Fault, Ordering, is_broken};
use crate::table::Table;
use crate::tier::Tier;
#[cfg(feature = "tower")]
use crate::tower::Spent;
use crate::trace;
use crate::watch::Watch;
use ahash::RandomState;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many keys of a batch are on their way from memory before the first is decided.
const BATCH: usize = 16;

/// Something other than the policy of the build has a say: lists, ...
pub(crate) const LISTS: u64 = 1;
/// ... lockouts, ...
pub(crate) const PENALTIES: u64 = 2;
/// ... another policy, ...
const CHANGED: u64 = 4;
/// ... somebody who is told of refusals, ...
pub(crate) const TOLD: u64 = 8;
/// ... or somebody who counts what is decided.
pub(crate) const COUNTED: u64 = 16;
/// Resets are counted for so many parts of the keys; a model has one.
pub(crate) const FORGETS: usize = if cfg!(tollgate_loom) { 1 } else { 64 };

/// A limit for each key, in fixed memory: `&self` everywhere, never waits, never allocates after build.
///
/// Build it once and share it, in an [`Arc`] or a `static`: a limiter that is built for each request remembers
/// nothing.
///
/// A key is anything that hashes. It is not stored: 64 bits of its hash find its state, so two keys with the
/// same hash would share one budget (see [`LimiterBuilder::seeds`] for how unlikely that is). What hashes
/// differently is another key: a `String` and its `&str` are the same, `7_u32` and `7_u64` need not be, nor an
/// address as text and as [`IpAddr`](std::net::IpAddr).
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
    pub(crate) table: Table,
    pub(crate) policies: Policies,
    pub(crate) clock: Clock,
    pub(crate) hasher: RandomState,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) horizon: Horizon,
    pub(crate) line: Line,
    /// When every key had used up everything, as far as anybody knows.
    pub(crate) spent_at_ns: Option<u64>,
    /// How often keys were reset: counted for each part of them, so that a lease seldom takes another key's reset
    /// for its own.
    pub(crate) forgets: Box<[AtomicU64]>,
    /// Held by whoever changes a policy: the set from which words are yet to be cut down.
    pub(crate) unamended: Mutex<Option<SetNumber>>,
    /// What else has a say than the policy of the build; 0 if nothing has.
    pub(crate) special: AtomicU64,
    pub(crate) seeds: [u64; 4],
    pub(crate) max_keys: usize,
    pub(crate) watch: Watch,
}

impl Limiter {
    /// A limiter with the defaults of [`Limiter::builder`].
    ///
    /// ```
    /// use tollgate::{Limiter, Rule};
    ///
    /// let by_text = Limiter::new("100/min burst 20")?;
    /// let by_code = Limiter::new(Rule::per_minute(100).burst(20))?;
    /// assert_eq!(by_text.policy(), by_code.policy());
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
        Self::builder().policy(policy).build()
    }

    /// A limiter built step by step.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().policy("100/min").max_keys(10_000).build()?;
    /// assert!(limiter.try_acquire("203.0.113.7").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Takes one for `key`, or says when to come back.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1/min")?;
    /// assert!(limiter.try_acquire("203.0.113.7").is_allowed());
    /// let refused = limiter.try_acquire("203.0.113.7");
    /// println!("come back in {:?}", refused.retry_after());
    /// assert!(refused.is_denied());
    /// assert!(limiter.try_acquire("198.51.100.2").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline(always)]
    pub fn try_acquire<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.try_acquire_n(key, 1)
    }

    /// Takes `cost` at once for `key`, or nothing.
    ///
    /// A cost of 0 passes every rule and needs no room, even when the limiter is [closed](Self::close); a deny list
    /// or a lockout refuses it all the same.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/min")?;
    /// assert!(limiter.try_acquire_n("key", 8).is_allowed());
    /// assert!(limiter.try_acquire_n("key", 3).is_denied()); // and takes nothing
    /// assert!(limiter.try_acquire_n("key", 2).is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline(always)]
    pub fn try_acquire_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        let cells = self.cells(key);
        cells.prefetch();
        self.spend(&cells, cost)
    }

    /// Takes one for each of `keys` and writes the decisions beside them. The time is read once for every 16.
    ///
    /// Reads ahead: while one key is decided, the next ones are already on their way from memory. Beyond the
    /// shorter of the two slices nothing is done; the number of decisions made is returned. What is in the slice
    /// before does not matter: `vec![limiter.peek(&keys[0]); keys.len()]` will do, kept for the next batch.
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
            for ((key, hash), _) in keys.iter().zip(&mut hashes).zip(decisions.iter()) {
                *hash = self.hasher.hash_one(key);
                self.cells_of(*hash).prefetch();
            }
            let mut now_ns = self.clock.now_ns();
            for (hash, decision) in hashes.iter().zip(decisions).take(keys.len()) {
                now_ns = self.spend_into(decision, &self.cells_of(*hash), now_ns);
            }
        }
        keys.len().min(decisions.len())
    }

    /// Begins one piece of work for `key`, or says why not: the permit ends it when dropped.
    ///
    /// Spends under every rule like [`try_acquire`](Self::try_acquire), and takes one of the places of a rule of
    /// [so many at once](crate::Rule::at_once) too, which `try_acquire` only asks for.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("100/s; 2 at once")?;
    /// let first = limiter.try_start("tenant")?;
    /// let second = limiter.try_start("tenant")?;
    /// assert!(limiter.try_start("tenant").is_err());
    /// drop(first);
    /// assert!(limiter.try_start("tenant").is_ok());
    /// # drop(second);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`] unless it may begin; nothing is spent then.
    pub fn try_start<K: Hash + ?Sized>(&self, key: &K) -> Result<Permit<'_>, Denied> {
        self.try_start_n(key, 1)
    }

    /// The same for work that costs `cost` under the other rules. It takes one place all the same.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("100/h; 2 at once")?;
    /// let work = limiter.try_start_n("tenant", 60)?;
    /// assert!(limiter.try_start_n("tenant", 60).is_err()); // there is a place, but no budget
    /// assert!(limiter.try_start_n("tenant", 40).is_ok());
    /// drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_start`](Self::try_start).
    pub fn try_start_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Result<Permit<'_>, Denied> {
        let cells = self.cells(key);
        let (decision, place) = self.decide(0, &cells, self.clock.now_ns(), cost, Seat::Take);
        decision.into_result().map(|decision| Permit::new(self.into(), cells.hash(), place, decision))
    }

    /// The same with a permit that can be sent anywhere.
    ///
    /// ```
    /// use std::{sync::Arc, thread};
    /// use tollgate::Limiter;
    ///
    /// let limiter = Arc::new(Limiter::new("1 at once")?);
    /// let permit = limiter.try_start_owned("report")?;
    /// let worker = thread::spawn(move || drop(permit)); // the work ends there
    /// worker.join().expect("it does not panic");
    /// assert!(limiter.try_start("report").is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_start`](Self::try_start).
    pub fn try_start_owned<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> Result<Permit<'static>, Denied> {
        let cells = self.cells(key);
        let (decision, place) = self.decide(0, &cells, self.clock.now_ns(), 1, Seat::Take);
        decision
            .into_result()
            .map(|decision| Permit::new(Arc::clone(self).into(), cells.hash(), place, decision))
    }

    /// Lets a request pass the first time, and refuses its repeats until `window` has gone: a guard against
    /// double submission. At most 208 days.
    ///
    /// The mark is beside all rules: it neither spends under them nor asks them.
    ///
    /// ```
    /// use std::time::Duration;
    /// let limiter = tollgate::Limiter::new("100/min")?;
    /// let window = Duration::from_secs(5);
    /// assert!(limiter.once(&("alice", "order 7"), window).is_allowed());
    /// assert!(limiter.once(&("alice", "order 7"), window).is_denied());
    /// assert!(limiter.once(&("alice", "order 8"), window).is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn once<K: Hash + ?Sized>(&self, id: &K, window: Duration) -> Decision {
        charge::take_mark(&self.cells(id), ONCE_CELL, self.clock.now_ns(), whole_ns(window))
    }

    /// What [`try_acquire`](Self::try_acquire) would say, without taking anything.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("2/s")?;
    /// assert_eq!(limiter.peek("key").remaining(), 2);
    /// assert!(limiter.try_acquire_n("key", 2).is_allowed());
    /// assert!(limiter.peek("key").is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peek<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.peek_n(key, 1)
    }

    /// What [`try_acquire_n`](Self::try_acquire_n) would say, without taking anything.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/min")?;
    /// assert!(limiter.peek_n("key", 10).is_allowed());
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// assert!(limiter.peek_n("key", 10).is_denied());
    /// assert_eq!(limiter.peek_n("key", 0).remaining(), 9);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peek_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.look(0, &self.cells(key), cost)
    }

    /// Gives back the newest `cost` that was taken for `key`, at most all of it.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("2/h")?;
    /// assert!(limiter.try_acquire_n("key", 2).is_allowed());
    /// limiter.refund("key", 1); // the work was cheaper than it looked
    /// assert_eq!(limiter.peek("key").remaining(), 1);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        charge::refund(self.compiled(0), &self.cells(key), cost);
    }

    /// Gives back `left` of what was spent for `key`, as far as it still counts: what was taken since stays. A tier
    /// goes by its own policy.
    #[cfg(feature = "tower")]
    pub(crate) fn undo(&self, key: u64, tier: Option<&str>, left: u64, spent: &Spent) {
        let left = left.min(spent.cost);
        if left > 0 {
            let Spent { cost, at_ns, until_ns, with_shadows } = *spent;
            let (policy, cells) = (self.compiled_for(tier), self.cells(&key));
            let charged = Charged::all(policy, with_shadows, (at_ns, until_ns));
            charge::undo(policy, &cells, left, cost, charged);
        }
    }

    /// Spends what has been used already, whether it fits or not, as far as the policy can: nobody asked, so
    /// nothing is counted as decided.
    #[cfg(feature = "tower")]
    pub(crate) fn spend_anyway(&self, key: u64, tier: Option<&str>, extra: u64) {
        let (policy, cells) = (self.compiled_for(tier), self.cells(&key));
        if self.above_rules(&cells, cells.now_ns(), extra).is_none() {
            match policy.only_bucket {
                Some(bucket) if tier.is_none() => spend_beyond(&bucket, &cells, extra),
                _ => spend_what_fits(policy, &cells, extra),
            }
        }
    }

    #[cfg(feature = "tower")]
    fn compiled_for(&self, tier: Option<&str>) -> &Compiled {
        match tier.and_then(|name| self.tier(name)) {
            Some(tier) => tier.compiled(),
            None => self.compiled(0),
        }
    }

    /// Forgets all that was taken for `key`, and its lockouts; [lists](Self::unlist) stay as they are.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1/h")?;
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// limiter.reset("key");
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        let cells = self.cells(key);
        self.forget(0, &cells, cells.hash());
    }

    /// Lets every request for `key` pass, whatever the rules say, until it is [taken off](Self::unlist).
    ///
    /// A list entry takes room in the table like a key, and is never forgotten.
    ///
    /// ```
    /// use tollgate::{Cause, Limiter};
    ///
    /// let limiter = Limiter::new("1/h")?;
    /// limiter.allow("monitoring")?;
    /// assert!(limiter.try_acquire_n("monitoring", 1_000).is_allowed());
    /// limiter.deny("mallory")?;
    /// assert_eq!(limiter.try_acquire("mallory").cause(), Cause::List);
    /// limiter.unlist("mallory");
    /// assert!(limiter.try_acquire("mallory").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No room in the table.
    pub fn allow<K: Hash + ?Sized>(&self, key: &K) -> Result<(), Error> {
        self.list(key, guard::ALLOWED)
    }

    /// Refuses every request for `key` until it is [taken off](Self::unlist).
    ///
    /// ```
    /// use tollgate::{Cause, Limiter};
    ///
    /// let limiter = Limiter::new("100/min")?;
    /// limiter.deny("mallory")?;
    /// let refused = limiter.try_acquire("mallory");
    /// assert_eq!((refused.cause(), refused.retry_after()), (Cause::List, None));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No room in the table.
    pub fn deny<K: Hash + ?Sized>(&self, key: &K) -> Result<(), Error> {
        self.list(key, guard::denied_word(self.clock.now_ns(), u64::MAX))
    }

    /// Refuses every request for `key` for so long.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let limiter = Limiter::builder().policy("100/min").clock(clock).build()?;
    /// limiter.deny_for("mallory", Duration::from_secs(600))?;
    /// assert!(limiter.try_acquire("mallory").is_denied());
    /// hand.advance(Duration::from_secs(601));
    /// assert!(limiter.try_acquire("mallory").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No room in the table.
    pub fn deny_for<K: Hash + ?Sized>(&self, key: &K, time: Duration) -> Result<(), Error> {
        self.list(key, guard::denied_word(self.clock.now_ns(), whole_ns(time)))
    }

    /// Takes `key` off whichever list it is on.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("100/min")?;
    /// limiter.deny("mallory")?;
    /// limiter.unlist("mallory");
    /// assert!(limiter.try_acquire("mallory").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn unlist<K: Hash + ?Sized>(&self, key: &K) {
        let cells = self.cells(key);
        if charge::note(&cells, LIST_CELL).is_some() {
            charge::set_note(&cells, LIST_CELL, guard::UNLISTED);
        }
    }

    fn list<K: Hash + ?Sized>(&self, key: &K, word: u64) -> Result<(), Error> {
        if !charge::set_note(&self.cells(key), LIST_CELL, word) {
            return Err(Error::new("there is no room in the table for another list entry"));
        }
        // Release: whoever sees the flag finds the entry.
        self.special.fetch_or(LISTS, Ordering::Release);
        Ok(())
    }

    /// A key that is asked for again and again: what finds its state is kept.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("100/min")?;
    /// let connection = limiter.key("203.0.113.7"); // hashed here, once
    /// for _request in 0..100 {
    ///     assert!(connection.try_acquire().is_allowed());
    /// }
    /// assert!(limiter.try_acquire("203.0.113.7").is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> KeyHandle<'_> {
        KeyHandle::new(self, self.hasher.hash_one(key))
    }

    /// Tokens of `key` for one thread, taken `batch` at a time, so that many cores do not meet at one word.
    /// See [`Lease`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1000000/s burst 10000")?;
    /// std::thread::scope(|threads| {
    ///     for _ in 0..2 {
    ///         threads.spawn(|| {
    ///             let mut lease = limiter.lease("everybody", 100);
    ///             assert!((0..500).all(|_| lease.try_acquire().is_allowed()));
    ///         });
    ///     }
    /// });
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn lease<K: Hash + ?Sized>(&self, key: &K, batch: u64) -> Lease<'_> {
        Lease::new(self, self.hasher.hash_one(key), batch)
    }

    /// The policies of one of the tiers given at [build](LimiterBuilder::tier); `None` if there is none of that
    /// name.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().policy("10/min").tier("premium", "1000/min").build()?;
    /// let tier_of = |user: &str| if user == "bob" { "premium" } else { "" };
    /// let decision = match limiter.tier(tier_of("bob")) {
    ///     Some(tier) => tier.try_acquire("bob"),
    ///     None => limiter.try_acquire("bob"),
    /// };
    /// assert_eq!(decision.remaining(), 999);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier(&self, name: &str) -> Option<Tier<'_>> {
        let tiers = &self.policies.first().tiers;
        tiers.iter().position(|tier| tier.name.as_deref() == Some(name)).map(|index| Tier::new(self, index))
    }

    /// Puts another policy in force, for all that is decided from then on: others may go on meanwhile, and each
    /// request goes by the one or the other.
    ///
    /// A rule goes on counting where one of the same algorithm and period was: a raised limit grants what it was
    /// raised by, a lowered one leaves nothing until enough has been forgotten (a lowered log forgets all but as many
    /// of the requests it remembers as it now counts). Token buckets go on with each
    /// other whatever their period and keep the time until a key is fresh again, but no longer than the new rule
    /// could make it wait; so raising a rate grants nothing for the past, and lowering it leaves nobody stuck.
    /// (Buckets of more than 7 600 a second count in finer units, and do not go on with slower ones. Windows go on
    /// unless a count of millions takes more of the word, a sliding log up to four times its count, or 64.) A rule of any other kind begins with nothing spent.
    ///
    /// Whoever has [booked](Self::reserve) or waits keeps its moment, earlier or later than the new policy would have
    /// it; what it gives back goes back, unless the change has cut it down.
    ///
    /// The table keeps its size: under more rules there is room for fewer keys than were asked for at build. Each
    /// different policy is kept as long as the limiter, so one that adapts should choose among some thousands.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("2/min")?;
    /// assert!(limiter.try_acquire_n("key", 2).is_allowed());
    /// limiter.set_policy("4/min")?;
    /// assert!(limiter.try_acquire("key").is_denied());
    /// assert!(limiter.try_acquire_n("other", 4).is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A text that does not parse, a policy that [`Policy::validate`] refuses or of which the table does not have room
    /// for one key, more than 64 kinds of rules or 16 383 different policies in all: the old one stays in force.
    pub fn set_policy<P>(&self, policy: P) -> Result<(), Error>
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        self.change_policy(0, &policy.try_into().map_err(Into::into)?)
    }

    pub(crate) fn change_policy(&self, tier: usize, policy: &Policy) -> Result<(), Error> {
        self.put_policy(tier, policy)?;
        self.amend();
        Ok(())
    }

    /// The first half of a change: from here on it is decided by the new policy.
    pub(crate) fn put_policy(&self, tier: usize, policy: &Policy) -> Result<(), Error> {
        let flag = || {
            // Relaxed: published with the policy; whoever has seen that goes by it.
            self.special.fetch_or(CHANGED, Ordering::Relaxed);
        };
        if !is_broken(Fault::FlagsLate) {
            flag();
        }
        // One at a time, with its second half: what the one cuts words down to is what the next one cuts them down from.
        let mut unamended = self.unamended.lock().unwrap_or_else(PoisonError::into_inner);
        self.amend_from(&mut unamended);
        let number = self.policies.number();
        let before = &self.policies.current().tiers[tier];
        if self.policies.change(tier, policy, self.table.slots())? {
            *unamended = Some(number);
        }
        if is_broken(Fault::FlagsLate) {
            flag();
        }
        // Even if it looks like no change: another may have come between the look and this one.
        if let Some(counts) = &self.watch.counts {
            counts.follow(&self.policies);
        }
        if before.policy != *policy {
            trace::policy_changed(self.name(), before.name.as_deref(), &before.policy, policy);
        }
        Ok(())
    }

    /// The second half: a walk through the whole table.
    pub(crate) fn amend(&self) {
        self.amend_from(&mut self.unamended.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What earlier rules left behind must not make anybody wait for longer than the new ones can.
    fn amend_from(&self, unamended: &mut Option<SetNumber>) {
        let (Some(before), set) = (unamended.take(), self.policies.current()) else { return };
        let set_before = self.policies.numbered(before);
        self.table.amend(|cell, word| {
            let (plan, now_ns) = (set.plan_of(cell)?, self.clock.now_ns());
            let before = set_before.plan_of(cell)?.booked(self.horizon.ns(now_ns));
            let next = plan.beside(&before).cut_down(&before, word, now_ns);
            // And what an even earlier one has left.
            let plan = plan.booked(self.horizon.ns(now_ns));
            let next = if plan.is_doubtful(next, now_ns) { plan.settled(next, now_ns) } else { next };
            (next != word).then_some(next)
        });
    }

    /// The policy in force.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("100 per minute, please".replace(", please", ""))?;
    /// assert_eq!(limiter.policy().to_string(), "100/min");
    /// limiter.set_policy("200/min")?;
    /// assert_eq!(limiter.policy().to_string(), "200/min");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn policy(&self) -> &Policy {
        &self.policies.current().tiers[0].policy
    }

    /// Begins to make room for `key` and stops for ever. Not part of the interface.
    #[cfg(any(test, tollgate_loom))]
    #[doc(hidden)]
    pub fn abandon<K: Hash + ?Sized>(&self, key: &K, after: crate::table::TakeoverStep) {
        self.table.abandon(self.cells(key).place(0), after, &self.worth());
    }

    /// A key's home bucket, its other one, and the way it prefers. Not part of the interface.
    #[cfg(tollgate_loom)]
    #[doc(hidden)]
    pub fn placement<K: Hash + ?Sized>(&self, key: &K) -> (usize, usize, usize) {
        self.table.placement(self.cells(key).place(0))
    }

    pub(crate) fn worth(&self) -> PolicyWorth<'_> {
        PolicyWorth { limiter: self }
    }

    #[inline]
    pub(crate) fn cells<K: Hash + ?Sized>(&self, key: &K) -> TableCells<'_> {
        self.cells_of(self.hasher.hash_one(key))
    }

    #[inline]
    pub(crate) fn cells_of(&self, hash: u64) -> TableCells<'_> {
        TableCells::new(self, hash)
    }

    /// The policy in force for a tier.
    pub(crate) fn compiled(&self, tier: usize) -> &Compiled {
        &self.policies.current().tiers[tier].compiled
    }

    /// Spends under the first tier.
    #[inline(always)]
    pub(crate) fn spend(&self, cells: &impl Cells, cost: u64) -> Decision {
        // Relaxed: what the flags stand for is read with more care, and being a moment late is being early.
        let special = self.special.load(Ordering::Relaxed);
        if special != 0 {
            return self.spend_specially(special, &{ *cells }, cost);
        }
        charge::acquire(&self.policies.at_build, cells, cost)
    }

    /// Spends one at a time that was read before, and writes the decision where it belongs: to make it elsewhere and copy it
    /// takes longer than to decide. Returns the time that was decided by.
    #[inline(always)]
    fn spend_into(&self, decision: &mut Decision, cells: &TableCells<'_>, now_ns: u64) -> u64 {
        let policy = &self.policies.at_build;
        // Relaxed: as above.
        if self.special.load(Ordering::Relaxed) == 0 {
            let spent = cells.on_line().and_then(|cell| charge::acquire_plainly_at(policy, &cell, now_ns, 1));
            if let Some((outcome, debt_units)) = spent {
                *decision = policy.bucket.decision(0, outcome, debt_units, now_ns, 1);
                return now_ns;
            }
        }
        *decision = self.spend_at(&{ *cells }, now_ns);
        // Making room for a key takes a later time; a key that comes twice must not see it go back.
        decision.at_ns()
    }

    #[inline(never)]
    fn spend_at(&self, cells: &impl Cells, now_ns: u64) -> Decision {
        // Relaxed: as above.
        if self.special.load(Ordering::Relaxed) != 0 {
            return self.decide(0, cells, now_ns, 1, Seat::Ask).0;
        }
        charge::acquire_at(&self.policies.at_build, cells, now_ns, 1)
    }

    /// Spends under a tier, with everything that has a say.
    #[cold]
    #[inline(never)]
    pub(crate) fn decide(
        &self,
        tier: usize,
        cells: &impl Cells,
        now_ns: u64,
        cost: u64,
        seat: Seat,
    ) -> (Decision, Option<usize>) {
        if let Some(verdict) = self.above_rules(cells, now_ns, cost) {
            self.note(tier, cells, &verdict);
            return (verdict, None);
        }
        let compiled = self.compiled(tier);
        let (decision, taken) = match seat {
            // The broken variant goes by the old policy's first rule and by the new one's others.
            Seat::Ask if is_broken(Fault::MixesPolicies) => {
                let mixed = compiled.mixed_with(self.compiled(tier));
                (charge::acquire_at(&mixed, cells, now_ns, cost), None)
            }
            Seat::Ask => (charge::acquire_at(compiled, cells, now_ns, cost), None),
            Seat::Take => charge::acquire_all(compiled, cells, now_ns, cost, seat),
        };
        if let (Some(penalty), Outcome::Denied, Cause::Rule) =
            (&self.penalty, decision.outcome(), decision.cause())
        {
            charge::strike(penalty, cells, PENALTY_CELL);
        }
        self.note(tier, cells, &decision);
        (decision, taken)
    }

    /// What a tier would decide.
    pub(crate) fn look(&self, tier: usize, cells: &impl Cells, cost: u64) -> Decision {
        let now_ns = cells.now_ns();
        self.above_rules(cells, now_ns, cost)
            .unwrap_or_else(|| charge::peek(self.compiled(tier), cells, now_ns, cost))
    }

    pub(crate) fn forget(&self, tier: usize, cells: &impl Cells, hash: u64) {
        // Release: whoever sees it knows that the words may be others than it left.
        self.forgets_of(hash).fetch_add(1, Ordering::Release);
        // What was booked before is not there to be given back any more.
        self.line.forgetting(hash, || charge::reset(self.compiled(tier), cells));
        if self.penalty.is_some() && charge::note(cells, PENALTY_CELL).is_some() {
            charge::set_note(cells, PENALTY_CELL, 0);
        }
    }

    /// How often a key was reset, or others that are counted with it.
    pub(crate) fn forgets_of(&self, hash: u64) -> &AtomicU64 {
        #[allow(clippy::cast_possible_truncation, reason = "less than the number of parts")]
        &self.forgets[(hash % FORGETS as u64) as usize]
    }

    /// What lists and lockouts say of a key, if they say anything.
    pub(crate) fn above_rules(&self, cells: &impl Cells, now_ns: u64, cost: u64) -> Option<Decision> {
        // Acquire: an entry is in its place before the flag is up.
        if self.special.load(Ordering::Acquire) & (LISTS | PENALTIES) == 0 {
            return None;
        }
        let say = |outcome, cause, summary| {
            Some(Decision::new(outcome, 0, None, View::Summary(summary), now_ns, cost).because(cause))
        };
        let refused = |wait_ns, reset_ns| Summary { limit: 0, remaining: 0, wait_ns, reset_ns };
        match charge::note(cells, LIST_CELL).and_then(|word| guard::listing(word, now_ns)) {
            Some(Listing::Allow) => {
                let unlimited = Summary { limit: u64::MAX, remaining: u64::MAX, wait_ns: 0, reset_ns: 0 };
                return say(Outcome::Allowed, Cause::List, unlimited);
            }
            Some(Listing::Deny { left_ns }) => {
                return say(Outcome::Denied, Cause::List, refused(left_ns, left_ns));
            }
            None => {}
        }
        let penalty = self.penalty.as_ref()?;
        let word = charge::note(cells, PENALTY_CELL)?;
        match penalty.locked_ns(word, now_ns) {
            0 => None,
            locked_ns => {
                say(Outcome::Denied, Cause::Penalty, refused(locked_ns, penalty.reset_ns(word, now_ns)))
            }
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policy", &format_args!("{}", self.policy()))
            .field("max_keys", &self.max_keys)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
