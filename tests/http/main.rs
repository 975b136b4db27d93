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
use std::task::{Context, Poll};
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

/// A service that has to be asked whether it is ready before each call. A clone has not been asked yet.
struct Asked<S> {
    inner: S,
    is_ready: bool,
}

impl<S: Clone> Clone for Asked<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), is_ready: false }
    }
}

impl<S: Service<Request<()>>> Service<Request<()>> for Asked<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context).map_ok(|()| self.is_ready = true)
    }

    fn call(&mut self, request: Request<()>) -> S::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        self.inner.call(request)
    }
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
        let mut service = self.layer.layer(Asked { inner: service_fn(handler), is_ready: false });
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
