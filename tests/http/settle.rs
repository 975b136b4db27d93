//! Charges that depend on the response.

use super::{Served, get, request, serve, with_header};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use std::convert::Infallible;
use std::time::Duration;
use tollgate::Clock;
use tollgate::rules::RouteRule;
use tollgate::tower::{MeterBytesLayer, ProblemJson, RateLimitLayer, Settle};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

fn failed_logins_only() -> Served<ProblemJson> {
    let builder = RateLimitLayer::builder()
        .rule(RouteRule::new("login", "log 5/15min").path("/login").method("POST"))
        .settle_by("login", |response| if response.is_success() { Settle::Refund } else { Settle::Keep });
    serve(builder)
}

fn login(status: &str) -> Request<()> {
    with_header(request("POST", "/login", "192.0.2.1"), "answer-with", status)
}

#[tokio::test]
async fn only_failed_logins_count() {
    let served = failed_logins_only();
    for _ in 0..50 {
        assert_eq!(served.status(login("200")).await, 200);
        assert_eq!(served.status(login("303")).await, 303);
    }
    for _ in 0..5 {
        assert_eq!(served.status(login("401")).await, 401);
    }
    assert_eq!(served.status(login("200")).await, 429, "even the right password has to wait now");
    served.hand.advance(Duration::from_secs(900));
    assert_eq!(served.status(login("200")).await, 200);
}

/// Logins that succeed, but are answered late: meanwhile, and before they are settled, come so many failures.
async fn late_successes(limit: &str, held: usize, late: Duration, failures: usize) -> Served<ProblemJson> {
    let builder = RateLimitLayer::builder()
        .rule(RouteRule::new("login", limit).path("/login").method("POST"))
        .settle_by("login", |response| if response.is_success() { Settle::Refund } else { Settle::Keep });
    let served = serve(builder);
    // Not at the beginning of a window.
    served.hand.advance(Duration::from_secs(60));
    let (release, released) = tokio::sync::watch::channel(false);
    let service = served.layer.layer(service_fn(move |_: Request<()>| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    let logins: Vec<_> = (0..held).map(|_| tokio::spawn(service.clone().oneshot(login("200")))).collect();
    tokio::task::yield_now().await;
    served.hand.advance(late);
    for _ in 0..failures {
        assert_eq!(served.status(login("401")).await, 401, "{limit}");
    }
    release.send(true).unwrap();
    for login in logins {
        assert_eq!(login.await.unwrap().unwrap().status(), 200, "{limit}");
    }
    served
}

#[tokio::test]
async fn a_late_refund_gives_back_nothing_that_others_spent() {
    for limit in ["log 5/15min", "fixed 5/15min", "sliding 5/15min", "5/15min"] {
        // 44 minutes: each of them has forgotten what was taken at the beginning.
        let served = late_successes(limit, 5, Duration::from_secs(44 * 60), 5).await;
        assert_eq!(served.status(login("401")).await, 429, "{limit}: five failures count");
    }
    // Just across the edge of a window, and of a log's.
    for limit in ["log 5/15min", "fixed 5/15min"] {
        let served = late_successes(limit, 5, Duration::from_secs(16 * 60), 5).await;
        assert_eq!(served.status(login("401")).await, 429, "{limit}: five failures count");
    }
    // Each of two fills up again within three minutes: there is nothing left of it to be given back.
    let served = late_successes("5/15min", 2, Duration::from_secs(3 * 60), 4).await;
    let mut more = 0;
    while served.status(login("401")).await == 401 {
        more += 1;
    }
    assert_eq!(more, 0, "each of the two had come back by itself");
}

/// A log forgets the token that was taken, not one that a later failure took.
#[tokio::test]
async fn a_refund_leaves_later_failures_to_their_time() {
    let served = late_successes("log 5/15min", 1, Duration::from_secs(14 * 60), 4).await;
    assert_eq!(served.status(login("401")).await, 401, "the one that was given back");
    served.hand.advance(Duration::from_secs(2 * 60));
    assert_eq!(served.status(login("401")).await, 429, "five failures within two minutes");
    served.hand.advance(Duration::from_secs(13 * 60));
    assert_eq!(served.status(login("401")).await, 401);
}

#[tokio::test]
async fn a_refund_in_time_gives_all_back() {
    for limit in ["log 5/15min", "fixed 5/15min", "sliding 5/15min", "5/15min"] {
        let served = late_successes(limit, 3, Duration::ZERO, 2).await;
        for _ in 0..3 {
            assert_eq!(served.status(login("401")).await, 401, "{limit}");
        }
        assert_eq!(served.status(login("401")).await, 429, "{limit}");
    }
}

/// By a clock that goes on: the first charge of a key, for which room is made, counts from a later time than the request.
#[tokio::test]
async fn a_refund_by_a_real_clock_gives_all_back() {
    for limit in ["log 1/15min", "fixed 1/26w", "sliding 1/26w", "1/15min"] {
        let layer = RateLimitLayer::builder()
            .rule(RouteRule::new("login", limit))
            .settle_by("login", |_| Settle::Refund)
            .build()
            .unwrap();
        let service = layer.layer(service_fn(super::handler));
        for client in 0..50 {
            for _ in 0..5 {
                let request = get("/", &format!("192.0.2.{client}"));
                assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200, "{limit}");
            }
        }
    }
}

/// The cost is taken before the call: at no time are more than five undecided.
#[tokio::test]
async fn guesses_at_once_do_not_get_past_the_limit() {
    let served = failed_logins_only();
    let (release, released) = tokio::sync::watch::channel(false);
    let waiting = service_fn(move |_: Request<()>| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            Ok::<_, Infallible>(Response::builder().status(401).body(String::new()).unwrap())
        }
    });
    let service = served.layer.layer(waiting);
    let guesses: Vec<_> = (0..50).map(|_| tokio::spawn(service.clone().oneshot(login("401")))).collect();
    tokio::task::yield_now().await;
    release.send(true).unwrap();
    let mut statuses = Vec::new();
    for guess in guesses {
        statuses.push(guess.await.unwrap().unwrap().status().as_u16());
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 5, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 45);
}

