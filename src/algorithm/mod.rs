//! The algorithms as pure integer steps over a word, and the [`Plan`] a rule compiles to.
//!
//! Nothing here reads a clock, touches an atomic or rounds a float. A step takes what was stored, the time
//! in nanoseconds and a cost, and gives the next word or a refusal.
//!
//! # The word
//!
//! A stored word has 64 bits. An algorithm owns the upper [`PAYLOAD_BITS`] of them, and what a step is given are
//! those alone. The low [`STORER_BITS`] belong to whoever stores the word (see the table).
//!
//! # Time
//!
//! Time is modular: a word remembers a moment only up to its own range, and every comparison is a
//! difference. A stored moment lies at most a plan's own span ahead of now; anything else is long past,
//! and means "fresh". Two things widen that picture:
//!
//! * A clock may step back a little (counters of two cores differ by up to a microsecond). A stored moment
//!   up to [`STEP_BACK_NS`] further ahead than the rule alone could put it is still believed, so a step
//!   back never re-credits.
//! * A key left alone for longer than its word's range may find an old moment in its future again. It is
//!   then poorer than a fresh key by at most one full limit (and [`STEP_BACK_NS`]), never richer. That takes
//!   at least half a word: 417 days for rules of up to 7 600 a second, 2.4 hours at a billion a second, and
//!   32 768 windows for the window algorithms.
//!
//! A thread that was stopped between reading the time and the word sees a moment from its future. Up to a
//! quarter of a word (a quarter of the windows' numbers) that is noticed: see [`Step::is_doubtful`].

mod fixed_window;
mod gcra;
mod in_flight;
mod penalty;
mod sliding_log;
mod sliding_window;

pub(crate) use fixed_window::{FixedWindow, FixedWindowSeen};
pub(crate) use gcra::{Debt, Gcra, Spent, StoredGcra};
pub(crate) use in_flight::{InFlight, InFlightSeen};
pub(crate) use penalty::{LEVELS_MAX, MOMENT_BITS, MOMENT_SHIFT, Penalty, STRIKES_MAX};
pub(crate) use sliding_log::SlidingLog;
pub(crate) use sliding_window::{SlidingWindow, SlidingWindowSeen};

use crate::error::Error;
use crate::policy::{Algorithm, Rule};
use std::cmp::Ordering;
use std::time::Duration;

/// How many bits of a stored word are not the algorithm's, below those that are.
pub(crate) const STORER_BITS: u32 = u64::BITS - PAYLOAD_BITS;
/// How many bits an algorithm may use.
pub(crate) const PAYLOAD_BITS: u32 = 56;
/// The bits that an algorithm may use.
pub(crate) const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;
/// How far a clock may step back before a stored moment stops being believed: a little over a second.
pub(crate) const STEP_BACK_NS: u64 = 1 << 30;

/// What a step needs of an algorithm that keeps its whole state in one word.
///
/// `cost` has been checked against [`Plan::limit`] before any call, so no product can overflow.
pub(crate) trait Step: Copy {
    /// The word of a key that has spent nothing.
    fn fresh(self, now_ns: u64) -> u64;
    /// The word after spending `cost`, or `None` where it does not fit now or the word is doubtful.
    fn admit(self, word: u64, now_ns: u64, cost: u64) -> Option<u64>;
    /// The word after undoing the newest `cost` spent, at most back to fresh.
    fn refund(self, word: u64, now_ns: u64, cost: u64) -> u64;
    /// The word after undoing one charge among others, as far as it still counts and never further.
    ///
    /// `now_ns` must have been read after `word` was.
    fn hand_back(self, word: u64, now_ns: u64, cost: u64, charge: Charge) -> u64;
    /// Whether the word lies further ahead than the rule and a step back could have put it. Then it is long
    /// forgotten, or `now_ns` was read long before the word: a thread was stopped in between. A time read
    /// after the word tells the two apart.
    fn is_doubtful(self, word: u64, now_ns: u64) -> bool;
    /// What a doubtful word counts as, at a time read after it.
    fn settled(self, _word: u64, now_ns: u64) -> u64 {
        self.fresh(now_ns)
    }
    /// What the word says at this time.
    fn see(self, word: u64, now_ns: u64) -> impl Seen;
    /// How long until `cost` fits, if nobody else spends; 0 if it fits now.
    #[inline]
    fn wait_ns(self, word: u64, now_ns: u64, cost: u64) -> u64 {
        self.see(word, now_ns).wait_ns(cost)
    }
    /// How long until the word is worth a fresh one.
    #[inline]
    fn reset_ns(self, word: u64, now_ns: u64) -> u64 {
        self.see(word, now_ns).reset_ns()
    }
    /// What is left to spend now, as a fraction.
    #[inline]
    fn headroom(self, word: u64, now_ns: u64) -> Headroom {
        self.see(word, now_ns).headroom()
    }
}

