//! Replays against the oracle: totals by an independent count, refusals by definition, in every format.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{
    Bound, Oracle, Request, access_log, generated, json, path, requests, text, tollgate, tollgate_with_input,
};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

/// Policies whose tokens take a whole number of nanoseconds, and the same in the oracle's words.
fn policies() -> Vec<(&'static str, Vec<Bound>)> {
    let bucket = |count, period_s, burst| Bound::Bucket { count, period_s, burst };
    vec![
        ("10/min burst 5", vec![bucket(10, 60, 5)]),
        ("1/s burst 20; 100/h", vec![bucket(1, 1, 20), bucket(100, 3_600, 100)]),
        ("fixed 30/h", vec![Bound::Fixed { count: 30, period_s: 3_600 }]),
        ("sliding 20/15min", vec![Bound::Sliding { count: 20, period_s: 900 }]),
        ("log 15/10min", vec![Bound::Log { count: 15, period_s: 600 }]),
        (
            "2/s; sliding 40/min; fixed 500/d",
            vec![
                bucket(2, 1, 2),
                Bound::Sliding { count: 40, period_s: 60 },
                Bound::Fixed { count: 500, period_s: 86_400 },
            ],
        ),
    ]
}

fn agrees_with_the_oracle(log: &Path) {
    let requests = requests(&fs::read_to_string(log).unwrap());
    let mut refusals = 0;
    for (policy, bounds) in policies() {
        let report = json(&["replay", path(log), "--policy", policy, "--key", "ip/128"]);
        let oracle = Oracle::of(&requests, &bounds);
        let outcome = &report["policies"][0];
        assert_eq!(report["read"]["lines"], requests.len(), "{policy}");
        assert_eq!((&report["read"]["bad"], &report["read"]["too_late"]), (&0.into(), &0.into()), "{policy}");
        assert_eq!(outcome["requests"], requests.len(), "{policy}");
        assert_eq!(outcome["admitted"], oracle.admitted(), "{policy}");
        assert_eq!(outcome["refused"], oracle.refused(), "{policy}");
        let by_rule: u64 =
            array(&outcome["rules"]).iter().map(|rule| rule["refused"].as_u64().unwrap()).sum();
        assert_eq!(by_rule, oracle.refused(), "{policy}");

        let scope = &outcome["scopes"][0];
        assert_eq!(scope["clients"]["seen"], oracle.counts.len(), "{policy}");
        let touched = oracle.counts.values().filter(|counts| counts.1 > 0).count();
        assert_eq!(scope["clients"]["touched"], touched, "{policy}");
        for client in array(&scope["top"]) {
            let (admitted, refused) = oracle.counts[client["key"].as_str().unwrap()];
            assert_eq!(
                (&client["admitted"], &client["refused"]),
                (&admitted.into(), &refused.into()),
                "{policy}"
            );
            let over_time: u64 =
                array(&client["refused_over_time"]).iter().map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(over_time, refused, "{policy}");
        }
        let over_time: u64 =
            array(&outcome["timeline"]["admitted"]).iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(over_time, oracle.admitted(), "{policy}");
        refusals += oracle.refused();
    }
    assert!(refusals > 1_000, "the policies refuse too little to show anything: {refusals}");
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn generated_traffic_is_decided_as_the_oracle_would() {
    let directory = tempfile::tempdir().unwrap();
    agrees_with_the_oracle(&generated(directory.path(), "traffic.log", 12_000));
}

#[test]
fn a_real_log_is_decided_as_the_oracle_would() {
    if let Some(log) = access_log() {
        agrees_with_the_oracle(&log);
    }
}

/// A request passes if all rules of the file that it falls under let it, and else spends from none.
#[test]
fn rules_of_a_file_hold_together_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 12_000);
    let rules = directory.path().join("rules.toml");
    fs::write(
        &rules,
        r#"
        exclude = ["/"]
        [[rule]]
        name = "all"
        limit = "log 20/min"
        key = "ip/128"
        [[rule]]
        name = "import"
        match = { path = "/api/import", method = "POST" }
        limit = "fixed 40/h"
        key = "global"
        "#,
    )
    .unwrap();
    let report = json(&["replay", path(&log), "--rules", path(&rules)]);

    let (mut all, mut import) = (Oracle::default(), Oracle::default());
    let (all_bounds, import_bounds) =
        ([Bound::Log { count: 20, period_s: 60 }], [Bound::Fixed { count: 40, period_s: 3_600 }]);
    let (mut admitted, mut refused) = (0_u64, 0_u64);
    for Request { at_s, ip, method, path } in requests(&fs::read_to_string(&log).unwrap()) {
        let is_import = path == "/api/import" && method == "POST";
        let passes = path == "/"
            || all.fits(&ip, at_s, &all_bounds) && (!is_import || import.fits("all", at_s, &import_bounds));
        if passes && path != "/" {
            all.count(&ip, at_s, true);
            if is_import {
                import.count("all", at_s, true);
            }
        }
        *(if passes { &mut admitted } else { &mut refused }) += 1;
    }
    let outcome = &report["policies"][0];
    assert_eq!((&outcome["admitted"], &outcome["refused"]), (&admitted.into(), &refused.into()));
    assert!(
        array(&outcome["rules"]).iter().all(|rule| rule["refused"].as_u64().unwrap() > 0),
        "{}",
        outcome["rules"]
    );
}

