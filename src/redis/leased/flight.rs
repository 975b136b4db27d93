//! Bringing tokens from the server: one flight at a time for each subject, whoever waits for it.

use super::entry::{Entry, Origin, Seen, TOKENS_MAX, tick};
use super::{Leases, Local};
use crate::algorithm::Step;
use crate::decision::Decision;
use crate::redis::error::RedisError;
use crate::redis::limiter::Inner;
use crate::redis::protocol::odd_reply;
use crate::sync::unmodelled::Ordering;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// How many leases are given back at the same time when the limiter is closed.
const RETURNS: usize = 64;
/// How long a refusal is believed at most: others may give back or reset what they took.
const BELIEVED_NS: u64 = 1_000_000_000;

/// Decides in-process where that is possible, else waits for a flight; `None` where no lease can serve the cost.
pub(in crate::redis) async fn acquire(
    inner: &Arc<Inner>,
    leases: &Leases,
    subject: &str,
    cost: u64,
) -> Option<Result<Decision, RedisError>> {
    let deadline = Instant::now() + inner.backend.deadline;
    loop {
        // Closed meanwhile: no flight will go out, and there is nothing to wait for.
        if inner.is_closed_to_flights() {
            return None;
        }
        let entry = match leases.decide(subject, cost, |entry| launch(inner, entry, 1)) {
            Local::Decided(decision) => return Some(Ok(decision)),
            Local::Strict => return None,
            Local::Ask(entry) => entry,
        };
        if !inner.backend.breaker.is_closed() {
            return Some(Err(RedisError::BreakerOpen));
        }
        // Relaxed: only has to differ after a failure that the wake-up tells of.
        let failures = entry.failures.load(Ordering::Relaxed);
        let mut landed = std::pin::pin!(entry.landed.notified());
        landed.as_mut().enable();
        // A flight may have landed before anybody could tell: look again, now that nothing can be missed.
        if let Local::Decided(decision) = leases.decide(subject, cost, |_| ()) {
            return Some(Ok(decision));
        }
        launch(inner, &entry, cost);
        if timeout_at(deadline, landed).await.is_err() {
            return Some(Err(RedisError::Timeout(inner.backend.deadline)));
        }
        // Relaxed: being woken comes after it was written.
        if entry.failures.load(Ordering::Relaxed) != failures {
            return Some(Err(RedisError::BreakerOpen));
        }
    }
}

