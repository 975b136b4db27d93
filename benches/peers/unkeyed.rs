//! Limiters that have no keys: ratelimit, with its own clock and with ours, and leaky-bucket.

use super::{Contender, Peer, Setup, Traffic, contender};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

struct Precise(tollgate::Clock);

impl ratelimit::Clock for Precise {
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.now_ns())
    }
}

fn ratelimiter<C: ratelimit::Clock + Send + Sync + 'static>(
    setup: Setup,
    clock: C,
) -> Box<dyn Contender<()>> {
    let (rate, period) = match setup.traffic {
        Traffic::Admit => (1_000_000_000, Duration::from_secs(1)),
        Traffic::Refuse => (1, HOUR),
    };
    let limiter = ratelimit::Builder::with_clock(rate, clock)
        .period(period)
        .max_tokens(rate)
        .initial_available(rate)
        .build()
        .expect("a limiter");
    contender(limiter, |limiter, ()| limiter.try_wait().is_ok(), None)
}

fn leaky_bucket(setup: Setup) -> Box<dyn Contender<()>> {
    // Its interval is a millisecond at the least.
    let (max, refill, interval) = match setup.traffic {
        Traffic::Admit => (1_000_000_000, 1_000_000, Duration::from_millis(1)),
        Traffic::Refuse => (1, 1, HOUR),
    };
    let limiter =
        leaky_bucket::RateLimiter::builder().max(max).initial(max).refill(refill).interval(interval).build();
    contender(limiter, |limiter, ()| limiter.try_acquire(1), None)
}

pub(super) fn unkeyed() -> Vec<Peer<()>> {
    vec![
        Peer::new("ratelimit", "ratelimit", |setup| ratelimiter(setup, ratelimit::StdClock::new())),
        Peer::new("ratelimit, our clock", "ratelimit", |setup| {
            ratelimiter(setup, Precise(tollgate::Clock::precise()))
        })
        .note("with tollgate's precise clock instead of the standard library's"),
        Peer::new("leaky-bucket", "leaky-bucket", leaky_bucket)
            .note("refills in steps of a millisecond; while tokens last it reads no clock"),
    ]
}
