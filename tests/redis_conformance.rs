//! The same requests at the same times, in-process and on a server: the same decisions, to the nanosecond.
//!
//! Servers count microseconds. Where every request comes at a whole microsecond there is nothing to forgive, whatever
//! the rules; where it comes in between, the server is up to 999 ns behind, and so are its answers.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{Draw, Server, programs, undisturbed};
use std::fmt::Write;
use std::time::Duration;
use tollgate::redis::{BreakerState, RedisError, RedisLimiter};
use tollgate::{Clock, Decision, Limiter, ManualHand, Policy, Rule};

/// Where both clocks begin, on no window's edge.
const START: Duration = Duration::from_micros(1_790_000_000_250_001);

/// Everything a decision says.
fn said(decision: &Decision) -> String {
    format!("{decision:?} {:?} {:?}", decision.cause(), decision.would_deny())
}

/// An engine and a server with the same policy and the same clock.
struct Pair {
    engine: Limiter,
    shared: RedisLimiter,
    hand: ManualHand,
}

impl Pair {
    async fn new(server: &Server, policy: &str, prefix: &str, start: Duration) -> Self {
        let (clock, hand) = Clock::manual();
        hand.set(start);
        let engine = Limiter::builder().policy(policy).max_keys(64).clock(clock.clone()).build().unwrap();
        let shared = server.limiter(policy).prefix(prefix).local_keys(64).time(clock).build().await.unwrap();
        Self { engine, shared, hand }
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Acquire(u64),
    Peek(u64),
    Refund(u64),
    Once(Duration),
    Reset,
}

async fn both(pair: &Pair, key: &str, operation: Operation) -> (Option<Decision>, Option<Decision>) {
    let (engine, shared) = (&pair.engine, &pair.shared);
    match operation {
        Operation::Acquire(cost) => {
            (Some(engine.try_acquire_n(key, cost)), Some(shared.try_acquire_n(key, cost).await))
        }
        Operation::Peek(cost) => (Some(engine.peek_n(key, cost)), Some(shared.peek_n(key, cost).await)),
        Operation::Once(window) => (Some(engine.once(key, window)), Some(shared.once(key, window).await)),
        Operation::Refund(cost) => {
            engine.refund(key, cost);
            shared.refund(key, cost).await.unwrap();
            (None, None)
        }
        Operation::Reset => {
            engine.reset(key);
            shared.reset(key).await.unwrap();
            (None, None)
        }
    }
}

/// A rule with small numbers, so that its limit is met often.
fn rule(draw: &mut Draw) -> String {
    let count = 1 + draw.below(9);
    let period = draw.one_of(&["1us", "7us", "333us", "1ms", "10ms", "1s", "3s", "1min", "1h", "1d", "7d"]);
    let shadow = if draw.below(8) == 0 { "shadow " } else { "" };
    match draw.below(5) {
        0 => format!("{shadow}fixed {count}/{period}"),
        1 => format!("{shadow}sliding {count}/{period}"),
        2 => format!("{shadow}log {count}/{period}"),
        3 => format!("{shadow}{count}/{period} burst {}", 1 + draw.below(12)),
        // Rates that no whole number of nanoseconds divides.
        _ => format!("{shadow}{}/{period}", draw.one_of(&[3, 7, 11, 13, 1_000, 99_991])),
    }
}

fn policy(draw: &mut Draw) -> String {
    let rules = draw.one_of(&[1, 1, 2, 3, 5]);
    // A name each, as two unnamed rules of one kind would be told apart by their order, which is tested elsewhere.
    let rules: Vec<String> = (0..rules).map(|index| format!("{} named r{index}", rule(draw))).collect();
    rules.join("; ")
}

fn operation(draw: &mut Draw, limit: u64) -> Operation {
    match draw.below(16) {
        0 => Operation::Peek(draw.below(limit + 2)),
        1 => Operation::Refund(draw.below(limit + 2)),
        2 if draw.below(4) == 0 => Operation::Reset,
        2 | 3 => Operation::Once(Duration::from_nanos(draw.one_of(&[0, 1_000, 5_000_000, 3_000_000_000]))),
        4..8 => Operation::Acquire(draw.below(limit + 2)),
        _ => Operation::Acquire(1),
    }
}

/// Moves the clock: usually a little, sometimes to the very moment that a refusal named or one microsecond before.
///
/// A word of the engine's forgets what it is about after 2.4 hours at the fastest rates, and may then find a key poorer
/// than it is (see the notes on time in the engine); the server's numbers do not. So nobody is left alone for that long.
fn advance(draw: &mut Draw, hand: &ManualHand, last: Option<&Decision>, longest: u64) {
    let wait = last.and_then(Decision::retry_after).filter(|_| draw.below(2) == 0);
    let step = match wait {
        Some(wait) => {
            let to = u64::try_from(wait.as_nanos().div_ceil(1_000)).unwrap();
            Duration::from_micros(to - draw.below(2).min(to))
        }
        None => match draw.below(4) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(draw.below(50)),
            2 => Duration::from_micros(draw.below(5_000_000)),
            _ => Duration::from_micros(1 << draw.below(longest)),
        },
    };
    hand.advance(step);
}

