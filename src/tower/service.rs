//! The service: decides in `call`, and passes everything else through.

use super::future::{After, ResponseFuture};
use super::grpc;
use super::layer::Shared;
use super::live::Verdict;
use super::refusal::{Refusal, Respond};
use http::{Method, Request, Response};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service behind a [`RateLimitLayer`](super::RateLimitLayer).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::tower::RateLimitLayer;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let hello = service_fn(|_| async { Ok::<_, std::io::Error>(http::Response::new(String::new())) });
/// let service = RateLimitLayer::new("1/min")?.layer(hello);
/// let first = service.clone().oneshot(http::Request::new(())).await?;
/// let second = service.oneshot(http::Request::new(())).await?;
/// assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 429));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RateLimit<S, R> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared>,
    pub(super) respond: R,
}

impl<S, R> RateLimit<S, R> {
    /// The service inside.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    /// use tower::Layer;
    /// assert_eq!(*RateLimitLayer::new("1/min")?.layer("a service").inner(), "a service");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The service inside, which may be changed.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    /// use tower::Layer;
    ///
    /// let mut service = RateLimitLayer::new("1/min")?.layer("a service");
    /// *service.inner_mut() = "another";
    /// assert_eq!(*service.inner(), "another");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }
}

impl<S, R, Q, B> Service<Request<Q>> for RateLimit<S, R>
where
    S: Service<Request<Q>, Response = Response<B>>,
    R: Respond<B>,
    B: http_body::Body,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let head = self.shared.head(&request);
        let verdict = self.shared.live.load().decide(&self.shared, &head);
        let refused = match verdict {
            Verdict::Pass(told, charges) => {
                let options = &self.shared.options;
                let told = told.filter(|_| !options.silent_when_allowed);
                let is_head = *head.method == Method::HEAD;
                let after = After { told, style: options.style, is_head, charges };
                return ResponseFuture::passing(self.inner.call(request), after);
            }
            Verdict::Refuse(decision, told) => Some((decision, told)),
            Verdict::NoKey => None,
        };
        let options = &self.shared.options;
        let decision = refused.as_ref().map(|(decision, _)| *decision);
        let grpc = if options.never_grpc { None } else { grpc::content_type(&head) };
        let refusal = Refusal { head: &head, decision, grpc };
        let mut response = self.respond.respond(&refusal);
        refusal.write_retry_after(&mut response);
        if let Some((_, told)) = refused {
            options.style.write(response.headers_mut(), told);
        }
        ResponseFuture::refusing(response)
    }
}

impl<S: fmt::Debug, R> fmt::Debug for RateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
