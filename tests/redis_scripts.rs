//! The scripts as programs in other languages would call them, beside a model of what the protocol says of them: the
//! vectors of the documentation, and random traces.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{Draw, Server, programs, undisturbed};
use std::collections::HashMap;

const VECTORS: &str = include_str!("../docs/redis-vectors.txt");
const LEASE: &str =
    concat!(include_str!("../src/redis/scripts/common.lua"), include_str!("../src/redis/scripts/lease.lua"));
const ONCE: &str =
    concat!(include_str!("../src/redis/scripts/common.lua"), include_str!("../src/redis/scripts/once.lua"));
/// How far a clock may step back before a stored moment is not believed any more.
const STEP_BACK_US: i64 = 1_073_741;

/// A token bucket: the interval of a token and of a burst, in units, and the units in a microsecond.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    interval: i64,
    full: i64,
    in_us: i64,
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    need: i64,
    want: i64,
    hold_us: i64,
    back: i64,
    taken: i64,
    taken_us: i64,
}

/// What a server keeps: of each bucket what was owed and when, and the mark.
#[derive(Debug, Default)]
struct Model {
    debts: HashMap<usize, (i64, i64)>,
    mark: Option<(i64, String)>,
}

impl Model {
    fn lease(&mut self, now_us: i64, wish: Wish, buckets: &[Bucket]) -> Vec<i64> {
        let mut debts: Vec<i64> = Vec::new();
        let mut rooms = Vec::new();
        for (index, bucket) in buckets.iter().enumerate() {
            let (at_us, owed) = self.debts.get(&index).copied().unwrap_or((now_us, 0));
            let mut debt = (owed + (at_us - now_us) * bucket.in_us).max(0);
            if debt > bucket.full + STEP_BACK_US * bucket.in_us {
                debt = bucket.full;
                self.keep(index, now_us, debt);
            }
            if wish.back > 0 {
                let held_up = wish.taken * bucket.interval - (now_us - wish.taken_us) * bucket.in_us;
                debt = (debt - (wish.back * bucket.interval).min(held_up.max(0))).max(0);
            }
            let room = bucket.full - debt.max(wish.hold_us * bucket.in_us);
            rooms.push(room.max(0) / bucket.interval);
            debts.push(debt);
        }
        let available = rooms.into_iter().min().unwrap();
        let fits = wish.want > 0 && available >= wish.need;
        let granted = if fits { wish.want.min(available / 2).max(wish.need) } else { 0 };
        let mut reply = vec![granted, now_us, available - granted];
        for (index, (bucket, mut debt)) in buckets.iter().zip(debts).enumerate() {
            if granted > 0 {
                debt = debt.max(wish.hold_us * bucket.in_us) + granted * bucket.interval;
            }
            if granted > 0 || wish.back > 0 {
                self.keep(index, now_us, debt);
            }
            reply.push(debt);
        }
        reply
    }

    /// Nothing is kept of who owes nothing.
    fn keep(&mut self, index: usize, now_us: i64, debt: i64) {
        if debt == 0 {
            self.debts.remove(&index);
        } else {
            self.debts.insert(index, (now_us, debt));
        }
    }

    fn once(&mut self, now_us: i64, window_us: i64, whose: &str) -> Vec<i64> {
        if let Some((until_us, owner)) = self.mark.as_ref().filter(|(until_us, _)| *until_us > now_us) {
            return vec![i64::from(owner == whose), now_us, *until_us];
        }
        let until_us = now_us + window_us;
        self.mark = (window_us > 0).then(|| (until_us, whose.to_owned()));
        vec![1, now_us, until_us]
    }
}

/// Runs a script on a server: the keys of as many rules as there are arguments for, or the one of a mark.
fn run(
    connection: &mut redis::Connection,
    script: &str,
    subject: &str,
    first: &[String],
    buckets: &[Bucket],
) -> Vec<i64> {
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(buckets.len().max(1));
    for index in 0..buckets.len().max(1) {
        command.arg(format!("scripts:{{{subject}}}:{index}"));
    }
    command.arg(first);
    for bucket in buckets {
        command.arg("b").arg(0).arg(bucket.interval).arg(bucket.full).arg(bucket.in_us);
    }
    command.query(connection).unwrap()
}

fn connect(server: &Server) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

