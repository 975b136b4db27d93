//! Waiting for one's turn: what a thread and a task have in common, and the thread's way.

use super::line::{Bell, Spot, Word};
use super::{Reservation, Rules, Turn};
use crate::charge;
use crate::decision::{Cause, Decision, Outcome};
use crate::guard::whole_ns;
use crate::limiter::Limiter;
use std::fmt;
use std::hash::Hash;
use std::thread;
use std::time::Duration;

/// How long to sleep before asking again where nobody can say when something will fit: too many at work.
const ASK_AGAIN_NS: u64 = 10_000_000;
/// How much longer than it would itself have to wait somebody sleeps for each of those before it, in a line where
/// nothing can be booked: then they have not come when it was their turn.
const GRACE_NS: u64 = 10_000_000;
/// The shortest sleep by a clock that has not moved since the last one.
const STANDSTILL_NS: u64 = 1_000_000;

/// How to wait: for what cost, how long at most, and how punctually.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Wait};
///
/// let limiter = Limiter::new("1000/s burst 10")?;
/// let wait = Wait::new().cost(10).max_wait(Duration::from_millis(500));
/// assert!(limiter.acquire_blocking_with("key", wait).is_allowed());
/// assert!(limiter.acquire_blocking_with("key", wait).is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Wait {
    cost: u64,
    max_wait: Option<Duration>,
    jitter: Duration,
}

impl Wait {
    /// For a cost of 1, for however long it takes, and no longer than that.
    ///
    /// ```
    /// use tollgate::Wait;
    /// assert_eq!(Wait::new(), Wait::new().cost(1));
    /// assert_eq!(Wait::new(), Wait::default());
    /// ```
    pub fn new() -> Self {
        Self { cost: 1, max_wait: None, jitter: Duration::ZERO }
    }

    /// What is asked for.
    ///
    /// ```
    /// use tollgate::{Limiter, Wait};
    ///
    /// let limiter = Limiter::new("10/h")?;
    /// assert_eq!(limiter.acquire_blocking_with("key", Wait::new().cost(7)).remaining(), 3);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// How long to wait at most. Who would have to wait longer is refused at once, where that can be known.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Wait};
    ///
    /// let limiter = Limiter::new("1/h")?;
    /// let wait = Wait::new().max_wait(Duration::from_secs(1));
    /// assert!(limiter.acquire_blocking_with("key", wait).is_allowed());
    /// assert!(limiter.acquire_blocking_with("key", wait).is_denied()); // at once: an hour is too long
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn max_wait(mut self, time: Duration) -> Self {
        self.max_wait = Some(time);
        self
    }

    /// Whoever has had to wait sleeps for a random time of up to `time` more, on top of `max_wait`: so that those
    /// who were served one after another do not go on in step.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Wait};
    ///
    /// let limiter = Limiter::new("1000/s burst 1")?;
    /// let wait = Wait::new().jitter(Duration::from_millis(2));
    /// for _ in 0..2 {
    ///     assert!(limiter.acquire_blocking_with("key", wait).is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn jitter(mut self, time: Duration) -> Self {
        self.jitter = time;
        self
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self::new()
    }
}

impl Limiter {
    /// Takes one for `key`, and blocks the thread until it may. Like `acquire` in all else: whoever came first
    /// goes first, whether thread or task.
    ///
    /// Refused, and at once, is only what waiting does not help: a list, a lockout, no room in the table.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1000/s burst 1")?;
    /// for _ in 0..3 {
    ///     assert!(limiter.acquire_blocking("key").is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn acquire_blocking<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.acquire_blocking_with(key, Wait::new())
    }

    /// The same for a cost, for a time, or with jitter: see [`Wait`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Wait};
    ///
    /// let limiter = Limiter::new("100/s burst 2")?;
    /// let wait = Wait::new().cost(2).max_wait(Duration::from_secs(5));
    /// assert!(limiter.acquire_blocking_with("key", wait).is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn acquire_blocking_with<K: Hash + ?Sized>(&self, key: &K, wait: Wait) -> Decision {
        let mut waiting = Waiting::new(self, self.hasher.hash_one(key), wait);
        loop {
            match waiting.step(|| Bell::Thread(thread::current())) {
                Step::Done(decision) => return decision,
                Step::Yield => thread::yield_now(),
                Step::Sleep { left_ns: u64::MAX, .. } => thread::park(),
                Step::Sleep { left_ns, .. } => thread::park_timeout(Duration::from_nanos(left_ns)),
            }
        }
    }
}

/// Somebody who waits, for models, which have no timers and no threads to put to sleep. Not part of the interface.
#[cfg(tollgate_loom)]
#[doc(hidden)]
#[derive(Debug)]
pub struct Waiter<'a>(Waiting<'a>);

