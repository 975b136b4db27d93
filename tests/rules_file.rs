//! The rules file: what it says, and what is wrong with it.

#![cfg(feature = "rules")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::net::IpAddr;
use tollgate::WhenFull;
use tollgate::rules::{KeySource, KeySpec, RequestPath, RouteMatch, RouteRule, RuleSet};

const GATEWAY: &str = r#"
exclude = ["/health", { path = "/assets/**", method = "GET" }]

[defaults]
key = "header:x-api-key | ip"
max_keys = 1000
when_full = "deny"

[[rule]]
name = "default"
limit = "100/min"
otherwise = true

[[rule]]
name = "users"
match = { path = ["/users/{id}", "/users"] }
limit = "10/s named quick; 500/h"
tiers = { premium = "100/s" }

[[rule]]
name = "login"
match = { path = "/login", method = ["POST"] }
key = ["ip/64", "route"]
limit = "log 5/15min"
cost = 2

[[rule]]
name = "watched"
limit = "1/h"
shadow = true
"#;

fn names(rules: &RuleSet, method: &str, path: &str) -> Vec<String> {
    rules.matches(method, path).map(|rule| rule.name().to_owned()).collect()
}

#[test]
fn all_rules_that_match_apply_and_exclusions_win() {
    let rules: RuleSet = GATEWAY.parse().unwrap();
    for (method, path, expected) in [
        ("GET", "/", &["default", "watched"] as &[_]),
        ("GET", "/users", &["users", "watched"]),
        ("POST", "/users/7", &["users", "watched"]),
        ("GET", "/users/7/posts", &["default", "watched"]),
        ("POST", "/login", &["login", "watched"]),
        ("GET", "/login", &["default", "watched"]),
        ("GET", "/health", &[]),
        ("POST", "/health", &[]),
        ("GET", "/assets/app.js", &[]),
        ("HEAD", "/assets/app.js", &[]),
        ("POST", "/assets/app.js", &["default", "watched"]),
    ] {
        assert_eq!(names(&rules, method, path), expected, "{method} {path}");
    }
}

#[test]
fn no_spelling_of_a_path_escapes_a_limit_or_reaches_an_exclusion() {
    let rules: RuleSet = GATEWAY.parse().unwrap();
    for path in ["//login", "/login/", "/%6Cogin"] {
        assert_eq!(names(&rules, "POST", path), ["login", "watched"], "{path}");
    }
    // Some read these as paths that have no rule of their own.
    for path in ["/./login", "/x/../login", "/x/%2e%2E/login", "/x%2F..%2flogin", "/login;x", "/x\\..\\login"]
    {
        assert_eq!(names(&rules, "POST", path), ["default", "login", "watched"], "{path}");
    }
    for path in ["/users/1%2F2", "/users/1%2f", "/users/..", "/users//7"] {
        assert!(names(&rules, "GET", path).contains(&"users".to_owned()), "{path}");
    }
    for path in [
        "//health",
        "/health/",
        "/x/../health",
        "/%68ealth",
        "/assets/../login",
        "/assets/%2e%2e/login",
        "/assets/..;/login",
        "/assets/..\\login",
        "/health;x",
    ] {
        assert!(!names(&rules, "GET", path).is_empty(), "{path}");
    }
}

#[test]
fn head_is_get() {
    let rules = RuleSet::new([RouteRule::new("get", "1/s").method("get")]).unwrap();
    assert_eq!(names(&rules, "HEAD", "/"), ["get"]);
    assert_eq!(names(&rules, "GET", "/"), ["get"]);
    assert!(names(&rules, "POST", "/").is_empty());
}

#[test]
fn entries_say_what_the_file_says() {
    let rules: RuleSet = GATEWAY.parse().unwrap();
    let [default, users, login, watched] = rules.rules() else { panic!("{rules:?}") };
    assert_eq!(default.limit().unwrap().to_string(), "100/min named default");
    assert!(default.is_otherwise());
    assert_eq!(default.key_of().to_string(), "header:x-api-key | ip");
    assert_eq!(users.limit().unwrap().to_string(), "10/s named quick; 500/h named users-2");
    let tiers: Vec<_> = users.tiers().map(|(name, policy)| (name, policy.to_string())).collect();
    assert_eq!(tiers, [("premium", "100/s named users".to_owned())]);
    assert_eq!(users.matching().to_string(), "/users/{id}, /users");
    assert_eq!((login.cost_of(), login.key_of().to_string().as_str()), (2, "ip + route"));
    assert_eq!(login.matching().to_string(), "POST /login");
    assert_eq!(watched.limit().unwrap().to_string(), "shadow 1/h named watched");
    let stats = users.limiter().build().unwrap().stats();
    assert_eq!(stats.max_keys, 1000);
    assert_eq!(rules.exclusions().len(), 2);
}

