//! A budget of tokens for calls whose price is known only afterwards: book an estimate, wait for its moment, do the
//! work, settle what it came to.
//!
//! `cargo run --example llm_budget`

use std::thread;
use std::time::{Duration, Instant};
use tollgate::Limiter;

/// What a call may come to, and what it does come to.
const CALLS: [(u64, u64); 5] = [(2_000, 1_500), (2_000, 300), (1_000, 1_400), (1_500, 900), (500, 500)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget = Limiter::new("10000/s burst 3000 named tokens")?;
    let start = Instant::now();
    for (estimate, actual) in CALLS {
        let call = budget.reserve("tenant", estimate, Duration::from_secs(2))?;
        let wait = call.wait();
        thread::sleep(wait);
        // The call goes here. What it returns says what it cost; if it fails, dropping `call` hands all of it back.
        call.commit(actual);
        println!(
            "{:>4} ms: estimated {estimate}, waited {wait:.0?}, used {actual}; {} left",
            start.elapsed().as_millis(),
            budget.peek("tenant").remaining()
        );
    }
    match budget.reserve("tenant", 5_000, Duration::from_secs(2)) {
        Err(denied) => println!("{denied}"),
        Ok(_) => println!("5000 at once fit after all"),
    }
    Ok(())
}
