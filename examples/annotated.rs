//! Limits as attributes on functions: a budget a user, double submissions, a throttled job, a limiter a tenant.
//!
//! `cargo run --example annotated --features macros`

use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tollgate::{Clock, Denied, Limiter, ManualHand, rate_limit};

/// Time that is moved by hand, so that the example need not wait for its windows.
static TIME: LazyLock<(Clock, ManualHand)> = LazyLock::new(Clock::manual);

/// Three codes a minute for each user.
#[rate_limit("3/min", key = user, clock = TIME.0.clone())]
fn send_code(user: &str) -> Result<String, Denied> {
    Ok(format!("a code for {user}"))
}

/// The same order twice within five seconds is a double click, and is told so.
#[rate_limit("1 per 5 s", key = (customer, order), clock = TIME.0.clone(), on_limit = |denied| format!("again: {denied}"))]
fn submit(customer: u32, order: &str) -> String {
    format!("customer {customer} ordered {order}")
}

/// Not faster than 200 a second, whoever calls.
#[rate_limit("200/s burst 1", on_limit = wait)]
fn crawl(page: u32) -> u32 {
    page + 1
}

struct Tenant {
    name: &'static str,
    limiter: Limiter,
}

impl Tenant {
    /// What a tenant has bought is in its limiter; a search costs as much as it looks through.
    #[rate_limit(limiter = self.limiter, key = user, cost = pages)]
    fn search(&self, user: &str, pages: u64) -> Result<String, Denied> {
        Ok(format!("{user} of {} searched {pages} pages", self.name))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for _ in 0..3 {
        println!("{}", send_code("alice")?);
    }
    let denied = send_code("alice").expect_err("the fourth");
    println!("{denied}");
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(20)));

    println!("{}", submit(7, "two coffees"));
    println!("{}", submit(7, "two coffees"));
    TIME.1.advance(Duration::from_secs(5));
    assert_eq!(submit(7, "two coffees"), "customer 7 ordered two coffees");

    let start = Instant::now();
    let pages = (0..5).fold(0, |page, _| crawl(page));
    println!("{pages} pages in {:.0?}", start.elapsed());
    assert!(start.elapsed() >= Duration::from_millis(20));

    let small = Tenant { name: "small", limiter: Limiter::new("10/min")? };
    let large = Tenant { name: "large", limiter: Limiter::new("1000/min")? };
    println!("{}", small.search("bob", 8)?);
    println!("{}", small.search("bob", 8).expect_err("more than was bought"));
    println!("{}", large.search("bob", 800)?);
    Ok(())
}
