//! One entry of a rules file: for which requests, by which key, how many.

use super::path::RequestPath;
use super::pattern::PathPattern;
use super::{KeyPart, KeySpec, RulesError};
use crate::policy::check_name;
use crate::{Error, Limiter, LimiterBuilder, Policy, WhenFull};
use std::fmt;

/// As long as a limit's name may be, with room for a number behind it.
const NAME_BYTES_MAX: usize = 60;
const COST_MAX: u64 = u32::MAX as u64;

/// Which requests an entry is about: some paths, some methods.
///
/// Displayed as a person would say it: `GET /health`, `POST, PUT /users/{id}`, `/**`.
///
/// ```
/// use tollgate::rules::{RequestPath, RouteMatch};
///
/// let mut uploads = RouteMatch::default();
/// uploads.add_method("POST")?;
/// uploads.add_path("/files/**")?;
/// assert!(uploads.matches("POST", &RequestPath::new("/files/7")));
/// assert!(!uploads.matches("GET", &RequestPath::new("/files/7")));
/// assert_eq!(uploads.to_string(), "POST /files/**");
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteMatch {
    paths: Vec<PathPattern>,
    methods: Vec<Box<str>>,
}

impl RouteMatch {
    /// Paths that match; all do if there is none.
    ///
    /// ```
    /// let mut matching = tollgate::rules::RouteMatch::default();
    /// assert!(matching.paths().is_empty());
    /// matching.add_path("/files/{id}")?;
    /// assert!(matching.paths()[0].has_param("id"));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn paths(&self) -> &[PathPattern] {
        &self.paths
    }

    /// Methods that match, in upper case; all do if there is none.
    ///
    /// ```
    /// let mut matching = tollgate::rules::RouteMatch::default();
    /// matching.add_method("post")?;
    /// assert!(matching.methods().eq(["POST"]));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.iter().map(|method| &**method)
    }

    /// Adds a path.
    ///
    /// ```
    /// let mut matching = tollgate::rules::RouteMatch::default();
    /// assert!(matching.add_path("/files/**").is_ok());
    /// assert!(matching.add_path("files").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// What is no pattern.
    pub fn add_path(&mut self, pattern: &str) -> Result<(), RulesError> {
        self.paths.push(pattern.parse()?);
        Ok(())
    }

    /// Adds a method; `GET` is good for `HEAD` too, which servers answer by the same handler.
    ///
    /// ```
    /// use tollgate::rules::{RequestPath, RouteMatch};
    ///
    /// let mut matching = RouteMatch::default();
    /// assert!(matching.add_method("GET").is_ok());
    /// assert!(matching.matches("HEAD", &RequestPath::new("/")));
    /// assert!(matching.add_method("no method").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// What is no method.
    pub fn add_method(&mut self, method: &str) -> Result<(), RulesError> {
        if method.is_empty()
            || method.len() > 32
            || !method.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
        {
            return Err(RulesError::new(format!("`{method}` is no method: write `GET`, `POST` and so on")));
        }
        self.methods.push(method.to_ascii_uppercase().into());
        Ok(())
    }

    /// Whether a request is one of these.
    ///
    /// ```
    /// use tollgate::rules::{RequestPath, RouteMatch};
    /// assert!(RouteMatch::default().matches("GET", &RequestPath::new("/anything")));
    /// ```
    #[must_use]
    pub fn matches(&self, method: &str, path: &RequestPath<'_>) -> bool {
        self.has_method(method)
            && (self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.matches(path)))
    }

    /// Whether a request is one of these if its path is read in this way.
    pub(super) fn reads(&self, method: &str, reading: &[u8]) -> bool {
        self.has_method(method)
            && (self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.reads(reading)))
    }

    fn has_method(&self, method: &str) -> bool {
        self.methods.is_empty()
            || self.methods.iter().any(|known| **known == *method || (method == "HEAD" && &**known == "GET"))
    }
}

