//! The text form of rules and policies.
//!
//! ```text
//! policy    = limit *( ";" limit )
//! limit     = [ "shadow" ] ( rate | at once ) [ "named" NAME ]
//! rate      = [ algorithm ] COUNT [ "r" ] ( "/" | "per" ) [ N ] UNIT [ "burst" N ]
//! at once   = COUNT "at" "once"
//! algorithm = "token" | "fixed" | "sliding" | "log"
//! UNIT      = "ns" | "us" | "ms" | "s" | "min" | "h" | "d" | "w", or spelled out
//! ```
//!
//! Words are case-insensitive, spaces may stand between any two tokens, numbers may be grouped with `_`.

use crate::error::Error;
use crate::policy::{Algorithm, Policy, Rule, check_name, check_rule_count};
use std::fmt;
use std::time::Duration;

const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MIN: u64 = 60 * NS_PER_S;
const NS_PER_H: u64 = 60 * NS_PER_MIN;
const NS_PER_D: u64 = 24 * NS_PER_H;
const NS_PER_W: u64 = 7 * NS_PER_D;

/// The units that the text form writes, largest first; all but the week, which reads as seven days.
const WRITTEN_UNITS: [(u64, &str); 7] = [
    (NS_PER_D, "d"),
    (NS_PER_H, "h"),
    (NS_PER_MIN, "min"),
    (NS_PER_S, "s"),
    (NS_PER_MS, "ms"),
    (NS_PER_US, "us"),
    (1, "ns"),
];

fn unit_ns(word: &str) -> Option<u64> {
    Some(match word.to_ascii_lowercase().as_str() {
        "ns" | "nanosecond" | "nanoseconds" => 1,
        "us" | "microsecond" | "microseconds" => NS_PER_US,
        "ms" | "msec" | "millisecond" | "milliseconds" => NS_PER_MS,
        "s" | "sec" | "secs" | "second" | "seconds" => NS_PER_S,
        "m" | "min" | "mins" | "minute" | "minutes" => NS_PER_MIN,
        "h" | "hr" | "hrs" | "hour" | "hours" => NS_PER_H,
        "d" | "day" | "days" => NS_PER_D,
        "w" | "week" | "weeks" => NS_PER_W,
        _ => return None,
    })
}

fn algorithm(word: &str) -> Option<Algorithm> {
    Some(match word.to_ascii_lowercase().replace('-', "_").as_str() {
        "token" | "bucket" | "token_bucket" | "gcra" => Algorithm::TokenBucket,
        "fixed" | "fixed_window" => Algorithm::FixedWindow,
        "sliding" | "sliding_window" => Algorithm::SlidingWindow,
        "log" | "sliding_log" => Algorithm::SlidingLog,
        _ => return None,
    })
}

/// A period as the text form writes it: `min`, `15min`, `1500us`.
pub(crate) struct PeriodText(pub(crate) Duration);

impl fmt::Display for PeriodText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let (unit_ns, unit) = WRITTEN_UNITS
            .into_iter()
            .find(|&(unit_ns, _)| ns % u128::from(unit_ns) == 0)
            .unwrap_or((1, "ns"));
        match ns / u128::from(unit_ns) {
            1 => f.write_str(unit),
            number => write!(f, "{number}{unit}"),
        }
    }
}

pub(crate) fn policy(text: &str) -> Result<Policy, Error> {
    let mut reader = Reader::new(text);
    let mut policy = Policy::from(limit(&mut reader)?);
    while reader.eat(';') {
        policy = policy.and(limit(&mut reader)?);
        check_rule_count(policy.rules().len()).map_err(|error| error.at(reader.column()))?;
    }
    reader.expect_end("`;` and another limit")?;
    Ok(policy)
}

pub(crate) fn rule(text: &str) -> Result<Rule, Error> {
    let mut reader = Reader::new(text);
    let rule = limit(&mut reader)?;
    reader.expect_end("nothing more")?;
    Ok(rule)
}

