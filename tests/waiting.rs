//! Booking ahead and waiting: order, exact arithmetic, moving up, and nothing lost by whoever gives up.
//!
//! Time is the manual clock's, but where waiting itself is measured. Every run uses the same seeds.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests")]

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use std::time::Duration;
use tollgate::{Cause, Clock, Limiter, ManualHand, Outcome, Reservation, Wait};

const CASES: u32 = if cfg!(debug_assertions) { 300 } else { 2_000 };
const SEED: u64 = 0x7761_6974_696e_6721;
const NS: Duration = Duration::from_nanos(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn manual(policy: &str) -> (Limiter, ManualHand) {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder().policy(policy).max_keys(64).seeds([1, 2, 3, 4]).clock(clock).build();
    (limiter.unwrap(), hand)
}

#[test]
fn bookings_are_served_in_order_to_the_nanosecond() {
    let (limiter, hand) = manual("10/s burst 2");
    let booked: Vec<_> = (0..6).map(|_| limiter.reserve("key", 1, HOUR).unwrap()).collect();
    let waits =
        |booked: &[Reservation<'_>]| booked.iter().map(|each| each.wait().as_millis()).collect::<Vec<_>>();
    assert_eq!(waits(&booked), [0, 0, 100, 200, 300, 400]);
    assert!(limiter.try_acquire("key").is_denied());
    assert_eq!(limiter.peek("key").retry_after(), Some(500 * MS));

    hand.advance(100 * MS - NS);
    assert_eq!((booked[2].wait(), booked[2].is_due()), (NS, false));
    hand.advance(NS);
    assert!(booked[2].is_due() && !booked[3].is_due());
    assert_eq!(waits(&booked), [0, 0, 0, 100, 200, 300]);
    assert_eq!(limiter.reserve("other", 2, Duration::ZERO).unwrap().wait(), Duration::ZERO);
}

#[test]
fn a_refusal_for_too_long_a_wait_charges_nothing() {
    let (limiter, hand) = manual("1/s burst 3");
    limiter.reserve("key", 3, Duration::ZERO).unwrap().commit(3);
    let before = limiter.peek("key").reset_after();
    let denied = limiter.reserve("key", 2, 2 * SECOND - NS).unwrap_err();
    assert_eq!(denied.retry_after(), Some(2 * SECOND));
    assert_eq!(limiter.peek("key").reset_after(), before);

    let never = limiter.reserve("key", 4, HOUR).unwrap_err();
    assert_eq!((never.decision().outcome(), never.retry_after()), (Outcome::NeverFits, None));
    assert_eq!(limiter.peek("key").reset_after(), before);

    let nothing = limiter.reserve("key", 0, Duration::ZERO).unwrap();
    assert!(nothing.is_due() && nothing.decision().is_allowed());
    drop(nothing);
    assert_eq!(limiter.peek("key").reset_after(), before);

    let booked = limiter.reserve("key", 2, 2 * SECOND).unwrap();
    assert_eq!(booked.wait(), 2 * SECOND);
    drop(booked);
    assert_eq!(limiter.peek("key").reset_after(), before);
    hand.advance(2 * SECOND - NS);
    assert!(limiter.reserve("key", 2, Duration::ZERO).is_err());
    hand.advance(NS);
    assert!(limiter.reserve("key", 2, Duration::ZERO).is_ok());
}

#[test]
fn whoever_gives_up_lets_those_behind_move_up() {
    let (limiter, hand) = manual("1/s burst 1");
    let mut booked: Vec<_> = (0..6).map(|_| limiter.reserve("key", 1, HOUR).unwrap()).collect();
    let waits =
        |booked: &[Reservation<'_>]| booked.iter().map(|each| each.wait().as_secs()).collect::<Vec<_>>();
    drop(booked.remove(2));
    assert_eq!(waits(&booked), [0, 1, 2, 3, 4]);
    // Whoever comes now books on what was given back, and must not have it twice.
    booked.push(limiter.reserve("key", 1, HOUR).unwrap());
    assert_eq!(waits(&booked), [0, 1, 2, 3, 4, 5]);
    drop(booked.remove(5));
    drop(booked.remove(1));
    booked.push(limiter.reserve("key", 1, HOUR).unwrap());
    assert_eq!(waits(&booked), [0, 1, 2, 3, 4]);
    // One that need not wait gives back too.
    booked.remove(0).commit(0);
    assert_eq!(waits(&booked), [0, 1, 2, 3]);
    hand.advance(SECOND);
    assert_eq!(waits(&booked), [0, 0, 1, 2]);
    // It has been due for a second: all it held up has come back by itself.
    booked.remove(0).cancel();
    assert_eq!(waits(&booked), [0, 1, 2]);
    drop(booked);
    assert_eq!(limiter.peek("key").remaining(), 1);
}

#[test]
fn what_was_moved_up_is_not_given_back_twice() {
    let (limiter, hand) = manual("1/s burst 2");
    let first = limiter.reserve("key", 1, HOUR).unwrap();
    let second = limiter.reserve("key", 1, HOUR).unwrap();
    first.cancel();
    hand.advance(1_200 * MS);
    assert!(limiter.try_acquire("key").is_allowed());
    hand.advance(300 * MS);
    // Without the first, the second was back at 1 s: at 1.5 s it has nothing left to give.
    second.cancel();
    assert_eq!(limiter.peek("key").reset_after(), 700 * MS);
}

#[test]
fn a_settlement_gives_back_or_goes_into_debt() {
    let (limiter, hand) = manual("10/s burst 10");
    limiter.reserve("key", 8, Duration::ZERO).unwrap().commit(3);
    assert_eq!(limiter.peek("key").remaining(), 7);
    let more = limiter.reserve("key", 7, Duration::ZERO).unwrap();
    let behind = limiter.reserve("key", 1, HOUR).unwrap();
    more.commit(27);
    // Whoever has booked keeps its moment, whoever comes pays for the debt.
    assert_eq!(behind.wait(), 100 * MS);
    assert_eq!(limiter.peek("key").retry_after(), Some(2_200 * MS));
    behind.commit(1);
    hand.advance(2_200 * MS);
    assert_eq!(limiter.peek("key").remaining(), 1);
    // A debt ends where the word does, and is not forgotten there.
    limiter.reserve("key", 1, Duration::ZERO).unwrap().commit(u64::MAX);
    assert!(limiter.peek("key").retry_after() > Some(24 * 200 * HOUR));
    limiter.reserve("other", 0, Duration::ZERO).unwrap().commit(4);
    assert_eq!(limiter.peek("other").remaining(), 6);
}

#[test]
fn lists_have_their_say_and_charge_nothing() {
    let (limiter, hand) = manual("1/s burst 1");
    hand.advance(SECOND);
    limiter.allow("friend").unwrap();
    limiter.deny("foe").unwrap();
    for _ in 0..3 {
        limiter.reserve("friend", 100, Duration::ZERO).unwrap().commit(200);
    }
    let denied = limiter.reserve("foe", 1, HOUR).unwrap_err().decision();
    assert_eq!((denied.cause(), denied.retry_after()), (Cause::List, None));
    assert_eq!(limiter.acquire_blocking("foe").cause(), Cause::List);
    assert!(limiter.acquire_blocking("friend").is_allowed());
}

#[test]
fn other_policies_reserve_only_what_fits_now() {
    for policy in ["fixed 3/h", "sliding 3/h", "log 3/h", "3/h; 100/d"] {
        let (limiter, _hand) = manual(policy);
        let first = limiter.reserve("key", 2, HOUR).unwrap();
        assert!(first.is_due());
        assert!(limiter.reserve("key", 2, HOUR).is_err(), "{policy}");
        first.commit(1);
        assert_eq!(limiter.peek("key").remaining(), 2, "{policy}");
        limiter.reserve("key", 1, HOUR).unwrap().commit(9);
        assert_eq!(limiter.peek("key").remaining(), 0, "{policy}");
        assert_eq!(limiter.reserve("key", 4, HOUR).unwrap_err().decision().outcome(), Outcome::NeverFits);
        let other = limiter.reserve("other", 3, HOUR).unwrap();
        drop(other);
        assert_eq!(limiter.peek("other").remaining(), 3, "{policy}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Reserve { cost: u64, wait: u64 },
    Take(u64),
    Settle { which: usize, actual: u64 },
    Cancel(usize),
    Refund(u64),
    Advance(u64),
}

/// The obvious way: everybody's place on the word, in order, and all of them moved when one of them gives back.
struct Model {
    interval: i128,
    unit: u32,
    full: i128,
    now: i128,
    word: i128,
    booked: Vec<Booked>,
    /// What was admitted, and when.
    served: Vec<(i128, u64)>,
}

struct Booked {
    number: usize,
    cost: u64,
    end: i128,
    /// When its moment came, if it has.
    begun: Option<i128>,
    settled: Option<u64>,
}

impl Model {
    fn new(count: u64, period_ns: u64, burst: u64) -> Self {
        let interval_at = |unit: u32| {
            (i128::from(period_ns) << unit).div_euclid(i128::from(count))
                + i128::from((i128::from(period_ns) << unit) % i128::from(count) != 0)
        };
        let unit = (0..12).find(|&unit| interval_at(unit) >= 1 << 17).unwrap_or(12);
        let interval = interval_at(unit);
        let full = interval * i128::from(burst);
        Self { interval, unit, full, now: 0, word: 0, booked: Vec::new(), served: Vec::new() }
    }

    fn ns(&self, units: i128) -> u64 {
        ((units.max(0) + (1 << self.unit) - 1) >> self.unit) as u64
    }

    fn spend(&mut self, cost: u64, wait_ns_max: u64) -> Result<i128, u64> {
        let end = self.word.max(self.now) + self.interval * i128::from(cost);
        match self.ns(end - self.full - self.now) {
            wait_ns if wait_ns > wait_ns_max => Err(wait_ns),
            _ => {
                self.word = end;
                Ok(end)
            }
        }
    }

    fn settle(&mut self, number: usize, actual: u64) {
        let place = self.booked.iter().position(|each| each.number == number).unwrap();
        let (cost, end) = (self.booked[place].cost, self.booked[place].end);
        self.booked[place].settled = Some(actual.min(cost));
        let back = self.interval * i128::from(cost.saturating_sub(actual));
        let back = back.min(end - self.now).max(0);
        self.word = (self.word - back).max(self.now);
        for behind in &mut self.booked[place + 1..] {
            behind.end -= back;
        }
        // A debt counts one by one, as if each had been booked.
        for _ in cost..actual {
            let end = self.spend(1, u64::MAX).unwrap();
            self.booked.push(Booked { number: usize::MAX, cost: 1, end, begun: None, settled: Some(1) });
        }
        self.note_begun(self.now);
    }

    /// Notes whose moment has come since a time.
    fn note_begun(&mut self, since: i128) {
        for each in &mut self.booked {
            let moment = each.end - self.full;
            // A moment comes with the first whole nanosecond.
            if each.begun.is_none() && moment <= self.now {
                each.begun = Some(moment.max(since));
            }
        }
        let (over, held) = std::mem::take(&mut self.booked)
            .into_iter()
            .partition::<Vec<_>, _>(|each| each.begun.is_some() && each.settled.is_some());
        self.booked = held;
        self.served.extend(over.iter().map(|each| (each.begun.unwrap(), each.settled.unwrap())));
    }

    fn advance(&mut self, ns: u64) {
        let since = self.now;
        self.now += i128::from(ns) << self.unit;
        self.note_begun(since);
    }

    /// In any span: no more than a burst and what comes back in it.
    fn check_bound(&mut self) -> Result<(), String> {
        let held = self
            .booked
            .iter()
            .map(|each| (each.begun.unwrap_or(each.end - self.full), each.settled.unwrap_or(each.cost)));
        let mut served: Vec<_> = self.served.iter().copied().chain(held).collect();
        served.sort_unstable();
        for (first, &(from, _)) in served.iter().enumerate() {
            let mut spent = 0;
            for &(until, cost) in &served[first..] {
                spent += self.interval * i128::from(cost);
                if spent > self.full + until - from {
                    return Err(format!(
                        "{spent} spent from {from} until {until}, of {}: {served:?}",
                        self.full
                    ));
                }
            }
        }
        Ok(())
    }
}

fn ops(burst: u64, interval_ns: u64, refunds: u32) -> impl Strategy<Value = Vec<Op>> {
    let some_ns = prop_oneof![
        0..=interval_ns,
        0..=4 * interval_ns,
        0..=interval_ns * burst * 2,
        Just(interval_ns),
        Just(interval_ns / 2),
    ];
    let op = prop_oneof![
        4 => (1..=burst, prop_oneof![Just(u64::MAX), 0..=interval_ns * burst * 3])
            .prop_map(|(cost, wait)| Op::Reserve { cost, wait }),
        1 => (1..=burst).prop_map(Op::Take),
        2 => (any::<usize>(), 0..=burst * 2).prop_map(|(which, actual)| Op::Settle { which, actual }),
        2 => any::<usize>().prop_map(Op::Cancel),
        3 => some_ns.prop_map(Op::Advance),
    ];
    let with_refunds = prop_oneof![12 => op.clone(), refunds.max(1) => (1..=burst).prop_map(Op::Refund)];
    vec(if refunds > 0 { with_refunds.boxed() } else { op.boxed() }, 1..60)
}

fn agrees_with_the_model(
    policy: &str,
    (count, period_ns, burst): (u64, u64, u64),
    ops: &[Op],
) -> Result<(), String> {
    let (limiter, hand) = manual(policy);
    let mut model = Model::new(count, period_ns, burst);
    let mut held: Vec<(usize, Reservation<'_>)> = Vec::new();
    for (number, &op) in ops.iter().enumerate() {
        match op {
            Op::Reserve { cost, wait } => {
                let said = limiter.reserve("key", cost, Duration::from_nanos(wait));
                match (said, model.spend(cost, wait)) {
                    (Ok(reservation), Ok(end)) => {
                        held.push((number, reservation));
                        model.booked.push(Booked { number, cost, end, begun: None, settled: None });
                        model.note_begun(model.now);
                    }
                    (Err(denied), Err(wait_ns))
                        if denied.retry_after() == Some(Duration::from_nanos(wait_ns)) => {}
                    (said, expected) => return Err(format!("{op:?}: {said:?}, not {expected:?}")),
                }
            }
            Op::Take(cost) => {
                let said = limiter.try_acquire_n("key", cost);
                match model.spend(cost, 0) {
                    Ok(_) if said.is_allowed() => model.served.push((model.now, cost)),
                    Err(wait_ns) if said.retry_after() == Some(Duration::from_nanos(wait_ns)) => {}
                    expected => return Err(format!("{op:?}: {said:?}, not {expected:?}")),
                }
            }
            Op::Settle { .. } | Op::Cancel(_) if held.is_empty() => {}
            Op::Settle { which, actual } => {
                let (number, reservation) = held.remove(which % held.len());
                reservation.commit(actual);
                model.settle(number, actual);
            }
            Op::Cancel(which) => {
                let (number, reservation) = held.remove(which % held.len());
                reservation.cancel();
                model.settle(number, 0);
            }
            Op::Refund(cost) => {
                limiter.refund("key", cost);
                model.word = (model.word - model.interval * i128::from(cost)).max(model.now);
            }
            Op::Advance(ns) => {
                hand.advance(Duration::from_nanos(ns));
                model.advance(ns);
            }
        }
        for (number, reservation) in &held {
            let booked = model.booked.iter().find(|each| each.number == *number).unwrap();
            let moment = booked.end - model.full - model.now;
            let expected = if booked.begun.is_some() { 0 } else { model.ns(moment) };
            let said = reservation.wait().as_nanos() as u64;
            if said != expected {
                return Err(format!("after {number} {op:?}: a wait of {said} ns, not {expected}"));
            }
        }
        let (said, expected) = (limiter.peek("key").reset_after(), model.ns(model.word - model.now));
        if said.as_nanos() as u64 != expected {
            return Err(format!("after {number} {op:?}: {said:?} owed, not {expected} ns"));
        }
    }
    match ops.iter().any(|op| matches!(op, Op::Refund(_))) {
        // What was refunded is said not to have been spent; the word cannot know when that was.
        true => Ok(()),
        false => model.check_bound(),
    }
}

fn agree_with_the_obvious_way(refunds: u32) {
    const POLICIES: [(&str, (u64, u64, u64)); 5] = [
        ("1/s burst 1", (1, 1_000_000_000, 1)),
        ("10/s burst 4", (10, 1_000_000_000, 4)),
        ("3/s burst 7", (3, 1_000_000_000, 7)),
        ("1000003/s burst 5", (1_000_003, 1_000_000_000, 5)),
        ("7/us burst 3", (7, 1_000, 3)),
    ];
    for (policy, parts) in POLICIES {
        let config = Config {
            cases: CASES,
            rng_seed: RngSeed::Fixed(SEED),
            failure_persistence: None,
            ..Config::default()
        };
        let interval_ns = (parts.1 / parts.0).max(1);
        let outcome = TestRunner::new(config).run(&ops(parts.2, interval_ns, refunds), |ops| {
            agrees_with_the_model(policy, parts, &ops).map_err(TestCaseError::fail)
        });
        if let Err(failure) = outcome {
            panic!("`{policy}`, seed {SEED:#x}: {failure}");
        }
    }
}

#[test]
fn bookings_agree_with_the_obvious_way_and_keep_the_bound() {
    agree_with_the_obvious_way(0);
}

#[test]
fn bookings_agree_with_the_obvious_way_beside_refunds() {
    agree_with_the_obvious_way(2);
}

/// Waits until so much is owed: until somebody else has booked.
fn until_owed(limiter: &Limiter, time: Duration) {
    while limiter.peek("key").reset_after() != time {
        std::thread::yield_now();
    }
}

#[test]
fn threads_are_served_in_the_order_they_came() {
    let (limiter, hand) = manual("1000/s burst 1");
    assert!(limiter.acquire_blocking("key").is_allowed());
    let (sender, served) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for number in 0..8_u32 {
            let (limiter, sender) = (&limiter, sender.clone());
            scope.spawn(move || {
                assert!(limiter.acquire_blocking("key").is_allowed());
                sender.send(number).unwrap();
            });
            until_owed(limiter, (number + 2) * MS);
        }
        for number in 0..8 {
            assert!(served.try_recv().is_err());
            hand.advance(MS);
            assert_eq!(served.recv(), Ok(number));
        }
    });
    assert_eq!(limiter.peek("key").reset_after(), MS);
}

#[test]
fn a_thread_that_would_wait_too_long_is_refused() {
    let (limiter, _hand) = manual("1/s burst 2");
    let wait = Wait::new().cost(2).max_wait(2 * SECOND - NS);
    assert!(limiter.acquire_blocking_with("key", wait).is_allowed());
    let denied = limiter.acquire_blocking_with("key", wait);
    assert_eq!(denied.retry_after(), Some(2 * SECOND));
    assert_eq!(limiter.acquire_blocking_with("key", wait.cost(3)).outcome(), Outcome::NeverFits);
    assert_eq!(limiter.peek("key").reset_after(), 2 * SECOND);
}

#[test]
fn a_reservation_given_up_lets_a_thread_go() {
    let (limiter, _hand) = manual("1/h burst 1");
    let booked = limiter.reserve("key", 1, Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| limiter.acquire_blocking("key"));
        until_owed(&limiter, 2 * HOUR);
        booked.cancel();
        assert!(thread.join().unwrap().is_allowed());
    });
    assert_eq!(limiter.peek("key").reset_after(), HOUR);
}

#[test]
fn threads_stand_in_line_where_nothing_can_be_booked() {
    let limiter = Limiter::new("fixed 1/5ms; 1000/s").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert!(limiter.acquire_blocking("key").is_allowed());
                }
            });
        }
    });
}

