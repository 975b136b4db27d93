//! Models of a policy that is changed while others ask: each request goes by the one before or the one after.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_thoroughly, explore_within, law, limiter, together};
use std::sync::Arc;
use std::time::Duration;
use tollgate::model::Fault;
use tollgate::{Limiter, WhenFull};

fn change(limiter: &Arc<Limiter>, policy: &'static str) -> Job<u64> {
    let limiter = Arc::clone(limiter);
    Box::new(move || {
        law(limiter.set_policy(policy).is_ok(), || format!("`{policy}` was not accepted"));
        0
    })
}

fn ask(limiter: &Arc<Limiter>, cost: u64) -> Job<u64> {
    let limiter = Arc::clone(limiter);
    Box::new(move || if limiter.try_acquire_n("key", cost).is_allowed() { cost } else { 0 })
}

/// The first policy would let two pass at once. It was replaced before; neither of the two that are in force while
/// the request is made would.
fn never_the_first_again() {
    explore_within("second policy to third beside a request", 3, || {
        let (limiter, _hand) = limiter("1/h burst 2", 1, WhenFull::Deny);
        law(limiter.set_policy("1/h").is_ok(), || "not accepted".to_owned());
        let passed: u64 = together(vec![change(&limiter, "1/2h"), ask(&limiter, 2)]).into_iter().sum();
        law(passed == 0, || format!("{passed} passed by a policy that was no longer in force"));
    });
}

#[test]
fn a_policy_that_is_over_does_not_come_back() {
    never_the_first_again();
    caught(Fault::PublishesEarly, never_the_first_again);
}

/// Two requests beside a change from a burst of one to one of two: no more than two pass, and what is left is what
/// the new policy has left.
fn raised_beside_requests() {
    explore_within("raised beside requests", 2, || {
        let (limiter, _hand) = limiter("1/h burst 1", 1, WhenFull::Deny);
        let jobs = vec![change(&limiter, "1/h burst 2"), ask(&limiter, 1), ask(&limiter, 1)];
        let mut passed: u64 = together(jobs).into_iter().sum();
        law(passed >= 1, || "nothing passed".to_owned());
        while limiter.try_acquire("key").is_allowed() {
            passed += 1;
        }
        law(passed == 2, || format!("{passed} passed under bursts of 1 and then 2"));
    });
}

#[test]
fn requests_beside_a_raise_stay_within_it() {
    raised_beside_requests();
    caught(Fault::LoadThenStore, raised_beside_requests);
}

/// Both policies let one pass, by different rules; the mildest rules of the two together would let two.
fn one_policy_a_request() {
    explore_thoroughly("two rules change places beside requests", [3, 1], || {
        let (limiter, _hand) = limiter("fixed 9/h; sliding 9/h", 1, WhenFull::Deny);
        // Before any change there is nothing to mix: the policy of the build is reached in one step.
        law(limiter.set_policy("fixed 2/h; sliding 1/h").is_ok(), || "not accepted".to_owned());
        let asks: Job<u64> = {
            let limiter = Arc::clone(&limiter);
            Box::new(move || (0..2).map(|_| u64::from(limiter.try_acquire("key").is_allowed())).sum())
        };
        let passed: u64 = together(vec![change(&limiter, "fixed 1/h; sliding 2/h"), asks]).into_iter().sum();
        law(passed <= 1, || format!("{passed} passed, and either policy lets 1"));
    });
}

#[test]
fn a_request_goes_by_one_policy_from_beginning_to_end() {
    one_policy_a_request();
    caught(Fault::MixesPolicies, one_policy_a_request);
}

/// Whoever has seen the third policy never sees the first again, and neither does anybody after the change to the
/// second.
fn seen_is_seen() {
    explore_thoroughly("looks beside a change", [3, 3], || {
        let (limiter, _hand) = limiter("1/h burst 3", 1, WhenFull::Deny);
        law(limiter.set_policy("1/h burst 2").is_ok(), || "not accepted".to_owned());
        let looks: Job<u64> = {
            let limiter = Arc::clone(&limiter);
            Box::new(move || {
                let seen = [0; 3].map(|_| limiter.policy().rules()[0].limit());
                law(seen.is_sorted_by(|before, after| before >= after), || format!("{seen:?} seen in turn"));
                law(seen[0] < 3, || "the first policy is seen after the second".to_owned());
                0
            })
        };
        together(vec![change(&limiter, "1/h burst 1"), looks]);
    });
}