/// What matters of a report, without what depends on names and speed.
fn gist(mut report: Value) -> Value {
    let outcome = report["policies"][0].take();
    serde_json::json!([
        outcome["admitted"],
        outcome["refused"],
        outcome["timeline"],
        outcome["scopes"][0]["top"]
    ])
}

const POLICY: &str = "2/s burst 10; sliding 60/min";

#[test]
fn every_format_packed_or_piped_says_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let replayed = |name: &str| {
        let file = generated(directory.path(), name, 8_000);
        gist(json(&["replay", path(&file), "--policy", POLICY, "--reorder", "0"]))
    };
    // Whole seconds, and milliseconds.
    let combined = replayed("a.log");
    assert_eq!(replayed("b.log.gz"), combined);
    let lines = replayed("c.jsonl");
    assert_eq!(replayed("d.csv"), lines);
    assert_eq!(replayed("e.json.gz"), lines);

    let arguments = ["replay", "-", "--policy", POLICY, "--reorder", "0", "--json"];
    for (name, same) in [("a.log", &combined), ("b.log.gz", &combined), ("d.csv", &lines)] {
        let output = tollgate_with_input(&arguments, File::open(directory.path().join(name)).unwrap().into());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(&gist(serde_json::from_slice(&output.stdout).unwrap()), same, "{name}");
    }
    let clf =
        text(&["generate", "--requests", "8000", "--clients", "300", "--duration", "600", "--format", "clf"]);
    let file = directory.path().join("f.log");
    fs::write(&file, clf).unwrap();
    assert_eq!(gist(json(&["replay", path(&file), "--policy", POLICY, "--reorder", "0"])), combined);
}

#[test]
fn logs_are_merged_and_put_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "whole.jsonl", 8_000);
    let whole = gist(json(&["replay", path(&log), "--policy", POLICY]));

    // Two servers, each with half of the lines; and the lines of each ten turned around.
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let parts = [0, 1].map(|part| {
        let file = directory.path().join(format!("part{part}.jsonl"));
        let mine: Vec<_> = lines.iter().skip(part).step_by(2).copied().collect();
        let turned: Vec<_> = mine.chunks(10).flat_map(|chunk| chunk.iter().rev().copied()).collect();
        fs::write(&file, turned.join("\n")).unwrap();
        file
    });
    let report = json(&["replay", path(&parts[1]), path(&parts[0]), "--policy", POLICY]);
    assert!(report["read"]["out_of_order"].as_u64().unwrap() > 3_000);
    assert_eq!(report["read"]["too_late"], 0);
    let merged = gist(report);
    // Requests of the same millisecond may have changed places.
    for field in [0, 1] {
        let (merged, whole) = (merged[field].as_i64().unwrap(), whole[field].as_i64().unwrap());
        assert!((merged - whole).abs() <= 8, "{merged} {whole}");
    }

    // Without a window, a late line is decided at the time of the one before it; and it is said that this is wrong.
    let report = disordered(&["replay", path(&parts[0]), "--policy", POLICY, "--reorder", "0"]);
    assert_eq!(report["read"]["too_late"], report["read"]["out_of_order"]);
    assert!(report["read"]["latest_by_ns"].as_u64().unwrap() > 0);
}