#[cfg(feature = "tokio")]
mod tasks {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Instant;
    use tokio::runtime::{Builder, Runtime};
    use tollgate::Acquire;

    const WAITERS: usize = 10_000;
    /// What is owed before the first comes: time for all of them to book.
    const HEAD_START: u32 = 500;

    fn one_thread() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn two_threads() -> Runtime {
        Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
    }

    /// A key that gets one a millisecond and owes a little, for ever, and the time at which it owed nothing.
    fn line() -> (&'static Limiter, u64) {
        let limiter: &'static Limiter = Box::leak(Box::new(Limiter::new("1000/s burst 1").unwrap()));
        let start_ns = Clock::precise().now_ns();
        limiter.reserve("key", 1, Duration::ZERO).unwrap().commit(u64::from(HEAD_START));
        (limiter, start_ns)
    }

    /// One that waits: takes its number when it books, and counts how often it is polled.
    struct Waiter {
        acquire: Acquire<'static>,
        next: Arc<Mutex<usize>>,
        number: usize,
        polls: u32,
    }

    #[derive(Clone, Copy, Debug)]
    struct Served {
        number: usize,
        polls: u32,
        at_ns: u64,
    }

    impl Waiter {
        fn new(limiter: &'static Limiter, next: &Arc<Mutex<usize>>) -> Self {
            Self { acquire: limiter.acquire("key"), next: Arc::clone(next), number: 0, polls: 0 }
        }
    }

