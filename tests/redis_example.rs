//! The example of three processes, run as it is on a server of its own.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

#[allow(dead_code, reason = "it is started from here")]
#[path = "../examples/redis_shared.rs"]
mod redis_shared;

use redis_support::{Server, programs};

/// Not a test by itself: what the processes of the other one run.
#[tokio::test]
async fn child() {
    if let Ok(url) = std::env::var("TOLLGATE_SHARED_CHILD") {
        redis_shared::child(&url).await.unwrap();
    }
}

#[tokio::test]
async fn three_processes_share_one_limit() {
    for program in programs() {
        let server = Server::start(program);
        let arguments = ["--exact", "child", "--nocapture", "--test-threads", "1"];
        let (admitted, most) = redis_shared::parent(&server.url(), &arguments).await.unwrap();
        let admitted = u32::try_from(admitted).unwrap();
        // A burst at least, however slow the machine is. Where the server does not answer in time because of that, each
        // goes by its share, and all shares together admit as much again.
        assert!(admitted >= 50 && f64::from(admitted) <= 2.0 * most, "{admitted} of {most}");
    }
}
