//! Rules and policies as people write them: in code here, as text in [`parse`](crate::parse).

use crate::algorithm::{Gcra, Plan};
use crate::error::Error;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most rules one policy may have.
pub(crate) const RULES_MAX: usize = 16;
/// The most words the state of one key may take: what all sliding logs of a policy remember, and one for
/// each other rule.
pub(crate) const CELLS_MAX: usize = 1024;
/// The longest name of a rule, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// How a rule counts.
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
}

impl Algorithm {
    /// What the text form calls it; nothing for the default.
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            Self::TokenBucket => "",
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
}

impl Rule {
    /// `count` in every `period`, as a token bucket unless told otherwise.
    pub fn new(count: u64, period: Duration) -> Self {
        Self { algorithm: Algorithm::TokenBucket, count, period, burst: None, name: None }
    }

    /// `count` in a second.
    pub fn per_second(count: u64) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// `count` in a minute.
    pub fn per_minute(count: u64) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// `count` in an hour.
    pub fn per_hour(count: u64) -> Self {
        Self::new(count, Duration::from_secs(3_600))
    }

    /// `count` in a day.
    pub fn per_day(count: u64) -> Self {
        Self::new(count, Duration::from_secs(86_400))
    }

    /// How many a rested key may take at once; the rule's count unless given. Token bucket only.
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// A name for decisions, headers and metrics: 1 to 64 printable ASCII characters without space, `;`,
    /// `"` and `\`.
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Count by [`Algorithm::TokenBucket`], the default.
    pub fn token_bucket(self) -> Self {
        self.by(Algorithm::TokenBucket)
    }

    /// Count by [`Algorithm::FixedWindow`].
    pub fn fixed_window(self) -> Self {
        self.by(Algorithm::FixedWindow)
    }

    /// Count by [`Algorithm::SlidingWindow`].
    pub fn sliding_window(self) -> Self {
        self.by(Algorithm::SlidingWindow)
    }

    /// Count by [`Algorithm::SlidingLog`].
    pub fn sliding_log(self) -> Self {
        self.by(Algorithm::SlidingLog)
    }

    /// Count by `algorithm`.
    pub fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// How the rule counts.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How many in a period.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The period.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    /// The most a rested key may take at once: the burst of a token bucket, else the count.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.burst.unwrap_or(self.count)
    }

    pub(crate) fn explicit_burst(&self) -> Option<u64> {
        self.burst
    }

    /// The rule's name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Checks that a limiter would accept the rule.
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
fn check_name(name: &str) -> Result<(), Error> {
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
        write!(f, "{}{}/{}", self.algorithm.keyword(), self.count, crate::parse::PeriodText(self.period))?;
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
    pub fn and(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// The rules, in the order in which decisions number them.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Checks that a limiter would accept the policy.
    ///
    /// # Errors
    ///
    /// More than 16 rules, or a rule that [`Rule::validate`] refuses.
    pub fn validate(&self) -> Result<(), Error> {
        self.compile().map(|_| ())
    }

    pub(crate) fn compile(&self) -> Result<Compiled, Error> {
        check_rule_count(self.rules.len())?;
        let mut rules = Vec::with_capacity(self.rules.len());
        let mut cells = 0;
        for rule in &self.rules {
            let plan = rule.compile().map_err(|error| match self.rules.len() {
                1 => error,
                _ => Error::new(format!("rule `{rule}`: {error}")),
            })?;
            rules.push(CompiledRule { plan, name: rule.name().map(intern), first_cell: cells });
            cells += plan.words();
        }
        if cells > CELLS_MAX {
            return Err(Error::new(format!(
                "the sliding logs of a policy remember at most {CELLS_MAX} requests in all, these would {cells}"
            )));
        }
        let bucket = match rules[..] {
            [CompiledRule { plan: Plan::Gcra(plan), name, .. }] => Bucket { plan, name },
            _ => Bucket { plan: Gcra::NOTHING_FITS, name: None },
        };
        Ok(Compiled { rules: rules.into_boxed_slice(), cells, bucket })
    }
}

pub(crate) fn check_rule_count(rules: usize) -> Result<(), Error> {
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

/// A policy as the engine runs it.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) rules: Box<[CompiledRule]>,
    /// How many words the state of one key takes.
    pub(crate) cells: usize,
    /// The only rule, where that is a token bucket: the common case, kept where it is reached in one step.
    /// Elsewhere a bucket that no cost fits.
    pub(crate) bucket: Bucket,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) plan: Gcra,
    pub(crate) name: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CompiledRule {
    pub(crate) plan: Plan,
    pub(crate) name: Option<&'static str>,
    /// Which of a key's words is this rule's first.
    pub(crate) first_cell: usize,
}

impl Compiled {
    /// The plan whose state a cell holds.
    pub(crate) fn plan_of(&self, cell: usize) -> &Plan {
        // Rules are few, and their cells lie in order.
        let after = self.rules.iter().position(|rule| rule.first_cell > cell).unwrap_or(self.rules.len());
        &self.rules[after - 1].plan
    }
}

impl CompiledRule {
    /// The cells that hold this rule's state.
    pub(crate) fn cells(&self) -> Range<usize> {
        self.first_cell..self.first_cell + self.plan.words()
    }
}

/// A name that lives as long as the program, so that a decision can carry it and still be `Copy`.
/// Each distinct name is kept once, however often rules are reloaded.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
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