#[test]
fn whoever_has_seen_a_policy_never_sees_an_earlier_one() {
    seen_is_seen();
    caught(Fault::PublishesEarly, seen_is_seen);
}

/// A request that still goes by the old policy, whose whole burst is less than what the new one has let pass
/// meanwhile: it must not take the debt for something an earlier rule left behind, and cut it down.
fn late_request_leaves_the_new_debt() {
    explore_within("a late request after a raise", 3, || {
        let (limiter, _hand) = limiter("1/h burst 1", 1, WhenFull::Deny);
        let raise_and_take: Job<u64> = {
            let limiter = Arc::clone(&limiter);
            Box::new(move || {
                law(limiter.set_policy("1/h burst 2").is_ok(), || "not accepted".to_owned());
                if limiter.try_acquire_n("key", 2).is_allowed() { 2 } else { 0 }
            })
        };
        let mut passed: u64 = together(vec![raise_and_take, ask(&limiter, 1)]).into_iter().sum();
        while limiter.try_acquire("key").is_allowed() {
            passed += 1;
        }
        law(passed == 2, || format!("{passed} passed under a burst of 2"));
    });
}

#[test]
fn a_late_request_does_not_forgive_what_the_new_policy_let_pass() {
    late_request_leaves_the_new_debt();
    caught(Fault::LoadThenStore, late_request_leaves_the_new_debt);
}

/// A request that still goes by the old policy may write after the change has swept the table. Whoever asks from
/// then on waits no longer than the new policy can make a key wait, from the first time it is refused.
fn late_write_leaves_nobody_stuck(before: &'static str, after: &'static str, memory: Duration) {
    explore_within(&format!("a late write under `{before}`"), 3, move || {
        let (limiter, hand) = limiter(before, 4, WhenFull::Deny);
        together(vec![change(&limiter, after), ask(&limiter, 1)]);
        let refused = limiter.try_acquire("key").is_denied();
        hand.advance(memory + Duration::from_secs(2));
        let decision = limiter.try_acquire("key");
        law(decision.is_allowed(), || format!("refused at first: {refused}, and still: {decision:?}"));
    });
}

#[test]
fn a_late_write_leaves_nobody_stuck() {
    let minute = Duration::from_secs(60);
    late_write_leaves_nobody_stuck("1/h", "1/min", minute);
    late_write_leaves_nobody_stuck("1/h; 1/d", "1/s; 1/min", minute);
    late_write_leaves_nobody_stuck("log 1/h", "log 1/min", minute);
    for [before, after] in [["1/h", "1/min"], ["1/h; 1/d", "1/s; 1/min"]] {
        caught(Fault::LeavesUncut, || late_write_leaves_nobody_stuck(before, after, minute));
    }
}

/// A first change, too: whoever sees the new policy is not decided upon by the old one.
fn seen_before_asking() {
    explore_thoroughly("a request after a look beside the first change", [3, 3], || {
        let (limiter, _hand) = limiter("1/h burst 2", 1, WhenFull::Deny);
        let look_then_ask: Job<u64> = {
            let limiter = Arc::clone(&limiter);
            Box::new(move || {
                let seen = limiter.policy().rules()[0].limit();
                let passed = limiter.try_acquire_n("key", 2).is_allowed();
                law(seen == 2 || !passed, || "two passed after a burst of one was seen in force".to_owned());
                0
            })
        };
        together(vec![change(&limiter, "1/h burst 1"), look_then_ask]);
    });
}

#[test]
fn whoever_has_seen_a_policy_is_decided_upon_by_it() {
    seen_before_asking();
    caught(Fault::FlagsLate, seen_before_asking);
}
