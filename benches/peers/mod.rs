//! The limiters that are compared: what is asked of each, and how each is built.

mod by_hand;
mod governor;
mod sketch;
mod text;
mod tollgate;
mod unkeyed;

use std::hash::Hash;
use std::time::Duration;

/// What happens to the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// 1 000 000 000 a second, as many at once: never reached.
    Admit,
    /// One an hour: every key has reached it after its first request.
    Refuse,
}

/// What a limiter is built for.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub traffic: Traffic,
    /// Keys it will see.
    pub keys: usize,
    /// After this time without a request a key may be forgotten, where that has to be said.
    pub idle: Duration,
}

impl Setup {
    pub fn new(traffic: Traffic, keys: usize) -> Self {
        Self { traffic, keys, idle: Duration::from_secs(3600) }
    }
}

/// A limiter that takes part.
pub trait Contender<K>: Send + Sync {
    /// Decides once for each key, and says how many were admitted.
    fn decide(&self, keys: &[K]) -> usize;

    /// Does what the limiter's documentation says keeps its memory in bounds; false if there is no such call.
    fn clean(&self) -> bool;
}

/// How a limiter takes part.
pub struct Peer<K> {
    pub name: &'static str,
    /// The package whose version goes with it; empty if it is written here.
    pub package: &'static str,
    /// What it does less than the others, or how it is used.
    pub note: &'static str,
    /// Another way to use the one before: decides at another speed, and is the same otherwise.
    pub is_variant: bool,
    /// Cleans up what was idle for the time it was told, rather than what has come to nothing.
    pub goes_by_idle_time: bool,
    pub build: fn(Setup) -> Box<dyn Contender<K>>,
}

impl<K> Peer<K> {
    fn new(name: &'static str, package: &'static str, build: fn(Setup) -> Box<dyn Contender<K>>) -> Self {
        Self { name, package, note: "", is_variant: false, goes_by_idle_time: false, build }
    }

    fn note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }

    fn variant(self) -> Self {
        Self { is_variant: true, ..self }
    }

    fn by_idle_time(self) -> Self {
        Self { goes_by_idle_time: true, ..self }
    }

    pub fn is_ours(&self) -> bool {
        self.package == "tollgate"
    }
}

/// A key of a comparison.
pub trait Key: Hash + Eq + Clone + Send + Sync + 'static {
    /// The key of a number.
    fn of(number: u64) -> Self;

    /// The key as a text, for limiters that take nothing else.
    fn with_text<T>(&self, take: impl FnOnce(&str) -> T) -> T;
}

impl Key for u64 {
    fn of(number: u64) -> Self {
        number
    }

    fn with_text<T>(&self, take: impl FnOnce(&str) -> T) -> T {
        let mut digits = [b'0'; 16];
        for (place, digit) in digits.iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(self >> (4 * place)) as usize & 15];
        }
        take(std::str::from_utf8(&digits).expect("digits"))
    }
}

impl Key for String {
    fn of(number: u64) -> Self {
        tollgate_bench::text(number)
    }

    fn with_text<T>(&self, take: impl FnOnce(&str) -> T) -> T {
        take(self)
    }
}

/// All limiters with keys; the first is what the others are measured by.
pub fn keyed<K: Key>() -> Vec<Peer<K>> {
    let mut peers = governor::keyed();
    peers.extend(tollgate::keyed());
    peers.extend(text::keyed());
    peers.extend(sketch::keyed());
    peers.extend(by_hand::keyed());
    peers
}

/// All limiters without keys; the first is what the others are measured by.
pub fn unkeyed() -> Vec<Peer<()>> {
    let mut peers = governor::unkeyed();
    peers.extend(tollgate::unkeyed());
    peers.extend(unkeyed::unkeyed());
    peers
}

/// The name of whoever does nothing.
pub const NOTHING: &str = "nothing at all";

/// Does nothing and admits all: what the machine does to the one that measures.
pub fn nothing<K: 'static>() -> Peer<K> {
    Peer::new(NOTHING, "", |_| contender((), |(), _| true, None))
}

/// A limiter that decides for one key at a time, and its clean-up call.
fn contender<K: 'static, L: Send + Sync + 'static>(
    limiter: L,
    admits: impl Fn(&L, &K) -> bool + Send + Sync + 'static,
    clean: Option<fn(&L)>,
) -> Box<dyn Contender<K>> {
    Box::new(OneByOne { limiter, admits, clean })
}

struct OneByOne<L, A> {
    limiter: L,
    admits: A,
    clean: Option<fn(&L)>,
}

impl<K, L: Send + Sync, A: Fn(&L, &K) -> bool + Send + Sync> Contender<K> for OneByOne<L, A> {
    fn decide(&self, keys: &[K]) -> usize {
        keys.iter().filter(|key| (self.admits)(&self.limiter, key)).count()
    }

    fn clean(&self) -> bool {
        self.clean.inspect(|clean| clean(&self.limiter)).is_some()
    }
}