fn limit(reader: &mut Reader<'_>) -> Result<Rule, Error> {
    let start = reader.column();
    let shadow = reader.eat_word("shadow");
    let algorithm = match reader.peek_word() {
        "" => None,
        word => match algorithm(word) {
            Some(algorithm) => {
                reader.skip(word);
                Some(algorithm)
            }
            None => {
                return Err(reader.error(format!(
                    "unknown algorithm `{word}`: use token, fixed, sliding or log, or begin with a number"
                )));
            }
        },
    };
    let count = reader.number("a limit such as `100/min`", "count")?;
    if reader.rest().starts_with(['.', ',']) {
        return Err(reader.error("a count is a whole number: for one in two seconds, write `1/2s`"));
    }
    let mut rule = if algorithm.is_none() && reader.eat_word("at") {
        if !reader.eat_word("once") {
            return Err(reader.expected("`once` after `at`"));
        }
        Rule::at_once(count)
    } else {
        rate(reader, count)?.by(algorithm.unwrap_or_default())
    };
    if reader.eat_word("burst") {
        rule = rule.burst(reader.number("a number after `burst`", "burst")?);
    }
    if reader.eat_word("named") {
        let name = reader.name();
        if name.is_empty() {
            return Err(reader.expected("a name after `named`"));
        }
        check_name(name).map_err(|error| error.at(reader.column()))?;
        rule = rule.named(name);
        reader.skip(name);
        if reader.peek_word().eq_ignore_ascii_case("burst") {
            return Err(reader.error("the name comes last: write `burst` before `named`"));
        }
    }
    rule.validate().map_err(|error| error.at(start))?;
    Ok(if shadow { rule.shadow() } else { rule })
}

fn rate(reader: &mut Reader<'_>, count: u64) -> Result<Rule, Error> {
    if reader.peek_word().eq_ignore_ascii_case("r") {
        reader.skip("r");
    }
    if !reader.eat('/') && !reader.eat_word("per") {
        return Err(reader.expected("`/` or `per`, then a period"));
    }
    Ok(Rule::new(count, period(reader)?))
}

fn period(reader: &mut Reader<'_>) -> Result<Duration, Error> {
    let start = reader.column();
    let number = if reader.at_digit() { reader.number("a number", "period")? } else { 1 };
    let word = reader.peek_word();
    if word.is_empty() {
        return Err(reader.expected("a unit of time"));
    }
    let Some(unit_ns) = unit_ns(word) else {
        return Err(reader.error(format!("unknown unit `{word}`: use ns, us, ms, s, min, h, d or w")));
    };
    if number == 0 {
        return Err(Error::new("a period of 0 has no rate: the period must be at least 1 ns").at(start));
    }
    let Some(ns) = number.checked_mul(unit_ns) else {
        return Err(Error::new("the period is longer than 584 years and does not fit the word").at(start));
    };
    reader.skip(word);
    Ok(Duration::from_nanos(ns))
}