    impl Future for Waiter {
        type Output = Served;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Served> {
            let this = &mut *self;
            this.polls += 1;
            let polled = if this.polls == 1 {
                // So that numbers are in the order of booking.
                let mut next = this.next.lock().unwrap();
                this.number = *next;
                *next += 1;
                Pin::new(&mut this.acquire).poll(context)
            } else {
                Pin::new(&mut this.acquire).poll(context)
            };
            polled.map(|decision| {
                assert!(decision.is_allowed());
                Served { number: this.number, polls: this.polls, at_ns: Clock::precise().now_ns() }
            })
        }
    }

    /// Has them all wait, drops every second one if asked to, and gives those who were served, in that order; and
    /// until when the key owed something after the drops.
    fn serve(runtime: &Runtime, limiter: &'static Limiter, drop_half: bool) -> (Vec<Served>, u64) {
        let served = Arc::new(Mutex::new(Vec::new()));
        let owed_until_ns = runtime.block_on(async {
            let next = Arc::new(Mutex::new(0));
            let mut tasks: Vec<_> = (0..WAITERS)
                .map(|_| {
                    let (waiter, served) = (Waiter::new(limiter, &next), Arc::clone(&served));
                    tokio::spawn(async move {
                        let one = waiter.await;
                        served.lock().unwrap().push(one);
                    })
                })
                .collect();
            while *next.lock().unwrap() < WAITERS {
                tokio::task::yield_now().await;
            }
            if drop_half {
                let mut kept = Vec::new();
                let mut dropped = Vec::new();
                for (place, task) in tasks.into_iter().enumerate() {
                    if place % 2 == 0 { kept.push(task) } else { dropped.push(task) }
                }
                dropped.iter().for_each(tokio::task::JoinHandle::abort);
                for task in dropped {
                    let _ = task.await;
                }
                tasks = kept;
            }
            let owed_until_ns =
                Clock::precise().now_ns() + limiter.peek("key").reset_after().as_nanos() as u64;
            for task in tasks {
                task.await.unwrap();
            }
            owed_until_ns
        });
        let served = served.lock().unwrap();
        (served.clone(), owed_until_ns)
    }

