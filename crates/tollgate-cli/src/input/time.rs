//! Timestamps as logs write them, to and from nanoseconds since the Unix epoch (UTC).

use super::excerpt::beginning;
use std::fmt;

pub(crate) const NS_PER_S: u64 = 1_000_000_000;
const DAY_S: i64 = 86_400;

/// `17/May/2015:10:05:03 +0000`, as in the brackets of the common log format.
pub(crate) fn parse_clf(text: &[u8]) -> Option<u64> {
    let [d1, d0, b'/', m2, m1, m0, b'/', y @ .., b':', _, _, b':', _, _, b':', _, _, b' ', sign, _, _, _, _] =
        text
    else {
        return None;
    };
    let clock = &text[text.len() - 14..text.len() - 6];
    let offset = &text[text.len() - 4..];
    let month = match (m2 | 0x20, m1 | 0x20, m0 | 0x20) {
        (b'j', b'a', b'n') => 1,
        (b'f', b'e', b'b') => 2,
        (b'm', b'a', b'r') => 3,
        (b'a', b'p', b'r') => 4,
        (b'm', b'a', b'y') => 5,
        (b'j', b'u', b'n') => 6,
        (b'j', b'u', b'l') => 7,
        (b'a', b'u', b'g') => 8,
        (b's', b'e', b'p') => 9,
        (b'o', b'c', b't') => 10,
        (b'n', b'o', b'v') => 11,
        (b'd', b'e', b'c') => 12,
        _ => return None,
    };
    let year = if y.len() == 4 { number(y)? } else { return None };
    let seconds = clock_s(clock)? + days(year, month, number(&[*d1, *d0])?)? * DAY_S;
    let offset_s = number(&offset[..2])? * 3_600 + number(&offset[2..])? * 60;
    whole(seconds - signed(*sign, offset_s)?)
}

/// `2015-05-17T10:05:03.250Z` and its relatives: a space for the `T`, any fraction, an offset or none (UTC).
pub(crate) fn parse_iso(text: &[u8]) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (separator, rest) = rest.split_first()?;
    let (clock, mut rest) = rest.split_at_checked(8)?;
    let well = date[4] == b'-' && date[7] == b'-' && matches!(separator, b'T' | b't' | b' ' | b'_');
    if !well {
        return None;
    }
    let mut seconds =
        days(number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?)? * DAY_S + clock_s(clock)?;
    let mut fraction_ns = 0;
    if let [b'.' | b',', fraction @ ..] = rest {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        fraction_ns = fraction_of_second(&fraction[..digits])?;
        rest = &fraction[digits..];
    }
    rest = rest.trim_ascii_start();
    seconds -= match *rest {
        [] | [b'Z' | b'z'] => 0,
        [sign, h1, h0] => signed(sign, number(&[h1, h0])? * 3_600)?,
        [sign, h1, h0, b':', m1, m0] | [sign, h1, h0, m1, m0] => {
            signed(sign, number(&[h1, h0])? * 3_600 + number(&[m1, m0])? * 60)?
        }
        _ => return None,
    };
    whole(seconds)?.checked_add(fraction_ns)
}

/// The first number that is taken for seconds since 1970: it is in 1973. Less is a status, a size or a duration.
const SECONDS_MIN: u64 = 100_000_000;

/// `1431857103`, `1431857103.25`, or the same in milli-, micro- or nanoseconds: told apart by their size.
pub(crate) fn parse_unix(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    let (integer, fraction) = (&text[..point], text.get(point + 1..).unwrap_or_default());
    let whole = u64::try_from(number(integer)?).ok()?;
    match unit_ns(whole) {
        NS_PER_S if whole < SECONDS_MIN => None,
        NS_PER_S => whole.checked_mul(NS_PER_S)?.checked_add(fraction_of_second(fraction)?),
        // A fraction of a millisecond or less is beyond what a log tells apart.
        unit_ns => whole.checked_mul(unit_ns).filter(|_| fraction.iter().all(u8::is_ascii_digit)),
    }
}

/// Any of the above, or what to say of a text that is none.
pub(super) fn read_any(text: &[u8]) -> Result<u64, String> {
    parse_any(text).ok_or_else(|| format!("`{}` is no time", beginning(text)))
}

/// Any of the above.
pub(crate) fn parse_any(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let bare = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
    match bare.get(2..5) {
        Some([b'/', ..]) => parse_clf(bare),
        Some([_, _, b'-']) => parse_iso(bare),
        _ => parse_unix(bare),
    }
}

/// How long the unit of a number since the epoch is, so that the date falls between 1973 and 5138.
fn unit_ns(number: u64) -> u64 {
    match number {
        0..100_000_000_000 => NS_PER_S,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0_i64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(i64::from(digit)) }
    })
}