/// Whoever hangs up before the answer has had a guess all the same.
#[tokio::test]
async fn a_call_that_is_given_up_counts() {
    let served = failed_logins_only();
    for _ in 0..5 {
        let mut service = served.layer.layer(service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response<String>, Infallible>>()
        }));
        drop(service.ready().await.unwrap().call(login("200")));
    }
    assert_eq!(served.status(login("200")).await, 429);
}

#[tokio::test]
async fn an_error_of_the_service_passes_through_and_counts() {
    let served = failed_logins_only();
    for _ in 0..5 {
        let failing =
            served.layer.layer(service_fn(|_: Request<()>| async { Err::<Response<String>, _>("broken") }));
        assert_eq!(failing.oneshot(login("200")).await.unwrap_err(), "broken");
    }
    assert_eq!(served.status(login("200")).await, 429);
}

#[tokio::test]
async fn a_cost_known_afterwards_is_settled() {
    let builder =
        RateLimitLayer::builder().limit("100/min").cost_by(|_| 10).settle_by("default", |response| {
            Settle::Cost(
                response
                    .headers()
                    .get("tokens")
                    .map_or(0, |tokens| tokens.to_str().unwrap().parse().unwrap()),
            )
        });
    let served = serve(builder);
    let call = |tokens: &'static str| {
        let service = service_fn(move |_: Request<()>| async move {
            Ok::<_, Infallible>(Response::builder().header("tokens", tokens).body(String::new()).unwrap())
        });
        served.layer.layer(service).oneshot(get("/", "192.0.2.1"))
    };
    let left = || async {
        let response = served.call(get("/", "192.0.2.1")).await;
        response.headers()["ratelimit"]
            .to_str()
            .unwrap()
            .split(";r=")
            .nth(1)
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(call("3").await.unwrap().status(), 200);
    // The request that asks takes 10 itself, and gets them back.
    assert_eq!(left().await, 87);
    assert_eq!(call("187").await.unwrap().status(), 200);
    let refused = served.call(get("/", "192.0.2.1")).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "60", "90 beyond the burst, and the 10 that it asks for");
}

/// What a rule that watches has not taken is not given back either.
#[tokio::test]
async fn what_was_not_taken_is_not_given_back() {
    let builder = RateLimitLayer::builder()
        .rule(RouteRule::new("watch", "fixed 2/min").shadow())
        .settle_by("watch", |response| if response.is_success() { Settle::Refund } else { Settle::Keep });
    let served = serve(builder);
    for status in ["401", "401", "200", "401"] {
        assert_eq!(served.status(login(status)).await.to_string(), status);
    }
    assert_eq!(served.layer.handle().stats("watch").unwrap().shadow_denied, 2);
}