    /// How late each was, sorted. Nobody may be early.
    fn lateness(served: &[Served], first_ns: u64) -> Vec<Duration> {
        let mut late: Vec<_> = served
            .iter()
            .enumerate()
            .map(|(place, one)| {
                let due_ns = first_ns + place as u64 * 1_000_000;
                Duration::from_nanos(one.at_ns.saturating_sub(due_ns))
            })
            .collect();
        late.sort_unstable();
        late
    }

    fn report(name: &str, late: &[Duration], served: &[Served]) {
        let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
        let mut polls = [0; 5];
        for one in served {
            polls[(one.polls as usize).min(4)] += 1;
        }
        println!(
            "{name}: {} served, late by {:.2?} (median) {:.2?} (p99) {:.2?} (most); polled once, twice, 3, more: {:?}",
            late.len(),
            at(0.5),
            at(0.99),
            at(1.0),
            &polls[1..]
        );
        assert!(at(0.99) < Duration::from_millis(50), "late by {:?}", at(0.99));
    }

    #[test]
    fn ten_thousand_are_served_in_order_and_in_time() {
        let (limiter, start_ns) = line();
        let runtime = one_thread();
        let (served, _) = serve(&runtime, limiter, false);
        assert!(served.iter().enumerate().all(|(place, one)| place == one.number), "not in order");
        let first_ns = start_ns + u64::from(HEAD_START) * 1_000_000;
        assert!(served.iter().all(|one| one.at_ns >= first_ns + one.number as u64 * 1_000_000), "too early");
        report("one thread", &lateness(&served, first_ns), &served);
        // Once to book and once when due; once more if a timer was early by the limiter's clock.
        assert!(served.iter().all(|one| one.polls <= 4));
        assert!(served.iter().filter(|one| one.polls > 2).count() < WAITERS / 20);
    }

