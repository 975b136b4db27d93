//! Servers that are killed, stopped, restarted, flushed or slow: nobody waits longer than the deadline, the failure
//! policy holds, and the limiter finds its way back.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::proxy::Proxy;
use redis_support::{NO_HURRY, Server, eventually, programs, redis};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::Cause;
use tollgate::redis::{BreakerState, Leasing, OnFailure, RedisError, RedisLimiter};

const DEADLINE: Duration = Duration::from_millis(50);
/// What a busy machine may add to a deadline before a task runs again: beside what it is seen to add.
const SLACK: Duration = Duration::from_millis(450);
/// A server that is back is found by then.
const RECOVERY: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_flushed_script_is_sent_again() {
    for program in programs() {
        let server = Server::start(program);
        let limiter = server.limiter("100/h").build().await.unwrap();
        for left in (90..100).rev() {
            server.command("SCRIPT FLUSH");
            assert_eq!(limiter.try_acquire("key").await.remaining(), left);
        }
        let stats = limiter.stats();
        assert_eq!((stats.failures, stats.fallback_decisions), (0, 0));
        assert_eq!(server.calls_of("eval"), 10);
    }
}

#[tokio::test]
async fn without_a_server_a_limiter_is_built_and_goes_by_its_failure_policy() {
    let mut server = Server::start(redis());
    let url = server.url();
    server.kill();
    let builder = || RedisLimiter::builder(&url).policy("4/h named a; 100/h named b");

    let local = builder().nodes(2).build().await.unwrap();
    assert_eq!(local.stats().state, BreakerState::Open);
    let admitted = admitted_of(&local, 10).await;
    assert_eq!(admitted, 2, "half of a burst of 4");

    let open = builder().on_failure(OnFailure::Open).build().await.unwrap();
    assert_eq!(admitted_of(&open, 10).await, 10);

    let closed = builder().on_failure_of("b", OnFailure::Closed).build().await.unwrap();
    let decision = closed.try_acquire("key").await;
    assert_eq!((decision.cause(), decision.rule_name()), (Cause::Unavailable, Some("b")));
    assert!(decision.is_denied());
    assert!(matches!(closed.refund("key", 1).await, Err(RedisError::BreakerOpen)));
    assert_eq!(closed.stats().fallback_decisions, 1);
    assert!(builder().on_failure_of("c", OnFailure::Open).build().await.is_err());
}

async fn admitted_of(limiter: &RedisLimiter, requests: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u64::from(limiter.try_acquire("key").await.is_allowed());
    }
    admitted
}

/// Tasks that ask again and again, and what they met.
struct Callers {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    longest_us: Arc<AtomicU64>,
    /// The longest that a sleep of a deadline took: nobody can be held to less.
    slept_us: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

fn note_longest(longest_us: &AtomicU64, began: Instant) {
    let took_us = u64::try_from(began.elapsed().as_micros()).unwrap();
    longest_us.fetch_max(took_us, Ordering::Relaxed);
}

impl Callers {
    fn start(limiter: &RedisLimiter, tasks: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let [asked, longest_us, slept_us] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        let mut tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
                let (asked, longest_us) = (Arc::clone(&asked), Arc::clone(&longest_us));
                tokio::spawn(async move {
                    let subject = format!("key{}", task % 3);
                    while !stop.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        let _ = limiter.try_acquire(&subject).await;
                        note_longest(&longest_us, began);
                        asked.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                })
            })
            .collect();
        let (stopped, slept) = (Arc::clone(&stop), Arc::clone(&slept_us));
        tasks.push(tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                tokio::time::sleep(DEADLINE).await;
                note_longest(&slept, began);
            }
        }));
        Self { stop, asked, longest_us, slept_us, tasks }
    }

    /// Waits until everybody has asked a few times more.
    async fn go_on(&self, what: &str) {
        let enough = self.asked.load(Ordering::Relaxed) + 4 * self.tasks.len() as u64;
        eventually(what, async || self.asked.load(Ordering::Relaxed) >= enough).await;
    }

    /// Ends them all: none was lost, none panicked, none waited for long.
    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let [longest, slept] = [&self.longest_us, &self.slept_us]
            .map(|time_us| Duration::from_micros(time_us.load(Ordering::Relaxed)));
        assert!(
            longest <= slept.max(DEADLINE) + SLACK,
            "somebody waited for {longest:?}, slept for {slept:?}"
        );
    }
}

/// Waits for the breaker to close, which must not take longer than it may.
async fn recovers(limiter: &RedisLimiter) {
    let back = Instant::now();
    eventually("the breaker closes", async || limiter.stats().state == BreakerState::Closed).await;
    assert!(back.elapsed() <= RECOVERY, "it took {:?}", back.elapsed());
    let calls = limiter.stats().calls;
    eventually("the server is asked", async || limiter.stats().calls > calls).await;
}

