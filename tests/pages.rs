//! When a table's memory comes: at build, or as keys arrive. A process of its own, because it is the process that is
//! measured.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use tollgate::Limiter;

const PAGE_BYTES: usize = 4096;
/// A table of some 48 MiB.
const KEYS: usize = 2_000_000;

/// How much of the process is in memory.
fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE_BYTES
}

#[test]
fn memory_comes_when_it_was_asked_for() {
    let before = resident_bytes();
    let limiter = Limiter::builder().policy("100/min").max_keys(KEYS).prefault(false).build().unwrap();
    let bytes = limiter.stats().bytes;
    assert!(bytes > 40 << 20, "{bytes}");
    assert!(resident_bytes() - before < bytes / 10, "all of it is there before anybody came");
    assert!((0..1_000).all(|key| limiter.try_acquire(&key).is_allowed()));
    let arrived = resident_bytes() - before;
    assert!((1_000 * PAGE_BYTES / 2..bytes).contains(&arrived), "{arrived} for a thousand keys");
    drop(limiter);

    let before = resident_bytes();
    let limiter = Limiter::builder().policy("100/min").max_keys(KEYS).build().unwrap();
    let built = resident_bytes();
    assert!(built - before > bytes / 100 * 98, "{} of {bytes}", built - before);
    assert!((0..100_000).all(|key| limiter.try_acquire(&key).is_allowed()));
    assert!(resident_bytes() - built < bytes / 100, "no request was the first on a page");
}