/// A word as it was seen at a moment: all that a decision may be asked about it, in few enough numbers to be carried along.
pub(crate) trait Seen: Copy {
    /// The largest cost that can ever fit.
    fn limit(&self) -> u64;
    /// How long until `cost` fits, if nobody else spends; 0 if it fits now.
    fn wait_ns(&self, cost: u64) -> u64;
    /// How long until nothing that was spent counts any more.
    fn reset_ns(&self) -> u64;
    /// What is left to spend, as a fraction.
    fn headroom(&self) -> Headroom;
}

/// What a charge did to a word, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    /// The word it left.
    pub(crate) word: u64,
    pub(crate) at_ns: u64,
    /// Nothing was written: there was no room, and the request passes all the same.
    pub(crate) uncounted: bool,
}

impl Charge {
    /// The same, as if nobody had been ahead: whoever was may have given back since, and then this charge has
    /// come back the earlier. So no more is undone than it can still hold up.
    pub(crate) fn alone(self, plan: Plan, cost: u64) -> Self {
        match plan {
            Plan::Gcra(_) => {
                let fresh = plan.fresh(self.at_ns);
                Self { word: plan.admit(fresh, self.at_ns, cost).unwrap_or(self.word), ..self }
            }
            _ => self,
        }
    }
}

/// What is left under a rule, kept as a fraction so that comparing two rules needs no division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headroom {
    pub(crate) parts: u128,
    pub(crate) parts_per_cost: u64,
}

impl Headroom {
    pub(crate) const fn whole(cost: u64) -> Self {
        Self { parts: cost as u128, parts_per_cost: 1 }
    }

    /// The largest cost that fits.
    pub(crate) fn remaining(self) -> u64 {
        // A mark that lasts for no time costs nothing.
        u64::try_from(self.parts / u128::from(self.parts_per_cost.max(1))).unwrap_or(u64::MAX)
    }

    /// Which of two is tighter. Parts stay below 2^76 (a limit under 2^20 times a window) unless they count
    /// below 2^56, and the factor of the other side is below 2^64, so saturation needs both at once and
    /// then decides between two rules that are equally far from binding.
    #[inline]
    pub(crate) fn compare(self, other: Self) -> Ordering {
        let (left, right) = match (u64::try_from(self.parts), u64::try_from(other.parts)) {
            (Ok(left), Ok(right)) => (
                u128::from(left) * u128::from(other.parts_per_cost),
                u128::from(right) * u128::from(self.parts_per_cost),
            ),
            _ => (
                self.parts.saturating_mul(u128::from(other.parts_per_cost)),
                other.parts.saturating_mul(u128::from(self.parts_per_cost)),
            ),
        };
        left.cmp(&right)
    }
}

/// A rule's state, summed up at a moment: for those that do not fit one word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Until the cost fits; 0 if it does, and the largest number if nobody can say.
    pub(crate) wait_ns: u64,
    /// Until nothing that was spent counts any more.
    pub(crate) reset_ns: u64,
}

