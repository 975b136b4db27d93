//! What clients may try: each ends with the right key, no panic, and no more memory than at the beginning.

use super::{get, request, serve, serve_rules, with_header};
use http::HeaderValue;
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::rules::RouteRule;
use tollgate::tower::{ClientIp, RateLimitLayer};

#[tokio::test]
async fn a_spoofed_header_is_not_believed() {
    // Without proxies no header counts, whoever sends it.
    let served = serve(RateLimitLayer::builder().limit("fixed 5/min"));
    let spoofed =
        |n: usize| with_header(get("/", "192.0.2.1"), "x-forwarded-for", &format!("198.51.100.{n}"));
    assert_eq!(served.admitted(100, spoofed).await, 5);

    // With proxies, a client that comes directly is not believed, and one that comes through a proxy only puts its
    // inventions to the left of what the proxy adds.
    let client_ip = ClientIp::x_forwarded_for(["10.0.0.0/8"]).unwrap();
    let served = serve(RateLimitLayer::builder().limit("fixed 5/min").client_ip(client_ip));
    assert_eq!(served.admitted(100, spoofed).await, 5);
    let through = |n: usize| {
        let list = format!("198.51.100.{n}, 10.0.0.{n}, 203.0.113.7");
        with_header(get("/", "10.0.0.1"), "x-forwarded-for", &list)
    };
    assert_eq!(served.admitted(100, through).await, 5);
    // Another header than the one that was named is never looked at.
    let other = |n: usize| with_header(through(0), "forwarded", &format!("for=198.51.100.{n}"));
    assert_eq!(served.admitted(100, other).await, 0);
}

/// A proxy quotes what a client sent, such as the host: what is in the quotes is for nobody.
#[tokio::test]
async fn what_a_proxy_quotes_is_not_read() {
    let client_ip = ClientIp::forwarded(["10.0.0.0/8"]).unwrap();
    let found = |list: &str| {
        let request = with_header(get("/", "10.0.0.1"), "forwarded", list);
        client_ip.find(request.headers(), request.extensions()).unwrap().to_string()
    };
    for list in [
        r#"for=198.51.100.7;host="a,for=203.0.113.9;x""#,
        r#"host="a;for=203.0.113.9;b";for=198.51.100.7"#,
        r#"host="a\",for=203.0.113.9;x=\"";for="198.51.100.7:80""#,
        r#"for=203.0.113.9;host="a,b", for=198.51.100.7;host="\\" , for=10.0.0.2"#,
        r#"for=203.0.113.9, FOR="198.51.100.7" ; by=10.0.0.1"#,
        // However a client turns the quotes before what the proxy adds.
        r#"x=", for=198.51.100.7"#,
        r#"x=", for=198.51.100.7;host="a,for=203.0.113.9""#,
        r#"x=", for=198.51.100.7;host=",for=203.0.113.9;x=\"b""#,
        r#"x=", for=198.51.100.7;host="\",for=203.0.113.9;x=""#,
        r#"x="\, for="198.51.100.7";host=",for=203.0.113.9;x=\"b\\""#,
    ] {
        assert_eq!(found(list), "198.51.100.7", "{list}");
    }
    // Quotes that do not fit: the proxy is all that is known.
    for list in [
        r#"for=198.51.100.7;host="a"#,
        r#"for=198.51.100.7;host=a"b,for=203.0.113.9"c"#,
        r#"for=198.51.100.7;host="a"b"#,
        r#"for=203.0.113.9;x", for=10.0.0.1"#,
    ] {
        assert_eq!(found(list), "10.0.0.1", "{list}");
    }
}

#[tokio::test]
async fn many_lines_of_a_header_are_one_list() {
    let client_ip = ClientIp::x_forwarded_for(["10.0.0.0/8"]).unwrap();
    let served = serve(RateLimitLayer::builder().limit("fixed 5/min").client_ip(client_ip));
    let storm = |n: usize| {
        let mut request = get("/", "10.0.0.1");
        for line in 0..500 {
            request = with_header(request, "x-forwarded-for", &format!("198.51.{}.{}", line % 256, n));
        }
        with_header(request, "x-forwarded-for", "203.0.113.7, 10.0.0.2")
    };
    assert_eq!(served.admitted(20, storm).await, 5);
}

