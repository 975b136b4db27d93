//! How a layer is built.

use super::client_ip::ClientIp;
use super::head::RequestHead;
use super::headers::HeaderStyle;
use super::layer::{RateLimitLayer, Shared};
use super::live::Live;
use super::refusal::{NoBody, ProblemJson, Refusal, RespondWith};
use super::settle::{ResponseHead, Settle, SettleFn};
use crate::rules::{KeySpec, RouteMatch, RouteRule, RuleSet, RulesError};
use crate::{Clock, Error, Policy};
use ahash::RandomState;
use arc_swap::ArcSwap;
use http::Response;
use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

/// What becomes of a request without the key that a rule asks for, and without anything that stands in for it.
///
/// ```
/// use tollgate::tower::{MissingKey, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder()
///     .limit("100/min")
///     .key("header:x-api-key")
///     .missing_key(MissingKey::Deny) // 403
///     .build()?;
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// All such requests share one budget of the rule.
    #[default]
    Share,
    /// The rule does not apply to it.
    Allow,
    /// It is refused: 403.
    Deny,
}

/// Something that the layer has to tell the people who run it.
///
/// ```
/// use tollgate::tower::{Notice, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder()
///     .limit("100/min")
///     .on_notice(|notice| match notice {
///         Notice::MissingKey { rule } => eprintln!("rule {rule} has no key to go by"),
///         other => eprintln!("{other}"),
///     })
///     .build()?;
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A request came without the key that this rule asks for. Said once in the life of a layer: most often, the
    /// server does not tell its services the peer's address.
    MissingKey {
        /// The rule.
        rule: &'a str,
    },
    /// The bytes of a response were to be [charged for](super::Settle::BytesSent), and nobody counts them: there is
    /// no [`MeterBytesLayer`](super::MeterBytesLayer) around the layer. Said once in the life of a layer.
    UncountedBody {
        /// The rule.
        rule: &'a str,
    },
    /// Other rules are in force.
    Reloaded,
    /// This rule was there before, but what was spent under it is forgotten: its key, its tiers or its room are others
    /// now, or it has had more limits than one limiter keeps apart.
    BegunAnew {
        /// The rule.
        rule: &'a str,
    },
    /// Other rules were not accepted: those before stay in force.
    NotReloaded(&'a RulesError),
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey { rule } => write!(
                f,
                "a request has no key for rule `{rule}`: does the server put the peer's address into the extensions?"
            ),
            Self::UncountedBody { rule } => write!(
                f,
                "rule `{rule}` charges for the bytes of responses, and nobody counts them: put a `MeterBytesLayer` \
                 around the layer"
            ),
            Self::Reloaded => f.write_str("other rules are in force"),
            Self::BegunAnew { rule } => write!(f, "rule `{rule}` begins anew: what was spent is forgotten"),
            Self::NotReloaded(error) => write!(f, "the rules stay as they were: {error}"),
        }
    }
}

pub(super) struct CustomKey {
    pub(super) name: Box<str>,
    pub(super) write: Box<WriteKey>,
}

