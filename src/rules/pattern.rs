//! Patterns for paths: literal segments, `{name}` or `*` for one, `**` for the rest.

use super::RulesError;
use super::path::RequestPath;
use std::fmt;
use std::str::FromStr;

const BYTES_MAX: usize = 1024;

/// A pattern for paths.
///
/// | pattern | matches | does not match |
/// |---|---|---|
/// | `/login` | `/login` | `/login/reset`, `/Login` |
/// | `/users/{id}` or `/users/*` | `/users/7` | `/users`, `/users/7/posts` |
/// | `/api/**` or `/api/{*rest}` | `/api`, `/api/v1/users` | `/apis` |
/// | `/**` | everything | |
///
/// ```
/// use tollgate::rules::{PathPattern, RequestPath};
///
/// let pattern: PathPattern = "/users/{id}/posts".parse()?;
/// assert!(pattern.matches(&RequestPath::new("/users/7/posts")));
/// assert!(pattern.matches(&RequestPath::new("/users/%37//posts/")));
/// assert!(!pattern.matches(&RequestPath::new("/users/7")));
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    text: Box<str>,
    /// The literal segments at the beginning, each with its slash: most patterns are ruled out by it.
    prefix: Box<[u8]>,
    /// The segments behind them.
    segments: Box<[Segment]>,
    /// Whether more segments may follow.
    is_open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Segment {
    Literal(Box<[u8]>),
    Any { name: Option<Box<str>> },
}

impl PathPattern {
    /// Whether any reading of the path matches.
    ///
    /// ```
    /// use tollgate::rules::{PathPattern, RequestPath};
    ///
    /// let pattern: PathPattern = "/api/**".parse()?;
    /// assert!(pattern.matches(&RequestPath::new("/api/v1/users")));
    /// assert!(!pattern.matches(&RequestPath::new("/apis")));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn matches(&self, path: &RequestPath<'_>) -> bool {
        path.readings().any(|reading| self.reads(reading))
    }

    /// What stands for `{name}` in the first reading of the path that matches.
    ///
    /// ```
    /// use tollgate::rules::{PathPattern, RequestPath};
    ///
    /// let pattern: PathPattern = "/users/{id}/posts".parse()?;
    /// let path = RequestPath::new("/users/7/posts");
    /// assert_eq!(pattern.param("id", &path), Some(&b"7"[..]));
    /// assert_eq!(pattern.param("name", &path), None);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn param<'p>(&self, name: &str, path: &'p RequestPath<'_>) -> Option<&'p [u8]> {
        let reading = path.readings().find(|reading| self.reads(reading))?;
        let mut rest = reading.get(self.prefix.len()..)?;
        for segment in &self.segments {
            let (found, tail) = split_segment(rest)?;
            if matches!(segment, Segment::Any { name: Some(known) } if **known == *name) {
                return Some(found);
            }
            rest = tail;
        }
        None
    }

    /// Whether the pattern has a segment `{name}`.
    ///
    /// ```
    /// let pattern: tollgate::rules::PathPattern = "/users/{id}".parse()?;
    /// assert!(pattern.has_param("id") && !pattern.has_param("name"));
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn has_param(&self, name: &str) -> bool {
        let named =
            |segment: &Segment| matches!(segment, Segment::Any { name: Some(known) } if **known == *name);
        self.segments.iter().any(named)
    }

    pub(super) fn reads(&self, path: &[u8]) -> bool {
        let path = if path == b"/" { b"" } else { path };
        let mut rest = path;
        // Not by way of an empty prefix: a comparison of no bytes, where there are none, takes some processors longer than
        // the whole of the rest.
        if !self.prefix.is_empty() {
            let Some(behind) = path.strip_prefix(&*self.prefix) else { return false };
            rest = behind;
        }
        for segment in &self.segments {
            let Some((found, tail)) = split_segment(rest) else { return false };
            if matches!(segment, Segment::Literal(literal) if **literal != *found) {
                return false;
            }
            rest = tail;
        }
        rest.is_empty() || (self.is_open && rest[0] == b'/')
    }
}

/// The next segment of a path, and what follows it.
fn split_segment(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let path = path.strip_prefix(b"/")?;
    let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
    Some(path.split_at(end))
}

