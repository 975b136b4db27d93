//! Booking ahead: a moment now, the work later, the price at the end.

#[cfg(feature = "tokio")]
mod future;
mod line;
mod wait;

#[cfg(feature = "tokio")]
pub use future::Acquire;
pub(crate) use line::Line;
pub use wait::Wait;
#[cfg(tollgate_loom)]
#[allow(unreachable_pub, reason = "models name it")]
pub use wait::Waiter;

use crate::algorithm::{Charge, PAYLOAD_BITS, PAYLOAD_MASK};
use crate::charge::{self, Booking, Cells, Charged, Seat, Since};
use crate::compile::{Bucket, Compiled};
use crate::decision::{Cause, Decision, Denied, Outcome};
use crate::guard::{PENALTY_CELL, whole_ns};
use crate::limiter::Limiter;
use crate::policies::Era;
use crate::sync::{Fault, is_broken};
use line::{Bell, Moment, Shard, Spot, Word};
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

/// A cost that has been booked for a moment, now or later: by [`Limiter::reserve`].
///
/// The moment comes by itself; whoever holds the reservation waits for it ([`wait`](Self::wait)), does the work,
/// and says what it came to ([`commit`](Self::commit)). Dropped or [cancelled](Self::cancel), it hands back what
/// it still holds up, as if it had never come, and everybody who booked later moves up.
///
/// In the bound of the rule a reservation counts at its moment, however much later the work is done.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Limiter;
///
/// let limiter = Limiter::new("100000/min")?; // tokens of a language model
/// let reservation = limiter.reserve("tenant", 4_000, Duration::from_secs(10))?;
/// std::thread::sleep(reservation.wait()); // nothing here
/// reservation.commit(1_200); // what it came to
/// assert!(limiter.peek("tenant").remaining() >= 98_800);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a reservation that is dropped is cancelled"]
pub struct Reservation<'a> {
    limiter: &'a Limiter,
    hash: u64,
    cost: u64,
    decision: Decision,
    held: Held<'a>,
}

/// What a reservation has to give back.
enum Held<'a> {
    Nothing,
    /// Booked on the word of a token bucket; without a spot where nothing was written.
    Booked {
        rules: Rules<'a>,
        bucket: Bucket,
        charge: Charge,
        spot: Option<Spot>,
        shadows: Charged,
    },
    /// Spent under rules that cannot be booked on.
    Spent {
        rules: Rules<'a>,
        charged: Charged,
    },
}

/// The rules that a reservation was made by, and when they were in force.
#[derive(Clone, Copy)]
struct Rules<'a> {
    compiled: &'a Compiled,
    era: Era,
}

impl<'a> Rules<'a> {
    fn of(limiter: &'a Limiter) -> Self {
        let (set, era) = limiter.policies.current_era();
        Self { compiled: &set.tiers[0].compiled, era }
    }

    /// Those that can be booked on: one token bucket decides.
    fn bucket(self) -> Option<Bucket> {
        self.compiled.only_bucket
    }

    fn since(self, limiter: &Limiter) -> Since {
        if limiter.policies.era() == self.era { Since::Same } else { Since::Other }
    }
}

