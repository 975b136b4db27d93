//! What clients are told apart by in a log: keys as the rules file writes them, read from the fields of a line.

use crate::failure::Failure;
use crate::input::{Found, Keying, Record, Touches};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use tollgate::rules::{IpPrefix, KeyPart, KeySpec, PathPattern, RequestPath, RuleSet};

/// What requests share under a rule for whose key they lack a part, as they do in the HTTP layer.
const SHARED: &[u8] = b"(no key)";

/// Reads a key. `user` and `key`, the fields of a log, need no `custom:` before them.
pub(crate) fn parse(text: &str) -> Result<KeySpec, Failure> {
    let words = text.split_inclusive(['+', '|', ',']).map(|part| {
        let (word, joint) = match part.strip_suffix(['+', '|', ',']) {
            Some(word) => {
                (word, part.chars().last().filter(|&joint| joint != ',').unwrap_or('+').to_string())
            }
            None => (part, String::new()),
        };
        match word.trim() {
            word @ ("user" | "key") => format!("custom:{word}{joint}"),
            word => format!("{word}{joint}"),
        }
    });
    let spec: KeySpec = words.collect::<String>().parse().map_err(|error| {
        Failure::usage(format!(
            "bad key `{text}`: {error}\nIn a log, keys are ip, ip/N, user, path, method, key (a field of the log) and \
             global, joined by `+`."
        ))
    })?;
    for part in spec.parts() {
        if matches!(part, KeyPart::Route | KeyPart::Param(_)) {
            return Err(Failure::usage(format!(
                "bad key `{text}`: `{part}` needs a pattern for paths, which only a rules file has (`--rules FILE`)"
            )));
        }
    }
    Ok(spec)
}

/// Writes the key of a record, or says that it has none.
fn write_key(spec: &KeySpec, record: &Record<'_>, request: Option<&Request<'_>>, text: &mut Vec<u8>) -> bool {
    spec.choices().iter().enumerate().all(|(index, choice)| {
        if index > 0 {
            text.push(b' ');
        }
        let start = text.len();
        choice.parts().iter().any(|part| {
            // Of several, say which: no header can pass for an address.
            if choice.parts().len() > 1 {
                let _ = write!(text, "{part}=");
            }
            let has_it = write_part(part, record, request, text);
            if !has_it {
                text.truncate(start);
            }
            has_it
        })
    })
}

/// What a rule's patterns make of a request.
struct Request<'a> {
    path: &'a RequestPath<'a>,
    patterns: &'a [PathPattern],
}

fn write_part(
    part: &KeyPart,
    record: &Record<'_>,
    request: Option<&Request<'_>>,
    text: &mut Vec<u8>,
) -> bool {
    let mut put = |bytes: &[u8]| {
        text.extend_from_slice(bytes);
        !bytes.is_empty()
    };
    match part {
        KeyPart::Ip(prefix) => {
            record.ip != b"-" && !record.ip.is_empty() && write_ip(record.ip, *prefix, text)
        }
        KeyPart::Custom(name) if **name == *"user" => put(record.user),
        // A log has no headers, and knows nothing of the program: what stands in for either is the field `key`.
        KeyPart::Header(_) | KeyPart::Custom(_) => put(record.key),
        KeyPart::Method => put(if record.method == b"HEAD" { b"GET" } else { record.method }),
        KeyPart::Path => match request {
            Some(request) => put(request.path.canonical()),
            None => put(without_query(record.path)),
        },
        KeyPart::Route => request.is_some_and(|request| {
            let route = request.patterns.iter().find(|pattern| pattern.matches(request.path));
            route.is_some_and(|route| put(route.to_string().as_bytes()))
        }),
        KeyPart::Param(name) => request.is_some_and(|request| {
            let found = request.patterns.iter().find_map(|pattern| pattern.param(name, request.path));
            found.is_some_and(put)
        }),
        KeyPart::Global => put(b"everybody"),
        _ => false,
    }
}

pub(crate) fn without_query(path: &[u8]) -> &[u8] {
    &path[..memchr::memchr2(b'?', b'#', path).unwrap_or(path.len())]
}