    #[test]
    fn ten_thousand_on_several_threads() {
        let (limiter, start_ns) = line();
        let runtime = two_threads();
        let (served, _) = serve(&runtime, limiter, false);
        assert_eq!(served.len(), WAITERS);
        let first_ns = start_ns + u64::from(HEAD_START) * 1_000_000;
        assert!(served.iter().all(|one| one.at_ns >= first_ns + one.number as u64 * 1_000_000), "too early");
        report("two threads", &lateness(&served, first_ns), &served);
        assert!(served.iter().all(|one| one.polls <= 4));
        // Once more for whoever finds that one before it is due too and has not gone yet.
        assert!(served.iter().filter(|one| one.polls > 2).count() < WAITERS / 3);
        // Two that are due in the same instant may be run by two threads in either order: never more than that.
        let swapped = served.windows(2).filter(|pair| pair[0].number > pair[1].number).count();
        println!("two threads: {swapped} swapped with a neighbour");
        assert!(served.iter().enumerate().all(|(place, one)| place.abs_diff(one.number) < 100));
    }

    #[test]
    fn the_rest_go_as_if_the_dropped_had_never_come() {
        let (limiter, start_ns) = line();
        let runtime = two_threads();
        let (served, owed_until_ns) = serve(&runtime, limiter, true);
        assert!(served.len() <= WAITERS / 2 + 500, "{} served", served.len());
        let first_ns = start_ns + u64::from(HEAD_START) * 1_000_000;
        assert!(
            served.iter().enumerate().all(|(place, one)| one.at_ns >= first_ns + place as u64 * 1_000_000),
            "too early"
        );
        report("half dropped", &lateness(&served, first_ns), &served);
        assert!(served.iter().all(|one| one.polls <= 5));
        // What was owed after the drops is what was served: but for the start, which was read a little before, and
        // for what a late one could no longer give back.
        let off_ns = owed_until_ns - (first_ns + served.len() as u64 * 1_000_000);
        println!("half dropped: {off_ns} ns more owed than served");
        assert!(off_ns < 5_000_000);
    }

