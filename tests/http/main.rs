//! The request path: the layer around a service, by hand and over sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod articles;
mod attacks;
mod headers;
mod keys;
mod numbers;
mod reload;
mod settle;
mod sockets;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use tollgate::tower::{PeerAddr, RateLimitBuilder, RateLimitLayer, Respond};
use tollgate::{Clock, ManualHand};
use tower::{Layer, Service, ServiceExt, service_fn};

/// A request from an address; from nowhere if it is empty.
fn request(method: &str, path: &str, from: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
    *request.uri_mut() = path.parse().unwrap();
    if let Ok(ip) = from.parse::<IpAddr>() {
        request.extensions_mut().insert(PeerAddr(SocketAddr::new(ip, 4711)));
    }
    request
}

fn get(path: &str, from: &str) -> Request<()> {
    request("GET", path, from)
}

fn with_header(mut request: Request<()>, name: &'static str, value: &str) -> Request<()> {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

async fn handler(request: Request<()>) -> Result<Response<String>, Infallible> {
    let status = request.headers().get("answer-with").and_then(|status| status.to_str().ok()?.parse().ok());
    let mut response = Response::new(String::from("served"));
    *response.status_mut() = status.unwrap_or(StatusCode::OK);
    Ok(response)
}

/// A service behind a layer, and the hand of its clock.
struct Served<R> {
    layer: RateLimitLayer<R>,
    hand: ManualHand,
}

fn serve<R>(builder: RateLimitBuilder<R>) -> Served<R> {
    let (clock, hand) = Clock::manual();
    Served { layer: builder.clock(clock).build().unwrap(), hand }
}

fn serve_rules(rules: &str) -> Served<tollgate::tower::ProblemJson> {
    serve(RateLimitLayer::builder().rules(rules.parse().unwrap()))
}

impl<R: Respond<String> + Clone> Served<R> {
    async fn call(&self, request: Request<()>) -> Response<String> {
        let mut service = self.layer.layer(service_fn(handler));
        service.ready().await.unwrap().call(request).await.unwrap()
    }

    async fn status(&self, request: Request<()>) -> u16 {
        self.call(request).await.status().as_u16()
    }

    /// How many of so many like it pass.
    async fn admitted(&self, tries: usize, make: impl Fn(usize) -> Request<()>) -> usize {
        let mut passed = 0;
        for number in 0..tries {
            match self.status(make(number)).await {
                200 => passed += 1,
                429 => {}
                other => panic!("a status of {other}"),
            }
        }
        passed
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}
