//! Whose budget a request spends from, as text: `header:x-api-key | ip + method`.

use super::RulesError;
use super::path::RequestPath;
use super::pattern::PathPattern;
use std::fmt;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// How many parts a key may have in all.
const PARTS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 64;
/// Written for a part of the program's own that a request does not have: no key of a program is this number.
const MISSING: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834;

/// How much of an address makes a key.
///
/// A subscriber has one IPv4 address and a whole IPv6 prefix, /64 at least; counted by full address, it could
/// take a fresh budget with every request.
///
/// ```
/// use tollgate::rules::IpPrefix;
///
/// let prefix = IpPrefix::default();
/// assert_eq!(prefix.apply("2001:db8:1:2:aaaa::1".parse()?), "2001:db8:1:2::".parse::<std::net::IpAddr>()?);
/// assert_eq!(prefix.apply("::ffff:192.0.2.7".parse()?), "192.0.2.7".parse::<std::net::IpAddr>()?);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpPrefix {
    v4_bits: u8,
    v6_bits: u8,
}

impl IpPrefix {
    /// So many leading bits of an IPv4 address, and so many of an IPv6 one; at most 32 and 128.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tollgate::rules::IpPrefix;
    ///
    /// let prefix = IpPrefix::new(24, 56);
    /// assert_eq!(prefix.apply("192.0.2.7".parse()?), "192.0.2.0".parse::<IpAddr>()?);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn new(v4_bits: u8, v6_bits: u8) -> Self {
        Self { v4_bits: v4_bits.min(32), v6_bits: v6_bits.min(128) }
    }

    /// The address with the rest of its bits zero. IPv4 in IPv6 (`::ffff:192.0.2.7`) is IPv4.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tollgate::rules::IpPrefix;
    ///
    /// let address: IpAddr = "2001:db8:1:2:aaaa::1".parse()?;
    /// assert_eq!(IpPrefix::new(32, 48).apply(address), "2001:db8:1::".parse::<IpAddr>()?);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn apply(self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.v4_bits)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.v6_bits)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }
}

/// A whole IPv4 address, and the first 64 bits of an IPv6 one.
impl Default for IpPrefix {
    fn default() -> Self {
        Self::new(32, 64)
    }
}

/// One thing that tells requests apart.
///
/// ```
/// use tollgate::rules::{IpPrefix, KeyPart};
///
/// assert_eq!("header:X-API-Key".parse::<KeyPart>()?, KeyPart::Header("x-api-key".into()));
/// assert_eq!("ip/24/56".parse::<KeyPart>()?, KeyPart::Ip(IpPrefix::new(24, 56)));
/// assert_eq!(KeyPart::Param("id".into()).to_string(), "param:id");
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyPart {
    /// The client's address: `ip`, `ip/56` (bits of an IPv6 address), `ip/24/56` (of IPv4 and of IPv6).
    Ip(IpPrefix),
    /// A header that is there and not empty: `header:x-api-key`. In lower case.
    Header(Box<str>),
    /// The path with everything resolved: `path`.
    Path,
    /// Which of the rule's patterns the path matched: `route`.
    Route,
    /// What stands for `{name}` in that pattern: `param:name`.
    Param(Box<str>),
    /// The method, HEAD as GET: `method`.
    Method,
    /// Something that only the program knows: `custom:user`.
    Custom(Box<str>),
    /// Everybody together: `global`.
    Global,
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(prefix) if *prefix == IpPrefix::default() => f.write_str("ip"),
            Self::Ip(IpPrefix { v4_bits: 32, v6_bits }) => write!(f, "ip/{v6_bits}"),
            Self::Ip(IpPrefix { v4_bits, v6_bits }) => write!(f, "ip/{v4_bits}/{v6_bits}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Path => f.write_str("path"),
            Self::Route => f.write_str("route"),
            Self::Param(name) => write!(f, "param:{name}"),
            Self::Method => f.write_str("method"),
            Self::Custom(name) => write!(f, "custom:{name}"),
            Self::Global => f.write_str("global"),
        }
    }
}

