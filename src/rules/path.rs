//! A request's path in every way that a router may read it.
//!
//! `/login`, `//login`, `/login/`, `/x/../login`, `/login;x` and `/%6cogin` are one route to some routers and six to
//! others, and a limiter in front does not know which. So a limit holds if *any* reading falls under it, and an exclusion
//! only if there is nothing to interpret.

use std::borrow::Cow;

/// The path of a request, without its query, ready to be matched.
///
/// Most paths are *plain*: they begin with `/` and have no `%`, no `;`, no `\`, no `//`, no `.` or `..` segment and no
/// `/` at the end. These are matched as they are, without a copy. Any other is read in up to eight ways: with encoded
/// slashes decoded and not, with what follows a `;` in a segment left out and `\` taken for `/`, and not, and with dot
/// segments resolved and not; a rule applies if one of them matches.
///
/// ```
/// use tollgate::rules::RequestPath;
///
/// assert!(RequestPath::new("/users/7").is_plain());
/// assert_eq!(RequestPath::new("//users/./%37/").canonical(), b"/users/7");
/// ```
#[derive(Clone, Debug)]
pub struct RequestPath<'a> {
    sent: &'a str,
    /// The readings of a path that is not plain, the one with everything resolved first.
    readings: Vec<Vec<u8>>,
}

impl<'a> RequestPath<'a> {
    /// The path as it was sent. What follows a `?` or `#` is left out.
    ///
    /// ```
    /// use tollgate::rules::RequestPath;
    ///
    /// let path = RequestPath::new("/search?q=toll");
    /// assert_eq!(path.as_sent(), "/search");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn new(sent: &'a str) -> Self {
        if is_surely_plain(sent.as_bytes()) {
            return Self { sent, readings: Vec::new() };
        }
        let sent = sent.split(['?', '#']).next().unwrap_or_default();
        if is_plain(sent.as_bytes()) {
            return Self { sent, readings: Vec::new() };
        }
        let mut readings: Vec<Vec<u8>> = Vec::new();
        for decodes_slashes in [true, false] {
            let decoded = decoded(sent.as_bytes(), decodes_slashes);
            let bare = bare(&decoded);
            for path in bare.as_deref().into_iter().chain([&*decoded]) {
                for resolves_dots in [true, false] {
                    let reading = joined(path, resolves_dots);
                    if !readings.contains(&reading) {
                        readings.push(reading);
                    }
                }
            }
        }
        Self { sent, readings }
    }

    /// The path as it was sent, without a query.
    ///
    /// ```
    /// assert_eq!(tollgate::rules::RequestPath::new("//a/../b?c").as_sent(), "//a/../b");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn as_sent(&self) -> &'a str {
        self.sent
    }

    /// Whether there is only one way to read it.
    ///
    /// ```
    /// use tollgate::rules::RequestPath;
    ///
    /// assert!(RequestPath::new("/login").is_plain());
    /// assert!(!RequestPath::new("/login/").is_plain());
    /// ```
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.readings.is_empty()
    }

    /// The path with everything resolved, the same for all ways to write it.
    ///
    /// ```
    /// use tollgate::rules::RequestPath;
    ///
    /// assert_eq!(RequestPath::new("/x/../%6cogin/").canonical(), b"/login");
    /// ```
    #[must_use]
    pub fn canonical(&self) -> &[u8] {
        self.readings.first().map_or(self.sent.as_bytes(), Vec::as_slice)
    }

    /// Every way to read it; one for a plain path.
    ///
    /// ```
    /// use tollgate::rules::RequestPath;
    ///
    /// assert_eq!(RequestPath::new("/login").readings().count(), 1);
    /// let path = RequestPath::new("/x/../login");
    /// assert!(path.readings().any(|reading| reading == b"/login"));
    /// ```
    pub fn readings(&self) -> impl Iterator<Item = &[u8]> {
        let plain = self.is_plain().then_some(self.sent.as_bytes());
        plain.into_iter().chain(self.readings.iter().map(Vec::as_slice))
    }
}

/// Whether there is nothing in the path that could be read in another way, at a glance: most have nothing of the kind.
fn is_surely_plain(path: &[u8]) -> bool {
    let mut before = 0;
    for &byte in path {
        match byte {
            b'%' | b'?' | b'#' | b';' | b'\\' => return false,
            b'/' | b'.' if before == b'/' => return false,
            _ => before = byte,
        }
    }
    path.first() == Some(&b'/') && (before != b'/' || path.len() == 1)
}