#[tokio::test]
async fn a_storm_of_mapped_addresses_is_one_client() {
    let served = serve(RateLimitLayer::builder().limit("fixed 5/min"));
    let written = ["192.0.2.1", "::ffff:192.0.2.1", "::ffff:c000:201", "0:0:0:0:0:ffff:192.0.2.1"];
    assert_eq!(served.admitted(100, |n| get("/", written[n % written.len()])).await, 5);
    // All of IPv4 lies in one /64 of IPv6: it must not become one budget.
    assert_eq!(served.admitted(3, |n| get("/", &format!("::ffff:198.51.100.{n}"))).await, 3);
}

#[tokio::test]
async fn addresses_within_a_prefix_share_a_budget() {
    let served = serve(RateLimitLayer::builder().limit("fixed 5/min"));
    assert_eq!(served.admitted(1000, |n| get("/", &format!("2001:db8:1:2:{n:x}::{n:x}"))).await, 5);
    assert_eq!(served.admitted(9, |n| get("/", &format!("2001:db8:1:3::{n:x}"))).await, 5, "the next /64");
    let served = serve(RateLimitLayer::builder().limit("fixed 5/min").key("ip/56"));
    assert_eq!(served.admitted(256, |n| get("/", &format!("2001:db8:1:{n:x}::1"))).await, 5);
    assert_eq!(served.layer.handle().stats("default").unwrap().live_keys, 1);
}

#[tokio::test]
async fn oversized_headers_are_keys_like_any_other() {
    let client_ip = ClientIp::x_forwarded_for(["10.0.0.0/8"]).unwrap();
    let builder =
        RateLimitLayer::builder().limit("fixed 5/min").key("header:x-api-key | ip").client_ip(client_ip);
    let served = serve(builder);
    let long = "k".repeat(60_000);
    assert_eq!(served.admitted(9, |_| with_header(get("/", "192.0.2.1"), "x-api-key", &long)).await, 5);
    assert_eq!(served.admitted(9, |_| with_header(get("/", "192.0.2.1"), "x-api-key", &long[1..])).await, 5);
    let list = format!("{}203.0.113.7", "x, ".repeat(20_000));
    assert_eq!(served.admitted(9, |_| with_header(get("/", "10.0.0.1"), "x-forwarded-for", &list)).await, 5);
    assert_eq!(served.admitted(9, |_| get("/", "203.0.113.7")).await, 0, "the same client");
    // Bytes that are no text: neither an address nor a panic.
    let odd = |_| {
        let mut request = get("/", "10.0.0.3");
        request.headers_mut().insert("x-forwarded-for", HeaderValue::from_bytes(b"\xff\xfe, \x80").unwrap());
        request.headers_mut().insert("x-api-key", HeaderValue::from_bytes(b"").unwrap());
        request
    };
    assert_eq!(served.admitted(9, odd).await, 5);
}

