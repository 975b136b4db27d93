//! The timed loops, and a table of any type behind one object.

use std::hint::black_box;
use std::time::Instant;

use ahash::RandomState;

use crate::layouts::Bucket;
use crate::step::Spot;
use crate::table::{Filled, Probe, Table};

/// Where time comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// The time-stamp counter, scaled to nanoseconds by quanta.
    Precise,
    /// A counter: no clock at all.
    Counter,
}

/// What is done before what in one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Read the clock, find the slot, charge.
    ClockFirst,
    /// Load from the home bucket's lines, read the clock, find, charge.
    TouchFirst,
    /// Find the slot and read its state, read the clock, charge.
    FindFirst,
    /// Sixteen keys at once: hash all, load from all lines, read the clock once, then find and charge each.
    Batch16,
}

impl Order {
    pub const ALL: [Order; 4] = [Order::ClockFirst, Order::TouchFirst, Order::FindFirst, Order::Batch16];
}

trait Now {
    fn now(&mut self) -> u64;
}

struct Precise<'a> {
    clock: &'a quanta::Clock,
    start: u64,
}

impl Now for Precise<'_> {
    #[inline(always)]
    fn now(&mut self) -> u64 {
        self.clock.delta_as_nanos(self.start, self.clock.raw())
    }
}

struct Counter(u64);

impl Now for Counter {
    #[inline(always)]
    fn now(&mut self) -> u64 {
        self.0 += 16;
        self.0
    }
}

/// Hasher and clock, the same for all contenders.
pub struct Tools {
    pub hasher: RandomState,
    clock: quanta::Clock,
    start: u64,
}

impl Tools {
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        Tools { hasher: RandomState::with_seeds(11, 22, 33, 44), clock, start }
    }
}

/// Each loop returns the number of admitted calls, which the caller checks.
#[inline(never)]
fn clock_first<B: Bucket, P: Probe<B>>(
    table: &Table<B, P>,
    keys: &[u64],
    hasher: &RandomState,
    mut time: impl Now,
) -> usize {
    let mut admitted = 0;
    for key in keys {
        let hash = hasher.hash_one(key);
        let now = time.now();
        admitted += usize::from(table.locate(hash).is_some_and(|spot| spot.charge(now)));
    }
    admitted
}

#[inline(never)]
fn touch_first<B: Bucket, P: Probe<B>>(
    table: &Table<B, P>,
    keys: &[u64],
    hasher: &RandomState,
    mut time: impl Now,
) -> usize {
    let mut admitted = 0;
    let mut touched = 0;
    for key in keys {
        let hash = hasher.hash_one(key);
        touched ^= table.touch(hash);
        let now = time.now();
        admitted += usize::from(table.locate(hash).is_some_and(|spot| spot.charge(now)));
    }
    black_box(touched);
    admitted
}

#[inline(never)]
fn find_first<B: Bucket, P: Probe<B>>(
    table: &Table<B, P>,
    keys: &[u64],
    hasher: &RandomState,
    mut time: impl Now,
) -> usize {
    let mut admitted = 0;
    for key in keys {
        let spot = table.locate(hasher.hash_one(key));
        let now = time.now();
        admitted += usize::from(spot.is_some_and(|spot| spot.charge(now)));
    }
    admitted
}

#[inline(never)]
fn batch16<B: Bucket, P: Probe<B>>(
    table: &Table<B, P>,
    keys: &[u64],
    hasher: &RandomState,
    mut time: impl Now,
) -> usize {
    let mut admitted = 0;
    let mut touched = 0;
    for batch in keys.chunks_exact(16) {
        let hashes: [u64; 16] = std::array::from_fn(|i| hasher.hash_one(batch[i]));
        for hash in hashes {
            touched ^= table.touch(hash);
        }
        let now = time.now();
        for hash in hashes {
            admitted += usize::from(table.locate(hash).is_some_and(|spot| spot.charge(now)));
        }
    }
    black_box(touched);
    admitted
}

/// A filled table, whatever its type.
pub trait Contender {
    fn layout(&self) -> &'static str;
    fn matching(&self) -> String;
    fn filled(&self) -> &Filled;
    fn bytes(&self) -> usize;
    fn warm(&self) -> u64;
    /// Nanoseconds a call over these keys.
    fn run(&self, tools: &Tools, keys: &[u64], time: Time, order: Order) -> f64;
}

impl<B: Bucket, P: Probe<B>> Contender for Table<B, P> {
    fn layout(&self) -> &'static str {
        B::NAME
    }

    fn matching(&self) -> String {
        format!("{}{}", B::MATCHING, P::NAME)
    }

    fn filled(&self) -> &Filled {
        &self.filled
    }

    fn bytes(&self) -> usize {
        Table::bytes(self)
    }

    fn warm(&self) -> u64 {
        Table::warm(self)
    }

    fn run(&self, tools: &Tools, keys: &[u64], time: Time, order: Order) -> f64 {
        let hasher = &tools.hasher;
        let precise = || Precise { clock: &tools.clock, start: tools.start };
        // The counter goes on from the real time, so that stored times look alike to both.
        let counter = || Counter(precise().now());
        let started = Instant::now();
        let admitted = match (order, time) {
            (Order::ClockFirst, Time::Precise) => clock_first(self, keys, hasher, precise()),
            (Order::ClockFirst, Time::Counter) => clock_first(self, keys, hasher, counter()),
            (Order::TouchFirst, Time::Precise) => touch_first(self, keys, hasher, precise()),
            (Order::TouchFirst, Time::Counter) => touch_first(self, keys, hasher, counter()),
            (Order::FindFirst, Time::Precise) => find_first(self, keys, hasher, precise()),
            (Order::FindFirst, Time::Counter) => find_first(self, keys, hasher, counter()),
            (Order::Batch16, Time::Precise) => batch16(self, keys, hasher, precise()),
            (Order::Batch16, Time::Counter) => batch16(self, keys, hasher, counter()),
        };
        let ns = started.elapsed().as_nanos() as f64 / keys.len() as f64;
        // Some keys found no room when the table was filled; beyond those every call must be admitted.
        let missing = (keys.len() - admitted) as f64 / keys.len() as f64;
        let expected = self.filled.no_room as f64 / self.filled.keys as f64;
        assert!(missing <= 2.0 * expected + 1e-3, "{}: {missing:.5} of the calls not admitted", B::NAME);
        ns
    }
}