impl Limiter {
    /// Books `cost` for `key` at the earliest moment there is, if that is at most `max_wait` from now.
    ///
    /// Bookings are served in the order in which they are made, and nobody else comes between: what is booked
    /// is spent, for [`try_acquire`](Self::try_acquire) too. When somebody gives up, those who booked later move
    /// up. But what is [refunded](Self::refund) or [reset](Self::reset) is there for those who come next: whoever
    /// has booked keeps its moment.
    ///
    /// Only a policy in which one token bucket decides can be booked ahead; [shadow rules](crate::Rule::shadow) may
    /// be beside it, and count when the booking is made. Under any other (several rules, windows, logs, or so many
    /// [at once](crate::Rule::at_once)), a reservation is made if it fits now, and never has to wait; what it hands
    /// back is what it has spent, as far as that still counts under each rule.
    ///
    /// Whoever has booked keeps its moment when the [policy changes](Self::set_policy), and hands back what of it the
    /// change has left.
    ///
    /// A reservation takes a lock when it is made and when it ends, which it shares with a 64th of the keys, and
    /// only with those who reserve or wait. `try_acquire` and its like never take it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let limiter = Limiter::builder().policy("10/s burst 10").clock(clock).build()?;
    /// let second = Duration::from_secs(1);
    /// let first = limiter.reserve("tenant", 10, second)?;
    /// let second_one = limiter.reserve("tenant", 5, second)?;
    /// let third = limiter.reserve("tenant", 5, second)?;
    /// assert_eq!(third.wait(), second);
    /// assert!(limiter.reserve("tenant", 1, second).is_err());
    ///
    /// // The first used only half of what it asked for, the second nothing: the third may go at once.
    /// first.commit(5);
    /// second_one.cancel();
    /// assert!(third.is_due());
    /// # let _ = hand;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`], and nothing spent, if it would have to wait longer, if it costs more than the rule ever admits
    /// at once, or if a list or a lockout says so. [`Denied::retry_after`] is the time after which it would not
    /// have to wait.
    pub fn reserve<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Reservation<'_>, Denied> {
        let hash = self.hasher.hash_one(key);
        let reserved = Reservation::make(self, hash, cost, whole_ns(max_wait), None, Rules::of(self));
        if let Ok(reservation) = &reserved {
            self.note(0, &self.cells_of(hash), &reservation.decision);
        }
        reserved.or_else(|decision| {
            self.note_final(hash, decision);
            // Never allowed here, so that the reservation is never made of it.
            decision.into_result().map(|decision| Reservation::free(self, hash, cost, decision))
        })
    }

    /// Spends under a policy, with everything that has a say but lockouts yet to come: a refusal is
    /// not counted here, because whoever waits is refused again and again.
    fn ask(&self, compiled: &Compiled, hash: u64, cost: u64) -> Decision {
        let cells = self.cells_of(hash);
        let now_ns = self.clock.now_ns();
        let above = self.above_rules(&cells, now_ns, cost);
        above.unwrap_or_else(|| charge::acquire_at(compiled, &cells, now_ns, cost))
    }

    /// Notes a decision that is final, and counts it where it is a refusal.
    fn note_final(&self, hash: u64, decision: Decision) {
        self.note(0, &self.cells_of(hash), &decision);
        if let (Some(penalty), Outcome::Denied, Cause::Rule) =
            (&self.penalty, decision.outcome(), decision.cause())
        {
            charge::strike(penalty, &self.cells_of(hash), PENALTY_CELL);
        }
    }
}

impl<'a> Reservation<'a> {
    fn free(limiter: &'a Limiter, hash: u64, cost: u64, decision: Decision) -> Self {
        Self { limiter, hash, cost, decision, held: Held::Nothing }
    }

    fn make(
        limiter: &'a Limiter,
        hash: u64,
        cost: u64,
        wait_ns_max: u64,
        bell: Option<Bell>,
        rules: Rules<'a>,
    ) -> Result<Self, Decision> {
        let cells = limiter.cells_of(hash);
        let now_ns = limiter.clock.now_ns();
        if let Some(verdict) = limiter.above_rules(&cells, now_ns, cost) {
            return if verdict.is_allowed() {
                Ok(Self::free(limiter, hash, cost, verdict))
            } else {
                Err(verdict)
            };
        }
        match rules.bucket() {
            Some(bucket) if cost.wrapping_sub(1) < bucket.plan.burst => {
                Self::book(limiter, hash, cost, wait_ns_max, bell, rules, bucket)
            }
            bucket => {
                let (decision, _, charged) =
                    charge::acquire_keeping(rules.compiled, &cells, now_ns, cost, Seat::Ask);
                if decision.is_denied() {
                    return Err(decision);
                }
                let held = match bucket {
                    // A cost of nothing, which may turn out to be more.
                    Some(bucket) => {
                        let charge = Charge { uncounted: true, ..Charge::default() };
                        Held::Booked { rules, bucket, charge, spot: None, shadows: charged }
                    }
                    None => Held::Spent { rules, charged },
                };
                Ok(Self { limiter, hash, cost, decision, held })
            }
        }
    }

    fn book(
        limiter: &'a Limiter,
        hash: u64,
        cost: u64,
        wait_ns_max: u64,
        bell: Option<Bell>,
        rules: Rules<'a>,
        bucket: Bucket,
    ) -> Result<Self, Decision> {
        let cells = limiter.cells_of(hash);
        let word = Word { hash, cell: bucket.cell };
        // Booked under the lock, so that the order in the line is the order on the word.
        let (booking, spot) = limiter.line.with(hash, |shard, bells| {
            let now_ns = limiter.clock.now_ns();
            shard.begin_due(word, now_ns, bells);
            shard.tell_next(word, bells);
            let booking = charge::book(rules.compiled, &bucket, &cells, now_ns, cost, wait_ns_max)?;
            let spot = match booking.wait_ns {
                _ if booking.charge.uncounted => None,
                0 => Some(shard.begin(word)),
                _ => Some(shard.join(
                    word,
                    moment_of(&bucket, booking.charge),
                    cost * bucket.plan.interval_units,
                    bell,
                )),
            };
            Ok((booking, spot))
        })?;
        let Booking { decision, charge, shadows, .. } = booking;
        let held = Held::Booked { rules, bucket, charge, spot, shadows };
        Ok(Self { limiter, hash, cost, decision, held })
    }

