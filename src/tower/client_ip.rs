//! The client's address: the peer's, or what trusted proxies say.

use crate::Error;
use http::{Extensions, HeaderMap, HeaderName};
use ipnet::IpNet;
use std::fmt;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The address of a connection's other end, for servers that are written by hand: put it into the extensions of
/// each request.
///
/// ```
/// use tollgate::tower::PeerAddr;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddr("192.0.2.7:4711".parse()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

type FindPeer = dyn Fn(&Extensions) -> Option<SocketAddr> + Send + Sync;

/// How the client's address is found.
///
/// Unless told otherwise it is the address of the peer, and no header is believed. Behind proxies, name them and
/// the header in which they say whom they speak for; everybody else may write into that header what they like.
///
/// The header's lines are one list, read from the right: each trusted proxy has put its own peer there. The first
/// address that is no trusted proxy is the client. Reading stops at what is no address: then the client is the
/// proxy that sent it.
///
/// ```
/// use tollgate::tower::{ClientIp, RateLimitLayer};
///
/// let behind_proxies = ClientIp::x_forwarded_for(["10.0.0.0/8", "2001:db8:cd::/48"])?;
/// let layer = RateLimitLayer::builder().limit("100/min").client_ip(behind_proxies).build()?;
/// # let _: RateLimitLayer = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct ClientIp {
    header: Option<HeaderName>,
    /// Whether the header is written as RFC 7239 says.
    is_forwarded: bool,
    trusted: Vec<IpNet>,
    trusts_unknown_peer: bool,
    find_peer: Option<Arc<FindPeer>>,
}

impl ClientIp {
    /// The peer's address, and no header.
    ///
    /// ```
    /// use http::{Extensions, HeaderMap};
    /// use tollgate::tower::{ClientIp, PeerAddr};
    ///
    /// let mut extensions = Extensions::new();
    /// extensions.insert(PeerAddr(([192, 0, 2, 7], 4711).into()));
    /// let found = ClientIp::peer().find(&HeaderMap::new(), &extensions);
    /// assert_eq!(found, Some([192, 0, 2, 7].into()));
    /// ```
    #[must_use]
    pub fn peer() -> Self {
        Self::default()
    }

    /// `X-Forwarded-For`, from proxies in these networks.
    ///
    /// ```
    /// use http::{Extensions, HeaderMap};
    /// use tollgate::tower::{ClientIp, PeerAddr};
    ///
    /// let behind_proxies = ClientIp::x_forwarded_for(["10.0.0.0/8"])?;
    /// let mut extensions = Extensions::new();
    /// extensions.insert(PeerAddr(([10, 0, 0, 1], 4711).into()));
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", "1.2.3.4, 192.0.2.7, 10.0.0.9".parse().expect("a value"));
    /// assert_eq!(behind_proxies.find(&headers, &extensions), Some([192, 0, 2, 7].into()));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What is neither an address nor a network such as `10.0.0.0/8`.
    pub fn x_forwarded_for<N: AsRef<str>>(proxies: impl IntoIterator<Item = N>) -> Result<Self, Error> {
        Self::header(HeaderName::from_static("x-forwarded-for"), proxies)
    }

    /// `Forwarded` (RFC 7239), from proxies in these networks.
    ///
    /// ```
    /// use tollgate::tower::ClientIp;
    ///
    /// let behind_a_proxy = ClientIp::forwarded(["10.0.0.1", "2001:db8::/32"])?;
    /// assert!(ClientIp::forwarded(["proxy.example"]).is_err());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`x_forwarded_for`](Self::x_forwarded_for).
    pub fn forwarded<N: AsRef<str>>(proxies: impl IntoIterator<Item = N>) -> Result<Self, Error> {
        Ok(Self { is_forwarded: true, ..Self::header(http::header::FORWARDED, proxies)? })
    }

    /// A header of one's own with a list of addresses, or a single one as in `X-Real-IP`, from proxies in these
    /// networks.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tollgate::tower::ClientIp;
    ///
    /// let behind_a_proxy = ClientIp::header(HeaderName::from_static("x-real-ip"), ["10.0.0.1"])?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`x_forwarded_for`](Self::x_forwarded_for).
    pub fn header<N: AsRef<str>>(
        header: HeaderName,
        proxies: impl IntoIterator<Item = N>,
    ) -> Result<Self, Error> {
        let trusted = proxies.into_iter().map(|proxy| network(proxy.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { header: Some(header), trusted, ..Self::default() })
    }

    /// Believes the header of a peer without an address, too: for a service that only listens on a Unix socket.
    ///
    /// ```
    /// use http::{Extensions, HeaderMap};
    /// use tollgate::tower::ClientIp;
    ///
    /// let local = ClientIp::x_forwarded_for(["10.0.0.0/8"])?.trust_unknown_peer();
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", "192.0.2.7".parse().expect("a value"));
    /// assert_eq!(local.find(&headers, &Extensions::new()), Some([192, 0, 2, 7].into()));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn trust_unknown_peer(mut self) -> Self {
        self.trusts_unknown_peer = true;
        self
    }

