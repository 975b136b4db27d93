//! One request as a log line tells it, and which fields it is read from.

use crate::failure::Failure;

/// What a line says of a request. An empty field is one that the line does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) at_ns: u64,
    pub(crate) ip: &'a [u8],
    pub(crate) user: &'a [u8],
    pub(crate) method: &'a [u8],
    /// Path and query, as sent.
    pub(crate) path: &'a [u8],
    /// A key that the log carries itself, such as an API key.
    pub(crate) key: &'a [u8],
}

/// A field of a record, as `--field` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Time,
    Ip,
    User,
    Method,
    Path,
    Key,
}

impl Field {
    const ALL: [Self; 6] = [Self::Time, Self::Ip, Self::User, Self::Method, Self::Path, Self::Key];

    fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Ip => "ip",
            Self::User => "user",
            Self::Method => "method",
            Self::Path => "path",
            Self::Key => "key",
        }
    }

    /// What the field is called in the logs of common servers, the likeliest first.
    fn usual(self) -> &'static [&'static str] {
        match self {
            Self::Time => &[
                "time",
                "timestamp",
                "@timestamp",
                "ts",
                "time_iso8601",
                "time_local",
                "datetime",
                "date",
                "msec",
            ],
            Self::Ip => &[
                "ip",
                "remote_addr",
                "client_ip",
                "remote_ip",
                "clientip",
                "client",
                "remote_host",
                "host",
                "request.client_ip",
                "request.remote_ip",
            ],
            Self::User => &["user", "remote_user", "user_id", "username"],
            Self::Method => &["method", "request_method", "verb", "request.method"],
            Self::Path => &["path", "request_uri", "uri", "url", "request.uri"],
            Self::Key => &["key", "api_key", "apikey", "tenant"],
        }
    }
}

/// Which names of a log stand for which field.
#[derive(Clone, Debug)]
pub(crate) struct FieldNames {
    /// A name in its dotted parts, what it stands for, and its rank among those that stand for the same.
    names: Vec<(Vec<String>, Field, u8)>,
}

impl FieldNames {
    /// The usual names, and those of `--field FIELD=NAME` in their place.
    pub(crate) fn new(options: &[String]) -> Result<Self, Failure> {
        let mut names = Vec::new();
        let mut chosen = Vec::new();
        for option in options {
            let known = || Field::ALL.map(Field::name).join(", ");
            let (field, name) =
                option.split_once('=').filter(|(_, name)| !name.is_empty()).ok_or_else(|| {
                    Failure::usage(format!(
                        "bad field `{option}`: write it like `ip=client_address` (fields: {})",
                        known()
                    ))
                })?;
            let field = Field::ALL.into_iter().find(|known| known.name() == field).ok_or_else(|| {
                Failure::usage(format!("unknown field `{field}`: the fields are {}", known()))
            })?;
            chosen.push(field);
            names.push((parts(name), field, 0));
        }
        for field in Field::ALL.into_iter().filter(|field| !chosen.contains(field)) {
            names.extend(field.usual().iter().zip(0..).map(|(name, rank)| (parts(name), field, rank)));
        }
        Ok(Self { names })
    }

    /// The field that a name without dots stands for, and how well.
    pub(crate) fn field_of(&self, name: &str) -> Option<(Field, u8)> {
        let fits = |parts: &[String]| parts.len() == 1 && parts[0].eq_ignore_ascii_case(name);
        self.names.iter().find(|(parts, ..)| fits(parts)).map(|&(_, field, rank)| (field, rank))
    }

    /// What stands `depth` parts deep under the names in `within` (a set of bits): the field that ends there,
    /// and the names that go on.
    pub(crate) fn step(&self, within: u64, depth: usize, name: &str) -> (Option<(Field, u8)>, u64) {
        let (mut ends, mut goes_on) = (None, 0);
        for (index, (parts, field, rank)) in self.names.iter().enumerate().take(64) {
            if within & 1 << index == 0 || parts.get(depth).is_none_or(|part| part != name) {
                continue;
            }
            match parts.len() - depth {
                1 => ends = ends.or(Some((*field, *rank))),
                _ => goes_on |= 1 << index,
            }
        }
        (ends, goes_on)
    }
}

/// A name from `--field` or the usual ones; the whole of it first, for names that have a dot in them.
fn parts(name: &str) -> Vec<String> {
    name.split('.').map(str::to_owned).collect()
}
