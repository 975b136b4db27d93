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
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Chunks of later sets, each twice as long as the one before: 16 383 sets in all.
const CHUNKS: u32 = 14;
/// The low bits of [`Policies::current`]; the others count.
const NUMBER_BITS: u32 = 16;

const _: () = assert!(CHUNKS < NUMBER_BITS);

#[derive(Debug)]
pub(crate) struct Policies {
    /// The policy of the first tier in the first set, where it is reached in one step.
    pub(crate) at_build: Compiled,
    first: Set,
    later: [OnceLock<Box<[OnceLock<Set>]>>; CHUNKS as usize],
    /// Which set is in force (0 the first, else one of the later ones), and how often the first tier's words have
    /// come under another rule by then. In one word, because nobody may take the one for the other's.
    current: AtomicU64,
    /// The later sets by their policies. Held while one is made.
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    count: u64,
    /// The latest set of each list of policies.
    by_text: BTreeMap<String, u64>,
}

/// Which rule the words of the first tier were under: equal as long as it was the same all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Era(u64);

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

    /// Whether the first tier's words count under this set as they did under another: then what was charged by the
    /// one can be undone under the other.
    fn goes_on_from(&self, before: &Self) -> bool {
        let (rules, rules_before) = (&self.tiers[0].compiled.rules, &before.tiers[0].compiled.rules);
        // What all tiers together leave of a word.
        let left_alone = |cell| match (self.plan_of(cell), before.plan_of(cell)) {
            (Some(plan), Some(plan_before)) => plan.counts_as(plan_before),
            _ => false,
        };
        rules.len() == rules_before.len()
            && rules.iter().zip(rules_before).all(|(rule, before)| {
                (rule.first_cell, rule.shadow) == (before.first_cell, before.shadow)
                    && rule.plan.counts_as(&before.plan)
                    && left_alone(rule.first_cell)
            })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for tier in &self.tiers {
            // Never fails for a string.
            let _ = writeln!(text, "{}", tier.policy);
        }
        text
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
            made: Mutex::default(),
        })
    }

    /// The set in force, if it is not that of the build.
    #[inline]
    pub(crate) fn later(&self) -> Option<&Set> {
        // Acquire: as for `current`.
        match number_of(self.current.load(Ordering::Acquire)) {
            0 => None,
            number => Some(self.numbered(number)),
        }
    }

    /// The set in force, and the era of the first tier's words that it belongs to.
    pub(crate) fn current_era(&self) -> (&Set, Era) {
        // Acquire: as for `current`. A word that was written in a later era is undone by nobody who reads less.
        let current = self.current.load(Ordering::Acquire);
        let set = self.numbered(number_of(current));
        // The broken variant reads the two apart, and may take a later era for the set's.
        // Acquire: as above.
        let current =
            if is_broken(Fault::MixesEras) { self.current.load(Ordering::Acquire) } else { current };
        (set, Era(current >> NUMBER_BITS))
    }

    /// The era of the first tier's words.
    pub(crate) fn era(&self) -> Era {
        self.current_era().1
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
        self.numbered(number_of(self.current.load(Ordering::Acquire)))
    }

    /// The sets are numbered so that a number's highest bit is its chunk, and the rest its place there.
    pub(crate) fn numbered(&self, number: SetNumber) -> &Set {
        let Some(chunk) = number.checked_ilog2() else { return &self.first };
        let place = number - (1 << chunk);
        let chunk = self.later.get(chunk as usize).and_then(OnceLock::get);
        let set = chunk.and_then(|sets| sets.get(usize::try_from(place).ok()?)).and_then(OnceLock::get);
        // A number is published after its set.
        set.unwrap_or(&self.first)
    }

    /// Which set is in force.
    pub(crate) fn number(&self) -> SetNumber {
        // Acquire: as for `current`.
        number_of(self.current.load(Ordering::Acquire))
    }

    /// Puts another policy in force for one tier of a table with room for so many cells; says whether it is another.
    pub(crate) fn change(&self, tier: usize, policy: &Policy, room: usize) -> Result<bool, Error> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current();
        if before.tiers.get(tier).is_some_and(|tier| tier.policy == *policy) {
            return Ok(false);
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
        let text = set.text();
        // Acquire: nobody else changes it now.
        let era = self.current.load(Ordering::Acquire) >> NUMBER_BITS;
        let stamp = (era + u64::from(!set.goes_on_from(before))) << NUMBER_BITS;
        let number = match made.by_text.get(&text) {
            Some(&number) if *self.numbered(number) == set => number,
            _ => {
                let number = made.count + 1;
                self.put(number, stamp, set)?;
                made.count = number;
                made.by_text.insert(text, number);
                number
            }
        };
        if !is_broken(Fault::PublishesEarly) {
            // Release: the set is in its place.
            self.current.store(stamp | number, Ordering::Release);
        }
        Ok(true)
    }

    fn put(&self, number: u64, stamp: u64, set: Set) -> Result<(), Error> {
        let full = || {
            Error::new(
                "this limiter has had 16 383 different policies, and keeps each of them: build a new one, \
                 or change among fewer",
            )
        };
        let chunk = number.ilog2();
        let sets = self.later.get(chunk as usize).ok_or_else(full)?;
        let sets = sets.get_or_init(|| (0..1u64 << chunk).map(|_| OnceLock::new()).collect());
        if is_broken(Fault::PublishesEarly) {
            // Release: as it should be, but for the moment.
            self.current.store(stamp | number, Ordering::Release);
            // Relaxed: only gives a model the chance to look between.
            self.current.fetch_or(0, Ordering::Relaxed);
        }
        let place = usize::try_from(number - (1 << chunk)).map_err(|_| full())?;
        sets.get(place).ok_or_else(full)?.set(set).map_err(|_| full())
    }
}

/// A set among those of a limiter, in the order in which they were made.
pub(crate) type SetNumber = u64;

/// Which set the word [`Policies::current`] speaks of.
#[inline(always)]
fn number_of(current: u64) -> SetNumber {
    current & ((1 << NUMBER_BITS) - 1)
}
