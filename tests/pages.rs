//! When a table's memory comes: at build, or as keys arrive. A process of its own, because it is the process that is
//! measured.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use tollgate::Limiter;

/// A table of some 48 MiB.
const KEYS: usize = 2_000_000;
/// What the system's count may be off by, and other parts of the process may take meanwhile.
const UNSURE_BYTES: usize = 4 << 20;

/// How much of the process is in memory.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn memory_comes_when_it_was_asked_for() {
    let before = resident_bytes();
    let limiter = Limiter::builder().policy("100/min").max_keys(KEYS).prefault(false).build().unwrap();
    let bytes = limiter.stats().bytes;
    assert!(bytes > 40 << 20, "{bytes}");
    let built = resident_bytes().saturating_sub(before);
    assert!(built < UNSURE_BYTES, "{built} of {bytes} are there before anybody came");
    drop(limiter);

    let before = resident_bytes();
    let limiter = Limiter::builder().policy("100/min").max_keys(KEYS).build().unwrap();
    let built = resident_bytes();
    assert!(built.saturating_sub(before) > bytes - UNSURE_BYTES, "{built} of {bytes}");
    assert!((0..100_000).all(|key| limiter.try_acquire(&key).is_allowed()));
    let arrived = resident_bytes().saturating_sub(built);
    assert!(arrived < UNSURE_BYTES, "{arrived} came with requests");
}