impl fmt::Display for RouteMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.methods.is_empty() {
            write!(f, "{} ", self.methods.join(", "))?;
        }
        if self.paths.is_empty() {
            return f.write_str("/**");
        }
        for (index, path) in self.paths.iter().enumerate() {
            write!(f, "{}{path}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A limit for some requests: which, by which key, how many, at what cost.
///
/// Built in code or read from a file; whatever was wrong is said when it is put into a
/// [`RuleSet`](super::RuleSet).
///
/// ```
/// use tollgate::rules::{RouteRule, RuleSet};
///
/// let rules = RuleSet::new([
///     RouteRule::new("default", "100/min"),
///     RouteRule::new("login", "log 5/15min; 20/d").path("/login").method("POST").key("ip/64"),
/// ])?;
/// let applied: Vec<&str> = rules.matches("POST", "/login").map(|rule| rule.name()).collect();
/// assert_eq!(applied, ["default", "login"]);
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a rule does nothing until it is in a set"]
pub struct RouteRule {
    name: Box<str>,
    matching: RouteMatch,
    key: KeySpec,
    limit: Result<Policy, Error>,
    tiers: Vec<(Box<str>, Policy)>,
    shadow: bool,
    otherwise: bool,
    cost: u64,
    max_keys: Option<usize>,
    when_full: WhenFull,
    /// The first thing that was wrong.
    error: Option<RulesError>,
}

impl RouteRule {
    /// A limit for all requests, by the client's address, unless told otherwise.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([RouteRule::new("default", "100/min")])?;
    /// assert_eq!(rules.matches("GET", "/anything").len(), 1);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn new<P>(name: &str, limit: P) -> Self
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        Self {
            name: name.into(),
            matching: RouteMatch::default(),
            key: KeySpec::default(),
            limit: limit.try_into().map_err(Into::into),
            tiers: Vec::new(),
            shadow: false,
            otherwise: false,
            cost: 1,
            max_keys: None,
            when_full: WhenFull::default(),
            error: None,
        }
    }

    /// Only for this path, or for one more: a [`PathPattern`].
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rule = RouteRule::new("files", "10/min").path("/files/**").path("/upload");
    /// let rules = RuleSet::new([rule])?;
    /// assert_eq!(rules.matches("GET", "/files/7").len(), 1);
    /// assert_eq!(rules.matches("GET", "/").len(), 0);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn path(mut self, pattern: &str) -> Self {
        let added = self.matching.add_path(pattern);
        self.noting(added)
    }

    /// Only for this method, or for one more.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([RouteRule::new("writes", "10/min").method("POST").method("PUT")])?;
    /// assert_eq!(rules.matches("PUT", "/").len(), 1);
    /// assert_eq!(rules.matches("GET", "/").len(), 0);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn method(mut self, method: &str) -> Self {
        let added = self.matching.add_method(method);
        self.noting(added)
    }

    /// Only for requests like these.
    ///
    /// ```
    /// use tollgate::rules::{RouteMatch, RouteRule};
    ///
    /// let mut uploads = RouteMatch::default();
    /// uploads.add_path("/files/**")?;
    /// let rule = RouteRule::new("uploads", "10/min").matched_by(uploads.clone());
    /// assert_eq!(rule.matching(), &uploads);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn matched_by(mut self, matching: RouteMatch) -> Self {
        self.matching = matching;
        self
    }

    /// By this key: a text such as `"header:x-api-key | ip"`.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rule = RouteRule::new("api", "100/min").key("header:x-api-key | ip");
    /// assert_eq!(rule.key_of().choices()[0].parts().len(), 2);
    /// let wrong = RouteRule::new("api", "100/min").key("cookie:session");
    /// assert!(RuleSet::new([wrong]).is_err());
    /// ```
    pub fn key(mut self, key: &str) -> Self {
        match key.parse() {
            Ok(key) => self.key = key,
            Err(error) => return self.noting(Err(error)),
        }
        self
    }

    /// By this key.
    ///
    /// ```
    /// use tollgate::rules::{KeySpec, RouteRule};
    /// let rule = RouteRule::new("api", "100/min").key_spec(KeySpec::default());
    /// assert_eq!(rule.key_of().to_string(), "ip");
    /// ```
    pub fn key_spec(mut self, key: KeySpec) -> Self {
        self.key = key;
        self
    }

    /// Another limit for those who are of a tier.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    ///
    /// let rule = RouteRule::new("api", "100/min").tier("premium", "1000/min");
    /// let (name, limit) = rule.tiers().next().expect("one");
    /// assert_eq!((name, limit.to_string()), ("premium", "1000/min".to_owned()));
    /// ```
    pub fn tier<P>(mut self, name: &str, limit: P) -> Self
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        match limit.try_into().map_err(Into::into) {
            Ok(policy) => self.tiers.push((name.into(), policy)),
            Err(error) => {
                let error = RulesError::from(error).about(format_args!("tier `{name}`"));
                return self.noting(Err(error));
            }
        }
        self
    }

    /// Only watch: decide and count, and never refuse.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// assert!(RouteRule::new("stricter", "50/min").shadow().is_shadow());
    /// ```
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Only where no other rule applies. Rules that only watch do not count.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([
    ///     RouteRule::new("login", "5/min").path("/login"),
    ///     RouteRule::new("rest", "100/min").otherwise(),
    /// ])?;
    /// let names = |path| rules.matches("GET", path).map(|rule| rule.name()).collect::<Vec<_>>();
    /// assert_eq!((names("/login"), names("/")), (vec!["login"], vec!["rest"]));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn otherwise(mut self) -> Self {
        self.otherwise = true;
        self
    }

    /// What a request costs; 1 unless given.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// assert_eq!(RouteRule::new("search", "100/min").cost(5).cost_of(), 5);
    /// ```
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// How many keys there is room for: see [`LimiterBuilder::max_keys`].
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    /// let rules = RuleSet::new([RouteRule::new("api", "100/min").max_keys(1_000_000)])?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = Some(max_keys);
        self
    }

    /// What to do for a key that finds no room: see [`LimiterBuilder::when_full`].
    ///
    /// ```
    /// use tollgate::WhenFull;
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let login = RouteRule::new("login", "log 5/15min").path("/login").when_full(WhenFull::Deny);
    /// let rules = RuleSet::new([login])?;
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    fn noting(mut self, result: Result<(), RulesError>) -> Self {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
        self
    }

    /// The rule with its limits named and its shadow cast, or what is wrong with it.
    pub(super) fn finished(mut self) -> Result<Self, RulesError> {
        let about = format!("rule `{}`", self.name);
        check_name(&self.name).map_err(|error| RulesError::from(error).about(&about))?;
        if self.name.len() > NAME_BYTES_MAX {
            let message = format!("the name of a rule has at most {NAME_BYTES_MAX} characters");
            return Err(RulesError::new(message).about(about));
        }
        if let Some(error) = self.error.take() {
            return Err(error.about(about));
        }
        let policy = self.limit.clone().map_err(|error| RulesError::from(error).about(&about))?;
        self.limit = Ok(self.dressed(&policy));
        for index in 0..self.tiers.len() {
            let (name, policy) = self.tiers[index].clone();
            if name.is_empty() || self.tiers[..index].iter().any(|(known, _)| *known == name) {
                return Err(
                    RulesError::new(format!("tier `{name}`: a tier has a name of its own")).about(about)
                );
            }
            self.tiers[index].1 = self.dressed(&policy);
        }
        if self.cost > COST_MAX {
            return Err(RulesError::new(format!("a cost is at most {COST_MAX}")).about(about));
        }
        for part in self.key.parts() {
            let paths = self.matching.paths();
            if let KeyPart::Param(name) = part {
                if paths.is_empty() || !paths.iter().all(|pattern| pattern.has_param(name)) {
                    let message = format!("the key has `{part}`, so every path needs a segment `{{{name}}}`");
                    return Err(RulesError::new(message).about(about));
                }
            }
        }
        // Limits that all watch make a rule that watches.
        let only_watches = self.policies().flat_map(Policy::rules).all(crate::Rule::is_shadow);
        self.shadow |= only_watches;
        let validated = self.policies().try_for_each(Policy::validate);
        validated.map_err(|error| RulesError::from(error).about(about))?;
        Ok(self)
    }

    /// The policy with the rule's name on each limit that has none, and watching only if the rule does.
    fn dressed(&self, policy: &Policy) -> Policy {
        let single = policy.rules().len() == 1;
        let dress = |(number, limit): (usize, &crate::Rule)| {
            let mut limit = limit.clone();
            if limit.name().is_none() {
                let name = if single { self.name.to_string() } else { format!("{}-{number}", self.name) };
                limit = limit.named(name);
            }
            if self.shadow { limit.shadow() } else { limit }
        };
        let mut limits = (1..).zip(policy.rules()).map(dress);
        match limits.next() {
            Some(first) => limits.fold(Policy::from(first), Policy::and),
            None => policy.clone(),
        }
    }

    fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.limit.iter().chain(self.tiers.iter().map(|(_, policy)| policy))
    }

    /// The name.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// assert_eq!(RouteRule::new("api", "100/min").name(), "api");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which requests the rule is about.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// let rule = RouteRule::new("login", "5/min").path("/login").method("POST");
    /// assert_eq!(rule.matching().to_string(), "POST /login");
    /// ```
    #[must_use]
    pub fn matching(&self) -> &RouteMatch {
        &self.matching
    }

    /// Whose budget a request spends from.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// assert_eq!(RouteRule::new("api", "100/min").key_of().to_string(), "ip");
    /// ```
    #[must_use]
    pub fn key_of(&self) -> &KeySpec {
        &self.key
    }

    /// The limit. In a set, each part of it has a name: its own, or the rule's, numbered if there are several.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([RouteRule::new("api", "10/s; 1000/h")])?;
    /// let limit = rules.rules()[0].limit().expect("a rule in a set is right");
    /// assert_eq!(limit.to_string(), "10/s named api-1; 1000/h named api-2");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Outside of a set, a text that does not parse.
    pub fn limit(&self) -> Result<&Policy, &Error> {
        self.limit.as_ref()
    }

    /// The tiers and their limits, named in the same way.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// assert_eq!(RouteRule::new("api", "100/min").tiers().count(), 0);
    /// ```
    pub fn tiers(&self) -> impl Iterator<Item = (&str, &Policy)> {
        self.tiers.iter().map(|(name, policy)| (&**name, policy))
    }

    /// Whether the rule only watches.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    /// let rules = RuleSet::new([RouteRule::new("stricter", "shadow 50/min")])?;
    /// assert!(rules.rules()[0].is_shadow());
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether the rule is only for requests that no other is for.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// assert!(RouteRule::new("rest", "100/min").otherwise().is_otherwise());
    /// ```
    #[must_use]
    pub fn is_otherwise(&self) -> bool {
        self.otherwise
    }

    /// What a request costs.
    ///
    /// ```
    /// use tollgate::rules::RouteRule;
    /// assert_eq!(RouteRule::new("api", "100/min").cost_of(), 1);
    /// ```
    #[must_use]
    pub fn cost_of(&self) -> u64 {
        self.cost
    }

    /// Whether what was spent under this rule means the same under the other: the same keys, room and tiers.
    #[cfg(feature = "tower")]
    pub(crate) fn shares_state_with(&self, other: &Self) -> bool {
        // A key by pattern is a key by its number among them.
        let by_pattern = self.key.parts().any(|part| matches!(part, KeyPart::Route | KeyPart::Param(_)));
        self.key == other.key
            && (!by_pattern || self.matching.paths == other.matching.paths)
            && self.max_keys == other.max_keys
            && self.when_full == other.when_full
            && self.tiers().map(|(name, _)| name).eq(other.tiers().map(|(name, _)| name))
    }

    /// A limiter for this rule: its limit and tiers, its room. Clock and seeds may be added.
    ///
    /// ```
    /// use tollgate::rules::RuleSet;
    ///
    /// let rules: RuleSet = "
    /// [[rule]]
    /// name = 'api'
    /// limit = '10/s'
    /// tiers = { premium = '100/s' }
    /// ".parse()?;
    /// let limiter = rules.rules()[0].limiter().build()?;
    /// assert_eq!(limiter.try_acquire("203.0.113.7").rule_name(), Some("api"));
    /// assert!(limiter.tier("premium").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limiter(&self) -> LimiterBuilder {
        let mut builder = Limiter::builder().when_full(self.when_full);
        if let Ok(policy) = &self.limit {
            builder = builder.policy(policy.clone());
        }
        for (name, policy) in &self.tiers {
            builder = builder.tier(name.clone(), policy.clone());
        }
        match self.max_keys {
            Some(max_keys) => builder.max_keys(max_keys),
            // One key for everybody needs no more room.
            None if self.key.is_global() => builder.max_keys(8),
            None => builder,
        }
    }
}
