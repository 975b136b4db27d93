//! Models of waiting for one's turn, without timers: whoever is dropped was never there for those who go on, who are
//! told when they move up; nothing is lost and nobody passes who should not.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_thoroughly, law, limiter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;
use tollgate::model::{Fault, Waiter};
use tollgate::{Limiter, ManualHand, WhenFull};

const KEY: &str = "key";
const HOUR: Duration = Duration::from_secs(3_600);

/// How often somebody was woken.
#[derive(Default)]
struct Rung(AtomicU64);

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Somebody who waits, and what a runtime does for it: it is polled when it was woken, or its timer is due.
struct Task<'a> {
    waiter: Waiter<'a>,
    hand: ManualHand,
    rung: Arc<Rung>,
    waker: Waker,
    /// How often it had been woken when it was last polled; none before that.
    seen: Option<u64>,
    until: Duration,
    is_served: bool,
}

impl<'a> Task<'a> {
    fn new(limiter: &'a Limiter, hand: &ManualHand) -> Self {
        let rung = Arc::new(Rung::default());
        let waker = Waker::from(Arc::clone(&rung));
        let waiter = limiter.waiter(KEY);
        Self { waiter, hand: hand.clone(), rung, waker, seen: None, until: Duration::ZERO, is_served: false }
    }

    /// Polls for as long as a runtime would.
    fn run(&mut self) {
        while !self.is_served {
            let rung = self.rung.0.load(Ordering::Relaxed);
            if self.seen == Some(rung) && self.until > self.hand.now() {
                return;
            }
            self.seen = Some(rung);
            match self.waiter.step(&self.waker) {
                Ok(decision) => {
                    law(decision.is_allowed(), || format!("refused after waiting: {decision:?}"));
                    self.is_served = true;
                }
                Err(until) => self.until = until,
            }
        }
    }
}

/// What another thread does; it says how many it was admitted.
type Other = fn(&Limiter, &ManualHand) -> u64;

/// Comes to wait, and is dropped.
const GIVES_UP: Other = |limiter, hand| {
    Task::new(limiter, hand).run();
    0
};

/// The same at the moment at which it would be served, if it came first.
const GIVES_UP_WHEN_DUE: Other = |limiter, hand| {
    let mut task = Task::new(limiter, hand);
    task.run();
    hand.advance(HOUR);
    drop(task);
    0
};

/// Asks and does not wait.
const ASKS: Other = |limiter, _hand| u64::from(limiter.try_acquire(KEY).is_allowed());

/// A key that has used up what it gets in an hour, and somebody who waits for it beside others that are gone in the end:
/// it is served in an hour, and all that is owed then is what it took.
fn is_served_as_if_alone(
    policy: &'static str,
    preemptions_max: [usize; 2],
    others: &'static [Other],
    is_due: bool,
) {
    let name = format!("waiting under `{policy}` beside {} others, due: {is_due}", others.len());
    explore_thoroughly(&name, preemptions_max, move || {
        let (limiter, hand) = limiter(policy, 1, WhenFull::Deny);
        law(limiter.try_acquire(KEY).is_allowed(), || "the scene cannot be set".to_owned());
        let job = |&other: &Other| {
            let (limiter, hand) = (Arc::clone(&limiter), hand.clone());
            let job: Job<u64> = Box::new(move || other(&limiter, &hand));
            loom::thread::spawn(job)
        };
        let others: Vec<_> = others.iter().map(job).collect();
        let mut task = Task::new(&limiter, &hand);
        task.run();
        let passed: u64 = others.into_iter().filter_map(|other| other.join().ok()).sum();
        law(passed == 0, || format!("{passed} passed before somebody who waited"));
        task.run();
        if !is_due {
            law(!task.is_served && task.until == HOUR, || {
                format!("sleeps until {:?} behind nobody; served: {}", task.until, task.is_served)
            });
            hand.advance(HOUR);
            task.run();
        }
        law(task.is_served, || format!("sleeps on until {:?} when its moment has come", task.until));
        let decision = limiter.peek(KEY);
        law(decision.remaining() == 0 && decision.reset_after() == HOUR, || {
            format!("{:?} owed for one that was served", decision.reset_after())
        });
    });
}

#[test]
fn whoever_waits_moves_up_when_another_is_dropped() {
    let model = || is_served_as_if_alone("1/h burst 1", [3, 2], &[GIVES_UP], false);
    model();
    caught(Fault::TellsNobody, model);
    caught(Fault::NoHandBack, model);
    is_served_as_if_alone("1/h burst 1", [2, 1], &[GIVES_UP, GIVES_UP], false);
    let beside_a_request = || is_served_as_if_alone("1/h burst 1", [2, 1], &[GIVES_UP, ASKS], false);
    beside_a_request();
    caught(Fault::TellsNobody, beside_a_request);
}

#[test]
fn whoever_waits_is_served_when_another_is_dropped_that_was_due() {
    let model = || is_served_as_if_alone("1/h burst 1", [3, 2], &[GIVES_UP_WHEN_DUE], true);
    model();
    caught(Fault::TellsNobody, model);
    caught(Fault::NoHandBack, model);
}

/// Nothing can be booked: they stand in line, and the front one asks.
#[test]
fn the_next_in_line_is_called_when_another_is_dropped() {
    const OTHERS: [&[Other]; 2] = [&[GIVES_UP], &[GIVES_UP, GIVES_UP]];
    for others in OTHERS {
        let model = || is_served_as_if_alone("fixed 1/h", [3, 1], others, false);
        model();
        caught(Fault::TellsNobody, model);
    }
}
