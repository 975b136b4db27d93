//! What a refused client is told, and how a program may say it in its own way.

use super::grpc;
use super::head::RequestHead;
use super::headers::retry_after_seconds;
use crate::{Decision, Outcome};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use std::fmt;
use std::time::Duration;

/// Why a request does not pass.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::tower::{RateLimitLayer, Refusal};
/// use tower::{Service, ServiceExt, service_fn};
///
/// fn say(refusal: &Refusal<'_>) -> http::Response<String> {
///     let seconds = refusal.retry_after_seconds().unwrap_or_default();
///     refusal.response(|_json| format!("slow down, {seconds} s"))
/// }
///
/// let layer = RateLimitLayer::builder().limit("1/min").on_refusal(say).build()?;
/// let hello = service_fn(|_| async { Ok::<_, std::io::Error>(http::Response::new(String::new())) });
/// let mut service = tower::Layer::layer(&layer, hello);
/// service.ready().await?.call(http::Request::new(())).await?;
/// let refused = service.ready().await?.call(http::Request::new(())).await?;
/// assert_eq!((refused.status().as_u16(), refused.body().as_str()), (429, "slow down, 60 s"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    pub(super) head: &'a RequestHead<'a>,
    /// `None` for a request without a key.
    pub(super) decision: Option<Decision>,
    /// The content type of a client that speaks gRPC.
    pub(super) grpc: Option<&'a HeaderValue>,
}

impl<'a> Refusal<'a> {
    /// The request.
    ///
    /// ```
    /// use tollgate::tower::Refusal;
    ///
    /// fn say(refusal: &Refusal<'_>) -> http::Response<String> {
    ///     let path = refusal.request().uri().path().to_owned();
    ///     refusal.response(|_json| format!("too many requests for {path}"))
    /// }
    /// ```
    #[must_use]
    pub fn request(&self) -> &'a RequestHead<'a> {
        self.head
    }