    /// Polls once, outside of any task.
    fn poll_once(future: Pin<&mut Acquire<'_>>) -> Poll<tollgate::Decision> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn dropped_at_any_point_it_leaves_the_key_as_it_was() {
        let runtime = one_thread();
        let _inside = runtime.enter();
        for policy in ["1000/s burst 2", "fixed 2/h", "1000/h burst 2; 5/d"] {
            for polls in 0..4 {
                let (limiter, hand) = manual(policy);
                assert!(limiter.try_acquire_n("key", 2).is_allowed());
                {
                    let mut future = pin!(limiter.acquire("key"));
                    for _ in 0..polls {
                        assert!(poll_once(future.as_mut()).is_pending());
                        hand.advance(Duration::from_nanos(1));
                    }
                }
                let untouched = manual(policy);
                assert!(untouched.0.try_acquire_n("key", 2).is_allowed());
                untouched.1.advance(hand.now());
                let [left, right] = [&limiter, &untouched.0].map(|limiter| limiter.peek("key"));
                assert_eq!(left.reset_after(), right.reset_after(), "`{policy}` after {polls} polls");
                assert_eq!(left.retry_after(), right.retry_after(), "`{policy}` after {polls} polls");
            }
        }
    }

    #[derive(Default)]
    struct Bell(AtomicU32);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn nobody_is_woken_who_is_not_next() {
        let runtime = one_thread();
        let _inside = runtime.enter();
        let (limiter, hand) = manual("1/h burst 1");
        assert!(limiter.try_acquire("key").is_allowed());
        let bells: [Arc<Bell>; 6] = Default::default();
        let rung = || bells.each_ref().map(|bell| bell.0.load(Ordering::Relaxed));
        let mut futures = bells.each_ref().map(|_| Some(Box::pin(limiter.acquire("key"))));
        let poll = |future: &mut Option<Pin<Box<Acquire<'_>>>>, number: usize| {
            let waker = Waker::from(Arc::clone(&bells[number]));
            future.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        for (number, future) in futures.iter_mut().enumerate() {
            assert!(!poll(future, number));
        }
        // Nobody's turn comes earlier but of those behind, and they need not know yet.
        futures[1] = None;
        futures[3] = None;
        assert_eq!(rung(), [0; 6]);
        // Without the first, the next one's is now an hour away and not three.
        futures[0] = None;
        assert_eq!(rung(), [0, 0, 1, 0, 0, 0]);
        assert!(!poll(&mut futures[2], 2));
        hand.advance(HOUR);
        assert!(poll(&mut futures[2], 2));
        assert_eq!(rung(), [0, 0, 1, 0, 1, 0]);
        // One that is asked before its time does not change anything.
        assert!(!poll(&mut futures[5], 5));
        hand.advance(HOUR);
        assert!(poll(&mut futures[4], 4));
        assert_eq!(rung(), [0, 0, 1, 0, 1, 1]);
        // Due, though it has not heard: the one behind is not held up by one that does not come.
        hand.advance(HOUR);
        let mut late = Some(Box::pin(limiter.acquire("key")));
        assert!(!poll(&mut late, 0));
        assert!(poll(&mut futures[5], 5));
        hand.advance(HOUR);
        assert!(poll(&mut late, 0));
        assert_eq!(limiter.peek("key").reset_after(), HOUR);
    }

