//! The policies in force, one a tier, and how they are changed while others read them.
//!
//! A set of policies is never changed and never freed before its limiter: a new one is put beside it, and one
//! number says which is in force. So a reader needs no lock and no count, and goes by one set from beginning
//! to end. What that costs is memory for each different set, which is bounded.

use crate::algorithm::{Gcra, Plan};
use crate::compile::{Compiled, CompiledRule};
use crate::error::Error;
use crate::policy::Policy;
use crate::sync::{AtomicU64, Fault, Ordering, is_broken};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Chunks of later sets, each twice as long as the one before: 16 383 sets in all.
const CHUNKS: u32 = 14;

#[derive(Debug)]
pub(crate) struct Policies {
    /// The policy of the first tier in the first set, where it is reached in one step.
    pub(crate) at_build: Compiled,
    first: Set,
    later: [OnceLock<Box<[OnceLock<Set>]>>; CHUNKS as usize],
    /// Which set is in force: 0 the first, else one of the later ones.
    current: AtomicU64,
    /// How often another set was put in force.
    changes: AtomicU64,
    /// How many later sets there are. Held while one is made.
    made: Mutex<u64>,
}

/// The policies of all tiers at a time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Set {
    pub(crate) tiers: Box<[TierPolicy]>,
    /// Which cells hold the words of which plan, of these policies and of all before them, in order.
    layout: Box<[CompiledRule]>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TierPolicy {
    /// The first tier has none.
    pub(crate) name: Option<Box<str>>,
    pub(crate) policy: Policy,
    pub(crate) compiled: Compiled,
}

impl Set {
    fn new(policies: Vec<(Option<Box<str>>, Policy)>, before: Option<&Self>) -> Result<Self, Error> {
        let mut layout = before.map_or_else(Vec::new, |set| set.layout.to_vec());
        let mut tiers = Vec::with_capacity(policies.len());
        for (name, policy) in policies {
            let compiled = policy.compile_in(&mut layout, true)?;
            tiers.push(TierPolicy { name, policy, compiled });
        }
        // Tiers share words: what one of them puts a word at, the others take as it is.
        for held in &mut layout {
            let rules = tiers.iter().flat_map(|tier| &tier.compiled.rules);
            let sharing = rules.filter(|rule| rule.first_cell == held.first_cell);
            // Of all in force, the one that remembers the longest says what a word is cut down to.
            held.plan =
                sharing.fold(held.plan, |plan, rule| match rule.plan.memory_ns() > plan.memory_ns() {
                    true => rule.plan.beside(&plan),
                    false => plan.beside(&rule.plan),
                });
        }
        for tier in &mut tiers {
            tier.compiled = tier.compiled.beside(&layout);
        }
        Ok(Self { tiers: tiers.into(), layout: layout.into() })
    }

    /// The plan whose words a cell holds; `None` if it is one of a later set.
    #[inline]
    pub(crate) fn plan_of(&self, cell: usize) -> Option<&Plan> {
        if let [rule] = &*self.layout {
            return (cell < rule.kept).then_some(&rule.plan);
        }
        let holds = |rule: &&CompiledRule| (rule.first_cell..rule.first_cell + rule.kept).contains(&cell);
        self.layout.iter().find(holds).map(|rule| &rule.plan)
    }

    /// The token bucket whose words are in the first cell, if no other cell is any rule's.
    #[inline]
    pub(crate) fn only_bucket(&self) -> Option<&Gcra> {
        match &*self.layout {
            [CompiledRule { plan: Plan::Gcra(plan), .. }] => Some(plan),
            _ => None,
        }
    }

    /// How many words a key takes at most, under whichever of the policies.
    pub(crate) fn cells(&self) -> usize {
        self.tiers.iter().map(|tier| tier.compiled.cells).max().unwrap_or(1)
    }
}