/// A text and how far it has been read. Spaces are skipped before every token.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let mut reader = Self { text, at: 0 };
        reader.skip_spaces();
        reader
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Passes over `token`, which stands at the reader, and the spaces behind it.
    fn skip(&mut self, token: &str) {
        self.at += token.len();
        self.skip_spaces();
    }

    fn column(&self) -> usize {
        self.text[..self.at].chars().count() + 1
    }

    fn take_while(&self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        &rest[..rest.find(|c| !belongs(c)).unwrap_or(rest.len())]
    }

    fn peek_word(&self) -> &'a str {
        let word = self.take_while(|c| c.is_alphabetic() || matches!(c, '_' | '-'));
        if word.starts_with(char::is_alphabetic) { word } else { "" }
    }

    fn name(&self) -> &'a str {
        self.take_while(|c| !c.is_whitespace() && c != ';')
    }

    fn at_digit(&self) -> bool {
        self.rest().starts_with(|c: char| c.is_ascii_digit())
    }

    fn eat(&mut self, token: char) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len_utf8();
            self.skip_spaces();
        }
        found
    }

    fn eat_word(&mut self, token: &str) -> bool {
        let found = self.peek_word().eq_ignore_ascii_case(token);
        if found {
            self.skip(token);
        }
        found
    }

    fn number(&mut self, expected: &str, what: &str) -> Result<u64, Error> {
        if !self.at_digit() {
            return Err(self.expected(expected));
        }
        let token = self.take_while(|c| c.is_ascii_digit() || c == '_');
        match token.replace('_', "").parse() {
            Ok(number) => {
                self.skip(token);
                Ok(number)
            }
            Err(_) => Err(self.error(format!("the {what} {token} is too large: at most {}", u64::MAX))),
        }
    }

    fn expect_end(&self, expected: &str) -> Result<(), Error> {
        if self.rest().is_empty() { Ok(()) } else { Err(self.expected(expected)) }
    }

    fn error(&self, message: impl Into<String>) -> Error {
        Error::new(message).at(self.column())
    }

    fn expected(&self, what: &str) -> Error {
        const SHOWN_MAX: usize = 20;
        let found = self.take_while(|c| !c.is_whitespace());
        match (found.is_empty(), found.char_indices().nth(SHOWN_MAX)) {
            (true, _) => self.error(format!("expected {what}, but the text ends")),
            (false, None) => self.error(format!("expected {what}, found `{found}`")),
            (false, Some((cut, _))) => self.error(format!("expected {what}, found `{}…`", &found[..cut])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_documented_forms() {
        let minute = |count| Rule::new(count, Duration::from_secs(60));
        for (text, rule) in [
            ("100/min", minute(100)),
            ("100 per minute", minute(100)),
            ("  1_000_000 / 1 MINUTES  ", minute(1_000_000)),
            ("100r/m", minute(100)),
            ("10r/s", Rule::per_second(10)),
            ("10 r / s burst 5", Rule::per_second(10).burst(5)),
            ("token 7/ms", Rule::new(7, Duration::from_millis(1))),
            ("fixed 3/2h", Rule::new(3, Duration::from_secs(7200)).fixed_window()),
            ("sliding-window 3/d", Rule::per_day(3).sliding_window()),
            ("log 5/15min named login", Rule::new(5, Duration::from_secs(900)).sliding_log().named("login")),
            ("1/w", Rule::new(1, Duration::from_secs(604_800))),
            ("100/min burst 20 named a;", minute(100).burst(20).named("a")),
            ("20 at once", Rule::at_once(20)),
            ("Shadow 20 AT once named b", Rule::at_once(20).named("b").shadow()),
            ("shadow log 5/s", Rule::per_second(5).sliding_log().shadow()),
        ] {
            let text = text.trim_end_matches(';');
            assert_eq!(text.parse::<Rule>(), Ok(rule), "{text}");
        }
        assert_eq!(
            "10/s burst 20; sliding 1000/h;log 5 per 15 min".parse::<Policy>().map(|p| p.to_string()),
            Ok("10/s burst 20; sliding 1000/h; log 5/15min".to_owned()),
        );
    }

    #[test]
    fn errors_name_cause_and_column() {
        let big = "9".repeat(30);
        for (text, column, cause) in [
            ("", 1, "expected a limit such as `100/min`, but the text ends"),
            ("0/s", 1, "the count must be at least 1"),
            ("5/0s", 3, "the period must be at least 1 ns"),
            ("5/s burst 0", 1, "the burst must be at least 1"),
            ("5/s; 10/sc", 9, "unknown unit `sc`"),
            ("5/s extra", 5, "expected `;` and another limit, found `extra`"),
            ("5/s;", 5, "expected a limit"),
            ("5", 2, "expected `/` or `per`, then a period, but the text ends"),
            ("5/", 3, "expected a unit of time, but the text ends"),
            ("5/s burst", 10, "expected a number after `burst`, but the text ends"),
            ("leaky 5/s", 1, "unknown algorithm `leaky`"),
            ("-5/s", 1, "expected a limit such as `100/min`, found `-5/s`"),
            (&format!("{big}/s"), 1, "is too large: at most"),
            ("5/99999999999d", 3, "longer than 584 years"),
            ("1/s; sliding 2000000/s", 6, "a sliding window counts to 1048575"),
            ("log 5000/s", 1, "at most 1024"),
            ("fixed 5/s burst 3", 1, "`burst` belongs to the token bucket; a fixed window"),
            ("1/d burst 1000000", 1, "the rule is too large for the word"),
            ("999999999999/ns", 1, "the rate is too fast for the word"),
            ("5/s named", 10, "expected a name after `named`"),
            ("5/s named é", 11, "a name cannot contain 'é'"),
            ("1/s; 5/s named \"api\"", 16, "a name cannot contain '\"'"),
            ("5/s named api burst 9", 15, "write `burst` before `named`"),
            ("0.5/s", 2, "a count is a whole number: for one in two seconds, write `1/2s`"),
            ("1,000/s", 2, "a count is a whole number"),
            ("5 at", 5, "expected `once` after `at`, but the text ends"),
            ("fixed 5 at once", 9, "expected `/` or `per`"),
            ("5 at once burst 2", 1, "`burst` belongs to the token bucket"),
            ("0 at once", 1, "the count must be at least 1"),
            ("shadow", 7, "expected a limit"),
            ("5/é", 3, "unknown unit `é`"),
            ("é5/s", 1, "unknown algorithm `é`"),
        ] {
            let error = text.parse::<Policy>().expect_err(text);
            assert!(error.message().contains(cause), "{text}: {error}");
            assert_eq!(error.column(), Some(column), "{text}: {error}");
        }
    }
}
