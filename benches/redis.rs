//! What the limiter over Redis promises, measured against real servers that this program starts and stops.
//!
//! `cargo bench --features redis --bench redis` takes about two minutes a server and writes `results/redis.md` (`-- --quick`:
//! a few seconds each; `-- leased`: only what has that in its name; neither writes). Ends with 1 if a promise was not kept.
//! Redis is measured, and Valkey where it is; `TOLLGATE_VALKEY_SERVER` names it.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a benchmark: it fails loudly, and prints ratios"
)]

#[path = "../tests/redis_support/mod.rs"]
mod redis_support;

use redis_support::nodes::{HOLD, Load, run_if_node};
use redis_support::{Server, find, programs};
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::Limiter;
use tollgate::redis::{BreakerState, Leasing, RedisLimiter};

/// So fast that nobody is ever refused.
const BOUNDLESS: &str = "1000000000/s burst 1000000000";
const CONNECTIONS: usize = 8;

fn main() {
    run_if_node();
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let time = Duration::from_secs(if quick { 3 } else { 20 });
    let suites: [(&str, Suite); 6] = [
        ("strict processes", strict_processes),
        ("leased processes", leased_processes),
        ("leased decision", leased_decision),
        ("strict throughput", strict_throughput),
        ("strict killed server", |program, time| killed_server(program, time, false)),
        ("leased killed server", |program, time| killed_server(program, time, true)),
    ];
    let mut kept = true;
    let mut report = format!(
        "# The limiter over Redis: what it promises, and what was measured\n\n\
         Made by `cargo bench --features redis --bench redis`. {}\n\
         Servers and clients share the machine.\n",
        provenance()
    );
    for program in programs() {
        let heading = format!("\n## {}\n\n", version(&program));
        println!("{heading}");
        report += &format!("{heading}| what | measured | promised | |\n|---|---|---|---|\n");
        for (name, suite) in suites {
            if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
                continue;
            }
            for line in suite(&program, time) {
                println!("{}: {} ({}: {})", line.what, line.measured, line.promised, mark(line.kept));
                let Line { what, measured, promised, .. } = &line;
                report += &format!("| {what} | {measured} | {promised} | {} |\n", mark(line.kept));
                kept &= line.kept;
            }
        }
    }
    if wanted.is_empty() && !quick {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results/redis.md");
        std::fs::write(&path, report).unwrap();
        println!("written: {}", path.display());
    }
    std::process::exit(i32::from(!kept));
}

/// Machine, date and compiler in one line.
fn provenance() -> String {
    let said = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        output.map_or_else(
            |_| "unknown".to_owned(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    };
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("an unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let system = said("uname", "-srm");
    let (date, rustc) = (said("date", "-uI"), said("rustc", "--version"));
    format!("Machine: {cores} cores of {model}, {system}. Date: {date}. Compiler: {rustc}, release, fat LTO.")
}

fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?");
    let name = if program.ends_with("redis-server") { "Redis" } else { "Valkey" };
    format!("{name} {number}")
}

type Suite = fn(&Path, Duration) -> Vec<Line>;

struct Line {
    what: &'static str,
    measured: String,
    promised: String,
    kept: bool,
}

fn mark(kept: bool) -> &'static str {
    if kept { "kept" } else { "NOT KEPT" }
}

fn bound(load: &Load, what: &'static str) -> (redis_support::nodes::Outcome, Line) {
    let outcome = load.run(&[]);
    assert_eq!(outcome.fallbacks, 0, "the server was lost on the way");
    let line = Line {
        what,
        measured: format!(
            "{} of {} admitted in {:.1} s, at most {:.1} above rate × time in any span",
            outcome.admitted,
            outcome.asked,
            outcome.time.as_secs_f64(),
            outcome.most_at_once
        ),
        promised: format!("never above {} + {} × time", load.burst, load.rate),
        kept: outcome.most_at_once <= load.burst as f64 && outcome.asked > 8 * outcome.admitted,
    };
    (outcome, line)
}

fn strict_processes(program: &Path, time: Duration) -> Vec<Line> {
    let server = &Server::start(program);
    let load = Load { url: server.url(), rate: 500, burst: 250, leased: false, nodes: 4, time };
    vec![bound(&load, "strict, 4 processes × 8 tasks, 10 × the limit").1]
}