    fn spot(&self) -> Option<Spot> {
        match self.held {
            Held::Booked { spot, .. } => spot,
            _ => None,
        }
    }

    /// Does something to the line this stands in, at a time that is read there.
    fn in_line<R>(&self, spot: Spot, act: impl FnOnce(&mut Shard, u64) -> R) -> R {
        self.limiter.line.with(spot.word.hash, |shard, bells| {
            let now_ns = self.limiter.clock.now_ns();
            shard.begin_due(spot.word, now_ns, bells);
            shard.tell_next(spot.word, bells);
            act(shard, now_ns)
        })
    }

    /// How long until its moment: nothing once that has come, and less than before when somebody who booked
    /// earlier has given up. Takes a step for each of those who still wait before it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let limiter = Limiter::builder().policy("1/s").clock(clock).build()?;
    /// let first = limiter.reserve("key", 1, Duration::MAX)?;
    /// let second = limiter.reserve("key", 1, Duration::MAX)?;
    /// assert_eq!((first.wait(), second.wait()), (Duration::ZERO, Duration::from_secs(1)));
    /// hand.advance(Duration::from_millis(400));
    /// assert_eq!(second.wait(), Duration::from_millis(600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn wait(&self) -> Duration {
        let Some(spot) = self.spot() else { return Duration::ZERO };
        let wait_ns = self.in_line(spot, |shard, now_ns| {
            shard.moment_ns(spot).map_or(0, |moment_ns| moment_ns.saturating_sub(now_ns))
        });
        Duration::from_nanos(wait_ns)
    }

    /// Whether its moment has come.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Limiter};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let limiter = Limiter::builder().policy("1/s").clock(clock).build()?;
    /// let first = limiter.reserve("key", 1, Duration::MAX)?;
    /// let second = limiter.reserve("key", 1, Duration::MAX)?;
    /// assert!(first.is_due() && !second.is_due());
    /// hand.advance(Duration::from_secs(1));
    /// assert!(second.is_due());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.wait().is_zero()
    }

    /// The decision by which it was made: what is left after it, and under which rule.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/h")?;
    /// let reservation = limiter.reserve("key", 4, std::time::Duration::ZERO)?;
    /// assert_eq!(reservation.decision().remaining(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Settles what the work has cost in the end.
    ///
    /// If that is less than was reserved, the difference goes back, as far as it has not come back by itself, and
    /// those who booked later move up. If it is more, the extra is spent at once whether it fits or not: as a
    /// debt, which those who come later wait for and those who have booked do not. It is limited by what a word
    /// can hold, 208 days at slow rates. Under a policy that cannot be booked ahead, as much of the extra is
    /// spent as fits.
    ///
    /// A reservation may be settled before its moment; what it keeps counts at its moment all the same, and that
    /// may still move up.
    ///
    /// ```
    /// use std::time::Duration;
    /// let (clock, hand) = tollgate::Clock::manual();
    /// let limiter = tollgate::Limiter::builder().policy("100/s").clock(clock).build()?;
    /// limiter.reserve("tenant", 50, Duration::ZERO)?.commit(20);
    /// assert_eq!(limiter.peek("tenant").remaining(), 80);
    /// limiter.reserve("tenant", 50, Duration::ZERO)?.commit(130);
    /// assert_eq!(limiter.peek("tenant").retry_after(), Some(Duration::from_millis(510)));
    /// # let _ = hand;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn commit(mut self, actual: u64) {
        self.settle(actual);
    }

    /// Gives up: hands back what it still holds up, as dropping it does.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/h")?;
    /// limiter.reserve("key", 4, std::time::Duration::ZERO)?.cancel();
    /// assert_eq!(limiter.peek("key").remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(self) {}

    fn settle(&mut self, actual: u64) {
        let cells = self.limiter.cells_of(self.hash);
        let (back, extra) = (self.cost.saturating_sub(actual), actual.saturating_sub(self.cost));
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Nothing => {}
            Held::Spent { rules, charged } => {
                // Under other rules nobody knows what there would be without it.
                if back > 0 && rules.since(self.limiter) == Since::Same {
                    charge::undo(rules.compiled, &cells, back, self.cost, charged);
                }
                if extra > 0 {
                    spend_what_fits(rules.compiled, &cells, extra);
                }
            }
            Held::Booked { rules, bucket, charge, spot, shadows } => {
                if let Some(spot) = spot {
                    // Outside the lock: the last of a bell may be the last of whatever it wakes.
                    drop(self.leave(spot, rules, &bucket, charge, back));
                }
                if back > 0 && rules.since(self.limiter) == Since::Same {
                    charge::undo(rules.compiled, &cells, back, self.cost, shadows);
                }
                if extra > 0 {
                    spend_beyond(&bucket, &cells, extra);
                }
            }
        }
    }

    /// Leaves the line and gives back.
    fn leave(
        &self,
        spot: Spot,
        rules: Rules<'_>,
        bucket: &Bucket,
        charge: Charge,
        back: u64,
    ) -> Option<Bell> {
        let cells = self.limiter.cells_of(self.hash);
        self.limiter.line.with(spot.word.hash, |shard, bells| {
            let bell = shard.unhook(spot);
            shard.begin_due(spot.word, cells.now_ns(), bells);
            let since = rules.since(self.limiter);
            // Nothing is left to give back of what was reset since.
            if let (Some(moved_up), true) = (shard.end(spot, since), back > 0) {
                let word = charge.word.wrapping_sub(moved_up) & PAYLOAD_MASK;
                let charge = Charge { word, ..charge };
                let since = || rules.since(self.limiter);
                if is_broken(Fault::NoHandBack) || charge::unbook(bucket, &cells, back, charge, since) {
                    // By a later time than the word was moved by: those behind move up by no more than it was.
                    let held_up = ahead_units(bucket, word, cells.now_ns());
                    let units = held_up.min(back * bucket.plan.interval_units);
                    shard.move_up(spot, units);
                }
            }
            shard.begin_due(spot.word, cells.now_ns(), bells);
            shard.tell_next(spot.word, bells);
            bell
        })
    }

    /// What a sleeper that has woken has to do.
    fn awoken(&self, bell: Bell) -> Turn {
        let Some(spot) = self.spot() else { return Turn::Now };
        let limiter = self.limiter;
        let (turn, _old_bell) = limiter.line.with(spot.word.hash, |shard, bells| {
            let old_bell = shard.unhook(spot);
            let now_ns = limiter.clock.now_ns();
            let first = shard.begin_due(spot.word, now_ns, bells);
            let turn = match shard.hook(spot, now_ns, bell) {
                Some(until_ns) => Turn::At(until_ns),
                None if first.is_some_and(|first| first < spot) => Turn::Next,
                None => Turn::Now,
            };
            shard.tell_next(spot.word, bells);
            (turn, old_bell)
        });
        turn
    }
}