/// The JSON of a run whose input is not in order, which its status, its words and the JSON say.
fn disordered(arguments: &[&str]) -> Value {
    let output = tollgate(&[arguments, &["--json"]].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("not in order") && message.contains("--reorder"), "{message}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["warnings"][0].as_str().unwrap().contains("not in order"), "{}", report["warnings"]);
    report
}

#[test]
fn a_log_with_the_newest_line_first_is_read_whole_and_complained_of() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 4_000);
    let right = gist(json(&["replay", path(&log), "--policy", POLICY]));
    let lines = fs::read_to_string(&log).unwrap();
    let turned: Vec<_> = lines.lines().rev().collect();
    fs::write(&log, turned.join("\n")).unwrap();
    let report = disordered(&["replay", path(&log), "--policy", POLICY]);
    assert_eq!((&report["read"]["bad"], &report["read"]["requests"]), (&0.into(), &4_000.into()));
    let report = disordered(&["suggest", path(&log), "--key", "ip"]);
    assert_eq!(report["read"]["requests"], 4_000);
    let shown = tollgate(&["replay", path(&log), "--policy", POLICY]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("\nwarning      the input is not in order"));
    // Enough room to sort it in.
    let report = json(&["replay", path(&log), "--policy", POLICY, "--reorder", "86400"]);
    assert_eq!(report["warnings"], serde_json::json!([]));
    assert_eq!(gist(report)[1], right[1]);
}

#[test]
fn lines_from_the_future_do_not_hold_their_log_back() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "whole.log", 6_000);
    let text = fs::read_to_string(&log).unwrap();
    let parts = [0, 1].map(|part| {
        let file = directory.path().join(format!("part{part}.log"));
        let mine: Vec<_> = text.lines().skip(part).step_by(2).collect();
        fs::write(&file, mine.join("\n")).unwrap();
        file
    });
    let merged = |a: &Path, b: &Path| json(&["replay", path(a), path(b), "--policy", POLICY]);
    let right = merged(&parts[0], &parts[1]);
    let mut lines: Vec<_> = fs::read_to_string(&parts[0]).unwrap().lines().map(str::to_owned).collect();
    for at in 100..110 {
        lines.insert(at, lines[at].replace("2026", "2027"));
    }
    fs::write(&parts[0], lines.join("\n")).unwrap();
    let report = merged(&parts[0], &parts[1]);
    assert_eq!((&report["read"]["bad"], &report["read"]["too_late"]), (&10.into(), &0.into()));
    assert_eq!(gist(report), gist(right));
}

#[test]
fn a_packed_log_that_ends_early_is_read_as_far_as_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let (log, whole) =
        (generated(directory.path(), "a.log.gz", 4_000), generated(directory.path(), "b.log", 4_000));
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes[..bytes.len() / 2]).unwrap();
    let report = json(&["replay", path(&log), path(&whole), "--policy", POLICY]);
    let read = &report["read"];
    let bad = &read["bad_examples"][0];
    assert_eq!((&read["bad"], &bad["cause"]), (&1.into(), &"the packed data ends early".into()));
    let requests = read["requests"].as_u64().unwrap();
    assert!((5_000..8_000).contains(&requests) && read["lines"] == requests + 1, "{requests}");
    assert_eq!(bad["line"], requests - 4_000 + 1);
}

/// How a log was read, what its times are worth and what was not limited is said.
#[test]
fn what_was_read_and_what_had_no_key_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let (log, exact) =
        (generated(directory.path(), "a.log", 2_000), generated(directory.path(), "b.jsonl", 2_000));
    let page = directory.path().join("page.html");
    let both = ["-p", "1/s", "-p", "2/s", "--key", "user", "--html", path(&page)];
    let shown = text(&[&["replay", path(&log)], &both[..]].concat());
    assert!(shown.contains("read as      common or combined log format"), "{shown}");
    assert!(shown.contains("Times are whole seconds") && shown.contains("no such key"), "{shown}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("Times are whole seconds") && html.contains("of the admitted have no such key"));

    let report = json(&["replay", path(&exact), "-p", "1/s", "--key", "user"]);
    assert_eq!(report["read"]["whole_seconds"], false);
    let fields = &report["read"]["formats"][0]["fields"];
    assert_eq!((&fields["time"], &fields["user"]), (&"time".into(), &"user".into()));
    let unkeyed = report["policies"][0]["unkeyed"].as_u64().unwrap();
    let with_user = fs::read_to_string(&exact).unwrap().matches("\"user\":\"\"").count() as u64;
    assert_eq!(unkeyed, with_user);
}