/// Sends a flight for at least `need` tokens, unless one is out. It goes on if whoever asked for it gives up.
pub(in crate::redis) fn launch(inner: &Arc<Inner>, entry: &Arc<Entry>, need: u64) {
    if !inner.backend.breaker.is_closed() || !entry.take_off() {
        return;
    }
    let (inner, landing) = (Arc::clone(inner), Landing(Arc::clone(entry)));
    if inner.is_closed_to_flights() {
        return;
    }
    let runtime = inner.backend.runtime.clone();
    runtime.spawn(async move {
        let entry = &landing.0;
        if let Some(leases) = &inner.leases {
            if fly(&inner, leases, entry, need).await.is_err() {
                // Relaxed: published by the wake-up.
                entry.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
}

/// Lands however the flight ends.
struct Landing(Arc<Entry>);

impl Drop for Landing {
    fn drop(&mut self) {
        self.0.land();
    }
}

async fn fly(inner: &Inner, leases: &Leases, entry: &Entry, need: u64) -> Result<(), RedisError> {
    let sent_ns = leases.now_ns();
    let (hand, left) = entry.empty_hand(tick(sent_ns));
    let (want, origin) = {
        let mut demand = entry.demand();
        let want = wanted(leases, entry, &mut demand, sent_ns, left).max(need);
        (want, demand.leases[hand])
    };
    let reply = inner.lease(&entry.tag, [need, want, leases.charged_hold_us], left, origin).await;
    let counters = &inner.backend.counters;
    let Ok(reply) = reply else {
        counters.lease_expired(left);
        return reply.map(|_| ());
    };
    let [granted, now_us, available, debts @ ..] = &reply[..] else { return Err(odd_reply()) };
    let (granted, now_us, available) = (*granted, *now_us, *available);
    if granted > TOKENS_MAX || debts.len() != leases.rules.len() {
        return Err(odd_reply());
    }
    // What of a lease had come back by itself before the server heard of it again was of no use to anybody.
    let came_back = leases.rules.iter().all(|(plan, _)| {
        now_us.saturating_sub(origin.at_us).saturating_mul(1_000 << plan.unit())
            >= origin.taken.saturating_mul(plan.interval_units)
    });
    if came_back {
        counters.lease_expired(left);
    } else {
        counters.lease_returned(left);
    }

    let landed_ns = leases.now_ns();
    let mut demand = entry.demand();
    if granted > 0 {
        counters.lease_taken(granted);
        // The server charged later than the call was sent, so tokens are not good for longer than they are charged for.
        entry.fill(hand, granted, sent_ns + leases.hold_ns);
        demand.leases[hand] = Origin { taken: granted, at_us: now_us };
    }
    demand.landed_ns = Some(landed_ns);
    demand.last_granted = granted;
    demand.plenty = granted >= want;
    demand.in_hand = entry.in_hand();
    let at_ns = now_us.saturating_mul(1_000);
    let waits = leases.rules.iter().zip(debts).map(|((plan, _), &debt)| {
        let word = plan.word_at(debt, at_ns);
        (plan.wait_ns(word, at_ns, need), plan.reset_ns(word, at_ns))
    });
    // The rule that makes wait longest, or else the one that will be fresh last.
    let (rule, (wait_ns, reset_ns)) =
        waits.enumerate().max_by_key(|&(index, waits)| (waits, std::cmp::Reverse(index))).unwrap_or_default();
    entry.see(Seen { available, fresh_at_ns: landed_ns.saturating_add(reset_ns), rule });
    let soon_ns = sent_ns + leases.interval_ns;
    if granted == 0 && demand.in_hand == 0 {
        let fits_at_ns = landed_ns.saturating_add(wait_ns);
        entry.refuse_until(fits_at_ns.min(landed_ns + BELIEVED_NS).max(soon_ns), need, fits_at_ns);
    } else if granted == 0 {
        // What is in hand may be what is missing, once it is given back.
        entry.refuse_until(soon_ns, need, soon_ns);
    } else if demand.plenty {
        entry.refuse_nothing();
    } else {
        entry.refuse_until(soon_ns, 1, soon_ns);
    }
    Ok(())
}

/// How many tokens should last for two intervals, by the demand of late.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "an estimate of a size, which saturates and is clamped"
)]
fn wanted(
    leases: &Leases,
    entry: &Entry,
    demand: &mut super::entry::Demand,
    now_ns: u64,
    emptied: u64,
) -> u64 {
    let refused = entry.take_refused();
    let Some(landed_ns) = demand.landed_ns else { return 1 };
    let elapsed_ns = now_ns.saturating_sub(landed_ns).max(1);
    let spent = demand.in_hand.saturating_sub(entry.in_hand() + emptied);
    let rate = (spent + refused) as f64 / elapsed_ns as f64;
    demand.rate = if demand.rate == 0.0 { rate } else { (demand.rate + rate) / 2.0 };
    let lasting = (demand.rate * 2.0 * leases.interval_ns as f64).ceil() as u64;
    // A lease that did not last was too small, if there was more to have.
    let lasted = elapsed_ns >= 2 * leases.interval_ns;
    let doubled = if demand.plenty && !lasted { demand.last_granted * 2 } else { 1 };
    lasting.max(doubled).clamp(1, leases.cost_max)
}

/// Gives back all that is in hand.
pub(in crate::redis) async fn close(inner: &Arc<Inner>, leases: &Leases) {
    let mut returns = JoinSet::new();
    for entry in leases.table.entries() {
        let inner = Arc::clone(inner);
        if returns.len() >= RETURNS {
            returns.join_next().await;
        }
        returns.spawn(async move {
            let mut landed = std::pin::pin!(entry.landed.notified());
            landed.as_mut().enable();
            if entry.is_flying() {
                // What it brings is given back as well, if it comes in time.
                let _ = timeout_at(Instant::now() + inner.backend.deadline, landed).await;
            }
            for hand in 0..2 {
                let origin = entry.demand().leases[hand];
                let left = entry.empty(hand);
                if left == 0 {
                    continue;
                }
                match inner.lease(&entry.tag, [0, 0, 0], left, origin).await {
                    Ok(_) => inner.backend.counters.lease_returned(left),
                    Err(_) => inner.backend.counters.lease_expired(left),
                }
            }
        });
    }
    while returns.join_next().await.is_some() {}
}
