//! Bringing tokens from the server: one flight at a time for each subject, whoever waits for it.

use super::entry::{Entry, Origin, Seen, TOKENS_MAX, tick};
use super::returns::{self, AT_ONCE};
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

/// How long a refusal is believed at most: others may give back or reset what they took.
const BELIEVED_NS: u64 = 1_000_000_000;

/// Decides in-process where that is possible, else waits for a flight; `None` where no lease can serve the cost.
pub(in crate::redis) async fn acquire(
    inner: &Arc<Inner>,
    leases: &Leases,
    subject: &str,
    cost: u64,
    until: Instant,
) -> Option<Result<Decision, RedisError>> {
    let began = Instant::now();
    loop {
        // Closed meanwhile: no flight will go out, and there is nothing to wait for.
        if inner.is_closed_to_flights() {
            return None;
        }
        let entry = match leases.decide(subject, cost, |entry| launch(inner, entry, 1)) {
            Local::Decided(decision) => return Some(Ok(decision)),
            Local::Strict => {
                returns::go_on(inner, leases);
                return None;
            }
            Local::Ask(entry) => entry,
        };
        if !inner.backend.is_closed() {
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
        // Whoever is woken again and again, and never gets anything, goes in time as well.
        if timeout_at(until, landed).await.is_err() || Instant::now() >= until {
            return Some(Err(RedisError::Timeout(began.elapsed())));
        }
        // Relaxed: being woken comes after it was written.
        if entry.failures.load(Ordering::Relaxed) != failures {
            return Some(Err(RedisError::BreakerOpen));
        }
    }
}

/// Sends a flight for at least `need` tokens, unless one is out. It goes on if whoever asked for it gives up.
pub(in crate::redis) fn launch(inner: &Arc<Inner>, entry: &Arc<Entry>, need: u64) {
    if !inner.backend.is_closed() || !entry.take_off() {
        return;
    }
    let (inner, mut landing) = (Arc::clone(inner), Landing::new(Arc::clone(entry)));
    if inner.is_closed_to_flights() {
        landing.succeeds();
        return;
    }
    let backend = Arc::clone(&inner.backend);
    backend.spawn(async move {
        if let Some(leases) = &inner.leases {
            if fly(&inner, leases, &landing.entry, need).await.is_ok() {
                landing.succeeds();
            }
        }
    });
}

/// Lands however the flight ends. One that was ended from outside has brought nothing, and those who wait for it must
/// hear of that.
pub(super) struct Landing {
    pub(super) entry: Arc<Entry>,
    is_in_order: bool,
}

impl Landing {
    pub(super) fn new(entry: Arc<Entry>) -> Self {
        Self { entry, is_in_order: false }
    }

    pub(super) fn succeeds(&mut self) {
        self.is_in_order = true;
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.is_in_order {
            // Relaxed: published by the wake-up.
            self.entry.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.entry.land();
    }
}

async fn fly(inner: &Arc<Inner>, leases: &Leases, entry: &Arc<Entry>, need: u64) -> Result<(), RedisError> {
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
    count_returned(inner, leases, left, origin, now_us);

    let landed_ns = leases.now_ns();
    let mut demand = entry.demand();
    if granted > 0 {
        counters.lease_taken(granted);
        // The server charged later than the call was sent, so tokens are not good for longer than they are charged for.
        entry.fill(hand, granted, sent_ns + leases.hold_ns);
        demand.leases[hand] = Origin { taken: granted, at_us: now_us };
        returns::look_later(inner, leases, entry);
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
    let elapsed_ns = now_ns.saturating_sub(landed_ns);
    let spent = demand.in_hand.saturating_sub(entry.in_hand() + emptied);
    // Over an interval at least: one request just after a landing is not a demand of thousands a second.
    let rate = (spent + refused) as f64 / elapsed_ns.max(leases.interval_ns) as f64;
    demand.rate = if demand.rate == 0.0 { rate } else { (demand.rate + rate) / 2.0 };
    let lasting = (demand.rate * 2.0 * leases.interval_ns as f64).ceil() as u64;
    // A lease that did not last was too small, if there was more to have.
    let lasted = elapsed_ns >= 2 * leases.interval_ns;
    let doubled = if demand.plenty && !lasted { demand.last_granted * 2 } else { 1 };
    lasting.max(doubled).clamp(1, leases.cost_max)
}

/// Counts what was given back. What of a lease had come back by itself before the server heard of it again was of no use
/// to anybody.
fn count_returned(inner: &Inner, leases: &Leases, left: u64, origin: Origin, now_us: u64) {
    let came_back = leases.rules.iter().all(|(plan, _)| {
        now_us.saturating_sub(origin.at_us).saturating_mul(1_000 << plan.unit())
            >= origin.taken.saturating_mul(plan.interval_units)
    });
    let counters = &inner.backend.counters;
    if came_back { counters.lease_expired(left) } else { counters.lease_returned(left) }
}

/// Gives back what was left in a hand that was emptied.
pub(super) async fn give_back(inner: &Inner, leases: &Leases, entry: &Entry, hand: usize, left: u64) {
    let origin = {
        let mut demand = entry.demand();
        // It was not spent.
        demand.in_hand = demand.in_hand.saturating_sub(left);
        demand.leases[hand]
    };
    match inner.lease(&entry.tag, [0, 0, 0], left, origin).await {
        Ok(reply) => {
            count_returned(inner, leases, left, origin, reply.get(1).copied().unwrap_or_default());
        }
        Err(_) => inner.backend.counters.lease_expired(left),
    }
}

/// Has a subject forgotten on the server and here. No flight is out meanwhile: what it brings would be charged to
/// what is being forgotten.
pub(in crate::redis) async fn reset<T>(
    inner: &Arc<Inner>,
    leases: &Leases,
    subject: &str,
    forgetting: impl Future<Output = T>,
) -> T {
    let Some(entry) = leases.table.with(subject, Arc::clone) else { return forgetting.await };
    let grounded = ground(&entry, inner.backend.until()).await;
    let dropped = entry.empty(0) + entry.empty(1);
    inner.backend.counters.lease_expired(dropped);
    entry.demand().in_hand = 0;
    let forgotten = forgetting.await;
    // Somebody may have been refused in between.
    entry.refuse_nothing();
    if let Some(mut landing) = grounded {
        landing.succeeds();
    }
    forgotten
}

/// Keeps an entry from flying, once the flight that is out has landed; `None` if it does not in time.
async fn ground(entry: &Arc<Entry>, until: Instant) -> Option<Landing> {
    loop {
        let mut landed = std::pin::pin!(entry.landed.notified());
        landed.as_mut().enable();
        if entry.take_off() {
            return Some(Landing::new(Arc::clone(entry)));
        }
        timeout_at(until, landed).await.ok()?;
    }
}

/// Gives back all that is in hand.
pub(in crate::redis) async fn close(inner: &Arc<Inner>, leases: &Leases) {
    let mut returns = JoinSet::new();
    for entry in leases.table.entries() {
        let inner = Arc::clone(inner);
        if returns.len() >= AT_ONCE {
            returns.join_next().await;
        }
        returns.spawn(async move {
            let Some(leases) = &inner.leases else { return };
            let mut landed = std::pin::pin!(entry.landed.notified());
            landed.as_mut().enable();
            if entry.is_flying() {
                // What it brings is given back as well, if it comes in time.
                let _ = timeout_at(inner.backend.until(), landed).await;
            }
            for hand in 0..2 {
                let left = entry.empty(hand);
                if left > 0 {
                    give_back(&inner, leases, &entry, hand, left).await;
                }
            }
        });
    }
    while returns.join_next().await.is_some() {}
}
