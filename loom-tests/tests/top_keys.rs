//! Models of the list of top keys: a counter is of one key and loses nothing, and a label is whole or not there.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_thoroughly, explore_within, law, together};
use std::sync::Arc;
use tollgate::model::Fault;
use tollgate::{Offender, TopKeys};

const STEADY: &str = "ssssssssssssssss";
const FIRST: &str = "ffffffffffffffff";
const SECOND: &str = "gggggggggggggggg";
const OLD: &str = "oooooooooooooooo";

fn keys() -> Arc<TopKeys> {
    // One bucket of two, which everybody has to share.
    Arc::new(TopKeys::with_seeds(1, [1, 2, 3, 4]))
}

fn recording(keys: &Arc<TopKeys>, key: &'static str, cost: u64) -> Job<Vec<Offender>> {
    let keys = Arc::clone(keys);
    Box::new(move || {
        keys.record(key, cost);
        Vec::new()
    })
}

fn reading(keys: &Arc<TopKeys>) -> Job<Vec<Offender>> {
    let keys = Arc::clone(keys);
    Box::new(move || keys.top(2))
}

/// What was recorded for a key at most.
fn truth(label: &str) -> Option<u64> {
    [(STEADY, 100), (OLD, 1), (FIRST, 2), (SECOND, 8)]
        .into_iter()
        .find(|(key, _)| *key == label)
        .map(|(_, all)| all)
}

fn whole_and_within_bounds(offenders: &[Offender]) {
    for Offender { label, count, error, .. } in offenders {
        let all = truth(label);
        law(all.is_some(), || format!("nobody is called {label}"));
        law(all.is_some_and(|all| *count <= all + error), || {
            format!("{label}: {count} with an error of {error}")
        });
    }
}

/// Newcomers take over the same counter and its label, one after the other, while somebody reads.
fn taken_over(newcomers: &'static [(&'static str, u64)], reads: bool) {
    explore_within(&format!("{} newcomers, read meanwhile: {reads}", newcomers.len()), 3, move || {
        let keys = keys();
        keys.record(STEADY, 100);
        keys.record(OLD, 1);
        let mut jobs: Vec<_> = newcomers.iter().map(|&(key, cost)| recording(&keys, key, cost)).collect();
        if reads {
            jobs.push(reading(&keys));
        }
        for offenders in together(jobs) {
            whole_and_within_bounds(&offenders);
        }
        let recorded = 101 + newcomers.iter().map(|(_, cost)| cost).sum::<u64>();
        law(keys.total() == recorded, || format!("{} counted of {recorded}", keys.total()));
        let offenders = keys.top(2);
        whole_and_within_bounds(&offenders);
        law(offenders.iter().any(|one| one.label == STEADY && one.count == 100), || format!("{offenders:?}"));
    });
}

const ONE: &[(&str, u64)] = &[(FIRST, 2)];
const TWO: &[(&str, u64)] = &[(FIRST, 2), (SECOND, 8)];

#[test]
fn a_label_is_read_whole_or_not_at_all() {
    taken_over(ONE, true);
    caught(Fault::NoSecondLook, || taken_over(ONE, true));
}

#[test]
fn two_writers_do_not_mix_their_labels() {
    taken_over(TWO, false);
    caught(Fault::WritesUnclaimed, || taken_over(TWO, false));
}

#[test]
fn nothing_recorded_is_lost() {
    taken_over(TWO, false);
    caught(Fault::LoadThenStore, || taken_over(TWO, false));
}

/// Somebody halves the counts while somebody else records: the record is halved or not, and nothing else.
fn aged() {
    explore_within("aging beside a record", 3, || {
        let keys = keys();
        keys.record(STEADY, 100);
        let ageing: Job<Vec<Offender>> = {
            let keys = Arc::clone(&keys);
            Box::new(move || {
                keys.age();
                Vec::new()
            })
        };
        let _ = together(vec![ageing, recording(&keys, STEADY, 10)]);
        law([55, 60].contains(&keys.total()), || format!("{} of 100 and 10, halved", keys.total()));
    });
}

#[test]
fn aging_loses_no_record() {
    aged();
    caught(Fault::LoadThenStore, aged);
}

/// A key that two threads bring at once beside a newcomer, to counters that are all alike.
fn brought_twice() {
    explore_thoroughly("a key brought twice beside a newcomer", [3, 2], || {
        let keys = keys();
        keys.record(OLD, 1);
        keys.record(STEADY, 1);
        let _ = together(vec![
            recording(&keys, FIRST, 1),
            recording(&keys, FIRST, 1),
            recording(&keys, SECOND, 1),
        ]);
        let offenders = keys.top(2);
        let first = offenders.iter().find(|one| one.label == FIRST).map(|one| (one.count, one.error));
        // Two, and the one it took over. Two counters would have taken over both.
        law(first == Some((3, 2)) && keys.total() == 5, || format!("{offenders:?}"));
    });
}

#[test]
fn a_key_has_one_counter() {
    brought_twice();
    caught(Fault::LoadThenStore, brought_twice);
}

/// A newcomer comes in the midst of an aging.
fn aged_beside_a_newcomer() {
    explore_thoroughly("aging beside a newcomer", [3, 2], || {
        let keys = keys();
        keys.record(STEADY, 10);
        keys.record(OLD, 6);
        let ageing: Job<Vec<Offender>> = {
            let keys = Arc::clone(&keys);
            Box::new(move || {
                keys.age();
                Vec::new()
            })
        };
        let _ = together(vec![ageing, recording(&keys, FIRST, 6)]);
        let offenders = keys.top(2);
        let first = offenders.iter().find(|one| one.label == FIRST);
        // Of counters that are read one after the other, some may be halved already.
        let is_bounded = |one: &Offender| one.count >= 3 && one.count <= 6 + 2 * one.error + 1;
        law(first.is_some_and(is_bounded), || format!("{offenders:?}"));
    });
}

#[test]
fn a_newcomer_beside_an_aging_has_at_most_twice_the_error() {
    aged_beside_a_newcomer();
    caught(Fault::LoadThenStore, aged_beside_a_newcomer);
}

/// The least of a bucket grows while it is listed, and a newcomer takes over the next.
fn listed_meanwhile() {
    explore_thoroughly("a list beside records", [3, 2], || {
        let keys = keys();
        keys.record(OLD, 1);
        keys.record(STEADY, 2);
        let growing: Job<Vec<Offender>> = {
            let keys = Arc::clone(&keys);
            Box::new(move || {
                keys.record(OLD, 7);
                keys.record(FIRST, 2);
                Vec::new()
            })
        };
        for offenders in together(vec![growing, reading(&keys)]) {
            for one in offenders.iter().filter(|one| one.label == FIRST) {
                law(one.count <= 2 + one.error, || format!("{offenders:?}"));
            }
        }
    });
}

#[test]
fn an_error_is_right_while_others_record() {
    listed_meanwhile();
    caught(Fault::BoundsTooEarly, listed_meanwhile);
}