impl Seen for Summary {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn wait_ns(&self, _cost: u64) -> u64 {
        self.wait_ns
    }

    fn reset_ns(&self) -> u64 {
        self.reset_ns
    }

    fn headroom(&self) -> Headroom {
        Headroom::whole(self.remaining)
    }
}

/// What a word of some plan says at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    Bucket(Debt),
    FixedWindow(FixedWindowSeen),
    SlidingWindow(SlidingWindowSeen),
    InFlight(InFlightSeen),
    Summary(Summary),
}

/// Hands a question on to what was seen.
macro_rules! ask {
    ($self:ident, $seen:ident => $answer:expr) => {
        match $self {
            View::Bucket($seen) => $answer,
            View::FixedWindow($seen) => $answer,
            View::SlidingWindow($seen) => $answer,
            View::InFlight($seen) => $answer,
            View::Summary($seen) => $answer,
        }
    };
}

impl Seen for View {
    fn limit(&self) -> u64 {
        ask!(self, seen => seen.limit())
    }

    fn wait_ns(&self, cost: u64) -> u64 {
        ask!(self, seen => seen.wait_ns(cost))
    }

    fn reset_ns(&self) -> u64 {
        ask!(self, seen => seen.reset_ns())
    }

    #[inline]
    fn headroom(&self) -> Headroom {
        ask!(self, seen => seen.headroom())
    }
}

impl View {
    /// Of a rule for whose words there is no room.
    pub(crate) fn no_room(limit: u64, wait_ns: u64) -> Self {
        Self::Summary(Summary { limit, remaining: 0, wait_ns, reset_ns: wait_ns })
    }

    /// Whether four fifths of what the rule admits are spent.
    #[inline]
    pub(crate) fn is_near_limit(&self) -> bool {
        match self {
            Self::Bucket(debt) => debt.is_near_limit(),
            _ => self.headroom().remaining() <= self.limit() / 5,
        }
    }
}

/// A rule compiled to integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plan {
    Gcra(Gcra),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    InFlight(InFlight),
}

/// What makes a word: two plans of the same kind go on with each other's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A moment, in this unit.
    Gcra(u32),
    /// Counts of so many bits in windows of this length.
    FixedWindow(u64, u32),
    SlidingWindow(u64, u32),
    /// Several moments, in this unit.
    SlidingLog(u32),
    InFlight,
}

