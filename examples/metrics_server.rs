//! A server that limits requests by the address they come from, and shows what it does: `/metrics` to Prometheus,
//! `/offenders` to people.
//!
//! `cargo run --example metrics_server --features prometheus -- 127.0.0.1:9464`

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate::export::Exporter;
use tollgate::{Limiter, TopKeys};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

struct App {
    limiter: Arc<Limiter>,
    offenders: TopKeys,
    exporter: Exporter,
    registry: Registry,
}

async fn work(State(app): State<Arc<App>>, ConnectInfo(peer): ConnectInfo<SocketAddr>) -> Response {
    let decision = app.limiter.try_acquire(&peer.ip());
    if decision.is_allowed() {
        return "done\n".into_response();
    }
    app.offenders.record(&peer.ip(), 1);
    (StatusCode::TOO_MANY_REQUESTS, "too many requests\n").into_response()
}

/// In the format of `OpenMetrics` to who takes it, as Prometheus does; in the older one to others.
async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    if !accepted.contains("application/openmetrics-text") {
        return ([(CONTENT_TYPE, TEXT)], app.exporter.text()).into_response();
    }
    let mut text = String::new();
    match encode(&mut text, &app.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn offenders(State(app): State<Arc<App>>) -> String {
    let mut text = String::new();
    for one in app.offenders.top(20) {
        let _ = writeln!(text, "{:>10} (+ {}) {}", one.count, one.error, one.label);
    }
    text
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let limiter =
        Limiter::builder().policy("5/s burst 5 named api").named("api").count_decisions(true).build()?;
    let limiter = Arc::new(limiter);
    let exporter = Exporter::new();
    exporter.add_named(&limiter);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(exporter.clone()));

    let app = Arc::new(App { limiter, offenders: TopKeys::new(1024), exporter, registry });
    let aged = Arc::clone(&app);
    let aging = async move {
        loop {
            tokio::time::sleep(Duration::from_secs(60)).await;
            aged.offenders.age();
        }
    };
    let routes = Router::new()
        .route("/", get(work))
        .route("/metrics", get(metrics))
        .route("/offenders", get(offenders))
        .with_state(app)
        .into_make_service_with_connect_info::<SocketAddr>();
    tokio::select! {
        served = axum::serve(listener, routes) => Ok(served?),
        () = aging => Ok(()),
    }
}

#[tokio::main]
#[allow(dead_code, reason = "a test calls `serve` by itself")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9464".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("http://{}/ is limited; /metrics and /offenders tell how", listener.local_addr()?);
    serve(listener).await
}
