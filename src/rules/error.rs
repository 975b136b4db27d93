//! Why a rules file was not accepted: what is wrong, in which rule, and where in the file.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why rules were not accepted.
///
/// ```
/// use tollgate::rules::RuleSet;
///
/// let error = "
/// [[rule]]
/// name = 'login'
/// limit = '5 per fortnight'
/// ".parse::<RuleSet>().unwrap_err();
/// assert_eq!((error.line(), error.column()), (Some(4), Some(16)));
/// assert_eq!(
///     error.to_string(),
///     "line 4, column 16: rule `login`: limit: \
///      unknown unit `fortnight`: use ns, us, ms, s, min, h, d or w",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError {
    message: Box<str>,
    /// Line and column, from 1.
    place: Option<(usize, usize)>,
    file: Option<PathBuf>,
}

impl RulesError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into().into_boxed_str(), place: None, file: None }
    }

    /// The same error, at a byte of the text, unless it has a place already.
    pub(super) fn at(mut self, text: &str, byte: usize) -> Self {
        let before = text.get(..byte).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        self.place.get_or_insert((line, before[line_start..].chars().count() + 1));
        self
    }

    pub(super) fn of_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// What the message is about, said before it.
    pub(super) fn about(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message).into_boxed_str();
        self
    }

    /// The line in the file, from 1; `None` for what was built in code.
    ///
    /// ```
    /// use tollgate::rules::RuleSet;
    ///
    /// let error = "[[rule]]\nname = 'api'\nlimits = '5/min'".parse::<RuleSet>().unwrap_err();
    /// assert_eq!(error.line(), Some(3));
    /// ```
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.place.map(|(line, _)| line)
    }

    /// The column in that line, in characters from 1.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let error = "[[rule]]\nname = 'api'\nlimit = '5/mn'".parse::<RuleSet>().unwrap_err();
    /// assert_eq!(error.column(), Some(12));
    /// let in_code = RuleSet::new([RouteRule::new("api", "5/mn")]).unwrap_err();
    /// assert_eq!(in_code.column(), None);
    /// ```
    #[must_use]
    pub fn column(&self) -> Option<usize> {
        self.place.map(|(_, column)| column)
    }

    /// The file, if the rules were read from one.
    ///
    /// ```
    /// use std::path::Path;
    /// use tollgate::rules::RuleSet;
    ///
    /// let error = RuleSet::from_path("no/such/rules.toml").unwrap_err();
    /// assert_eq!(error.file(), Some(Path::new("no/such/rules.toml")));
    /// ```
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// What is wrong, without the place.
    ///
    /// ```
    /// use tollgate::rules::{RouteRule, RuleSet};
    ///
    /// let rule = || RouteRule::new("api", "5/min");
    /// let error = RuleSet::new([rule(), rule()]).unwrap_err();
    /// assert_eq!(error.message(), "there are two rules of the name `api`");
    /// ```
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<crate::Error> for RulesError {
    fn from(error: crate::Error) -> Self {
        Self::new(error.to_string())
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.place) {
            (Some(file), Some((line, column))) => write!(f, "{}:{line}:{column}: ", file.display())?,
            (Some(file), None) => write!(f, "{}: ", file.display())?,
            (None, Some((line, column))) => write!(f, "line {line}, column {column}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for RulesError {}