impl Plan {
    /// Compiles a rule, or says why it cannot be kept in a word.
    pub(crate) fn new(rule: &Rule) -> Result<Self, Error> {
        if rule.count() == 0 {
            return Err(Error::new("a limit of 0 admits nothing: the count must be at least 1"));
        }
        if rule.algorithm() != Algorithm::TokenBucket && rule.explicit_burst().is_some() {
            return Err(Error::new(format!(
                "`burst` belongs to the token bucket; {} always admits its count",
                rule.algorithm().description()
            )));
        }
        if rule.algorithm() == Algorithm::InFlight {
            return InFlight::new(rule.count()).map(Self::InFlight);
        }
        let period_ns = period_ns(rule.period())?;
        Ok(match rule.algorithm() {
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::new(rule.count(), period_ns)?),
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(rule.count(), period_ns)?),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::new(rule.count(), period_ns)?),
            Algorithm::TokenBucket | Algorithm::InFlight => {
                Self::Gcra(Gcra::new(rule.count(), period_ns, rule.explicit_burst().unwrap_or(rule.count()))?)
            }
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Gcra(plan) => Kind::Gcra(plan.unit()),
            Self::FixedWindow(plan) => Kind::FixedWindow(plan.window_ns(), plan.count_bits),
            Self::SlidingWindow(plan) => Kind::SlidingWindow(plan.window_ns(), plan.count_bits),
            Self::SlidingLog(plan) => Kind::SlidingLog(plan.token.unit()),
            Self::InFlight(_) => Kind::InFlight,
        }
    }

    /// How long the rule remembers what was spent, at most.
    pub(crate) fn memory_ns(&self) -> u64 {
        let spent = self.admit(self.fresh(0), 0, self.word_limit());
        spent.map_or(0, |word| self.reset_ns(word, 0))
    }

    /// The same plan, where words may have been left by `earlier`, which is of the same kind.
    pub(crate) fn following(self, earlier: &Self) -> Self {
        match (self, *earlier) {
            (Self::Gcra(plan), Self::Gcra(earlier)) => Self::Gcra(plan.following(earlier)),
            (Self::SlidingLog(plan), Self::SlidingLog(earlier)) => {
                Self::SlidingLog(SlidingLog { token: plan.token.following(earlier.token), ..plan })
            }
            (plan, _) => plan,
        }
    }

    /// The same plan, where `other`, which is of the same kind, is in force over the same words.
    pub(crate) fn beside(self, other: &Self) -> Self {
        match (self, *other) {
            (Self::Gcra(plan), Self::Gcra(other)) => Self::Gcra(plan.beside(other)),
            (Self::SlidingLog(plan), Self::SlidingLog(other)) => {
                Self::SlidingLog(SlidingLog { token: plan.token.beside(other.token), ..plan })
            }
            (plan, _) => plan,
        }
    }

    /// The same plan, where moments up to `horizon_ns` beyond a whole burst have been booked.
    pub(crate) fn booked(self, horizon_ns: u64) -> Self {
        match self {
            Self::Gcra(plan) if horizon_ns > 0 => Self::Gcra(plan.booked(horizon_ns)),
            plan => plan,
        }
    }

    /// The word of a key that had used up everything at a time, as far as that still counts.
    #[cold]
    #[inline(never)]
    pub(crate) fn used_up_since(&self, then_ns: u64, now_ns: u64) -> u64 {
        let used_up = match self {
            // Work ends with the process.
            Self::InFlight(_) => None,
            _ => self.admit(self.fresh(then_ns), then_ns, self.word_limit()),
        };
        let counts = |word: &u64| now_ns.saturating_sub(then_ns) < self.reset_ns(*word, then_ns);
        used_up.filter(counts).unwrap_or_else(|| self.fresh(now_ns))
    }

    /// The word after a change of the rule that is in force over it, from `before` to this one, of the same kind: a
    /// key waits for no longer than the new rule can make it wait. But what was booked beyond a whole burst stays
    /// as far beyond it as it was.
    pub(crate) fn cut_down(&self, before: &Self, word: u64, now_ns: u64) -> u64 {
        match (self, before) {
            (Self::Gcra(plan), Self::Gcra(before)) => plan.cut_down(*before, word, now_ns),
            (Self::SlidingLog(plan), Self::SlidingLog(before)) => {
                plan.token.cut_down(before.token, word, now_ns)
            }
            _ if self.is_doubtful(word, now_ns) => self.settled(word, now_ns),
            _ => word,
        }
    }

    /// Whether what was spent under the one plan counts the same under the other, whatever else may be in its words.
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gcra(plan), Self::Gcra(other)) => plan.counts_as(*other),
            (Self::SlidingLog(plan), Self::SlidingLog(other)) => {
                plan.limit == other.limit && plan.token.counts_as(other.token)
            }
            _ => self == other,
        }
    }

    /// The largest cost that can ever fit.
    #[inline]
    pub(crate) fn limit(&self) -> u64 {
        match self {
            Self::Gcra(plan) => plan.burst,
            Self::FixedWindow(plan) => plan.limit,
            Self::SlidingWindow(plan) => plan.limit,
            Self::SlidingLog(plan) => plan.limit,
            Self::InFlight(plan) => plan.limit,
        }
    }

    /// The largest cost that one word can hold.
    pub(crate) fn word_limit(&self) -> u64 {
        match self {
            Self::SlidingLog(_) => 1,
            _ => self.limit(),
        }
    }

    /// What a word says at a time: of a sliding log, a single token, which is a bucket of its own.
    #[inline]
    pub(crate) fn view(&self, word: u64, now_ns: u64) -> View {
        match self {
            Self::Gcra(plan) => View::Bucket(plan.debt(word, now_ns)),
            Self::FixedWindow(plan) => View::FixedWindow(plan.seen(word, now_ns)),
            Self::SlidingWindow(plan) => View::SlidingWindow(plan.seen(word, now_ns)),
            Self::InFlight(plan) => View::InFlight(plan.seen(word)),
            Self::SlidingLog(plan) => View::Bucket(plan.token.debt(word, now_ns)),
        }
    }

    /// How many words are kept for the state of one key: a log may grow later.
    pub(crate) fn words_kept(&self) -> usize {
        match self {
            Self::SlidingLog(plan) => plan.words_kept(),
            _ => 1,
        }
    }

    /// How many words the state of one key takes.
    pub(crate) fn words(&self) -> usize {
        match self {
            Self::SlidingLog(plan) => plan.words(),
            _ => 1,
        }
    }

    /// Whether `word`, one of the words of this plan, is worth a fresh one.
    #[inline(always)]
    pub(crate) fn is_fresh(&self, word: u64, now_ns: u64) -> bool {
        match self {
            Self::Gcra(plan) => plan.is_fresh(word, now_ns),
            Self::SlidingLog(plan) => plan.token.is_fresh(word, now_ns),
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::InFlight(_) => {
                self.reset_ns(word, now_ns) == 0
            }
        }
    }

    /// What has been spent and still counts, in cost, rounded up.
    pub(crate) fn spent(&self, word: u64, now_ns: u64) -> u64 {
        match self {
            Self::SlidingLog(plan) => u64::from(plan.token.reset_ns(word, now_ns) > 0),
            _ => self.limit() - self.headroom(word, now_ns).remaining().min(self.limit()),
        }
    }

    /// The word that owes at `now_ns` what `word` owed at `then_ns`, or a little more.
    pub(crate) fn carried(&self, word: u64, then_ns: u64, now_ns: u64) -> u64 {
        match self {
            Self::Gcra(plan) => plan.carried(word, then_ns, now_ns),
            Self::SlidingLog(plan) => plan.token.carried(word, then_ns, now_ns),
            Self::FixedWindow(_) | Self::SlidingWindow(_) => {
                // All of it in the window of now: where in a window that is, was another matter then.
                let spent = self.spent(word, then_ns);
                self.admit(self.fresh(now_ns), now_ns, spent).unwrap_or(word)
            }
            Self::InFlight(_) => word,
        }
    }
}

