//! Booking ahead and waiting: order, exact arithmetic, moving up, and nothing lost by whoever gives up.
//!
//! Time is the manual clock's, but where waiting itself is measured. Every run uses the same seeds.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests")]

mod changes;
#[cfg(feature = "tokio")]
mod tasks;

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
