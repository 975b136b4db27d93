//! All rules together: what is left alone, and which rules a request falls under.

use super::path::RequestPath;
use super::route::{RouteMatch, RouteRule};
use super::{RulesError, file};
use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

const RULES_MAX: usize = 1024;
const BITS: usize = 64;

/// Rules and exclusions, from a file or from code. See the [module](super) for what they mean.
///
/// ```
/// use tollgate::rules::RuleSet;
///
/// let rules: RuleSet = "
/// [[rule]]
/// name = 'login'
/// match = { path = '/login', method = 'POST' }
/// limit = 'log 5/15min'
/// ".parse()?;
/// assert_eq!(rules.matches("POST", "/login").len(), 1);
/// assert_eq!(rules.matches("GET", "/").len(), 0);
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<RouteRule>,
    exclusions: Vec<RouteMatch>,
}

impl RuleSet {
    /// These rules, and nothing excluded.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([RouteRule::new("default", "100/min")])?;
    /// assert_eq!(rules.rules().len(), 1);
    /// assert!(RuleSet::new([RouteRule::new("default", "100/mn")]).is_err());
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A rule that is not right, two rules of one name, or more than 1024 rules.
    pub fn new(rules: impl IntoIterator<Item = RouteRule>) -> Result<Self, RulesError> {
        let mut set = Self::default();
        for rule in rules {
            set.push(rule.finished()?)?;
        }
        Ok(set)
    }

    pub(super) fn push(&mut self, rule: RouteRule) -> Result<(), RulesError> {
        if self.rules.len() == RULES_MAX {
            return Err(RulesError::new(format!("there are at most {RULES_MAX} rules")));
        }
        if self.rules.iter().any(|known| known.name() == rule.name()) {
            return Err(RulesError::new(format!("there are two rules of the name `{}`", rule.name())));
        }
        self.rules.push(rule);
        Ok(())
    }

    /// Reads a file of at most 1 MiB.
    ///
    /// ```
    /// use tollgate::rules::RuleSet;
    ///
    /// let path = std::env::temp_dir().join(format!("rules-{}.toml", std::process::id()));
    /// std::fs::write(&path, "[[rule]]\nname = 'api'\nlimit = '100/min'")?;
    /// let rules = RuleSet::from_path(&path)?;
    /// # std::fs::remove_file(&path)?;
    /// assert_eq!(rules.rules()[0].name(), "api");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A file that cannot be read, and whatever is wrong in it: the error names file, line and column.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, RulesError> {
        file::read(path.as_ref())
    }

    /// The same set with these requests left alone.
    ///
    /// ```
    /// use tollgate::rules::{RouteMatch, RouteRule, RuleSet};
    ///
    /// let mut health = RouteMatch::default();
    /// health.add_path("/health")?;
    /// let rules = RuleSet::new([RouteRule::new("default", "100/min")])?.excluding(health);
    /// assert!(rules.matches("GET", "/health").is_empty());
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn excluding(mut self, exclusion: RouteMatch) -> Self {
        self.exclusions.push(exclusion);
        self
    }

    /// The rules, in the order of the file.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([RouteRule::new("first", "1/s"), RouteRule::new("second", "9/h")])?;
    /// assert_eq!(rules.rules()[1].name(), "second");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn rules(&self) -> &[RouteRule] {
        &self.rules
    }

    /// What is left alone.
    ///
    /// ```
    /// use tollgate::rules::{RouteMatch, RuleSet};
    ///
    /// let mut health = RouteMatch::default();
    /// health.add_path("/health")?;
    /// assert_eq!(RuleSet::default().excluding(health).exclusions()[0].to_string(), "/health");
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn exclusions(&self) -> &[RouteMatch] {
        &self.exclusions
    }

    /// Whether a request is left alone. Only a [plain](RequestPath::is_plain) path can be: what could be read
    /// in another way might reach another route.
    ///
    /// ```
    /// use tollgate::rules::{RequestPath, RouteMatch, RuleSet};
    ///
    /// let mut health = RouteMatch::default();
    /// health.add_path("/health")?;
    /// let rules = RuleSet::default().excluding(health);
    /// assert!(rules.excludes("GET", &RequestPath::new("/health")));
    /// assert!(!rules.excludes("GET", &RequestPath::new("/x/../health")));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn excludes(&self, method: &str, path: &RequestPath<'_>) -> bool {
        path.is_plain() && self.exclusions.iter().any(|exclusion| exclusion.matches(method, path))
    }

    /// The rules that a request falls under, in the order of the file: none if it is excluded, else all that
    /// match, and those for [otherwise](RouteRule::otherwise) unless another one matches: for a path that can be read
    /// in several ways, unless each of them has another one.
    ///
    /// The method is as it was sent, in upper case.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([
    ///     RouteRule::new("default", "100/min"),
    ///     RouteRule::new("login", "5/min").path("/login"),
    /// ])?;
    /// let names: Vec<&str> = rules.matches("GET", "/login").map(|rule| rule.name()).collect();
    /// assert_eq!(names, ["default", "login"]);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn matches(&self, method: &str, path: &str) -> Matches<'_> {
        self.matches_path(method, &RequestPath::new(path))
    }

    /// The same for a path that is at hand.
    ///
    /// ```
    /// use tollgate::rules::{RequestPath, RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([RouteRule::new("login", "5/min").path("/login")])?;
    /// let path = RequestPath::new("//login/"); // read once, for several sets
    /// assert_eq!(rules.matches_path("GET", &path).len(), 1);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn matches_path(&self, method: &str, path: &RequestPath<'_>) -> Matches<'_> {
        let mut matches = Matches::none(self);
        if self.excludes(method, path) {
            return matches;
        }
        let (mut is_ruled, mut has_otherwise) = (false, false);
        for (index, rule) in self.rules.iter().enumerate() {
            if rule.matching().matches(method, path) {
                matches.set(index, true);
                has_otherwise |= rule.is_otherwise();
                is_ruled |= !rule.is_otherwise() && !rule.is_shadow();
            }
        }
        if is_ruled && has_otherwise && self.rules_every_reading(method, path, |_| true) {
            for (index, rule) in self.rules.iter().enumerate() {
                if rule.is_otherwise() {
                    matches.set(index, false);
                }
            }
        }
        matches
    }

    /// The places of the rules for otherwise that a request falls under if, of all the others, only these apply to
    /// it.
    #[cfg(feature = "tower")]
    pub(crate) fn otherwise(
        &self,
        method: &str,
        path: &RequestPath<'_>,
        applies: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = usize> {
        let is_ruled = self.rules_every_reading(method, path, applies);
        let rules = self.rules.iter().enumerate().filter(move |_| !is_ruled);
        let matching = rules.filter(|(_, rule)| rule.is_otherwise() && rule.matching().matches(method, path));
        matching.map(|(index, _)| index)
    }

    /// Whether there is a rule of its own, among those that apply, for each way to read the path. A router may read a
    /// path that has several in a way that has none.
    fn rules_every_reading(
        &self,
        method: &str,
        path: &RequestPath<'_>,
        applies: impl Fn(usize) -> bool,
    ) -> bool {
        let is_ruling = |(index, rule): &(usize, &RouteRule)| {
            !rule.is_otherwise() && !rule.is_shadow() && applies(*index)
        };
        let ruling = || self.rules.iter().enumerate().filter(is_ruling).map(|(_, rule)| rule.matching());
        match path.is_plain() {
            true => ruling().any(|matching| matching.matches(method, path)),
            false => path.readings().all(|reading| ruling().any(|matching| matching.reads(method, reading))),
        }
    }

    /// The names of all keys that the program has to provide: `user` for `custom:user`.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([RouteRule::new("api", "9/s").key("custom:user | custom:team | ip")])?;
    /// assert!(rules.custom_keys().eq(["user", "team"]));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn custom_keys(&self) -> impl Iterator<Item = &str> {
        let mut known = HashSet::new();
        let parts = self.rules.iter().flat_map(|rule| rule.key_of().parts());
        let names = parts.filter_map(|part| match part {
            super::KeyPart::Custom(name) => Some(&**name),
            _ => None,
        });
        names.filter(move |name| known.insert(*name))
    }
}