fn is_plain(path: &[u8]) -> bool {
    if path == b"/" {
        return true;
    }
    if path.first() != Some(&b'/') {
        return false;
    }
    // One pass: the bytes since the last slash, and whether they are all dots.
    let mut length = 1_u32;
    let mut only_dots = true;
    for &byte in &path[1..] {
        match byte {
            b'%' | b';' | b'\\' => return false,
            b'/' if length == 1 || (only_dots && length <= 3) => return false,
            b'/' => (length, only_dots) = (1, true),
            _ => {
                only_dots &= byte == b'.';
                length = length.saturating_add(1);
            }
        }
    }
    length > 1 && !(only_dots && length <= 3)
}

/// Percent-escapes decoded once, as a server does; what is no escape stays as it is.
fn decoded(path: &[u8], decodes_slashes: bool) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, tail @ ..] = rest {
        let escape = match rest {
            [b'%', high, low, ..] => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        match escape {
            Some(byte) if byte != b'/' || decodes_slashes => {
                out.push(byte);
                rest = &rest[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    Cow::Owned(out)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// The path as some servers take it, if that is another: without the parameters of its segments, and with `\` as `/`.
fn bare(path: &[u8]) -> Option<Vec<u8>> {
    if !path.iter().any(|byte| matches!(byte, b';' | b'\\')) {
        return None;
    }
    let mut is_parameter = false;
    let slashed = path.iter().map(|&byte| if byte == b'\\' { b'/' } else { byte });
    let kept = slashed.filter(|&byte| {
        is_parameter = byte == b';' || (is_parameter && byte != b'/');
        !is_parameter
    });
    Some(kept.collect())
}

/// The path without empty segments, and without dot segments if they are to be resolved.
fn joined(path: &[u8], resolves_dots: bool) -> Vec<u8> {
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|&byte| byte == b'/') {
        match segment {
            b"" => {}
            b"." if resolves_dots => {}
            b".." if resolves_dots => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    let mut out = Vec::with_capacity(path.len() + 1);
    for segment in &segments {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_plain_paths() {
        for plain in ["/", "/a", "/a/b", "/.well-known/x", "/a.b", "/...", "/a/..b", "/a/b..", "/é"] {
            assert!(RequestPath::new(plain).is_plain() && is_plain(plain.as_bytes()), "{plain}");
        }
        for odd in [
            "", "*", "a", "//", "/a/", "//a", "/a//b", "/.", "/..", "/a/.", "/a/..", "/./a", "/a/../b",
            "/%61", "/a;b", "/a\\b",
        ] {
            assert!(!RequestPath::new(odd).is_plain() && !is_plain(odd.as_bytes()), "{odd}");
        }
    }

    #[test]
    fn reads_odd_paths_in_every_way() {
        let readings = |path| {
            let path = RequestPath::new(path);
            path.readings().map(|r| String::from_utf8_lossy(r).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(readings("/a?x=/../b"), ["/a"]);
        assert_eq!(readings("//a///b/"), ["/a/b"]);
        assert_eq!(readings("/x/../%6cogin"), ["/login", "/x/../login"]);
        assert_eq!(readings("/users/1%2f2"), ["/users/1/2", "/users/1%2f2"]);
        assert_eq!(readings("/x/..%2Fusers/a%2Fb"), ["/users/a/b", "/x/../users/a/b", "/x/..%2Fusers/a%2Fb"]);
        // Decoded once, and only what is an escape.
        assert_eq!(readings("/%2561%zz%"), ["/%61%zz%"]);
        assert_eq!(readings("/../../.."), ["/", "/../../.."]);
        assert_eq!(readings("/a;x=1/b"), ["/a/b", "/a;x=1/b"]);
        assert_eq!(readings("/x/..;/b"), ["/b", "/x/../b", "/x/..;/b"]);
        assert_eq!(readings("/x\\..\\b"), ["/b", "/x/../b", "/x\\..\\b"]);
        assert_eq!(readings(""), ["/"]);
        assert_eq!(readings("*"), ["/*"]);
    }
}
