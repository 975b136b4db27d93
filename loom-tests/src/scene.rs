//! Models of the keyed table, told as scenes: who has spent what beforehand, what each thread then does, and
//! what has to be true afterwards.

use crate::checker::{Job, explore_thoroughly, law, limiter, together};
use std::sync::Arc;
use std::time::Duration;
use tollgate::model::TakeoverStep;
use tollgate::{Limiter, ManualHand, Stats, WhenFull};

/// How many keys a scene may name.
pub const KEYS: usize = 5;

/// One thing to do. Keys are told apart by their number in the scene.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Asks for one.
    Take(usize),
    /// Asks for several at once.
    TakeMany(usize, u64),
    /// Gives one back.
    Refund(usize),
    /// Forgets all that was taken.
    Reset(usize),
    /// Moves the clock on.
    Wait(Duration),
    /// Begins to make room for a key and stops for ever.
    Abandon(usize, TakeoverStep),
}

/// Where the keys of a scene live.
#[derive(Clone, Copy, Debug)]
pub enum Cast {
    /// All in one bucket; each in the way that is given, if it can be.
    OneBucket([usize; KEYS]),
    /// All with the same two buckets: whether each has the first key's home for its own, and its way.
    TwoBuckets([(bool, usize); KEYS]),
}

/// A table, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// What the scene shows.
    pub name: &'static str,
    /// The policy of all keys.
    pub policy: &'static str,
    /// What a fresh key admits.
    pub burst: u64,
    /// What happens where there is no room.
    pub when_full: WhenFull,
    /// Where the keys live.
    pub cast: Cast,
    /// What has happened before.
    pub before: &'static [Act],
    /// What each thread does.
    pub threads: &'static [&'static [Act]],
    /// How often loom may interrupt a thread that could go on; and the same where it tries loads in every
    /// order too, which takes thirty times as long.
    pub preemptions_max: [usize; 2],
}

/// What a scene has come to.
#[derive(Debug)]
pub struct After {
    /// What the threads were admitted, a key.
    pub admitted: [u64; KEYS],
    /// The same before the threads began.
    pub before: [u64; KEYS],
    /// What each key says it has left.
    pub left: [u64; KEYS],
    /// What the table has had to do.
    pub stats: Stats,
    /// The limiter, for whatever else is to be asked.
    pub limiter: Arc<Limiter>,
    /// Its clock.
    pub hand: ManualHand,
    /// The keys themselves.
    pub keys: [u64; KEYS],
}

impl Scene {
    /// Runs the scene in every interleaving; `expected` states the laws.
    pub fn play(self, expected: impl Fn(&After) + Clone + Send + Sync + 'static) {
        explore_thoroughly(self.name, self.preemptions_max, move || {
            let max_keys = match self.cast {
                Cast::OneBucket(_) => 1,
                Cast::TwoBuckets(_) => 3,
            };
            let (limiter, hand) = limiter(self.policy, max_keys, self.when_full);
            let keys = self.cast.keys(&limiter);
            let before = act(&limiter, &hand, keys, self.before);
            let jobs = self.threads.iter().map(|&acts| {
                let (limiter, hand) = (Arc::clone(&limiter), hand.clone());
                let job: Job<[u64; KEYS]> = Box::new(move || act(&limiter, &hand, keys, acts));
                job
            });
            let mut admitted = [0; KEYS];
            for each in together(jobs.collect()) {
                for (sum, one) in admitted.iter_mut().zip(each) {
                    *sum += one;
                }
            }
            let left = keys.map(|key| limiter.peek_n(&key, 0).remaining());
            let stats = limiter.stats();
            expected(&After { admitted, before, left, stats, limiter, hand, keys });
        });
    }
}