/// When somebody who waits may go.
enum Turn {
    Now,
    /// After those who are due too, came before and have just been woken.
    Next,
    At(u64),
}

/// When a booking's moment is: once no more than a whole burst is owed up to it.
fn moment_of(bucket: &Bucket, charge: Charge) -> Moment {
    let (plan, unit) = (&bucket.plan, bucket.plan.unit());
    let owed = ahead_units(bucket, charge.word, charge.at_ns);
    let wait = i128::from(owed) - i128::from(plan.burst * plan.interval_units);
    Moment { units: (i128::from(charge.at_ns) << unit) + wait, unit }
}

/// How far ahead of a time a word is.
fn ahead_units(bucket: &Bucket, word: u64, now_ns: u64) -> u64 {
    let ahead = word.wrapping_sub(now_ns << bucket.plan.unit()) & PAYLOAD_MASK;
    if ahead >> (PAYLOAD_BITS - 1) == 0 { ahead } else { 0 }
}

/// Spends what has been used already, as much of it as fits.
pub(crate) fn spend_what_fits(compiled: &Compiled, cells: &impl Cells, extra: u64) {
    if charge::acquire_at(compiled, cells, cells.now_ns(), extra).is_denied() {
        let fits = charge::peek(compiled, cells, cells.now_ns(), 0).remaining();
        let _ = charge::acquire_at(compiled, cells, cells.now_ns(), fits.min(extra));
    }
}

/// Spends what has been used already, as far as a word can say.
pub(crate) fn spend_beyond(bucket: &Bucket, cells: &impl Cells, extra: u64) {
    // No more than a word's range at a time, or the product of cost and interval might be too large.
    let mut left = extra.min((PAYLOAD_MASK >> 2) / bucket.plan.interval_units);
    let mut part = left;
    while part > 0 {
        if charge::spend_into_debt(bucket, cells, part) {
            left -= part;
            part = part.min(left);
        } else {
            part /= 2;
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.settle(0);
    }
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("cost", &self.cost)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}
