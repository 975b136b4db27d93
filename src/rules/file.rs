//! The rules file: its TOML, and where in it something is wrong.

use super::route::{RouteMatch, RouteRule};
use super::{KeySpec, RuleSet, RulesError};
use crate::{Error, Policy, WhenFull};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use toml::Spanned;

/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

type Text = Spanned<String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    exclude: Vec<Spanned<Exclusion>>,
    /// Required: a file that was cut off must not lift all limits.
    rule: Vec<Spanned<Entry>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Defaults {
    key: Option<Spanned<OneOrMore>>,
    max_keys: Option<usize>,
    when_full: Option<Full>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Text,
    #[serde(rename = "match")]
    matching: Option<Spanned<MatchTable>>,
    key: Option<Spanned<OneOrMore>>,
    limit: Text,
    #[serde(default)]
    tiers: BTreeMap<String, Text>,
    #[serde(default)]
    shadow: bool,
    #[serde(default)]
    otherwise: bool,
    cost: Option<u64>,
    max_keys: Option<usize>,
    when_full: Option<Full>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct MatchTable {
    path: Option<OneOrMore>,
    method: Option<OneOrMore>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a path, or a table of `path` and `method`")]
enum Exclusion {
    Path(String),
    Match(MatchTable),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string, or a list of strings")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::More(texts) => texts,
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Full {
    Evict,
    Deny,
    Allow,
}

impl From<Full> for WhenFull {
    fn from(full: Full) -> Self {
        match full {
            Full::Evict => Self::Evict,
            Full::Deny => Self::Deny,
            Full::Allow => Self::Allow,
        }
    }
}

pub(super) fn read(path: &Path) -> Result<RuleSet, RulesError> {
    parse_contents(path, contents(path))
}

/// What is in a file, as far as rules are read from it.
pub(crate) fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The rules that were found in a file.
pub(crate) fn parse_contents(path: &Path, contents: io::Result<Vec<u8>>) -> Result<RuleSet, RulesError> {
    let text = contents.and_then(|bytes| {
        String::from_utf8(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
    });
    text.map_err(|error| RulesError::new(format!("cannot be read: {error}")))
        .and_then(|text| parse(&text))
        .map_err(|error| error.of_file(path))
}

pub(super) fn parse(text: &str) -> Result<RuleSet, RulesError> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(RulesError::new(format!("a rules file has at most {FILE_BYTES_MAX} bytes")));
    }
    let file: RuleFile = toml::from_str(text).map_err(|error| {
        let found = RulesError::new(match error.message() {
            "missing field `rule`" => {
                "there is no `[[rule]]`; a file that limits nothing says so: `rule = []`".to_owned()
            }
            message => message.trim_end().to_owned(),
        });
        match error.span() {
            Some(span) => found.at(text, span.start),
            None => found,
        }
    })?;
    let mut set = RuleSet::default();
    for exclusion in &file.exclude {
        let matching = exclusion.get_ref().read();
        set =
            set.excluding(matching.map_err(|error| error.about("exclude").at(text, exclusion.span().start))?);
    }
    for entry in &file.rule {
        let place = entry.span().start;
        let entry = entry.get_ref();
        let rule = entry.read(text, &file.defaults)?;
        set.push(rule.finished().map_err(|error| error.at(text, place))?)
            .map_err(|error| error.at(text, entry.name.span().start))?;
    }
    Ok(set)
}

impl Entry {
    fn read(&self, text: &str, defaults: &Defaults) -> Result<RouteRule, RulesError> {
        let about = |error: RulesError| error.about(format_args!("rule `{}`", self.name.get_ref()));
        let limit = policy(text, "limit", &self.limit).map_err(about)?;
        let mut rule = RouteRule::new(self.name.get_ref(), limit);
        if let Some(matching) = &self.matching {
            let found = matching.get_ref().read();
            rule = rule.matched_by(
                found.map_err(|error| about(error.about("match").at(text, matching.span().start)))?,
            );
        }
        if let Some(key) = self.key.as_ref().or(defaults.key.as_ref()) {
            let parts = key.get_ref().texts().iter().map(String::as_str);
            let key = KeySpec::joined(parts).map_err(|error| error.about("key").at(text, key.span().start));
            rule = rule.key_spec(key.map_err(about)?);
        }
        for (name, limit) in &self.tiers {
            let limit = policy(text, &format!("tier `{name}`"), limit).map_err(about)?;
            rule = rule.tier(name, limit);
        }
        if self.shadow {
            rule = rule.shadow();
        }
        if self.otherwise {
            rule = rule.otherwise();
        }
        if let Some(cost) = self.cost {
            rule = rule.cost(cost);
        }
        if let Some(max_keys) = self.max_keys.or(defaults.max_keys) {
            rule = rule.max_keys(max_keys);
        }
        if let Some(when_full) = self.when_full.or(defaults.when_full) {
            rule = rule.when_full(when_full.into());
        }
        Ok(rule)
    }
}

impl MatchTable {
    fn read(&self) -> Result<RouteMatch, RulesError> {
        let mut matching = RouteMatch::default();
        // An empty list would match nothing, or everything: whoever writes one means something else.
        for (list, what) in [(&self.path, "path"), (&self.method, "method")] {
            if list.as_ref().is_some_and(|list| list.texts().is_empty()) {
                return Err(RulesError::new(format!("the list of `{what}` is empty: leave it out for all")));
            }
        }
        for path in self.path.iter().flat_map(OneOrMore::texts) {
            matching.add_path(path)?;
        }
        for method in self.method.iter().flat_map(OneOrMore::texts) {
            matching.add_method(method)?;
        }
        Ok(matching)
    }
}

impl Exclusion {
    fn read(&self) -> Result<RouteMatch, RulesError> {
        let mut matching = RouteMatch::default();
        match self {
            Self::Path(path) => matching.add_path(path)?,
            Self::Match(table) if table.path.is_none() && table.method.is_none() => {
                return Err(RulesError::new("an empty table would exclude everything: write `/**`"));
            }
            Self::Match(table) => matching = table.read()?,
        }
        Ok(matching)
    }
}

/// A policy in the file; an error points into its text where that stands as it was written.
fn policy(file: &str, what: &str, text: &Text) -> Result<Policy, RulesError> {
    text.get_ref().parse::<Policy>().map_err(|error: Error| {
        let (span, inner) = (text.span(), text.get_ref());
        let quoted = file.get(span.clone()).unwrap_or_default();
        let is_as_written = quoted.len() == inner.len() + 2 && quoted.get(1..quoted.len() - 1) == Some(inner);
        match error.column() {
            Some(column) if is_as_written => {
                let into = inner.char_indices().nth(column - 1).map_or(inner.len(), |(byte, _)| byte);
                RulesError::new(error.message()).about(what).at(file, span.start + 1 + into)
            }
            _ => RulesError::new(error.to_string()).about(what).at(file, span.start),
        }
    })
}
