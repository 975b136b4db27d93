//! The service of the README: a limit for everything and a strict one for logins, in one file.

use axum::Router;
use axum::routing::{get, post};
use std::net::SocketAddr;
use tollgate::rules::RouteRule;
use tollgate::tower::RateLimitLayer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = RateLimitLayer::builder()
        .limit("100/min") // everything, by the client's address
        .rule(RouteRule::new("login", "log 5/15min; 20/d").path("/login").method("POST"))
        .build()?;
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/login", post(|| async { "welcome\n" }))
        .layer(limits);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
