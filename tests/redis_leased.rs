//! Leased mode: nothing above the limit, few calls, nothing lost on the way.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{Server, eventually, programs, redis};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tollgate::Cause;
use tollgate::redis::{Leasing, RedisLimiter};

async fn leased(server: &Server, policy: &str) -> RedisLimiter {
    server.limiter(policy).leased(Leasing::new()).build().await.unwrap()
}

async fn admitted(limiter: &RedisLimiter, requests: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u64::from(limiter.try_acquire("key").await.is_allowed());
    }
    admitted
}

#[tokio::test]
async fn a_burst_is_served_with_few_calls_and_to_the_last_token() {
    for program in programs() {
        let server = Server::start(program);
        // Nothing comes back while the test runs, holding costs no whole token, and a slow machine makes no lease last.
        let leasing = Leasing::new().interval(Duration::from_millis(200)).hold(Duration::from_secs(60));
        let limiter = server.limiter("1000/d").leased(leasing).build().await.unwrap();
        let first = limiter.stats().calls;
        let mut served = 0;
        while served < 990 {
            let decision = limiter.try_acquire("key").await;
            if decision.is_denied() {
                let wait = decision.retry_after().unwrap();
                tokio::time::sleep(wait.min(Duration::from_millis(20))).await;
            }
            served += u64::from(decision.is_allowed());
        }
        let calls = limiter.stats().calls - first;
        assert!(calls <= 80, "{calls} calls for 990 requests");
        let stats = limiter.stats().leases;
        assert_eq!(stats.taken, stats.spent + stats.returned + stats.expired + stats.in_hand);
    }
}

#[tokio::test]
async fn two_processes_worth_of_limiters_share_one_burst() {
    for program in programs() {
        let server = Server::start(program);
        let limiters = [leased(&server, "100/d").await, leased(&server, "100/d").await];
        let mut total = 0;
        for _ in 0..300 {
            for limiter in &limiters {
                total += admitted(limiter, 1).await;
            }
        }
        assert!(total <= 100, "{total} of 100");
        for limiter in &limiters {
            limiter.close().await;
        }
        // What was in hand is back, and served by the server, one by one; the last token once the time is over for
        // which it might have been held.
        eventually("all of the burst is used", async || {
            for limiter in &limiters {
                total += admitted(limiter, 1).await;
            }
            total >= 100
        })
        .await;
        assert_eq!(total + admitted(&limiters[0], 20).await, 100);
        assert_eq!(limiters[0].stats().leases.in_hand, 0);
    }
}

#[tokio::test]
async fn a_refusal_is_remembered_until_the_moment_it_named() {
    let server = Server::start(redis());
    let limiter = leased(&server, "2/h").await;
    let mut refused = None;
    eventually("the burst is spent", async || {
        let decision = limiter.try_acquire("key").await;
        refused = decision.retry_after();
        refused.is_some_and(|wait| wait > Duration::from_secs(60))
    })
    .await;
    assert!(refused.unwrap() <= Duration::from_secs(1_801));
    let (calls, began) = (limiter.stats().calls, Instant::now());
    let mut unknown = 0;
    for _ in 0..1_000 {
        assert!(limiter.try_acquire("key").await.is_denied());
        match limiter.try_acquire_local("key", 1) {
            Some(decision) => assert!(decision.is_denied()),
            None => unknown += 1,
        }
    }
    // It is asked again once a second, however long this took.
    let seconds = began.elapsed().as_secs() + 1;
    assert!(limiter.stats().calls - calls <= seconds && unknown <= seconds);
    assert!(limiter.try_acquire_local("other", 1).is_none());
}

/// So many who ask at once. On one thread, so that all of them wait for the server when this returns.
async fn callers(limiter: &RedisLimiter, count: usize) -> Vec<tokio::task::JoinHandle<bool>> {
    let arrived = Arc::new(AtomicUsize::new(0));
    let callers = (0..count)
        .map(|_| {
            let (limiter, arrived) = (limiter.clone(), Arc::clone(&arrived));
            tokio::spawn(async move {
                arrived.fetch_add(1, Ordering::Relaxed);
                limiter.try_acquire("key").await.is_allowed()
            })
        })
        .collect();
    while arrived.load(Ordering::Relaxed) < count {
        tokio::task::yield_now().await;
    }
    callers
}

#[tokio::test]
async fn those_who_come_together_share_a_flight() {
    let server = Server::start(redis());
    // Long, so that no lease lasts for its time however slow the machine is.
    let leasing = Leasing::new().interval(Duration::from_secs(20)).hold(Duration::from_secs(60));
    let limiter = server.limiter("100000/d").leased(leasing).build().await.unwrap();
    // So that everybody is there before the first flight is back.
    server.pause();
    let callers = callers(&limiter, 64).await;
    let before = limiter.stats().calls;
    server.resume();
    for caller in callers {
        assert!(caller.await.unwrap());
    }
    let calls = limiter.stats().calls - before;
    // One for each doubling: 1, 2, 4 and so on, not one for each caller.
    assert!(calls <= 12, "{calls} calls for 64 that came together");
    assert_eq!(limiter.stats().fallback_decisions, 0);
}

