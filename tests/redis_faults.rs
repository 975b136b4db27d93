//! Servers that are killed, stopped, restarted, flushed or slow: nobody waits longer than the deadline, the failure
//! policy holds, and the limiter finds its way back.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::proxy::Proxy;
use redis_support::{Server, eventually, programs, redis, unhurried};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::Cause;
use tollgate::redis::{BackendStats, BreakerState, Leasing, OnFailure, RedisError, RedisLimiter};

const DEADLINE: Duration = Duration::from_millis(50);
/// What a busy machine may add to a deadline before a task runs again: beside what it is seen to add. (Whoever waited
/// for a server that is away, and not for a deadline, would wait for as long as it is: until a test gives up.)
const SLACK: Duration = Duration::from_secs(2);
/// A server that is back is found by then, on a machine that lets tasks run.
const RECOVERY: Duration = Duration::from_secs(2);
/// How often the machine may get in between, each time for as long as it is seen to.
const HOLDUPS: u32 = 20;

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
        // And the greeting at build, which always comes with its text.
        assert_eq!(server.calls_of("eval"), 11);
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

    fn slept(&self) -> Duration {
        Duration::from_micros(self.slept_us.load(Ordering::Relaxed))
    }

    /// Ends them all: none was lost, none panicked, none waited for long.
    async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut self.tasks);
        for task in tasks {
            task.await.unwrap();
        }
        let (longest, slept) = (Duration::from_micros(self.longest_us.load(Ordering::Relaxed)), self.slept());
        assert!(
            longest <= slept.max(DEADLINE) + SLACK,
            "somebody waited for {longest:?}, slept for {slept:?}"
        );
    }
}

/// Waits for the breaker to close, which must not take longer than it may.
async fn recovers(limiter: &RedisLimiter, callers: &Callers) {
    let back = Instant::now();
    eventually("the breaker closes", async || limiter.stats().state == BreakerState::Closed).await;
    let (took, holdup) = (back.elapsed(), callers.slept().saturating_sub(DEADLINE));
    assert!(took <= RECOVERY + holdup * HOLDUPS, "it took {took:?}, tasks were held up for {holdup:?}");
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
                recovers(&limiter, &callers).await;
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
        recovers(&limiter, &callers).await;
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
    recovers(&limiter, &callers).await;
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
    // The first one had to bring its text, and so had the greeting at build.
    assert_eq!((server.calls_of("evalsha"), server.calls_of("eval")), (100, 2));
    assert_eq!(limiter.stats().calls, 101, "and the greeting at build");
}