fn fraction_of_second(digits: &[u8]) -> Option<u64> {
    let mut ns = 0;
    for place in 0..9 {
        let digit = digits.get(place).map_or(0, |byte| byte.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        ns = ns * 10 + u64::from(digit);
    }
    Some(ns)
}

/// Seconds into the day of `10:05:03`; a leap second is the one after it.
fn clock_s(text: &[u8]) -> Option<i64> {
    let [h1, h0, b':', m1, m0, b':', s1, s0] = *text else { return None };
    let (hour, minute, second) = (number(&[h1, h0])?, number(&[m1, m0])?, number(&[s1, s0])?);
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3_600 + minute * 60 + second)
}

fn signed(sign: u8, seconds: i64) -> Option<i64> {
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn whole(seconds: i64) -> Option<u64> {
    u64::try_from(seconds).ok()?.checked_mul(NS_PER_S)
}

/// Days since the epoch of a date; years begin in March here, so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return None,
    };
    if !(1..=longest).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// A moment in UTC, taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) ns: u64,
}

pub(crate) const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Moment {
    pub(crate) fn of(at_ns: u64) -> Self {
        let seconds = i64::try_from(at_ns / NS_PER_S).unwrap_or(i64::MAX);
        let (days, of_day) = (seconds / DAY_S + 719_468, seconds % DAY_S);
        let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march = (5 * of_year + 2) / 153;
        let month = if march < 10 { march + 3 } else { march - 9 };
        Self {
            year: year + era * 400 + i64::from(month <= 2),
            month,
            day: of_year - (153 * march + 2) / 5 + 1,
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            ns: at_ns % NS_PER_S,
        }
    }

    /// The English abbreviation of the month.
    pub(crate) fn month_name(&self) -> &'static str {
        usize::try_from(self.month - 1).ok().and_then(|index| MONTHS.get(index)).copied().unwrap_or("Jan")
    }
}

/// RFC 3339, with as much of a fraction as there is.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second, ns } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match ns {
            0 => {}
            _ if ns % 1_000_000 == 0 => write!(f, ".{:03}", ns / 1_000_000)?,
            _ => write!(f, ".{ns:09}")?,
        }
        f.write_str("Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAY: u64 = 1_431_857_103 * NS_PER_S;

    #[test]
    fn one_moment_in_every_writing() {
        for text in [
            "17/May/2015:10:05:03 +0000",
            "[17/May/2015:12:05:03 +0200]",
            "16/May/2015:23:35:03 -1030",
            "2015-05-17T10:05:03Z",
            "2015-05-17 10:05:03",
            "2015-05-17T15:35:03.000+05:30",
            "1431857103",
            "1431857103.0",
            "1431857103000",
            "1431857103000000",
            "1431857103000000000",
        ] {
            assert_eq!(parse_any(text.as_bytes()), Some(MAY), "{text}");
        }
        assert_eq!(parse_any(b"1431857103.25"), Some(MAY + 250_000_000));
        assert_eq!(parse_any(b"2015-05-17T10:05:03.123456789Z"), Some(MAY + 123_456_789));
    }

    #[test]
    fn what_is_no_moment_is_none() {
        for text in [
            "",
            "-",
            "yesterday",
            "17/Mai/2015:10:05:03 +0000",
            "32/May/2015:10:05:03 +0000",
            "29/Feb/2015:10:05:03 +0000",
            "17/May/2015:24:05:03 +0000",
            "17/May/2015:10:05:03 0000",
            "2015-13-17T10:05:03Z",
            "2015-05-17T10:05",
            "1e9",
            "-5",
            "0",
            "200",
            "99999999",
            "99999999999999999999999",
            "17/May/1901:10:05:03 +0000",
            "2015-05-17T10:05:03.5x",
        ] {
            assert_eq!(parse_any(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_leap_second_is_the_one_after_it() {
        let new_year = parse_any(b"2017-01-01T00:00:00Z");
        assert_eq!(new_year, Some(1_483_228_800 * NS_PER_S));
        for text in ["2016-12-31T23:59:60Z", "2017-01-01T01:59:60+02:00", "31/Dec/2016:23:59:60 +0000"] {
            assert_eq!(parse_any(text.as_bytes()), new_year, "{text}");
        }
        assert_eq!(parse_any(b"2016-12-31T23:59:61Z"), None);
    }

    #[test]
    fn writing_and_reading_agree() {
        for days in 0..60_000_u64 {
            let at_ns = (days * 86_400 + days % 86_400) * NS_PER_S + days * 1_000_000 % NS_PER_S;
            let text = Moment::of(at_ns).to_string();
            assert_eq!(parse_iso(text.as_bytes()), Some(at_ns), "{text}");
        }
    }
}
