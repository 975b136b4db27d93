//! Leased mode: nothing above the limit, few calls, nothing lost on the way.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{NO_HURRY, Server, eventually, programs, redis};
use std::time::Duration;
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
        // Nothing comes back while the test runs, and 100 ms of holding cost no whole token.
        let limiter = leased(&server, "1000/d").await;
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
    let calls = limiter.stats().calls;
    for _ in 0..1_000 {
        assert!(limiter.try_acquire("key").await.is_denied());
        assert!(limiter.try_acquire_local("key", 1).unwrap().is_denied());
    }
    assert_eq!(limiter.stats().calls, calls);
    assert!(limiter.try_acquire_local("other", 1).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_come_together_share_a_flight() {
    let server = Server::start(redis());
    let limiter = leased(&server, "100000/d").await;
    // So that everybody is there before the first flight is back.
    server.pause();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.try_acquire("key").await.is_allowed() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
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
    let policy = "100/s";
    let limiter = leased(&server, policy).await;
    // 100 ms of holding leave 90 of the burst to leases.
    assert!(limiter.try_acquire_n("key", 95).await.is_allowed());
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
    let limiter = server
        .limiter("1/h burst 3")
        .leased(Leasing::new().max_keys(8))
        .deadline(NO_HURRY)
        .build()
        .await
        .unwrap();
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
        assert!(limiter.try_acquire_local("key", 1).unwrap().is_denied());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_brought_while_closing_is_given_back_and_no_more_is_brought() {
    let server = Server::start(redis());
    let limiter = leased(&server, "100000/d").await;
    // So that everybody waits for one flight when the limiter is closed.
    server.pause();
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.try_acquire("key").await.is_allowed() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
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
        let _ = limiter.try_acquire("key").await;
        limiter.stats().leases.in_hand >= 2
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