    #[test]
    fn dropped_in_jitter_it_hands_back_what_it_holds() {
        let runtime = one_thread();
        runtime.block_on(async {
            let (limiter, hand) = manual("1000/s burst 1");
            assert!(limiter.try_acquire("key").is_allowed());
            let wait = Wait::new().jitter(HOUR);
            let mut future = Box::pin(limiter.acquire_with("key", wait));
            assert!(poll_once(future.as_mut()).is_pending());
            hand.advance(MS);
            tokio::time::sleep(5 * MS).await;
            // Its moment has come, and it sleeps on.
            assert!(poll_once(future.as_mut()).is_pending());
            assert!(limiter.try_acquire("key").is_denied());
            drop(future);
            assert!(limiter.try_acquire("key").is_allowed());

            let mut future = Box::pin(limiter.acquire_with("key", wait));
            assert!(poll_once(future.as_mut()).is_pending());
            hand.advance(MS);
            assert!(poll_once(future.as_mut()).is_pending());
            hand.advance(HOUR);
            assert!(poll_once(future.as_mut()).is_ready());
        });
    }

    #[test]
    fn refusals_come_at_once() {
        let runtime = one_thread();
        runtime.block_on(async {
            let (limiter, hand) = manual("1/h burst 2");
            hand.advance(HOUR);
            assert_eq!(limiter.acquire_n("key", 3).await.outcome(), Outcome::NeverFits);
            assert!(limiter.acquire_n("key", 2).await.is_allowed());
            let denied = limiter.acquire_with("key", Wait::new().max_wait(SECOND)).await;
            assert_eq!(denied.retry_after(), Some(HOUR));
            limiter.deny("foe").unwrap();
            assert_eq!(limiter.acquire("foe").await.cause(), Cause::List);
            let (limiter, _hand) = manual("fixed 1/h");
            assert!(limiter.acquire("key").await.is_allowed());
            let denied = limiter.acquire_with("key", Wait::new().max_wait(SECOND)).await;
            assert_eq!(denied.retry_after(), Some(HOUR));
        });
    }

