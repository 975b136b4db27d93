//! What a limiter knows of its keys, written down for the next process, and read back.
//!
//! # Format
//!
//! All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `tollgate` |
//! | 4 | version: 2 |
//! | 8 | length of the whole |
//! | 4 × 8 | seeds of the hash |
//! | 8 | number of lines |
//! | 8 | `max_keys` |
//! | 8 | time of the snapshot: nanoseconds from the clock's zero |
//! | 8 | how far beyond a whole burst anything is still booked, in nanoseconds |
//! | 8 | time at which every key had used up everything, as far as anybody knows; 0 if there is none |
//! | 4 | number of tiers; for each its name and its policy, both as 4 bytes of length and text |
//! | 8 | number of entries |
//! | 17 each | first line (4), tag, which line of its own it was on, and cell (6: 31 bits above 4 above 12), payload (7) |
//! | 8 | FNV-1a of all bytes before, 64 bits wide |
//!
//! The first tier's name is empty. Cells are numbered as a limiter numbers them that is built with those
//! policies and has had no others. A payload is a rule's word, or a word of [`guard`](crate::guard); it says
//! how long ago, or how far ahead, by its difference from the time of the snapshot. Every step of FNV-1a is a
//! bijection of the state, so no change of a single byte can go unnoticed.

use crate::algorithm::{Gcra, MOMENT_BITS, MOMENT_SHIFT, Penalty, Plan, STEP_BACK_NS, Step};
use crate::cells::group_offset;
use crate::compile::{CELLS_MAX, CompiledRule, LAYOUT_CELLS_MAX};
use crate::error::Error;
use crate::guard::{self, LIST_CELL, Listing, ONCE_CELL, PENALTY_CELL};
use crate::limiter::{LISTS, Limiter};
use crate::policies::{Policies, Set, TierPolicy};
use crate::sync::{Fault, Ordering, is_broken};
use crate::table::{Entry, Table, WhenFull};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"tollgate";
const VERSION: u32 = 2;
/// Longer than anything can be booked ahead: a word holds 208 days.
const HORIZON_NS_MAX: u64 = 1 << 55;
/// Magic, version and length.
const HEAD_BYTES: usize = 20;
const CHECKSUM_BYTES: usize = 8;
const CELL_BITS: u32 = 12;
const STOOD_BITS: u32 = 4;
const NAME_BYTES: usize = 6;
const PAYLOAD_BYTES: usize = 7;
const ENTRY_BYTES: usize = 4 + NAME_BYTES + PAYLOAD_BYTES;

const _: () = assert!(Entry::TAG_MASK >> (8 * NAME_BYTES - (CELL_BITS + STOOD_BITS) as usize) == 0);
const _: () = assert!(Table::LINES_A_KEY <= 1 << STOOD_BITS);