impl FromStr for KeyPart {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Self, RulesError> {
        let text = text.trim();
        if let Some(bits) = text.strip_prefix("ip/") {
            return ip_bits(text, bits).map(Self::Ip);
        }
        let Some((kind, name)) = text.split_once(':') else {
            return Ok(match text {
                "ip" => Self::Ip(IpPrefix::default()),
                "path" => Self::Path,
                "route" => Self::Route,
                "method" => Self::Method,
                "global" => Self::Global,
                "" => {
                    return Err(RulesError::new("expected a part of a key such as `ip`, but there is none"));
                }
                _ => {
                    return Err(RulesError::new(format!(
                        "unknown part of a key `{text}`: use ip, ip/64, header:NAME, path, route, param:NAME, \
                         method, custom:NAME or global"
                    )));
                }
            });
        };
        let name = name.trim();
        // What a header's name may be made of; it will do for the others.
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*-.^_`~".contains(c);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_token) {
            return Err(RulesError::new(format!(
                "`{text}` needs a name of 1 to {NAME_BYTES_MAX} letters, digits, `-` and `_` behind the colon"
            )));
        }
        match kind.trim() {
            "header" => Ok(Self::Header(name.to_ascii_lowercase().into())),
            "param" => Ok(Self::Param(name.into())),
            "custom" => Ok(Self::Custom(name.into())),
            _ => Err(RulesError::new(format!(
                "unknown part of a key `{text}`: before a colon use header, param or custom"
            ))),
        }
    }
}

fn ip_bits(text: &str, bits: &str) -> Result<IpPrefix, RulesError> {
    let (v4, v6) = bits.split_once('/').unwrap_or(("32", bits));
    let number = |digits: &str, most: u8| digits.trim().parse::<u8>().ok().filter(|bits| *bits <= most);
    match (number(v4, 32), number(v6, 128)) {
        (Some(v4), Some(v6)) => Ok(IpPrefix::new(v4, v6)),
        _ => Err(RulesError::new(format!(
            "`{text}` needs bits of a prefix: `ip/64` for IPv6 (at most 128), `ip/24/64` for IPv4 (at most 32) and IPv6"
        ))),
    }
}

/// The first of several parts that a request has: `header:x-api-key | ip`.
///
/// ```
/// use tollgate::rules::{KeyPart, KeySpec};
///
/// let key: KeySpec = "custom:user | ip + method".parse()?;
/// let first = &key.choices()[0];
/// assert_eq!(first.parts()[0], KeyPart::Custom("user".into()));
/// assert_eq!(first.parts().len(), 2);
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyChoice(Box<[KeyPart]>);

impl KeyChoice {
    /// The parts, in the order in which they are tried.
    #[must_use]
    pub fn parts(&self) -> &[KeyPart] {
        &self.0
    }
}

/// Whose budget a request spends from.
///
/// Parts joined with `+` tell requests apart together; of parts joined with `|`, which binds closer, the first
/// that the request has is taken.
///
/// ```
/// use tollgate::rules::KeySpec;
///
/// let key: KeySpec = "header:X-API-Key | ip + method".parse()?;
/// assert_eq!(key.to_string(), "header:x-api-key | ip + method");
/// assert_eq!(key.choices().len(), 2);
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeySpec(Box<[KeyChoice]>);

/// What a request is asked for its key.
///
/// ```
/// use std::hash::{DefaultHasher, Hasher};
/// use std::net::IpAddr;
/// use tollgate::rules::{KeySource, KeySpec, RequestPath};
///
/// struct Call(RequestPath<'static>);
///
/// impl KeySource for Call {
///     fn ip(&self) -> Option<IpAddr> {
///         None
///     }
///     fn header(&self, name: &str) -> Option<&[u8]> {
///         (name == "x-api-key").then_some(b"7f3a")
///     }
///     fn method(&self) -> &str {
///         "GET"
///     }
///     fn path(&self) -> &RequestPath<'_> {
///         &self.0
///     }
/// }
///
/// let key: KeySpec = "header:x-api-key | ip".parse()?;
/// let mut hasher = DefaultHasher::new();
/// assert!(key.write(&Call(RequestPath::new("/")), &[], &mut hasher));
/// println!("{:x} is the key", hasher.finish());
/// # Ok::<(), tollgate::rules::RulesError>(())
/// ```
pub trait KeySource {
    /// The address of the client.
    fn ip(&self) -> Option<IpAddr>;

    /// The value of a header, given in lower case; `None` if there is none.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// The method.
    fn method(&self) -> &str;

    /// The path.
    fn path(&self) -> &RequestPath<'_>;

    /// Writes what the program calls `name` into the hasher; `false` if the request has no such thing.
    fn custom(&self, name: &str, hasher: &mut dyn Hasher) -> bool {
        let _ = (name, hasher);
        false
    }
}

impl KeySpec {
    /// The parts that tell requests apart together, each with those to fall back to.
    #[must_use]
    pub fn choices(&self) -> &[KeyChoice] {
        &self.0
    }

    /// All parts, whether taken together or instead of each other.
    ///
    /// ```
    /// let key: tollgate::rules::KeySpec = "custom:user | ip + method".parse()?;
    /// let parts: Vec<String> = key.parts().map(ToString::to_string).collect();
    /// assert_eq!(parts, ["custom:user", "ip", "method"]);
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    pub fn parts(&self) -> impl Iterator<Item = &KeyPart> {
        self.0.iter().flat_map(KeyChoice::parts)
    }

