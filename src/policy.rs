//! Rules and policies as people write them: in code here, as text in [`parse`](crate::parse).

use crate::algorithm::Plan;
use crate::compile::RULES_MAX;
use crate::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The longest name of a rule, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// How a rule counts.
///
/// ```
/// use tollgate::{Algorithm, Rule};
///
/// assert_eq!(Rule::per_minute(100).algorithm(), Algorithm::TokenBucket);
/// assert_eq!("log 5/15min".parse::<Rule>()?.algorithm(), Algorithm::SlidingLog);
/// assert_eq!("20 at once".parse::<Rule>()?.algorithm(), Algorithm::InFlight);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// A bucket of `burst` tokens that refills at the rule's rate (GCRA): at most `burst + rate·t` in any
    /// span `t`.
    #[default]
    TokenBucket,
    /// At most `count` in each aligned window. Two windows' worth can pass around a boundary.
    FixedWindow,
    /// At most `count` by a weighted estimate over the present and the previous window. A trailing window
    /// can see almost twice the count in the worst case.
    SlidingWindow,
    /// At most `count` in *any* trailing window, exactly; one word of memory a request in the window.
    SlidingLog,
    /// At most `count` that have begun and not ended, whatever the time: counted by
    /// [`Limiter::try_start`](crate::Limiter::try_start).
    InFlight,
}

impl Algorithm {
    /// What the text form calls it; nothing for the default.
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            Self::TokenBucket | Self::InFlight => "",
            Self::FixedWindow => "fixed ",
            Self::SlidingWindow => "sliding ",
            Self::SlidingLog => "log ",
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::TokenBucket => "a token bucket",
            Self::FixedWindow => "a fixed window",
            Self::SlidingWindow => "a sliding window",
            Self::SlidingLog => "a sliding log",
            Self::InFlight => "a limit of so many at once",
        }
    }
}

/// One limit: so many in a period, counted by an algorithm.
///
/// A rule is built without failing and checked when a [`Policy`] is compiled by a limiter (or by
/// [`Rule::validate`]). The text form says the same thing and is checked as it is parsed.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Rule;
///
/// let rule = Rule::per_minute(100).burst(20).named("api");
/// assert_eq!(rule.to_string(), "100/min burst 20 named api");
/// assert_eq!(rule, "100 per minute burst 20 named api".parse()?);
///
/// let logins = Rule::new(5, Duration::from_secs(900)).sliding_log();
/// assert_eq!(logins.to_string(), "log 5/15min");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Rule {
    algorithm: Algorithm,
    count: u64,
    period: Duration,
    burst: Option<u64>,
    name: Option<Arc<str>>,
    shadow: bool,
}

impl Rule {
    /// `count` in every `period`, as a token bucket unless told otherwise.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Rule;
    ///
    /// let rule = Rule::new(5, Duration::from_secs(900));
    /// assert_eq!(rule.to_string(), "5/15min");
    /// ```
    pub fn new(count: u64, period: Duration) -> Self {
        Self { algorithm: Algorithm::TokenBucket, count, period, burst: None, name: None, shadow: false }
    }

    /// `count` in a second.
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_second(10), "10/s".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn per_second(count: u64) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// `count` in a minute.
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_minute(100), "100/min".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn per_minute(count: u64) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// `count` in an hour.
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_hour(1000), "1000/h".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn per_hour(count: u64) -> Self {
        Self::new(count, Duration::from_secs(3_600))
    }

    /// `count` in a day.
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_day(5), "5/d".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn per_day(count: u64) -> Self {
        Self::new(count, Duration::from_secs(86_400))
    }