    /// Where the peer's address is found, for servers that put it somewhere else than as [`PeerAddr`], as
    /// [`SocketAddr`], or (feature `axum`) as axum's `ConnectInfo<SocketAddr>`.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use tollgate::tower::ClientIp;
    ///
    /// #[derive(Clone)]
    /// struct Connection { peer: SocketAddr }
    ///
    /// let client_ip = ClientIp::peer().peer_from(|extensions| {
    ///     extensions.get::<Connection>().map(|connection| connection.peer)
    /// });
    /// let mut extensions = http::Extensions::new();
    /// extensions.insert(Connection { peer: ([192, 0, 2, 7], 4711).into() });
    /// assert_eq!(client_ip.find(&http::HeaderMap::new(), &extensions), Some([192, 0, 2, 7].into()));
    /// ```
    #[must_use]
    pub fn peer_from(
        mut self,
        find: impl Fn(&Extensions) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        self.find_peer = Some(Arc::new(find));
        self
    }

    /// The client's address, IPv4 in IPv6 as IPv4; `None` if nobody knows.
    ///
    /// ```
    /// use http::{Extensions, HeaderMap};
    /// use tollgate::tower::ClientIp;
    /// assert_eq!(ClientIp::peer().find(&HeaderMap::new(), &Extensions::new()), None);
    /// ```
    #[must_use]
    pub fn find(&self, headers: &HeaderMap, extensions: &Extensions) -> Option<IpAddr> {
        let peer = self.peer_address(extensions).map(|peer| peer.ip().to_canonical());
        let Some(header) = &self.header else { return peer };
        if !peer.map_or(self.trusts_unknown_peer, |peer| self.is_trusted(peer)) {
            return peer;
        }
        let mut client = peer;
        for line in headers.get_all(header).iter().rev() {
            // From the right: what a client puts before cannot reach what a proxy adds behind.
            let found = if self.is_forwarded {
                let hops = unquoted_rsplit(line.as_bytes(), b',');
                self.walk(hops.map(|hop| forwarded_for(hop?)), &mut client)
            } else {
                let hops = line.as_bytes().rsplit(|&byte| byte == b',');
                self.walk(hops.map(|hop| address(std::str::from_utf8(hop).ok()?.trim())), &mut client)
            };
            if found {
                return client;
            }
        }
        client
    }

    /// Goes back from one hop to the next; whether the last that can be known was reached.
    fn walk(&self, hops: impl Iterator<Item = Option<IpAddr>>, client: &mut Option<IpAddr>) -> bool {
        for hop in hops {
            let Some(address) = hop else { return true };
            *client = Some(address);
            if !self.is_trusted(address) {
                return true;
            }
        }
        false
    }

    fn peer_address(&self, extensions: &Extensions) -> Option<SocketAddr> {
        if let Some(found) = self.find_peer.as_ref().and_then(|find| find(extensions)) {
            return Some(found);
        }
        #[cfg(feature = "axum")]
        if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
            return Some(info.0);
        }
        let given = extensions.get::<PeerAddr>().map(|peer| peer.0);
        given.or_else(|| extensions.get::<SocketAddr>().copied())
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

/// Whom an element of `Forwarded` is for.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let node = unquoted_rsplit(element, b';').find_map(|pair| {
        let (name, value) = std::str::from_utf8(pair?).ok()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim())
    })?;
    address(node.strip_prefix('"').and_then(|node| node.strip_suffix('"')).unwrap_or(node))
}

/// The parts between separators that are in no quoted string, from the right; `None`, as the last, for a part whose
/// quotes do not fit.
///
/// A proxy quotes what the client sent, such as a `host`, and that may have separators in it. Read from the right,
/// quotes that a client leaves open before do not turn what the proxy adds inside out.
fn unquoted_rsplit(text: &[u8], separator: u8) -> impl Iterator<Item = Option<&[u8]>> {
    let mut rest = Some(text);
    iter::from_fn(move || {
        let text = rest.take()?;
        let mut is_quoted = false;
        for (at, &byte) in text.iter().enumerate().rev() {
            match byte {
                b'"' if is_quoted => {
                    let backslashes = text[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
                    is_quoted = backslashes % 2 == 1;
                    if !is_quoted && !text[..at].ends_with(b"=") {
                        return Some(None);
                    }
                }
                b'"' if matches!(text.get(at + 1), None | Some(b';' | b',' | b' ' | b'\t')) => {
                    is_quoted = true;
                }
                b'"' => return Some(None),
                _ if byte == separator && !is_quoted => {
                    rest = Some(&text[..at]);
                    return Some(Some(&text[at + 1..]));
                }
                _ => {}
            }
        }
        Some((!is_quoted).then_some(text))
    })
}

/// An address with or without a port: `192.0.2.7`, `192.0.2.7:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let found = bare.parse::<IpAddr>().ok();
    found.or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip())).map(|ip| ip.to_canonical())
}

/// A network of IPv4 addresses in IPv6 as one of IPv4, as which the addresses are looked up.
fn canonical(network: IpNet) -> IpNet {
    let bits = network.prefix_len().checked_sub(96);
    match (network, network.addr().to_canonical(), bits) {
        (IpNet::V6(_), address @ IpAddr::V4(_), Some(bits)) => IpNet::new(address, bits).unwrap_or(network),
        _ => network,
    }
}

fn network(text: &str) -> Result<IpNet, Error> {
    let found = text.parse::<IpNet>().ok();
    found.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(canonical).ok_or_else(|| {
        Error::new(format!(
            "`{text}` is no network: write an address, or one with a prefix such as `10.0.0.0/8`"
        ))
    })
}

impl fmt::Debug for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIp")
            .field("header", &self.header)
            .field("trusted", &self.trusted)
            .finish_non_exhaustive()
    }
}
