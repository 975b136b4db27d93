//! What a counted key is called: text in atomic words, which is never read half old and half new.
//!
//! A writer claims the cell by making its version odd, and whoever finds it odd goes away: a label is written
//! again when its key comes again, so nobody has to wait. A reader looks at the version before and after.

use crate::sync::{AtomicU64, Fault, Ordering, is_broken};
use ahash::RandomState;
use std::fmt::{self, Display, Write};
use std::hash::{BuildHasher, Hasher};

const WORDS: usize = if cfg!(tollgate_loom) { 2 } else { 6 };
const BYTES: usize = WORDS * 8;
/// Text is hashed in blocks of this many bytes, so that it does not matter in which pieces it is printed.
const BLOCK: usize = 128;

/// A key as it was printed: as much of it as is shown, and a hash of all of it.
pub(super) struct Label {
    bytes: [u8; BYTES],
    hash: u64,
}

impl Label {
    pub(super) fn of<K: Display + ?Sized>(key: &K, hasher: &RandomState) -> Self {
        let mut printer = Printer {
            block: [0; BLOCK],
            filled: 0,
            shown: [0; BYTES],
            length: 0,
            hasher: hasher.build_hasher(),
        };
        // Whatever a type says of its own printing, what it has printed by then is its label.
        let _ = write!(printer, "{key}");
        printer.finish()
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

struct Printer<H> {
    block: [u8; BLOCK],
    filled: usize,
    shown: [u8; BYTES],
    /// Bytes printed in all.
    length: usize,
    hasher: H,
}

impl<H: Hasher> Printer<H> {
    fn finish(mut self) -> Label {
        self.hasher.write(&self.block[..self.filled]);
        self.hasher.write_usize(self.length);
        // Cut where a character begins.
        let mut end = self.length.min(BYTES);
        if self.length > BYTES {
            end = match std::str::from_utf8(&self.shown) {
                Ok(_) => BYTES,
                Err(error) => error.valid_up_to(),
            };
        }
        self.shown[end..].fill(0);
        Label { bytes: self.shown, hash: self.hasher.finish() }
    }
}

impl<H: Hasher> Write for Printer<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut bytes = text.as_bytes();
        if self.length < BYTES {
            let shown = bytes.len().min(BYTES - self.length);
            self.shown[self.length..self.length + shown].copy_from_slice(&bytes[..shown]);
        }
        self.length += bytes.len();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.filled));
            self.block[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == BLOCK {
                self.hasher.write(&self.block);
                self.filled = 0;
            }
        }
        Ok(())
    }
}

/// Where a label is kept.
///
/// ```text
/// version: even, whole        odd, being written
///          v ──claim──▶ v + 1 ──words──▶ v + 2
/// ```
#[derive(Debug)]
pub(super) struct LabelCell {
    version: AtomicU64,
    /// The mark of the key that the text is of; 0 of none.
    mark: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl LabelCell {
    pub(super) fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            mark: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Writes the label of the key with this mark, unless it is there, or somebody else is at it.
    pub(super) fn write(&self, label: &Label, mark: u64) {
        // Relaxed: a guess. If it is wrong now, the key's next coming puts it right.
        if self.mark.load(Ordering::Relaxed) == mark {
            return;
        }
        // Relaxed: the claim makes sure of it.
        let version = self.version.load(Ordering::Relaxed);
        if !is_broken(Fault::WritesUnclaimed) {
            if version % 2 == 1 {
                return;
            }
            // Acquire: what the writer before has written comes before what this one writes.
            let (set, failed) = (Ordering::Acquire, Ordering::Relaxed);
            if self.version.compare_exchange(version, version + 1, set, failed).is_err() {
                return;
            }
        }
        // Release, each of them: whoever reads any of it and looks at the version again finds the claim.
        self.mark.store(mark, Ordering::Release);
        for (word, bytes) in self.words.iter().zip(label.bytes.chunks_exact(8)) {
            let mut text = [0; 8];
            text.copy_from_slice(bytes);
            word.store(u64::from_le_bytes(text), Ordering::Release);
        }
        // Release: whoever finds this version finds all of it.
        self.version.store(version + 2, Ordering::Release);
    }

    /// The label of the key with this mark, if that is what is here, and whole.
    pub(super) fn read(&self, mark: u64) -> Option<String> {
        // Acquire: all that belongs to this version.
        let version = self.version.load(Ordering::Acquire);
        if version % 2 == 1 {
            return None;
        }
        // Acquire, each of them: if it is a later writer's, so is the version then.
        let found = self.mark.load(Ordering::Acquire);
        let mut bytes = [0; BYTES];
        for (word, bytes) in self.words.iter().zip(bytes.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        // Relaxed: the acquiring loads keep it behind them.
        let is_whole = self.version.load(Ordering::Relaxed) == version || is_broken(Fault::NoSecondLook);
        if found != mark || !is_whole {
            return None;
        }
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    fn label(key: &(impl Display + ?Sized)) -> Label {
        Label::of(key, &RandomState::with_seeds(1, 2, 3, 4))
    }

    /// Prints a text in pieces of `size` bytes.
    struct Pieces<'a>(&'a str, usize);

    impl Display for Pieces<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut rest = self.0;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(self.1.min(rest.len()));
                f.write_str(now)?;
                rest = later;
            }
            Ok(())
        }
    }

    #[test]
    fn the_same_text_is_the_same_key_however_it_is_printed() {
        for length in [0, 1, 7, 47, 48, 49, 127, 128, 129, 1000] {
            let text: String = ('a'..='z').cycle().take(length).collect();
            let whole = label(&text);
            for size in [1, 3, 64, 500] {
                let pieces = label(&Pieces(&text, size));
                assert_eq!((pieces.hash, pieces.bytes), (whole.hash, whole.bytes), "{length} by {size}");
            }
            assert_ne!(label(&format!("{text}x")).hash, whole.hash);
        }
        let address: std::net::IpAddr = [203, 0, 113, 7].into();
        assert_eq!(label(&address).hash, label("203.0.113.7").hash);
    }

    #[test]
    fn a_long_label_is_cut_before_a_character() {
        for before in 40..49 {
            let cell = LabelCell::new();
            let text = format!("{}äöü€", "x".repeat(before));
            cell.write(&label(&text), 7);
            let shown = cell.read(7).unwrap_or_default();
            assert!(text.starts_with(&shown) && shown.len() <= 48 && shown.len() > 44, "{shown}");
        }
    }

    #[test]
    fn a_label_is_read_by_its_own_mark_only() {
        let cell = LabelCell::new();
        assert_eq!(cell.read(7), None);
        cell.write(&label("first"), 7);
        cell.write(&label("second"), 8);
        assert_eq!((cell.read(7), cell.read(8)), (None, Some("second".to_owned())));
    }
}
