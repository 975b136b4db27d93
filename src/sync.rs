//! The one door for atomics: portable-atomic in a normal build, loom under `--cfg tollgate_loom`.
//!
//! No other file names an atomic type, a fence or loom. Under loom the door can also be told to break a
//! rule on purpose ([`Fault`]), so that every model can show that it would notice.

#[cfg(not(tollgate_loom))]
pub(crate) use portable_atomic::{AtomicU64, Ordering};

#[cfg(not(tollgate_loom))]
pub(crate) use std::sync::Mutex;

#[cfg(tollgate_loom)]
pub(crate) use loom::sync::Mutex;

#[cfg(tollgate_loom)]
pub(crate) use self::modelled::AtomicU64;
#[cfg(tollgate_loom)]
pub(crate) use loom::sync::atomic::Ordering;

/// How claims, and the loads that search for other claims, are put into one total order: by themselves in a
/// normal build. Loom gives sequentially consistent accesses no such order, only fences; so a model has the
/// weaker accesses and [`in_total_order`] between them.
pub(crate) const CLAIM: Ordering = if cfg!(tollgate_loom) { Ordering::AcqRel } else { Ordering::SeqCst };
pub(crate) const SEARCH: Ordering = if cfg!(tollgate_loom) { Ordering::Acquire } else { Ordering::SeqCst };

/// Stands between a claim and the search that follows it.
#[inline(always)]
pub(crate) fn in_total_order() {
    #[cfg(tollgate_loom)]
    // SeqCst: the total order itself.
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Atomics that the model checker does not look into: a clock's hands are an input to a model, not a part
/// of the algorithm it checks.
pub(crate) mod unmodelled {
    #[cfg(feature = "redis")]
    pub(crate) use portable_atomic::fence;
    pub(crate) use portable_atomic::{AtomicU64, Ordering};
}

/// A rule of the algorithms that a model can have broken, to see that it is caught.
#[cfg_attr(not(tollgate_loom), allow(dead_code, unreachable_pub, reason = "only models break rules"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is broken.
    None,
    /// Every compare-exchange becomes a load followed by a store.
    LoadThenStore,
    /// A refusal keeps what it had charged by then, on earlier rules or of a log; so does a reservation that is
    /// given up.
    NoHandBack,
    /// A word that was read long after the time is judged by it all the same.
    TrustsOldTime,
    /// A slot's owner is not looked at again after its state was read.
    NoOwnerCheck,
    /// The slot in a handle's spot is not asked who it belongs to.
    TrustsSpot,
    /// A slot is given to another key first, and its state sealed afterwards, whatever it is by then.
    NoSeal,
    /// A slot's state is sealed as it is by then, and not only as it was when it was judged worthless.
    SealsUnseen,
    /// A claim is committed without a search for twins.
    NoTwinSearch,
    /// Nothing orders a claim before the search for twins.
    NoFence,
    /// A claim is given up by taking the name off, and nobody is shut out of its generation.
    TidiesUnsealed,
    /// Of a key's name on several slots only the first is looked at.
    FirstNameOnly,
    /// A claim beyond a key's first line is counted once it is made, and not before.
    CountsLate,
    /// A search for twins goes no further than a key's first line, whoever is counted beyond it.
    SearchesOneLine,
    /// A live entry is judged worthless.
    ForgetsDebt,
    /// A claim that another key has not committed to is left to it, for however long that takes.
    WaitsForClaimer,
    /// A set of policies is said to be in force before it is in its place.
    PublishesEarly,
    /// A request goes by two sets of policies, where one is put in force meanwhile.
    MixesPolicies,
    /// What was booked is said to be of the era after the one whose rules it was booked by.
    MixesEras,
    /// A flag that another policy is in force is put up after the policy is.
    FlagsLate,
    /// What an earlier policy has left is not cut down when a key is refused for it.
    LeavesUncut,
    /// What was booked before a reset is given back after it.
    RemembersForgotten,
    /// The horizon is not moved before a word is written that lies beyond it.
    BooksUnseen,
    /// Those who wait are not woken when they move up or it is their turn.
    TellsNobody,
    /// A permit is given back twice.
    LeavesTwice,
    /// A lease keeps its tokens for however long.
    LeaseForEver,
    /// What is left of a lease goes back as if nothing but time had come between.
    IgnoresEra,
    /// An entry that is charged while a snapshot reads it is left out.
    LeavesOut,
    /// Whether what is given back is on its word is asked before that is read.
    JudgesEarly,
    /// Whether a table is closed is asked before its entries are read, and not after.
    AsksTooEarly,
    /// A closing table does not shut out those who were about to charge.
    ClosesUnsealed,
    /// A label is written without a claim to its cell.
    WritesUnclaimed,
    /// A label's version is not looked at again after the label was read.
    NoSecondLook,
    /// What bounds the counts of a list is of before they were read.
    BoundsTooEarly,
}