#[cfg(tollgate_loom)]
impl Waiter<'_> {
    /// Goes as far as it can now; else says until when to sleep by the limiter's clock, unless woken before.
    #[doc(hidden)]
    pub fn step(&mut self, waker: &std::task::Waker) -> Result<Decision, Duration> {
        match self.0.step(|| Bell::Task(waker.clone())) {
            Step::Done(decision) => Ok(decision),
            Step::Yield => Err(Duration::ZERO),
            Step::Sleep { until_ns, .. } => Err(Duration::from_nanos(until_ns)),
        }
    }
}

#[cfg(tollgate_loom)]
impl Limiter {
    /// What `acquire` is without its timer. Not part of the interface.
    #[doc(hidden)]
    pub fn waiter<K: Hash + ?Sized>(&self, key: &K) -> Waiter<'_> {
        Waiter(Waiting::new(self, self.hasher.hash_one(key), Wait::new()))
    }
}

/// What to do next.
pub(super) enum Step {
    Done(Decision),
    /// Come back at once, after others that have been woken.
    Yield,
    /// Sleep until a time by the limiter's clock, which is so far away; or until woken.
    Sleep {
        #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a thread sets no timer"))]
        until_ns: u64,
        left_ns: u64,
    },
}

/// Somebody on the way to a decision. Dropped before that, it leaves everything as if it had never come.
pub(super) struct Waiting<'a> {
    limiter: &'a Limiter,
    hash: u64,
    wait: Wait,
    state: State<'a>,
    /// When the last step was.
    stepped_ns: u64,
}

