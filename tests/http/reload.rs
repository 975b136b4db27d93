//! Rules that change while they are in force.

use super::{get, serve, serve_rules};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tollgate::tower::{Notice, RateLimitBuilder, RateLimitLayer, RulesHandle};

fn rule(name: &str, limit: &str) -> String {
    format!("[[rule]]\nname = '{name}'\nlimit = '{limit}'\n")
}

#[tokio::test]
async fn what_was_spent_stays_spent() {
    let served = serve_rules(&rule("api", "fixed 10/min"));
    let handle = served.layer.handle();
    assert_eq!(served.admitted(8, |_| get("/", "192.0.2.1")).await, 8);
    handle.reload(&rule("api", "fixed 20/min")).unwrap();
    assert_eq!(served.admitted(50, |_| get("/", "192.0.2.1")).await, 12, "8 of 20 were spent before");
    handle.reload(&rule("api", "fixed 5/min")).unwrap();
    assert_eq!(served.status(get("/", "192.0.2.1")).await, 429);
    let response = served.call(get("/", "192.0.2.2")).await;
    assert_eq!(response.headers()["ratelimit-policy"], r#""api";q=5;w=60"#);
    assert_eq!(response.headers()["ratelimit"], r#""api";r=4;t=60"#);
}

#[tokio::test]
async fn a_bad_file_changes_nothing() {
    let served = serve_rules(&rule("api", "fixed 2/min"));
    let handle = served.layer.handle();
    assert_eq!(served.admitted(1, |_| get("/", "192.0.2.1")).await, 1);
    for (bad, cause) in [
        ("", "there is no `[[rule]]`"),
        (
            "[[rule]]\nname = 'api'\nlimit = '9/minuet'",
            "line 3, column 12: rule `api`: limit: unknown unit `minuet`",
        ),
        (&rule("api", "9/min").replace("limit", "limits"), "unknown field `limits`"),
        (&format!("{}{}", rule("api", "fixed 9/min"), rule("b", "5 at once")), "so many `at once`"),
        (&format!("{}key = 'custom:user'", rule("api", "9/min")), "`custom:user` is not known"),
        (
            &format!("{}{}max_keys = 0", rule("api", "fixed 9/min"), rule("b", "1/s")),
            "rule `b`: max_keys of 0",
        ),
        (&format!("{}{}max_keys = 18446744073709551615", rule("api", "fixed 9/min"), rule("b", "1/s")), ""),
    ] {
        let error = handle.reload(bad).unwrap_err().to_string();
        assert!(error.contains(cause), "{error}");
        assert_eq!(handle.rules().rules()[0].limit().unwrap().to_string(), "fixed 2/min named api");
    }
    assert_eq!(
        served.admitted(9, |_| get("/", "192.0.2.1")).await,
        1,
        "the old rule, and what was spent under it"
    );
}

#[tokio::test]
async fn rules_come_and_go_beside_the_programs_own() {
    let served = serve(
        RateLimitLayer::builder().limit("fixed 5/min").rules(rule("file", "fixed 2/min").parse().unwrap()),
    );
    let handle = served.layer.handle();
    assert_eq!(served.admitted(9, |_| get("/", "192.0.2.1")).await, 2);
    handle.reload("exclude = ['/health']\nrule = []").unwrap();
    assert_eq!(served.admitted(9, |_| get("/", "192.0.2.1")).await, 3, "2 of 5 were spent before");
    assert_eq!(served.admitted(9, |_| get("/health", "192.0.2.1")).await, 9);
    handle.reload(&format!("{}key = 'global'", rule("file", "fixed 2/min"))).unwrap();
    assert_eq!(
        served.admitted(9, |n| get("/", &format!("198.51.100.{n}"))).await,
        2,
        "another key begins anew"
    );
    let names: Vec<_> = handle.rules().rules().iter().map(|rule| rule.name().to_owned()).collect();
    assert_eq!(names, ["default", "file"]);
}

/// What cannot go on is told of, by name; what goes on is not.
#[test]
fn a_rule_that_begins_anew_is_told_of() {
    let (tell, notices) = channel();
    let layer = RateLimitLayer::builder()
        .limit("9/min")
        .rules([rule("a", "1/min"), rule("b", "1/min")].concat().parse().unwrap())
        .on_notice(move |notice| tell.send(notice.to_string()).unwrap())
        .build()
        .unwrap();
    let (a, b) = (rule("a", "2/min"), rule("b", "2/min"));
    layer.handle().reload(&format!("{a}{b}max_keys = 10\n{}", rule("c", "1/min"))).unwrap();
    let told: Vec<String> = notices.try_iter().collect();
    assert_eq!(told, ["other rules are in force", "rule `b` begins anew: what was spent is forgotten"]);
}

/// More changes than one limiter keeps policies for: it goes on all the same.
#[test]
fn changes_do_not_run_out() {
    let small = |limit: &str| format!("{}max_keys = 10", rule("api", limit));
    let served = serve_rules(&small("fixed 1/s"));
    let handle = served.layer.handle();
    for number in 1..=200 {
        handle.reload(&small(&format!("fixed {number}/{number}s"))).unwrap();
    }
    assert_eq!(handle.rules().rules()[0].limit().unwrap().to_string(), "fixed 200/200s named api");
}

#[tokio::test]
async fn requests_go_by_one_version_or_the_other() {
    let served = serve_rules(&rule("a", "1000000/s"));
    let handle = served.layer.handle();
    let stop = Arc::new(OnceLock::new());
    let stopped = Arc::clone(&stop);
    let changer = std::thread::spawn(move || {
        while stopped.get().is_none() {
            for name in ["b", "a"] {
                handle.reload(&rule(name, "1000000/s")).unwrap();
            }
        }
    });
    for _ in 0..2_000 {
        let response = served.call(get("/", "192.0.2.1")).await;
        let (policy, limit) = (&response.headers()["ratelimit-policy"], &response.headers()["ratelimit"]);
        assert_eq!(policy.as_bytes()[..3], limit.as_bytes()[..3], "{policy:?} {limit:?}");
    }
    stop.set(()).unwrap();
    changer.join().unwrap();
}

/// Rules that are kept change under those who go by them: each request finds one limit or the other, nothing that was
/// spent is forgotten, and at the end the last limit is in force.
#[tokio::test]
async fn limits_of_kept_rules_change_while_they_are_asked() {
    let both = |a: &str, b: &str| [rule("a", a), rule("b", b)].concat();
    let served = serve_rules(&both("fixed 3000/d", "fixed 4000/d"));
    let handle = served.layer.handle();
    let (limiter, changing) = (handle.limiter("a").unwrap(), served.layer.handle());
    let stop = Arc::new(OnceLock::new());
    let stopped = Arc::clone(&stop);
    let changer = std::thread::spawn(move || {
        while stopped.get().is_none() {
            changing.reload(&both("fixed 2500/d", "fixed 3500/d")).unwrap();
            changing.reload(&both("fixed 3000/d", "fixed 4000/d")).unwrap();
        }
    });
    for spent in 1..=2_000 {
        let response = served.call(get("/", "192.0.2.1")).await;
        let [policy, limit] =
            ["ratelimit-policy", "ratelimit"].map(|name| response.headers()[name].to_str().unwrap());
        let policies =
            [(2500, 3500), (3000, 4000)].map(|(a, b)| format!("\"a\";q={a};w=86400, \"b\";q={b};w=86400"));
        assert!(policies.iter().any(|known| known == policy), "{policy}");
        let left = [2500 - spent, 3000 - spent].map(|left| format!("\"a\";r={left};t=86400"));
        assert!(left.iter().any(|known| known == limit), "{limit} after {spent}");
    }
    stop.set(()).unwrap();
    changer.join().unwrap();
    assert!(Arc::ptr_eq(&limiter, &handle.limiter("a").unwrap()));
    assert_eq!(served.admitted(2000, |_| get("/", "192.0.2.1")).await, 1000);
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn next(notices: &Receiver<String>) -> String {
    notices.recv_timeout(Duration::from_secs(30)).expect("a notice")
}

/// Whoever is told that rules are wrong may go back to others at once.
#[test]
fn a_notice_may_reload() {
    let (done, is_done) = channel();
    let handle = Arc::new(OnceLock::<RulesHandle>::new());
    let inner = Arc::clone(&handle);
    let layer = RateLimitLayer::builder()
        .rules(rule("api", "1/min").parse().unwrap())
        .on_notice(move |notice| {
            if matches!(notice, Notice::NotReloaded(_)) {
                inner.get().unwrap().reload(&rule("api", "2/min")).unwrap();
            }
        })
        .build()
        .unwrap();
    handle.set(layer.handle()).unwrap();
    // In a thread of its own: if it waits for itself, the test does not.
    std::thread::spawn(move || done.send(layer.handle().reload("nonsense").is_err()));
    assert!(is_done.recv_timeout(Duration::from_secs(30)).expect("no deadlock"));
    assert_eq!(handle.get().unwrap().rules().rules()[0].limit().unwrap().to_string(), "2/min named api");
}

#[tokio::test]
async fn a_watched_file_is_read_again() {
    let file = Scratch::new("watch", &rule("api", "fixed 3/min"));
    let (tell, notices) = channel();
    let builder = RateLimitLayer::builder().rules_file(&file.0).on_notice(move |notice| {
        tell.send(match notice {
            Notice::NotReloaded(error) => error.to_string(),
            notice => notice.to_string(),
        })
        .unwrap();
    });
    let served = serve(builder);
    assert_eq!(served.admitted(9, |_| get("/", "192.0.2.1")).await, 3);
    let watch = served.layer.handle().watch(&file.0, Duration::from_millis(10)).unwrap();
    assert_eq!(next(&notices), "other rules are in force", "the first look");

    std::fs::write(&file.0, rule("api", "fixed 7/mn")).unwrap();
    let error = next(&notices);
    assert!(error.contains(":3:18: rule `api`: limit: unknown unit `mn`"), "{error}");
    assert_eq!(served.status(get("/", "192.0.2.1")).await, 429);

    // As editors do it: a new file in the place of the old one.
    let other = Scratch::new("watch-new", &rule("api", "fixed 7/min"));
    std::fs::rename(&other.0, &file.0).unwrap();
    assert_eq!(next(&notices), "other rules are in force");
    assert_eq!(served.admitted(9, |_| get("/", "192.0.2.1")).await, 4);

    std::fs::remove_file(&file.0).unwrap();
    assert!(next(&notices).contains("cannot be read"));
    assert_eq!(served.admitted(9, |_| get("/", "192.0.2.2")).await, 7);
    drop(watch);
    assert!(notices.try_recv().is_err());
}

/// A listener for notices, as texts.
fn listening(layer: RateLimitBuilder) -> (RateLimitLayer, Receiver<String>) {
    let (tell, notices) = channel();
    let tell = move |notice: &Notice<'_>| {
        let text = match notice {
            Notice::NotReloaded(error) => error.to_string(),
            notice => notice.to_string(),
        };
        tell.send(text.clone()).unwrap();
        assert!(!text.contains("in force"), "an observer that panics");
    };
    (layer.on_notice(tell).build().unwrap(), notices)
}

#[test]
fn a_file_that_is_not_there_is_told_of_from_the_beginning() {
    let (layer, notices) = listening(RateLimitLayer::builder().limit("1/min"));
    let missing = std::env::temp_dir().join(format!("tollgate-missing-{}.toml", std::process::id()));
    let _watch = layer.handle().watch(&missing, Duration::from_millis(10)).unwrap();
    assert!(next(&notices).contains("cannot be read"));
}

/// A pipe that nobody writes to would be waited for, by the watch and by whoever ends it.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_waited_for() {
    let pipe = Scratch::new("pipe", "");
    std::fs::remove_file(&pipe.0).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&pipe.0).status().unwrap().success());
    let (layer, notices) = listening(RateLimitLayer::builder().limit("1/min"));
    let watch = layer.handle().watch(&pipe.0, Duration::from_millis(10)).unwrap();
    assert!(next(&notices).contains("no regular file"));
    drop(watch);
    assert!(notices.try_recv().is_err());
}