/// Whether the model under way asked for `fault`; always false, and gone, in a normal build.
#[cfg(not(tollgate_loom))]
#[inline(always)]
pub(crate) const fn is_broken(_fault: Fault) -> bool {
    false
}

/// The generation that slots begin with.
#[cfg(all(test, not(tollgate_loom)))]
#[inline(always)]
pub(crate) const fn first_generation() -> u64 {
    0
}

/// As much of a generation as a state word is to keep, of the bits it has for that.
#[cfg(not(tollgate_loom))]
#[inline(always)]
pub(crate) const fn generation_kept() -> u64 {
    u64::MAX
}

#[cfg(tollgate_loom)]
pub(crate) use self::modelled::{first_generation, generation_kept, is_broken};

#[cfg(tollgate_loom)]
pub(crate) mod modelled {
    use super::{Fault, Ordering};
    use std::cell::Cell;

    std::thread_local! {
        // Loom runs every modelled thread on the thread that called it, so one cell reaches them all.
        static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
        static COUNTED_LOADS: Cell<bool> = const { Cell::new(false) };
        static GENERATIONS: Cell<(u64, u64)> = const { Cell::new((0, u64::MAX)) };
    }

    /// Runs `model` with `fault` in force.
    pub fn with_fault<R>(fault: Fault, model: impl FnOnce() -> R) -> R {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                FAULT.set(Fault::None);
            }
        }
        let _restore = Restore;
        FAULT.set(fault);
        model()
    }

    pub(crate) fn is_broken(fault: Fault) -> bool {
        FAULT.get() == fault
    }

    /// Runs `model` with slots that begin in generation `first`, and states that keep only the bits `kept` of
    /// a generation: a wrap that takes 128 takeovers, or 2 048, is then one or two away.
    pub fn with_generations<R>(first: u64, kept: u64, model: impl FnOnce() -> R) -> R {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                GENERATIONS.set((0, u64::MAX));
            }
        }
        let _restore = Restore;
        GENERATIONS.set((first, kept));
        model()
    }

    /// Runs `model` with loads that conflict with each other, so that loom tries them in every order.
    pub fn with_counted_loads<R>(model: impl FnOnce() -> R) -> R {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                COUNTED_LOADS.set(false);
            }
        }
        let _restore = Restore;
        COUNTED_LOADS.set(true);
        model()
    }

    pub(crate) fn first_generation() -> u64 {
        GENERATIONS.get().0
    }

    pub(crate) fn generation_kept() -> u64 {
        GENERATIONS.get().1
    }

    /// Loom's atomic, with the compare-exchange that [`Fault::LoadThenStore`] takes apart.
    ///
    /// Loom tries another order of two accesses only if they conflict, and compares an access with the last
    /// one alone (0.7.2, `last_dependent_access`). So a load hides the loads of other threads before it from
    /// the compare-exchange after it, and whole branches are never tried: of a thread that is refused by loads
    /// alone, often all of them. Counting the loads makes them conflict ([`with_counted_loads`]). Being
    /// relaxed, that orders nothing else; but it multiplies the executions by thirty.
    #[derive(Debug)]
    pub(crate) struct AtomicU64 {
        word: loom::sync::atomic::AtomicU64,
        loads: loom::sync::atomic::AtomicU64,
    }

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self {
                word: loom::sync::atomic::AtomicU64::new(value),
                loads: loom::sync::atomic::AtomicU64::new(0),
            }
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            if COUNTED_LOADS.get() {
                // Relaxed: must order nothing, only be seen by loom as a conflict.
                self.loads.fetch_add(1, Ordering::Relaxed);
            }
            self.word.load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.word.store(value, order);
        }

        pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            self.word.fetch_or(value, order)
        }

        pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
            self.word.fetch_max(value, order)
        }

        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.word.fetch_add(value, order)
        }

        pub(crate) fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            if is_broken(Fault::LoadThenStore) {
                let seen = self.load(failure);
                if seen != current {
                    return Err(seen);
                }
                // Release: at least as strong as what it stands for, so that only the gap is at fault.
                self.word.store(new, Ordering::Release);
                return Ok(seen);
            }
            self.word.compare_exchange(current, new, success, failure)
        }
    }
}