impl Limiter {
    /// What all keys have spent, written down while others go on: for
    /// [`LimiterBuilder::restore`](crate::LimiterBuilder::restore).
    ///
    /// Each entry of the table is read at one moment, one after the other. What is charged to a key after its
    /// entry was read is not in the snapshot, and a limiter [restored](crate::LimiterBuilder::restore) from it will
    /// have forgiven that: at most what the key was admitted between the call and the end of the process. Where that
    /// matters, [`close`](Self::close); or, for a process that was killed and could not,
    /// [`restore_after_crash`](crate::LimiterBuilder::restore_after_crash).
    ///
    /// Lists, lockouts and marks are in it; work in flight is not, it ends with the process. What was
    /// booked ahead counts as spent. What was spent under rules that are not in force any more is not in it.
    ///
    /// No key is in it, only bits of their hashes; but the seeds of the hash are, so keep it from those who
    /// should not be able to aim keys at each other.
    ///
    /// Of a limiter that is closed there is nothing left to write down: the result is empty, and cannot be
    /// restored.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::new("3/h")?;
    /// assert_eq!(limiter.try_acquire_n("alice", 2).remaining(), 1);
    /// let bytes = limiter.snapshot();
    ///
    /// let restored = Limiter::builder().policy("3/h").restore(&bytes).build()?;
    /// assert!(restored.try_acquire("alice").is_allowed());
    /// assert!(restored.try_acquire("alice").is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let was_closed = is_broken(Fault::AsksTooEarly).then(|| self.table.is_closed());
        let entries = self.table.entries();
        // Asked afterwards: what was closed meanwhile may have been missed.
        let is_closed = was_closed.unwrap_or_else(|| self.table.is_closed());
        if is_closed { Vec::new() } else { self.written(&entries) }
    }

    /// Refuses every charge from now on, and gives an exact [snapshot](Self::snapshot): for shutting down.
    ///
    /// Other threads go on, and never wait: a request is either in the snapshot or refused by
    /// [`Cause::Closed`](crate::Cause::Closed). So nobody is admitted more before and after a restart
    /// together than the rules allow. A request that several rules were charged for, one after the other, may
    /// be found halfway: it is refused, and some of it may be in the snapshot.
    ///
    /// A limiter stays closed. [`peek`](Self::peek) then sees keys that have spent nothing; what charges
    /// nothing goes on passing (a cost of 0, [leases](Self::lease) that were paid for before, policies of
    /// shadow rules alone). Only the first call gives a snapshot; any other gives nothing at all, which
    /// cannot be restored, and should not be written over the first.
    ///
    /// ```
    /// use tollgate::{Cause, Limiter};
    ///
    /// let limiter = Limiter::new("3/h")?;
    /// assert!(limiter.try_acquire_n("alice", 3).is_allowed());
    /// let bytes = limiter.close();
    /// assert_eq!(limiter.try_acquire("bob").cause(), Cause::Closed);
    /// assert!(limiter.close().is_empty());
    ///
    /// let restored = Limiter::builder().policy("3/h").restore(&bytes).build()?;
    /// assert!(restored.try_acquire("alice").is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use = "what is not written down is forgotten"]
    pub fn close(&self) -> Vec<u8> {
        self.table.close(&self.worth()).map_or_else(Vec::new, |entries| self.written(&entries))
    }

    fn written(&self, entries: &[Entry]) -> Vec<u8> {
        // Read after the entries: what is charged to them was charged before. The policies too; a closed
        // limiter will then have charged by no later ones.
        let then_ns = self.clock.now_ns();
        let set = self.policies.current();
        let horizon_ns = self.horizon.ns(then_ns);
        let memory_ns =
            set.tiers.iter().flat_map(|tier| &tier.compiled.rules).map(|rule| rule.plan.memory_ns());
        let memory_ns = memory_ns.max().unwrap_or(0);
        // Two memories: what is spent in one window counts until the next one's end.
        let still_counts = |&spent_at_ns: &u64| then_ns.saturating_sub(spent_at_ns) / 2 <= memory_ns;
        let spent_at_ns = self.spent_at_ns.filter(still_counts);
        let moves = moves(set);
        let (mut kept, mut moved) = (Vec::with_capacity(entries.len()), Vec::new());
        // Puts a word of one of the rules in force, or of none, where a new limiter has it.
        let mut keep = |entry: Entry, cell: usize| {
            if cell >= LAYOUT_CELLS_MAX {
                kept.push(entry);
            }
            for (from, to) in moves.iter().filter(|(from, _)| from.contains(&cell)) {
                let cell = to + (cell - from.start);
                let offset = group_offset(cell).wrapping_sub(group_offset(entry.cell));
                if offset == 0 {
                    kept.push(Entry { cell, ..entry });
                } else {
                    moved.extend(self.table.elsewhere(entry, cell, offset));
                }
            }
        };
        for &entry in entries {
            let Some(kind) = Content::of(set, self.penalty, horizon_ns, entry.cell) else { continue };
            let payload = kind.settled(set, horizon_ns, entry, then_ns);
            if kind.reset_ns(payload, then_ns) > 0 {
                keep(Entry { payload, ..entry }, entry.cell);
            }
        }
        // Those that are where they were have room there; the others come after them.
        kept.append(&mut moved);
        Snapshot {
            seeds: self.seeds,
            lines: self.table.line_count(),
            max_keys: self.max_keys,
            then_ns,
            horizon_ns,
            spent_at_ns,
            tiers: texts(set),
            entries: kept,
        }
        .to_bytes()
    }
}

