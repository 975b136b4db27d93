//! The keys that come most, without storing every key: [`TopKeys`].
//!
//! Buckets of eight counters, and in each of them the algorithm known as Space-Saving: a key that is there is
//! counted; one that is not takes over the smallest counter, with what that had counted. So a counter is never
//! below the truth, and above it at most by what it had when the key came: the smallest count of the bucket now.
//!
//! A counter is one word, of a mark of the key and a count. To count, or to take over, is one compare-exchange
//! on it: a word is always of one key, and all words of a bucket add up to all that was ever recorded in it.
//!
//! A key has one counter, although nobody searches for a second one. Say that two threads, which both had missed it,
//! put it in the places I and J, and that it is still in both. Whoever took J had seen I before the key came there
//! (later it would have found it), and found J no larger; whoever took I had seen J before the key came, and found I
//! no larger. Counts only grow, so both saw the same count in both places; and of equals everybody takes the first.
//! Aging alone makes a count smaller.
//!
//! What a key is called lies beside its counter ([`label`]), and is of use only if it bears the same mark.

mod label;

use crate::sync::{AtomicU64, Fault, Ordering, is_broken};
use ahash::RandomState;
use crossbeam_utils::CachePadded;
use label::{Label, LabelCell};
use std::fmt::{self, Display};

/// Counters of one bucket: a cache line of them.
const WAYS: usize = if cfg!(tollgate_loom) { 2 } else { 8 };
/// The most counters: 80 MiB of them with their labels.
const CAPACITY_MAX: usize = 1 << 20;
const COUNT_BITS: u32 = 40;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// A counter: a mark of the key in the upper 24 bits, and what was counted. Zero is nobody's.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Counter(u64);

impl Counter {
    fn new(mark: u64, count: u64) -> Self {
        Self(mark << COUNT_BITS | count.min(COUNT_MAX))
    }

    fn mark(self) -> u64 {
        self.0 >> COUNT_BITS
    }

    fn count(self) -> u64 {
        self.0 & COUNT_MAX
    }
}

/// The mark of a key, which is never 0.
fn mark_of(hash: u64) -> u64 {
    (hash >> COUNT_BITS).max(1)
}

#[derive(Debug)]
struct Bucket {
    counters: CachePadded<[AtomicU64; WAYS]>,
    labels: [LabelCell; WAYS],
}

/// The keys that are recorded most, in fixed memory, however many there are: for a list of top offenders.
///
/// Recording never waits and never allocates; any number of threads may record at once. A key is given as anything
/// that can be printed. It is told apart by all of its text, and shown by the first 48 bytes.
///
/// ```
/// use tollgate::{Limiter, TopKeys};
///
/// let limiter = Limiter::new("2/min")?;
/// let offenders = TopKeys::new(1024);
/// for (address, requests) in [("203.0.113.7", 50), ("198.51.100.2", 3), ("192.0.2.1", 1)] {
///     for _ in 0..requests {
///         if limiter.try_acquire(address).is_denied() {
///             offenders.record(address, 1);
///         }
///     }
/// }
/// let top = offenders.top(10);
/// assert_eq!((top[0].label.as_str(), top[0].count), ("203.0.113.7", 48));
/// assert_eq!((top[1].label.as_str(), top[1].count), ("198.51.100.2", 1));
/// assert_eq!(top.len(), 2);
/// # Ok::<(), tollgate::Error>(())
/// ```
///
/// # How far to trust it
///
/// * A count is never below the truth, and exceeds it by at most [`Offender::error`]: what the smallest counter of
///   its bucket of eight holds.
/// * That is at most an eighth of all that was recorded in the bucket. The keys are spread over the buckets by chance:
///   of `N` recorded in all, it is typically about `N / capacity`, less where a few keys come most, and more in a
///   bucket that several of those have come to.
/// * A key that is recorded more often than the smallest counter of its bucket holds is listed, whatever else comes:
///   at the latest when it has come for the second time since it was last displaced.
/// * Of a million keys whose frequency falls as `1 / rank^0.99`, 1024 counters find the twenty that come most,
///   or all but one.
///
/// All of this holds whatever threads do at once. Only [aging](Self::age) costs a little of it. Halves are rounded
/// down, so that a count may be less than one below the truth halved as often, and exceed it by less than one more
/// than `error`. A key that comes for the first time while its bucket is being aged may have taken over what is not
/// halved any more, which is up to twice `error`; and if two threads bring it then, it may be given two counters. They
/// are added up while both are there; if one is taken over by others, what it held is missing from the count, which was
/// no more than `error` then.
///
/// Two keys share a counter if they have the same bucket and the same 24 bits of hash: for a given key among
/// a million others and 1024 counters, 1 chance in 2 000. The hash has random seeds, so nobody can aim at that.
///
/// # Recent offenders
///
/// Counts grow for ever unless they are [aged](Self::age): call that once a minute, and a count is what came in
/// the last minute, half of what came in the one before, and so on.
pub struct TopKeys {
    buckets: Box<[Bucket]>,
    hasher: RandomState,
}

