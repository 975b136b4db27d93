//! The response on its way: the service's own with the limit's headers, or a refusal that is there already.

use super::headers::{HeaderStyle, Told};
use super::meter::Meter;
use super::settle::{Charge, ResponseHead};
use http::{Response, StatusCode};
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// The future of a [`RateLimit`](super::RateLimit).
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tollgate::tower::{RateLimit, Respond, ResponseFuture};
    /// use tower::Service;
    ///
    /// fn call<S, R>(service: &mut RateLimit<S, R>) -> ResponseFuture<S::Future, String>
    /// where
    ///     S: Service<Request<()>, Response = Response<String>>,
    ///     R: Respond<String>,
    /// {
    ///     service.call(Request::new(()))
    /// }
    /// ```
    pub struct ResponseFuture<F, B> {
        #[pin]
        state: State<F, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, B> {
        Passing { #[pin] future: F, after: After },
        Refused { response: Option<Response<B>> },
    }
}

/// What is to be done once there is a response.
pub(super) struct After {
    pub(super) told: Option<Told>,
    pub(super) style: HeaderStyle,
    /// Whether the response is sent without its body.
    pub(super) is_head: bool,
    pub(super) charges: Vec<Charge>,
}

impl After {
    fn finish<B: http_body::Body>(&mut self, response: &mut Response<B>) {
        if let Some(told) = self.told.take() {
            self.style.write(response.headers_mut(), told);
        }
        if !self.charges.is_empty() {
            self.settle(response);
        }
    }

    #[cold]
    fn settle<B: http_body::Body>(&mut self, response: &mut Response<B>) {
        let status = response.status();
        // Whatever body it has is for nobody: the server leaves it out.
        let is_without_body = self.is_head
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let head = ResponseHead {
            status,
            headers: response.headers(),
            body_bytes: if is_without_body { Some(0) } else { response.body().size_hint().exact() },
        };
        self.charges.retain(|charge| charge.settle(&head));
        if !self.charges.is_empty() {
            let extensions = response.extensions_mut();
            let inner = extensions.remove::<Meter>();
            extensions.insert(Meter::new(std::mem::take(&mut self.charges)).and(inner));
        }
    }
}

impl<F, B> ResponseFuture<F, B> {
    pub(super) fn passing(future: F, after: After) -> Self {
        Self { state: State::Passing { future, after } }
    }

    pub(super) fn refusing(response: Response<B>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: http_body::Body,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Passing { future, after } => {
                // Finished where it lies: a response is long.
                let mut done = future.poll(context);
                if let Poll::Ready(Ok(response)) = &mut done {
                    after.finish(response);
                }
                done
            }
            StateProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                // Polled after it was done, which nobody may.
                None => Poll::Pending,
            },
        }
    }
}

impl<F, B> fmt::Debug for ResponseFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Passing { .. } => "passing",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
