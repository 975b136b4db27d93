//! Waiting for one's turn as a task.

use super::line::Bell;
use super::wait::{Step, Wait, Waiting};
use crate::decision::Decision;
use crate::limiter::Limiter;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

impl Limiter {
    /// Takes one for `key`, and waits until it may: fair, and safe to drop at any time.
    ///
    /// The moment is booked on the key's word when the future is first polled, in the order in which futures are
    /// polled; the future then sleeps until that moment. There is no task or queue a key, and nobody is woken
    /// who is not due: but when somebody who came earlier is dropped, those behind move up, and each is woken
    /// once more than otherwise, when it is the next. Dropping the future hands back what was booked.
    /// Whoever need not wait takes no lock; whoever must takes one that it shares with a 64th of the keys, and only
    /// with those who wait or [reserve](Self::reserve).
    ///
    /// Refused, and at once, is only what waiting does not help: a list, a lockout, no room in the table.
    ///
    /// Under a policy that is more than one token bucket nothing can be booked. Those who wait for a key stand in
    /// line all the same: the front one sleeps its [`retry_after`](Decision::retry_after) and asks again. But a
    /// [`try_acquire`](Self::try_acquire) may come between.
    ///
    /// Timers of tokio go by milliseconds, so a future is ready up to a millisecond or two after its moment; what
    /// comes after it is not later for that.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = tollgate::Limiter::new("100/s burst 1")?;
    /// for _ in 0..3 {
    ///     limiter.acquire("key").await.into_result()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// The future panics if it has to wait and is polled outside a tokio runtime with its timer enabled.
    pub fn acquire<K: Hash + ?Sized>(&self, key: &K) -> Acquire<'_> {
        self.acquire_with(key, Wait::new())
    }

    /// The same for `cost` at once. A cost above what the policy ever admits is
    /// [`NeverFits`](crate::Outcome::NeverFits), at once.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = tollgate::Limiter::new("100/s burst 2")?;
    /// limiter.acquire_n("key", 2).await.into_result()?;
    /// limiter.acquire_n("key", 2).await.into_result()?; // some 20 ms later
    /// assert!(limiter.acquire_n("key", 3).await.is_denied()); // never fits
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Acquire<'_> {
        self.acquire_with(key, Wait::new().cost(cost))
    }

    /// The same for a cost, for a time, or with jitter: see [`Wait`]. Where the time is too short, the decision is
    /// a refusal, nothing is spent, and that is known at once (where the policy can be booked).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use std::time::Duration;
    /// use tollgate::Wait;
    ///
    /// let limiter = tollgate::Limiter::new("1/h burst 1")?;
    /// let wait = Wait::new().max_wait(Duration::from_secs(1));
    /// assert!(limiter.acquire_with("key", wait).await.is_allowed());
    /// assert!(limiter.acquire_with("key", wait).await.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_with<K: Hash + ?Sized>(&self, key: &K, wait: Wait) -> Acquire<'_> {
        Acquire { waiting: Waiting::new(self, self.hasher.hash_one(key), wait), sleep: None }
    }
}

/// The future of [`Limiter::acquire`].
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use std::time::Duration;
///
/// let limiter = tollgate::Limiter::new("1/h")?;
/// limiter.acquire("key").await.into_result()?;
/// // Whoever gives up hands back what was booked.
/// let too_late = tokio::time::timeout(Duration::from_millis(1), limiter.acquire("key")).await;
/// assert!(too_late.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is asked for until this is awaited"]
pub struct Acquire<'a> {
    waiting: Waiting<'a>,
    /// The timer, once there has been something to wait for, and the limiter's time that it is set to.
    sleep: Option<(Pin<Box<Sleep>>, u64)>,
}

impl Future for Acquire<'_> {
    type Output = Decision;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Decision> {
        let this = self.get_mut();
        loop {
            // Before the limiter's clock is read: a thread that is stopped in between then wakes too early, and
            // sleeps on, but never too late.
            let from = Instant::now();
            let (until_ns, left_ns) = match this.waiting.step(|| Bell::Task(context.waker().clone())) {
                Step::Done(decision) => return Poll::Ready(decision),
                Step::Yield => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Step::Sleep { left_ns: u64::MAX, .. } => return Poll::Pending,
                Step::Sleep { until_ns, left_ns } => (until_ns, left_ns),
            };
            let deadline = || from + Duration::from_nanos(left_ns);
            let (sleep, set_to_ns) =
                this.sleep.get_or_insert_with(|| (Box::pin(sleep_until(deadline())), until_ns));
            if *set_to_ns != until_ns || sleep.is_elapsed() {
                sleep.as_mut().reset(deadline());
                *set_to_ns = until_ns;
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acquire").field(&self.waiting).finish()
    }
}