/// One of the keys that were recorded most: by [`TopKeys::top`].
///
/// ```
/// let offenders = tollgate::TopKeys::new(64);
/// (0..5).for_each(|_| offenders.record("203.0.113.7", 1));
/// let top = &offenders.top(1)[0];
/// assert_eq!((&*top.label, top.count, top.error), ("203.0.113.7", 5, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offender {
    /// The key as it was printed, or the first 48 bytes of it.
    pub label: String,
    /// What was recorded for it, and perhaps up to `error` too much.
    pub count: u64,
    /// By how much the count may exceed the truth.
    pub error: u64,
}

impl TopKeys {
    /// Room for so many counters, at least 8 and at most a million; a few dozen for each key that is to be listed.
    /// Takes 80 bytes each, at once.
    ///
    /// ```
    /// let offenders = tollgate::TopKeys::new(1024);
    /// offenders.record(&std::net::Ipv4Addr::LOCALHOST, 1);
    /// assert_eq!(offenders.top(10)[0].label, "127.0.0.1");
    /// ```
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with_hasher(capacity, RandomState::new())
    }

    /// The same with seeds for the hash, so that a run can be repeated.
    ///
    /// ```
    /// use tollgate::TopKeys;
    ///
    /// let run = || {
    ///     let top = TopKeys::with_seeds(8, [1, 2, 3, 4]);
    ///     (0..1_000).for_each(|key| top.record(&(key % 37), 1));
    ///     top.top(3)
    /// };
    /// assert_eq!(run(), run());
    /// ```
    #[must_use]
    pub fn with_seeds(capacity: usize, [a, b, c, d]: [u64; 4]) -> Self {
        Self::with_hasher(capacity, RandomState::with_seeds(a, b, c, d))
    }

    fn with_hasher(capacity: usize, hasher: RandomState) -> Self {
        let bucket = |_| Bucket {
            counters: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            labels: std::array::from_fn(|_| LabelCell::new()),
        };
        let buckets = capacity.clamp(1, CAPACITY_MAX).div_ceil(WAYS);
        Self { buckets: (0..buckets).map(bucket).collect(), hasher }
    }

    /// How many counters there are.
    ///
    /// ```
    /// assert_eq!(tollgate::TopKeys::new(1000).capacity(), 1000);
    /// assert_eq!(tollgate::TopKeys::new(1).capacity(), 8);
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Records `cost` for a key: 1 for a request. A cost of 0 is no record. Counts end at 2^40.
    ///
    /// ```
    /// let bytes = tollgate::TopKeys::new(64);
    /// bytes.record("alice", 500);
    /// bytes.record("alice", 200);
    /// assert_eq!(bytes.top(1)[0].count, 700);
    /// ```
    pub fn record<K: Display + ?Sized>(&self, key: &K, cost: u64) {
        // Nothing else would make a count no larger, and on their growing it rests that a key has one counter.
        if cost == 0 {
            return;
        }
        let label = Label::of(key, &self.hasher);
        let mark = mark_of(label.hash());
        let bucket = self.bucket_of(label.hash());
        loop {
            // Relaxed, here and below: a counter is whole in itself, and what is taken over is as it was seen.
            let counters: [Counter; WAYS] =
                std::array::from_fn(|way| Counter(bucket.counters[way].load(Ordering::Relaxed)));
            let own = counters.iter().position(|counter| counter.mark() == mark);
            let least = || (0..WAYS).min_by_key(|&way| counters[way].count()).unwrap_or(0);
            let way = own.unwrap_or_else(least);
            let seen = counters[way];
            let next = Counter::new(mark, seen.count().saturating_add(cost));
            // Release: whoever lists this count sees the others no smaller than they were here.
            let (set, failed) = (Ordering::Release, Ordering::Relaxed);
            if bucket.counters[way].compare_exchange(seen.0, next.0, set, failed).is_err() {
                continue;
            }
            // A newcomer that has come to less than what it takes over may be gone again at once, like most of
            // those that come once: it is given its label when it comes a second time.
            if own.is_some() || cost >= seen.count() {
                bucket.labels[way].write(&label, mark);
            }
            return;
        }
    }

    /// The `count` keys that were recorded most, the first one first.
    ///
    /// Looks at every counter: for a dashboard, not for every request. A key whose label another thread is about
    /// to write is left out. Beside an [aging](Self::age) that is under way, an `error` may be said too small.
    ///
    /// ```
    /// let top = tollgate::TopKeys::new(64);
    /// top.record("often", 5);
    /// top.record("seldom", 1);
    /// let labels: Vec<String> = top.top(10).into_iter().map(|offender| offender.label).collect();
    /// assert_eq!(labels, ["often", "seldom"]);
    /// ```
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<Offender> {
        let mut offenders: Vec<Offender> = self.buckets.iter().flat_map(Bucket::offenders).collect();
        offenders.sort_by(|one, other| {
            other
                .count
                .cmp(&one.count)
                .then(one.error.cmp(&other.error))
                .then_with(|| one.label.cmp(&other.label))
        });
        offenders.truncate(count);
        offenders
    }

    /// What was recorded in all, as far as it has not been aged away.
    ///
    /// ```
    /// let top = tollgate::TopKeys::new(64);
    /// top.record("alice", 3);
    /// top.record("bob", 4);
    /// assert_eq!(top.total(), 7);
    /// ```
    #[must_use]
    pub fn total(&self) -> u64 {
        let counters = self.buckets.iter().flat_map(|bucket| bucket.counters.iter());
        // Relaxed: as in `record`.
        counters.map(|counter| Counter(counter.load(Ordering::Relaxed)).count()).sum()
    }

    /// Halves all counts, rounded down, so that what came long ago weighs less than what comes now.
    ///
    /// To be called from time to time by one thread; the time between is the half-life of a count. Others may
    /// record meanwhile.
    ///
    /// ```
    /// let top = tollgate::TopKeys::new(64);
    /// top.record("alice", 8);
    /// top.age(); // a minute later
    /// top.record("bob", 5);
    /// assert_eq!(top.top(1)[0].label, "bob");
    /// ```
    pub fn age(&self) {
        for counter in self.buckets.iter().flat_map(|bucket| bucket.counters.iter()) {
            loop {
                // Relaxed: as in `record`.
                let seen = Counter(counter.load(Ordering::Relaxed));
                let half = if seen.count() < 2 { 0 } else { Counter::new(seen.mark(), seen.count() / 2).0 };
                let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
                if seen.0 == half || counter.compare_exchange(seen.0, half, set, failed).is_ok() {
                    break;
                }
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "below the number of buckets")]
    fn bucket_of(&self, hash: u64) -> &Bucket {
        // The lower half chooses the bucket; the mark is of the upper one.
        let number = (u64::from(hash as u32) * self.buckets.len() as u64) >> 32;
        &self.buckets[number as usize]
    }
}

