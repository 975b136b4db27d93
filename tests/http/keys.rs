//! Whose budget a request spends from, as the layer finds it.

use super::{get, request, serve, with_header};
use std::sync::{Arc, Mutex};
use tollgate::rules::{RouteRule, RuleSet};
use tollgate::tower::{ClientIp, MissingKey, RateLimitLayer, Settle};

#[tokio::test]
async fn an_api_key_or_else_the_address() {
    let served = serve(RateLimitLayer::builder().limit("fixed 3/min").key("header:x-api-key | ip"));
    let with_key = |key| move |n: usize| with_header(get("/", &format!("192.0.2.{n}")), "x-api-key", key);
    assert_eq!(served.admitted(9, with_key("k1")).await, 3);
    assert_eq!(served.admitted(9, with_key("k2")).await, 3);
    assert_eq!(served.admitted(9, |_| get("/", "192.0.2.1")).await, 3);
    assert_eq!(served.admitted(9, |_| with_header(get("/", "192.0.2.1"), "x-api-key", "")).await, 0);
    assert_eq!(served.admitted(9, |_| with_header(get("/", "192.0.2.9"), "x-api-key", "192.0.2.1")).await, 3);
}

#[tokio::test]
async fn combinations_methods_and_everybody() {
    let served = serve(RateLimitLayer::builder().limit("fixed 2/min").key("ip + method"));
    assert_eq!(served.admitted(5, |_| get("/", "192.0.2.1")).await, 2);
    assert_eq!(served.admitted(5, |_| request("POST", "/", "192.0.2.1")).await, 2);
    assert_eq!(served.admitted(5, |_| request("HEAD", "/", "192.0.2.1")).await, 0, "HEAD is GET");
    let served = serve(RateLimitLayer::builder().limit("fixed 4/min").key("global"));
    assert_eq!(served.admitted(9, |n| get("/", &format!("192.0.2.{n}"))).await, 4);
    let rule = RouteRule::new("tenant", "fixed 2/min").path("/t/{tenant}/**").key("param:tenant");
    let served = serve(RateLimitLayer::builder().rule(rule));
    assert_eq!(served.admitted(5, |n| get(&format!("/t/acme/{n}"), "")).await, 2);
    assert_eq!(served.admitted(5, |n| get(&format!("/t/other/{n}"), "")).await, 2);
}

#[tokio::test]
async fn trusted_proxies_name_the_client() {
    let client_ip = ClientIp::x_forwarded_for(["10.0.0.0/8"]).unwrap();
    let served = serve(RateLimitLayer::builder().limit("fixed 2/min").client_ip(client_ip));
    let through = |list: &str| with_header(get("/", "10.0.0.1"), "x-forwarded-for", list);
    assert_eq!(served.admitted(5, |_| through("192.0.2.1")).await, 2);
    assert_eq!(served.admitted(5, |_| through("192.0.2.2, 10.9.9.9")).await, 2);
    assert_eq!(served.admitted(5, |_| get("/", "192.0.2.2")).await, 0, "the same client, directly");
}