#[test]
fn a_table_that_was_full_is_said_wherever_its_numbers_are() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 4_000);
    let page = directory.path().join("page.html");
    let small = ["-p", "2/min", "--max-keys", "20", "--html", path(&page)];
    for more in [&[][..], &["-p", "3/min"]] {
        let shown = text(&[&["replay", path(&log)], &small[..], more].concat());
        assert!(shown.contains("refusals of `2/min` are understated"), "{shown}");
        assert!(shown.contains("--max-keys"), "{shown}");
        let html = fs::read_to_string(&page).unwrap();
        assert!(html.contains("Warning:") && html.contains("understated"));
    }
    let shown = text(&["suggest", path(&log), "--key", "ip", "--share", "90", "--max-keys", "20"]);
    assert!(shown.contains("warning: by ip: refusals of") && shown.contains("--max-keys"), "{shown}");
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, "[[rule]]\nname = 'all'\nlimit = '2/min'\nmax_keys = 20\n").unwrap();
    let report = json(&["replay", path(&log), "--rules", path(&rules)]);
    assert!(report["warnings"][0].as_str().unwrap().contains("`max_keys` in rule `all`"), "{report}");
}

#[test]
fn bad_lines_are_counted_and_shown() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 1_000);
    let mut lines: Vec<_> = fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect();
    lines[99] = "\u{1b}[31mgarbage".to_owned();
    lines[199] = lines[199].replace("2026", "20x6");
    lines[299] = String::new();
    // One line from the future must not drag all that follow it along.
    lines[399] = lines[399].replace("2026", "2049");
    fs::write(&log, lines.join("\r\n")).unwrap();

    let report = json(&["replay", path(&log), "--policy", "1/s burst 20"]);
    let read = &report["read"];
    assert_eq!((&read["lines"], &read["bad"], &read["blank"]), (&1_000.into(), &3.into(), &1.into()));
    assert_eq!((&read["requests"], &read["too_late"]), (&996.into(), &0.into()));
    let numbers: Vec<_> =
        array(&read["bad_examples"]).iter().map(|bad| bad["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [100, 200, 400]);
    let shown = text(&["replay", path(&log), "--policy", "1/s burst 20"]);
    assert!(shown.contains("traffic.log:200: the time is not like"), "{shown}");
    assert!(!shown.contains('\u{1b}'), "a log can give the terminal no orders");
}

#[test]
fn policies_are_compared_side_by_side() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 8_000);
    let report =
        json(&["replay", path(&log), "-p", "1/s burst 5", "-p", "2/s burst 10", "-p", "shadow 1/s burst 5"]);
    let alone = json(&["replay", path(&log), "-p", "2/s burst 10"]);
    let outcomes = array(&report["policies"]);
    assert_eq!(outcomes[1]["refused"], alone["policies"][0]["refused"]);
    assert!(outcomes[0]["refused"].as_u64() > outcomes[1]["refused"].as_u64());
    assert_eq!((&outcomes[2]["refused"], &outcomes[2]["admitted"]), (&0.into(), &8_000.into()));
    assert!(outcomes[2]["rules"][0]["refused"].as_u64().unwrap() > 0, "a rule that only watches is counted");
}

/// What is suggested for a share of the clients refuses no more than the rest of them.
#[test]
fn suggestions_leave_their_share_alone() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 12_000);
    let arguments = ["suggest", path(&log), "--key", "ip", "--key", "user", "--share", "95", "--share", "99"];
    let report = json(&arguments);
    for of_key in array(&report["keys"]) {
        let clients = of_key["clients"].as_u64().unwrap();
        for (suggestion, rest) in array(&of_key["suggestions"]).iter().zip([5, 1]) {
            let touched = suggestion["clients_touched"].as_u64().unwrap();
            assert!(touched * 100 <= clients * rest, "{suggestion}");
            // The engine says the same when it is asked directly.
            let (policy, key) = (suggestion["policy"].as_str().unwrap(), of_key["key"].as_str().unwrap());
            let replayed = json(&["replay", path(&log), "--policy", policy, "--key", key]);
            assert_eq!(replayed["policies"][0]["refused"], suggestion["refused"]);
        }
    }
    let refused = &report["keys"][0]["suggestions"][0];
    assert!(refused["refused"].as_u64().unwrap() > 0, "nobody is left to refuse: {refused}");

    // The same from the standard input, which can be read only once.
    let mut piped = arguments;
    piped[1] = "-";
    let mut piped = piped.to_vec();
    piped.push("--json");
    let output = tollgate_with_input(&piped, File::open(&log).unwrap().into());
    let from_input: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(from_input["keys"], report["keys"]);

    // Nor can a pipe that has a name.
    piped[1] = "/dev/stdin";
    let mut cat = Command::new("cat").arg(&log).stdout(Stdio::piped()).spawn().unwrap();
    let output = tollgate_with_input(&piped, cat.stdout.take().unwrap().into());
    assert!(cat.wait().unwrap().success());
    let from_pipe: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&from_pipe["keys"], &from_pipe["inputs"][0]), (&report["keys"], &"/dev/stdin".into()));
}