impl FromStr for PathPattern {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Self, RulesError> {
        let error = |message: String| Err(RulesError::new(format!("path pattern `{text}`: {message}")));
        if text.len() > BYTES_MAX {
            return Err(RulesError::new(format!("a path pattern has at most {BYTES_MAX} bytes")));
        }
        let Some(inner) = text.strip_prefix('/') else { return error("begin it with `/`".into()) };
        if let Some(bad) = text.chars().find(|&c| matches!(c, '?' | '#') || c.is_control()) {
            return error(format!("a path has no {bad:?}: leave the query out"));
        }
        if text.contains('%') {
            return error(
                "write it decoded, without `%`: requests are decoded before they are matched".into(),
            );
        }
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let mut pattern = Self {
            text: format!("/{inner}").into(),
            prefix: Box::default(),
            segments: Box::default(),
            is_open: false,
        };
        let (mut prefix, mut segments) = (Vec::new(), Vec::new());
        for part in inner.split('/').skip(usize::from(inner.is_empty())) {
            if pattern.is_open {
                return error("`**` stands for all that follows, so nothing can follow it".into());
            }
            match part {
                "" => return error("an empty segment matches nothing: paths are read without them".into()),
                "." | ".." => {
                    return error(format!("the segment `{part}` matches nothing: write it resolved"));
                }
                "**" => pattern.is_open = true,
                "*" => segments.push(Segment::Any { name: None }),
                _ if part.starts_with(':') => {
                    return error(format!("write `{{{}}}` for one segment", part.trim_start_matches(':')));
                }
                _ => match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                    Some(name) => {
                        let rest = name.strip_prefix('*');
                        let name = rest.unwrap_or(name);
                        if name.is_empty()
                            || !name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
                        {
                            return error(format!("`{part}` needs a name of letters, digits, `_` and `-`"));
                        }
                        pattern.is_open = rest.is_some();
                        if rest.is_none() {
                            segments.push(Segment::Any { name: Some(name.into()) });
                        }
                    }
                    None if part.contains(['*', '{', '}']) => {
                        return error(format!(
                            "in `{part}`: `*`, `**` and `{{name}}` stand for whole segments only"
                        ));
                    }
                    None if segments.is_empty() => {
                        prefix.push(b'/');
                        prefix.extend_from_slice(part.as_bytes());
                    }
                    None => segments.push(Segment::Literal(part.as_bytes().into())),
                },
            }
        }
        pattern.prefix = prefix.into();
        pattern.segments = segments.into();
        Ok(pattern)
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        pattern.parse::<PathPattern>().unwrap().matches(&RequestPath::new(path))
    }

    #[test]
    fn matches_whole_segments() {
        for (pattern, hits, misses) in [
            ("/", &["/", "", "//"] as &[_], &["/a", "/a/"] as &[_]),
            ("/**", &["/", "/a", "/a/b", "*"], &[]),
            ("/login", &["/login", "/login/", "//login", "/x/../login"], &["/logi", "/login/x", "/LOGIN"]),
            ("/login/", &["/login"], &["/login/x"]),
            ("/api/**", &["/api", "/api/", "/api/v1/users"], &["/apis", "/", "/x/api"]),
            ("/{a}/b", &["/x/b", "/%2F/b"], &["/b", "/x/c", "/x/b/c"]),
            (
                "/users/{id}/posts/**",
                &["/users/7/posts", "/users/7/posts/1/2"],
                &["/users/7", "/users/posts"],
            ),
            ("/f/{*rest}", &["/f", "/f/a/b"], &["/g"]),
        ] {
            for path in hits {
                assert!(matches(pattern, path), "{pattern} {path}");
            }
            for path in misses {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }

    /// A path that is one route to some routers and another to others falls under the rules of both.
    #[test]
    fn no_spelling_escapes() {
        for path in
            ["/users/1%2F2", "/x/../users/1%2F2", "/users/1/", "//users/%31", "/users/1/./", "/users/."]
        {
            assert!(matches("/users/{id}", path), "{path}");
        }
        for path in ["/users/1%2F2", "/users%2f1%2F2"] {
            assert!(matches("/users/{id}/{post}", path), "{path}");
        }
    }

    #[test]
    fn captures_what_stands_for_a_name() {
        let pattern: PathPattern = "/t/{tenant}/u/{user}".parse().unwrap();
        let path = RequestPath::new("/t/acme//u/%61lice/");
        assert_eq!(pattern.param("tenant", &path), Some(&b"acme"[..]));
        assert_eq!(pattern.param("user", &path), Some(&b"alice"[..]));
        assert_eq!(pattern.param("other", &path), None);
        assert_eq!(pattern.param("user", &RequestPath::new("/t/acme")), None);
    }

    #[test]
    fn refuses_what_could_not_match() {
        for (text, cause) in [
            ("login", "begin it with `/`"),
            ("", "begin it with `/`"),
            ("/a//b", "an empty segment"),
            ("/a/../b", "the segment `..`"),
            ("/**/b", "nothing can follow"),
            ("/*.zip", "whole segments only"),
            ("/{}", "needs a name"),
            ("/{a", "whole segments only"),
            ("/users/:id", "write `{id}`"),
            ("/a?b=1", "leave the query out"),
            ("/caf%C3%A9", "write it decoded"),
        ] {
            let error = text.parse::<PathPattern>().unwrap_err().to_string();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
