//! Several processes and one limit: never above it, strict or leased, and in leased mode nearly all of it with few calls.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests; the numbers are small")]

mod redis_support;

use redis_support::nodes::{HOLD, Load, Outcome, most_at_once, run_if_node};
use redis_support::{Server, programs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Not a test by itself: what the processes of the others run.
#[test]
fn node() {
    run_if_node();
}

/// One at a time: processes of two loads would take the machine from each other.
static ALONE: Mutex<()> = Mutex::new(());
/// Two of three have to be good, of those in which the machine let the nodes do what they wanted to.
const GOOD: usize = 2;
const NOT_GOOD: usize = 2;
/// After so many, a machine that is busy with something else is not asked any more how well the limit is used.
const TRIES: usize = 5;
/// Longer than this, no node may have been kept from running where it is asked.
const STALL: Duration = Duration::from_millis(100);

/// Runs a load on every kind of server. It keeps the limit every time; and unless the machine is too busy to tell, it
/// is as `good` as it should be.
fn run(rate: u64, burst: u64, leased: bool, good: impl Fn(&Outcome) -> bool) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for program in programs() {
        let (mut good_ones, mut others) = (0, Vec::new());
        for _ in 0..TRIES {
            let server = Server::start(&program);
            let load =
                Load { url: server.url(), rate, burst, leased, nodes: 4, time: Duration::from_secs(3) };
            let outcome = load.run(&["--exact", "node", "--nocapture", "--test-threads", "1"]);
            assert!(outcome.most_at_once <= burst as f64, "more than the limit: {outcome:?}");
            assert_eq!(outcome.fallbacks, 0, "the server was lost: {outcome:?}");
            if outcome.stall > STALL {
                eprintln!("a node was kept from running for {:?}: not judged", outcome.stall);
            } else if outcome.asked > 5 * outcome.admitted && good(&outcome) {
                good_ones += 1;
            } else {
                others.push(outcome);
            }
            assert!(others.len() < NOT_GOOD, "not as it should be: {others:#?}");
            if good_ones == GOOD {
                break;
            }
        }
    }
}

#[test]
fn strict_processes_together_keep_one_limit() {
    // All of the burst, and all that came back, but for the last moment.
    run(300, 100, false, |outcome| {
        outcome.admitted as f64 >= 100.0 + 0.95 * 300.0 * outcome.time.as_secs_f64()
    });
}

#[test]
fn leased_processes_together_keep_one_limit_and_use_it() {
    run(2_000, 1_000, true, |outcome| {
        // Of the burst, as much is out of use as comes back while tokens are held.
        let allowed = 1_000.0 + 2_000.0 * (outcome.time.as_secs_f64() - HOLD.as_secs_f64());
        outcome.admitted as f64 >= 0.98 * allowed && outcome.calls as f64 <= 0.05 * outcome.asked as f64
    });
}

#[test]
fn the_most_at_once_is_what_a_bucket_would_need() {
    // Three at once, one more after the time of one: a burst of 3 allows it, by a rate of one in 100 us.
    assert!((most_at_once(&[0, 0, 0, 100], &[0, 0, 0, 100], 10_000) - 3.0).abs() < 1e-9);
    assert!((most_at_once(&[0, 0, 0, 50], &[0, 0, 0, 50], 10_000) - 3.5).abs() < 1e-9);
    // A pause forgives nothing that comes after it.
    assert!((most_at_once(&[0, 900, 900], &[0, 900, 900], 10_000) - 2.0).abs() < 1e-9);
}