enum State<'a> {
    New,
    Booked(Reservation<'a>),
    /// Its moment has come, and it sleeps on for the sake of the others.
    Late(Reservation<'a>, u64),
    /// In the line of those whose policy cannot be booked: the front one asks.
    Trying(Spot, Patience),
    Done(Decision),
}

/// How long somebody waits that stands in line.
#[derive(Clone, Copy)]
struct Patience {
    /// Until then, and no longer.
    end_ns: u64,
    /// Until then for those before it.
    others_ns: u64,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(limiter: &'a Limiter, hash: u64, wait: Wait) -> Self {
        Self { limiter, hash, wait, state: State::New, stepped_ns: 0 }
    }

    /// Goes as far as it can now. `bell` is rung if there is reason to come back before the time that is given.
    pub(super) fn step(&mut self, bell: impl FnOnce() -> Bell) -> Step {
        let until_ns = match &mut self.state {
            State::New => self.begin(bell()),
            State::Booked(reservation) => match reservation.awoken(bell()) {
                Turn::At(until_ns) => Some(until_ns),
                Turn::Next => return Step::Yield,
                Turn::Now => self.be_late(),
            },
            State::Late(_, until_ns) if *until_ns > self.limiter.clock.now_ns() => Some(*until_ns),
            State::Late(..) => self.go(),
            State::Trying(spot, patience) => {
                let (spot, patience) = (*spot, *patience);
                self.try_now(spot, patience, bell())
            }
            State::Done(_) => None,
        };
        let now_ns = self.limiter.clock.now_ns();
        match (&self.state, until_ns) {
            (State::Done(decision), _) => Step::Done(*decision),
            (_, None | Some(u64::MAX)) => Step::Sleep { until_ns: u64::MAX, left_ns: u64::MAX },
            (_, Some(until_ns)) => {
                let least_ns = if now_ns == self.stepped_ns { STANDSTILL_NS } else { 0 };
                self.stepped_ns = now_ns;
                Step::Sleep { until_ns, left_ns: until_ns.saturating_sub(now_ns).max(least_ns) }
            }
        }
    }

    fn begin(&mut self, bell: Bell) -> Option<u64> {
        let limiter = self.limiter;
        let wait_ns_max = self.wait.max_wait.map_or(u64::MAX, whole_ns);
        // One look at the policy: under another one, by the next, waiting may be done the other way.
        let rules = Rules::of(limiter);
        if rules.bucket().is_none() {
            let word = Word { hash: self.hash, cell: Word::NO_CELL };
            let spot = limiter.line.with(self.hash, |shard, _| shard.join_trying(word, bell.clone()));
            let end_ns = limiter.clock.now_ns().saturating_add(wait_ns_max);
            let patience = Patience { end_ns, others_ns: u64::MAX };
            self.state = State::Trying(spot, patience);
            return self.try_now(spot, patience, bell);
        }
        // Whoever does not have to wait does not meet those who do: while somebody waits, nothing fits.
        let decision = limiter.ask(rules.compiled, self.hash, self.wait.cost);
        if is_final(decision) {
            return self.end(decision);
        }
        match Reservation::make(limiter, self.hash, self.wait.cost, wait_ns_max, Some(bell), rules) {
            Ok(reservation) => {
                let spot = reservation.spot();
                let until_ns =
                    spot.and_then(|spot| limiter.line.with(self.hash, |shard, _| shard.known_ns(spot)));
                self.state = State::Booked(reservation);
                until_ns.or_else(|| self.go())
            }
            Err(decision) => self.end(decision),
        }
    }

    /// Its moment has come.
    fn be_late(&mut self) -> Option<u64> {
        let jitter_ns = whole_ns(self.wait.jitter);
        if jitter_ns == 0 {
            return self.go();
        }
        let State::Booked(reservation) = std::mem::replace(&mut self.state, State::New) else { return None };
        let random = mixed(self.limiter.seeds[0] ^ reservation.spot().map_or(0, |spot| spot.ticket));
        // The high half of the product is evenly spread below the jitter.
        let late_ns = u64::try_from((u128::from(random) * u128::from(jitter_ns)) >> 64).unwrap_or(0);
        let until_ns = self.limiter.clock.now_ns().saturating_add(late_ns);
        self.state = State::Late(reservation, until_ns);
        Some(until_ns)
    }

    /// Takes what was booked for good.
    fn go(&mut self) -> Option<u64> {
        if let State::Booked(reservation) | State::Late(reservation, _) =
            std::mem::replace(&mut self.state, State::New)
        {
            let decision = reservation.decision();
            self.limiter.note(0, &self.limiter.cells_of(self.hash), &decision);
            self.state = State::Done(decision);
            reservation.commit(self.wait.cost);
        }
        None
    }

    /// Asks, if it is its turn or its last chance, or if those whose turn it is do not come.
    fn try_now(&mut self, spot: Spot, patience: Patience, bell: Bell) -> Option<u64> {
        let limiter = self.limiter;
        let Patience { end_ns, others_ns } = patience;
        let now_ns = limiter.clock.now_ns();
        let (ahead, _old_bell) = limiter.line.with(self.hash, |shard, _| {
            if now_ns >= others_ns {
                shard.call(spot);
            }
            shard.turn(spot, bell)
        });
        if ahead > 0 && now_ns < end_ns {
            let others_ns =
                if others_ns < u64::MAX { others_ns } else { self.patient_until_ns(now_ns, ahead) };
            self.state = State::Trying(spot, Patience { end_ns, others_ns });
            return Some(end_ns.min(others_ns));
        }
        let decision = limiter.ask(limiter.compiled(0), self.hash, self.wait.cost);
        let wait_ns = decision.retry_after().map(whole_ns);
        let again_ns = now_ns.saturating_add(wait_ns.unwrap_or(ASK_AGAIN_NS));
        let is_hopeless = wait_ns.is_some() && again_ns > end_ns;
        if is_final(decision) || now_ns >= end_ns || is_hopeless {
            self.stop_trying();
            return self.end(decision);
        }
        Some(again_ns.min(end_ns))
    }

    /// How long to leave it to so many before it: as long as all of them take if each comes when it is its turn, and
    /// a little more.
    fn patient_until_ns(&self, now_ns: u64, ahead: usize) -> u64 {
        let cells = self.limiter.cells_of(self.hash);
        let peeked = charge::peek(self.limiter.compiled(0), &cells, now_ns, self.wait.cost);
        let wait_ns = peeked.retry_after().map_or(ASK_AGAIN_NS, whole_ns);
        let turns = ahead as u64 + 1;
        now_ns.saturating_add(wait_ns.saturating_add(GRACE_NS).saturating_mul(turns))
    }

    fn end(&mut self, decision: Decision) -> Option<u64> {
        self.limiter.note_final(self.hash, decision);
        self.state = State::Done(decision);
        None
    }

    fn stop_trying(&mut self) {
        if let State::Trying(spot, _) = self.state {
            // Outside the lock: as for those who have booked.
            drop(self.limiter.line.with(self.hash, |shard, bells| shard.end_trying(spot, bells)));
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.stop_trying();
    }
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::New => "new",
            State::Booked(_) => "booked",
            State::Late(..) => "late",
            State::Trying(..) => "trying",
            State::Done(_) => "done",
        };
        f.debug_struct("Waiting").field("wait", &self.wait).field("state", &state).finish_non_exhaustive()
    }
}

/// Whether waiting changes nothing.
fn is_final(decision: Decision) -> bool {
    decision.outcome() != Outcome::Denied || decision.cause() != Cause::Rule
}

/// A number that looks random beside those of other tickets.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
