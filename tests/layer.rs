//! The layer with the feature `tower` alone: no axum, no events, nothing that other suites switch on.

#![allow(clippy::unwrap_used, reason = "tests")]

use http::{Request, Response};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tollgate::Clock;
use tollgate::rules::RouteRule;
use tollgate::tower::{PeerAddr, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test]
async fn requests_are_limited_by_address_and_path() {
    let (clock, hand) = Clock::manual();
    let layer = RateLimitLayer::builder()
        .limit("fixed 5/min")
        .rule(RouteRule::new("login", "log 2/15min").path("/login"))
        .exclude("/health")
        .clock(clock)
        .build()
        .unwrap();
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(String::from("served")))
    }));
    let admitted = async |path: &str, peer: &str| {
        let mut admitted = 0;
        for _ in 0..9 {
            let mut request = Request::builder().uri(path).body(()).unwrap();
            request.extensions_mut().insert(PeerAddr(peer.parse::<SocketAddr>().unwrap()));
            let response = service.clone().oneshot(request).await.unwrap();
            admitted += usize::from(response.status() == 200);
            assert_eq!(response.headers().contains_key("retry-after"), response.status() == 429);
        }
        admitted
    };
    assert_eq!(admitted("/login", "192.0.2.1:4711").await, 2);
    assert_eq!(admitted("/", "192.0.2.1:4712").await, 3);
    assert_eq!(admitted("/", "[::ffff:192.0.2.1]:4713").await, 0);
    assert_eq!(admitted("/", "[2001:db8::1]:4713").await, 5);
    assert_eq!(admitted("/health", "192.0.2.1:4711").await, 9);
    hand.advance(Duration::from_secs(60));
    assert_eq!(admitted("/", "192.0.2.1:4711").await, 5);
}