fn act(limiter: &Limiter, hand: &ManualHand, keys: [u64; KEYS], acts: &[Act]) -> [u64; KEYS] {
    let mut admitted = [0; KEYS];
    let mut take = |key: usize, cost| {
        if limiter.try_acquire_n(&keys[key], cost).is_allowed() {
            admitted[key] += cost;
        }
    };
    for &act in acts {
        match act {
            Act::Take(key) => take(key, 1),
            Act::TakeMany(key, cost) => take(key, cost),
            Act::Refund(key) => limiter.refund(&keys[key], 1),
            Act::Reset(key) => limiter.reset(&keys[key]),
            Act::Wait(time) => hand.advance(time),
            Act::Abandon(key, after) => limiter.abandon(&keys[key], after),
        }
    }
    admitted
}

impl Cast {
    /// Keys that live where they should: the first ones among the numbers.
    fn keys(self, limiter: &Limiter) -> [u64; KEYS] {
        let mut keys = [0; KEYS];
        let mut next = 0;
        let mut find = |fits: &dyn Fn((usize, usize, usize)) -> bool| {
            while !fits(limiter.placement(&next)) {
                next += 1;
            }
            next += 1;
            next - 1
        };
        match self {
            Self::OneBucket(ways) => {
                for (key, way) in keys.iter_mut().zip(ways) {
                    *key = find(&|(_, _, preferred)| preferred == way);
                }
            }
            Self::TwoBuckets(places) => {
                keys[0] = find(&|(_, _, preferred)| preferred == places[0].1);
                let (home, other, _) = limiter.placement(&keys[0]);
                for (key, (at_home, way)) in keys.iter_mut().zip(places).skip(1) {
                    let wanted = if at_home { (home, other, way) } else { (other, home, way) };
                    *key = find(&|place| place == wanted);
                }
            }
        }
        keys
    }
}

impl After {
    /// What each key was admitted in all.
    #[must_use]
    pub fn admitted_in_all(&self) -> u64 {
        self.admitted.iter().chain(&self.before).sum()
    }

    /// With the clock standing still: whatever was admitted is charged to its key, or was forgiven or let
    /// pass and counted as that. Nobody pays for anybody else.
    ///
    /// # Panics
    ///
    /// If the law does not hold.
    pub fn all_is_accounted_for(&self, burst: u64) {
        let charged: u64 = self.left.iter().map(|left| burst - left).sum();
        let counted = charged + self.stats.forgiven_cost + self.stats.allowed_for_room;
        law(counted == self.admitted_in_all(), || {
            format!(
                "{} before and {} admitted, but {counted} accounted for: {} left of {burst} each, {} forgiven, {} uncounted",
                list(&self.before),
                list(&self.admitted),
                list(&self.left),
                self.stats.forgiven_cost,
                self.stats.allowed_for_room,
            )
        });
    }

    /// Where no time passed and nothing was forgiven: each key has left what it was not admitted.
    ///
    /// # Panics
    ///
    /// If the law does not hold.
    pub fn each_has_paid_its_own(&self, burst: u64, keys: &[usize]) {
        for &key in keys {
            let (admitted, left) = (self.before[key] + self.admitted[key], self.left[key]);
            law(admitted + left == burst, || {
                format!("key {key} was admitted {admitted} and has {left} left of {burst}")
            });
        }
    }

    /// A key that owes something has one entry, and no other key has any that counts.
    ///
    /// # Panics
    ///
    /// If the law does not hold.
    pub fn one_entry_a_debtor(&self, burst: u64) {
        let debtors = self.left.iter().filter(|&&left| left < burst).count();
        law(self.stats.live_keys == debtors, || {
            format!("{} entries for {debtors} keys in debt", self.stats.live_keys)
        });
    }

    /// What a key says it has left is what it gets.
    ///
    /// # Panics
    ///
    /// If the law does not hold.
    pub fn gets_what_is_left(&self, key: usize) {
        let (mut got, promised) = (0, self.limiter.peek(&self.keys[key]).remaining());
        while self.limiter.try_acquire(&self.keys[key]).is_allowed() {
            got += 1;
        }
        law(got == promised, || format!("key {key} got {got} where {promised} were promised"));
    }
}

fn list(counts: &[u64; KEYS]) -> String {
    counts.map(|count| count.to_string()).join(" ")
}