impl Policies {
    /// The first tier's policy, and the others' by name.
    pub(crate) fn new(policies: Vec<(Option<Box<str>>, Policy)>) -> Result<Self, Error> {
        let first = Set::new(policies, None)?;
        Ok(Self {
            at_build: first.tiers[0].compiled.clone(),
            first,
            later: [const { OnceLock::new() }; CHUNKS as usize],
            current: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            made: Mutex::new(0),
        })
    }

    /// The set in force, if it is not that of the build.
    #[inline]
    pub(crate) fn later(&self) -> Option<&Set> {
        // Acquire: as for `current`.
        match self.current.load(Ordering::Acquire) {
            0 => None,
            number => Some(self.numbered(number)),
        }
    }

    /// How often another set was put in force: what was charged before is not to be undone after.
    pub(crate) fn changes(&self) -> u64 {
        // Acquire: a word that was written under a later set is undone by nobody who reads less.
        self.changes.load(Ordering::Acquire)
    }

    /// The set that was in force at build.
    #[inline(always)]
    pub(crate) fn first(&self) -> &Set {
        &self.first
    }

    /// The set in force.
    #[inline]
    pub(crate) fn current(&self) -> &Set {
        // Acquire: the set was put in its place before its number was.
        self.numbered(self.current.load(Ordering::Acquire))
    }

    /// The sets are numbered so that a number's highest bit is its chunk, and the rest its place there.
    fn numbered(&self, number: u64) -> &Set {
        let Some(chunk) = number.checked_ilog2() else { return &self.first };
        let place = number - (1 << chunk);
        let chunk = self.later.get(chunk as usize).and_then(OnceLock::get);
        let set = chunk.and_then(|sets| sets.get(usize::try_from(place).ok()?)).and_then(OnceLock::get);
        // A number is published after its set.
        set.unwrap_or(&self.first)
    }

    /// Puts another policy in force for one tier of a table with room for so many cells.
    pub(crate) fn change(&self, tier: usize, policy: &Policy, room: usize) -> Result<(), Error> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current();
        if before.tiers.get(tier).is_some_and(|tier| tier.policy == *policy) {
            return Ok(());
        }
        let policies = before.tiers.iter().enumerate().map(|(index, tier_now)| {
            let policy = if index == tier { policy.clone() } else { tier_now.policy.clone() };
            (tier_now.name.clone(), policy)
        });
        let set = Set::new(policies.collect(), Some(before))?;
        let needed = set.tiers.get(tier).map_or(0, |tier| tier.compiled.cells);
        if needed > room {
            return Err(Error::new(format!(
                "a key needs {needed} entries under this policy, and the whole table has {room}: build a new limiter"
            )));
        }
        // A policy that goes to and fro comes to the same few sets.
        let number = match (1..=*made).find(|&number| *self.numbered(number) == set) {
            Some(number) => number,
            None => {
                let number = *made + 1;
                self.put(number, set)?;
                *made = number;
                number
            }
        };
        // AcqRel: counted before the set is in force.
        self.changes.fetch_add(1, Ordering::AcqRel);
        if !is_broken(Fault::PublishesEarly) {
            // Release: the set is in its place.
            self.current.store(number, Ordering::Release);
        }
        Ok(())
    }

    fn put(&self, number: u64, set: Set) -> Result<(), Error> {
        let full = || Error::new("this limiter has had 16 383 different policies: build a new one");
        let chunk = number.ilog2();
        let sets = self.later.get(chunk as usize).ok_or_else(full)?;
        let sets = sets.get_or_init(|| (0..1u64 << chunk).map(|_| OnceLock::new()).collect());
        if is_broken(Fault::PublishesEarly) {
            // Release: as it should be, but for the moment.
            self.current.store(number, Ordering::Release);
            // Relaxed: only gives a model the chance to look between.
            self.current.fetch_or(0, Ordering::Relaxed);
        }
        let place = usize::try_from(number - (1 << chunk)).map_err(|_| full())?;
        sets.get(place).ok_or_else(full)?.set(set).map_err(|_| full())
    }
}