/// Settling is no decision: nobody asked.
#[tokio::test]
async fn settling_is_not_counted_as_a_decision() {
    for limit in ["20/min", "fixed 20/min", "fixed 20/min; 30/min"] {
        let rule = RouteRule::new("api", limit).tier("premium", "fixed 30/min").key("ip + header:plan | ip");
        let builder = RateLimitLayer::builder()
            .rule(rule)
            .count_decisions(true)
            .tier_by(|request| request.headers().contains_key("plan").then_some("premium"))
            .settle_by("api", |response| match response.status().as_u16() {
                200 => Settle::Cost(8),
                201 => Settle::Cost(0),
                _ => Settle::Cost(1000),
            });
        let served = serve(builder);
        for plan in [None, Some("premium")] {
            for status in ["200", "201", "202"] {
                let request = with_header(get("/", "192.0.2.1"), "answer-with", status);
                let request = match plan {
                    Some(plan) => with_header(request, "plan", plan),
                    None => request,
                };
                assert_eq!(served.status(request).await.to_string(), status);
            }
        }
        let stats = served.layer.handle().limiter("api").unwrap().stats();
        let allowed: u64 = stats.decisions.iter().map(|counted| counted.allowed).sum();
        let refused: u64 = stats.decisions.iter().map(|counted| counted.denied + counted.never_fits).sum();
        assert_eq!((allowed, refused), (6, 0), "{limit}: {stats:?}");
        // And what was settled is spent all the same.
        assert_eq!(served.status(get("/", "192.0.2.1")).await, 429, "{limit}");
    }
}

/// A body costs its bytes, whether its length is known before or not, however many layers count or charge for it.
#[tokio::test]
async fn a_body_costs_its_bytes_and_no_more() {
    let layer = |limit: &str| {
        let (clock, _hand) = Clock::manual();
        RateLimitLayer::builder()
            .limit(limit)
            .cost_by(|_| 100)
            .settle_by("default", |_| Settle::BytesSent)
            .clock(clock)
            .on_refusal(|refusal| {
                refusal.response(|text| http_body_util::Full::new(Bytes::from(text)).boxed_unsync())
            })
            .build()
            .unwrap()
    };
    let handler = |request: Request<()>| async move {
        let size: usize = request.uri().path()[1..].parse().unwrap();
        let bytes = Bytes::from(vec![0; size]);
        let body = match request.uri().query() {
            Some(_) => {
                let frames = [Ok::<_, Infallible>(hyper::body::Frame::data(bytes))];
                StreamBody::new(tokio_stream::iter(frames)).boxed_unsync()
            }
            None => http_body_util::Full::new(bytes).boxed_unsync(),
        };
        Ok::<_, Infallible>(Response::new(body))
    };
    // The first layer's limit is out of reach, and then the second's: the other one is charged all the same.
    for (path, outer, inner) in [
        ("/200", "1000/min", "9000/min"),
        ("/200?", "1000/min", "9000/min"),
        ("/200?", "9000/min", "1000/min"),
        ("/20", "1000/min", "9000/min"),
        ("/20?", "1000/min", "9000/min"),
        ("/20?", "9000/min", "1000/min"),
    ] {
        let service = ServiceBuilder::new()
            .layer(MeterBytesLayer)
            .layer(MeterBytesLayer)
            .layer(layer(outer))
            .layer(layer(inner))
            .service(service_fn(handler));
        let mut admitted = 0;
        loop {
            let response = service.clone().oneshot(get(path, "192.0.2.1")).await.unwrap();
            if response.status() == 429 {
                break;
            }
            response.into_body().collect().await.unwrap();
            admitted += 1;
        }
        // 100 have to be there, and as many as the body has bytes are gone.
        assert_eq!(admitted, if path.starts_with("/200") { 5 } else { 46 }, "{path} {outer} {inner}");
    }
}