#[test]
fn a_watch_outlives_an_observer_that_panics() {
    let file = Scratch::new("panics", &rule("api", "fixed 1/min"));
    let (layer, notices) = listening(RateLimitLayer::builder().limit("1/min"));
    let _watch = layer.handle().watch(&file.0, Duration::from_millis(10)).unwrap();
    assert_eq!(next(&notices), "other rules are in force");
    std::fs::write(&file.0, "nonsense").unwrap();
    assert!(next(&notices).contains(".toml:1:"));
    layer.handle().reload("rule = []").unwrap();
    assert_eq!(layer.handle().rules().rules().len(), 1);
}

/// What nobody listens to is a line on the standard error: of a process of its own, where it can be read.
#[test]
fn warnings_are_never_lost() {
    const INSIDE: &str = "TOLLGATE_UNHEARD";
    if std::env::var_os(INSIDE).is_some() {
        let served = serve_rules(&rule("api", "1/min"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(served.status(get("/", "")));
        let handle = served.layer.handle();
        handle.reload(&rule("api", "2/min")).unwrap();
        assert!(handle.reload("nonsense").is_err());
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reload::warnings_are_never_lost"])
        .env(INSIDE, "")
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("tollgate: ")).collect();
    assert!(output.status.success(), "{told}");
    assert_eq!(lines.len(), 2, "{told}");
    assert!(lines[0].contains("no key for rule `api`") && lines[1].contains("the rules stay as they were"));
}
