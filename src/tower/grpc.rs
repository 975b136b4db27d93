//! A refusal in gRPC's terms: a response of headers only, with a status that says when to come back.

use super::head::RequestHead;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Version};
use std::time::Duration;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// gRPC's codes that the layer answers with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Code {
    PermissionDenied = 7,
    ResourceExhausted = 8,
}

/// The content type of a gRPC request, which its response has as well. gRPC is always a `POST` over HTTP/2 or later that
/// takes trailers: any other client would take a refusal in these terms for a success.
pub(super) fn content_type<'a>(head: &RequestHead<'a>) -> Option<&'a HeaderValue> {
    let value = head.headers.get(CONTENT_TYPE)?;
    let rest = value.as_bytes().strip_prefix(b"application/grpc")?;
    let is_grpc = matches!(rest.first(), None | Some(b'+' | b';' | b'-'))
        && head.method == Method::POST
        && matches!(head.version, Version::HTTP_2 | Version::HTTP_3)
        && takes_trailers(head.headers);
    is_grpc.then_some(value)
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(TE).iter().flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    codings.into_iter().any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// The response: the message is of printable ASCII without `%`.
pub(super) fn response<B>(
    content_type: &HeaderValue,
    code: Code,
    message: &str,
    retry_after: Option<Duration>,
    body: B,
) -> Response<B> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type.clone());
    headers.insert(STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::from_str(message) {
        headers.insert(MESSAGE, message);
    }
    if let Some(wait) = retry_after {
        if let Ok(details) = HeaderValue::from_str(&base64(&status(code, message, wait))) {
            headers.insert(DETAILS, details);
        }
    }
    response
}

/// A `google.rpc.Status` with a `RetryInfo` as its only detail.
fn status(code: Code, message: &str, wait: Duration) -> Vec<u8> {
    let mut delay = Vec::new();
    write_integer(&mut delay, 1, wait.as_secs());
    write_integer(&mut delay, 2, u64::from(wait.subsec_nanos()));
    let mut retry_info = Vec::new();
    write_bytes(&mut retry_info, 1, &delay);
    let mut any = Vec::new();
    write_bytes(&mut any, 1, RETRY_INFO.as_bytes());
    write_bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    write_integer(&mut status, 1, code as u64);
    write_bytes(&mut status, 2, message.as_bytes());
    write_bytes(&mut status, 3, &any);
    status
}

/// A field of the protocol buffers: its number and kind, then its value. Zero is left out.
fn write_integer(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        write_varint(out, field << 3);
        write_varint(out, value);
    }
}

fn write_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    write_varint(out, field << 3 | 2);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    #[allow(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[allow(clippy::cast_possible_truncation, reason = "less than 0x80")]
    out.push(value as u8);
}

/// Without padding, as gRPC asks for.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=chunk.len() {
            let six = bits >> (18 - 6 * digit) & 0x3f;
            out.push(char::from(DIGITS[six as usize]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use http::Request;

    #[test]
    fn base64_as_rfc_4648_has_it() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8");
    }

    #[test]
    fn only_grpc_is_grpc() {
        let is_grpc = |method: &str, version: Version, trailers: &str, content_type: &str| {
            let request = Request::builder().method(method).version(version).header(TE, trailers);
            let request = request.header(CONTENT_TYPE, content_type).body(()).unwrap();
            let head = RequestHead {
                method: request.method(),
                uri: request.uri(),
                version,
                headers: request.headers(),
                extensions: request.extensions(),
                client_ip: None,
            };
            super::content_type(&head).is_some()
        };
        for yes in ["application/grpc", "application/grpc+proto", "application/grpc;x=1"] {
            assert!(is_grpc("POST", Version::HTTP_2, "trailers", yes), "{yes}");
            assert!(is_grpc("POST", Version::HTTP_3, "gzip;q=0.5, Trailers", yes), "{yes}");
            assert!(!is_grpc("GET", Version::HTTP_2, "trailers", yes), "{yes}");
            assert!(!is_grpc("POST", Version::HTTP_11, "trailers", yes), "{yes}");
            assert!(!is_grpc("POST", Version::HTTP_2, "gzip", yes), "{yes}");
        }
        for no in ["application/json", "application/grpcish", "text/plain; application/grpc", ""] {
            assert!(!is_grpc("POST", Version::HTTP_2, "trailers", no), "{no}");
        }
    }
}
