//! Charges that depend on the response: taken before the call, settled after it.

use super::layer::Shared;
use crate::{Cause, Decision, Limiter};
use http::{HeaderMap, StatusCode};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// What became of a request's charge, once its response is known.
///
/// ```
/// use tollgate::rules::RouteRule;
/// use tollgate::tower::{RateLimitLayer, Settle};
///
/// let layer = RateLimitLayer::builder()
///     .rule(RouteRule::new("search", "1000/min"))
///     .settle_by("search", |response| match response.headers().get("x-cost") {
///         Some(cost) => cost.to_str().ok().and_then(|cost| cost.parse().ok()).map_or(Settle::Keep, Settle::Cost),
///         None if response.is_success() => Settle::Keep,
///         None => Settle::Refund,
///     })
///     .build()?;
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// It stays as it is.
    Keep,
    /// It is given back, as far as it still counts by then.
    Refund,
    /// The request has cost so much: less is given back, more is spent. A single token bucket takes it as a debt
    /// that later requests wait for; other policies, and tiers, as much of it as fits.
    Cost(u64),
    /// The request has cost as many as its body has bytes. If nobody knows that beforehand, they are counted as
    /// they are sent, by a [`MeterBytesLayer`](super::MeterBytesLayer) around the layer. Without one, what was taken
    /// before the call is all that it costs, and [`Notice::UncountedBody`](super::Notice::UncountedBody) says so.
    BytesSent,
}

/// A response without its body.
///
/// ```
/// use tollgate::tower::{ResponseHead, Settle};
///
/// fn settle(response: &ResponseHead<'_>) -> Settle {
///     if response.status().is_server_error() { Settle::Refund } else { Settle::Keep }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    pub(super) body_bytes: Option<u64>,
}

impl<'a> ResponseHead<'a> {
    /// The status.
    ///
    /// ```
    /// use tollgate::tower::{ResponseHead, Settle};
    ///
    /// /// A guess that finds nothing costs ten.
    /// fn settle(response: &ResponseHead<'_>) -> Settle {
    ///     Settle::Cost(if response.status() == 404 { 10 } else { 1 })
    /// }
    /// ```
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers.
    ///
    /// ```
    /// use tollgate::tower::{ResponseHead, Settle};
    ///
    /// /// What comes out of a cache is free.
    /// fn settle(response: &ResponseHead<'_>) -> Settle {
    ///     if response.headers().contains_key("x-cache-hit") { Settle::Refund } else { Settle::Keep }
    /// }
    /// ```
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// How long the body is, if that is known before it is sent: nothing for `HEAD` and for statuses that have none.
    ///
    /// ```
    /// use tollgate::tower::{ResponseHead, Settle};
    ///
    /// /// One for each kilobyte.
    /// fn settle(response: &ResponseHead<'_>) -> Settle {
    ///     response.body_bytes().map_or(Settle::Keep, |bytes| Settle::Cost(bytes.div_ceil(1024)))
    /// }
    /// ```
    #[must_use]
    pub fn body_bytes(&self) -> Option<u64> {
        self.body_bytes
    }

    /// Whether the request was served: neither an error of HTTP nor, in the headers, one of gRPC.
    ///
    /// ```
    /// use tollgate::tower::{ResponseHead, Settle};
    ///
    /// /// Only failed logins count.
    /// fn settle(response: &ResponseHead<'_>) -> Settle {
    ///     if response.is_success() { Settle::Refund } else { Settle::Keep }
    /// }
    /// ```
    #[must_use]
    pub fn is_success(&self) -> bool {
        let grpc = self.headers.get("grpc-status").is_none_or(|status| status == "0");
        grpc && !self.status.is_client_error() && !self.status.is_server_error()
    }
}

/// What a decision took from its key, as far as it can be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) cost: u64,
    /// The time that it was decided by: never later than what was taken counts from, so that nothing is given back of
    /// a window in which nothing was taken.
    pub(crate) at_ns: u64,
    /// A time that was read after that: a token of a log for which room had to be made counts from a later time.
    pub(crate) until_ns: u64,
    /// Whether rules that only watch have taken it too.
    pub(crate) with_shadows: bool,
}

impl Spent {
    pub(super) fn by(decision: &Decision, until_ns: u64) -> Self {
        // A key that is on a list is charged nothing.
        let cost = if decision.cause() == Cause::Rule { decision.cost() } else { 0 };
        Self { cost, at_ns: decision.at_ns(), until_ns, with_shadows: decision.would_deny().is_none() }
    }
}

pub(super) type SettleFn = dyn Fn(&ResponseHead<'_>) -> Settle + Send + Sync;

/// What was taken for a request whose response has a say.
#[derive(Clone)]
pub(super) struct Charge {
    pub(super) shared: Arc<Shared>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) key: u64,
    pub(super) spent: Spent,
    pub(super) tier: Option<Cow<'static, str>>,
    pub(super) settle: Arc<SettleFn>,
}

impl Charge {
    /// Settles by the response; whether its bytes are still to be counted.
    pub(super) fn settle(&self, response: &ResponseHead<'_>) -> bool {
        match ((self.settle)(response), response.body_bytes) {
            (Settle::Keep, _) => {}
            (Settle::Refund, _) => self.settle_at(0),
            (Settle::Cost(actual), _) | (Settle::BytesSent, Some(actual)) => self.settle_at(actual),
            (Settle::BytesSent, None) => return true,
        }
        false
    }

    fn settle_at(&self, actual: u64) {
        let cost = self.spent.cost;
        match actual.checked_sub(cost) {
            Some(extra) => self.spend(extra),
            None => self.give_back(cost - actual),
        }
    }

    /// A response may be long in coming: only what this request took is given back, and only while it counts.
    pub(super) fn give_back(&self, left: u64) {
        self.limiter.undo(self.key, self.tier.as_deref(), left, &self.spent);
    }

    /// Spends whether it fits or not, as far as the policy can.
    pub(super) fn spend(&self, extra: u64) {
        if extra > 0 {
            self.limiter.spend_anyway(self.key, self.tier.as_deref(), extra);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("spent", &self.spent).field("tier", &self.tier).finish_non_exhaustive()
    }
}
