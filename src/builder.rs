//! How a limiter is built.

use crate::clock::Clock;
use crate::counts::Counts;
use crate::error::Error;
use crate::guard::Penalties;
use crate::horizon::Horizon;
use crate::limiter::{COUNTED, FORGETS, Limiter, PENALTIES, TOLD};
use crate::policies::Policies;
use crate::policy::Policy;
use crate::reserve::Line;
use crate::snapshot::Snapshot;
use crate::sync::AtomicU64;
use crate::table::{Table, WhenFull};
use crate::trace::Refusals;
use crate::watch::Watch;
use ahash::RandomState;
use std::sync::Mutex;

/// Room for this many live keys unless told otherwise: some 1.5 MB under a single rule.
const MAX_KEYS_DEFAULT: usize = 65_536;

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
    tiers: Vec<(Box<str>, Result<Policy, Error>)>,
    penalties: Option<Penalties>,
    max_keys: usize,
    when_full: WhenFull,
    clock: Option<Clock>,
    seeds: Option<[u64; 4]>,
    prefault: Option<bool>,
    restore: Option<Result<Snapshot, Error>>,
    after_crash: bool,
    name: Option<Box<str>>,
    count_decisions: bool,
    refusals: Refusals,
}

impl Default for LimiterBuilder {
    fn default() -> Self {
        Self {
            policy: None,
            tiers: Vec::new(),
            penalties: None,
            max_keys: MAX_KEYS_DEFAULT,
            when_full: WhenFull::default(),
            clock: None,
            seeds: None,
            prefault: None,
            restore: None,
            after_crash: false,
            name: None,
            count_decisions: false,
            refusals: Refusals::default(),
        }
    }
}

