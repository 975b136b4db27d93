//! The examples, with real clients over real sockets.

use super::text;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tollgate::Clock;
use tollgate::tower::RateLimitLayer;

#[allow(dead_code, unreachable_pub, reason = "an example has a `main`")]
#[path = "../../examples/axum_service.rs"]
mod axum_service;
#[allow(dead_code, unreachable_pub, reason = "an example has a `main`")]
#[path = "../../examples/hyper_service.rs"]
mod hyper_service;
#[allow(dead_code, unreachable_pub, reason = "an example has a `main`")]
#[path = "../../examples/tonic_service.rs"]
mod tonic_service;

/// A server that ends with the test.
struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

struct Browser {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

impl Browser {
    fn new(address: SocketAddr) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), address }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &'static str,
    ) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client.request(request.body(Full::from(body)).unwrap()).await.unwrap()
    }

    async fn get(&self, path: &str) -> Response<Incoming> {
        self.send("GET", path, &[], "").await
    }

    async fn admitted(&self, tries: usize, path: &str, headers: &[(&str, &str)]) -> usize {
        let mut admitted = 0;
        for _ in 0..tries {
            admitted += usize::from(self.send("GET", path, headers, "").await.status() == 200);
        }
        admitted
    }
}

async fn body_of(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn start_axum(layer: RateLimitLayer) -> Server {
    let (listener, address) = listen().await;
    let app = tower::Layer::layer(&layer, axum_service::routes());
    Server {
        address,
        task: tokio::spawn(async move { axum_service::serve(listener, app).await.unwrap_or_default() }),
    }
}

#[tokio::test]
async fn the_axum_example() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rules.toml");
    let (clock, hand) = Clock::manual();
    let layer = axum_service::limits().rules_file(rules).clock(clock).build().unwrap();
    let handle = layer.handle();
    let server = start_axum(layer).await;
    let browser = Browser::new(server.address);

    let response = browser.get("/").await;
    assert_eq!(response.status(), 200);
    assert_eq!(text(response.headers(), "ratelimit-policy"), Some(r#""default";q=100;w=60"#));
    assert_eq!(text(response.headers(), "ratelimit"), Some(r#""default";r=99;t=60"#));
    assert_eq!(body_of(response).await, "hello\n");

    assert_eq!(browser.admitted(15, "/reports/7", &[]).await, 10);
    assert_eq!(browser.admitted(200, "/", &[]).await, 89);
    let refused = browser.get("/").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(text(refused.headers(), "retry-after"), Some("60"));
    assert_eq!(text(refused.headers(), "content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&body_of(refused).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["default"]));

    assert_eq!(browser.admitted(200, "/health", &[]).await, 200);
    assert_eq!(browser.admitted(200, "/metrics", &[]).await, 200);
    assert_eq!(browser.admitted(200, "/", &[("x-api-key", "key-of-acme")]).await, 200, "a premium customer");
    assert_eq!(browser.admitted(9, "/", &[("x-api-key", "another")]).await, 0, "nobody's key");
    assert_eq!(browser.admitted(9, "/", &[("x-forwarded-for", "198.51.100.7")]).await, 0, "nobody's proxy");

    // A client that reads the header and waits is admitted.
    hand.advance(Duration::from_secs(60));
    assert_eq!(browser.get("/").await.status(), 200);

    let login = |password| browser.send("POST", "/login", &[], password);
    for _ in 0..20 {
        assert_eq!(login("open sesame").await.status(), 200);
    }
    for _ in 0..5 {
        assert_eq!(login("guess").await.status(), 401);
    }
    assert_eq!(login("guess").await.status(), 429);

    let login_and =
        |rest: &str| format!("[[rule]]\nname = 'login'\nlimit = 'log 5/15min'\nkey = 'ip'\n{rest}");
    handle
        .reload(&login_and("match = { path = '/login' }\n[[rule]]\nname = 'few'\nlimit = 'fixed 2/min'"))
        .unwrap();
    assert_eq!(browser.admitted(9, "/", &[]).await, 2, "other rules while it serves");
    assert_eq!(login("open sesame").await.status(), 429, "and what was spent stays spent");
}

/// As it is started without a word: the limits are on, and a few guesses meet them.
#[tokio::test]
async fn the_axum_example_by_itself() {
    let (listener, address) = listen().await;
    let task = tokio::spawn(async move { axum_service::run(listener, None).await.unwrap_or_default() });
    let server = Server { address, task };
    let browser = Browser::new(server.address);
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(browser.send("POST", "/login", &[], "a guess").await.status().as_u16());
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 429]);

    let (listener, address) = listen().await;
    let task = tokio::spawn(async move {
        axum_service::run(listener, Some("--no-limits")).await.unwrap_or_default();
    });
    let server = Server { address, task };
    assert_eq!(Browser::new(server.address).admitted(150, "/", &[]).await, 150);
}

/// Under the rules as they are shipped, whoever invents a key for each request has the budget of an address.
#[tokio::test]
async fn invented_keys_gain_nothing() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rules.toml");
    let served = super::serve(axum_service::limits().rules_file(rules));
    let keyed = |path: &str, from, n: usize| {
        super::with_header(super::get(path, from), "x-api-key", &format!("key-{n}"))
    };
    assert_eq!(served.admitted(500, |n| keyed("/", "192.0.2.1", n)).await, 100);
    assert_eq!(served.admitted(50, |_| super::get("/", "192.0.2.1")).await, 0);
    assert_eq!(served.admitted(50, |n| keyed("/reports/7", "192.0.2.2", n)).await, 10);
}

/// What the README shows is compiled, as an example.
#[test]
fn the_readme_has_the_example() {
    let [readme, example] = ["README.md", "examples/axum_login.rs"]
        .map(|name| std::fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap());
    let (_, code) = example.split_once("\n\n").unwrap();
    assert!(code.contains("fn main") && readme.contains(&format!("```rust,ignore\n{code}```")));
}

/// The three lines of the guide, with the default body.
#[tokio::test]
async fn three_lines_of_axum() {
    let (listener, address) = listen().await;
    let app = axum::Router::new()
        .route("/", axum::routing::get(|| async { "hello" }))
        .layer(RateLimitLayer::new("fixed 3/d").unwrap());
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server =
        Server { address, task: tokio::spawn(async move { axum::serve(listener, service).await.unwrap() }) };
    assert_eq!(Browser::new(server.address).admitted(9, "/", &[]).await, 3);
}

/// Many clients at once: as many pass as the rule allows, to the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_is_admitted_exactly() {
    let server = start_axum(RateLimitLayer::new("fixed 500/d").unwrap()).await;
    let mut crowd = Vec::new();
    for _ in 0..16 {
        let browser = Browser::new(server.address);
        crowd.push(tokio::spawn(async move { browser.admitted(100, "/", &[]).await }));
    }
    let mut admitted = 0;
    for client in crowd {
        admitted += client.await.unwrap();
    }
    assert_eq!(admitted, 500);
}

#[tokio::test]
async fn the_hyper_example() {
    let (listener, address) = listen().await;
    let (clock, hand) = Clock::manual();
    let layer = RateLimitLayer::builder().limit("10/s burst 5").clock(clock).build().unwrap();
    let task = tokio::spawn(async move { hyper_service::serve(listener, layer).await.unwrap_or_default() });
    let server = Server { address, task };
    let browser = Browser::new(server.address);
    assert_eq!(browser.admitted(9, "/", &[]).await, 5);
    let refused = browser.get("/").await;
    assert_eq!(text(refused.headers(), "retry-after"), Some("1"));
    assert!(body_of(refused).await.contains("quota-exceeded"));
    hand.advance(Duration::from_secs(1));
    assert_eq!(browser.admitted(9, "/", &[]).await, 5);
}

/// `google.rpc.Status` and what it carries, as a client reads them.
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[tokio::test]
async fn the_tonic_example() {
    use prost::Message;
    use tonic_service::{HelloReply, HelloRequest};

    let (listener, address) = listen().await;
    let (clock, _hand) = Clock::manual();
    let layer = tonic_service::limits("2/7s").clock(clock).build().unwrap();
    let task = tokio::spawn(async move { tonic_service::serve(listener, layer).await.unwrap_or_default() });
    let server = Server { address, task };
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let mut client = tonic::client::Grpc::new(channel.connect().await.unwrap());
    let mut statuses = Vec::new();
    for _ in 0..3 {
        client.ready().await.unwrap();
        let request = tonic::Request::new(HelloRequest { name: "Ada".to_owned() });
        let codec = tonic_prost::ProstCodec::<HelloRequest, HelloReply>::default();
        let path = http::uri::PathAndQuery::from_static("/hello.Greeter/SayHello");
        match client.unary(request, path, codec).await {
            Ok(reply) => assert_eq!(reply.into_inner().message, "hello, Ada"),
            Err(status) => statuses.push(status),
        }
    }
    let [refused] = &statuses[..] else { panic!("{statuses:?}") };
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(refused.message(), "rate limit reached");
    let status = Status::decode(refused.details()).unwrap();
    assert_eq!((status.code, status.message.as_str()), (8, "rate limit reached"));
    assert_eq!(status.details[0].type_url, "type.googleapis.com/google.rpc.RetryInfo");
    let delay = RetryInfo::decode(&status.details[0].value[..]).unwrap().retry_delay.unwrap();
    let delay = Duration::new(delay.seconds.try_into().unwrap(), delay.nanos.try_into().unwrap());
    assert_eq!(delay, Duration::from_millis(3_500));
    assert_eq!(refused.metadata().get("retry-after").unwrap(), "4");
}

/// Bodies of the other kinds fit as well.
#[tokio::test]
async fn bodies_of_every_kind() {
    use tower::{Layer, ServiceExt, service_fn};
    async fn refused<B, R>(layer: RateLimitLayer<R>) -> Response<B>
    where
        B: Default + http_body::Body,
        R: tollgate::tower::Respond<B> + Clone,
    {
        let service =
            layer.layer(service_fn(|_: Request<()>| async { Ok::<_, ()>(Response::new(B::default())) }));
        let _ = service.clone().oneshot(super::get("/", "192.0.2.1")).await;
        service.oneshot(super::get("/", "192.0.2.1")).await.unwrap()
    }
    let limit = || RateLimitLayer::builder().limit("fixed 1/d");
    assert_eq!(refused::<Body, _>(limit().build().unwrap()).await.status(), 429);
    assert_eq!(refused::<Full<Bytes>, _>(limit().build().unwrap()).await.status(), 429);
    assert_eq!(refused::<tonic::body::Body, _>(limit().without_body().build().unwrap()).await.status(), 429);
    type Boxed = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;
    let boxed = limit().on_refusal(|refusal| refusal.response(|text| Full::new(Bytes::from(text)).boxed()));
    let response = refused::<Boxed, _>(boxed.build().unwrap()).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{\"type\""), "{body:?}");
}
