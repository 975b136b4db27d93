//! A backend as a dashboard and a log see it: answered, then gone, then back.

#![cfg(all(feature = "redis", feature = "prometheus", feature = "tracing"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use redis_support::{Server, eventually, redis};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tollgate::export::Exporter;
use tollgate::redis::{BreakerState, Leasing};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Keeps the states that warnings tell of.
#[derive(Clone, Default)]
struct States(Arc<Mutex<Vec<String>>>);

impl Visit for States {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "state" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl<S: Subscriber> Layer<S> for States {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() == Level::WARN && event.metadata().target() == "tollgate" {
            event.record(&mut self.clone());
        }
    }
}

// On one thread, whose listener hears everything.
#[tokio::test]
async fn a_backend_is_shown_answered_gone_and_back() {
    let states = States::default();
    let _listening = tracing::subscriber::set_default(tracing_subscriber::registry().with(states.clone()));
    let mut server = Server::start(redis());
    let limiter = server.limiter("1000/s burst 1000").leased(Leasing::new());
    let limiter = limiter.count_decisions(true).build().await.unwrap();
    let exporter = Exporter::new();
    exporter.add_redis("sessions", &limiter);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(exporter));
    let value = |sample: &str| -> u64 {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {sample} in {text}"))
    };
    let state =
        |state: &str| value(&format!("tollgate_backend_state{{limiter=\"sessions\",state=\"{state}\"}}"));
    let tokens = |event: &str| {
        value(&format!("tollgate_lease_tokens_total{{limiter=\"sessions\",event=\"{event}\"}}"))
    };
    let calls = |result: &str| {
        value(&format!("tollgate_backend_calls_total{{limiter=\"sessions\",result=\"{result}\"}}"))
    };

    let decisions = |outcome: &str| {
        value(&format!(
            "tollgate_decisions_total{{limiter=\"sessions\",tier=\"\",cause=\"rule\",rule=\"0\",outcome=\"{outcome}\"}}"
        ))
    };

    for _ in 0..200 {
        assert!(limiter.try_acquire("key").await.is_allowed());
    }
    assert!(limiter.try_acquire_n("other", 1000).await.is_allowed());
    assert!(limiter.try_acquire_n("other", 900).await.is_denied());
    assert!(limiter.try_acquire_n("other", 1001).await.is_denied());
    let _not_counted = limiter.peek("key").await;
    assert_eq!((decisions("allowed"), decisions("denied"), decisions("never_fits")), (201, 1, 1));
    assert_eq!((state("closed"), state("open")), (1, 0));
    assert!(calls("answered") > 0);
    assert_eq!(
        value("tollgate_backend_latency_seconds_count{limiter=\"sessions\"}"),
        limiter.stats().latency.counts.iter().sum()
    );
    assert!(tokens("taken") >= tokens("spent") && tokens("spent") > 0);

    server.kill();
    eventually("the breaker opens", async || {
        let _ = limiter.try_acquire("key").await;
        limiter.stats().state != BreakerState::Closed
    })
    .await;
    assert_eq!(state("closed"), 0);
    assert!(calls("failed") + calls("timed_out") > 0);

    server.restart();
    eventually("the breaker closes", async || limiter.stats().state == BreakerState::Closed).await;
    assert_eq!(state("closed"), 1);
    assert_eq!(*states.0.lock().unwrap(), ["open", "closed"]);
}
