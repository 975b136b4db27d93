//! One throttle for all workers, whatever they work at: a gate, which is a single word and needs no key.
//!
//! `cargo run --example worker_throttle`

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::Gate;

const WORKERS: usize = 4;
const JOBS: u32 = 60;
/// How long to wait where nobody can say.
const PAUSE: Duration = Duration::from_millis(10);

fn main() -> Result<(), tollgate::Error> {
    // Ten at once after a rest, then one every five milliseconds.
    let gate = Gate::new("200/s burst 10")?;
    let next = AtomicU32::new(0);
    let start = Instant::now();
    let worker = || {
        let mut done = 0;
        // Relaxed: a number that is handed out, and nothing beside it.
        while next.fetch_add(1, Ordering::Relaxed) < JOBS {
            // Until it may go on: what is refused for good says no time either, and must not pass for it.
            loop {
                let decision = gate.try_acquire();
                if decision.is_allowed() {
                    break;
                }
                thread::sleep(decision.retry_after().unwrap_or(PAUSE));
            }
            // The work goes here.
            done += 1;
        }
        done
    };
    let done: Vec<u32> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(0)).collect()
    });
    let took = start.elapsed();
    println!("{done:?} jobs by {WORKERS} workers in {} ms", took.as_millis());
    assert_eq!(done.iter().sum::<u32>(), JOBS);
    assert!(took >= Duration::from_millis(5) * (JOBS - 10), "50 beyond the burst take 250 ms");
    Ok(())
}
