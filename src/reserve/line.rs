//! Those who have booked ahead, in the order in which they did.
//!
//! A booking's moment stands in its word: nobody has to be told that it has come. What the word cannot say is
//! who else is on it. So those who hold a booking stand here too, for two things that happen when one of them
//! gives back (a part of) its cost:
//!
//! * Those who booked later are on the word by that much too late: they move up, and whoever sleeps is told.
//! * What a later one holds up of the word ends by that much earlier: when it gives back in turn, it must not
//!   give back more than that.
//!
//! Telling everybody behind would take a step for each. Instead the next one alone is given a *shift*, which
//! counts for it and all behind it: somebody's moment is the booked one less the shifts from the front of the
//! line to its own place. The front one's is its own shift alone, and whoever leaves passes its own on. So
//! giving back is a few steps in a tree however long the line is, and a sleeper is told once, when it is the
//! first of the sleepers and its moment is earlier than it knows.
//!
//! Who joins has booked on the word as it is by then, and must not profit from what was given back before: it
//! begins with a shift that cancels those ahead. What that is, the last of the line knows ([`Waiter::sum`]).
//!
//! Shifts are counted in the unit of the word, so nothing is ever rounded but the moment itself, and that up.

use crate::charge::Since;
use crate::sync::{AtomicU64, Fault, Mutex, Ordering, is_broken};
use crossbeam_utils::CachePadded;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::PoisonError;
use std::task::Waker;
use std::thread::Thread;

/// Keys that wait do so in one of so many maps; a model has one, which is one thing less to interleave.
const SHARDS: usize = if cfg!(tollgate_loom) { 1 } else { 64 };
/// Nobody counts further than this who stands before it.
const AHEAD_MAX: usize = 64;

/// Those who hold bookings, for whichever key.
pub(crate) struct Line {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// 1 once anybody has stood in it.
    is_used: AtomicU64,
}

/// A word that is booked on: a key's hash and the number of its cell. Those who wait without a booking, because
/// their policy allows none, have a number that no cell has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Word {
    pub(super) hash: u64,
    pub(super) cell: usize,
}

impl Word {
    pub(super) const NO_CELL: usize = usize::MAX;

    fn all(self) -> RangeInclusive<Spot> {
        Spot { word: self, ticket: 0 }..=Spot { word: self, ticket: u64::MAX }
    }
}

/// A place in the line of a word. Later bookings have higher tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) word: Word,
    pub(super) ticket: u64,
}

impl Spot {
    fn up_to_here(self) -> RangeInclusive<Self> {
        Self { ticket: 0, ..self }..=self
    }

    fn behind(self) -> RangeInclusive<Self> {
        Self { ticket: self.ticket + 1, ..self }..=Self { ticket: u64::MAX, ..self }
    }
}

/// How to wake somebody.
#[derive(Clone)]
pub(super) enum Bell {
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "there are no tasks without a runtime"))]
    Task(Waker),
    Thread(Thread),
}

impl Bell {
    fn ring(self) {
        match self {
            Self::Task(waker) => waker.wake(),
            Self::Thread(thread) => thread.unpark(),
        }
    }
}

/// The moment of a booking, in units of `2^-unit` ns.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) units: i128,
    pub(super) unit: u32,
}

impl Moment {
    /// The first nanosecond that is not before the moment, where it has been moved up.
    fn ns(self, moved_up: i64) -> u64 {
        let units = self.units - i128::from(moved_up);
        u64::try_from((units + ((1 << self.unit) - 1)) >> self.unit).unwrap_or(0)
    }
}

/// Somebody whose moment has not come.
struct Waiter {
    /// As it was booked.
    moment: Moment,
    /// How much earlier it, and all behind it, may go: beside what the shifts of those ahead say.
    shift: i64,
    /// Of the last in line: all shifts of the line together.
    sum: i64,
    /// The moment it knows of.
    known_ns: u64,
    /// Its moment may come before that of somebody ahead, now or once others give up: something has been refunded
    /// or forgotten, or the policy has changed.
    unordered: bool,
    /// Nothing for those who look for themselves.
    bell: Option<Bell>,
    /// What it has booked was reset since.
    is_forgotten: bool,
}

