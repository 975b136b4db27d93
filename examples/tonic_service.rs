//! A tonic service behind the layer: refusals are `RESOURCE_EXHAUSTED`, and say when to come back.
//!
//! ```sh
//! cargo run --example tonic_service --features tower -- 127.0.0.1:3002
//! ```
//!
//! The service is written by hand, so that no compiler of protocol buffers is needed; generated code is used in the
//! same way.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate::tower::{ClientIp, NoBody, RateLimitBuilder, RateLimitLayer};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpConnectInfo;
use tonic_prost::ProstCodec;
use tower::Service;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3002".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, limits("10/s burst 5").build()?).await
}

/// tonic says who the peer is in a way of its own, and its bodies are not made of text.
pub fn limits(limit: &str) -> RateLimitBuilder<NoBody> {
    let client_ip = ClientIp::peer()
        .peer_from(|extensions| extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr));
    RateLimitLayer::builder().limit(limit).client_ip(client_ip).without_body()
}

/// Serves until the task is ended.
pub async fn serve(listener: TcpListener, layer: RateLimitLayer<NoBody>) -> Result<(), Box<dyn Error>> {
    let connections = TcpListenerStream::new(listener);
    Server::builder().layer(layer).add_service(Greeter).serve_with_incoming(connections).await?;
    Ok(())
}

/// A name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloRequest {
    /// Whom to greet.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A greeting.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloReply {
    /// What to say.
    #[prost(string, tag = "1")]
    pub message: String,
}

/// Greets whoever asks.
#[derive(Clone, Debug)]
pub struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "hello.Greeter";
}

impl UnaryService<HelloRequest> for Greeter {
    type Response = HelloReply;
    type Future = std::future::Ready<Result<tonic::Response<HelloReply>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<HelloRequest>) -> Self::Future {
        let message = format!("hello, {}", request.into_inner().name);
        std::future::ready(Ok(tonic::Response::new(HelloReply { message })))
    }
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != "/hello.Greeter/SayHello" {
                return Ok(tonic::Status::unimplemented("there is only SayHello").into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).unary(Greeter, request).await)
        })
    }
}
