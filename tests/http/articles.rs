//! What tutorials build with interceptors and annotations: a default, strict routes, logins, exclusions, users.

use super::{get, request, serve, serve_rules, text, with_header};
use std::sync::Arc;
use std::time::Duration;
use tollgate::rules::RouteRule;
use tollgate::tower::RateLimitLayer;

const API: &str = r#"
exclude = ["/health", "/metrics"]

[[rule]]
name = "default"
limit = "fixed 100/min"

[[rule]]
name = "strict"
match = { path = "/reports/{id}" }
limit = "fixed 10/min"

[[rule]]
name = "auth"
match = { path = "/login", method = "POST" }
limit = "log 5/15min"
"#;

#[tokio::test]
async fn a_default_of_100_a_minute() {
    let served = serve(RateLimitLayer::builder().limit("fixed 100/min"));
    assert_eq!(served.admitted(150, |_| get("/", "192.0.2.1")).await, 100);
    assert_eq!(served.admitted(150, |_| get("/", "192.0.2.2")).await, 100, "another client has its own");
    served.hand.advance(Duration::from_secs(60));
    assert_eq!(served.admitted(150, |_| get("/", "192.0.2.1")).await, 100);
}

#[tokio::test]
async fn a_strict_route_under_the_default() {
    let served = serve_rules(API);
    assert_eq!(served.admitted(50, |n| get(&format!("/reports/{n}"), "192.0.2.1")).await, 10);
    // What the strict rule refused cost the default nothing.
    assert_eq!(served.admitted(150, |_| get("/", "192.0.2.1")).await, 90);
    assert_eq!(served.admitted(1, |_| get("/reports/7", "192.0.2.2")).await, 1);
    // The default is used up, so the strict rule has to keep what it has.
    assert_eq!(served.admitted(150, |_| get("/", "192.0.2.2")).await, 99);
    assert_eq!(served.status(get("/reports/7", "192.0.2.2")).await, 429);
    served.hand.advance(Duration::from_secs(60));
    assert_eq!(served.admitted(50, |_| get("/reports/7", "192.0.2.2")).await, 10);
}

#[tokio::test]
async fn five_logins_in_a_quarter_of_an_hour() {
    let served = serve_rules(API);
    let login = |_| request("POST", "/login", "192.0.2.1");
    assert_eq!(served.admitted(3, login).await, 3);
    served.hand.advance(Duration::from_secs(600));
    assert_eq!(served.admitted(9, login).await, 2);
    served.hand.advance(Duration::from_secs(299));
    assert_eq!(served.status(login(0)).await, 429);
    served.hand.advance(Duration::from_secs(1));
    assert_eq!(served.admitted(9, login).await, 3, "the first three are forgotten, the other two are not");
    assert_eq!(served.status(get("/login", "192.0.2.1")).await, 200, "the form itself is no login");
}

#[tokio::test]
async fn health_and_metrics_are_left_alone() {
    let served = serve_rules(API);
    for path in ["/health", "/metrics"] {
        assert_eq!(served.admitted(500, |_| get(path, "192.0.2.1")).await, 500);
        let response = served.call(get(path, "192.0.2.1")).await;
        assert!(response.headers().is_empty(), "nothing is told of a limit that is not there");
    }
    assert_eq!(served.admitted(150, |_| get("/", "192.0.2.1")).await, 100, "and cost nothing");
}