impl LimiterBuilder {
    /// The policy: a [`Policy`], a [`Rule`](crate::Rule) or a text. Required.
    ///
    /// ```
    /// use tollgate::{Limiter, Rule};
    ///
    /// let limiter = Limiter::builder().policy(Rule::per_second(10)).build()?;
    /// let error = Limiter::builder().policy("10/sec/user").build().unwrap_err();
    /// assert!(error.to_string().starts_with("column 7: "));
    /// assert!(Limiter::builder().build().is_err()); // without a policy
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn policy<P>(mut self, policy: P) -> Self
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        self.policy = Some(policy.try_into().map_err(Into::into));
        self
    }

    /// One more policy over the same keys, by name: see [`Limiter::tier`].
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().policy("10/min").tier("premium", "1000/min").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// assert!(premium.try_acquire_n("bob", 500).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier<P>(mut self, name: impl Into<Box<str>>, policy: P) -> Self
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        self.tiers.push((name.into(), policy.try_into().map_err(Into::into)));
        self
    }

    /// Lockouts for keys that are refused again and again; none unless given. A refusal then writes, and takes the
    /// room of one rule more: where there is none, it is not counted ([`Stats::lost_strikes`](crate::Stats)).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Cause, Limiter, Penalties};
    ///
    /// let lockouts = Penalties::new([Duration::from_secs(60), Duration::from_secs(3_600)]);
    /// let limiter = Limiter::builder().policy("1/s").penalties(lockouts).build()?;
    /// assert!(limiter.try_acquire("mallory").is_allowed());
    /// assert!(limiter.try_acquire("mallory").is_denied());
    /// assert_eq!(limiter.try_acquire("mallory").cause(), Cause::Penalty);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn penalties(mut self, penalties: Penalties) -> Self {
        self.penalties = Some(penalties);
        self
    }

    /// How many keys there is room for at the same time; 65 536 unless given.
    ///
    /// A key takes room only while it is worth less than a fresh one. All memory is taken at build: 24 bytes a
    /// key under one rule, 71 under two, 178 under three, and 100 for each request a longer log remembers.
    /// Tables of a few thousand keys are given twice that. [Lockouts](Self::penalties) take the room of a rule more.
    /// List entries and the marks of [`Limiter::once`] take the room of a key each, for as long as they last: count
    /// them among the keys.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().policy("100/min").max_keys(1_000_000).build()?;
    /// let bytes_a_key = limiter.stats().bytes / limiter.stats().max_keys;
    /// assert!((23..=25).contains(&bytes_a_key), "{bytes_a_key}");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// What to do for a key that finds no room; [`WhenFull::Evict`] unless given.
    ///
    /// ```
    /// use tollgate::{Cause, Limiter, WhenFull};
    ///
    /// let limiter = Limiter::builder().policy("1/h").max_keys(1).when_full(WhenFull::Deny).build()?;
    /// let crowd: Vec<_> = (0..1_000).map(|key| limiter.try_acquire(&key)).collect();
    /// assert!(crowd.iter().any(|decision| decision.cause() == Cause::NoRoom));
    /// assert!(limiter.stats().denied_for_room > 0);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Where time comes from; [`Clock::precise`] unless given.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let limiter = Limiter::builder().policy("1/min").clock(clock).build()?;
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// hand.advance(Duration::from_secs(60));
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Seeds for the hash, so that a run can be repeated; random for each limiter unless given.
    ///
    /// With random seeds nobody outside can aim two keys at the same place. Two keys share a budget when 34
    /// bits of their hashes and their buckets agree: among a million live keys the chance that any two
    /// do is 1 in 1 600.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let build = || Limiter::builder().policy("1/h").max_keys(1).seeds([1, 2, 3, 4]).build();
    /// let evicted = |limiter: Limiter| {
    ///     (0..1_000).for_each(|key| drop(limiter.try_acquire(&key).into_result()));
    ///     limiter.stats().evicted
    /// };
    /// assert_eq!(evicted(build()?), evicted(build()?)); // every run the same
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn seeds(mut self, seeds: [u64; 4]) -> Self {
        self.seeds = Some(seeds);
        self
    }

    /// Whether to touch all memory at build, so that no later call waits for the system to provide a page.
    ///
    /// Unless given, tables of up to 256 MiB (some 11 million keys) are; a larger one grows into its memory as
    /// keys arrive, and a call that is the first to reach a page takes microseconds longer. Memory that is touched at
    /// build is on huge pages where the system has them, which makes large tables faster.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// // For a short-lived process, or a table that is never filled.
    /// let limiter = Limiter::builder().policy("100/min").max_keys(1_000_000).prefault(false).build()?;
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = Some(prefault);
        self
    }

    /// Begins with what was written down by [`Limiter::snapshot`] or [`Limiter::close`], instead of afresh.
    ///
    /// The limiter has to be built with the same `max_keys` and with the policies that were in force, for all
    /// tiers. The seeds are taken from the snapshot. The rest is free: what to do for a key that finds no
    /// room, lockouts (whose state is kept if there are any), the clock.
    ///
    /// The time since the snapshot counts as passed, by the clock of the build: real clocks go by the
    /// system's time, so a system clock that was moved forward in between forgives as much as it was moved.
    /// If it went back, or is a manual one that begins at zero, no time has passed: every key owes what it
    /// owed then, and what was spent in a window counts until as much time has passed as was left of it, or
    /// up to a window longer.
    ///
    /// Everything has the room that it had. An exception are policies of more than four words a key (sliding
    /// logs, above all) that were put in force by [`Limiter::set_policy`]: where their words belong in a new
    /// table is not known for certain, so they take up to four times the room until they have come to
    /// nothing. What finds none is forgotten and counted in [`Stats::evicted`](crate::Stats::evicted); under [`WhenFull::Deny`] it
    /// is an error.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let limiter = Limiter::builder().policy("2/min").clock(clock.clone()).build()?;
    /// assert!(limiter.try_acquire_n("alice", 2).is_allowed());
    /// let bytes = limiter.close();
    ///
    /// hand.advance(Duration::from_secs(20));
    /// let limiter = Limiter::builder().policy("2/min").clock(clock).restore(&bytes).build()?;
    /// assert_eq!(limiter.try_acquire("alice").retry_after(), Some(Duration::from_secs(10)));
    ///
    /// let error = Limiter::builder().policy("5/min").restore(&bytes).build().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "the snapshot was taken under another policy: `2/min`, and this limiter has `5/min`",
    /// );
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn restore(mut self, bytes: &[u8]) -> Self {
        self.restore = Some(Snapshot::read(bytes));
        self.after_crash = false;
        self
    }

    /// The same where the process was killed some time after its last [`snapshot`](Limiter::snapshot), and nobody
    /// knows what was admitted in between: every key begins with nothing left, and gets what its rules give from
    /// then on. So no key gets more over the whole run than its bound, however long the gap.
    ///
    /// That holds for keys that are not in the snapshot too, which may have come and spent everything since; and for
    /// as long as a rule remembers: under `100/min` the first request passes after 0.6 seconds, under `1000/day`
    /// after 86, under `fixed 5/h` in the next hour. Debts beyond a whole burst, lists, lockouts and marks are as in
    /// the snapshot; of those that came after it nothing is known. [`Limiter::reset`] does nothing for a key that is
    /// not in the table.
    ///
    /// Who writes its snapshots by [`Limiter::close`] needs [`restore`](Self::restore) alone, which forgives nothing
    /// then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let limiter = Limiter::builder().policy("60/min").clock(clock.clone()).build()?;
    /// let bytes = limiter.snapshot();
    /// assert!(limiter.try_acquire_n("alice", 60).is_allowed());
    /// drop(limiter); // and nothing is written down
    ///
    /// let builder = Limiter::builder().policy("60/min").clock(clock);
    /// let limiter = builder.restore_after_crash(&bytes).build()?;
    /// assert!(limiter.try_acquire("alice").is_denied());
    /// hand.advance(Duration::from_secs(2));
    /// assert!(limiter.try_acquire_n("alice", 2).is_allowed());
    /// assert!(limiter.try_acquire("alice").is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore_after_crash(mut self, bytes: &[u8]) -> Self {
        self = self.restore(bytes);
        self.after_crash = true;
        self
    }

    /// A name for events and for people: [`Limiter::name`].
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().policy("100/min").named("api").build()?;
    /// assert_eq!(limiter.name(), Some("api"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn named(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether to count decisions by rule and outcome, for [`Limiter::stats`]; not unless asked for.
    ///
    /// It costs a keyed hit some nanoseconds (`cargo bench --bench observe` says how many on your machine), and
    /// some kilobytes a core. A limiter that does not count pays nothing for those that do.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().policy("1/min").count_decisions(true).build()?;
    /// let _ = (limiter.try_acquire("key"), limiter.try_acquire("key"));
    /// let counted = &limiter.stats().decisions[0];
    /// assert_eq!((counted.allowed, counted.denied), (1, 1));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn count_decisions(mut self, count: bool) -> Self {
        self.count_decisions = count;
        self
    }

    /// Tells of one in so many refusals by a `tracing` event, drawn at random; of none unless asked for, or
    /// where `one_in` is 0.
    ///
    /// The event is at debug level, with the target `tollgate`. It says which rule refused and for how long,
    /// and nothing of the key, which the limiter does not have.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// // One event in about a hundred refusals.
    /// let limiter = Limiter::builder().policy("100/min").named("api").trace_refusals(100).build()?;
    /// assert!(limiter.try_acquire("key").is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[cfg(feature = "tracing")]
    pub fn trace_refusals(mut self, one_in: u64) -> Self {
        self.refusals = Refusals::sampled(one_in);
        self
    }

    /// Builds the limiter and takes all its memory.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// assert!(Limiter::builder().policy("100/min").build().is_ok());
    /// let error = Limiter::builder().policy("100/min").max_keys(0).build().unwrap_err();
    /// assert_eq!(error.to_string(), "max_keys of 0 leaves no room for any key");
    /// ```
    ///
    /// # Errors
    ///
    /// No policy, or one that does not parse or that [`Policy::validate`] refuses; a `max_keys` of 0 or
    /// beyond memory; a snapshot to [restore](Self::restore) that is damaged, or of another limiter.
    pub fn build(self) -> Result<Limiter, Error> {
        let policy = self
            .policy
            .unwrap_or_else(|| Err(Error::new("a limiter needs a policy, such as `.policy(\"100/min\")`")))?;
        let mut policies = vec![(None, policy)];
        for (name, policy) in self.tiers {
            if policies.iter().any(|(known, _)| known.as_ref() == Some(&name)) {
                return Err(Error::new(format!("there are two tiers of the name `{name}`")));
            }
            let policy = policy.map_err(|error| Error::new(format!("tier `{name}`: {error}")))?;
            policies.push((Some(name), policy));
        }
        let policies = Policies::new(policies)?;
        let penalty = self.penalties.as_ref().map(Penalties::compile).transpose()?;
        if self.max_keys == 0 {
            return Err(Error::new("max_keys of 0 leaves no room for any key"));
        }
        let snapshot = self.restore.transpose()?;
        // A lockout takes the room of a rule.
        let cells = policies.first().cells() + usize::from(penalty.is_some());
        let table = match &snapshot {
            Some(snapshot) => {
                snapshot.check(policies.first(), self.max_keys, self.seeds)?;
                snapshot.table(cells, self.when_full, self.prefault)?
            }
            None => Table::new(self.max_keys, cells, self.when_full, self.prefault)?,
        };
        let clock = self.clock.unwrap_or_default();
        let now_ns = clock.now_ns();
        let spent_at_ns = match &snapshot {
            Some(_) if self.after_crash => Some(now_ns),
            Some(snapshot) => snapshot.spent_at_ns(now_ns),
            None => None,
        };
        let seeds = snapshot.as_ref().map(|snapshot| snapshot.seeds).or(self.seeds).unwrap_or_else(|| {
            let random = RandomState::new();
            std::array::from_fn(|index| random.hash_one(index))
        });
        let [a, b, c, d] = seeds;
        let watch = Watch {
            name: self.name,
            counts: self.count_decisions.then(|| Counts::new(&policies)),
            refusals: self.refusals,
            ..Watch::default()
        };
        let flag = |is_up, flag| if is_up { flag } else { 0 };
        let special = flag(penalty.is_some(), PENALTIES)
            | flag(watch.refusals.are_told(), TOLD)
            | flag(watch.counts.is_some(), COUNTED);
        let limiter = Limiter {
            table,
            policies,
            clock,
            hasher: RandomState::with_seeds(a, b, c, d),
            special: AtomicU64::new(special),
            penalty,
            horizon: Horizon::new(),
            line: Line::new(),
            spent_at_ns,
            forgets: (0..FORGETS).map(|_| AtomicU64::new(0)).collect(),
            unamended: Mutex::new(None),
            seeds,
            max_keys: self.max_keys,
            watch,
        };
        if let Some(snapshot) = snapshot {
            snapshot.put_back(&limiter, self.when_full)?;
        }
        Ok(limiter)
    }
}
