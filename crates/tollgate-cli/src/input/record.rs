//! One request as a log line tells it, and which fields it is read from.

use crate::failure::Failure;

/// Names altogether: a bit each.
const NAMES_MAX: usize = 64;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Field {
    Time,
    Ip,
    User,
    Method,
    Path,
    Key,
}

impl Field {
    pub(crate) const ALL: [Self; 6] = [Self::Time, Self::Ip, Self::User, Self::Method, Self::Path, Self::Key];

    pub(crate) fn name(self) -> &'static str {
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
    names: Vec<Named>,
    /// The fields of `--field`.
    chosen: Vec<Field>,
}

/// A name, and what it stands for.
#[derive(Clone, Debug)]
struct Named {
    /// The name without its first part, without its first two, and so on; the whole of it first.
    rests: Vec<String>,
    field: Field,
    /// Among those that stand for the same, the likeliest first. One that is written with its dots is before one that
    /// leads into objects.
    rank: u8,
}

impl Named {
    fn new(name: &str, field: Field, place: u8) -> Self {
        let dots = name.match_indices('.').map(|(dot, _)| dot + 1);
        let rests = [0].into_iter().chain(dots).map(|start| name[start..].to_owned()).collect();
        Self { rests, field, rank: 2 * place }
    }

    /// The part that is `depth` parts in, if others follow.
    fn part(&self, depth: usize) -> Option<&str> {
        let (rest, after) = (self.rests.get(depth)?, self.rests.get(depth + 1)?);
        rest.get(..rest.len() - after.len() - 1)
    }
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
            let place = chosen.iter().filter(|&&known| known == field).count();
            chosen.push(field);
            names.push(Named::new(name, field, u8::try_from(place).unwrap_or(u8::MAX / 2)));
        }
        for field in Field::ALL.into_iter().filter(|field| !chosen.contains(field)) {
            names.extend(field.usual().iter().zip(0..).map(|(name, place)| Named::new(name, field, place)));
        }
        chosen.sort_unstable();
        chosen.dedup();
        if names.len() > NAMES_MAX {
            return Err(Failure::usage(format!("too many names for fields: at most {NAMES_MAX} altogether")));
        }
        Ok(Self { names, chosen })
    }

    /// The fields that were named, which then have to be there.
    pub(crate) fn chosen(&self) -> &[Field] {
        &self.chosen
    }

    /// The names that a field may have, the likeliest first.
    pub(crate) fn of(&self, field: Field) -> impl Iterator<Item = &str> {
        self.names.iter().filter(move |named| named.field == field).map(|named| named.rests[0].as_str())
    }

    /// The field that a column stands for, and how well.
    pub(crate) fn field_of(&self, name: &str) -> Option<(Field, u8)> {
        let fits = |named: &&Named| named.rests[0].eq_ignore_ascii_case(name);
        self.names.iter().find(fits).map(|named| (named.field, named.rank))
    }

    /// What stands `depth` parts deep under the names in `within` (a set of bits): the field that ends there,
    /// and the names that go on.
    pub(crate) fn step(&self, within: u64, depth: usize, name: &str) -> (Option<(Field, u8)>, u64) {
        let (mut ends, mut goes_on) = (None, 0);
        for (index, named) in self.names.iter().enumerate() {
            if within & 1 << index == 0 {
                continue;
            }
            if named.rests.get(depth).is_some_and(|rest| rest == name) {
                ends = ends.or(Some((named.field, named.rank + u8::from(depth > 0))));
            } else if named.part(depth) == Some(name) {
                goes_on |= 1 << index;
            }
        }
        (ends, goes_on)
    }
}