#[test]
fn addresses_are_found_as_they_are_written() {
    let find = |client_ip: &ClientIp, from: &str, name: &'static str, lines: &[&str]| {
        let request = lines.iter().fold(get("/", from), |request, line| with_header(request, name, line));
        client_ip.find(request.headers(), request.extensions()).map(|ip| ip.to_string())
    };
    let list = ClientIp::x_forwarded_for(["10.0.0.0/8", "2001:db8:cd::/48"]).unwrap();
    for (from, lines, client) in [
        ("192.0.2.9", &["198.51.100.1"] as &[_], "192.0.2.9"),
        ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
        ("::ffff:10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", &["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", &["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", &["198.51.100.1", "10.2.3.4 ,\t10.5.6.7"], "198.51.100.1"),
        ("10.0.0.1", &["198.51.100.1:8080"], "198.51.100.1"),
        ("10.0.0.1", &["[2001:db8::7]:8080"], "2001:db8::7"),
        ("10.0.0.1", &["[2001:db8::7]"], "2001:db8::7"),
        ("10.0.0.1", &["2001:db8::7, 2001:db8:cd::1"], "2001:db8::7"),
        ("10.0.0.1", &["::ffff:198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", &["198.51.100.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", &["198.51.100.1, unknown, 10.7.7.7"], "10.7.7.7"),
        ("10.0.0.1", &["198.51.100.1,"], "10.0.0.1"),
        ("10.0.0.1", &["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ("10.0.0.1", &[], "10.0.0.1"),
    ] {
        assert_eq!(find(&list, from, "x-forwarded-for", lines).as_deref(), Some(client), "{from} {lines:?}");
    }
    // A proxy's network, however it is written.
    for written in ["::ffff:10.0.0.0/104", "::ffff:10.0.0.1", "::ffff:a00:1/128"] {
        let mapped = ClientIp::x_forwarded_for([written]).unwrap();
        let client = find(&mapped, "10.0.0.1", "x-forwarded-for", &["198.51.100.1"]);
        assert_eq!(client.as_deref(), Some("198.51.100.1"), "{written}");
        let stranger = find(&mapped, "192.0.2.1", "x-forwarded-for", &["198.51.100.1"]);
        assert_eq!(stranger.as_deref(), Some("192.0.2.1"), "{written}");
    }
    let forwarded = ClientIp::forwarded(["10.0.0.0/8"]).unwrap();
    for (lines, client) in [
        (&["for=198.51.100.1"] as &[_], "198.51.100.1"),
        (&["For=\"198.51.100.1:4711\";proto=http;by=10.0.0.1"], "198.51.100.1"),
        (&["for=1.1.1.1, for=\"[2001:db8::7]:4711\" ; proto=https"], "2001:db8::7"),
        (&["for=1.1.1.1", "for=198.51.100.1, for=10.3.3.3"], "198.51.100.1"),
        (&["for=_hidden"], "10.0.0.1"),
        (&["proto=http"], "10.0.0.1"),
        // What a client leaves open does not swallow what the proxy adds.
        (&["for=\"1.1.1.1, for=198.51.100.1"], "198.51.100.1"),
    ] {
        assert_eq!(find(&forwarded, "10.0.0.1", "forwarded", lines).as_deref(), Some(client), "{lines:?}");
    }
    let socket = ClientIp::x_forwarded_for(["10.0.0.0/8"]).unwrap();
    assert_eq!(find(&socket, "", "x-forwarded-for", &["198.51.100.1"]), None);
    let socket = socket.trust_unknown_peer();
    assert_eq!(find(&socket, "", "x-forwarded-for", &["198.51.100.1"]).as_deref(), Some("198.51.100.1"));
    for bad in ["10.0.0.0/33", "proxy.example", ""] {
        let error = ClientIp::x_forwarded_for([bad]).unwrap_err().to_string();
        assert!(error.contains("is no network"), "{error}");
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_never_an_error_of_the_server() {
    for (missing, admitted, status) in [(MissingKey::Share, 3, 429), (MissingKey::Allow, 9, 200)] {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&notices);
        let builder = RateLimitLayer::builder()
            .limit("fixed 3/min")
            .missing_key(missing)
            .on_notice(move |notice| told.lock().unwrap().push(notice.to_string()));
        let served = serve(builder);
        assert_eq!(served.admitted(9, |_| get("/", "")).await, admitted);
        assert_eq!(served.status(get("/", "")).await, status);
        assert_eq!(served.status(get("/", "192.0.2.1")).await, 200, "others have their own");
        let notices = notices.lock().unwrap();
        assert_eq!(notices.len(), 1, "said once: {notices:?}");
        assert!(notices[0].contains("no key for rule `default`"), "{notices:?}");
    }
    let served = serve(RateLimitLayer::builder().limit("3/min").missing_key(MissingKey::Deny));
    let refused = served.call(get("/", "")).await;
    assert_eq!(refused.status(), 403);
    assert!(serde_json::from_str::<serde_json::Value>(refused.body()).is_ok());
    // A rule that watches refuses nobody, with a key or without, alone or beside others.
    for others in [&[][..], &[RouteRule::new("all", "9/min").key("global")]] {
        let mut builder = RateLimitLayer::builder()
            .rule(RouteRule::new("watch", "1/min").key("header:token").shadow())
            .missing_key(MissingKey::Deny);
        for other in others {
            builder = builder.rule(other.clone());
        }
        assert_eq!(serve(builder).admitted(3, |_| get("/", "192.0.2.1")).await, 3);
    }
}

/// A rule that is passed over for want of a key leaves the request to the rule for all others.
#[tokio::test]
async fn what_is_passed_over_falls_under_the_rule_for_otherwise() {
    let keyed = || RouteRule::new("search", "fixed 9/min").path("/search/**").key("header:token");
    let rest = || RouteRule::new("rest", "fixed 2/min").otherwise();
    let builder = || RateLimitLayer::builder().rule(keyed()).rule(rest()).missing_key(MissingKey::Allow);
    let served = serve(builder());
    assert_eq!(served.admitted(9, |_| get("/search", "192.0.2.1")).await, 2);
    assert_eq!(served.admitted(9, |_| with_header(get("/search", "192.0.2.1"), "token", "t")).await, 9);
    // Beside a rule that watches, and for a path with a reading that nothing else rules.
    let watching = RouteRule::new("watch", "9/min").key("ip").shadow();
    let served = serve(builder().rule(watching));
    assert_eq!(served.admitted(9, |_| get("/search/a", "192.0.2.1")).await, 2);
    let other = RouteRule::new("other", "fixed 9/min").path("/other");
    let served = serve(builder().rule(other));
    assert_eq!(served.admitted(9, |_| get("/other", "192.0.2.1")).await, 9);
    assert_eq!(served.admitted(9, |_| get("/search/../other", "192.0.2.2")).await, 2);
    // Nor does the rule for otherwise refuse what it has no key for.
    let keyed_rest = RouteRule::new("rest", "fixed 2/min").key("header:token").otherwise();
    let served =
        serve(RateLimitLayer::builder().rule(keyed()).rule(keyed_rest).missing_key(MissingKey::Allow));
    assert_eq!(served.admitted(9, |_| get("/search", "192.0.2.1")).await, 9);
}

/// What stands in for a missing part is no value of that part.
#[tokio::test]
async fn a_key_that_stands_in_is_not_taken_for_the_first() {
    let builder = RateLimitLayer::builder()
        .limit("fixed 1/min")
        .key("custom:pair | custom:single")
        .key_by("pair", |request| request.headers().contains_key("pair").then_some((1_u8, 5_u8)))
        .key_by("single", |_| Some(5_u8));
    let served = serve(builder);
    assert_eq!(served.status(with_header(get("/", "192.0.2.1"), "pair", "x")).await, 200);
    assert_eq!(served.status(get("/", "192.0.2.1")).await, 200, "another key");
    assert_eq!(served.status(get("/", "192.0.2.1")).await, 429);
}

#[test]
fn a_layer_says_what_is_wrong_when_it_is_built() {
    for (builder, cause) in [
        (RateLimitLayer::builder(), "needs a limit, a rule or a file"),
        (RateLimitLayer::builder().limit("1/x"), "unknown unit `x`"),
        (RateLimitLayer::builder().limit("1/s").key("nose"), "unknown part of a key `nose`"),
        (
            RateLimitLayer::builder().limit("1/s").key("custom:user"),
            "`custom:user` is not known: give the layer `key_by",
        ),
        (RateLimitLayer::builder().limit("1/s").exclude("health"), "begin it with `/`"),
        (RateLimitLayer::builder().limit("5 at once"), "so many `at once`"),
        (
            RateLimitLayer::builder().limit("1/s").rule(RouteRule::new("default", "1/s")),
            "two rules of the name",
        ),
        (RateLimitLayer::builder().limit("1/s").settle_by("login", |_| Settle::Keep), "rule `login`"),
        (RateLimitLayer::builder().rules_file("/nowhere/rules.toml"), "cannot be read"),
        (
            RateLimitLayer::builder().rules(RuleSet::default()).rules_file("/nowhere/rules.toml"),
            "rules come from one place",
        ),
        (
            RateLimitLayer::builder().rule(RouteRule::new("api", "1/s")).key("global"),
            "`key` is that of `limit`, and there is none",
        ),
        (
            RateLimitLayer::builder()
                .limit("1/s")
                .settle_by("default", |_| Settle::Keep)
                .charge_bytes("default"),
            "rule `default` are settled in two ways",
        ),
        (
            RateLimitLayer::builder().limit("1/s").key_by("user", |_| Some(1)).key_by("user", |_| Some(2)),
            "two keys of the name `user`",
        ),
        (RateLimitLayer::builder().limit("1/s named a; 9/min named a"), "two limits of the name `a`"),
        (
            RateLimitLayer::builder()
                .rule(RouteRule::new("api", "1/s; 9/min"))
                .rule(RouteRule::new("api-2", "1/s")),
            "rule `api-2`: there are two limits of the name `api-2`",
        ),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(cause), "{error}");
    }
}

/// A router inside another one sees the rest of the path only; rules go by the whole.
#[tokio::test]
async fn a_nested_router_is_ruled_by_the_whole_path() {
    use axum::body::Body;
    use tower::ServiceExt;
    let layer = RateLimitLayer::builder()
        .rule(RouteRule::new("login", "fixed 1/min").path("/api/login").key("ip + path"))
        .rule(RouteRule::new("rest", "fixed 2/min").path("/login").key("ip + path"))
        .build()
        .unwrap();
    let routes = || axum::Router::new().route("/login", axum::routing::get(|| async { "hello" }));
    let app = axum::Router::new().nest("/api", routes().layer(layer.clone())).merge(routes().layer(layer));
    let mut passed = Vec::new();
    for path in ["/api/login", "/login"] {
        passed.push(0);
        for _ in 0..5 {
            let request = get(path, "192.0.2.1").map(|()| Body::empty());
            let status = app.clone().oneshot(request).await.unwrap().status();
            *passed.last_mut().unwrap() += usize::from(status == 200);
        }
    }
    assert_eq!(passed, [1, 2]);
}

#[test]
fn layer_and_service_go_anywhere() {
    fn goes_anywhere<T: Clone + Send + Sync + 'static>(_: &T) {}
    let layer = RateLimitLayer::new("1/s").unwrap();
    goes_anywhere(&layer);
    goes_anywhere(&layer.handle());
    goes_anywhere(&tower::Layer::layer(&layer, tower::service_fn(super::handler)));
}