impl Bucket {
    /// The keys that are counted here, as far as they have a label.
    fn offenders(&self) -> Vec<Offender> {
        // Acquire: what is read of the others afterwards is no older than what a newcomer here had seen of them.
        let read = || std::array::from_fn(|way| Counter(self.counters[way].load(Ordering::Acquire)));
        let counters: [Counter; WAYS] = read();
        // What a newcomer took over was the least there was, and the least does not fall but by aging, which
        // halves both. So the least of now, and not of before the newcomer was seen.
        let now = if is_broken(Fault::BoundsTooEarly) { counters } else { read() };
        let least = now.iter().map(|counter| counter.count()).min().unwrap_or(0);
        let mut offenders: Vec<(u64, Offender)> = Vec::with_capacity(WAYS);
        for (counter, label) in counters.iter().zip(&self.labels).filter(|(counter, _)| counter.count() > 0) {
            let (mark, count) = (counter.mark(), counter.count());
            if let Some((_, twin)) = offenders.iter_mut().find(|(known, _)| *known == mark) {
                // The same key twice: either may have begun with what was another's.
                twin.count += count;
                twin.error += count.min(least);
            } else if let Some(label) = label.read(mark) {
                offenders.push((mark, Offender { label, count, error: least }));
            }
        }
        offenders.into_iter().map(|(_, offender)| offender).collect()
    }
}

impl fmt::Debug for TopKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopKeys").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