async fn opens(limiter: &RedisLimiter) {
    eventually("the breaker opens", async || limiter.stats().state != BreakerState::Closed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_under_load_is_done_without_and_found_again() {
    for program in programs() {
        for leased in [false, true] {
            let mut server = Server::start(&program);
            let builder = server.limiter("1000/s").deadline(DEADLINE);
            let builder = if leased { builder.leased(Leasing::new()) } else { builder };
            let limiter = builder.build().await.unwrap();
            let callers = Callers::start(&limiter, 8);
            callers.go_on("requests before").await;
            assert!(limiter.stats().calls > 1);
            // Twice, the second time with what the first has left behind.
            for _ in 0..2 {
                server.kill();
                opens(&limiter).await;
                let fallen_back = limiter.stats().fallback_decisions;
                callers.go_on("requests meanwhile").await;
                assert!(limiter.stats().fallback_decisions > fallen_back);
                server.restart();
                recovers(&limiter).await;
                callers.go_on("requests after").await;
            }
            callers.stop().await;
            assert!(limiter.stats().breaker_changes >= 6);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_holds_nobody_up() {
    for program in programs() {
        let server = Server::start(program);
        let limiter = server.limiter("1000/s").deadline(DEADLINE).build().await.unwrap();
        let callers = Callers::start(&limiter, 8);
        callers.go_on("requests before").await;
        server.pause();
        opens(&limiter).await;
        callers.go_on("requests meanwhile").await;
        let stats = limiter.stats();
        assert!(stats.timeouts > 0 && stats.timeouts <= stats.failures, "{stats:?}");
        server.resume();
        recovers(&limiter).await;
        callers.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_is_not_waited_for() {
    let server = Server::start_with(redis(), &["--enable-debug-command", "yes"]);
    let limiter = server.limiter("1000/s").deadline(DEADLINE).build().await.unwrap();
    let callers = Callers::start(&limiter, 8);
    callers.go_on("requests before").await;
    let url = server.url();
    let sleeper = std::thread::spawn(move || {
        let mut connection = ::redis::Client::open(url).unwrap().get_connection().unwrap();
        ::redis::cmd("DEBUG").arg("SLEEP").arg("0.7").query::<()>(&mut connection).unwrap();
    });
    opens(&limiter).await;
    callers.go_on("requests meanwhile").await;
    sleeper.join().unwrap();
    recovers(&limiter).await;
    callers.stop().await;
}

#[tokio::test]
async fn a_server_that_lost_its_data_grants_one_burst_again_and_no_more() {
    for program in programs() {
        let mut server = Server::start(program);
        let limiter = server.limiter("5/h").on_failure(OnFailure::Closed).build().await.unwrap();
        assert_eq!(admitted_of(&limiter, 20).await, 5);
        server.restart();
        // The lost connection is noticed and replaced within a call, or a probe finds the server.
        let mut admitted = 0;
        eventually("the server is asked again", async || {
            let decision = limiter.try_acquire("key").await;
            admitted += u64::from(decision.is_allowed());
            decision.cause() == Cause::Rule && decision.is_denied()
        })
        .await;
        assert_eq!(admitted, 5);
    }
}

#[tokio::test]
async fn failures_in_a_row_open_the_breaker_and_requests_never_probe() {
    let mut server = Server::start(redis());
    let limiter = server.limiter("5/h").connections(1).build().await.unwrap();
    server.kill();
    for _ in 0..3 {
        assert!(limiter.try_acquire("key").await.is_allowed());
    }
    let stats = limiter.stats();
    assert_eq!((stats.failures, stats.fallback_decisions), (3, 3));
    assert_ne!(stats.state, BreakerState::Closed);
    // However many more there are: only the probe calls, at its own pace.
    for _ in 0..1_000 {
        let _ = limiter.try_acquire("key").await;
    }
    let stats = limiter.stats();
    assert!(stats.calls < 50, "{stats:?}");
    assert_eq!(stats.fallback_decisions, 1_003);
}

#[tokio::test]
async fn a_storm_of_retries_is_one_call_each() {
    let server = Server::start(redis());
    let limiter = server.limiter("1/h").build().await.unwrap();
    for _ in 0..100 {
        let _ = limiter.try_acquire("key").await;
    }
    // The first one had to bring its text.
    assert_eq!(server.calls_of("evalsha") + server.calls_of("eval"), 101);
    assert_eq!(limiter.stats().calls, 101, "and the greeting at build");
}

#[tokio::test]
async fn what_was_lost_with_its_answer_is_never_given_back_twice() {
    const WINDOW: Duration = Duration::from_secs(3_600);
    for program in programs() {
        let server = Server::start(program);
        let proxy = Proxy::start(server.port);
        let through =
            || RedisLimiter::builder(proxy.url()).policy("1000/d").deadline(NO_HURRY).connections(1);
        let limiter = through().build().await.unwrap();
        let direct = server.limiter("1000/d").build().await.unwrap();

        // A request is sent again, and costs twice at worst. (The first of each kind only brings its script.)
        assert_eq!(limiter.try_acquire_n("key", 100).await.remaining(), 900);
        proxy.lose_next_answer();
        assert_eq!(limiter.try_acquire_n("key", 10).await.remaining(), 880);

        limiter.refund("key", 1).await.unwrap();
        proxy.lose_next_answer();
        let refunded = limiter.refund("key", 7).await;
        assert!(matches!(refunded, Err(RedisError::Connection(_))), "{refunded:?}");
        assert_eq!(direct.peek("key").await.remaining(), 888, "given back once");

        assert!(limiter.once("first", WINDOW).await.is_allowed());
        proxy.lose_next_answer();
        assert!(limiter.once("second", WINDOW).await.is_allowed(), "it is no repeat of itself");
        assert!(direct.once("second", WINDOW).await.is_denied(), "the mark was made");

        let leased = through().leased(Leasing::new().hold(WINDOW / 60)).build().await.unwrap();
        eventually("a few tokens are in hand", async || {
            let _ = leased.try_acquire("leased").await;
            leased.stats().leases.in_hand >= 4
        })
        .await;
        let (held, before) = (leased.stats().leases.in_hand, direct.peek("leased").await.remaining());
        proxy.lose_next_answer();
        leased.close().await;
        let after = direct.peek("leased").await.remaining();
        assert_eq!(after - before, held, "{before} before");
        assert!(leased.stats().leases.expired > 0, "nobody knows whether it was given back");
        assert_eq!(proxy.lost(), 4);
    }
}