/// Where the words of the rules in force would be, had no others been in force before.
fn moves(set: &Set) -> Vec<(Range<usize>, usize)> {
    let policies = set.tiers.iter().map(|tier| (tier.name.clone(), tier.policy.clone())).collect();
    let anew = Policies::new(policies);
    // What has compiled among others compiles alone.
    let anew = anew.as_ref().map_or(set, Policies::first);
    let mut moves: Vec<(Range<usize>, usize)> = Vec::new();
    for (tier, tier_anew) in set.tiers.iter().zip(&anew.tiers) {
        for (rule, rule_anew) in tier.compiled.rules.iter().zip(&tier_anew.compiled.rules) {
            let step = (rule.cells(), rule_anew.first_cell);
            if !moves.contains(&step) {
                moves.push(step);
            }
        }
    }
    moves
}

/// The names and policies of all tiers.
fn texts(set: &Set) -> Vec<(String, String)> {
    let text =
        |tier: &TierPolicy| (tier.name.as_deref().unwrap_or_default().to_owned(), tier.policy.to_string());
    set.tiers.iter().map(text).collect()
}

/// What the word in a cell is.
#[derive(Clone, Copy)]
enum Content {
    Rule(Plan),
    Penalty(Option<Penalty>),
    List,
    Mark,
}

impl Content {
    /// `None` if the cell has nothing in it that outlives a process.
    fn of(set: &Set, penalty: Option<Penalty>, horizon_ns: u64, cell: usize) -> Option<Self> {
        match cell {
            PENALTY_CELL => return Some(Self::Penalty(penalty)),
            LIST_CELL => return Some(Self::List),
            ONCE_CELL => return Some(Self::Mark),
            _ => {}
        }
        // Tiers may share a cell. Moments are read by whoever believes the furthest, counts by the largest
        // limit.
        let largest = rules_of(set, cell).map(|rule| rule.plan).max_by_key(Plan::limit)?;
        match largest {
            Plan::Gcra(_) | Plan::SlidingLog(_) => {
                set.plan_of(cell).map(|plan| Self::Rule(plan.booked(horizon_ns)))
            }
            Plan::FixedWindow(_) | Plan::SlidingWindow(_) => Some(Self::Rule(largest)),
            Plan::InFlight(_) => None,
        }
    }

    /// A word as the rules in force would take it: cut down where an earlier rule has left more than any of
    /// them could.
    fn settled(self, set: &Set, horizon_ns: u64, entry: Entry, now_ns: u64) -> u64 {
        let word = entry.payload;
        let settled = rules_of(set, entry.cell).map(|rule| {
            let plan = rule.plan.booked(horizon_ns);
            if plan.is_doubtful(word, now_ns) { plan.settled(word, now_ns) } else { word }
        });
        settled.max_by_key(|&word| self.reset_ns(word, now_ns)).unwrap_or(word)
    }

    fn reset_ns(self, word: u64, now_ns: u64) -> u64 {
        match self {
            Self::Rule(plan) => plan.reset_ns(word, now_ns),
            Self::Penalty(penalty) => penalty.map_or(0, |penalty| penalty.reset_ns(word, now_ns)),
            Self::List => guard::listing_reset_ns(word, now_ns),
            Self::Mark => guard::mark_reset_ns(word, now_ns),
        }
    }

    fn spent(self, word: u64, now_ns: u64) -> u64 {
        match self {
            Self::Rule(plan) => plan.spent(word, now_ns),
            _ => 1,
        }
    }

    /// The word of `then_ns` as it is at `now_ns`; `None` if nothing is left of it.
    fn restored(self, word: u64, then_ns: u64, now_ns: u64) -> Option<u64> {
        let owed_ns = self.reset_ns(word, then_ns);
        match now_ns.checked_sub(then_ns) {
            // Moments and windows are where they were.
            Some(elapsed_ns) => (owed_ns > elapsed_ns).then_some(word),
            None => (owed_ns > 0).then(|| self.carried(word, then_ns, now_ns)),
        }
    }

