//! Giving back what was taken and not spent in time.
//!
//! A flight takes along what is left of the hand that it fills. A subject that nobody asks for any more has no next
//! flight, and where tokens come back slowly what it holds would be missing for hours: so each entry that was given
//! tokens is looked at once they have run out. All wait in one queue, as all leases are held for the same time.

use super::Leases;
use super::entry::{Entry, tick};
use super::flight::{Landing, give_back};
use crate::redis::limiter::Inner;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How many leases are given back at the same time.
pub(super) const AT_ONCE: usize = 64;

/// Who has tokens in hand that may run out.
#[derive(Debug, Default)]
pub(super) struct Returns(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// When to look, in nanoseconds of the leases; the soonest first.
    due: VecDeque<(u64, Arc<Entry>)>,
    /// Whether there is a task that does.
    is_swept: bool,
}

impl Returns {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has an entry looked at once what it was just given has run out.
pub(super) fn look_later(inner: &Arc<Inner>, leases: &Leases, entry: &Arc<Entry>) {
    if entry.is_awaited() {
        return;
    }
    leases.returns.queue().due.push_back((leases.now_ns() + leases.hold_ns, Arc::clone(entry)));
    go_on(inner, leases);
}

/// Sends somebody to look, if there is anything to look at and nobody does.
pub(super) fn go_on(inner: &Arc<Inner>, leases: &Leases) {
    let mut queue = leases.returns.queue();
    if queue.due.is_empty() || queue.is_swept {
        return;
    }
    queue.is_swept = true;
    drop(queue);
    let sweeper = Sweeper(Arc::downgrade(inner));
    inner.backend.spawn(sweeper.sweep());
}

/// The one who looks. When it goes, for whatever reason, the next flight sends another.
struct Sweeper(Weak<Inner>);

impl Sweeper {
    async fn sweep(self) {
        loop {
            let Some(pause) = self.0.upgrade().and_then(|inner| next_pause(&inner)) else { return };
            // Not held while asleep, so that the last limiter to go ends it.
            sleep(pause).await;
            let Some(inner) = self.0.upgrade() else { return };
            look(&inner).await;
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            if let Some(leases) = &inner.leases {
                leases.returns.queue().is_swept = false;
            }
        }
    }
}

/// How long until somebody has to be looked at; `None` if nobody has.
fn next_pause(inner: &Inner) -> Option<Duration> {
    let leases = inner.leases.as_ref()?;
    let mut queue = leases.returns.queue();
    let due_ns = queue.due.front().map(|(due_ns, _)| *due_ns);
    // Under the lock, so that whoever comes next sends another.
    queue.is_swept = due_ns.is_some();
    Some(Duration::from_nanos(due_ns?.saturating_sub(leases.now_ns())))
}

/// Looks at all that are due.
async fn look(inner: &Arc<Inner>) {
    let Some(leases) = &inner.leases else { return };
    let mut returning = JoinSet::new();
    loop {
        let now_ns = leases.now_ns();
        let due = {
            let mut queue = leases.returns.queue();
            let is_due = queue.due.front().is_some_and(|(due_ns, _)| *due_ns <= now_ns);
            if is_due { queue.due.pop_front() } else { None }
        };
        let Some((_, entry)) = due else { break };
        entry.no_longer_awaited();
        if entry.in_hand() == 0 {
            continue;
        }
        // Still good, or the flight that is out takes it along, or there is nobody to give it to: another time.
        if !entry.has_run_out(tick(now_ns)) || !inner.backend.is_closed() || !entry.take_off() {
            look_later(inner, leases, &entry);
            continue;
        }
        let (inner, mut landing) = (Arc::clone(inner), Landing::new(entry));
        if returning.len() >= AT_ONCE {
            returning.join_next().await;
        }
        returning.spawn(async move {
            let Some(leases) = &inner.leases else { return };
            for hand in 0..2 {
                if let Some(left) = landing.entry.empty_if_run_out(hand, tick(leases.now_ns())) {
                    give_back(&inner, leases, &landing.entry, hand, left).await;
                }
            }
            landing.succeeds();
            if landing.entry.in_hand() > 0 {
                look_later(&inner, leases, &landing.entry);
            }
        });
    }
    while returning.join_next().await.is_some() {}
}