/// An address in its usual writing and without a port, so that one client has one name; a host name as it is.
fn write_ip(ip: &[u8], prefix: IpPrefix, text: &mut Vec<u8>) -> bool {
    let is_v4 = memchr::memchr(b':', ip).is_none();
    if is_v4 && prefix.apply(IpAddr::from([255; 4])) == IpAddr::from([255; 4]) {
        text.extend_from_slice(ip);
        return true;
    }
    let Some(ip) = std::str::from_utf8(ip).ok().and_then(address).map(|ip| prefix.apply(ip)) else {
        text.extend_from_slice(ip);
        return true;
    };
    let all_ones = match ip {
        IpAddr::V4(_) => IpAddr::from([255; 4]),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
    };
    let kept = match prefix.apply(all_ones) {
        IpAddr::V4(mask) => (mask.to_bits().leading_ones(), 32),
        IpAddr::V6(mask) => (mask.to_bits().leading_ones(), 128),
    };
    // Writing to memory does not fail.
    let _ = match kept {
        (bits, all) if bits == all => write!(text, "{ip}"),
        (bits, _) => write!(text, "{ip}/{bits}"),
    };
    true
}

/// An address with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let found = bare.parse::<IpAddr>().ok();
    found.or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
}

/// Each key in a scope of its own. A request without a part of a key is not counted there.
#[derive(Debug)]
pub(crate) struct Keys(pub(crate) Vec<KeySpec>);

impl Keying for Keys {
    fn touch(&self, record: &Record<'_>, touches: &mut Touches<'_>) {
        for (scope, key) in (0..).zip(&self.0) {
            touches.add(scope, |text| match write_key(key, record, None, text) {
                true => Found::Key,
                false => Found::Nothing,
            });
        }
    }
}

/// Each rule of a file that a request falls under, by the rule's own key.
#[derive(Debug)]
pub(crate) struct Routes(pub(crate) RuleSet);

impl Keying for Routes {
    fn touch(&self, record: &Record<'_>, touches: &mut Touches<'_>) {
        let (method, path) = (String::from_utf8_lossy(record.method), String::from_utf8_lossy(record.path));
        let path = RequestPath::new(&path);
        let mut matches = self.0.matches_path(&method, &path);
        while let Some(index) = matches.next_index() {
            let rule = &self.0.rules()[index];
            let request = Request { path: &path, patterns: rule.matching().paths() };
            touches.add(u16::try_from(index).unwrap_or(u16::MAX), |text| {
                let start = text.len();
                if write_key(rule.key_of(), record, Some(&request), text) {
                    return Found::Key;
                }
                text.truncate(start);
                text.extend_from_slice(SHARED);
                Found::Shared
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(spec: &str, record: &Record<'_>) -> Option<String> {
        let spec = parse(spec).unwrap_or_else(|error| panic!("{error}"));
        let mut text = Vec::new();
        write_key(&spec, record, None, &mut text).then(|| String::from_utf8_lossy(&text).into_owned())
    }

    #[test]
    fn one_client_has_one_name() {
        let of = |ip: &'static str| Record {
            ip: ip.as_bytes(),
            path: b"/a?b",
            method: b"HEAD",
            ..Record::default()
        };
        for (spec, ip, name) in [
            ("ip", "203.0.113.7", "203.0.113.7"),
            ("ip", "::ffff:203.0.113.7", "203.0.113.7"),
            ("ip/64", "2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
            ("ip", "2001:db8:0:1::9", "2001:db8:0:1::/64"),
            ("ip/128", "2001:DB8::0001", "2001:db8::1"),
            ("ip", "203.0.113.7:54321", "203.0.113.7"),
            ("ip/24/64", "203.0.113.7:54321", "203.0.113.0/24"),
            ("ip/128", "[::1]:80", "::1"),
            ("ip/128", "[2001:db8::1]", "2001:db8::1"),
            ("ip", "crawl-1.example:80", "crawl-1.example:80"),
            ("ip/24/64", "203.0.113.7", "203.0.113.0/24"),
            ("ip/1", "8000::1", "8000::/1"),
            ("ip", "crawl-1.example", "crawl-1.example"),
            ("ip + path", "203.0.113.7", "203.0.113.7 /a"),
            ("ip,method", "203.0.113.7", "203.0.113.7 GET"),
            ("user|ip", "203.0.113.7", "ip=203.0.113.7"),
            ("global", "", "everybody"),
        ] {
            assert_eq!(key(spec, &of(ip)).as_deref(), Some(name), "{spec} {ip}");
        }
        assert_eq!(key("user", &of("203.0.113.7")), None);
        assert_eq!(key("ip", &of("-")), None);
    }

    #[test]
    fn unknown_parts_are_refused() {
        for spec in ["", "ip/129", "ip/x", "ip+cookie", "route", "param:id"] {
            assert!(parse(spec).is_err(), "{spec}");
        }
    }
}