/// Somebody whose moment has come and who may still give back.
struct Begun {
    /// How far the word has been moved up before it.
    shift: i64,
    is_forgotten: bool,
}

/// Somebody who waits without a booking.
struct Trying {
    bell: Bell,
    /// Its turn has come because somebody behind the front one has gone.
    is_called: bool,
}

#[derive(Default)]
pub(super) struct Shard {
    ticket: u64,
    waiting: BTreeMap<Spot, Waiter>,
    begun: BTreeMap<Spot, Begun>,
    trying: BTreeMap<Spot, Trying>,
    /// How many of `waiting` have a bell, ...
    sleepers: usize,
    /// ... and how many are unordered.
    unordered: usize,
}

impl Line {
    pub(crate) fn new() -> Self {
        let shard = |_| CachePadded::new(Mutex::new(Shard::default()));
        Self { shards: (0..SHARDS).map(shard).collect(), is_used: AtomicU64::new(0) }
    }

    /// Has a key's words reset: what was booked on them before is not given back any more. Takes no lock unless
    /// anybody has ever booked or waited.
    pub(crate) fn forgetting(&self, hash: u64, reset: impl FnOnce()) {
        // Acquire: as below.
        if self.is_used.load(Ordering::Acquire) == 0 {
            reset();
            // Acquire: whoever has booked a word before it was reset, has said so before.
            if self.is_used.load(Ordering::Acquire) == 0 {
                return;
            }
            return self.with(hash, |shard, _| shard.forget(hash));
        }
        self.with(hash, |shard, _| {
            shard.forget(hash);
            reset();
        });
    }

