//! Everything that a rules file can say, against the oracle: tiers, rules that only watch, rules for the rest, costs, and
//! keys that requests lack.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Bound, Oracle, Request, generated, json, path, requests, text};
use serde_json::Value;
use std::fs;

const RULES: &str = r#"
[[rule]]
name  = "articles"
match = { path = "/articles/{id}" }
limit = "log 3/min"
key   = "ip/128"
tiers = { paid = "log 20/min" }

[[rule]]
name  = "import"
match = { path = "/api/import", method = "POST" }
limit = "fixed 300/h"
key   = "global"
cost  = 3

[[rule]]
name  = "sync"
match = { path = "/api/sync" }
limit = "log 50/min"
key   = "header:x-api-key"

[[rule]]
name   = "watch"
match  = { path = "/{any}/admin" }
limit  = "log 2/10min"
key    = "global"
shadow = true

[[rule]]
name      = "rest"
limit     = "log 15/min"
key       = "ip/128"
otherwise = true
"#;

/// A rule's bound, its cost and what it has let through.
struct Budget(Bound, usize, Oracle);

impl Budget {
    fn new(bound: Bound, cost: usize) -> Self {
        Self(bound, cost, Oracle::default())
    }

    /// Whether a request fits, and spends; or how it would be.
    fn take(&mut self, key: &str, at_s: i64, spends: bool) -> bool {
        let Self(bound, cost, oracle) = self;
        if *cost == 1 {
            let fits = oracle.fits(key, at_s, &[*bound]);
            if fits && spends {
                oracle.count(key, at_s, true);
            }
            return fits;
        }
        // A cost is so many at once, or none of them.
        let mut tried = oracle.clone();
        let fits = (0..*cost).all(|_| {
            let fits = tried.fits(key, at_s, &[*bound]);
            tried.count(key, at_s, fits);
            fits
        });
        if fits && spends {
            *oracle = tried;
        }
        fits
    }
}

#[test]
fn all_that_a_rules_file_says_is_decided_as_the_oracle_would() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 4_000);
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, RULES).unwrap();

    let mut budgets = [
        Budget::new(Bound::Log { count: 3, period_s: 60 }, 1),
        Budget::new(Bound::Fixed { count: 300, period_s: 3_600 }, 3),
        Budget::new(Bound::Log { count: 50, period_s: 60 }, 1),
        Budget::new(Bound::Log { count: 15, period_s: 60 }, 1),
    ];
    let mut watch = Budget::new(Bound::Log { count: 2, period_s: 600 }, 1);
    let (mut admitted, mut refused_by, mut would_refuse, mut keyless) = (0_u64, [0_u64; 4], 0_u64, 0_u64);
    for Request { at_s, ip, method, path } in requests(&fs::read_to_string(&log).unwrap()) {
        let bare = path.split('?').next().unwrap();
        let (rule, key) = match bare {
            _ if bare.starts_with("/articles/") => (0, ip.as_str()),
            "/api/import" if method == "POST" => (1, ""),
            "/api/sync" => (2, ""),
            _ => (3, ip.as_str()),
        };
        keyless += u64::from(rule == 2);
        let passes = budgets[rule].take(key, at_s, true);
        if bare.ends_with("/admin") {
            // What another rule refuses is not spent from a budget that only watches.
            would_refuse += u64::from(!watch.take("", at_s, passes));
        }
        if passes {
            admitted += 1;
        } else {
            refused_by[rule] += 1;
        }
    }

    let outcome = &json(&["replay", path(&log), "--rules", path(&rules)])["policies"][0];
    let numbers = |of: &Value, name: &str| of[name].as_u64().unwrap();
    let refused: Vec<_> =
        outcome["rules"].as_array().unwrap().iter().map(|rule| numbers(rule, "refused")).collect();
    let [articles, import, sync, rest] = refused_by;
    assert_eq!(refused, [articles, import, sync, would_refuse, rest]);
    assert!(refused.iter().all(|&refused| refused > 5), "{refused:?}");
    assert_eq!((numbers(outcome, "admitted"), numbers(outcome, "unkeyed")), (admitted, 0));

    let scopes = outcome["scopes"].as_array().unwrap();
    let scope = |name: &str| scopes.iter().find(|scope| scope["name"] == name).unwrap();
    assert_eq!((numbers(scope("sync"), "keyless"), numbers(scope("rest"), "keyless")), (keyless, 0));
    assert!(keyless > 100);
    // What `rest` refused is not entered as admitted under `watch`.
    let admin = &scope("watch")["top"][0];
    assert_eq!((&admin["refused"], numbers(admin, "refused_by_others") > 0), (&0.into(), true), "{admin}");
    for client in scopes.iter().flat_map(|scope| scope["top"].as_array().unwrap()) {
        let parts = ["admitted", "refused", "refused_by_others"].map(|part| numbers(client, part));
        assert_eq!(parts.iter().sum::<u64>(), numbers(client, "requests"), "{client}");
    }
    let demand = &outcome["rules"][1]["demand"];
    assert_eq!((&demand["cost"], &demand["period_limit"]), (&3.into(), &300.into()));
    // One client, with 3 tokens a request and some 160 requests: up to 512.
    assert_eq!(demand["period_clients"][9], 1, "{demand}");

    let shown = text(&["replay", path(&log), "--rules", path(&rules)]);
    assert!(shown.contains(&format!("{keyless} requests have no such key and share one budget")), "{shown}");
    assert!(shown.contains("by others") && shown.contains("(only watches)"), "{shown}");
}