    #[test]
    fn without_a_booking_they_stand_in_line() {
        let limiter: &'static Limiter = Box::leak(Box::new(Limiter::new("fixed 1/10ms").unwrap()));
        let served = Arc::new(Mutex::new(Vec::new()));
        one_thread().block_on(async {
            let tasks: Vec<_> = (0..12)
                .map(|number| {
                    let served = Arc::clone(&served);
                    tokio::spawn(async move {
                        assert!(limiter.acquire("key").await.is_allowed());
                        served.lock().unwrap().push(number);
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            // The front one among them: the next has to be told.
            for number in [1, 2, 5] {
                tasks[number].abort();
            }
            for task in tasks {
                let _ = task.await;
            }
        });
        let served = served.lock().unwrap().clone();
        assert!(served.is_sorted() && served.len() >= 9, "{served:?}");
    }

    #[test]
    fn jitter_spreads_and_nobody_is_early() {
        let (limiter, start_ns) = line();
        let wait = Wait::new().jitter(50 * MS);
        let start = Instant::now();
        let late: Vec<_> = two_threads().block_on(async {
            let tasks: Vec<_> = (0..40)
                .map(|_| {
                    tokio::spawn(async move {
                        assert!(limiter.acquire_with("key", wait).await.is_allowed());
                        Clock::precise().now_ns()
                    })
                })
                .collect();
            let mut served = Vec::new();
            for task in tasks {
                served.push(task.await.unwrap());
            }
            served
        });
        let first_ns = start_ns + u64::from(HEAD_START) * 1_000_000;
        assert!(late.iter().all(|&at_ns| at_ns >= first_ns));
        println!("jitter: the last of 40 after {:.0?}", start.elapsed());
    }
}