#[tokio::test]
async fn costs_are_weighed_and_what_no_lease_can_serve_is_asked_for() {
    let server = Server::start(redis());
    let limiter = leased(&server, "100/h").await;
    // 100 ms of holding leave 99 of the burst to leases.
    assert!(limiter.try_acquire_n("key", 100).await.is_allowed());
    let refused = limiter.try_acquire_n("key", 101).await;
    assert_eq!(refused.outcome(), tollgate::Outcome::NeverFits);
    assert!(limiter.try_acquire_n("key", 0).await.is_allowed());
    assert!(limiter.try_acquire_n("other", 7).await.is_allowed());
    assert!(limiter.peek("other").await.remaining() <= 93);
    assert!(limiter.refund("other", 7).await.is_ok());
    assert!(limiter.reset("key").await.is_ok());
    assert!(limiter.peek_n("key", 100).await.is_allowed());
}

#[tokio::test]
async fn what_leases_cannot_do_is_refused_at_build() {
    let server = Server::start(redis());
    for (policy, reason) in [
        ("fixed 5/s", "token buckets"),
        ("shadow 5/s", "token buckets"),
        ("1000/s burst 50", "Shorten the lease"),
    ] {
        let error = server.limiter(policy).leased(Leasing::new()).build().await.unwrap_err().to_string();
        assert!(error.contains(reason), "{policy}: {error}");
    }
    let whole = Leasing::new().whole_burst();
    assert!(server.limiter("1000/s burst 50").leased(whole).build().await.is_ok());
    let short = Leasing::new().hold(Duration::from_micros(1));
    assert!(server.limiter("5/s").leased(short).build().await.is_err());
    let rare = Leasing::new().interval(Duration::MAX);
    assert!(server.limiter("5/s").leased(rare).build().await.is_err());
    for endless in [
        server.limiter("5/s").deadline(Duration::MAX),
        server.limiter("5/s").connect_timeout(Duration::MAX),
        server.limiter("5/s").leased(Leasing::new()).deadline(Duration::MAX),
    ] {
        let error = endless.build().await.unwrap_err().to_string();
        assert!(error.contains("an hour"), "{error}");
    }
    let long = Duration::from_secs(3_600);
    let limiter = server.limiter("5/s").leased(Leasing::new()).deadline(long);
    let limiter = limiter.connect_timeout(long).build().await.unwrap();
    assert!(limiter.try_acquire("key").await.is_allowed());
}

#[tokio::test]
async fn a_spray_of_subjects_is_bounded_and_still_limited() {
    let server = Server::start(redis());
    let limiter = server.limiter("1/h burst 3").leased(Leasing::new().max_keys(8)).build().await.unwrap();
    let mut total = 0;
    for subject in 0..100 {
        for _ in 0..5 {
            total += u64::from(limiter.try_acquire(&format!("key{subject}")).await.is_allowed());
        }
    }
    assert!((100..=300).contains(&total), "{total}");
    assert_eq!(limiter.stats().fallback_decisions, 0);
}

#[tokio::test]
async fn a_refund_or_a_reset_ends_a_remembered_refusal() {
    let server = Server::start(redis());
    // Of a burst of 3, holding leaves 2 to leases.
    let limiter = leased(&server, "3/h").await;
    let until_refused = async || {
        eventually("the burst is spent", async || {
            let wait = limiter.try_acquire("key").await.retry_after();
            wait.is_some_and(|wait| wait > Duration::from_secs(60))
        })
        .await;
        assert!(limiter.try_acquire_local("key", 1).is_none_or(|decision| decision.is_denied()));
    };
    until_refused().await;
    limiter.refund("key", 1).await.unwrap();
    assert!(limiter.try_acquire("key").await.is_allowed());
    until_refused().await;
    limiter.reset("key").await.unwrap();
    assert!(limiter.try_acquire("key").await.is_allowed());
    // Nobody tells of what another process does: it is found out within about a second.
    until_refused().await;
    server.limiter("3/h").build().await.unwrap().reset("key").await.unwrap();
    eventually("it is found out", async || limiter.try_acquire("key").await.is_allowed()).await;
}

#[tokio::test]
async fn what_is_brought_while_closing_is_given_back_and_no_more_is_brought() {
    let server = Server::start(redis());
    let limiter = leased(&server, "100000/d").await;
    // So that everybody waits for one flight when the limiter is closed.
    server.pause();
    let callers = callers(&limiter, 16).await;
    let mut closing = std::pin::pin!(limiter.close());
    tokio::select! {
        biased;
        () = &mut closing => panic!("it waits for the flight"),
        () = tokio::task::yield_now() => server.resume(),
    }
    closing.await;
    for caller in callers {
        assert!(caller.await.unwrap());
    }
    let stats = limiter.stats();
    assert_eq!((stats.leases.taken, stats.leases.in_hand, stats.fallback_decisions), (1, 0, 0), "{stats:?}");
}

