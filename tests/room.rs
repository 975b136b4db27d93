//! Whether as many keys as were asked for find room: a promise of large numbers, and so counted rather than believed.
//!
//! `TOLLGATE_FILLS` and `TOLLGATE_KEYS` say how many tables are filled to the brim, and with how many keys each.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::env;
use tollgate::{Clock, Limiter, WhenFull};

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// How many keys of a full table found no room.
fn without_room(keys: u64, seed: u64) -> u64 {
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder()
        .policy("1/h")
        .max_keys(usize::try_from(keys).unwrap())
        .when_full(WhenFull::Deny)
        .seeds([seed, 2, 3, 4])
        .clock(clock);
    let limiter = limiter.build().unwrap();
    let refused = (0..keys).filter(|key| limiter.try_acquire(key).is_denied()).count() as u64;
    assert_eq!(limiter.stats().denied_for_room, refused);
    assert_eq!(limiter.stats().live_keys as u64, keys - refused);
    refused
}

#[test]
fn as_many_keys_as_were_asked_for_find_room() {
    let (fills, keys) = (number("TOLLGATE_FILLS", 4), number("TOLLGATE_KEYS", 100_000));
    let losses: Vec<u64> = (0..fills).map(|seed| without_room(keys, seed)).filter(|&lost| lost > 0).collect();
    let lost: u64 = losses.iter().sum();
    println!("{} of {fills} fills with {keys} keys lost {lost} keys their place", losses.len());
    assert!(lost <= 1 + fills * keys / 10_000_000, "more than one in ten million: {losses:?}");
}