    /// Whether all requests have the same key.
    ///
    /// ```
    /// use tollgate::rules::KeySpec;
    ///
    /// assert!("global".parse::<KeySpec>()?.is_global());
    /// assert!(!KeySpec::default().is_global());
    /// # Ok::<(), tollgate::rules::RulesError>(())
    /// ```
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.0.iter().all(|choice| matches!(choice.parts().first(), Some(KeyPart::Global)))
    }

    /// Writes the key of a request into the hasher, under a rule with these `patterns`: see [`KeySource`]. Returns `false` if the
    /// request lacks a part that nothing stands in for: what was written then is no key.
    ///
    /// ```
    /// use std::hash::{BuildHasher, RandomState};
    /// use tollgate::rules::{KeySource, KeySpec};
    ///
    /// fn key_of(spec: &KeySpec, source: &impl KeySource, hasher: &RandomState) -> Option<u64> {
    ///     let mut state = hasher.build_hasher();
    ///     spec.write(source, &[], &mut state).then(|| std::hash::Hasher::finish(&state))
    /// }
    /// ```
    pub fn write<H: Hasher>(
        &self,
        source: &impl KeySource,
        patterns: &[PathPattern],
        hasher: &mut H,
    ) -> bool {
        // The number of the alternative is written too: no header can pass for an address.
        self.0.iter().all(|choice| {
            (0_u8..).zip(choice.parts()).any(|(number, part)| part.write(number, source, patterns, hasher))
        })
    }
}

impl KeyPart {
    fn write<H: Hasher>(
        &self,
        number: u8,
        source: &impl KeySource,
        patterns: &[PathPattern],
        hasher: &mut H,
    ) -> bool {
        let mut bytes = |bytes: &[u8]| {
            hasher.write_u8(number);
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
            true
        };
        match self {
            Self::Ip(prefix) => match source.ip().map(|address| prefix.apply(address)) {
                // As numbers: a hasher takes those in at once.
                Some(IpAddr::V4(v4)) => {
                    hasher.write_u64(u64::from(number) << 32 | u64::from(v4.to_bits()));
                    true
                }
                Some(IpAddr::V6(v6)) => {
                    hasher.write_u8(number);
                    hasher.write_u128(v6.to_bits());
                    true
                }
                None => false,
            },
            Self::Header(name) => match source.header(name) {
                Some(value) if !value.is_empty() => bytes(value),
                _ => false,
            },
            Self::Path => bytes(source.path().canonical()),
            Self::Route => {
                let route = patterns.iter().position(|pattern| pattern.matches(source.path()));
                hasher.write_usize(route.unwrap_or(usize::MAX));
                true
            }
            Self::Param(name) => {
                let found = patterns.iter().find_map(|pattern| pattern.param(name, source.path()));
                found.is_some_and(bytes)
            }
            Self::Method => bytes(match source.method() {
                "HEAD" => b"GET",
                method => method.as_bytes(),
            }),
            Self::Custom(name) => {
                hasher.write_u8(number);
                let found = source.custom(name, hasher);
                if !found {
                    // Without it, what stands in would be written as if it were this part's own.
                    hasher.write_u128(MISSING);
                }
                found
            }
            Self::Global => true,
        }
    }
}

impl KeySpec {
    /// The parts of a list, each with its alternatives, taken together.
    pub(super) fn joined<'t>(parts: impl IntoIterator<Item = &'t str>) -> Result<Self, RulesError> {
        let choice = |text: &str| {
            let parts = text.split('|').map(str::parse).collect::<Result<Box<[KeyPart]>, _>>()?;
            Ok(KeyChoice(parts))
        };
        let choices = parts.into_iter().flat_map(|text| text.split('+')).map(choice);
        let spec = Self(choices.collect::<Result<_, RulesError>>()?);
        match spec.parts().count() {
            0 => Err(RulesError::new(
                "a key has at least one part: write `global` for one budget for everybody",
            )),
            1..=PARTS_MAX => Ok(spec),
            _ => Err(RulesError::new(format!("a key has at most {PARTS_MAX} parts"))),
        }
    }
}

impl FromStr for KeySpec {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Self, RulesError> {
        Self::joined([text])
    }
}

/// The client's address, an IPv6 one by its first 64 bits.
impl Default for KeySpec {
    fn default() -> Self {
        Self(Box::new([KeyChoice(Box::new([KeyPart::Ip(IpPrefix::default())]))]))
    }
}

impl fmt::Display for KeyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.0, " | ")
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.0, " + ")
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display], between: &str) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        let between = if index == 0 { "" } else { between };
        write!(f, "{between}{item}")?;
    }
    Ok(())
}