/// Hands a step on to the plan's algorithm.
macro_rules! dispatch {
    ($self:ident, $plan:ident => $step:expr) => {
        match $self {
            Plan::Gcra($plan) => $step,
            Plan::FixedWindow($plan) => $step,
            Plan::SlidingWindow($plan) => $step,
            Plan::InFlight($plan) => $step,
            // One token of the log.
            Plan::SlidingLog(SlidingLog { token: $plan, .. }) => $step,
        }
    };
}

/// The steps of a plan's words: of a sliding log, those of each token.
impl Step for Plan {
    fn fresh(self, now_ns: u64) -> u64 {
        dispatch!(self, plan => plan.fresh(now_ns))
    }

    #[inline(always)]
    fn admit(self, word: u64, now_ns: u64, cost: u64) -> Option<u64> {
        dispatch!(self, plan => plan.admit(word, now_ns, cost))
    }

    fn refund(self, word: u64, now_ns: u64, cost: u64) -> u64 {
        dispatch!(self, plan => plan.refund(word, now_ns, cost))
    }

    fn hand_back(self, word: u64, now_ns: u64, cost: u64, charge: Charge) -> u64 {
        dispatch!(self, plan => plan.hand_back(word, now_ns, cost, charge))
    }

    #[inline(always)]
    fn is_doubtful(self, word: u64, now_ns: u64) -> bool {
        dispatch!(self, plan => plan.is_doubtful(word, now_ns))
    }

