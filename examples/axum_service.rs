//! An axum service with several routes, tiers and a file of rules that is read again while it serves.
//!
//! ```sh
//! cargo run --release --example axum_service --features axum
//! curl -i 127.0.0.1:3000/
//! curl -i -d 'open sesame' 127.0.0.1:3000/login
//! ```
//!
//! The first argument is another address than 127.0.0.1:3000, the second another file than `examples/rules.toml`, or
//! `--no-limits` for no layer at all: the other side of `benches/http/run.sh`.

use axum::extract::Request;
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, ServiceExt};
use std::convert::Infallible;
use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate::rules::RulesError;
use tollgate::tower::{Notice, RateLimitBuilder, RateLimitLayer, RequestHead, Settle};
use tower::{Layer, Service};

/// The rules, unless others are named.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rules.toml");

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);

    run(listener, arguments.next().as_deref()).await
}

/// Serves under the rules of a file.
pub async fn run(listener: TcpListener, rules: Option<&str>) -> Result<(), Box<dyn Error>> {
    let rules = match rules {
        Some("--no-limits") => return serve(listener, routes()).await,
        rules => PathBuf::from(rules.unwrap_or(RULES)),
    };
    let layer = limits().rules_file(&rules).on_notice(tell).build()?;
    let handle = layer.handle();
    let _watch = handle.watch(&rules, Duration::from_secs(1))?;
    reload_on_hangup(handle, rules);
    // `routes().layer(layer)` would do as well. Around the whole router it is a little cheaper: axum puts each layer of
    // its own into a box.
    serve(listener, layer.layer(routes())).await
}

fn tell(notice: &Notice<'_>) {
    // Not by `eprintln!`, which panics if nobody reads.
    let _ = writeln!(io::stderr(), "{notice}");
}

/// Serves with the peer's address beside each request.
pub async fn serve<S>(listener: TcpListener, app: S) -> Result<(), Box<dyn Error>>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let app = ServiceExt::<Request>::into_make_service_with_connect_info::<SocketAddr>(app);
    Ok(axum::serve(listener, app).await?)
}

/// What the service does.
pub fn routes() -> Router {
    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/reports/{id}", get(|| async { "a costly report\n" }))
        .route("/login", post(login))
        .route("/health", get(|| async { "well\n" }))
        .route("/metrics", get(|| async { "requests_total 1\n" }))
        .with_state(())
}

async fn login(password: String) -> (StatusCode, &'static str) {
    match password.as_str() {
        "open sesame" => (StatusCode::OK, "welcome\n"),
        _ => (StatusCode::UNAUTHORIZED, "no\n"),
    }
}

/// What only the program knows about limits; the rest is in the file.
pub fn limits() -> RateLimitBuilder {
    RateLimitLayer::builder()
        .key_by("customer", customer)
        .tier_by(|request| customer(request).map(|_| "premium"))
        .settle_by("login", |response| match response.is_success() {
            true => Settle::Refund,
            false => Settle::Keep,
        })
}

/// Whose API key it is: a table of customers, here of one. A key that is not in it is nobody's: else whoever invents
/// keys would have a budget for each.
fn customer(request: &RequestHead<'_>) -> Option<&'static str> {
    const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
    let key = request.headers().get(API_KEY)?;
    (key == "key-of-acme").then_some("acme")
}

#[cfg(unix)]
fn reload_on_hangup(handle: tollgate::tower::RulesHandle, rules: PathBuf) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let (handle, rules) = (handle.clone(), rules.clone());
            // What is wrong with the file is told by the notice; the rules stay as they were.
            let reload = move || -> Result<(), RulesError> { handle.reload_file(rules) };
            let _ = tokio::task::spawn_blocking(reload).await;
        }
    });
}

#[cfg(not(unix))]
fn reload_on_hangup(_: tollgate::tower::RulesHandle, _: PathBuf) {}