fn leased_processes(program: &Path, time: Duration) -> Vec<Line> {
    let server = &Server::start(program);
    let load = Load { url: server.url(), rate: 2_000, burst: 1_000, leased: true, nodes: 4, time };
    let (outcome, line) = bound(&load, "leased, 4 processes × 8 tasks, 10 × the limit");
    // Of the burst, as much is out of use as comes back while tokens are held.
    let rate = load.rate as f64;
    let allowed = load.burst as f64 - rate * HOLD.as_secs_f64() + rate * outcome.time.as_secs_f64();
    let used = outcome.admitted as f64 / allowed;
    let calls = outcome.calls as f64 / outcome.asked as f64;
    let used = Line {
        what: "of the allowed rate used",
        measured: format!("{:.1} %", 100.0 * used),
        promised: "at least 98 %".to_owned(),
        kept: used >= 0.98,
    };
    let calls = Line {
        what: "calls a request",
        measured: format!("{calls:.4}"),
        promised: "at most 0.05".to_owned(),
        kept: calls <= 0.05,
    };
    vec![line, used, calls]
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn leased_decision(program: &Path, time: Duration) -> Vec<Line> {
    let server = &Server::start(program);
    const BATCH: u32 = 200;
    let rounds = 2_000 * u32::try_from(time.as_secs()).unwrap();
    let (mut here_ns, mut leased_ns) = (Vec::new(), Vec::new());
    runtime().block_on(async {
        let here = Limiter::new(BOUNDLESS).unwrap();
        let leased = server.limiter(BOUNDLESS).leased(Leasing::new()).build().await.unwrap();
        for _ in 0..rounds {
            let began = Instant::now();
            for _ in 0..BATCH {
                assert!(black_box(here.try_acquire(black_box("subject"))).is_allowed());
            }
            here_ns.push(began.elapsed().as_nanos() as f64 / f64::from(BATCH));
            let began = Instant::now();
            for _ in 0..BATCH {
                assert!(black_box(leased.try_acquire(black_box("subject")).await).is_allowed());
            }
            leased_ns.push(began.elapsed().as_nanos() as f64 / f64::from(BATCH));
        }
    });
    let (here, leased) = (median(here_ns), median(leased_ns));
    vec![Line {
        what: "median decision, leased beside in-process",
        measured: format!("{leased:.1} ns beside {here:.1} ns"),
        promised: "under 100 ns more".to_owned(),
        kept: leased - here < 100.0,
    }]
}

/// The acquire script, as the limiter sends it.
const SCRIPT: &str = concat!(
    include_str!("../src/redis/scripts/common.lua"),
    include_str!("../src/redis/scripts/acquire.lua")
);

fn strict_throughput(program: &Path, time: Duration) -> Vec<Line> {
    let server = &Server::start(program);
    let benchmark =
        find("redis-benchmark").expect("`redis-benchmark` is not on the PATH: it comes with redis-server");
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(&mut connection).unwrap();
    let round = time / 6;
    // The same arguments as the limiter's for "1000000000/s burst 1000000000".
    let arguments = ["1", "1", "", "b", "0", "4096", "4096000000000", "4096000"];
    // So many calls in flight over each connection.
    let theirs = |requests: u64, depth: usize| {
        let output = Command::new(&benchmark)
            .args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-c", &CONNECTIONS.to_string()])
            .args(["-P", &depth.to_string(), "-n", &requests.to_string(), "--csv"])
            .args(["EVALSHA", &sha, "1", "tollgate:{subject}:b.12.0"])
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // The last line but for its name: the rate, in quotes.
        let rate = text
            .lines()
            .last()
            .and_then(|line| line.rsplit("\",\"").nth(6))
            .map(|rate| rate.replace('"', ""));
        rate.and_then(|rate| rate.parse::<f64>().ok()).unwrap_or_else(|| panic!("cannot read {text}"))
    };
    let runtime = runtime();
    let limiter = runtime.block_on(server.limiter(BOUNDLESS).connections(CONNECTIONS).build()).unwrap();
    let ours = |depth: usize| {
        let began = Instant::now();
        let done: u64 = runtime.block_on(async {
            let tasks: Vec<_> = (0..CONNECTIONS * depth)
                .map(|_| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        let mut done = 0;
                        while began.elapsed() < round {
                            assert!(limiter.try_acquire("subject").await.is_allowed());
                            done += 1;
                        }
                        done
                    })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await.unwrap();
            }
            sum
        });
        assert_eq!(limiter.stats().fallback_decisions, 0, "the server was lost on the way");
        done as f64 / began.elapsed().as_secs_f64()
    };
    let mut lines = Vec::new();
    for (depth, what) in [
        (
            1,
            "strict decisions a second over 8 connections, 8 in flight, beside redis-benchmark -c 8 with the same script",
        ),
        (8, "the same with 64 in flight, beside redis-benchmark -c 8 -P 8"),
    ] {
        // To know how many requests take about a round, and to warm up.
        let requests = (theirs(20_000, depth) * round.as_secs_f64()) as u64;
        let (mut benchmark, mut limiter) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            benchmark.push(theirs(requests, depth));
            limiter.push(ours(depth));
        }
        let (benchmark, limiter) = (median(benchmark), median(limiter));
        lines.push(Line {
            what,
            measured: format!("{limiter:.0} beside {benchmark:.0}: {:.0} %", 100.0 * limiter / benchmark),
            promised: "at least 90 %".to_owned(),
            kept: limiter >= 0.9 * benchmark,
        });
    }
    assert_eq!(self_check(&mut connection), 1, "the limiter has to write the key that redis-benchmark does");
    lines
}