type WriteKey = dyn Fn(&RequestHead<'_>, &mut dyn Hasher) -> bool + Send + Sync;
type TierOf = dyn Fn(&RequestHead<'_>) -> Option<Cow<'static, str>> + Send + Sync;
type CostOf = dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync;
type OnNotice = dyn Fn(&Notice<'_>) + Send + Sync;

/// Everything about a layer but its rules.
#[derive(Default)]
pub(super) struct Options {
    pub(super) client_ip: ClientIp,
    pub(super) custom: Vec<CustomKey>,
    pub(super) tier: Option<Box<TierOf>>,
    pub(super) cost: Option<Box<CostOf>>,
    pub(super) settle: Vec<(Box<str>, Arc<SettleFn>)>,
    /// Rules whose unit is a byte.
    pub(super) byte_rules: Vec<Box<str>>,
    pub(super) missing: MissingKey,
    pub(super) style: HeaderStyle,
    pub(super) silent_when_allowed: bool,
    pub(super) never_grpc: bool,
    pub(super) on_notice: Option<Box<OnNotice>>,
    pub(super) clock: Option<Clock>,
    pub(super) count_decisions: bool,
    #[cfg(feature = "tracing")]
    pub(super) trace_one_in: u64,
    /// Rules and exclusions of the program, which hold beside those of a file.
    pub(super) own: RuleSet,
}

/// Builds a [`RateLimitLayer`].
///
/// ```
/// use tollgate::rules::RouteRule;
/// use tollgate::tower::{HeaderStyle, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder()
///     .limit("100/min")
///     .rule(RouteRule::new("login", "log 5/15min").path("/login").method("POST"))
///     .exclude("/health")
///     .headers(HeaderStyle::LegacyEpoch)
///     .build()?;
/// # let _: RateLimitLayer = layer;
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimitBuilder<R = ProblemJson> {
    limit: Option<Result<Policy, Error>>,
    key: Option<KeySpec>,
    rules: Vec<RouteRule>,
    exclusions: RuleSet,
    file: Option<Source>,
    error: Option<RulesError>,
    options: Options,
    respond: R,
}

enum Source {
    Set(RuleSet),
    File(PathBuf),
}

impl RateLimitBuilder {
    pub(super) fn new() -> Self {
        Self {
            limit: None,
            key: None,
            rules: Vec::new(),
            exclusions: RuleSet::default(),
            file: None,
            error: None,
            options: Options::default(),
            respond: ProblemJson,
        }
    }
}

impl<R> RateLimitBuilder<R> {
    /// A limit for all requests: a rule of the name `default`, by [`key`](Self::key).
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder().limit("100/min burst 20").build()?;
    /// assert_eq!(layer.handle().rules().rules()[0].name(), "default");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn limit<P>(mut self, limit: P) -> Self
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        self.limit = Some(limit.try_into().map_err(Into::into));
        self
    }

    /// Whose budget [`limit`](Self::limit) is: a [`KeySpec`] as text, such as `"header:x-api-key | ip"`; `ip` unless
    /// given.
    ///
    /// A header that nobody verifies is a key of the client's choosing: whoever sends another one with every request
    /// is never limited. Check it in [`key_by`](Self::key_by), or add a rule by `ip`.
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// assert!(RateLimitLayer::builder().limit("9/s").key("header:x-api-key | ip").build().is_ok());
    /// assert!(RateLimitLayer::builder().limit("9/s").key("cookie:session").build().is_err());
    /// ```
    pub fn key(mut self, key: &str) -> Self {
        match key.parse() {
            Ok(key) => self.key = Some(key),
            Err(error) => self.note(error),
        }
        self
    }

    /// Keeps the first thing that is wrong.
    fn note(&mut self, error: RulesError) {
        self.error.get_or_insert(error);
    }

    /// One more rule.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let login = RouteRule::new("login", "log 5/15min").path("/login").method("POST");
    /// let layer = RateLimitLayer::builder().rule(login).build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn rule(mut self, rule: RouteRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Leaves requests for a path alone, given as a [pattern](crate::rules::PathPattern).
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder().limit("100/min").exclude("/health").exclude("/static/**").build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn exclude(mut self, path: &str) -> Self {
        let mut exclusion = RouteMatch::default();
        match exclusion.add_path(path) {
            Ok(()) => self.exclusions = self.exclusions.excluding(exclusion),
            Err(error) => self.note(error),
        }
        self
    }

    /// Rules beside those given here, which [`RulesHandle::reload`](super::RulesHandle::reload) replaces.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let rules = "[[rule]]\nname = 'api'\nlimit = '100/min'".parse()?;
    /// let layer = RateLimitLayer::builder().rules(rules).build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn rules(self, rules: RuleSet) -> Self {
        self.with_source(Source::Set(rules))
    }

    /// The same from a file. It is read once; see [`RulesHandle::watch`](super::RulesHandle::watch).
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let error = RateLimitLayer::builder().rules_file("no/such/rules.toml").build().unwrap_err();
    /// assert!(error.to_string().starts_with("no/such/rules.toml: "));
    /// ```
    pub fn rules_file(self, path: impl Into<PathBuf>) -> Self {
        self.with_source(Source::File(path.into()))
    }

    fn with_source(mut self, source: Source) -> Self {
        if self.file.replace(source).is_some() {
            self.note(RulesError::new(
                "rules come from one place: give `rules` or `rules_file`, and that once",
            ));
        }
        self
    }

    /// How the client's address is found; unless given it is the peer's, and no header is believed.
    ///
    /// ```
    /// use tollgate::tower::{ClientIp, RateLimitLayer};
    ///
    /// let behind_a_proxy = ClientIp::x_forwarded_for(["10.0.0.0/8"])?;
    /// let layer = RateLimitLayer::builder().limit("100/min").client_ip(behind_a_proxy).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn client_ip(mut self, client_ip: ClientIp) -> Self {
        self.options.client_ip = client_ip;
        self
    }

    /// What rules call `custom:NAME`: anything that hashes, or `None` if the request has no such thing.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .limit("100/min")
    ///     .key("custom:user | ip")
    ///     .key_by("user", |request| request.extensions().get::<UserId>().map(|user| user.0))
    ///     .build()?;
    /// # let _: RateLimitLayer = layer;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn key_by<K: Hash>(
        mut self,
        name: &str,
        key: impl Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let write = move |head: &RequestHead<'_>, mut hasher: &mut dyn Hasher| match key(head) {
            Some(key) => {
                key.hash(&mut hasher);
                true
            }
            None => false,
        };
        if self.options.custom.iter().any(|known| *known.name == *name) {
            self.note(RulesError::new(format!(
                "there are two keys of the name `{name}`: `key_by` is given twice"
            )));
        }
        self.options.custom.push(CustomKey { name: name.into(), write: Box::new(write) });
        self
    }

    /// Which tier a request is of. A rule without that tier goes by its own limit.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .rule(RouteRule::new("api", "100/min").tier("premium", "1000/min"))
    ///     .tier_by(|request| request.headers().contains_key("x-premium").then_some("premium"))
    ///     .build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn tier_by<T: Into<Cow<'static, str>>>(
        mut self,
        tier: impl Fn(&RequestHead<'_>) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        self.options.tier = Some(Box::new(move |head| tier(head).map(Into::into)));
        self
    }

    /// What a request costs, times what the rule says; 1 unless given. What costs 0 passes.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .limit("100/min")
    ///     .cost_by(|request| if request.uri().path() == "/search" { 5 } else { 1 })
    ///     .build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn cost_by(mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.options.cost = Some(Box::new(cost));
        self
    }

    /// Settles what requests under a rule have cost, by their responses.
    ///
    /// The cost is taken before the call, so that no number of requests at once gets past the limit. A call that is
    /// given up, or ends with an error of the service, keeps it.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// use tollgate::tower::{RateLimitLayer, Settle};
    ///
    /// // Only failed logins count.
    /// let layer = RateLimitLayer::builder()
    ///     .rule(RouteRule::new("login", "log 5/15min").path("/login").method("POST"))
    ///     .settle_by("login", |response| match response.is_success() {
    ///         true => Settle::Refund,
    ///         false => Settle::Keep,
    ///     })
    ///     .build()?;
    /// # let _: RateLimitLayer = layer;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn settle_by(
        mut self,
        rule: &str,
        settle: impl Fn(&ResponseHead<'_>) -> Settle + Send + Sync + 'static,
    ) -> Self {
        if self.options.settle.iter().any(|(known, _)| **known == *rule) {
            self.note(RulesError::new(format!("the charges of rule `{rule}` are settled in two ways")));
        }
        self.options.settle.push((rule.into(), Arc::new(settle)));
        self
    }

    /// Charges every request under a rule for the bytes of its response, as [`Settle::BytesSent`] does, and says in
    /// the headers that they are what is counted.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .rule(RouteRule::new("downloads", "100_000_000/h").path("/files/**"))
    ///     .charge_bytes("downloads")
    ///     .build()?;
    /// # let _: RateLimitLayer = layer;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn charge_bytes(mut self, rule: &str) -> Self {
        self.options.byte_rules.push(rule.into());
        self.settle_by(rule, |_| Settle::BytesSent)
    }

    /// What becomes of requests without a key; they share one budget unless told otherwise.
    ///
    /// ```
    /// use tollgate::tower::{MissingKey, RateLimitLayer};
    ///
    /// let builder = RateLimitLayer::builder().limit("100/min").key("header:x-api-key");
    /// let layer = builder.missing_key(MissingKey::Allow).build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn missing_key(mut self, missing: MissingKey) -> Self {
        self.options.missing = missing;
        self
    }

    /// How responses tell clients about the limit.
    ///
    /// ```
    /// use tollgate::tower::{HeaderStyle, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder().limit("100/min").headers(HeaderStyle::Draft6).build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn headers(mut self, style: HeaderStyle) -> Self {
        self.options.style = style;
        self
    }

    /// Tells nothing on responses of requests that pass.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    /// let layer = RateLimitLayer::builder().limit("100/min").headers_on_refusals_only().build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn headers_on_refusals_only(mut self) -> Self {
        self.options.silent_when_allowed = true;
        self
    }

    /// Refuses as HTTP does, whatever the client seems to speak: where no gRPC is served, a client that calls itself
    /// gRPC is told 429 all the same.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder().limit("100/min").never_grpc().build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn never_grpc(mut self) -> Self {
        self.options.never_grpc = true;
        self
    }

    /// Where time comes from.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Clock;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let clock = Clock::coarse(Duration::from_millis(1));
    /// let layer = RateLimitLayer::builder().limit("100/min").clock(clock).build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.options.clock = Some(clock);
        self
    }

    /// Whether the limiters count their decisions, for
    /// [`RulesHandle::limiter`](super::RulesHandle::limiter): see
    /// [`LimiterBuilder::count_decisions`](crate::LimiterBuilder::count_decisions).
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder().limit("100/min").count_decisions(true).build()?;
    /// let counted = layer.handle().stats("default").expect("there is that rule").decisions;
    /// assert!(counted.iter().all(|rule| rule.denied == 0));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn count_decisions(mut self, count: bool) -> Self {
        self.options.count_decisions = count;
        self
    }

    /// Tells of one in so many refusals by an event, which has the name of the rule as that of the limiter: see
    /// [`LimiterBuilder::trace_refusals`](crate::LimiterBuilder::trace_refusals).
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    /// let layer = RateLimitLayer::builder().limit("100/min").trace_refusals(100).build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[cfg(feature = "tracing")]
    pub fn trace_refusals(mut self, one_in: u64) -> Self {
        self.options.trace_one_in = one_in;
        self
    }

    /// Who is told what the people who run the service should know. With the feature `tracing` it is an event, too.
    /// If nobody listens to either, a warning is a line on the standard error.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .limit("100/min")
    ///     .on_notice(|notice| eprintln!("rate limit: {notice}"))
    ///     .build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn on_notice(mut self, tell: impl Fn(&Notice<'_>) + Send + Sync + 'static) -> Self {
        self.options.on_notice = Some(Box::new(tell));
        self
    }

    /// Makes the response of a refusal.
    ///
    /// ```
    /// use http::Response;
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .limit("100/min")
    ///     .on_refusal(|refusal| {
    ///         let mut response = refusal.response(|_json| String::from("slow down\n"));
    ///         response.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    ///         response
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn on_refusal<F, B>(self, respond: F) -> RateLimitBuilder<RespondWith<F>>
    where
        F: Fn(&Refusal<'_>) -> Response<B> + Clone + Send + Sync + 'static,
    {
        self.responding(RespondWith(respond))
    }

    /// Refuses without a body: for body types that have an empty form and are not made of a `String`, such as
    /// tonic's.
    ///
    /// ```
    /// use tollgate::tower::{NoBody, RateLimitLayer};
    /// let layer: RateLimitLayer<NoBody> = RateLimitLayer::builder().limit("100/min").without_body().build()?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn without_body(self) -> RateLimitBuilder<NoBody> {
        self.responding(NoBody)
    }

    fn responding<Q>(self, respond: Q) -> RateLimitBuilder<Q> {
        let Self { limit, key, rules, exclusions, file, error, options, respond: _ } = self;
        RateLimitBuilder { limit, key, rules, exclusions, file, error, options, respond }
    }

    /// Builds the layer and takes the memory of all its limiters.
    ///
    /// ```
    /// use tollgate::tower::RateLimitLayer;
    ///
    /// assert!(RateLimitLayer::builder().limit("100/min").build().is_ok());
    /// let error = RateLimitLayer::builder().build().unwrap_err();
    /// assert_eq!(error.to_string(), "a layer needs a limit, a rule or a file of rules");
    /// ```
    ///
    /// # Errors
    ///
    /// No rule at all, or rules that are not right; a key `custom:NAME` that [`key_by`](Self::key_by) does not know;
    /// a rule for [`settle_by`](Self::settle_by) that is not there; two limits, keys or settlements of one name; what
    /// would have no effect, such as a key without a limit.
    pub fn build(mut self) -> Result<RateLimitLayer<R>, RulesError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let default = match (self.limit.transpose()?, self.key) {
            (Some(limit), key) => Some(RouteRule::new("default", limit).key_spec(key.unwrap_or_default())),
            (None, None) => None,
            (None, Some(_)) => {
                return Err(RulesError::new(
                    "`key` is that of `limit`, and there is none: each rule has its own `key`",
                ));
            }
        };
        let has_rules = default.is_some() || !self.rules.is_empty() || self.file.is_some();
        if !has_rules {
            return Err(RulesError::new("a layer needs a limit, a rule or a file of rules"));
        }
        let mut own = RuleSet::new(default.into_iter().chain(self.rules))?;
        for exclusion in self.exclusions.exclusions() {
            own = own.excluding(exclusion.clone());
        }
        self.options.own = own;
        let file = match self.file {
            None => RuleSet::default(),
            Some(Source::Set(rules)) => rules,
            Some(Source::File(path)) => RuleSet::from_path(path)?,
        };
        let live = Live::new(&self.options, &file)?;
        let hasher = RandomState::new();
        let shared = Shared {
            nobody: hasher.hash_one("nobody"),
            hasher,
            options: self.options,
            live: ArcSwap::from_pointee(live),
            reloading: Mutex::new(()),
            told_of_key: OnceLock::new(),
            told_of_body: OnceLock::new(),
        };
        Ok(RateLimitLayer { shared: Arc::new(shared), respond: self.respond })
    }
}

impl<R> fmt::Debug for RateLimitBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitBuilder")
            .field("limit", &self.limit)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
