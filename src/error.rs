//! The one error of the crate: what is wrong, and where.

use std::convert::Infallible;
use std::fmt;

/// Why a rule, a policy or a limiter was not accepted.
///
/// The message names the cause; for text it also names the column, counted in characters from 1.
///
/// ```
/// let error = "10/s; 5/fortnight".parse::<tollgate::Policy>().unwrap_err();
/// assert_eq!(error.column(), Some(9));
/// assert_eq!(
///     error.to_string(),
///     "column 9: unknown unit `fortnight`: use ns, us, ms, s, min, h, d or w",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    message: Box<str>,
    column: Option<usize>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into().into_boxed_str(), column: None }
    }

    /// The same error, pointing at a column unless it already points at one.
    pub(crate) fn at(mut self, column: usize) -> Self {
        self.column.get_or_insert(column);
        self
    }

    /// Where in the text the trouble is, in characters from 1; `None` for what was built in code.
    ///
    /// ```
    /// use tollgate::{Policy, Rule};
    ///
    /// assert_eq!("10/s; burst 5".parse::<Policy>().unwrap_err().column(), Some(7));
    /// assert_eq!(Rule::per_second(0).validate().unwrap_err().column(), None);
    /// ```
    #[must_use]
    pub fn column(&self) -> Option<usize> {
        self.column
    }

    /// What is wrong, without the place.
    ///
    /// ```
    /// let error = "10/lightyear".parse::<tollgate::Rule>().unwrap_err();
    /// assert!(error.message().starts_with("unknown unit `lightyear`"));
    /// assert_eq!(error.to_string(), format!("column 4: {}", error.message()));
    /// ```
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.column {
            Some(column) => write!(f, "column {column}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}

/// So that a finished [`Policy`](crate::Policy) and a text can be given to the same argument.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