    /// The same for a clock that has gone back. No time has passed then, as far as anybody knows.
    fn carried(self, word: u64, then_ns: u64, now_ns: u64) -> u64 {
        match self {
            Self::Rule(plan @ (Plan::FixedWindow(_) | Plan::SlidingWindow(_))) => {
                carried_window(plan, word, then_ns, now_ns)
            }
            Self::Rule(plan) => plan.carried(word, then_ns, now_ns),
            Self::Penalty(_) => {
                let moment = word & ((1 << MOMENT_BITS) - 1);
                // Rounded down: a lockout does not become shorter.
                let back = (then_ns - now_ns) >> MOMENT_SHIFT;
                word - moment + moment.saturating_sub(back)
            }
            Self::List => match guard::listing(word, then_ns) {
                Some(Listing::Deny { left_ns }) if left_ns < u64::MAX => guard::denied_word(now_ns, left_ns),
                _ => word,
            },
            Self::Mark => Gcra::mark(0).carried(word, then_ns, now_ns),
        }
    }

    /// One word that owes at least as much as either of two.
    fn merged(self, first: u64, second: u64, now_ns: u64) -> u64 {
        match self {
            _ if first == second => first,
            Self::Rule(plan @ (Plan::FixedWindow(_) | Plan::SlidingWindow(_))) => {
                let (first_spent, second_spent) = (plan.spent(first, now_ns), plan.spent(second, now_ns));
                plan.carried(if first_spent < second_spent { second } else { first }, now_ns, now_ns)
            }
            // The one bit that denies is the highest.
            Self::List => first.max(second),
            Self::Rule(_) | Self::Penalty(_) | Self::Mark => {
                if self.reset_ns(first, now_ns) < self.reset_ns(second, now_ns) { second } else { first }
            }
        }
    }
}

/// Windows do not go back with the clock. What was spent goes into the window of now; or, where that one ends
/// sooner than the old one would have, into the next, as if the clock had stood still at its beginning.
fn carried_window(plan: Plan, word: u64, then_ns: u64, now_ns: u64) -> u64 {
    if then_ns - now_ns <= STEP_BACK_NS {
        return word;
    }
    let carried = plan.carried(word, then_ns, now_ns);
    if plan.reset_ns(carried, now_ns) >= plan.reset_ns(word, then_ns) {
        return carried;
    }
    let window_ns = match plan {
        Plan::FixedWindow(plan) => plan.window_ns(),
        Plan::SlidingWindow(plan) => plan.window_ns(),
        _ => 0,
    };
    plan.carried(word, then_ns, now_ns.saturating_add(window_ns))
}

fn rules_of(set: &Set, cell: usize) -> impl Iterator<Item = &CompiledRule> {
    let rules = set.tiers.iter().flat_map(|tier| &tier.compiled.rules);
    rules.filter(move |rule| rule.cells().contains(&cell))
}

/// A snapshot that is whole; whose it is has not been asked.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) seeds: [u64; 4],
    lines: usize,
    max_keys: usize,
    then_ns: u64,
    horizon_ns: u64,
    spent_at_ns: Option<u64>,
    tiers: Vec<(String, String)>,
    entries: Vec<Entry>,
}

