//! A small number for every thread: its own while the thread lives, and another's afterwards.
//!
//! Whoever has a number of its own can count in a place of its own, by a load and a store.

use crate::sync::unmodelled::{AtomicU64, Ordering};
use std::cell::Cell;

/// Threads that can have a number at the same time. What stands for none is far above.
pub(crate) const NUMBERS: usize = 64 * WORDS;
const WORDS: usize = 4;
/// A thread that has none, because there was none left.
const NONE: usize = usize::MAX;
/// A thread that has not asked yet.
const UNASKED: usize = usize::MAX - 1;

/// A bit for every number that is taken.
static TAKEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

std::thread_local! {
    // Without a destructor, so that to read it is a single load.
    static NUMBER: Cell<usize> = const { Cell::new(UNASKED) };
    static LEASE: Lease = Lease::take();
}

/// The number of this thread: the lowest that nobody else had when it asked first. `None` if all were taken, and
/// while the thread ends.
#[inline]
pub(crate) fn number() -> Option<usize> {
    // All threads of a model are one to the system.
    if cfg!(tollgate_loom) {
        return None;
    }
    match NUMBER.get() {
        UNASKED => ask(),
        NONE => None,
        number => Some(number),
    }
}

/// The number of this thread, if it has asked for one and that is below `limit`: a load and a comparison.
#[inline(always)]
pub(crate) fn number_below(limit: usize) -> Option<usize> {
    let number = NUMBER.get();
    (number < limit && !cfg!(tollgate_loom)).then_some(number)
}

#[cold]
fn ask() -> Option<usize> {
    let number = LEASE.try_with(|lease| lease.0).unwrap_or(NONE);
    NUMBER.set(number);
    (number != NONE).then_some(number)
}

/// A number, until it is dropped with its thread.
struct Lease(usize);

impl Lease {
    fn take() -> Self {
        for (index, word) in TAKEN.iter().enumerate() {
            loop {
                // Relaxed: only a guess, which the next line makes sure of.
                let free = (!word.load(Ordering::Relaxed)).trailing_zeros();
                if free == u64::BITS {
                    break;
                }
                // Acquire: what the number's last owner counted is counted before this one goes on.
                if word.fetch_or(1 << free, Ordering::Acquire) >> free & 1 == 0 {
                    return Self(index * u64::BITS as usize + free as usize);
                }
            }
        }
        Self(NONE)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // What is dropped after this may still count, but no longer as the only one.
        NUMBER.set(NONE);
        if self.0 != NONE {
            let (index, bit) = (self.0 / u64::BITS as usize, self.0 % u64::BITS as usize);
            // Release: see `take`.
            TAKEN[index].fetch_and(!(1 << bit), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_that_live_at_once_have_different_numbers() {
        const THREADS: usize = 40;
        for _ in 0..10 {
            let together = Barrier::new(THREADS);
            let mut numbers: Vec<_> = std::thread::scope(|scope| {
                let ask = || {
                    let number = number();
                    together.wait();
                    number
                };
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
                threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
            });
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), THREADS);
        }
    }

    #[test]
    fn numbers_come_back() {
        // More threads than there are numbers, one after the other.
        for _ in 0..2 * NUMBERS {
            let number = std::thread::spawn(number).join().ok().flatten();
            assert!(number.is_some_and(|number| number < NUMBERS), "{number:?}");
        }
    }
}
