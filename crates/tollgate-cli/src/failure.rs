//! What can go wrong, said so that a stranger knows what to do, and the exit status it ends with.

use std::fmt;
use std::io;
use std::path::Path;

pub(crate) const DONE: u8 = 0;
/// A check failed.
pub(crate) const FAILED: u8 = 1;
/// The arguments are wrong: bad policy, unknown format, unknown key.
pub(crate) const USAGE: u8 = 2;
/// An input cannot be read or is not in order, or an output cannot be written.
pub(crate) const INPUT: u8 = 3;

/// Why the tool gave up.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What is wrong and what to do about it, and the exit status.
    Told { status: u8, message: String },
    /// Writing to the standard output went wrong; whoever read it may have seen enough.
    Output(io::Error),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Told { status: USAGE, message: message.into() }
    }

    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Told { status: INPUT, message: message.into() }
    }

    /// A file that could not be opened, read or written.
    pub(crate) fn file(path: &Path, doing: &str, error: &io::Error) -> Self {
        let advice = match error.kind() {
            io::ErrorKind::NotFound if doing == "open" => "check the path; use `-` for the standard input",
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "you may not: ask its owner, or copy it",
            io::ErrorKind::IsADirectory => "that is a directory: name the files in it",
            _ => return Self::input(format!("cannot {doing} `{}`: {error}", path.display())),
        };
        let cause = match error.kind() {
            io::ErrorKind::NotFound => "no such file".to_owned(),
            _ => error.to_string(),
        };
        Self::input(format!("cannot {doing} `{}`: {cause}\n{advice}", path.display()))
    }

    /// A policy that was not accepted, with a mark under the column that is to blame.
    pub(crate) fn policy(text: &str, error: &tollgate::Error) -> Self {
        let mut message = format!("bad policy: {}", error.message());
        if let Some(column) = error.column() {
            message += &format!("\n  {text}\n  {:>column$}", "^");
        } else {
            message += &format!("\n  {text}");
        }
        message += "\nA policy is like `100/min burst 20; sliding 5000/d`; rules are separated by `;`.";
        Self::usage(message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { message, .. } => f.write_str(message),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_policy_has_its_column_marked() {
        let text = "10/s; 5/fortnight";
        let error = text.parse::<tollgate::Policy>().expect_err(text);
        let message = Failure::policy(text, &error).to_string();
        let lines: Vec<_> = message.lines().collect();
        assert_eq!(lines[1].find("fortnight"), lines[2].find('^'));
    }
}