#[tokio::test]
async fn what_would_fit_with_the_tokens_in_hand_is_not_refused_for_long() {
    let server = Server::start(redis());
    let limiter = leased(&server, "20/h").await;
    eventually("a few tokens are in hand", async || {
        // In a row, or on a slow machine they would come too seldom for more than a token.
        for _ in 0..8 {
            let _ = limiter.try_acquire("key").await;
            if limiter.stats().leases.in_hand >= 2 {
                return true;
            }
        }
        false
    })
    .await;
    // All that the server has and all that is in hand: not to be had before the one is given back to the other.
    let cost = limiter.peek("key").await.remaining() + limiter.stats().leases.in_hand;
    eventually("it fits", async || {
        let decision = limiter.try_acquire_n("key", cost).await;
        assert!(decision.retry_after().is_none_or(|wait| wait < Duration::from_secs(1)), "{decision:?}");
        decision.is_allowed()
    })
    .await;
}

#[tokio::test]
async fn what_nobody_spends_goes_back_by_itself() {
    for program in programs() {
        let server = Server::start(program);
        // So slow that what is not given back is missing for hours.
        let leasing = Leasing::new().interval(Duration::from_secs(1)).hold(Duration::from_secs(1));
        let lessee = async || server.limiter("1000/d").leased(leasing).build().await.unwrap();
        let limiters = [lessee().await, lessee().await];
        let mut spent = 0;
        for limiter in &limiters {
            eventually("a few tokens are in hand", async || {
                spent += u64::from(limiter.try_acquire("key").await.is_allowed());
                limiter.stats().leases.in_hand >= 8
            })
            .await;
        }
        // And then nobody asks any more.
        eventually("all else was given back", async || {
            let leases = limiters.each_ref().map(|limiter| limiter.stats().leases);
            leases.iter().all(|leases| leases.in_hand == 0 && leases.returned >= 8)
                && leases.iter().map(|leases| leases.spent).sum::<u64>() == spent
        })
        .await;
        let remaining = server.limiter("1000/d").build().await.unwrap().peek("key").await.remaining();
        // Holding costs a part of a token, and one may come back meanwhile.
        assert!((999 - spent..=1_001 - spent).contains(&remaining), "{remaining} of 1000, {spent} spent");
    }
}

#[tokio::test]
async fn a_demand_just_after_a_landing_is_no_demand_of_thousands() {
    let server = Server::start(redis());
    let long = Leasing::new().hold(Duration::from_secs(60));
    let limiter = server.limiter("1000000/d").leased(long).build().await.unwrap();
    for _ in 0..3 {
        assert!(limiter.try_acquire("key").await.is_allowed());
    }
    let stats = limiter.stats().leases;
    // One, then twice as much each time: whatever the moment between a landing and the next request was.
    assert!(stats.taken <= 1 + 2 + 4, "{stats:?}");
}

#[tokio::test]
async fn scripts_that_are_forgotten_are_sent_again_with_a_lease() {
    for program in programs() {
        let server = Server::start(program);
        let limiter = leased(&server, "1000/d").await;
        for subject in 0..10 {
            server.command("SCRIPT FLUSH");
            let decision = limiter.try_acquire(&format!("key{subject}")).await;
            assert_eq!((decision.is_allowed(), decision.cause()), (true, Cause::Rule));
        }
        assert_eq!((limiter.stats().failures, limiter.stats().fallback_decisions), (0, 0));
    }
}

#[tokio::test]
async fn what_is_brought_during_a_reset_is_not_lost() {
    let server = Server::start(redis());
    let limiter = leased(&server, "100/d").await;
    server.pause();
    let mut asking = std::pin::pin!(limiter.try_acquire("key"));
    let mut resetting = std::pin::pin!(limiter.reset("key"));
    // The flight is out when the reset begins.
    tokio::select! {
        biased;
        _ = &mut asking => panic!("it waits for the flight"),
        _ = &mut resetting => panic!("it waits for the flight, too"),
        () = tokio::task::yield_now() => server.resume(),
    }
    let (decision, reset) = tokio::join!(asking, resetting);
    assert!(decision.is_allowed());
    reset.unwrap();
    let stats = limiter.stats().leases;
    assert_eq!((stats.spent, limiter.stats().fallback_decisions), (1, 0), "{stats:?}");
}

#[tokio::test]
async fn a_runtime_that_ended_takes_no_one_with_it() {
    let server = Server::start(redis());
    // A runtime of its own, on a thread that is allowed to wait for it.
    let built_elsewhere = |strict: bool| {
        let builder = server.limiter("1000/d");
        let builder = if strict { builder } else { builder.leased(Leasing::new()) };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let limiter = builder.build().await.unwrap();
                assert!(limiter.try_acquire("key").await.is_allowed());
                limiter
            })
        })
        .join()
        .unwrap()
    };
    for strict in [true, false] {
        let limiter = built_elsewhere(strict);
        for subject in 0..3 {
            let decision = limiter.try_acquire(&format!("key {strict} {subject}")).await;
            assert_eq!((decision.is_allowed(), decision.cause()), (true, Cause::Rule));
        }
        assert_eq!(limiter.stats().fallback_decisions, 0);
    }
}
