//! What a layer shows of its limiters.

use super::{get, serve};
use std::sync::Arc;
use tollgate::rules::RouteRule;
use tollgate::tower::RateLimitLayer;

#[tokio::test]
async fn limiters_have_names_and_counts() {
    let rule = || RouteRule::new("login", "fixed 2/min").path("/login");
    let served = serve(RateLimitLayer::builder().rule(rule()).count_decisions(true));
    served.admitted(5, |_| get("/login", "192.0.2.1")).await;
    let handle = served.layer.handle();
    let limiter = handle.limiter("login").unwrap();
    assert_eq!(limiter.name(), Some("login"));
    let stats = limiter.stats();
    let counted = &stats.decisions[0];
    assert_eq!((&*counted.rule, counted.allowed, counted.denied), ("login", 2, 3), "{stats:?}");
    assert!(handle.limiter("logout").is_none());
    #[cfg(any(feature = "metrics", feature = "prometheus"))]
    tollgate::export::Exporter::new().add("login", &limiter);

    // It is the one in force, and stays so as long as its key and room do.
    handle.reload("rule = []").unwrap();
    assert!(Arc::ptr_eq(&limiter, &handle.limiter("login").unwrap()));

    let served = serve(RateLimitLayer::builder().rule(rule()));
    assert!(
        served.layer.handle().limiter("login").unwrap().stats().decisions.is_empty(),
        "not unless asked for"
    );
}
