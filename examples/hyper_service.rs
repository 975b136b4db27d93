//! Plain hyper behind the layer: the peer's address is put into each request by hand.
//!
//! ```sh
//! cargo run --example hyper_service --features tower -- 127.0.0.1:3001
//! ```

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::error::Error;
use tokio::net::TcpListener;
use tollgate::tower::{PeerAddr, RateLimitLayer};
use tower::{ServiceBuilder, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3001".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, RateLimitLayer::new("10/s burst 5")?).await
}

/// Serves each connection in a task of its own.
pub async fn serve(listener: TcpListener, layer: RateLimitLayer) -> Result<(), Box<dyn Error>> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddr(peer));
                request
            })
            .layer(layer.clone())
            .service(service_fn(hello));
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            // A client that hangs up is no business of the others.
            let _ = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
        });
    }
}

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello\n")))
}