/// The longest pause that all rules of a policy remember, as a power of two of microseconds.
fn longest(policy: &Policy) -> u64 {
    let is_fast = |rule: &Rule| Duration::from_secs(rule.count()) > rule.period() * 7_600;
    if policy.rules().iter().any(is_fast) { 26 } else { 42 }
}

#[tokio::test]
async fn random_traces_are_decided_alike_by_engine_and_server() {
    for program in programs() {
        let server = Server::start(&program);
        let traces = if cfg!(debug_assertions) { 250 } else { 1_000 };
        for seed in 0..traces {
            undisturbed(async |attempt| {
                let draw = &mut Draw(seed);
                let policy = policy(draw);
                let pair = Pair::new(&server, &policy, &format!("trace{seed}.{attempt}"), START).await;
                let limit = pair.engine.policy().rules().iter().map(Rule::limit).max().unwrap().min(12);
                let mut last = None;
                let mut trace = String::new();
                for _ in 0..60 {
                    advance(draw, &pair.hand, last.as_ref(), longest(pair.engine.policy()));
                    let (key, operation) = (draw.one_of(&["a", "b"]), operation(draw, limit));
                    let _ = writeln!(trace, "{:?} {key} {operation:?}", pair.hand.now() - START);
                    let (here, there) = both(&pair, key, operation).await;
                    assert_eq!(
                        here.as_ref().map(said),
                        there.as_ref().map(said),
                        "{} seed={seed} `{policy}` after\n{trace}",
                        program.display()
                    );
                    last = here.or(last);
                }
                assert_eq!(pair.shared.stats().fallback_decisions, 0);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn between_microseconds_a_server_is_late_by_less_than_one() {
    let microsecond = Duration::from_micros(1);
    let server = Server::start(redis_support::redis());
    for seed in 0..60 {
        undisturbed(async |attempt| {
            let draw = &mut Draw(seed);
            let policy = format!("{} named r", rule(draw).trim_start_matches("shadow "));
            let pair = Pair::new(&server, &policy, &format!("late{seed}.{attempt}"), START).await;
            for _ in 0..40 {
                // What is spent is spent at a whole microsecond, so that both hold the same; then both are asked in
                // between.
                advance(draw, &pair.hand, None, longest(pair.engine.policy()));
                let _ = both(&pair, "key", Operation::Acquire(1 + draw.below(2))).await;
                let back = Duration::from_nanos(1 + draw.below(999));
                pair.hand.advance(back);
                let (Some(here), Some(there)) = both(&pair, "key", Operation::Peek(1)).await else {
                    unreachable!()
                };
                pair.hand.advance(microsecond - back);
                let told = format!("seed={seed} `{policy}`: {here:?} {there:?}");
                let late = |decision: &Decision| decision.retry_after().unwrap_or_default();
                // Never richer than the truth, and poorer by less than a microsecond.
                assert!(here.is_allowed() || there.is_denied(), "{told}");
                assert!(late(&there) >= late(&here) && late(&there) - late(&here) < microsecond, "{told}");
                assert!(there.reset_after() >= here.reset_after() || there.reset_after().is_zero(), "{told}");
            }
        })
        .await;
    }
}

/// Requests and what becomes of them, in a form that other clients can check themselves against.
const VECTORS: &str = include_str!("../docs/redis-vectors.txt");

/// Runs the vectors over engine and server and writes them down again with what both said.
async fn run_vectors(server: &Server, attempt: usize) -> String {
    let mut written = String::new();
    let mut pair: Option<Pair> = None;
    let mut is_script = false;
    for (index, line) in VECTORS.lines().enumerate() {
        let mut words = line.split(" -> ").next().unwrap().split_whitespace();
        match words.next() {
            None | Some("#") => {
                let _ = writeln!(written, "{line}");
            }
            // What is said to a script is looked at by the tests of the scripts.
            Some("script") => {
                is_script = true;
                let _ = writeln!(written, "{line}");
            }
            Some(_) if is_script && !line.starts_with("policy") => {
                let _ = writeln!(written, "{line}");
            }
            Some("policy") => {
                is_script = false;
                let policy = line.trim_start_matches("policy ");
                let prefix = format!("vector{index}.{attempt}");
                pair = Some(Pair::new(server, policy, &prefix, Duration::ZERO).await);
                let _ = writeln!(written, "{line}");
            }
            Some(at_us) => {
                let pair = pair.as_ref().unwrap();
                pair.hand.set(Duration::from_micros(at_us.parse().unwrap()));
                let (verb, number) = (words.next().unwrap(), words.next().unwrap());
                let operation = match verb {
                    "acquire" => Operation::Acquire(number.parse().unwrap()),
                    "peek" => Operation::Peek(number.parse().unwrap()),
                    "refund" => Operation::Refund(number.parse().unwrap()),
                    "once" => Operation::Once(Duration::from_micros(number.parse().unwrap())),
                    other => panic!("line {}: unknown operation `{other}`", index + 1),
                };
                let (here, there) = both(pair, "key", operation).await;
                assert_eq!(here.as_ref().map(said), there.as_ref().map(said), "line {}: {line}", index + 1);
                let outcome = here.map_or_else(
                    || "done".to_owned(),
                    |decision| {
                        let retry =
                            decision.retry_after().map_or("-".to_owned(), |wait| wait.as_nanos().to_string());
                        format!(
                            "{:?} rule {} remaining {} retry {retry} reset {}",
                            decision.outcome(),
                            decision.rule(),
                            decision.remaining(),
                            decision.reset_after().as_nanos()
                        )
                    },
                );
                let _ = writeln!(written, "{at_us} {verb} {number} -> {outcome}");
            }
        }
    }
    written
}

#[tokio::test]
async fn vectors_hold_in_process_and_on_every_server() {
    for program in programs() {
        let server = Server::start(program);
        undisturbed(async |attempt| {
            let written = run_vectors(&server, attempt).await;
            if std::env::var_os("TOLLGATE_WRITE_VECTORS").is_some() {
                std::fs::write("docs/redis-vectors.txt", &written).unwrap();
            }
            assert_eq!(written, VECTORS);
        })
        .await;
    }
}

#[tokio::test]
async fn a_refusal_writes_nothing_and_keys_expire() {
    // Long enough for nothing to expire meanwhile.
    let policy = "2/h; fixed 3/d; sliding 3/d; log 3/d";
    for program in programs() {
        let server = Server::start(program);
        let limiter = server.limiter(policy).build().await.unwrap();
        assert!(limiter.try_acquire_n("key", 2).await.is_allowed());
        let dirty = || match server.command("INFO persistence") {
            redis::Value::BulkString(text) => {
                let text = String::from_utf8(text).unwrap();
                let line =
                    text.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap();
                line.to_owned()
            }
            redis::Value::VerbatimString { text, .. } => {
                text.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap().to_owned()
            }
            other => panic!("{other:?}"),
        };
        let before = dirty();
        for _ in 0..10 {
            assert!(limiter.try_acquire_n("key", 2).await.is_denied());
            assert!(limiter.peek("key").await.limit() > 0);
        }
        assert_eq!(dirty(), before);
        let redis::Value::Array(keys) = server.command("KEYS *{key}*") else { panic!("no keys") };
        assert_eq!(keys.len(), 4);
        for key in keys {
            let redis::Value::BulkString(key) = key else { panic!("{key:?}") };
            let key = String::from_utf8(key).unwrap();
            let redis::Value::Int(ttl) = server.command(&format!("PTTL {key}")) else { panic!("no time") };
            assert!(ttl > 0 && ttl <= 172_801_000, "{key} lives for {ttl} ms");
        }
    }
}

#[tokio::test]
async fn a_clock_that_jumps_costs_at_most_one_bucket() {
    for program in programs() {
        let server = Server::start(program);
        for policy in ["5/s", "fixed 5/min", "sliding 5/min", "log 5/min"] {
            undisturbed(async |attempt| {
                let prefix = format!("{policy} {attempt}");
                let (clock, hand) = Clock::manual();
                hand.set(START);
                let early = server.limiter(policy).prefix(&prefix).time(clock).build().await.unwrap();
                // A server of an earlier time, as after a failover to one whose clock is behind.
                let (clock, behind) = Clock::manual();
                behind.set(START - Duration::from_secs(7_200));
                let late = server.limiter(policy).prefix(&prefix).time(clock).build().await.unwrap();

                assert!(early.try_acquire_n("key", 3).await.is_allowed());
                let decision = late.try_acquire_n("key", 5).await;
                assert!(decision.is_denied(), "{policy}: what was spent still counts");
                let wait = decision.retry_after().unwrap();
                assert!(wait <= Duration::from_secs(120), "{policy}: {wait:?} is longer than a bucket takes");
                behind.advance(wait);
                assert!(late.try_acquire_n("key", 5).await.is_allowed(), "{policy}");
                assert!(late.try_acquire("key").await.is_denied(), "{policy}");

                // A small step back re-credits nothing.
                let (clock, stepped) = Clock::manual();
                stepped.set(behind.now() - Duration::from_millis(500));
                let stepped_back = server.limiter(policy).prefix(&prefix).time(clock).build().await.unwrap();
                assert!(stepped_back.try_acquire("key").await.is_denied(), "{policy}");
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_key_that_holds_something_else_is_left_alone() {
    let server = Server::start(redis_support::redis());
    let limiter = server.limiter("5/h").build().await.unwrap();
    server.command("SET tollgate:{key}:b.0.0 hello");
    server.command("RPUSH tollgate:{other}:b.0.0 hello");
    for _ in 0..5 {
        assert!(limiter.try_acquire("key").await.is_allowed(), "decided without the server");
        assert!(limiter.try_acquire("other").await.is_allowed(), "decided without the server");
    }
    assert!(limiter.try_acquire("key").await.is_denied(), "by the share of this process");
    let stats = limiter.stats();
    assert_eq!((stats.failures, stats.fallback_decisions), (11, 11));
    assert_eq!(stats.state, BreakerState::Closed, "the server itself is there");
    assert!(matches!(limiter.refund("key", 1).await, Err(RedisError::Rejected(_))));
    assert_eq!(server.command("GET tollgate:{key}:b.0.0"), redis::Value::BulkString(b"hello".to_vec()));
}
