//! The keyed limiter under real threads, checked by brute force afterwards.
//!
//! This is stress, not proof; the proof is in the models. The full size runs in release: `./test --only stress`.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tollgate::{Clock, Limiter, ManualHand, WhenFull};

const THREADS: usize = 4;
const DEBUG: bool = cfg!(debug_assertions);

/// The smallest generator that will do.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Where all threads wait for each other. They spin: a barrier would wake them one after the other, and they
/// would hardly ever meet.
struct Meeting {
    arrived: AtomicUsize,
    threads: usize,
}

impl Meeting {
    fn of(threads: usize) -> Self {
        Self { arrived: AtomicUsize::new(0), threads }
    }

    fn wait(&self) {
        let turn = self.arrived.fetch_add(1, Ordering::SeqCst) / self.threads;
        while self.arrived.load(Ordering::SeqCst) < (turn + 1) * self.threads {
            // More threads than cores must not starve the last to come.
            thread::yield_now();
        }
    }
}

/// Runs `work` on so many threads and collects what each returns.
fn together<R: Send>(threads: usize, work: impl Fn(usize, &Meeting) -> R + Sync) -> Vec<R> {
    let meeting = Meeting::of(threads);
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|index| {
                let (meeting, work) = (&meeting, &work);
                scope.spawn(move || {
                    meeting.wait();
                    work(index, meeting)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

fn manual(text: &str, max_keys: usize, when_full: WhenFull, seed: u64) -> (Limiter, ManualHand, Clock) {
    let (clock, hand) = Clock::manual();
    hand.set(Duration::from_millis(1_790_000_000_250));
    let builder = Limiter::builder().policy(text).max_keys(max_keys).when_full(when_full);
    (builder.clock(clock.clone()).seeds([seed, 1, 2, 3]).build().unwrap(), hand, clock)
}

/// The order in which a thread asks for the keys of a block.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// All threads the same, and in step: they meet at every key.
    Same,
    /// Each thread its own.
    Own,
}

/// All threads race for the same fresh keys, in rounds between which all keys expire. Exactly one is admitted.
fn twins(text: &str, keys: u64, rounds: u64, order: Order, seed: u64) {
    let block = 64;
    let (limiter, hand, _clock) = manual(text, keys as usize, WhenFull::Deny, seed);
    for round in 0..rounds {
        // Every other round brings the same keys again: then they find their own worthless entries.
        let first = (round / 2) * keys;
        let admitted: Vec<Vec<u64>> = together(THREADS, |index, meeting| {
            let mut mine = Vec::with_capacity(keys as usize);
            let stride = 2 * Random(seed + index as u64).below(keys) + 1;
            for number in 0..keys {
                let key = match order {
                    Order::Same => {
                        if number % block == 0 {
                            meeting.wait();
                        }
                        number
                    }
                    // An odd stride visits all of a power of two.
                    Order::Own => number.wrapping_mul(stride) % keys,
                };
                if limiter.try_acquire(&(first + key)).is_allowed() {
                    mine.push(key);
                }
            }
            mine
        });
        let stats = limiter.stats();
        let mut times = vec![0u8; keys as usize];
        for key in admitted.into_iter().flatten() {
            times[key as usize] += 1;
        }
        let wrong: Vec<_> = times.iter().enumerate().filter(|(_, times)| **times != 1).take(5).collect();
        assert!(
            wrong.is_empty(),
            "seed={seed} `{text}` {order:?} round {round}: (key, admissions) {wrong:?}, {stats:?}"
        );
        assert_eq!(stats.live_keys as u64, keys, "seed={seed} `{text}` {order:?} round {round}: {stats:?}");
        assert_eq!(stats.denied_for_room, 0, "seed={seed} `{text}` {order:?} round {round}: {stats:?}");
        // Long enough for all to be forgotten, and short enough for no word to come round again.
        hand.advance(limiter.policy().rules()[0].period() * 3);
    }
}

#[test]
fn twins_have_one_budget() {
    let million = 1 << 20;
    for (order, seed) in [(Order::Same, 1), (Order::Own, 2)] {
        twins("1/d", if DEBUG { million / 8 } else { million }, 2, order, seed);
    }
}

/// Small tables, where the threads' views of what is free differ most, over and over.
#[test]
fn twins_have_one_budget_in_small_tables() {
    for (text, keys, rounds) in [
        ("1/min", 8, 4_000),
        ("1/min", 16, 2_000),
        ("1/min", 1_024, 60),
        ("fixed 1/min", 256, 60),
        ("sliding 1/min", 256, 60),
        ("log 1/min", 256, 60),
        ("fixed 1/min; 1/min", 64, 100),
    ] {
        let rounds = if DEBUG { rounds / 4 } else { rounds };
        for (order, seed) in [(Order::Same, 3), (Order::Own, 4)] {
            twins(text, keys, rounds, order, seed);
        }
    }
}

/// An admission, and the times between which it was decided.
#[derive(Clone, Copy)]
struct Admission {
    key: u64,
    from_ns: u64,
    to_ns: u64,
}

/// A rule's bound: what it may admit between two moments.
type Bound = fn(u64, u64) -> u64;

/// Any span between an admission of a key and one of the next few hundred, and from the first to the last, admits
/// no more than the bound.
fn check_bound(admissions: Vec<Admission>, keys: u64, bounds: &[Bound], what: &str) {
    let in_a_row = 200;
    let mut of_key = vec![Vec::new(); keys as usize];
    for admission in admissions {
        of_key[admission.key as usize].push(admission);
    }
    for (key, mut admissions) in of_key.into_iter().enumerate() {
        admissions.sort_unstable_by_key(|admission| admission.to_ns);
        let check = |within: usize, from_ns, to_ns| {
            for bound in bounds {
                let most = bound(from_ns, to_ns);
                assert!(
                    within as u64 <= most,
                    "{what}: key {key} had {within} of {most} in {from_ns}..{to_ns} ns"
                );
            }
        };
        for (first, &Admission { from_ns, .. }) in admissions.iter().enumerate() {
            // Those decided earlier may have begun later.
            let near = &admissions[first.saturating_sub(2 * THREADS)..];
            let later = near.iter().filter(|later| later.from_ns >= from_ns).take(in_a_row);
            for (count, later) in later.enumerate() {
                check(count + 1, from_ns, later.to_ns);
            }
        }
        if let (Some(first_ns), Some(last)) = (admissions.iter().map(|a| a.from_ns).min(), admissions.last())
        {
            check(admissions.len(), first_ns, last.to_ns);
        }
    }
}

/// Keys that come and expire in a table far smaller than their number; `tick` is called by one more thread.
fn churn(
    what: &str,
    limiter: &Limiter,
    clock: &Clock,
    keys: u64,
    seed: u64,
    tick: impl Fn() + Sync,
) -> Vec<Admission> {
    let calls = if DEBUG { 25_000 } else { 400_000 };
    let at_work = AtomicUsize::new(THREADS);
    let all = together(THREADS + 1, |index, _| {
        let mut mine = Vec::new();
        if index == THREADS {
            while at_work.load(Ordering::Relaxed) > 0 {
                tick();
            }
            return mine;
        }
        let mut random = Random(seed * 100 + index as u64);
        for _ in 0..calls {
            // A few keys are asked for by all threads all the time, the others now and then.
            let key = if random.below(4) == 0 { random.below(4) } else { random.below(keys) };
            let from_ns = clock.now_ns();
            if limiter.try_acquire(&key).is_allowed() {
                mine.push(Admission { key, from_ns, to_ns: clock.now_ns() });
            }
        }
        at_work.fetch_sub(1, Ordering::Relaxed);
        mine
    });
    let all = all.concat();
    let stats = limiter.stats();
    assert!(all.len() > stats.slots * 4, "{what}: {} admissions are no churn: {stats:?}", all.len());
    assert_eq!((stats.evicted, stats.allowed_for_room), (0, 0), "{what}: {stats:?}");
    all
}

/// Policies whose keys expire within microseconds, and their bounds.
fn short_lived() -> Vec<(&'static str, Vec<Bound>)> {
    let bucket: Bound = |from_ns, to_ns| 2 + (to_ns - from_ns) / 20_000;
    let fixed: Bound = |from_ns, to_ns| 2 * (to_ns / 40_000 - from_ns / 40_000 + 1);
    let log: Bound = |from_ns, to_ns| 3 * ((to_ns - from_ns) / 50_000 + 1);
    vec![
        ("50000/s burst 2", vec![bucket]),
        ("fixed 2/40us", vec![fixed]),
        // Each window's own count stays below the limit, whatever the previous one weighs.
        ("sliding 2/40us", vec![fixed]),
        ("log 3/50us", vec![log]),
        ("50000/s burst 2; log 3/50us", vec![bucket, log]),
        ("fixed 2/40us; 50000/s burst 2", vec![fixed, bucket]),
    ]
}

#[test]
fn churn_keeps_every_bound_on_the_precise_clock() {
    for (text, bounds) in short_lived() {
        let (keys, seed) = (512, 5);
        let what = format!("seed={seed} `{text}`, precise clock");
        let clock = Clock::precise();
        let limiter = Limiter::builder()
            .policy(text)
            .max_keys(8)
            .when_full(WhenFull::Deny)
            .clock(clock.clone())
            .seeds([seed, 1, 2, 3])
            .build()
            .unwrap();
        let admissions = churn(&what, &limiter, &clock, keys, seed, thread::yield_now);
        check_bound(admissions, keys, &bounds, &what);
    }
}

#[test]
fn churn_keeps_every_bound_on_a_clock_moved_by_hand() {
    for (text, bounds) in short_lived() {
        for (max_keys, seed) in [(1, 6), (24, 7)] {
            let keys = 512;
            let what = format!("seed={seed} `{text}`, manual clock, {max_keys} keys");
            let (limiter, hand, clock) = manual(text, max_keys, WhenFull::Deny, seed);
            let ticks = AtomicU64::new(0);
            let tick = || {
                hand.advance(Duration::from_nanos(700));
                if ticks.fetch_add(1, Ordering::Relaxed) % 16 == 0 {
                    thread::yield_now();
                }
            };
            let admissions = churn(&what, &limiter, &clock, keys, seed, tick);
            check_bound(admissions, keys, &bounds, &what);
        }
    }
}

/// A spray of random keys, while a thousand steady ones take one an interval: exactly that, no less and no more.
///
/// An interval is a round in which time stands still; `spray` keys come in each, from several threads. Where there is room
/// for all, a thousand more take one every second interval, and are forgotten in between.
fn spray(when_full: WhenFull, total: u64, each_round: u64, seed: u64) -> tollgate::Stats {
    let (steady, burst) = (1_000u64, 20);
    let has_room = each_round + 2 * steady < 65_536;
    let interval = Duration::from_millis(600);
    let (limiter, hand, _clock) = manual("100/min burst 20", 65_536, when_full, seed);
    let key_of = |steady: u64| ("steady", steady);
    for key in 0..steady {
        // Drained first: from here on a key can have exactly one an interval.
        assert!(limiter.try_acquire_n(&key_of(key), burst).is_allowed());
    }
    let rounds = total / each_round;
    let (refused, bytes) = (AtomicU64::new(0), limiter.stats().bytes);
    together(THREADS, |index, meeting| {
        let mut random = Random(seed.wrapping_mul(1 << 32) + index as u64);
        for round in 0..rounds {
            if index == 0 {
                hand.advance(interval);
            }
            meeting.wait();
            if index == 0 {
                for key in 0..steady {
                    let due = limiter.try_acquire(&key_of(key));
                    assert!(
                        due.is_allowed(),
                        "seed={seed} {when_full:?} round {round}: steady key {key}: {due:?}"
                    );
                }
            }
            if has_room && round % 2 == 0 {
                for key in (index as u64..steady).step_by(THREADS) {
                    let now_and_then = limiter.try_acquire(&("now and then", key));
                    assert!(
                        now_and_then.is_allowed() && now_and_then.remaining() == burst - 1,
                        "seed={seed} {when_full:?} round {round}: key {key}: {now_and_then:?}"
                    );
                }
            }
            for _ in 0..each_round / THREADS as u64 {
                let denied = limiter.try_acquire(&random.next()).is_denied();
                refused.fetch_add(u64::from(denied), Ordering::Relaxed);
            }
            meeting.wait();
            for key in (index as u64..steady).step_by(THREADS) {
                let more = limiter.try_acquire(&key_of(key));
                assert!(
                    more.is_denied(),
                    "seed={seed} {when_full:?} round {round}: steady key {key}: {more:?}"
                );
            }
            meeting.wait();
        }
    });
    let stats = limiter.stats();
    assert_eq!(refused.into_inner(), stats.denied_for_room, "seed={seed} {when_full:?}: {stats:?}");
    assert_eq!(stats.bytes, bytes, "seed={seed} {when_full:?}: memory grew");
    stats
}

const SPRAY: u64 = if DEBUG { 400_000 } else { 20_000_000 };

/// As many live keys as there is room for: a spray recycles its own slots, and nobody has to go.
#[test]
fn a_spray_within_the_promise_disturbs_nobody() {
    let stats = spray(WhenFull::Deny, SPRAY, 60_000, 8);
    assert_eq!((stats.evicted, stats.denied_for_room, stats.allowed_for_room), (0, 0, 0), "{stats:?}");
}

/// Twice and three times as many as there is room for: the spray's own keys go, or stay outside.
#[test]
fn a_spray_beyond_the_promise_disturbs_no_steady_key() {
    let stats = spray(WhenFull::Evict, SPRAY, 125_000, 9);
    assert!(stats.evicted > 0 && stats.denied_for_room == 0, "{stats:?}");
    let stats = spray(WhenFull::Deny, SPRAY, 200_000, 10);
    assert!(stats.evicted == 0 && stats.denied_for_room > 0, "{stats:?}");
}

/// Threads that refund, reset, peek and take many at once beside those that spend: the bound stays, and
/// what was given back can be had again.
#[test]
fn everything_at_once_keeps_the_count() {
    let over = AtomicBool::new(false);
    for (text, limit) in
        [("1000/d", 1_000u64), ("fixed 1000/5000d", 1_000), ("log 40/d", 40), ("2000/d; log 40/d", 40)]
    {
        let seed = 11;
        let (limiter, _hand, _clock) = manual(text, 16, WhenFull::Deny, seed);
        let kept = together(THREADS, |index, _| {
            let mut random = Random(seed + index as u64);
            let mut kept = [0u64; 8];
            for _ in 0..if DEBUG { 5_000 } else { 50_000 } {
                let key = random.below(8);
                let cost = 1 + random.below(3);
                let _ = limiter.peek(&random.next());
                if limiter.try_acquire_n(&key, cost).is_allowed() {
                    if random.below(64) == 0 {
                        kept[key as usize] += cost;
                    } else {
                        limiter.refund(&key, cost);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
            kept
        });
        for key in 0..8u64 {
            let kept: u64 = kept.iter().map(|kept| kept[key as usize]).sum();
            assert!(kept <= limit, "seed={seed} `{text}` key {key}: {kept} kept of {limit}");
            let left = limiter.peek_n(&key, 0).remaining();
            assert_eq!(left, limit - kept, "seed={seed} `{text}` key {key}");
        }
    }
    assert!(over.into_inner());
}
