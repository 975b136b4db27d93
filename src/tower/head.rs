//! What a request is decided by: everything but its body.

use super::builder::CustomKey;
use crate::rules::{KeySource, RequestPath};
use http::{Extensions, HeaderMap, Method, Uri, Version};
use std::hash::Hasher;
use std::net::IpAddr;

/// A request without its body, and the client's address.
///
/// ```
/// use tollgate::tower::{RateLimitLayer, RequestHead};
///
/// fn api_key(request: &RequestHead<'_>) -> Option<Vec<u8>> {
///     Some(request.headers().get("x-api-key")?.as_bytes().to_vec())
/// }
///
/// let builder = RateLimitLayer::builder().limit("100/min").key("custom:key | ip");
/// let layer = builder.key_by("key", api_key).build()?;
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    pub(super) method: &'a Method,
    pub(super) uri: &'a Uri,
    pub(super) version: Version,
    pub(super) headers: &'a HeaderMap,
    pub(super) extensions: &'a Extensions,
    pub(super) client_ip: Option<IpAddr>,
}

impl<'a> RequestHead<'a> {
    /// The method.
    ///
    /// ```
    /// use tollgate::tower::RequestHead;
    ///
    /// fn cost(request: &RequestHead<'_>) -> u64 {
    ///     if request.method().is_safe() { 1 } else { 5 }
    /// }
    /// ```
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The target.
    ///
    /// ```
    /// use tollgate::tower::RequestHead;
    ///
    /// fn cost(request: &RequestHead<'_>) -> u64 {
    ///     if request.uri().path().starts_with("/search") { 10 } else { 1 }
    /// }
    /// ```
    #[must_use]
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// The path that rules go by: that of the target. With the feature `axum`, where a router inside another one sees
    /// only the rest of the path, it is the whole of it.
    #[must_use]
    pub fn path(&self) -> &'a str {
        #[cfg(feature = "axum")]
        if let Some(original) = self.extensions.get::<axum::extract::OriginalUri>() {
            return original.0.path();
        }
        self.uri.path()
    }

    /// The version of HTTP.
    ///
    /// ```
    /// use tollgate::tower::RequestHead;
    ///
    /// /// Old clients ask again for what newer ones keep.
    /// fn cost(request: &RequestHead<'_>) -> u64 {
    ///     if request.version() < http::Version::HTTP_2 { 2 } else { 1 }
    /// }
    /// ```
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The headers.
    ///
    /// ```
    /// use tollgate::tower::RequestHead;
    ///
    /// fn tier(request: &RequestHead<'_>) -> Option<&'static str> {
    ///     request.headers().contains_key("x-premium").then_some("premium")
    /// }
    /// ```
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What the server and outer layers have put beside the request: who it is from, above all.
    ///
    /// ```
    /// use tollgate::tower::RequestHead;
    ///
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// fn user(request: &RequestHead<'_>) -> Option<u64> {
    ///     request.extensions().get::<UserId>().map(|user| user.0)
    /// }
    /// ```
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// The client's address by [`ClientIp`](super::ClientIp).
    ///
    /// ```
    /// use tollgate::tower::RequestHead;
    ///
    /// fn tier(request: &RequestHead<'_>) -> Option<&'static str> {
    ///     request.client_ip()?.is_loopback().then_some("ourselves")
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.client_ip
    }
}

/// A request as keys ask for it.
pub(super) struct Keyed<'a> {
    pub(super) head: &'a RequestHead<'a>,
    pub(super) path: &'a RequestPath<'a>,
    pub(super) custom: &'a [CustomKey],
}

impl KeySource for Keyed<'_> {
    fn ip(&self) -> Option<IpAddr> {
        self.head.client_ip
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.headers.get(name).map(http::HeaderValue::as_bytes)
    }

    fn method(&self) -> &str {
        self.head.method.as_str()
    }

    fn path(&self) -> &RequestPath<'_> {
        self.path
    }

    fn custom(&self, name: &str, hasher: &mut dyn Hasher) -> bool {
        let known = self.custom.iter().find(|custom| *custom.name == *name);
        known.is_some_and(|custom| (custom.write)(self.head, hasher))
    }
}
