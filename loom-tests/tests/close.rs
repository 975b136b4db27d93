//! Models of a table that is closed while others charge: whoever was told that it may pass is in the snapshot,
//! and nobody passes afterwards.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_thoroughly, law, limiter, together};
use std::sync::Arc;
use std::time::Duration;
use tollgate::model::{Fault, TakeoverStep, with_generations};
use tollgate::{Cause, Clock, Limiter, WhenFull};

const KEYS: u64 = 3;
const HOUR: Duration = Duration::from_secs(3_600);

/// A limiter with one bucket of two slots, and what happens to it.
#[derive(Clone, Copy)]
struct Closing {
    name: &'static str,
    policy: &'static str,
    burst: u64,
    /// The keys that ask beforehand.
    before: &'static [u64],
    /// How long nothing happens then.
    pause: Duration,
    /// A key whose thread was stopped for ever, having claimed a slot.
    stopped: Option<u64>,
    /// The keys that each thread asks for, one after the other, beside the one that closes.
    threads: &'static [&'static [u64]],
    /// As in [`loom_tests::Scene`].
    preemptions_max: [usize; 2],
}

enum Did {
    Closed(Vec<u8>),
    Took([u64; KEYS as usize]),
}

fn take(limiter: &Limiter, keys: &[u64]) -> [u64; KEYS as usize] {
    let mut admitted = [0; KEYS as usize];
    for &key in keys {
        let decision = limiter.try_acquire(&key);
        if decision.is_allowed() {
            admitted[usize::try_from(key).unwrap_or(0)] += 1;
        }
    }
    admitted
}

impl Closing {
    fn play(self) {
        explore_thoroughly(self.name, self.preemptions_max, move || {
            let (limiter, hand) = limiter(self.policy, 1, WhenFull::Deny);
            let mut admitted = take(&limiter, self.before);
            if self.pause > Duration::ZERO {
                // All of it has come back by then.
                hand.advance(self.pause);
                admitted = [0; KEYS as usize];
            }
            if let Some(key) = self.stopped {
                limiter.abandon(&key, TakeoverStep::Claim);
            }
            let mut jobs: Vec<Job<Did>> = Vec::new();
            for &keys in self.threads {
                let limiter = Arc::clone(&limiter);
                jobs.push(Box::new(move || Did::Took(take(&limiter, keys))));
            }
            let closing = Arc::clone(&limiter);
            jobs.push(Box::new(move || Did::Closed(closing.close())));
            let mut bytes = Vec::new();
            for did in together(jobs) {
                match did {
                    Did::Closed(snapshot) => bytes = snapshot,
                    Did::Took(each) => {
                        for (sum, one) in admitted.iter_mut().zip(each) {
                            *sum += one;
                        }
                    }
                }
            }
            let (clock, restored_hand) = Clock::manual();
            restored_hand.set(hand.now());
            let builder = Limiter::builder().policy(self.policy).max_keys(1).clock(clock);
            let restored = match builder.restore(&bytes).build() {
                Ok(restored) => restored,
                Err(error) => panic!("{error}"),
            };
            for (key, admitted) in (0..KEYS).zip(admitted) {
                let left = restored.peek_n(&key, 0).remaining();
                law(left + admitted == self.burst, || {
                    format!("key {key}: {admitted} admitted of {}, and {left} left afterwards", self.burst)
                });
            }
            let late = (0..KEYS).map(|key| limiter.try_acquire(&key));
            law(late.clone().all(|late| late.is_denied() && late.cause() == Cause::Closed), || {
                "somebody passed a closed limiter".to_owned()
            });
            law(limiter.stats().live_keys == 0, || "something is left in a closed limiter".to_owned());
        });
    }
}

/// Key 0 is there, and charged while the table is closed.
const LIVE: Closing = Closing {
    name: "close beside charges of a live key",
    policy: "1/h burst 3",
    burst: 3,
    before: &[0],
    pause: Duration::ZERO,
    stopped: None,
    threads: &[&[0, 0]],
    preemptions_max: [usize::MAX, 3],
};

#[test]
fn a_live_key() {
    for (policy, burst) in [("1/h burst 3", 3), ("fixed 3/h", 3), ("sliding 3/h", 3)] {
        Closing { policy, burst, ..LIVE }.play();
    }
    caught(Fault::ClosesUnsealed, || LIVE.play());
    caught(Fault::LoadThenStore, || LIVE.play());
    let two = Closing { threads: &[&[0], &[0]], preemptions_max: [2, 0], ..LIVE };
    two.play();
    caught(Fault::ClosesUnsealed, || two.play());
}

/// Nobody is there, and key 0 is brought in while the table is closed.
const NEW: Closing =
    Closing { name: "close beside a new key", before: &[], preemptions_max: [usize::MAX, 2], ..LIVE };

#[test]
fn a_new_key() {
    NEW.play();
    caught(Fault::ClosesUnsealed, || NEW.play());
    caught(Fault::LoadThenStore, || NEW.play());
    // Two that bring in the same key, one of which may go on with the other's claim; and two keys.
    const PAIRS: [&[&[u64]]; 2] = [&[&[0], &[0]], &[&[0], &[1]]];
    for threads in PAIRS {
        let scene = Closing { threads, preemptions_max: [1, 0], ..NEW };
        scene.play();
        caught(Fault::ClosesUnsealed, || scene.play());
    }
}

/// The fence between the claim and the question whether it is too late is the one before the search for twins.
#[test]
fn a_claim_and_the_closing_are_in_one_order() {
    caught(Fault::NoFence, || NEW.play());
}

/// Both slots are worth nothing: key 2 takes one over, or its old owner comes back to it.
const TAKEOVER: Closing = Closing {
    name: "close beside a takeover",
    policy: "1/h burst 1",
    burst: 1,
    before: &[0, 1],
    pause: HOUR,
    threads: &[&[2]],
    preemptions_max: [3, 2],
    ..LIVE
};

#[test]
fn a_takeover() {
    let model = || {
        TAKEOVER.play();
        Closing { threads: &[&[0]], ..TAKEOVER }.play();
        Closing { threads: &[&[0], &[2]], preemptions_max: [1, 0], ..TAKEOVER }.play();
    };
    model();
    caught(Fault::ClosesUnsealed, model);
    for first in [0xffff, 0x7f] {
        with_generations(first, u64::MAX, || {
            Closing { preemptions_max: [2, 1], ..TAKEOVER }.play();
        });
    }
}

/// A claim whose thread was stopped for ever: the closer does not wait for it, nor does the key's next thread.
#[test]
fn a_claim_that_nobody_commits_to() {
    let scene = Closing { name: "close beside an abandoned claim", stopped: Some(0), ..NEW };
    scene.play();
    caught(Fault::ClosesUnsealed, || scene.play());
}