/// A response without a body has none to pay for, whatever the service has made of it.
#[tokio::test]
async fn what_is_sent_without_a_body_costs_none() {
    let builder = || {
        RateLimitLayer::builder().limit("10/min").settle_by("default", |response| {
            match response.body_bytes() {
                Some(0) => Settle::Refund,
                _ => Settle::BytesSent,
            }
        })
    };
    let answering =
        |method: &str, status: &str| with_header(request(method, "/", "192.0.2.1"), "answer-with", status);
    let served = serve(builder());
    for (method, status) in [("HEAD", "200"), ("GET", "204"), ("GET", "304"), ("HEAD", "404")] {
        for _ in 0..20 {
            assert_eq!(served.status(answering(method, status)).await.to_string(), status, "{method}");
        }
    }
    let charged = serve(RateLimitLayer::builder().limit("10/min").charge_bytes("default"));
    for _ in 0..20 {
        assert_eq!(charged.status(answering("HEAD", "200")).await, 200);
    }
    for served in [served, charged] {
        assert_eq!(served.status(answering("GET", "200")).await, 200);
        assert_eq!(served.status(answering("GET", "200")).await, 200);
        assert_eq!(served.status(answering("GET", "200")).await, 429, "twice the six bytes of `served`");
    }
}

/// Whoever charges for bytes and has nobody who counts them is told, once.
#[tokio::test]
async fn bytes_that_nobody_counts_are_told_of() {
    for is_counted in [false, true] {
        let (tell, notices) = std::sync::mpsc::channel();
        let layer = RateLimitLayer::builder()
            .limit("1000/min")
            .charge_bytes("default")
            .on_notice(move |notice| tell.send(notice.to_string()).unwrap())
            .on_refusal(|refusal| refusal.response(|_| http_body_util::Empty::new().boxed_unsync()))
            .build()
            .unwrap();
        let service = layer.layer(service_fn(|_: Request<()>| async {
            let frames = [Ok::<_, Infallible>(hyper::body::Frame::data(Bytes::from_static(b"bytes")))];
            Ok::<_, Infallible>(Response::new(StreamBody::new(tokio_stream::iter(frames)).boxed_unsync()))
        }));
        for _ in 0..3 {
            let request = get("/", "192.0.2.1");
            match is_counted {
                false => drop(service.clone().oneshot(request).await.unwrap()),
                true => drop(MeterBytesLayer.layer(service.clone()).oneshot(request).await.unwrap()),
            }
        }
        let told: Vec<String> = notices.try_iter().collect();
        assert_eq!(told.len(), usize::from(!is_counted), "{told:?}");
        assert!(
            told.iter().all(|notice| notice.contains("rule `default`") && notice.contains("MeterBytesLayer"))
        );
    }
}

#[tokio::test]
async fn bytes_sent_count() {
    let (clock, _hand) = Clock::manual();
    let layer = RateLimitLayer::builder()
        .limit("1000/min")
        .settle_by("default", |_| Settle::BytesSent)
        .clock(clock)
        .on_refusal(|refusal| {
            refusal.response(|text| http_body_util::Full::new(Bytes::from(text)).boxed_unsync())
        })
        .build()
        .unwrap();
    let service = ServiceBuilder::new().layer(MeterBytesLayer).layer(layer).service(service_fn(
        |request: Request<()>| async move {
            let size: usize = request.uri().path()[1..].parse().unwrap();
            let body = match request.uri().query() {
                // In pieces, and nobody knows how many.
                Some(_) => {
                    let frames = (0..size / 100)
                        .map(|_| Ok::<_, Infallible>(hyper::body::Frame::data(Bytes::from(vec![0; 100]))));
                    StreamBody::new(tokio_stream::iter(frames)).boxed_unsync()
                }
                None => http_body_util::Full::new(Bytes::from(vec![0; size])).boxed_unsync(),
            };
            Ok::<_, Infallible>(Response::new(body))
        },
    ));
    let call = |path: &str, from: &str| service.clone().oneshot(get(path, from));
    for (one, two) in [("192.0.2.1", "/500"), ("192.0.2.2", "/500?pieces")] {
        for _ in 0..2 {
            let response = call(two, one).await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 500);
        }
        assert_eq!(call("/1", one).await.unwrap().status(), 429, "{two}: 1000 bytes have been sent");
    }
    // What was not sent is not paid for.
    let mut body = call("/900?pieces", "192.0.2.3").await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_eq!(call("/890", "192.0.2.3").await.unwrap().status(), 200);
}