#[test]
fn many_rules_keep_their_order() {
    let rules = (0..200).map(|n| RouteRule::new(&format!("r{n}"), "1/s").path(&format!("/{}", n % 2)));
    let rules = RuleSet::new(rules).unwrap();
    let expected: Vec<_> = (0..200).filter(|n| n % 2 == 1).map(|n| format!("r{n}")).collect();
    assert_eq!(names(&rules, "GET", "/1"), expected);
    assert_eq!(rules.matches("GET", "/1").len(), 100);
    assert!(rules.matches("GET", "/2").is_empty());
}

#[test]
fn errors_name_place_rule_and_cause() {
    let rule = "[[rule]]\nname = 'a'\nlimit = '1/s'\n";
    for (text, place, cause) in [
        ("", Some((1, 1)), "there is no `[[rule]]`"),
        ("exclude = ['/x']", Some((1, 1)), "there is no `[[rule]]`"),
        ("rule = 7", Some((1, 8)), "expected a sequence"),
        ("[[rule]]\nname = 'a'", Some((1, 1)), "missing field `limit`"),
        (&format!("{rule}limt = '1/s'"), Some((4, 1)), "unknown field `limt`"),
        (&format!("excludes = []\n{rule}"), Some((1, 1)), "unknown field `excludes`"),
        (&format!("{rule}match = {{ host = 'a' }}"), Some((4, 11)), "unknown field `host`"),
        ("[[rule]]\nname = 'a'\nlimit = '1/s; 5/sc'", Some((3, 17)), "rule `a`: limit: unknown unit `sc`"),
        (
            "[[rule]]\nname = 'a'\nlimit = \"1/s; \\u0035/sc\"",
            Some((3, 9)),
            "limit: column 8: unknown unit `sc`",
        ),
        ("[[rule]]\nname = 'a b'\nlimit = '1/s'", Some((1, 1)), "rule `a b`: a name cannot contain ' '"),
        (&format!("{rule}key = ['ip', 'ipp']"), Some((4, 7)), "rule `a`: key: unknown part of a key `ipp`"),
        (&format!("{rule}key = []"), Some((4, 7)), "at least one part"),
        (&format!("{rule}key = 'ip/129'"), Some((4, 7)), "needs bits of a prefix"),
        (&format!("{rule}key = 'header:'"), Some((4, 7)), "needs a name"),
        (&format!("{rule}key = 'param:id'"), Some((1, 1)), "every path needs a segment `{id}`"),
        (
            &format!("{rule}match = {{ path = 'x' }}"),
            Some((4, 9)),
            "rule `a`: match: path pattern `x`: begin it with",
        ),
        (&format!("{rule}match = {{ method = [] }}"), Some((4, 9)), "the list of `method` is empty"),
        (&format!("{rule}match = {{ method = 'G T' }}"), Some((4, 9)), "is no method"),
        (&format!("{rule}tiers = {{ p = '1/x' }}"), Some((4, 18)), "rule `a`: tier `p`: unknown unit `x`"),
        (&format!("{rule}cost = -1"), Some((4, 8)), "invalid value: integer `-1`"),
        (&format!("{rule}when_full = 'explode'"), Some((4, 13)), "unknown variant `explode`"),
        (&format!("{rule}{rule}"), Some((5, 8)), "two rules of the name `a`"),
        (&format!("exclude = [{{}}]\n{rule}"), Some((1, 12)), "would exclude everything"),
        (&format!("exclude = [7]\n{rule}"), Some((1, 11)), "a path, or a table"),
        (&format!("{rule}limit = '2/s'"), Some((4, 1)), "duplicate key"),
        ("[[rule]\n", Some((1, 8)), ""),
    ] {
        let error = text.parse::<RuleSet>().expect_err(text);
        assert!(error.message().contains(cause), "{text}\n=> {error}");
        assert_eq!(error.line().zip(error.column()), place, "{text}\n=> {error}");
    }
    assert!("rule = []".parse::<RuleSet>().unwrap().rules().is_empty());
}

#[test]
fn files_are_bounded_and_named_in_errors() {
    let dir = std::env::temp_dir().join(format!("tollgate-rules-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("rules.toml");
    let missing = RuleSet::from_path(&path).unwrap_err();
    assert!(missing.to_string().contains("rules.toml: cannot be read"), "{missing}");
    std::fs::write(&path, "[[rule]]\nname = 'a'\nlimit = '1/x'\n").unwrap();
    let error = RuleSet::from_path(&path).unwrap_err();
    assert!(error.to_string().contains("rules.toml:3:12: rule `a`: limit: unknown unit `x`"), "{error}");
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    let error = RuleSet::from_path(&path).unwrap_err();
    assert!(error.to_string().contains("at most 1048576 bytes"), "{error}");
    std::fs::write(&path, GATEWAY).unwrap();
    assert_eq!(RuleSet::from_path(&path).unwrap().rules().len(), 4);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn keys_read_back_as_written() {
    for (text, written) in [
        ("ip", "ip"),
        (" ip/64 ", "ip"),
        ("ip/56", "ip/56"),
        ("ip/24/48", "ip/24/48"),
        ("header:X-API-Key|ip", "header:x-api-key | ip"),
        ("header:a | ip + method + path", "header:a | ip + method + path"),
        ("custom:user | global", "custom:user | global"),
    ] {
        let key: KeySpec = text.parse().unwrap();
        assert_eq!(key.to_string(), written);
        assert_eq!(written.parse::<KeySpec>().unwrap(), key);
    }
    assert_eq!(KeySpec::default().to_string(), "ip");
    assert!("global + global".parse::<KeySpec>().unwrap().is_global());
    assert!(vec!["ip"; 17].join("+").parse::<KeySpec>().is_err());
}

struct Request<'a> {
    ip: Option<IpAddr>,
    headers: &'a [(&'a str, &'a str)],
    method: &'a str,
    path: RequestPath<'a>,
}

impl KeySource for Request<'_> {
    fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
    }

    fn method(&self) -> &str {
        self.method
    }

    fn path(&self) -> &RequestPath<'_> {
        &self.path
    }
}

