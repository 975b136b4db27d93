//! What a response says of the limit: the fields of the drafts, and those from before them.

use crate::decision::Decision;
use crate::{Algorithm, Policy, Rule};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// A structured field's integers have 15 digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;
const NS_PER_S: u64 = 1_000_000_000;
/// Sooner than this nobody is told to come back.
const RETRY_MIN: Duration = Duration::from_secs(1);

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT6: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// How responses tell clients about the limit. Times are whole seconds, rounded up.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::tower::{HeaderStyle, RateLimitLayer};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let layer = RateLimitLayer::builder().limit("100/min").headers(HeaderStyle::Draft6).build()?;
/// let hello = service_fn(|_| async { Ok::<_, std::io::Error>(http::Response::new(String::new())) });
/// let response = layer.layer(hello).oneshot(http::Request::new(())).await?;
/// assert_eq!(response.headers()["ratelimit-remaining"], "99");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy: "api";q=100;w=60` and `RateLimit: "api";r=50;t=30`, as the IETF's draft 11 says.
    #[default]
    Draft11,
    /// `RateLimit: limit=100, remaining=50, reset=30` and `RateLimit-Policy: 100;w=60`.
    Draft7,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` (seconds from now), `RateLimit-Policy`.
    Draft6,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` as a Unix time.
    LegacyEpoch,
    /// The same with `X-RateLimit-Reset` as seconds from now.
    LegacyDelta,
    /// Nothing but `Retry-After` on refusals.
    Off,
}

impl HeaderStyle {
    /// The policy as the style writes it; `None` if it does not, or if there is nothing to tell.
    pub(super) fn policy(self, policy: &Policy, is_bytes: bool) -> Option<String> {
        let items: Vec<String> = policy.rules().iter().filter_map(|rule| self.item(rule, is_bytes)).collect();
        (!items.is_empty()).then(|| items.join(", "))
    }

    /// Whether it says when something is by the time of day.
    pub(super) fn tells_the_time(self) -> bool {
        self == Self::LegacyEpoch
    }

    fn item(self, rule: &Rule, is_bytes: bool) -> Option<String> {
        // A rule that never refuses is none of the client's business.
        if rule.is_shadow() {
            return None;
        }
        let (quota, window) = quota(rule);
        let window = window.map(|window| format!(";w={window}")).unwrap_or_default();
        match self {
            Self::Draft11 => {
                let unit = if is_bytes { ";qu=\"content-bytes\"" } else { "" };
                Some(format!("\"{}\";q={quota}{unit}{window}", rule.name().unwrap_or_default()))
            }
            Self::Draft7 | Self::Draft6 => Some(format!("{quota}{window}")),
            Self::LegacyEpoch | Self::LegacyDelta | Self::Off => None,
        }
    }

    /// What to write of a decision; `wall_ns` is the time of day at which it was made, for a style that tells it.
    #[inline]
    pub(super) fn told(self, decision: &Decision, policy: Option<HeaderValue>, wall_ns: Option<u64>) -> Told {
        let until = until(decision);
        let reset = match self {
            Self::LegacyEpoch => {
                let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
                let wall_ns = wall_ns.unwrap_or_else(|| decision.at_ns());
                wall_ns.saturating_add(until_ns).div_ceil(NS_PER_S)
            }
            _ => seconds_up(until).min(INTEGER_MAX),
        };
        Told {
            name: decision.rule_name(),
            limit: decision.limit().min(INTEGER_MAX),
            remaining: decision.remaining().min(INTEGER_MAX),
            reset,
            policy,
        }
    }

    /// Writes down what was decided. A field that is there already stays; draft 11's are lists and get longer.
    pub(super) fn write(self, headers: &mut HeaderMap, told: Told) {
        let Told { name, limit, remaining, reset, policy } = told;
        if let Some(policy) = policy {
            headers.append(RATELIMIT_POLICY, policy);
        }
        match self {
            Self::Off => {}
            Self::Draft11 => {
                let mut line = Line::default();
                line.text("\"").text(name.unwrap_or_default());
                line.text("\";r=").number(remaining).text(";t=").number(reset);
                headers.append(RATELIMIT, line.value());
            }
            Self::Draft7 => {
                let mut line = Line::default();
                line.text("limit=").number(limit).text(", remaining=").number(remaining);
                line.text(", reset=").number(reset);
                headers.entry(RATELIMIT).or_insert_with(|| line.value());
            }
            Self::Draft6 => write_three(headers, DRAFT6, [limit, remaining, reset]),
            Self::LegacyEpoch | Self::LegacyDelta => write_three(headers, LEGACY, [limit, remaining, reset]),
        }
    }
}

/// What a response says of a decision. It waits with the request and is moved whenever that is: so it is no more than is
/// said.
#[derive(Debug)]
pub(super) struct Told {
    name: Option<&'static str>,
    limit: u64,
    remaining: u64,
    /// In seconds: from now on, or from the epoch.
    reset: u64,
    policy: Option<HeaderValue>,
}

