//! What is said to whoever listens, and how often.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may stop")]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate::{Clock, Limiter, WhenFull};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Keeps every event as a line of its level and fields.
#[derive(Clone, Default)]
struct Listener {
    events: Arc<Mutex<Vec<String>>>,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl<S: Subscriber> Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        assert_eq!(event.metadata().target(), "tollgate");
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        self.events.lock().unwrap().push(fields.0);
    }
}

/// What was said while `act` was at work.
fn heard(act: impl FnOnce()) -> Vec<String> {
    let listener = Listener::default();
    let subscriber = tracing_subscriber::registry().with(listener.clone());
    tracing::subscriber::with_default(subscriber, act);
    let events = listener.events.lock().unwrap();
    events.clone()
}

#[test]
fn a_refusal_says_which_rule_and_for_how_long() {
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder().policy("1/h named export").named("api").trace_refusals(1).clock(clock);
    let limiter = limiter.build().unwrap();
    let events = heard(|| {
        assert!(limiter.try_acquire("key").is_allowed());
        assert!(limiter.try_acquire("key").is_denied());
        assert!(limiter.tier("none").is_none());
    });
    assert_eq!(
        events,
        [
            "DEBUG message=request refused limiter=\"api\" outcome=denied cause=rule rule=0 rule_name=\"export\" \
          cost=1 limit=1 retry_after=Some(3600s) one_in=1"
        ]
    );
}

#[test]
fn one_in_so_many_refusals_is_told() {
    for (one_in, expected) in [(0, 0..1), (1, 1000..1001), (10, 60..150)] {
        let limiter = Limiter::builder().policy("1/h").trace_refusals(one_in).build().unwrap();
        let told = heard(|| {
            for _ in 0..=1000 {
                let _ = limiter.try_acquire("key");
            }
        });
        assert!(expected.contains(&told.len()), "{} told of 1000, one in {one_in}", told.len());
    }
    // Nothing unless asked for.
    let limiter = Limiter::new("1/h").unwrap();
    assert!(heard(|| (0..100).for_each(|_| assert!(limiter.try_acquire("key").limit() == 1))).is_empty());
}

#[test]
fn a_reload_is_told_once() {
    let limiter = Limiter::builder().policy("1/h").tier("premium", "5/h").named("api").build().unwrap();
    let events = heard(|| {
        limiter.set_policy("2/h").unwrap();
        limiter.set_policy("2/h").unwrap();
        limiter.set_policy("no policy").unwrap_err();
        limiter.tier("premium").unwrap().set_policy("6/h").unwrap();
    });
    assert_eq!(
        events,
        [
            "WARN message=policy changed limiter=\"api\" before=1/h after=2/h",
            "WARN message=policy changed limiter=\"api\" tier=\"premium\" before=5/h after=6/h",
        ]
    );
}

#[test]
fn a_storm_on_a_full_table_does_not_flood_the_log() {
    for when_full in [WhenFull::Evict, WhenFull::Deny, WhenFull::Allow] {
        let (clock, hand) = Clock::manual();
        let limiter = Limiter::builder().policy("1/h").max_keys(8).when_full(when_full).clock(clock);
        let limiter = limiter.build().unwrap();
        let fill =
            |from: u64| (from..from + 1000).for_each(|key| assert_eq!(limiter.try_acquire(&key).cost(), 1));
        let events = heard(|| {
            fill(0);
            hand.advance(Duration::from_secs(10));
            fill(1000);
        });
        let line = |unsaid| {
            format!(
                "WARN message=no room for another key limiter=\"unnamed\" action={when_full:?} unsaid={unsaid}"
            )
        };
        assert_eq!(events, [line(0), line(991)]);
    }
}

#[test]
fn nobody_is_told_where_the_level_is_off() {
    let limiter = Limiter::builder().policy("1/h").trace_refusals(1).build().unwrap();
    let listener = Listener::default();
    let filter = tracing_subscriber::filter::LevelFilter::from_level(Level::WARN);
    let subscriber = tracing_subscriber::registry().with(listener.clone().with_filter(filter));
    tracing::subscriber::with_default(subscriber, || {
        let _ = limiter.try_acquire("key");
        let _ = limiter.try_acquire("key");
        limiter.set_policy("3/h").unwrap();
    });
    assert_eq!(listener.events.lock().unwrap().len(), 1, "the reload alone");
}