#[tokio::test]
async fn keys_without_end_take_no_more_memory() {
    for (when_full, admitted) in [(WhenFull::Evict, 20_000), (WhenFull::Deny, 0)] {
        let rule =
            RouteRule::new("api", "fixed 1/min").key("header:x-api-key").max_keys(1000).when_full(when_full);
        let served = serve(RateLimitLayer::builder().rule(rule));
        let before = served.layer.handle().stats("api").unwrap();
        let passed = served
            .admitted(20_000, |n| with_header(get("/", "192.0.2.1"), "x-api-key", &format!("k{n}")))
            .await;
        let after = served.layer.handle().stats("api").unwrap();
        assert_eq!(before.bytes, after.bytes);
        assert!(after.live_keys <= after.slots, "{after:?}");
        assert!(passed >= admitted.min(20_000) && passed >= 1000, "{when_full:?}: {passed}");
        served.hand.advance(Duration::from_secs(60));
        assert_eq!(served.layer.handle().stats("api").unwrap().live_keys, 0);
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_gets_past_a_strict_route() {
    let rules = "
exclude = ['/health']

[[rule]]
name = 'login'
match = { path = '/login', method = 'POST' }
limit = 'fixed 3/min'
";
    let served = serve_rules(rules);
    let spellings = [
        "/login",
        "//login",
        "/login/",
        "/./login",
        "/x/../login",
        "/%6cogin",
        "/%6C%6Fgin?x=/health",
        "/login?a",
        "/x/%2e%2e/login",
        "/health/../login",
        "/health/%2E%2e%2flogin",
        "http://other.example/login",
        "/health%2f..%2Flogin",
        "/login;a=b",
        "/health/..;a/login",
        "/health%5c..%5clogin",
    ];
    assert_eq!(
        served
            .admitted(2 * spellings.len(), |n| request("POST", spellings[n % spellings.len()], "192.0.2.1"))
            .await,
        3
    );
    assert_eq!(served.admitted(9, |_| request("POST", "/health", "192.0.2.1")).await, 9);
}

/// A generous rule for one reading of a path does not lift the rules for whatever else it may be.
#[tokio::test]
async fn a_generous_rule_does_not_cover_other_readings() {
    let rules = "
[[rule]]
name = 'bulk'
match = { path = '/bulk/**' }
limit = 'fixed 1000/min'

[[rule]]
name = 'rest'
limit = 'fixed 3/min'
otherwise = true
";
    for odd in
        ["/bulk/../login", "/x%2F..%2Fbulk/a", "/bulk/%2e%2e/login", "/bulk/..;/login", "/bulk/..\\login"]
    {
        let served = serve_rules(rules);
        let mut passed = 0;
        for _ in 0..9 {
            let mut request = get("/", "192.0.2.1");
            let Ok(uri) = odd.parse() else { panic!("{odd} is no target") };
            *request.uri_mut() = uri;
            passed += usize::from(served.status(request).await == 200);
        }
        assert_eq!(passed, 3, "{odd}");
    }
    // All readings are bulk.
    for even in ["/bulk/a", "/bulk//a/", "/bulk/%61", "/bulk/a/../b", "/bulk/a%2Fb", "/bulk/a;b"] {
        assert_eq!(serve_rules(rules).admitted(9, |_| get(even, "192.0.2.1")).await, 9, "{even}");
    }
}

/// Requests that were made of noise: whatever they are, an answer comes back.
#[tokio::test]
async fn noise_is_answered() {
    let client_ip = ClientIp::forwarded(["0.0.0.0/0", "::/0"]).unwrap().trust_unknown_peer();
    let builder = RateLimitLayer::builder()
        .limit("1000000/s")
        .key("header:x-api-key | ip + path + method")
        .rule(RouteRule::new("param", "1000000/s").path("/{a}/{b}/**").key("param:a + route"))
        .client_ip(client_ip);
    let served = serve(builder);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..5_000 {
        let noise = |length: u64, alphabet: &[u8], next: &mut dyn FnMut() -> u64| -> String {
            let pick = |bits: u64| char::from(alphabet[usize::try_from(bits).unwrap() % alphabet.len()]);
            (0..length).map(|_| pick(next() >> 33)).collect()
        };
        let (path_length, header_length) = (next() % 40, next() % 60);
        let path = format!("/{}", noise(path_length, b"/.%2eFf50a;~", &mut next));
        let list = noise(header_length, b"for=\"[]:;, .0123456789abcdef\\_", &mut next);
        let key = noise(header_length % 3, b" k", &mut next);
        let Ok(uri) = path.parse::<http::Uri>() else { continue };
        let mut request = get("/", "");
        *request.uri_mut() = uri;
        let request = with_header(with_header(request, "forwarded", &list), "x-api-key", key.trim());
        assert_eq!(served.status(request).await, 200);
    }
}
