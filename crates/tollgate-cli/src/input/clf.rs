//! The common log format and the combined one: `HOST - USER [TIME] "METHOD PATH PROTOCOL" STATUS SIZE …`, with or
//! without a virtual host before it.
//!
//! Only what comes before the closing quote of the request is read, and nothing is copied.

use super::record::Record;
use super::time;
use memchr::memchr;
use std::net::IpAddr;

/// Reads one line; the error says what is wrong with it.
pub(crate) fn parse(line: &[u8]) -> Result<Record<'_>, &'static str> {
    let host_end = memchr(b' ', line).ok_or("no space after the host")?;
    let (ip, rest) = line.split_at(host_end);
    if ip.is_empty() {
        return Err("the line begins with a space");
    }
    let open = memchr(b'[', rest).ok_or("no `[` before the time")?;
    let (ip, user) = client(ip, &rest[..open])?;
    let rest = &rest[open + 1..];
    let close = memchr(b']', rest).ok_or("no `]` after the time")?;
    let at_ns = time::parse_clf(&rest[..close]).ok_or("the time is not like `17/May/2015:10:05:03 +0000`")?;
    let rest = rest[close + 1..].strip_prefix(b" \"").ok_or("no request in quotes after the time")?;
    let request = &rest[..closing_quote(rest).ok_or("no closing quote after the request")?];
    // A request that is no HTTP (`-`, or the bytes of a TLS hello) is a request all the same.
    let (method, path) = match memchr(b' ', request) {
        None => (&b""[..], &b""[..]),
        Some(space) => {
            let target = &request[space + 1..];
            let end = memchr(b' ', target).unwrap_or(target.len());
            (&request[..space], &target[..end])
        }
    };
    Ok(Record { at_ns, ip, user, method, path, key: b"" })
}

/// The address and the user, from the line's first word and what stands between it and the time: ` - USER `, or
/// ` HOST - USER ` after a virtual host. `-` is nobody. A user may have spaces in it.
fn client<'a>(first: &'a [u8], between: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), &'static str> {
    if between == b" - - " {
        return Ok((first, b""));
    }
    let split = |words: &'a [u8]| -> Result<_, &'static str> {
        let words = words.trim_ascii();
        let space = memchr(b' ', words).ok_or("no user between host and time")?;
        Ok((&words[..space], words[space + 1..].trim_ascii()))
    };
    let (second, rest) = split(between)?;
    let (ip, user) = if second != b"-" && is_address(second) && !is_address(first) {
        (second, split(rest)?.1)
    } else {
        (first, rest)
    };
    match user {
        b"-" | b"\"\"" => Ok((ip, b"")),
        user => Ok((ip, user)),
    }
}

fn is_address(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|word| word.parse::<IpAddr>().is_ok())
}

/// Where the quoted text ends; a backslash takes the next character with it.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let quote = from + memchr(b'"', &text[from..])?;
        let backslashes = text[..quote].iter().rev().take_while(|&&byte| byte == b'\\').count();
        if backslashes % 2 == 0 {
            return Some(quote);
        }
        from = quote + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Record<'_>, &'static str> {
        parse(line.as_bytes())
    }

    #[test]
    fn reads_common_and_combined() {
        let common = r#"203.0.113.7 - alice [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 12"#;
        let record = Record {
            at_ns: 1_431_857_103_000_000_000,
            ip: b"203.0.113.7",
            user: b"alice",
            method: b"GET",
            path: b"/a?b=c",
            key: b"",
        };
        assert_eq!(parsed(common), Ok(record));
        assert_eq!(parsed(&format!(r#"{common} "https://x" "agent""#)), Ok(record));
        assert_eq!(parsed(&common.replace("alice", "-")), Ok(Record { user: b"", ..record }));
        assert_eq!(parsed(&common.replace("alice", "al ice")), Ok(Record { user: b"al ice", ..record }));
        assert_eq!(
            parsed(&common.replace("/a?b=c", r#"/a\"b\\"#)),
            Ok(Record { path: br#"/a\"b\\"#, ..record })
        );
        for odd in ["-", r"\x16\x03\x01"] {
            let request = common.replace("GET /a?b=c HTTP/1.1", odd);
            assert_eq!(parsed(&request), Ok(Record { method: b"", path: b"", ..record }));
        }
    }

    #[test]
    fn a_virtual_host_is_no_client() {
        let tail = r#"[17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 12"#;
        for (head, ip, user) in [
            ("www.x.example:80 203.0.113.7 - -", "203.0.113.7", ""),
            ("www.x.example 2001:db8::1 - alice", "2001:db8::1", "alice"),
            ("192.0.2.1:443 203.0.113.7 - al ice", "203.0.113.7", "al ice"),
            // One address is the client's.
            ("203.0.113.7 198.51.100.1 alice", "203.0.113.7", "alice"),
            ("client.example ident alice", "client.example", "alice"),
            ("client.example - 203.0.113.7", "client.example", "203.0.113.7"),
        ] {
            let line = format!("{head} {tail}");
            let record = parsed(&line).expect(head);
            assert_eq!((record.ip, record.user), (ip.as_bytes(), user.as_bytes()), "{head}");
        }
        assert!(parsed(&format!("x 203.0.113.7 - {tail}")).is_err());
    }

    #[test]
    fn says_what_is_wrong() {
        for (line, cause) in [
            ("nothing", "after the host"),
            (" - - [", "begins with a space"),
            ("h - -", "no `[`"),
            ("h - - [17/May/2015:10:05:03 +0000", "no `]`"),
            ("h - - [today] \"GET / HTTP/1.1\"", "the time"),
            ("h - - [17/May/2015:10:05:03 +0000] GET", "in quotes"),
            (r#"h - - [17/May/2015:10:05:03 +0000] "GET \""#, "closing quote"),
            ("h [17/May/2015:10:05:03 +0000] \"GET", "no user"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(cause), "{line}: {error}");
        }
    }
}