    fn settled(self, word: u64, now_ns: u64) -> u64 {
        dispatch!(self, plan => plan.settled(word, now_ns))
    }

    #[inline(always)]
    fn see(self, word: u64, now_ns: u64) -> impl Seen {
        self.view(word, now_ns)
    }
}

fn period_ns(period: Duration) -> Result<u64, Error> {
    match u64::try_from(period.as_nanos()) {
        Ok(0) => Err(Error::new("a period of 0 has no rate: the period must be at least 1 ns")),
        Ok(ns) => Ok(ns),
        Err(_) => Err(Error::new("the period is longer than 584 years and does not fit the word")),
    }
}

/// A window's length with what is needed to divide by it without a division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    pub(crate) len_ns: u64,
    reciprocal: u64,
}

impl Window {
    pub(crate) const fn new(len_ns: u64) -> Self {
        // For a length of 1 the reciprocal 2^64 would not fit; 2^64 - 1 is one short, which `locate` mends.
        Self { len_ns, reciprocal: u64::MAX / len_ns }
    }

    /// The number of the window that `now_ns` falls in, and how far into it.
    #[inline]
    pub(crate) fn locate(self, now_ns: u64) -> (u64, u64) {
        // The estimate is exact or one short: the reciprocal is less than 1 below 2^64 / len, or 1 below where
        // the division is exact, which costs at most now / 2^64 <= 1 of the quotient.
        let estimate = ((u128::from(now_ns) * u128::from(self.reciprocal)) >> 64) as u64;
        let elapsed_ns = now_ns - estimate * self.len_ns;
        if elapsed_ns >= self.len_ns {
            (estimate + 1, elapsed_ns - self.len_ns)
        } else {
            (estimate, elapsed_ns)
        }
    }

    /// How many windows a stored one may lie ahead and still be believed. `None` if that is more than a quarter
    /// of the numbers there are: then there would be no room for doubt.
    pub(crate) fn step_back(self, number_mask: u64) -> Option<u64> {
        let windows = STEP_BACK_NS / self.len_ns + 1;
        (windows <= number_mask / 4).then_some(windows)
    }

    /// How many bits a window's number should have: enough for 417 days of windows. It depends on the length
    /// alone, so that rules of the same window can go on with each other's words; only a count that needs more
    /// of the word takes them from the number.
    pub(crate) fn number_bits(self) -> u32 {
        count_bits((1 << (PAYLOAD_BITS - 1)) / self.len_ns).max(WINDOW_NUMBER_BITS_MIN)
    }
}

/// The fewest bits a window's number may have, so that idleness aliases only after 65 536 windows.
pub(crate) const WINDOW_NUMBER_BITS_MIN: u32 = 16;

/// How many bits it takes to count to `limit`.
pub(crate) const fn count_bits(limit: u64) -> u32 {
    u64::BITS - limit.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_located_exactly() {
        let lengths =
            [1, 2, 3, 7, 10, 999, 1 << 30, 1_000_000_007, 60_000_000_000, 1 << 62, u64::MAX - 1, u64::MAX];
        for len_ns in lengths {
            let window = Window::new(len_ns);
            let multiples = [0, 1, 2, 1000, u64::MAX / len_ns].map(|n: u64| n.saturating_mul(len_ns));
            for at in multiples.into_iter().chain([u64::MAX, 1 << 63, 1_790_000_000_000_000_000]) {
                for now in [at.saturating_sub(1), at, at.saturating_add(1)] {
                    assert_eq!(
                        window.locate(now),
                        (now / len_ns, now % len_ns),
                        "{now} in windows of {len_ns}"
                    );
                }
            }
        }
    }
}