fn request<'a>(ip: &str, headers: &'a [(&'a str, &'a str)], method: &'a str, path: &'a str) -> Request<'a> {
    Request { ip: ip.parse().ok(), headers, method, path: RequestPath::new(path) }
}

fn key(spec: &str, request: &Request<'_>) -> Option<u64> {
    let mut matching = RouteMatch::default();
    for pattern in ["/users/{id}", "/t/{id}/**"] {
        matching.add_path(pattern).unwrap();
    }
    let mut hasher = DefaultHasher::new();
    let spec: KeySpec = spec.parse().unwrap();
    spec.write(request, matching.paths(), &mut hasher).then(|| hasher.finish())
}

#[test]
fn keys_tell_apart_what_they_say() {
    let one = request("192.0.2.1", &[], "GET", "/users/7");
    let same = |spec: &str, other: &Request<'_>| key(spec, &one).unwrap() == key(spec, other).unwrap();
    assert!(same("ip", &request("::ffff:192.0.2.1", &[], "POST", "/other")));
    assert!(!same("ip", &request("192.0.2.2", &[], "GET", "/users/7")));
    assert!(same("ip/24/64", &request("192.0.2.2", &[], "GET", "/users/7")));
    assert!(same("path", &request("", &[], "GET", "//users/%37/")));
    assert!(!same("path", &request("", &[], "GET", "/users/8")));
    assert!(same("route", &request("", &[], "GET", "/users/8")));
    assert!(!same("route", &request("", &[], "GET", "/t/7")));
    assert!(same("param:id", &request("", &[], "GET", "/t/7/x")));
    assert!(!same("param:id", &request("", &[], "GET", "/t/8/x")));
    assert!(same("method", &request("", &[], "HEAD", "/")));
    assert!(!same("method", &request("", &[], "POST", "/")));
    assert!(same("global", &request("", &[], "POST", "/")));
    assert!(!same("ip + method", &request("192.0.2.1", &[], "POST", "/")));
}

#[test]
fn keys_fall_back_in_order_and_cannot_pass_for_each_other() {
    let with_key = [("x-api-key", "192.0.2.1")];
    let with_empty = [("x-api-key", "")];
    let spec = "header:x-api-key | ip";
    let keys: HashSet<_> = [
        key(spec, &request("192.0.2.1", &with_key, "GET", "/")),
        key(spec, &request("192.0.2.9", &with_key, "GET", "/")),
        key(spec, &request("192.0.2.1", &with_empty, "GET", "/")),
        key(spec, &request("192.0.2.1", &[], "GET", "/")),
    ]
    .into();
    assert_eq!(keys.len(), 2, "one by the API key, one by the address");
    assert_eq!(key(spec, &request("", &with_empty, "GET", "/")), None);
    assert_eq!(key("custom:user", &request("192.0.2.1", &[], "GET", "/")), None);
}

#[test]
fn a_set_in_code_says_what_is_wrong() {
    for (rule, cause) in [
        (RouteRule::new("a", "1/x"), "rule `a`: column 3: unknown unit `x`"),
        (RouteRule::new("", "1/s"), "a name has 1 to 64 characters"),
        (RouteRule::new(&"n".repeat(61), "1/s"), "at most 60 characters"),
        (RouteRule::new("a", "1/s").path("x"), "rule `a`: path pattern `x`"),
        (RouteRule::new("a", "1/s").key("x"), "rule `a`: unknown part of a key `x`"),
        (RouteRule::new("a", "1/s").tier("t", "x"), "rule `a`: tier `t`: column 1"),
        (RouteRule::new("a", "1/s").tier("t", "1/s").tier("t", "2/s"), "a tier has a name of its own"),
        (RouteRule::new("a", "1/s").cost(1 << 40), "a cost is at most"),
    ] {
        let error = RuleSet::new([rule]).unwrap_err();
        assert!(error.to_string().contains(cause), "{error}");
    }
    let set = RuleSet::new([RouteRule::new("a", "1/s").when_full(WhenFull::Deny).max_keys(5)]).unwrap();
    assert_eq!(set.rules()[0].limiter().build().unwrap().stats().max_keys, 5);
}