    /// The decision; `None` if the request has no key and such requests are
    /// [refused](super::MissingKey::Deny).
    ///
    /// ```
    /// use tollgate::tower::Refusal;
    ///
    /// fn say(refusal: &Refusal<'_>) -> http::Response<String> {
    ///     let limit = refusal.decision().map(|decision| decision.limit());
    ///     refusal.response(|_json| format!("{limit:?} at once is the most"))
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// The name of the limit that refused.
    ///
    /// ```
    /// use tollgate::tower::Refusal;
    ///
    /// fn say(refusal: &Refusal<'_>) -> http::Response<String> {
    ///     refusal.response(|json| if refusal.limit_name() == Some("login") { String::new() } else { json })
    /// }
    /// ```
    #[must_use]
    pub fn limit_name(&self) -> Option<&'static str> {
        self.decision.and_then(|decision| decision.rule_name())
    }

    /// How long until the same request would pass; `None` if nobody knows, or if it never will.
    ///
    /// ```
    /// use tollgate::tower::Refusal;
    ///
    /// fn say(refusal: &Refusal<'_>) -> http::Response<String> {
    ///     let wait = refusal.retry_after();
    ///     refusal.response(|_json| format!("come back in {wait:?}"))
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.and_then(|decision| decision.retry_after())
    }

    /// The same as `Retry-After` says it: whole seconds, rounded up, at least 1.
    ///
    /// ```
    /// use tollgate::tower::Refusal;
    ///
    /// fn say(refusal: &Refusal<'_>) -> http::Response<String> {
    ///     match refusal.retry_after_seconds() {
    ///         Some(seconds) => refusal.response(|_json| format!("come back in {seconds} s")),
    ///         None => refusal.response(|_json| "ask for less at once".to_owned()),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after().map(retry_after_seconds)
    }

    /// Whether the client speaks gRPC: a `POST` of `application/grpc` with `te: trailers` over HTTP/2 or later. Any
    /// client can look like one; see [`never_grpc`](super::RateLimitBuilder::never_grpc).
    ///
    /// ```
    /// use tollgate::tower::Refusal;
    ///
    /// fn say(refusal: &Refusal<'_>) -> http::Response<String> {
    ///     refusal.response(|json| if refusal.is_grpc() { String::new() } else { json })
    /// }
    /// ```
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        self.grpc.is_some()
    }

    /// The response as the layer would give it, with a body that is made of a text: for bodies that cannot be made
    /// of a `String` by themselves, or to change something about it.
    ///
    /// It is 429 with `application/problem+json`; for gRPC a status of `RESOURCE_EXHAUSTED` with `RetryInfo`, and
    /// an empty body. A request without a key gets 403, or `PERMISSION_DENIED`. None of them is to be stored by a cache.
    ///
    /// ```
    /// use http_body_util::Full;
    /// use tollgate::tower::Refusal;
    ///
    /// fn say(refusal: &Refusal<'_>) -> http::Response<Full<bytes::Bytes>> {
    ///     refusal.response(|json| Full::new(json.into()))
    /// }
    /// ```
    pub fn response<B>(&self, body: impl FnOnce(String) -> B) -> Response<B> {
        let mut response = match self.grpc {
            Some(content_type) => {
                let code = match self.decision {
                    Some(_) => grpc::Code::ResourceExhausted,
                    None => grpc::Code::PermissionDenied,
                };
                let body = body(String::new());
                grpc::response(content_type, code, self.message(), self.retry_after(), body)
            }
            None => {
                let mut response = Response::new(body(self.problem()));
                *response.status_mut() = self.status();
                let content_type = HeaderValue::from_static("application/problem+json");
                response.headers_mut().insert(CONTENT_TYPE, content_type);
                response
            }
        };
        // What is said to one client at one time is for nobody else.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn status(&self) -> StatusCode {
        match self.decision {
            Some(_) => StatusCode::TOO_MANY_REQUESTS,
            None => StatusCode::FORBIDDEN,
        }
    }

    fn message(&self) -> &'static str {
        match self.decision.map(|decision| decision.outcome()) {
            Some(Outcome::NeverFits) => "the request costs more than is ever admitted at once",
            Some(_) => "rate limit reached",
            None => "the request does not say whom it is from",
        }
    }

    /// RFC 9457.
    fn problem(&self) -> String {
        let Some(decision) = self.decision else {
            return format!(
                r#"{{"type":"about:blank","title":"Forbidden","status":403,"detail":"{}"}}"#,
                self.message()
            );
        };
        // A limit's name has nothing in it that JSON would escape.
        let name = decision.rule_name().unwrap_or_default();
        let retry_after =
            self.retry_after_seconds().map(|wait| format!(r#","retry_after":{wait}"#)).unwrap_or_default();
        format!(
            concat!(
                r#"{{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
                r#""title":"Request cannot be satisfied as assigned quota has been exceeded","#,
                r#""status":429,"detail":"{}","violated-policies":["{}"]{}}}"#
            ),
            self.message(),
            name,
            retry_after
        )
    }

    /// Adds the time to come back to a response that does not say one.
    pub(super) fn write_retry_after<B>(&self, response: &mut Response<B>) {
        if let Some(wait) = self.retry_after_seconds() {
            response.headers_mut().entry(RETRY_AFTER).or_insert_with(|| HeaderValue::from(wait));
        }
    }
}

/// How a refusal becomes a response with a body of type `B`.
///
/// The layer adds `Retry-After` and the fields of its [`HeaderStyle`](super::HeaderStyle) to whatever comes back.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::tower::{ProblemJson, RateLimitLayer, Refusal, Respond};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// /// What the layer itself asks of every answer.
/// fn answers<R: Respond<String>>(respond: &R, refusal: &Refusal<'_>) -> http::Response<String> {
///     respond.respond(refusal)
/// }
///
/// let layer = RateLimitLayer::builder()
///     .limit("1/min")
///     .cost_by(|_request| 2) // never fits
///     .on_refusal(|refusal| answers(&ProblemJson, refusal))
///     .build()?;
/// let hello = service_fn(|_| async { Ok::<_, std::io::Error>(http::Response::new(String::new())) });
/// let refused = layer.layer(hello).oneshot(http::Request::new(())).await?;
/// assert_eq!(refused.headers()["content-type"], "application/problem+json");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Respond<B> {
    /// The response.
    fn respond(&self, refusal: &Refusal<'_>) -> Response<B>;
}

/// [`Refusal::response`] for every body that can be made of a `String`: axum's, hyper's `Full<Bytes>`, `String`.
///
/// ```
/// use tollgate::tower::{ProblemJson, RateLimitLayer};
/// let layer: RateLimitLayer<ProblemJson> = RateLimitLayer::new("100/min")?; // unless told otherwise
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson;

impl<B: From<String>> Respond<B> for ProblemJson {
    fn respond(&self, refusal: &Refusal<'_>) -> Response<B> {
        refusal.response(B::from)
    }
}

/// [`Refusal::response`] without a body, for every body that has an empty form: tonic's, `BoxBody`.
///
/// ```
/// use tollgate::tower::{NoBody, RateLimitLayer};
/// let layer: RateLimitLayer<NoBody> = RateLimitLayer::builder().limit("100/min").without_body().build()?;
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBody;

impl<B: Default> Respond<B> for NoBody {
    fn respond(&self, refusal: &Refusal<'_>) -> Response<B> {
        let mut response = refusal.response(|_| B::default());
        if !refusal.is_grpc() {
            response.headers_mut().remove(CONTENT_TYPE);
        }
        response
    }
}

/// A closure of the program's own.
///
/// ```
/// use http::Response;
/// use tollgate::tower::{RateLimitLayer, Refusal, RespondWith};
///
/// type Say = fn(&Refusal<'_>) -> Response<String>;
/// let say: Say = |refusal| refusal.response(|_json| "slow down".to_owned());
/// let builder = RateLimitLayer::builder().limit("100/min").on_refusal(say);
/// let layer: RateLimitLayer<RespondWith<Say>> = builder.build()?;
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone)]
pub struct RespondWith<F>(pub(super) F);

impl<B, F: Fn(&Refusal<'_>) -> Response<B>> Respond<B> for RespondWith<F> {
    fn respond(&self, refusal: &Refusal<'_>) -> Response<B> {
        (self.0)(refusal)
    }
}

impl<F> fmt::Debug for RespondWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RespondWith(..)")
    }
}