impl Snapshot {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256 + self.entries.len() * ENTRY_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        // The length, once it is known.
        bytes.extend([0; 8]);
        for number in self.seeds {
            bytes.extend(number.to_le_bytes());
        }
        // A nanosecond late is as good; 0 says that there is none.
        let spent_at_ns = self.spent_at_ns.map_or(0, |time_ns| time_ns.max(1));
        let numbers = [self.lines as u64, self.max_keys as u64, self.then_ns, self.horizon_ns, spent_at_ns];
        for number in numbers {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(length(self.tiers.len()).to_le_bytes());
        for text in self.tiers.iter().flat_map(|(name, policy)| [name, policy]) {
            bytes.extend(length(text.len()).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        for entry in &self.entries {
            let name = (entry.tag << STOOD_BITS | entry.stood as u64) << CELL_BITS | entry.cell as u64;
            bytes.extend(length(entry.line).to_le_bytes());
            bytes.extend(&name.to_le_bytes()[..NAME_BYTES]);
            bytes.extend(&entry.payload.to_le_bytes()[..PAYLOAD_BYTES]);
        }
        let whole = (bytes.len() + CHECKSUM_BYTES) as u64;
        bytes[HEAD_BYTES - 8..HEAD_BYTES].copy_from_slice(&whole.to_le_bytes());
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a snapshot, or says what is wrong with it. Takes no more memory than there are bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Input(bytes);
        if bytes.is_empty() {
            return Err(Error::new("the snapshot is empty: was the limiter closed before it was taken?"));
        }
        if input.bytes(MAGIC.len()).ok() != Some(&MAGIC[..]) {
            return Err(Error::new("this is not a snapshot of a limiter: it begins as something else"));
        }
        let version = input.u32()?;
        if version != VERSION {
            return Err(Error::new(format!(
                "the snapshot is of version {version}, and this can read version {VERSION}"
            )));
        }
        let whole = input.u64()?;
        if whole != bytes.len() as u64 {
            let len = bytes.len();
            return Err(Error::new(format!(
                "the snapshot is cut short or something was added to it: it has {len} bytes and should have {whole}"
            )));
        }
        let Some((content, stored)) = input.0.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(cut_short());
        };
        if checksum(&bytes[..bytes.len() - CHECKSUM_BYTES]) != u64::from_le_bytes(*stored) {
            return Err(Error::new("the snapshot is damaged: its checksum is another one"));
        }
        let mut input = Input(content);
        let mut seeds = [0; 4];
        for seed in &mut seeds {
            *seed = input.u64()?;
        }
        let (lines, max_keys) = (input.size()?, input.size()?);
        let (then_ns, horizon_ns) = (input.u64()?, input.u64()?);
        let spent_at_ns = Some(input.u64()?.min(then_ns)).filter(|&time_ns| time_ns > 0);
        let mut tiers = Vec::new();
        for _ in 0..input.u32()? {
            tiers.push((input.text()?, input.text()?));
        }
        let count = input.size()?;
        if count.checked_mul(ENTRY_BYTES) != Some(input.0.len()) {
            return Err(Error::new("the snapshot is damaged: there are not as many entries as it says"));
        }
        let entries = input.0.chunks_exact(ENTRY_BYTES).map(entry).collect::<Result<_, _>>()?;
        Ok(Self { seeds, lines, max_keys, then_ns, horizon_ns, spent_at_ns, tiers, entries })
    }

    /// Whether a limiter of these policies, of this size and with these seeds, if any were chosen, is the one
    /// that the snapshot was taken of.
    pub(crate) fn check(&self, set: &Set, max_keys: usize, seeds: Option<[u64; 4]>) -> Result<(), Error> {
        if seeds.is_some_and(|seeds| seeds != self.seeds) {
            return Err(Error::new(
                "the snapshot was taken with other seeds: leave them out, and they are taken from it",
            ));
        }
        if max_keys != self.max_keys {
            return Err(Error::new(format!(
                "the snapshot was taken with max_keys({}), and this limiter has max_keys({max_keys})",
                self.max_keys
            )));
        }
        let tiers = texts(set);
        let names = |tiers: &[(String, String)]| {
            let names: Vec<_> = tiers.iter().skip(1).map(|(name, _)| format!("`{name}`")).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        if !tiers.iter().map(|(name, _)| name).eq(self.tiers.iter().map(|(name, _)| name)) {
            return Err(Error::new(format!(
                "the snapshot was taken with other tiers: it has {}, and this limiter has {}",
                names(&self.tiers),
                names(&tiers)
            )));
        }
        for ((name, ours), (_, theirs)) in tiers.iter().zip(&self.tiers) {
            if ours != theirs {
                let tier = if name.is_empty() { String::new() } else { format!(" for the tier `{name}`") };
                return Err(Error::new(format!(
                    "the snapshot was taken under another policy{tier}: `{theirs}`, and this limiter has `{ours}`"
                )));
            }
        }
        Ok(())
    }

    /// A table of the size that the snapshot was taken of: that of the limiter's first policy, which may have
    /// been another one. `cells` are those of the policy in force.
    pub(crate) fn table(
        &self,
        cells: usize,
        when_full: WhenFull,
        prefault: Option<bool>,
    ) -> Result<Table, Error> {
        let lines = self.lines;
        let lines_for = |cells| Table::lines_for(self.max_keys, cells);
        // One for a lockout beside those of the largest policy there is.
        if !(1..=CELLS_MAX + 1).any(|cells| lines_for(cells) == Some(lines)) {
            return Err(Error::new(format!("the snapshot is damaged: no table has {lines} lines")));
        }
        // A number in a file is no reason to take more memory than this policy would.
        let is_larger = lines_for(cells).is_none_or(|own| lines > own);
        let prefault = if is_larger { Some(false) } else { prefault };
        Table::of_lines(lines, when_full, prefault)
            .ok_or_else(|| Error::new(format!("there is no memory for a table of {} keys", self.max_keys)))
    }

    /// When every key had used up everything, by a clock that says `now_ns`.
    pub(crate) fn spent_at_ns(&self, now_ns: u64) -> Option<u64> {
        // Where the clock went back, no time has passed.
        let back_ns = self.then_ns.saturating_sub(now_ns);
        self.spent_at_ns.map(|time_ns| time_ns.saturating_sub(back_ns))
    }

    /// Puts everything that still counts into a limiter that nobody else has yet.
    pub(crate) fn put_back(&self, limiter: &Limiter, when_full: WhenFull) -> Result<(), Error> {
        let set = limiter.policies.first();
        let now_ns = limiter.clock.now_ns();
        // First: words may lie as far ahead.
        limiter.horizon.reach(self.then_ns.min(now_ns).saturating_add(self.horizon_ns.min(HORIZON_NS_MAX)));
        for &entry in &self.entries {
            let kind = Content::of(set, limiter.penalty, self.horizon_ns, entry.cell);
            let Some(kind) = kind.filter(|_| entry.line < self.lines) else {
                return Err(Error::new("the snapshot is damaged: an entry is on no line, or of no rule"));
            };
            let Some(payload) = kind.restored(entry.payload, self.then_ns, now_ns) else { continue };
            let payload = match (kind, limiter.spent_at_ns) {
                (Content::Rule(plan), Some(spent_at_ns)) => {
                    kind.merged(payload, plan.used_up_since(spent_at_ns, now_ns), now_ns)
                }
                _ => payload,
            };
            let entry = Entry { payload, ..entry };
            if limiter.table.put(entry, |first, second| kind.merged(first, second, now_ns)) {
                if entry.cell == LIST_CELL {
                    // Release: the entry is in its place.
                    limiter.special.fetch_or(LISTS, Ordering::Release);
                }
            } else if when_full == WhenFull::Deny {
                return Err(Error::new(
                    "there is no room for all of the snapshot: the policies were changed before it was taken, \
                     and the words of the new ones may have to be in several places",
                ));
            } else {
                limiter.table.count_forgotten(entry, kind.spent(payload, now_ns));
            }
        }
        Ok(())
    }
}

/// A length that fits: tiers, texts and lines are fewer than 2^32.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn entry(bytes: &[u8]) -> Result<Entry, Error> {
    let mut input = Input(bytes);
    let line = usize::try_from(input.u32()?).map_err(|_| cut_short())?;
    let name = input.number(NAME_BYTES)?;
    let payload = input.number(PAYLOAD_BYTES)?;
    let (tag, low) = (name >> (STOOD_BITS + CELL_BITS), name & ((1 << (STOOD_BITS + CELL_BITS)) - 1));
    #[allow(clippy::cast_possible_truncation, reason = "16 bits")]
    let (stood, cell) = ((low >> CELL_BITS) as usize, (low & ((1 << CELL_BITS) - 1)) as usize);
    if tag > Entry::TAG_MASK || stood >= Table::LINES_A_KEY {
        return Err(Error::new("the snapshot is damaged: an entry has no such name"));
    }
    Ok(Entry { line, tag, cell, stood, payload })
}

/// FNV-1a, 64 bits wide.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn cut_short() -> Error {
    Error::new("the snapshot is cut short")
}

/// What is still to be read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.0.split_at_checked(count).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(head)
    }

    /// A number of so many bytes, at most eight.
    fn number(&mut self, count: usize) -> Result<u64, Error> {
        Ok(self.bytes(count)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.number(8)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        u32::try_from(self.number(4)?).map_err(|_| cut_short())
    }

    fn size(&mut self) -> Result<usize, Error> {
        let too_large = |_| Error::new("the snapshot is of a table larger than there can be here");
        usize::try_from(self.u64()?).map_err(too_large)
    }

    fn text(&mut self) -> Result<String, Error> {
        let count = usize::try_from(self.u32()?).map_err(|_| cut_short())?;
        let no_text = |_| Error::new("the snapshot is damaged: a policy is no text");
        String::from_utf8(self.bytes(count)?.to_vec()).map_err(no_text)
    }
}
