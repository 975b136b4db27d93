//! Models of the keyed table, told as scenes: who has spent what beforehand, what each thread then does, and
//! what has to be true afterwards.

use crate::checker::{Job, explore_thoroughly, law, limiter, together};
use std::sync::Arc;
use std::time::Duration;
use tollgate::model::TakeoverStep;
use tollgate::{Clock, KeyHandle, Limiter, ManualHand, Stats, WhenFull};

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
    /// Asks for a key by a handle of this thread's from now on.
    Hold(usize),
    /// Moves the clock on.
    Wait(Duration),
    /// Takes a snapshot.
    WriteDown,
    /// Closes the limiter, which takes a snapshot too.
    Close,
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
    /// The snapshots that the threads have taken, in their order.
    pub written: Vec<Vec<u8>>,
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
            let before = act(&limiter, &hand, keys, self.before).admitted;
            let jobs = self.threads.iter().map(|&acts| {
                let (limiter, hand) = (Arc::clone(&limiter), hand.clone());
                let job: Job<Did> = Box::new(move || act(&limiter, &hand, keys, acts));
                job
            });
            let (mut admitted, mut written) = ([0; KEYS], Vec::new());
            for did in together(jobs.collect()) {
                for (sum, one) in admitted.iter_mut().zip(did.admitted) {
                    *sum += one;
                }
                written.extend(did.written);
            }
            let left = keys.map(|key| limiter.peek_n(&key, 0).remaining());
            let stats = limiter.stats();
            expected(&After { admitted, before, left, written, stats, limiter, hand, keys });
        });
    }
}

/// What a thread has come to.
struct Did {
    admitted: [u64; KEYS],
    written: Vec<Vec<u8>>,
}

fn act(limiter: &Limiter, hand: &ManualHand, keys: [u64; KEYS], acts: &[Act]) -> Did {
    let mut did = Did { admitted: [0; KEYS], written: Vec::new() };
    let mut handles: [Option<KeyHandle<'_>>; KEYS] = [const { None }; KEYS];
    for &act in acts {
        match act {
            Act::Take(key) | Act::TakeMany(key, _) => {
                let cost = if let Act::TakeMany(_, cost) = act { cost } else { 1 };
                let decision = match &handles[key] {
                    Some(handle) => handle.try_acquire_n(cost),
                    None => limiter.try_acquire_n(&keys[key], cost),
                };
                did.admitted[key] += if decision.is_allowed() { cost } else { 0 };
            }
            Act::Refund(key) => match &handles[key] {
                Some(handle) => handle.refund(1),
                None => limiter.refund(&keys[key], 1),
            },
            Act::Reset(key) => match &handles[key] {
                Some(handle) => handle.reset(),
                None => limiter.reset(&keys[key]),
            },
            Act::Hold(key) => handles[key] = Some(limiter.key(&keys[key])),
            Act::Wait(time) => hand.advance(time),
            Act::WriteDown => did.written.push(limiter.snapshot()),
            Act::Close => did.written.push(limiter.close()),
            Act::Abandon(key, after) => limiter.abandon(&keys[key], after),
        }
    }
    did
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

    /// A handle, which begins with a guess, finds what there is of a key.
    ///
    /// # Panics
    ///
    /// If the law does not hold.
    pub fn is_found_by_a_handle(&self, key: usize) {
        let (found, left) = (self.limiter.key(&self.keys[key]).peek_n(0).remaining(), self.left[key]);
        law(found == left, || format!("key {key} has {left} left, and {found} by a handle"));
    }

    /// What each key has left in a limiter that was restored from a snapshot, by now.
    ///
    /// # Panics
    ///
    /// If it cannot be restored.
    #[must_use]
    pub fn left_in(&self, snapshot: &[u8]) -> [u64; KEYS] {
        let (clock, hand) = Clock::manual();
        hand.set(self.hand.now());
        let builder = Limiter::builder().policy(self.limiter.policy()).clock(clock);
        match builder.max_keys(1).restore(snapshot).build() {
            Ok(restored) => self.keys.map(|key| restored.peek_n(&key, 0).remaining()),
            Err(error) => panic!("{error}"),
        }
    }
}

fn list(counts: &[u64; KEYS]) -> String {
    counts.map(|count| count.to_string()).join(" ")
}