impl FromStr for RuleSet {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Self, RulesError> {
        file::parse(text)
    }
}

/// The rules that a request falls under: an iterator over them.
///
/// ```
/// use tollgate::rules::{RouteRule, RuleSet};
///
/// let rules = RuleSet::new([
///     RouteRule::new("login", "5/min").path("/login"),
///     RouteRule::new("default", "100/min"),
/// ])?;
/// let mut matches = rules.matches("GET", "/search");
/// assert_eq!(matches.len(), 1);
/// assert_eq!(matches.next().expect("one").name(), "default");
/// assert!(matches.is_empty());
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Matches<'a> {
    set: &'a RuleSet,
    first: u64,
    /// For the rules from the 65th on.
    more: Vec<u64>,
}

impl<'a> Matches<'a> {
    fn none(set: &'a RuleSet) -> Self {
        let words = set.rules.len().saturating_sub(1) / BITS;
        Self { set, first: 0, more: vec![0; words] }
    }

    fn set(&mut self, index: usize, applies: bool) {
        let word = match index / BITS {
            0 => &mut self.first,
            word => &mut self.more[word - 1],
        };
        let bit = 1 << (index % BITS);
        *word = if applies { *word | bit } else { *word & !bit };
    }

    /// The next rule's place in [`RuleSet::rules`].
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rules = RuleSet::new([
    ///     RouteRule::new("login", "5/min").path("/login"),
    ///     RouteRule::new("default", "100/min"),
    /// ])?;
    /// assert_eq!(rules.matches("GET", "/search").next_index(), Some(1));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn next_index(&mut self) -> Option<usize> {
        if self.first != 0 {
            let index = self.first.trailing_zeros() as usize;
            self.first &= self.first - 1;
            return Some(index);
        }
        self.next_of_more()
    }

    /// Few sets have so many rules.
    fn next_of_more(&mut self) -> Option<usize> {
        for (number, word) in (1..).zip(&mut self.more) {
            if *word != 0 {
                let index = number * BITS + word.trailing_zeros() as usize;
                *word &= *word - 1;
                return Some(index);
            }
        }
        None
    }

    /// How many are left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.more.iter().chain([&self.first]).map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first == 0 && self.more.iter().all(|word| *word == 0)
    }
}

impl<'a> Iterator for Matches<'a> {
    type Item = &'a RouteRule;

    fn next(&mut self) -> Option<&'a RouteRule> {
        self.next_index().map(|index| &self.set.rules[index])
    }
}