    /// At most `count` at once: of what has begun by [`Limiter::try_start`](crate::Limiter::try_start) and not
    /// ended.
    ///
    /// ```
    /// use tollgate::{Limiter, Rule};
    ///
    /// let limiter = Limiter::new(Rule::at_once(1))?;
    /// let permit = limiter.try_start("report")?;
    /// assert!(limiter.try_start("report").is_err());
    /// drop(permit);
    /// assert!(limiter.try_start("report").is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_once(count: u64) -> Self {
        Self::new(count, Duration::ZERO).by(Algorithm::InFlight)
    }

    /// Only watch: the rule is decided and counted, and never refuses. See
    /// [`Decision::would_deny`](crate::Decision::would_deny).
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("100/min; shadow 1/min named stricter")?;
    /// assert!(limiter.try_acquire("key").would_deny().is_none());
    /// let decision = limiter.try_acquire("key");
    /// assert!(decision.is_allowed());
    /// assert_eq!(decision.would_deny(), Some(1));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// How many a rested key may take at once; the rule's count unless given. Token bucket only.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, Gate, Rule};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let gate = Gate::with_clock(Rule::per_second(10).burst(2), clock)?;
    /// assert!(gate.try_acquire_n(2).is_allowed());
    /// assert!(gate.try_acquire().is_denied());
    /// hand.advance(Duration::from_millis(100)); // one comes back every tenth of a second
    /// assert!(gate.try_acquire().is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// A name for decisions, headers and metrics: 1 to 64 printable ASCII characters without space, `;`,
    /// `"` and `\`.
    ///
    /// ```
    /// use tollgate::{Gate, Rule};
    ///
    /// let gate = Gate::new(Rule::per_day(5).named("exports"))?;
    /// assert_eq!(gate.try_acquire().rule_name(), Some("exports"));
    /// assert!(Rule::per_day(5).named("two words").validate().is_err());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Count by [`Algorithm::TokenBucket`], the default.
    ///
    /// ```
    /// use tollgate::Rule;
    /// assert_eq!(Rule::per_hour(9).sliding_log().token_bucket(), Rule::per_hour(9));
    /// ```
    pub fn token_bucket(self) -> Self {
        self.by(Algorithm::TokenBucket)
    }

    /// Count by [`Algorithm::FixedWindow`].
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_day(1000).fixed_window(), "fixed 1000/d".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn fixed_window(self) -> Self {
        self.by(Algorithm::FixedWindow)
    }

    /// Count by [`Algorithm::SlidingWindow`].
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_hour(1000).sliding_window(), "sliding 1000/h".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn sliding_window(self) -> Self {
        self.by(Algorithm::SlidingWindow)
    }

    /// Count by [`Algorithm::SlidingLog`].
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_hour(5).sliding_log(), "log 5/h".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn sliding_log(self) -> Self {
        self.by(Algorithm::SlidingLog)
    }

    /// Count by `algorithm`. [`Algorithm::InFlight`] has no period, and forgets the rule's.
    ///
    /// ```
    /// use tollgate::{Algorithm, Rule};
    /// assert_eq!(Rule::per_hour(5).by(Algorithm::FixedWindow), Rule::per_hour(5).fixed_window());
    /// ```
    pub fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        // There is no text for one, and what is written down has to be what is read again.
        if algorithm == Algorithm::InFlight {
            self.period = Duration::ZERO;
        }
        self
    }

    /// How the rule counts.
    ///
    /// ```
    /// use tollgate::{Algorithm, Rule};
    /// assert_eq!(Rule::per_hour(5).sliding_log().algorithm(), Algorithm::SlidingLog);
    /// ```
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How many in a period.
    ///
    /// ```
    /// assert_eq!(tollgate::Rule::per_minute(100).burst(20).count(), 100);
    /// ```
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether the rule only watches.
    ///
    /// ```
    /// assert!("shadow 50/min".parse::<tollgate::Rule>()?.is_shadow());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// The period; zero for a limit of so many at once, which has none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Rule;
    ///
    /// assert_eq!(Rule::per_hour(5).period(), Duration::from_secs(3_600));
    /// assert_eq!(Rule::at_once(5).period(), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    /// The most a rested key may take at once: the burst of a token bucket, else the count.
    ///
    /// ```
    /// use tollgate::Rule;
    ///
    /// assert_eq!(Rule::per_minute(100).limit(), 100);
    /// assert_eq!(Rule::per_minute(100).burst(20).limit(), 20);
    /// ```
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.burst.unwrap_or(self.count)
    }

    pub(crate) fn explicit_burst(&self) -> Option<u64> {
        self.burst
    }

    /// The rule's name, if it has one.
    ///
    /// ```
    /// use tollgate::Rule;
    ///
    /// assert_eq!(Rule::per_minute(100).named("api").name(), Some("api"));
    /// assert_eq!(Rule::per_minute(100).name(), None);
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Checks that a limiter would accept the rule.
    ///
    /// ```
    /// use tollgate::Rule;
    ///
    /// assert!(Rule::per_second(10).validate().is_ok());
    /// let error = Rule::per_second(10).fixed_window().burst(5).validate().unwrap_err();
    /// assert_eq!(error.to_string(), "`burst` belongs to the token bucket; a fixed window always admits its count");
    /// ```
    ///
    /// # Errors
    ///
    /// A zero count, period or burst, a burst on an algorithm without one, a rule too large or too fast for
    /// the word, a name that cannot be written in a header.
    pub fn validate(&self) -> Result<(), Error> {
        self.compile().map(|_| ())
    }

    pub(crate) fn compile(&self) -> Result<Plan, Error> {
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        Plan::new(self)
    }
}

/// A name must survive a header's quoted string and the text form as it is.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::new(format!(
            "a name has 1 to {NAME_BYTES_MAX} characters, this has {}",
            name.len()
        )));
    }
    match name.chars().find(|&c| !c.is_ascii_graphic() || matches!(c, ';' | '"' | '\\')) {
        Some(bad) => Err(Error::new(format!("a name cannot contain {bad:?}"))),
        None => Ok(()),
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shadow = if self.shadow { "shadow " } else { "" };
        write!(f, "{shadow}{}{}", self.algorithm.keyword(), self.count)?;
        match self.algorithm {
            Algorithm::InFlight => f.write_str(" at once")?,
            _ => write!(f, "/{}", crate::parse::PeriodText(self.period))?,
        }
        if let Some(burst) = self.burst {
            write!(f, " burst {burst}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " named {name}")?;
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        crate::parse::rule(text)
    }
}

/// One or more rules enforced together, all or nothing.
///
/// ```
/// use tollgate::{Policy, Rule};
///
/// let policy = Policy::from(Rule::per_second(10).burst(20)).and(Rule::per_hour(1000).sliding_window());
/// assert_eq!(policy, "10/s burst 20; sliding 1000/h".parse()?);
/// assert_eq!(policy.to_string(), "10/s burst 20; sliding 1000/h");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Policy {
    rules: Vec<Rule>,
}

