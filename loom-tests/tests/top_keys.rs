//! Models of the list of top keys: a counter is of one key and loses nothing, and a label is whole or not there.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_within, law, together};
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
