//! Several processes that share one limit and want ten times as much.
//!
//! A program that is started with [`NODE`] in its environment is one of them (see [`run_if_node`]): it asks for a while
//! and prints when each request that passed was sent and decided. The bound is then checked over all of them, by the
//! clock of the machine that all of them run on.

use super::unhurried;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tollgate::redis::{Leasing, RedisLimiter};

const NODE: &str = "TOLLGATE_REDIS_NODE";
const TASKS: u64 = 8;
/// How often a task asks for its share of requests.
const TICK: Duration = Duration::from_millis(2);
/// For how long leased tokens are held: what [`Leasing::new`] says.
pub(crate) const HOLD: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) url: String,
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    pub(crate) leased: bool,
    pub(crate) nodes: u64,
    pub(crate) time: Duration,
}

/// What all nodes together met.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
    pub(crate) calls: u64,
    pub(crate) fallbacks: u64,
    pub(crate) time: Duration,
    /// The longest that any node was kept from running.
    pub(crate) stall: Duration,
    /// The most that was ever admitted above `rate · t` in any span `t`: may not be more than the burst.
    pub(crate) most_at_once: f64,
}

/// Is one of the nodes and ends, if this process was started as one.
pub(crate) fn run_if_node() {
    let Ok(text) = std::env::var(NODE) else { return };
    let words: Vec<&str> = text.split_whitespace().collect();
    let [url, rate, burst, leased, nodes, time_ms, start_us] = words[..] else { panic!("{text}") };
    let load = Load {
        url: url.to_owned(),
        rate: rate.parse().unwrap(),
        burst: burst.parse().unwrap(),
        leased: leased == "true",
        nodes: nodes.parse().unwrap(),
        time: Duration::from_millis(time_ms.parse().unwrap()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(load.be_a_node(start_us.parse().unwrap()));
    std::process::exit(0);
}

fn now_us() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

impl Load {
    /// Runs the nodes: this program again, with the arguments that lead it to [`run_if_node`].
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        let start_us = now_us() + 1_000_000;
        let Self { url, rate, burst, leased, nodes, time } = self;
        let told = format!("{url} {rate} {burst} {leased} {nodes} {} {start_us}", time.as_millis());
        let children: Vec<_> = (0..*nodes)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(args)
                    .env(NODE, &told)
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut outcome = Outcome {
            asked: 0,
            admitted: 0,
            calls: 0,
            fallbacks: 0,
            time: Duration::ZERO,
            stall: Duration::ZERO,
            most_at_once: 0.0,
        };
        let (mut sent, mut decided) = (Vec::new(), Vec::new());
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "a node failed");
            let text = String::from_utf8(output.stdout).unwrap();
            let mut sums = 0;
            for line in text.lines() {
                let numbers: Vec<u64> =
                    line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
                match (line.split(' ').next(), &numbers[..]) {
                    (Some("admitted"), &[from_us, to_us]) => {
                        sent.push(from_us);
                        decided.push(to_us);
                    }
                    (Some("sum"), &[asked, calls, fallbacks, stall_us]) => {
                        outcome.stall = outcome.stall.max(Duration::from_micros(stall_us));
                        outcome.asked += asked;
                        outcome.calls += calls;
                        outcome.fallbacks += fallbacks;
                        sums += 1;
                    }
                    // What a test harness prints.
                    _ => {}
                }
            }
            assert_eq!(sums, 1, "a node said nothing");
        }
        sent.sort_unstable();
        decided.sort_unstable();
        outcome.admitted = sent.len() as u64;
        outcome.most_at_once = most_at_once(&sent, &decided, self.rate);
        if let (Some(first), Some(last)) = (sent.first(), decided.last()) {
            outcome.time = Duration::from_micros(last - first);
        }
        outcome
    }

    async fn be_a_node(&self, start_us: u64) {
        let policy = format!("{}/s burst {}", self.rate, self.burst);
        let builder = RedisLimiter::builder(&self.url).policy(policy).nodes(self.nodes);
        let builder = unhurried(builder);
        let builder = if self.leased { builder.leased(Leasing::new().hold(HOLD)) } else { builder };
        let limiter = builder.build().await.unwrap();
        let calls_before = limiter.stats().calls;
        tokio::time::sleep(Duration::from_micros(start_us.saturating_sub(now_us()))).await;
        let asked = Arc::new(AtomicU64::new(0));
        // Ten times the limit, over all tasks of all nodes.
        let task_rate = (self.rate * 10).div_ceil(TASKS * self.nodes);
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (limiter, asked, time) = (limiter.clone(), Arc::clone(&asked), self.time);
                tokio::spawn(async move {
                    let mut admitted = Vec::new();
                    let began = Instant::now();
                    let mut done = 0;
                    while began.elapsed() < time {
                        let due = began.elapsed().as_micros() * u128::from(task_rate) / 1_000_000;
                        while done < due {
                            let from_us = now_us();
                            if limiter.try_acquire("shared").await.is_allowed() {
                                admitted.push((from_us, now_us()));
                            }
                            done += 1;
                            asked.fetch_add(1, Ordering::Relaxed);
                        }
                        tokio::time::sleep(TICK).await;
                    }
                    admitted
                })
            })
            .collect();
        let mut stall = Duration::ZERO;
        let began = Instant::now();
        while began.elapsed() < self.time {
            let slept = Instant::now();
            tokio::time::sleep(TICK).await;
            stall = stall.max(slept.elapsed().saturating_sub(TICK));
        }
        for task in tasks {
            for (from_us, to_us) in task.await.unwrap() {
                println!("admitted {from_us} {to_us}");
            }
        }
        let stats = limiter.stats();
        limiter.close().await;
        // A line of its own, whatever the harness has printed before.
        println!();
        println!(
            "sum {} {} {} {}",
            asked.load(Ordering::Relaxed),
            stats.calls - calls_before,
            stats.fallback_decisions,
            stall.as_micros()
        );
    }
}

/// The most that was admitted in any span above `rate` times the span.
///
/// A request was decided at some moment between being sent and being answered, so only those count that were both
/// within the span: decided by its end, less those sent before its start.
pub(crate) fn most_at_once(sent: &[u64], decided: &[u64], rate: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let refilled = |us: u64| us as f64 * rate as f64 / 1e6;
    let Some(&start) = sent.first() else { return 0.0 };
    let (mut most, mut least_before) = (0.0_f64, f64::MAX);
    let mut spans = 0;
    // Each span begins as a request is sent and ends as one is decided.
    for (decided_by, &to) in decided.iter().enumerate() {
        while spans < sent.len() && sent[spans] <= to {
            #[allow(clippy::cast_precision_loss, reason = "as above")]
            let before = spans as f64 - refilled(sent[spans] - start);
            least_before = least_before.min(before);
            spans += 1;
        }
        #[allow(clippy::cast_precision_loss, reason = "as above")]
        let by_then = (decided_by + 1) as f64 - refilled(to - start);
        most = most.max(by_then - least_before);
    }
    most
}