impl Policy {
    /// This policy and one more rule.
    ///
    /// ```
    /// use tollgate::{Policy, Rule};
    ///
    /// let policy = Policy::from(Rule::per_second(10)).and(Rule::per_hour(1000));
    /// assert_eq!(policy, "10/s; 1000/h".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn and(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// The rules, in the order in which decisions number them.
    ///
    /// ```
    /// let policy: tollgate::Policy = "10/s; 1000/h named hourly".parse()?;
    /// assert_eq!(policy.rules().len(), 2);
    /// assert_eq!(policy.rules()[1].name(), Some("hourly"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Checks that a limiter would accept the policy.
    ///
    /// ```
    /// use tollgate::{Policy, Rule};
    ///
    /// let too_many = Policy::from_iter((1..=17).map(Rule::per_second));
    /// assert_eq!(too_many.validate().unwrap_err().to_string(), "a policy has at most 16 rules");
    /// ```
    ///
    /// # Errors
    ///
    /// More than 16 rules, or a rule that [`Rule::validate`] refuses.
    pub fn validate(&self) -> Result<(), Error> {
        self.compile().map(|_| ())
    }
}

pub(crate) fn check_rule_count(rules: usize) -> Result<(), Error> {
    if rules == 0 {
        return Err(Error::new("a policy has at least one rule"));
    }
    if rules > RULES_MAX {
        return Err(Error::new(format!("a policy has at most {RULES_MAX} rules")));
    }
    Ok(())
}

impl From<Rule> for Policy {
    fn from(rule: Rule) -> Self {
        Self { rules: vec![rule] }
    }
}

impl From<&Rule> for Policy {
    fn from(rule: &Rule) -> Self {
        rule.clone().into()
    }
}

impl From<&Self> for Policy {
    fn from(policy: &Self) -> Self {
        policy.clone()
    }
}

/// For rules that were read one by one. Of no rules at all comes a policy that no limiter accepts.
///
/// ```
/// use tollgate::{Limiter, Policy, Rule};
///
/// let policy: Policy = [10, 20].map(Rule::per_second).into_iter().collect();
/// assert_eq!(policy.to_string(), "10/s; 20/s");
///
/// let error = Limiter::new(Policy::from_iter([])).unwrap_err();
/// assert_eq!(error.to_string(), "a policy has at least one rule");
/// ```
impl FromIterator<Rule> for Policy {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        Self { rules: rules.into_iter().collect() }
    }
}

impl Extend<Rule> for Policy {
    fn extend<I: IntoIterator<Item = Rule>>(&mut self, rules: I) {
        self.rules.extend(rules);
    }
}

/// For rules that are written down one beside the other.
///
/// ```
/// use tollgate::{Limiter, Rule};
///
/// let limiter = Limiter::new([Rule::per_second(10), Rule::per_hour(1000)])?;
/// assert_eq!(limiter.policy().to_string(), "10/s; 1000/h");
/// # Ok::<(), tollgate::Error>(())
/// ```
impl<const RULES: usize> TryFrom<[Rule; RULES]> for Policy {
    type Error = Error;

    fn try_from(rules: [Rule; RULES]) -> Result<Self, Error> {
        Vec::from(rules).try_into()
    }
}

impl TryFrom<&[Rule]> for Policy {
    type Error = Error;

    fn try_from(rules: &[Rule]) -> Result<Self, Error> {
        rules.to_vec().try_into()
    }
}

impl<const RULES: usize> TryFrom<&[Rule; RULES]> for Policy {
    type Error = Error;

    fn try_from(rules: &[Rule; RULES]) -> Result<Self, Error> {
        rules.as_slice().try_into()
    }
}

impl TryFrom<&Vec<Rule>> for Policy {
    type Error = Error;

    fn try_from(rules: &Vec<Rule>) -> Result<Self, Error> {
        rules.as_slice().try_into()
    }
}

impl TryFrom<Vec<Rule>> for Policy {
    type Error = Error;

    fn try_from(rules: Vec<Rule>) -> Result<Self, Error> {
        check_rule_count(rules.len())?;
        Ok(Self { rules })
    }
}

impl TryFrom<&str> for Policy {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<String> for Policy {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<&String> for Policy {
    type Error = Error;

    fn try_from(text: &String) -> Result<Self, Error> {
        text.parse()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{rule}")?;
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        crate::parse::policy(text)
    }
}

#[cfg(feature = "serde")]
mod text_form {
    use super::{Policy, Rule};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
    use std::borrow::Cow;

    impl Serialize for Rule {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl Serialize for Policy {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Rule {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        }
    }

    impl<'de> Deserialize<'de> for Policy {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        }
    }
}
