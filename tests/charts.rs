//! The charts of the documentation are what the engine does today, and show what the text beside them says.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../examples/charts.rs"]
#[allow(unreachable_pub, reason = "an example is a crate of its own")]
mod charts;

use charts::{Demand, POLICIES, charts as drawn, demands, directory, embedded, most_in_a_second, passed_ms};
use std::fs;

/// The most that each algorithm lets through in any second.
fn most_of_each(demand: &Demand) -> [usize; 4] {
    POLICIES.map(|(_, policy)| most_in_a_second(&passed_ms(policy, &demand.at_ms).unwrap()))
}

#[test]
fn charts_are_up_to_date() {
    let charts = drawn().unwrap();
    let again = "`cargo run --example charts` writes them";
    for (name, svg) in &charts {
        let path = directory().join(format!("{name}.svg"));
        assert_eq!(fs::read_to_string(&path).unwrap(), *svg, "{}: {again}", path.display());
    }
    assert_eq!(fs::read_to_string(directory().join("embedded.md")).unwrap(), embedded(&charts), "{again}");
    // One page beside the drawings, and nothing that is not drawn any more.
    assert_eq!(fs::read_dir(directory()).unwrap().count(), charts.len() + 1);
}

#[test]
fn charts_show_what_the_page_says() {
    let [steady, edge, flood] = demands().each_ref().map(most_of_each);
    for [token, fixed, sliding, log] in [steady, edge, flood] {
        assert!(log <= 10, "a log is exact: {log}");
        assert!(token <= 20 && fixed <= 20 && sliding < 20, "{token}, {fixed}, {sliding}");
    }
    assert_eq!(edge[1], 20, "a fixed window lets two limits through around an edge");
    assert!(edge[2] <= 12, "a sliding window has no such edge: {}", edge[2]);
    assert!(flood[0] > 15, "a rested bucket adds its burst to the rate: {}", flood[0]);
}