#[tokio::test]
async fn a_budget_for_each_user() {
    #[derive(Clone)]
    struct User(&'static str);
    let builder = RateLimitLayer::builder()
        .limit("fixed 5/min")
        .key("custom:user | ip")
        .key_by("user", |request| request.extensions().get::<User>().map(|user| user.0));
    let served = serve(builder);
    let of = |user, from| {
        let mut request = get("/", from);
        request.extensions_mut().insert(User(user));
        request
    };
    let addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
    assert_eq!(served.admitted(30, |n| of("alice", addresses[n % 3])).await, 5, "wherever she is");
    assert_eq!(served.admitted(30, |_| of("bob", addresses[0])).await, 5);
    assert_eq!(served.admitted(30, |_| get("/", addresses[0])).await, 5, "strangers by address");
}

#[tokio::test]
async fn tiers_and_costs() {
    let rule = RouteRule::new("api", "fixed 10/min").tier("premium", "fixed 50/min").cost(2);
    let builder = RateLimitLayer::builder()
        .rule(rule)
        .tier_by(|request| text(request.headers(), "plan").map(str::to_owned))
        .cost_by(|request| if request.uri().path() == "/bulk" { 5 } else { 1 });
    let served = serve(builder);
    assert_eq!(served.admitted(100, |_| get("/", "192.0.2.1")).await, 5);
    assert_eq!(served.admitted(100, |_| get("/bulk", "192.0.2.2")).await, 1);
    assert_eq!(served.admitted(100, |_| with_header(get("/", "192.0.2.3"), "plan", "premium")).await, 25);
    assert_eq!(served.admitted(100, |_| with_header(get("/", "192.0.2.4"), "plan", "unheard of")).await, 5);
}

#[tokio::test]
async fn a_client_that_waits_as_told_is_admitted() {
    for limit in ["7/min burst 3", "fixed 3/min", "log 3/100s", "sliding 3/min", "3/s; fixed 5/min"] {
        let served = serve(RateLimitLayer::builder().limit(limit));
        served.hand.advance(Duration::from_millis(1_234_567));
        for round in 0..20 {
            while served.status(get("/", "192.0.2.1")).await == 200 {}
            let refused = served.call(get("/", "192.0.2.1")).await;
            let wait: u64 = text(refused.headers(), "retry-after").unwrap().parse().unwrap();
            assert!(wait >= 1, "{limit}: {wait}");
            served.hand.advance(Duration::from_secs(wait));
            assert_eq!(served.status(get("/", "192.0.2.1")).await, 200, "{limit}, round {round}");
        }
    }
}

#[tokio::test]
async fn a_rule_that_watches_refuses_nobody_and_says_nothing() {
    for rule in ["limit = 'fixed 1/min'\nshadow = true", "limit = 'shadow fixed 1/min'"] {
        let served = serve_rules(&format!("[[rule]]\nname = 'new'\n{rule}"));
        assert_eq!(served.admitted(9, |_| get("/", "192.0.2.1")).await, 9);
        assert!(served.call(get("/", "192.0.2.1")).await.headers().is_empty());
        assert_eq!(served.layer.handle().stats("new").unwrap().shadow_denied, 9);
    }
}

#[tokio::test]
async fn more_for_one_route_than_for_the_rest() {
    let rules = "
[[rule]]
name = 'default'
limit = 'fixed 2/min'
otherwise = true

[[rule]]
name = 'search'
match = { path = '/search' }
limit = 'fixed 8/min'
";
    let served = serve_rules(rules);
    assert_eq!(served.admitted(20, |_| get("/search", "192.0.2.1")).await, 8);
    assert_eq!(served.admitted(20, |_| get("/", "192.0.2.1")).await, 2);
}

#[tokio::test]
async fn a_rule_that_watches_beside_one_that_counts() {
    let rules = "
[[rule]]
name = 'api'
limit = 'fixed 5/min'

[[rule]]
name = 'stricter'
limit = 'fixed 2/min'
shadow = true
";
    let served = serve_rules(rules);
    let response = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(text(response.headers(), "ratelimit-policy"), Some(r#""api";q=5;w=60"#));
    assert_eq!(text(response.headers(), "ratelimit"), Some(r#""api";r=4;t=60"#));
    assert_eq!(served.admitted(9, |_| get("/", "192.0.2.1")).await, 4);
    assert_eq!(served.layer.handle().stats("stricter").unwrap().shadow_denied, 3);
}

/// However many race for the strict rule, the default pays for those who pass and for nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rules_that_refuse_leave_nothing_charged() {
    let rules = "
[[rule]]
name = 'default'
limit = 'fixed 1000/min'

[[rule]]
name = 'strict'
match = { path = '/strict' }
limit = 'fixed 200/min'
";
    let served = Arc::new(serve_rules(rules));
    let racers: Vec<_> = (0..8)
        .map(|_| {
            let served = Arc::clone(&served);
            tokio::spawn(async move { served.admitted(100, |_| get("/strict", "192.0.2.1")).await })
        })
        .collect();
    let mut admitted = 0;
    for racer in racers {
        admitted += racer.await.unwrap();
    }
    assert_eq!(admitted, 200);
    assert_eq!(served.admitted(2000, |_| get("/", "192.0.2.1")).await, 800);
}
