//! What responses say: by the draft's own syntax, and in the older styles.

use super::{get, request, serve, serve_rules, text, with_header};
use http::{Response, StatusCode};
use sfv::{BareItem, Item, List, ListEntry, Parser};
use std::time::Duration;
use tollgate::rules::RouteRule;
use tollgate::tower::{HeaderStyle, MissingKey, RateLimitLayer};

/// The items of a list: their names and integer parameters.
fn items(list: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list = Parser::new(list).parse::<List>().unwrap();
    list.into_iter()
        .map(|entry| {
            let ListEntry::Item(Item { bare_item: BareItem::String(name), params }) = entry else {
                panic!("no string: {entry:?}")
            };
            let params = params.into_iter().map(|(key, value)| match value {
                BareItem::Integer(number) => (key.into(), i64::from(number)),
                other => panic!("{key:?} is no integer: {other:?}"),
            });
            (name.into(), params.collect())
        })
        .collect()
}

fn params(pairs: &[(&str, i64)]) -> Vec<(String, i64)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

#[tokio::test]
async fn draft_11_is_a_structured_field() {
    let served = serve(RateLimitLayer::builder().limit("100/min named burst; fixed 1000/d named daily"));
    served.hand.advance(Duration::from_secs(86_400));
    let response = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(response.status(), 200);
    let policy = text(response.headers(), "ratelimit-policy").unwrap();
    assert_eq!(policy, r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
    assert_eq!(
        items(policy),
        [
            ("burst".to_owned(), params(&[("q", 100), ("w", 60)])),
            ("daily".to_owned(), params(&[("q", 1000), ("w", 86_400)])),
        ]
    );
    let limit = text(response.headers(), "ratelimit").unwrap();
    assert_eq!(limit, r#""burst";r=99;t=1"#);
    assert_eq!(items(limit), [("burst".to_owned(), params(&[("r", 99), ("t", 1)]))]);
    assert_eq!(text(response.headers(), "retry-after"), None);

    let mut refused = served.call(get("/", "192.0.2.1")).await;
    while refused.status() == 200 {
        refused = served.call(get("/", "192.0.2.1")).await;
    }
    assert_eq!(text(refused.headers(), "ratelimit"), Some(r#""burst";r=0;t=1"#));
    assert_eq!(text(refused.headers(), "ratelimit-policy"), Some(policy));
    assert_eq!(text(refused.headers(), "retry-after"), Some("1"), "0.6 s, rounded up");
}

/// As the drafts ask: `Retry-After` is not before the end of the window that the other fields tell of.
#[tokio::test]
async fn nobody_is_told_to_come_back_before_the_window_ends() {
    let limits = [
        "100/min",
        "90/min burst 20",
        "1000/s burst 2",
        "fixed 3/min",
        "log 3/100s",
        "sliding 3/min",
        "3/s; fixed 5/min",
    ];
    for limit in limits {
        for (style, field, before) in [
            (HeaderStyle::Draft11, "ratelimit", ";t="),
            (HeaderStyle::Draft7, "ratelimit", ", reset="),
            (HeaderStyle::Draft6, "ratelimit-reset", ""),
            (HeaderStyle::LegacyDelta, "x-ratelimit-reset", ""),
        ] {
            let served = serve(RateLimitLayer::builder().limit(limit).headers(style));
            for step in 0..60 {
                served.hand.advance(Duration::from_millis(step * 37));
                let mut response = served.call(get("/", "192.0.2.1")).await;
                while response.status() == 200 {
                    response = served.call(get("/", "192.0.2.1")).await;
                }
                let value = text(response.headers(), field).unwrap();
                let until: u64 = value[value.find(before).unwrap() + before.len()..].parse().unwrap();
                let wait: u64 = text(response.headers(), "retry-after").unwrap().parse().unwrap();
                assert!(1 <= until && until <= wait, "{limit} {style:?}: {wait} and {value}");
            }
        }
    }
}

#[tokio::test]
async fn a_rule_that_counts_bytes_says_so() {
    let served = serve(RateLimitLayer::builder().limit("1000/min").charge_bytes("default"));
    let response = served.call(get("/", "192.0.2.1")).await;
    let policy = text(response.headers(), "ratelimit-policy").unwrap();
    let list = Parser::new(policy).parse::<List>().unwrap();
    let ListEntry::Item(item) = &list[0] else { panic!("{policy}") };
    let unit = item.params.get("qu").and_then(|unit| unit.as_string()).map(sfv::StringRef::as_str);
    assert_eq!(unit, Some("content-bytes"), "{policy}");
    // Six bytes were sent before, and this request has paid for one so far.
    let response = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(text(response.headers(), "ratelimit"), Some(r#""default";r=993;t=1"#));
    let served =
        serve(RateLimitLayer::builder().limit("9/min").charge_bytes("default").headers(HeaderStyle::Draft7));
    let response = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(text(response.headers(), "ratelimit-policy"), Some("9;w=60"));
}

/// Not by the clock of the limiters, which is read once a process.
#[tokio::test]
async fn the_time_of_day_is_the_systems() {
    let layer =
        RateLimitLayer::builder().limit("fixed 10/52w").headers(HeaderStyle::LegacyEpoch).build().unwrap();
    let service = tower::Layer::layer(&layer, tower::service_fn(super::handler));
    let seconds = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let before = seconds();
    let response = tower::ServiceExt::oneshot(service, get("/", "192.0.2.1")).await.unwrap();
    let reset: u64 = text(response.headers(), "x-ratelimit-reset").unwrap().parse().unwrap();
    // Windows are aligned to the epoch.
    let window = 52 * 7 * 86_400;
    assert!(reset.abs_diff((before / window + 1) * window) <= 2, "{reset} after {before}");
}

#[tokio::test]
async fn every_policy_and_every_name_parses() {
    let name = "!#$%&'()*+,-./0:<=>?@[]^_`{|}~";
    for limit in ["1/ms", "5/s burst 2", "3/7s", "log 5/15min", "sliding 1048575/d", "999999999/s", "1/26w"] {
        let policy = format!("{limit} named {name}");
        let served = serve(RateLimitLayer::builder().limit(policy.as_str()));
        for _ in 0..3 {
            let response = served.call(get("/", "192.0.2.1")).await;
            for field in ["ratelimit", "ratelimit-policy"] {
                let found = items(text(response.headers(), field).unwrap());
                assert_eq!(found[0].0, name, "{limit}");
                assert!(found[0].1.iter().all(|(_, number)| *number >= 0), "{limit}: {found:?}");
            }
        }
    }
}

#[tokio::test]
async fn several_rules_are_one_list_and_the_tightest_is_told() {
    let rules = "
[[rule]]
name = 'default'
limit = 'fixed 100/min'

[[rule]]
name = 'strict'
match = { path = '/strict' }
limit = 'fixed 10/min'
";
    let served = serve_rules(rules);
    let response = served.call(get("/strict", "192.0.2.1")).await;
    let policy = text(response.headers(), "ratelimit-policy").unwrap();
    assert_eq!(policy, r#""default";q=100;w=60, "strict";q=10;w=60"#);
    assert_eq!(items(policy).len(), 2);
    assert_eq!(text(response.headers(), "ratelimit"), Some(r#""strict";r=9;t=60"#));
    let response = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(text(response.headers(), "ratelimit-policy"), Some(r#""default";q=100;w=60"#));
    assert_eq!(text(response.headers(), "ratelimit"), Some(r#""default";r=98;t=60"#));
}

#[tokio::test]
async fn older_styles() {
    for (style, expected) in [
        (
            HeaderStyle::Draft7,
            &[("ratelimit", "limit=10, remaining=9, reset=50"), ("ratelimit-policy", "10;w=60")] as &[_],
        ),
        (
            HeaderStyle::Draft6,
            &[
                ("ratelimit-limit", "10"),
                ("ratelimit-remaining", "9"),
                ("ratelimit-reset", "50"),
                ("ratelimit-policy", "10;w=60"),
            ],
        ),
        (
            HeaderStyle::LegacyDelta,
            &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "50")],
        ),
        (
            HeaderStyle::LegacyEpoch,
            &[
                ("x-ratelimit-limit", "10"),
                ("x-ratelimit-remaining", "9"),
                // The clock by hand counts from zero.
                ("x-ratelimit-reset", "1200000060"),
            ],
        ),
        (HeaderStyle::Off, &[]),
    ] {
        let served = serve(RateLimitLayer::builder().limit("fixed 10/min").headers(style));
        served.hand.set(Duration::from_millis(1_200_000_010_250));
        let response = served.call(get("/", "192.0.2.1")).await;
        let found: Vec<_> =
            expected.iter().map(|(name, _)| (*name, text(response.headers(), name).unwrap())).collect();
        assert_eq!(found, expected, "{style:?}");
        assert_eq!(response.headers().len(), expected.len(), "{style:?}: {:?}", response.headers());
    }
}

#[tokio::test]
async fn only_refusals_speak_if_told_so() {
    let served = serve(RateLimitLayer::builder().limit("1/min").headers_on_refusals_only());
    assert!(served.call(get("/", "192.0.2.1")).await.headers().is_empty());
    assert!(served.call(get("/", "192.0.2.1")).await.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn a_refusal_is_a_problem_in_json() {
    let served = serve(RateLimitLayer::builder().limit("fixed 1/min named api"));
    served.status(get("/", "192.0.2.1")).await;
    let refused = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(refused.headers(), "content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(refused.body()).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["api"]));
    assert_eq!(problem["retry_after"], 60);
}

#[tokio::test]
async fn what_never_fits_names_no_time() {
    let served = serve(RateLimitLayer::builder().limit("fixed 3/min").cost_by(|_| 4));
    let refused = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(text(refused.headers(), "retry-after"), None);
    let problem: serde_json::Value = serde_json::from_str(refused.body()).unwrap();
    assert!(problem.get("retry_after").is_none(), "{problem}");
}

#[tokio::test]
async fn a_closure_may_say_it_in_its_own_way() {
    let builder = RateLimitLayer::builder().limit("fixed 1/min").on_refusal(|refusal| {
        let text =
            format!("{} says wait {}", refusal.limit_name().unwrap(), refusal.retry_after_seconds().unwrap());
        Response::builder().status(503).header("retry-after", "99").body(text).unwrap()
    });
    let served = serve(builder);
    served.status(get("/", "192.0.2.1")).await;
    let refused = served.call(get("/", "192.0.2.1")).await;
    assert_eq!((refused.status().as_u16(), refused.body().as_str()), (503, "default says wait 60"));
    assert_eq!(text(refused.headers(), "retry-after"), Some("99"), "what the closure says stays");
    assert_eq!(text(refused.headers(), "ratelimit"), Some(r#""default";r=0;t=60"#));
}

#[tokio::test]
async fn grpc_is_answered_in_its_own_terms() {
    let builder = RateLimitLayer::builder()
        .limit("1/min")
        .rule(RouteRule::new("token", "1/s").key("header:token").path("/token"))
        .missing_key(MissingKey::Deny);
    let served = serve(builder);
    let speaking_grpc = |request| {
        let mut request = with_header(request, "content-type", "application/grpc+proto");
        *request.version_mut() = http::Version::HTTP_2;
        with_header(request, "te", "trailers")
    };
    let call = |path| speaking_grpc(request("POST", path, "192.0.2.1"));
    served.status(call("/package.Service/Method")).await;
    let refused = served.call(call("/package.Service/Method")).await;
    assert_eq!(refused.status(), 200);
    assert_eq!(text(refused.headers(), "content-type"), Some("application/grpc+proto"));
    assert_eq!(text(refused.headers(), "grpc-status"), Some("8"));
    assert_eq!(text(refused.headers(), "grpc-message"), Some("rate limit reached"));
    assert!(refused.headers().contains_key("grpc-status-details-bin"));
    assert_eq!(text(refused.headers(), "cache-control"), Some("no-store"));
    assert!(refused.body().is_empty());
    let refused = served.call(call("/token")).await;
    assert_eq!(text(refused.headers(), "grpc-status"), Some("7"));
    // gRPC is a POST over HTTP/2 that takes trailers: what calls itself gRPC otherwise must not get a refusal that
    // looks like a success.
    let mut old = call("/");
    *old.version_mut() = http::Version::HTTP_11;
    let mut bare = call("/");
    bare.headers_mut().remove("te");
    let others = ["GET", "HEAD", "PUT"].map(|method| speaking_grpc(request(method, "/", "192.0.2.1")));
    for odd in others.into_iter().chain([old, bare]) {
        let shown = format!("{odd:?}");
        let refused = served.call(odd).await;
        assert_eq!(refused.status(), 429, "{shown}");
        assert_eq!(text(refused.headers(), "cache-control"), Some("no-store"));
        assert_eq!(text(refused.headers(), "grpc-status"), None);
    }
    // And where nobody serves gRPC, whatever it calls itself.
    let served = serve(RateLimitLayer::builder().limit("1/min").never_grpc());
    served.status(call("/")).await;
    assert_eq!(served.status(call("/")).await, 429);
}
