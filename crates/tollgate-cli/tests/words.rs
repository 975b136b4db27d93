//! What the tool says when something is wrong, how it ends, and what it says of itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{generated, path, text, tollgate};
use std::fs;
use std::process::{Command, Stdio};

#[test]
fn errors_say_what_to_do_and_end_with_their_status() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "good.log", 500);
    let file = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::write(&file, text).unwrap();
        path(&file).to_owned()
    };
    let (good, empty) = (path(&log), file("empty", ""));
    let (prose, heading) = (file("prose", "Once upon a time\n"), file("heading.csv", "a,b\n1,2\n"));
    let broken = file("broken.toml", "[[rule]]\nname = 'x'\nlimit = '5 per fortnight'\n");
    let bad_lines = file("bad.log", "no request\nnor here\n");
    let no_rule = file("none.toml", "[[rule]]\nname = 'x'\nmatch = { path = '/nowhere' }\nlimit = '5/s'\n");
    let lines = file("lines.jsonl", "{\"time\":1431857103,\"ip\":\"192.0.2.1\"}\n");
    let table = file("table.csv", "time,ip\n1431857103,192.0.2.1\n");
    let missing = path(directory.path()).to_owned() + "/missing.log";
    for (arguments, status, words) in [
        (vec!["replay", &missing, "-p", "1/s"], 3, &["no such file", "missing.log", "`-`"][..]),
        (vec!["replay", path(directory.path()), "-p", "1/s"], 3, &["directory"]),
        (vec!["replay", &empty, "-p", "1/s"], 3, &["there is no line in"]),
        (vec!["replay", &prose, "-p", "1/s"], 2, &["Once upon a time", "--format"]),
        (vec!["replay", &heading, "-p", "1/s", "--format", "csv"], 2, &["--field time="]),
        (vec!["replay", &bad_lines, "-p", "1/s", "--format", "clf"], 3, &["2 bad", "Line 1", "--format"]),
        (vec!["replay", good, "-p", "10/s; 5/fortnight"], 2, &["\n          ^\n", "fortnight"]),
        (vec!["replay", good, "-p", "2 at once"], 2, &["at once"]),
        (vec!["replay", good, "-p", "1/s", "-k", "cookie"], 2, &["unknown part of a key `cookie`"]),
        (vec!["replay", good, "-p", "1/s", "--field", "ip"], 2, &["like `ip=client_address`"]),
        (vec!["replay", good, "-p", "1/s", "--field", "colour=c"], 2, &["unknown field `colour`"]),
        (vec!["replay", good, "--rules", &broken], 2, &["broken.toml:3:", "fortnight"]),
        (vec!["replay", good, "--rules", "no-such.toml"], 3, &["no such file", "no-such.toml"]),
        (vec!["replay", good, "--rules", &broken, "--max-keys", "9"], 2, &["--max-keys"]),
        (vec!["replay", good, "--rules", &no_rule], 2, &["falls under a rule"]),
        (vec!["replay", good, "-p", "1/s", "--max-keys", "0"], 2, &["bad --max-keys 0: max_keys of 0"]),
        (
            vec!["replay", good, "-p", "1/s", "-k", "key"],
            2,
            &["none of 500 requests has the key `key`", "--field"],
        ),
        (vec!["suggest", good, "-k", "key"], 2, &["no request has any of these keys: key"]),
        (vec!["replay", good, "-p", "1/s", "--field", "ip=x"], 2, &["every field has its place"]),
        (vec!["replay", &lines, "-p", "1/s", "--field", "user=a.b"], 2, &["called `a.b`", "--field user="]),
        (vec!["replay", &table, "-p", "1/s", "--field", "user=name"], 2, &["called `name`"]),
        (vec!["replay", good, "-p", "1/s", "--max-refused", "nan"], 2, &["--max-refused"]),
        (vec!["replay", good, "-p", "1/s", "--html", good], 2, &["would overwrite a log"]),
        (vec!["replay", good], 2, &["--policy"]),
        (vec!["replay", "-", "-", "-p", "1/s"], 2, &["only once"]),
        (vec!["replay", good, "-p", "1/s", "--html", "/no/such/place.html"], 3, &["cannot write"]),
        (vec!["suggest", good, "--share", "101"], 2, &["at most 100"]),
        (vec!["--no-such-flag"], 2, &["unexpected argument"]),
    ] {
        let output = tollgate(&arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?}: {message}");
        }
    }
}

#[test]
fn too_many_refusals_end_with_one() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 5_000);
    let status = |percent: &str| {
        tollgate(&["replay", path(&log), "-p", "1/min", "--max-refused", percent]).status.code()
    };
    assert_eq!((status("0.5"), status("100")), (Some(1), Some(0)));
}

/// A page that cannot be written is known before the traffic is read; one that can is not written on an error.
#[test]
fn the_place_of_the_page_is_tried_first() {
    let directory = tempfile::tempdir().unwrap();
    let output = tollgate(&["replay", "-", "-p", "1/s", "--html", "/no/such/place.html"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write `/no/such/place.html`"));
    let page = directory.path().join("page.html");
    let output = tollgate(&["replay", "-", "-p", "1/s", "--html", path(&page)]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no line"));
    assert!(!page.exists());
}

#[test]
fn a_verdict_does_not_depend_on_who_reads_the_report() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 5_000);
    for (percent, status) in [("0.5", 1), ("100", 0)] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["replay", path(&log), "-p", "1/min", "--max-refused", percent, "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert_eq!(message.contains("refuses"), status == 1, "{message}");
    }
}

/// What is generated today is what is generated tomorrow, everywhere.
#[test]
fn generated_traffic_is_the_same_for_ever() {
    let hashes = ["combined", "clf", "json", "csv"].map(|format| {
        let traffic = text(&["generate", "--requests", "20000", "--seed", "7", "--format", format]);
        // FNV-1a.
        traffic.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    });
    let expected =
        [0x28d0_550e_0a53_1bd7, 0x2c48_978d_fc96_11b7, 0x2336_a0a7_3b30_770b, 0x47c8_b6ac_9d8b_642c];
    assert_eq!(hashes, expected, "{hashes:#x?}");
}

#[test]
fn whoever_has_seen_enough_may_go() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["generate", "--requests", "200000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[test]
fn help_has_examples_and_completions_know_the_commands() {
    for arguments in [&["--help"][..], &["replay", "--help"], &["suggest", "--help"], &["generate", "--help"]]
    {
        let help = text(arguments);
        assert!(help.contains("Examples:") && help.contains("tollgate "), "{help}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        assert!(script.contains("replay") && script.contains("max-refused"), "{shell}");
    }
}

/// The demonstration on a smaller scale: it checks itself, and says where the page is.
#[test]
fn the_demonstration_checks_itself() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("page.html");
    let shown = text(&["--requests", "60000", "--seed", "7", "--html", path(&page)]);
    for words in
        ["seed=7", "✓ no bound was exceeded", "✓ each of", "password guesser", "ns a decision", path(&page)]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
}
