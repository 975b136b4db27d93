//! The policy of a function, read and checked as the library would at run time.

use crate::error::Error as PolicyError;
use crate::policy::{Algorithm, Policy, Rule};
use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::{Error, Ident, LitStr, Result};

/// The policy that a text says, checked.
pub(crate) fn policy(text: &LitStr) -> Result<Policy> {
    let policy: Policy = text.value().parse().map_err(|error| at_column(text, &error))?;
    policy.validate().map_err(|error| at_column(text, &error))?;
    Ok(policy)
}

/// The same policy, its rule named as asked for or like the function, unless it has a name already.
pub(crate) fn named(policy: Policy, name: Option<&LitStr>, function: &Ident) -> Result<Policy> {
    let [rule] = policy.rules() else {
        return match name {
            Some(name) => Err(Error::new(
                name.span(),
                "there are several limits: name each in the text, as in \"10/s named short; 100/h named long\"",
            )),
            None => Ok(policy),
        };
    };
    let by = |name: String| -> core::result::Result<Policy, PolicyError> {
        let rule: Rule = rule.clone().named(name);
        rule.validate().map(|()| Policy::from(rule))
    };
    match (rule.name(), name) {
        (Some(_), Some(name)) => Err(Error::new(name.span(), "the limit has a name already, in its text")),
        (None, Some(name)) => by(name.value()).map_err(|error| Error::new(name.span(), error)),
        // What cannot be a rule's name, because it is too long or not ASCII, goes without.
        (None, None) => Ok(by(function.unraw().to_string()).unwrap_or(policy)),
        (Some(_), None) => Ok(policy),
    }
}

/// The largest cost that can ever pass.
pub(crate) fn cost_max(policy: &Policy) -> u64 {
    let rules = policy.rules().iter().filter(|rule| !rule.is_shadow());
    rules.filter(|rule| rule.algorithm() != Algorithm::InFlight).map(Rule::limit).min().unwrap_or(u64::MAX)
}

/// Whether the policy counts what has begun and not ended.
pub(crate) fn has_places(policy: &Policy) -> bool {
    policy.rules().iter().any(|rule| rule.algorithm() == Algorithm::InFlight)
}

/// The error with the text and a mark under the column. Only some compilers can point into a literal, so the
/// message does.
fn at_column(text: &LitStr, error: &PolicyError) -> Error {
    let Some(column) = error.column() else {
        return Error::new(text.span(), error);
    };
    let shown: String = text.value().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let message = format!("{error}\n    \"{shown}\"\n     {:>column$}", '^');
    Error::new(place_in(text, column).unwrap_or_else(|| text.span()), message)
}

/// The column's place in the source; `None` where it cannot be told.
fn place_in(text: &LitStr, column: usize) -> Option<Span> {
    let (value, literal) = (text.value(), text.token());
    // Escapes make the source longer than the value; behind them nothing is where it seems.
    let before = literal.to_string().find(&value).filter(|_| !value.is_empty())?;
    let (start, found) = value.char_indices().nth(column.checked_sub(1)?)?;
    literal.subspan(before + start..before + start + found.len_utf8())
}