/// How long what is said holds: until all is there again, or for a refusal until the request would pass. The drafts
/// ask that `Retry-After` not be earlier than the end of the window, so it is the end.
fn until(decision: &Decision) -> Duration {
    match decision.retry_after() {
        Some(wait) => wait.max(RETRY_MIN),
        None => decision.reset_after(),
    }
}

fn write_three(headers: &mut HeaderMap, names: [HeaderName; 3], numbers: [u64; 3]) {
    for (name, number) in names.into_iter().zip(numbers) {
        headers.entry(name).or_insert_with(|| HeaderValue::from(number));
    }
}

/// How many in how many seconds, so that what remains never exceeds the first: of a bucket with a burst, the
/// burst and the time in which it comes back.
fn quota(rule: &Rule) -> (u64, Option<u64>) {
    if rule.algorithm() == Algorithm::InFlight {
        return (rule.limit().min(INTEGER_MAX), None);
    }
    let (count, limit) = (u128::from(rule.count().max(1)), u128::from(rule.limit()));
    let (period_ns, second_ns) = (rule.period().as_nanos().max(1), u128::from(NS_PER_S));
    let refill_ns = limit.saturating_mul(period_ns) / count;
    let (quota, window_ns) = match (refill_ns >= second_ns, period_ns >= second_ns) {
        (true, _) => (limit, refill_ns),
        (false, true) => (count, period_ns),
        // Within a second there are several periods.
        (false, false) => (count.saturating_mul(second_ns) / period_ns, second_ns),
    };
    let integer = |number: u128| u64::try_from(number).unwrap_or(u64::MAX).min(INTEGER_MAX);
    (integer(quota), Some(integer(window_ns.div_ceil(second_ns))))
}

/// `Retry-After`: in whole seconds, rounded up.
pub(super) fn retry_after_seconds(wait: Duration) -> u64 {
    seconds_up(wait.max(RETRY_MIN))
}

/// Whole seconds, rounded up: whoever waits that long has waited long enough.
fn seconds_up(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// A short text of ASCII that is put together without the heap.
struct Line {
    bytes: [u8; Self::BYTES_MAX],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; Self::BYTES_MAX], length: 0 }
    }
}

impl Line {
    /// A name of 64, two numbers of 20 digits, and what is between them.
    const BYTES_MAX: usize = 160;

    /// Inlined: of a text that is known beforehand so little is left that it is not worth a call.
    #[inline(always)]
    fn text(&mut self, text: &str) -> &mut Self {
        if let Some(place) = self.place(text.len()) {
            place.copy_from_slice(text.as_bytes());
        }
        self
    }

    fn number(&mut self, mut number: u64) -> &mut Self {
        let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
        for byte in self.place(digits).into_iter().flatten().rev() {
            #[allow(clippy::cast_possible_truncation, reason = "a digit")]
            let digit = (number % 10) as u8;
            *byte = b'0' + digit;
            number /= 10;
        }
        self
    }

    /// The next bytes; `None` if there are not so many left.
    #[inline(always)]
    fn place(&mut self, length: usize) -> Option<&mut [u8]> {
        let place = self.bytes.get_mut(self.length..self.length + length)?;
        self.length += length;
        Some(place)
    }

    fn value(&self) -> HeaderValue {
        // Names are checked when a rule is built: there is nothing here that a header cannot hold.
        HeaderValue::from_bytes(&self.bytes[..self.length]).unwrap_or(HeaderValue::from_static(""))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn quotas_keep_the_rate_and_bound_what_remains() {
        for (rule, expected) in [
            ("100/min", (100, Some(60))),
            ("100/min burst 20", (20, Some(12))),
            ("10/s burst 25", (25, Some(3))),
            ("1000/s burst 10", (1000, Some(1))),
            ("5/ms", (5000, Some(1))),
            ("log 5/15min", (5, Some(900))),
            ("fixed 1/1500ms", (1, Some(2))),
            ("20 at once", (20, None)),
        ] {
            assert_eq!(quota(&rule.parse().unwrap()), expected, "{rule}");
        }
    }

    #[test]
    fn lines_never_overflow() {
        let mut line = Line::default();
        for _ in 0..30 {
            line.text("0123456789").number(u64::MAX);
        }
        assert_eq!(line.value().len(), Line::BYTES_MAX);
        assert_eq!(Line::default().number(0).text(" ").number(1_203).value(), "0 1203");
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (ns, seconds) in [(0, 0), (1, 1), (NS_PER_S, 1), (NS_PER_S + 1, 2)] {
            assert_eq!(seconds_up(Duration::from_nanos(ns)), seconds);
        }
        assert_eq!(seconds_up(Duration::MAX), u64::MAX);
    }
}