fn lease_args(wish: Wish, now_us: i64) -> Vec<String> {
    let Wish { need, want, hold_us, back, taken, taken_us } = wish;
    [need, want, hold_us, back, taken, taken_us, now_us].iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn vectors_of_the_scripts_hold_on_every_server_and_in_the_model() {
    for program in programs() {
        let server = Server::start(program);
        let mut connection = connect(&server);
        undisturbed(async |attempt| check_vectors(&mut connection, attempt)).await;
    }
}

fn check_vectors(connection: &mut redis::Connection, attempt: usize) {
    let mut section: Option<(String, Vec<Bucket>, Model)> = None;
    let mut checked = 0;
    let said = |line: &str| !line.is_empty() && !line.starts_with('#');
    for (index, line) in VECTORS.lines().enumerate().filter(|(_, line)| said(line)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.first().copied(), &mut section) {
            (Some("policy"), _) => section = None,
            (Some("script"), _) => {
                let buckets = match words[1..] {
                    [] => vec![],
                    ["b", "0", interval, full, in_us] => {
                        let [interval, full, in_us] =
                            [interval, full, in_us].map(|word| word.parse().unwrap());
                        vec![Bucket { interval, full, in_us }]
                    }
                    _ => panic!("line {}: {line}", index + 1),
                };
                section = Some((format!("line {index} {attempt}"), buckets, Model::default()));
            }
            (Some(now), Some((subject, buckets, model))) => {
                let (call, expected) = line.split_once(" -> ").unwrap();
                let args: Vec<&str> = call.split_whitespace().skip(2).collect();
                let expected: Vec<i64> =
                    expected.split_whitespace().map(|word| word.parse().unwrap()).collect();
                let now_us: i64 = now.parse().unwrap();
                let (here, there) = if words[1] == "lease" {
                    let numbers: Vec<i64> = args.iter().map(|word| word.parse().unwrap()).collect();
                    let [need, want, hold_us, back, taken, taken_us] = numbers[..] else { panic!("{line}") };
                    let wish = Wish { need, want, hold_us, back, taken, taken_us };
                    let there = run(connection, LEASE, subject, &lease_args(wish, now_us), buckets);
                    (model.lease(now_us, wish, buckets), there)
                } else {
                    assert_eq!(words[1], "once", "line {}: {line}", index + 1);
                    let first = [args[0], now, args[1]].map(str::to_owned);
                    let there = run(connection, ONCE, subject, &first, &[]);
                    (model.once(now_us, args[0].parse().unwrap(), args[1]), there)
                };
                assert_eq!((&here, &there), (&expected, &expected), "line {}: {line}", index + 1);
                checked += 1;
            }
            // Of a policy: looked at elsewhere.
            _ => {}
        }
    }
    assert!(checked > 10, "{checked} lines");
}

#[tokio::test]
async fn random_leases_are_what_the_model_says() {
    for program in programs() {
        let server = Server::start(program);
        let mut connection = connect(&server);
        for seed in 0..100 {
            undisturbed(async |attempt| {
                let draw = &mut Draw(seed);
                let buckets: Vec<Bucket> = (0..1 + draw.below(2))
                    .map(|_| {
                        let interval = draw.one_of(&[1_000, 131_072, 333_333_334, 86_400_000_000]);
                        let burst = 1 + i64::try_from(draw.below(40)).unwrap();
                        Bucket { interval, full: interval * burst, in_us: draw.one_of(&[1_000, 4_096_000]) }
                    })
                    .collect();
                let token_us = buckets.iter().map(|bucket| bucket.interval / bucket.in_us + 1).max().unwrap();
                let small = |draw: &mut Draw, end: i64| {
                    i64::try_from(draw.below(u64::try_from(end).unwrap())).unwrap()
                };
                let (mut model, mut now_us) = (Model::default(), 1_790_000_000_000_000);
                let mut last = (0, now_us);
                let mut granted = 0;
                for step in 0..80 {
                    now_us += match draw.below(8) {
                        0 => -small(draw, 2_000_000),
                        1 => small(draw, 40 * token_us),
                        2..5 => small(draw, 2 * token_us),
                        _ => 0,
                    };
                    let (need, hold_us) = (small(draw, 4), small(draw, token_us) * small(draw, 2));
                    let (back, want) = (small(draw, last.0 + 1), need + small(draw, 20));
                    let wish = Wish { need, want, hold_us, back, taken: last.0, taken_us: last.1 };
                    let there = run(
                        &mut connection,
                        LEASE,
                        &format!("trace {seed} {attempt}"),
                        &lease_args(wish, now_us),
                        &buckets,
                    );
                    let here = model.lease(now_us, wish, &buckets);
                    assert_eq!(here, there, "seed={seed} step {step} {wish:?} of {buckets:?}");
                    if here[0] > 0 {
                        last = (here[0], now_us);
                        granted += 1;
                    }
                }
                assert!(granted > 0, "seed={seed}");
            })
            .await;
        }
    }
}