/// How many keys there are of the subject: both have to have asked for the same.
fn self_check(connection: &mut redis::Connection) -> usize {
    redis::cmd("KEYS").arg("*{subject}*").query::<Vec<String>>(connection).unwrap().len()
}

fn killed_server(program: &Path, time: Duration, leased: bool) -> Vec<Line> {
    const DEADLINE: Duration = Duration::from_millis(50);
    let phase = time / 6;
    let [wait, share, back] = if leased {
        [
            "leased: longest wait of any request, the server killed under load",
            "leased: admitted while it was away, of a share of one half",
            "leased: recovery after the server's return",
        ]
    } else {
        [
            "longest wait of any request, the server killed under load",
            "admitted while it was away, of a share of one half",
            "recovery after the server's return",
        ]
    };
    runtime().block_on(async {
        let mut server = Server::start(program);
        let builder =
            RedisLimiter::builder(server.url()).policy("2000/s burst 600").nodes(2).deadline(DEADLINE);
        let builder = if leased { builder.leased(Leasing::new().hold(HOLD)) } else { builder };
        let limiter = builder.build().await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (longest_us, meanwhile) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let tasks: Vec<_> = (0..32)
            .map(|_| {
                let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
                let (longest_us, meanwhile) = (Arc::clone(&longest_us), Arc::clone(&meanwhile));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        let allowed = limiter.try_acquire("subject").await.is_allowed();
                        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap();
                        longest_us.fetch_max(took_us, Ordering::Relaxed);
                        meanwhile.fetch_add(u64::from(allowed), Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(phase).await;
        server.kill();
        while limiter.stats().state == BreakerState::Closed {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        meanwhile.store(0, Ordering::Relaxed);
        let (away, in_hand) = (Instant::now(), limiter.stats().leases.in_hand);
        tokio::time::sleep(phase).await;
        let (admitted, away) = (meanwhile.load(Ordering::Relaxed), away.elapsed());
        server.restart();
        let returned = Instant::now();
        while limiter.stats().state != BreakerState::Closed && returned.elapsed() < Duration::from_secs(30) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let recovery = returned.elapsed();
        tokio::time::sleep(phase).await;
        stop.store(true, Ordering::Relaxed);
        let mut lost = 0;
        for task in tasks {
            lost += u64::from(task.await.is_err());
        }
        let longest = Duration::from_micros(longest_us.load(Ordering::Relaxed));
        let most = 300.0 + 1_000.0 * away.as_secs_f64() + in_hand as f64;
        vec![
            Line {
                what: wait,
                measured: format!("{longest:.1?}, {lost} of 32 tasks lost"),
                promised: format!("the deadline of {DEADLINE:?}, and 20 ms for the machine; no task lost"),
                kept: longest <= DEADLINE + Duration::from_millis(20) && lost == 0,
            },
            Line {
                what: share,
                measured: format!(
                    "{admitted} in {:.1} s, {in_hand} of them in hand before",
                    away.as_secs_f64()
                ),
                promised: format!("at most {most:.0}"),
                kept: admitted as f64 <= most && admitted > 0,
            },
            Line {
                what: back,
                measured: format!("{recovery:.1?}"),
                promised: "within 2 s".to_owned(),
                kept: recovery <= Duration::from_secs(2),
            },
        ]
    })
}