#[tokio::test]
async fn what_was_lost_with_its_answer_is_never_given_back_twice() {
    const WINDOW: Duration = Duration::from_secs(3_600);
    for program in programs() {
        let server = Server::start(program);
        let proxy = Proxy::start(server.port);
        let through = || unhurried(RedisLimiter::builder(proxy.url()).policy("1000/d")).connections(1);
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
        let repeated = limiter.once("second", WINDOW).await;
        assert_eq!(
            (repeated.is_allowed(), repeated.cause()),
            (true, Cause::Rule),
            "it is no repeat of itself"
        );
        assert!(direct.once("second", WINDOW).await.is_denied(), "the mark was made");
        assert!(limiter.once("second", WINDOW).await.is_denied(), "and is known to be another's");
        assert_eq!(limiter.stats().fallback_decisions, 0);

        let leased = through().leased(Leasing::new().hold(WINDOW / 60)).build().await.unwrap();
        eventually("a few tokens are in hand", async || {
            // In a row, or on a slow machine they would come too seldom for more than a token or two.
            for _ in 0..20 {
                let _ = leased.try_acquire("leased").await;
                if leased.stats().leases.in_hand >= 4 {
                    return true;
                }
            }
            false
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

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_fails_nothing() {
    for program in programs() {
        let server = Server::start(program);
        let limiter = server.limiter("1000/d").connections(1).build().await.unwrap();
        assert_eq!(limiter.try_acquire_n("key", 10).await.remaining(), 990);
        // What is refunded must not be sent twice, so it is not sent blindly.
        for refunded in 1..=3 {
            server.command("CLIENT KILL TYPE normal SKIPME yes");
            // A connection that was in use a moment ago is not doubted.
            tokio::time::sleep(Duration::from_millis(150)).await;
            limiter.refund("key", 1).await.unwrap();
            assert_eq!(limiter.peek("key").await.remaining(), 990 + refunded);
        }
        server.command("CLIENT KILL TYPE normal SKIPME yes");
        assert!(limiter.once("id", Duration::from_secs(3_600)).await.is_allowed());
        server.command("CLIENT KILL TYPE normal SKIPME yes");
        assert!(limiter.once("id", Duration::from_secs(3_600)).await.is_denied(), "by the mark");
        assert_eq!((limiter.stats().failures, limiter.stats().fallback_decisions), (0, 0));
    }
}

#[tokio::test]
async fn a_connection_whose_other_end_vanished_is_left() {
    const IN_A_ROW: u64 = 20;
    for program in programs() {
        let server = Server::start(program);
        let proxy = Proxy::start(server.port);
        let limiter = unhurried(RedisLimiter::builder(proxy.url()).policy("1000/d"));
        let limiter = limiter.deadline(Duration::from_secs(1)).build().await.unwrap();
        assert_eq!(proxy.connections(), 2);
        proxy.mute_first();
        // Half of all calls would wait for their deadline in vain, for as long as the other half is answered.
        let (mut in_a_row, mut fallen_back) = (0, 0);
        eventually("all calls are answered", async || {
            let _ = limiter.try_acquire("key").await;
            let failed = limiter.stats().fallback_decisions - fallen_back;
            fallen_back += failed;
            in_a_row = if failed > 0 { 0 } else { in_a_row + 1 };
            in_a_row == IN_A_ROW
        })
        .await;
        assert!(limiter.stats().timeouts > 0 && proxy.connections() > 2, "{:?}", limiter.stats());
    }
}

#[tokio::test]
async fn those_who_go_away_before_their_deadline_open_the_breaker_as_well() {
    let server = Server::start(redis());
    let limiter = server.limiter("1000/d").deadline(Duration::from_millis(500)).build().await.unwrap();
    server.pause();
    eventually("the breaker opens", async || {
        let hurried = tokio::time::timeout(Duration::from_millis(100), limiter.try_acquire("key"));
        let _ = hurried.await;
        limiter.stats().state != BreakerState::Closed
    })
    .await;
    server.resume();
    eventually("the breaker closes", async || limiter.stats().state == BreakerState::Closed).await;
}

#[tokio::test]
async fn a_server_that_runs_no_scripts_is_no_server() {
    let server = Server::start(redis());
    server.command("ACL SETUSER limited on >secret ~* &* +@all -@scripting");
    let url = format!("redis://limited:secret@127.0.0.1:{}/", server.port);
    let limiter = unhurried(RedisLimiter::builder(url).policy("5/h")).build().await.unwrap();
    // It could write, and no more.
    let probes = |stats: BackendStats| stats.calls;
    let (before, mut seen) = (probes(limiter.stats()), Vec::new());
    eventually("it was probed a few times", async || {
        seen.push(limiter.stats().state);
        probes(limiter.stats()) >= before + 3
    })
    .await;
    assert!(!seen.contains(&BreakerState::Closed), "{seen:?}");
    server.command("ACL SETUSER limited +@scripting");
    eventually("the breaker closes", async || limiter.stats().state == BreakerState::Closed).await;
    assert_eq!(limiter.try_acquire("key").await.cause(), Cause::Rule);
}

#[tokio::test]
async fn a_probe_that_ended_with_its_runtime_is_sent_anew() {
    let mut server = Server::start(redis());
    for leased in [false, true] {
        server.kill();
        let builder = server.limiter("1000/d").on_failure(OnFailure::Closed);
        let builder = if leased { builder.leased(Leasing::new()) } else { builder };
        let limiter = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(builder.build()).unwrap()
        });
        let limiter = limiter.join().unwrap();
        assert_ne!(limiter.stats().state, BreakerState::Closed);
        server.restart();
        eventually("the server is asked again", async || limiter.try_acquire("key").await.is_allowed()).await;
    }
}
