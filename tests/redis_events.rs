//! What the limiter tells of its breaker. Alone in its process: whether anybody listens is known to all threads at once.

#![cfg(all(feature = "redis", feature = "tracing"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{Server, eventually, redis};
use std::sync::{Arc, Mutex};
use tollgate::redis::BreakerState;

/// Keeps the state that each event of the limiter names.
struct Events(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "tollgate"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct State<'a>(&'a mut Vec<String>);
        impl tracing::field::Visit for State<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "state" {
                    self.0.push(format!("{value:?}"));
                }
            }
        }
        event.record(&mut State(&mut self.0.lock().unwrap()));
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn every_change_of_the_breaker_is_an_event_and_counted() {
    let states = Arc::new(Mutex::new(Vec::new()));
    let _here = tracing::subscriber::set_default(Events(Arc::clone(&states)));
    let mut server = Server::start(redis());
    let limiter = server.limiter("5/h").build().await.unwrap();
    server.kill();
    for _ in 0..3 {
        let _ = limiter.try_acquire("key").await;
    }
    server.restart();
    eventually("the breaker closes", async || limiter.stats().state == BreakerState::Closed).await;
    let states = states.lock().unwrap();
    assert_eq!(states.first().map(String::as_str), Some("open"));
    assert_eq!(states[states.len() - 2..], ["probing", "closed"]);
    assert_eq!(limiter.stats().breaker_changes, states.len() as u64);
}