    /// Does something to the lines of a hash. The bells that are to be rung are rung afterwards, outside the
    /// lock: what a waker does is anybody's.
    pub(super) fn with<R>(&self, hash: u64, act: impl FnOnce(&mut Shard, &mut Vec<Bell>) -> R) -> R {
        // Release: whoever finds a word that was booked on finds this too.
        self.is_used.store(1, Ordering::Release);
        let mut bells = Vec::new();
        #[allow(clippy::cast_possible_truncation, reason = "less than the number of shards")]
        let shard = &self.shards[(hash % SHARDS as u64) as usize];
        let result = act(&mut shard.lock().unwrap_or_else(PoisonError::into_inner), &mut bells);
        for bell in bells {
            bell.ring();
        }
        result
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Shard {
    fn next_spot(&mut self, word: Word) -> Spot {
        self.ticket += 1;
        Spot { word, ticket: self.ticket }
    }

    /// Notes a booking whose moment is now.
    pub(super) fn begin(&mut self, word: Word) -> Spot {
        let spot = self.next_spot(word);
        self.begun.insert(spot, Begun { shift: 0, is_forgotten: false });
        spot
    }

    /// Puts a booking, which holds up so much, at the end of its line.
    pub(super) fn join(&mut self, word: Word, moment: Moment, units: u64, bell: Option<Bell>) -> Spot {
        let last = self.waiting.range(word.all()).next_back();
        // Ordered is what comes a whole cost after the last: then nobody who gives up lets others overtake.
        let (sum, unordered) = last.map_or((0, false), |(_, last)| {
            let last_units = last.moment.units - i128::from(last.sum);
            (last.sum, moment.units - i128::from(units) < last_units)
        });
        let spot = self.next_spot(word);
        self.sleepers += usize::from(bell.is_some());
        self.unordered += usize::from(unordered);
        let known_ns = moment.ns(0);
        let waiter = Waiter { moment, shift: -sum, sum: 0, known_ns, unordered, bell, is_forgotten: false };
        self.waiting.insert(spot, waiter);
        spot
    }

    /// Lets those begin whose moment has come, and wakes them; says who of the sleepers was the first.
    pub(super) fn begin_due(&mut self, word: Word, now_ns: u64, bells: &mut Vec<Bell>) -> Option<Spot> {
        let mut first = None;
        while let Some((&spot, front)) = self.waiting.range(word.all()).next() {
            let shift = front.shift;
            if front.moment.ns(shift) > now_ns {
                break;
            }
            let Some(gone) = self.remove(spot) else { break };
            self.begun.insert(spot, Begun { shift, is_forgotten: gone.is_forgotten });
            if let Some(bell) = gone.bell {
                first = first.or(Some(spot));
                if !is_broken(Fault::TellsNobody) {
                    bells.push(bell);
                }
            }
        }
        first
    }

    /// Tells the first sleeper if its moment is earlier than it knows.
    pub(super) fn tell_next(&mut self, word: Word, bells: &mut Vec<Bell>) {
        if self.sleepers == 0 || is_broken(Fault::TellsNobody) {
            return;
        }
        let mut shift = 0;
        for waiter in self.waiting.range_mut(word.all()).map(|(_, waiter)| waiter) {
            shift += waiter.shift;
            if let Some(bell) = &waiter.bell {
                let moment_ns = waiter.moment.ns(shift);
                if moment_ns < waiter.known_ns {
                    waiter.known_ns = moment_ns;
                    bells.push(bell.clone());
                }
                break;
            }
        }
    }

    /// Until when somebody has to wait who is asked to look: `None` if its moment has come.
    pub(super) fn moment_ns(&self, spot: Spot) -> Option<u64> {
        let waiter = self.waiting.get(&spot)?;
        Some(waiter.moment.ns(self.moved_up(spot)))
    }

    fn moved_up(&self, spot: Spot) -> i64 {
        self.waiting.range(spot.up_to_here()).map(|(_, waiter)| waiter.shift).sum()
    }

    /// Until when a sleeper sleeps: `None` if its moment has come.
    pub(super) fn known_ns(&self, spot: Spot) -> Option<u64> {
        self.waiting.get(&spot).map(|waiter| waiter.known_ns)
    }

    /// A sleeper that is awake has no bell.
    pub(super) fn unhook(&mut self, spot: Spot) -> Option<Bell> {
        let bell = self.waiting.get_mut(&spot)?.bell.take();
        self.sleepers -= usize::from(bell.is_some());
        bell
    }

    /// What a sleeper that has no bell has to do: begin (`None`), or hang its bell up again and sleep until then.
    pub(super) fn hook(&mut self, spot: Spot, now_ns: u64, bell: Bell) -> Option<u64> {
        let waiter = self.waiting.get_mut(&spot)?;
        if waiter.known_ns > now_ns {
            waiter.bell = Some(bell);
            self.sleepers += 1;
            return Some(waiter.known_ns);
        }
        // Somebody ahead has a later moment.
        let shift = self.moved_up(spot);
        let is_forgotten = self.remove(spot).is_some_and(|gone| gone.is_forgotten);
        self.begun.insert(spot, Begun { shift, is_forgotten });
        None
    }

    /// Takes somebody out who has no bell, or none any more: how far the word has been moved up before it, or
    /// `None` if it has nothing to give back.
    pub(super) fn end(&mut self, spot: Spot, since: Since) -> Option<u64> {
        let begun = self.begun.remove(&spot).or_else(|| {
            // Whoever waits in an ordered line holds up more than it can give back, however far it was moved up.
            let is_exact = self.unordered > 0 || since == Since::Other;
            let shift = if is_exact { self.moved_up(spot) } else { 0 };
            self.remove(spot).map(|gone| Begun { shift, is_forgotten: gone.is_forgotten })
        })?;
        if begun.is_forgotten && !is_broken(Fault::RemembersForgotten) {
            None
        } else {
            Some(u64::try_from(begun.shift).unwrap_or(0))
        }
    }

    /// What was booked on a key's words until now is not on them any more.
    fn forget(&mut self, hash: u64) {
        let first = Spot { word: Word { hash, cell: 0 }, ticket: 0 };
        let last = Spot { word: Word { hash, cell: Word::NO_CELL }, ticket: u64::MAX };
        let words = first..=last;
        self.waiting.range_mut(words.clone()).for_each(|(_, waiter)| waiter.is_forgotten = true);
        self.begun.range_mut(words).for_each(|(_, begun)| begun.is_forgotten = true);
    }

    /// Moves those up who came after somebody that has given back so much.
    pub(super) fn move_up(&mut self, spot: Spot, units: u64) {
        // At most a word's range, which is far less.
        let units = i64::try_from(units).unwrap_or(0);
        for (_, begun) in self.begun.range_mut(spot.behind()) {
            begun.shift += units;
        }
        let mut behind = self.waiting.range_mut(spot.behind());
        if let Some((_, next)) = behind.next() {
            next.shift += units;
            let last = behind.next_back().map_or(next, |(_, last)| last);
            last.sum += units;
        }
    }

    fn remove(&mut self, spot: Spot) -> Option<Waiter> {
        let gone = self.waiting.remove(&spot)?;
        self.sleepers -= usize::from(gone.bell.is_some());
        let mut still_unordered = false;
        if let Some((_, next)) = self.waiting.range_mut(spot.behind()).next() {
            next.shift += gone.shift;
            still_unordered = gone.unordered && !next.unordered;
            next.unordered |= gone.unordered;
        } else if let Some((_, last)) = self.waiting.range_mut(spot.up_to_here()).next_back() {
            last.sum = gone.sum - gone.shift;
        }
        self.unordered -= usize::from(gone.unordered && !still_unordered);
        Some(gone)
    }

    /// Puts somebody without a booking at the end of its line.
    pub(super) fn join_trying(&mut self, word: Word, bell: Bell) -> Spot {
        let spot = self.next_spot(word);
        self.trying.insert(spot, Trying { bell, is_called: false });
        spot
    }

    /// How many stand before somebody whose turn to try it is not, up to [`AHEAD_MAX`]; none if it is. Its bell from
    /// before is not dropped here, under the lock.
    pub(super) fn turn(&mut self, spot: Spot, bell: Bell) -> (usize, Option<Bell>) {
        let is_called = self.trying.get(&spot).is_some_and(|trying| trying.is_called);
        let before = self.trying.insert(spot, Trying { bell, is_called }).map(|trying| trying.bell);
        let ahead = || self.trying.range(spot.word.all()).take(AHEAD_MAX).take_while(|&(&one, _)| one < spot);
        (if is_called { 0 } else { ahead().count() }, before)
    }

    /// Takes out somebody without a booking: the next one behind is called, whoever stands before it. If that was the
    /// front one, it is the next one's turn; if not, the front one has not come when its turn was.
    pub(super) fn end_trying(&mut self, spot: Spot, bells: &mut Vec<Bell>) -> Option<Bell> {
        let gone = self.trying.remove(&spot)?;
        let was_front = self.trying.range(spot.word.all()).next().is_none_or(|(&front, _)| front > spot);
        if was_front || gone.is_called {
            if let Some((_, next)) = self.trying.range_mut(spot.behind()).next() {
                next.is_called = true;
                if !is_broken(Fault::TellsNobody) {
                    bells.push(next.bell.clone());
                }
            }
        }
        Some(gone.bell)
    }

    /// Lets somebody try before its turn, because those before it have not come when it was theirs.
    pub(super) fn call(&mut self, spot: Spot) {
        if let Some(trying) = self.trying.get_mut(&spot) {
            trying.is_called = true;
        }
    }
}
