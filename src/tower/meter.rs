//! Counting the bytes of a response as they are sent.

use super::settle::Charge;
use crate::sync::unmodelled::{AtomicU64, Ordering::Relaxed};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;

/// Who pays for the bytes of a response: found among its extensions, where
/// [`Settle::BytesSent`](super::Settle::BytesSent) was said of a body whose length nobody knows beforehand.
///
/// ```
/// use tollgate::tower::Meter;
///
/// /// For a server that counts bytes by itself, instead of a `MeterBytesLayer`.
/// fn sent<B>(response: &http::Response<B>, bytes: u64) {
///     if let Some(meter) = response.extensions().get::<Meter>() {
///         meter.add(bytes);
///     }
/// }
/// # sent(&http::Response::new(()), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Meter {
    payers: Vec<Arc<Payer>>,
}

/// One charge, and how much of what was taken for it before the call is not yet used up.
#[derive(Debug)]
struct Payer {
    charge: Charge,
    prepaid: AtomicU64,
    /// Set once somebody counts.
    claimed: OnceLock<()>,
}

impl Drop for Payer {
    fn drop(&mut self) {
        if self.claimed.get().is_none() {
            let rule = self.charge.limiter.name().unwrap_or_default();
            self.charge.shared.warn_of_uncounted_body(rule);
        }
    }
}

impl Payer {
    fn pay(&self, bytes: u64) {
        // Relaxed: the number stands for itself, and each unit of it is taken once.
        let before = self.prepaid.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(bytes)));
        let prepaid = before.unwrap_or_else(|left| left);
        if let Some(extra @ 1..) = bytes.checked_sub(prepaid) {
            self.charge.spend(extra);
        }
    }
}

impl Meter {
    pub(super) fn new(charges: Vec<Charge>) -> Self {
        let payer = |charge: Charge| {
            let prepaid = AtomicU64::new(charge.spent.cost);
            Arc::new(Payer { charge, prepaid, claimed: OnceLock::new() })
        };
        Self { payers: charges.into_iter().map(payer).collect() }
    }

    /// The same with those who pay by another layer.
    pub(super) fn and(mut self, other: Option<Self>) -> Self {
        self.payers.extend(other.into_iter().flat_map(|meter| meter.payers));
        self
    }

    /// Somebody is there who counts.
    fn claim(&self) {
        for payer in &self.payers {
            let _ = payer.claimed.set(());
        }
    }

    /// So many more bytes were sent. The first of them are covered by what was taken before the call.
    ///
    /// ```
    /// use tollgate::tower::Meter;
    ///
    /// fn sent(meter: &Meter, chunk: &[u8]) {
    ///     meter.add(chunk.len() as u64);
    /// }
    /// ```
    pub fn add(&self, bytes: u64) {
        self.claim();
        if bytes > 0 {
            self.payers.iter().for_each(|payer| payer.pay(bytes));
        }
    }

    /// No more bytes are sent: what was taken before the call and not used up is given back.
    ///
    /// ```
    /// use tollgate::tower::Meter;
    ///
    /// fn sent_all(meter: &Meter, chunks: &[Vec<u8>]) {
    ///     chunks.iter().for_each(|chunk| meter.add(chunk.len() as u64));
    ///     meter.finish();
    /// }
    /// ```
    pub fn finish(&self) {
        self.claim();
        for payer in &self.payers {
            // Relaxed: as above.
            payer.charge.give_back(payer.prepaid.swap(0, Relaxed));
        }
    }
}

/// A meter that ends with the body that it belongs to.
#[derive(Debug)]
struct Running(Meter);

impl Running {
    fn new(meter: Meter) -> Self {
        meter.claim();
        Self(meter)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Counts the bytes of responses for those who pay for them: put it around a
/// [`RateLimitLayer`](super::RateLimitLayer).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use http_body_util::{BodyExt, StreamBody};
/// use tollgate::rules::RouteRule;
/// use tollgate::tower::{MeterBytesLayer, RateLimitLayer, Settle};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let limit = RateLimitLayer::builder()
///     .rule(RouteRule::new("files", "1000000/min"))
///     .settle_by("files", |_response| Settle::BytesSent)
///     .without_body()
///     .build()?;
/// let service = MeterBytesLayer.layer(limit.layer(service_fn(file)));
/// let response = service.oneshot(http::Request::new(())).await?;
/// assert_eq!(response.into_body().collect().await?.to_bytes().len(), 5);
///
/// # type File = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, std::convert::Infallible>;
/// # async fn file(_: http::Request<()>) -> Result<http::Response<File>, std::io::Error> {
/// #     let frame = http_body::Frame::data(bytes::Bytes::from_static(b"bytes"));
/// #     let body = StreamBody::new(tokio_stream::once(Ok(frame)));
/// #     Ok(http::Response::new(body.boxed_unsync()))
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MeterBytesLayer;

impl<S> Layer<S> for MeterBytesLayer {
    type Service = MeterBytes<S>;

    fn layer(&self, inner: S) -> Self::Service {
        MeterBytes { inner }
    }
}

/// A service behind a [`MeterBytesLayer`].
///
/// ```
/// use tollgate::tower::{MeterBytes, MeterBytesLayer};
/// use tower::{Layer, util::BoxCloneService};
///
/// fn metered<S>(service: S) -> MeterBytes<S> {
///     MeterBytesLayer.layer(service)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MeterBytes<S> {
    inner: S,
}

impl<S, Q, B> Service<Request<Q>> for MeterBytes<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
{
    type Response = Response<MeteredBody<B>>;
    type Error = S::Error;
    type Future = MeteredFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        MeteredFuture { future: self.inner.call(request) }
    }
}

pin_project! {
    /// The future of a [`MeterBytes`].
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tollgate::tower::{MeterBytes, MeteredFuture};
    /// use tower::Service;
    ///
    /// fn call<S: Service<Request<()>, Response = Response<String>>>(
    ///     service: &mut MeterBytes<S>,
    /// ) -> MeteredFuture<S::Future> {
    ///     service.call(Request::new(()))
    /// }
    /// ```
    pub struct MeteredFuture<F> {
        #[pin]
        future: F,
    }
}

impl<F, B, E> Future for MeteredFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<MeteredBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(self.project().future.poll(context))?;
        // Taken out: whoever counts further outside must not count the same bytes again.
        let meter = response.extensions_mut().remove::<Meter>().map(Running::new);
        Poll::Ready(Ok(response.map(|body| MeteredBody { body, meter })))
    }
}

impl<F> fmt::Debug for MeteredFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredFuture").finish_non_exhaustive()
    }
}

pin_project! {
    /// A body whose bytes are paid for as they are sent, if anybody has to.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tollgate::tower::{MeterBytes, MeteredBody};
    /// use tower::{Service, ServiceExt};
    ///
    /// async fn body<S>(service: MeterBytes<S>) -> Result<MeteredBody<String>, S::Error>
    /// where
    ///     S: Service<Request<()>, Response = Response<String>>,
    /// {
    ///     Ok(service.oneshot(Request::new(())).await?.into_body())
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[derive(Debug)]
    pub struct MeteredBody<B> {
        #[pin]
        body: B,
        meter: Option<Running>,
    }
}

impl<B: Body> Body for MeteredBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(context));
        if let (Some(meter), Some(Ok(frame))) = (this.meter, &frame) {
            if let Some(data) = frame.data_ref() {
                meter.0.add(bytes::Buf::remaining(data) as u64);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
