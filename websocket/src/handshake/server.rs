use std::{error, fmt};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

#[cfg(feature = "deflate")]
use super::head::EXTENSIONS;
use super::head::{
    HeadError, Headers, InvalidHeader, append, append_header, append_headers, is_token,
};
use super::{accept_key, target};
#[cfg(feature = "deflate")]
use crate::deflate::{Agreement, Deflate};

/// The head of an HTTP request. It may or may not ask for an upgrade to WebSocket.
#[derive(Clone, Copy, Debug)]
pub struct Request<'b> {
    method: &'b str,
    target: &'b str,
    /// The path and the query of the target.
    origin_form: &'b str,
    /// Whether it is HTTP/1.1, not 1.0.
    is_http_1_1: bool,
    headers: Headers<'b>,
}

/// A valid request for an upgrade to WebSocket (section 4.2.1).
#[derive(Clone, Copy, Debug)]
pub struct Upgrade<'b> {
    headers: Headers<'b>,
    key: &'b [u8],
    #[cfg(feature = "deflate")]
    deflate: Option<Agreement>,
}

/// The origins from which a browser may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origins<'a> {
    /// All origins. For services that do not authenticate users by cookies.
    Any,
    /// These origins, for example `https://example.com`. Requests without an origin are accepted
    /// too, because clients that are not browsers send none.
    Only(&'a [&'a str]),
}

impl Origins<'_> {
    /// Whether a request with these values of `Origin` is admitted, for a server that checks other requests too.
    pub fn admit(self, sent: impl IntoIterator<Item: AsRef<[u8]>>) -> bool {
        let Self::Only(allowed) = self else { return true };
        let is_allowed = |origin: &[u8]| {
            allowed.iter().any(|allowed| origin.eq_ignore_ascii_case(allowed.as_bytes()))
        };
        // All of them, if there are several, because other programs may look at any of them.
        sent.into_iter().all(|origin| is_allowed(origin.as_ref()))
    }
}

/// Why a request for an upgrade is refused, with the status of the response. Except for the limits
/// on the head, the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The head is longer than the limit, or has more than
    /// [`HEADERS_MAX`](super::HEADERS_MAX) headers: 431.
    HeadTooLarge,
    /// The head is not HTTP/1.x: 400.
    Malformed,
    /// The target does not fit the method (RFC 9112 section 3.2): 400.
    BadTarget,
    /// The head began and did not end within its time: 408.
    Late,
    /// The method is not GET: 405.
    NotGet,
    /// HTTP/1.0: 505.
    OldHttp,
    /// Several `Host` headers, none in HTTP/1.1, or one that is no valid host (RFC 9112 section
    /// 3.2): 400.
    NoHost,
    /// A body is announced, which could not be told from frames: 400.
    Body,
    /// No `Upgrade: websocket` or no `Connection: upgrade`: 426.
    NoUpgrade,
    /// No `Sec-WebSocket-Key`, several, or not 16 bytes in base64: 400.
    BadKey,
    /// `Sec-WebSocket-Version` is not 13: 426. The response names the supported version.
    WrongVersion,
    /// The origin is not one of [`Origins::Only`]: 403.
    ForeignOrigin,
}

impl<'b> Request<'b> {
    /// Decodes the request at the front of `bytes`. Returns it with the length of its head in
    /// bytes, or `None` if more bytes are needed.
    ///
    /// Each call parses the head from its start. `head_bytes_max`, for example 8192, bounds that
    /// work too.
    ///
    /// # Errors
    /// [`Refusal::HeadTooLarge`], [`Refusal::Malformed`], [`Refusal::BadTarget`], [`Refusal::NoHost`].
    pub fn decode(
        bytes: &'b [u8],
        head_bytes_max: usize,
    ) -> Result<Option<(Self, usize)>, Refusal> {
        let read = Headers::parse(bytes, head_bytes_max, |headers| {
            let mut request = httparse::Request::new(headers);
            let head_bytes = request.parse(bytes)?;
            let start = (request.method, request.path, request.version);
            Ok((head_bytes, start))
        });
        match read {
            Ok(Some(((Some(method), Some(target), version), headers, head_bytes))) => {
                let is_http_1_1 = version == Some(1);
                let origin_form = target::origin_form(method, target).ok_or(Refusal::BadTarget)?;
                match headers.values("host").count() {
                    1 if headers.single("host").is_some_and(target::is_authority) => {}
                    0 if !is_http_1_1 => {}
                    _ => return Err(Refusal::NoHost),
                }
                Ok(Some((Self { method, target, origin_form, is_http_1_1, headers }, head_bytes)))
            }
            Ok(None) => Ok(None),
            Ok(Some(_)) | Err(HeadError::Malformed) => Err(Refusal::Malformed),
            Err(HeadError::TooLarge) => Err(Refusal::HeadTooLarge),
        }
    }

    /// A request that an HTTP server has parsed, for example `owned-io-http`. The server must have checked its `Host`.
    ///
    /// # Errors
    /// [`Refusal::HeadTooLarge`] because of the number of headers, [`Refusal::BadTarget`].
    pub fn from_parts(
        method: &'b str,
        target: &'b str,
        is_http_1_1: bool,
        headers: impl IntoIterator<Item = (&'b str, &'b [u8])>,
    ) -> Result<Self, Refusal> {
        let origin_form = target::origin_form(method, target).ok_or(Refusal::BadTarget)?;
        let headers = Headers::collect(headers).ok_or(Refusal::HeadTooLarge)?;
        Ok(Self { method, target, origin_form, is_http_1_1, headers })
    }

    /// The method, for example `GET`.
    pub const fn method(&self) -> &'b str {
        self.method
    }

    /// The target as it was sent: a path, and the query if there is one. It may also begin with
    /// `http://` and a host (RFC 9112 section 3.2.2), be `*` for `OPTIONS`, or a host and a port
    /// for `CONNECT`.
    pub const fn target(&self) -> &'b str {
        self.target
    }

    /// The path of the target, without the query, in whichever form the target was sent.
    pub fn path(&self) -> &'b str {
        target::path(self.origin_form)
    }

    /// The query of the target; empty if there is none.
    pub fn query(&self) -> &'b str {
        self.origin_form.split_once('?').map_or("", |(_, query)| query)
    }

    /// The value of the first header with this name. Case does not matter.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.headers.values(name).next()
    }

    /// All headers, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.headers.iter()
    }

    /// Whether the request has `Upgrade: websocket`. It may be invalid all the same.
    pub fn is_upgrade(&self) -> bool {
        self.headers.has_token("upgrade", "websocket")
    }

    /// Checks the request against section 4.2.1 and the origin.
    ///
    /// # Errors
    /// Each [`Refusal`] except those of [`decode`](Self::decode).
    pub fn upgrade(&self, origins: Origins<'_>) -> Result<Upgrade<'b>, Refusal> {
        let headers = self.headers;
        if self.method != "GET" {
            return Err(Refusal::NotGet);
        }
        if !self.is_http_1_1 {
            return Err(Refusal::OldHttp);
        }
        let has_length = headers.values("content-length").any(|length| length != b"0");
        if has_length || headers.values("transfer-encoding").next().is_some() {
            return Err(Refusal::Body);
        }
        if !self.is_upgrade() || !headers.has_token("connection", "upgrade") {
            return Err(Refusal::NoUpgrade);
        }
        if headers.single("sec-websocket-version") != Some(b"13") {
            return Err(Refusal::WrongVersion);
        }
        let key = headers.single("sec-websocket-key").ok_or(Refusal::BadKey)?;
        if key.len() != 24 || STANDARD.decode_slice(key, &mut [0; 18]) != Ok(16) {
            return Err(Refusal::BadKey);
        }
        if !origins.admit(headers.values("origin")) {
            return Err(Refusal::ForeignOrigin);
        }
        Ok(Upgrade {
            headers,
            key,
            #[cfg(feature = "deflate")]
            deflate: None,
        })
    }
}

impl<'b> Upgrade<'b> {
    /// The subprotocols that the client offers, its preferred one first.
    pub fn protocols(&self) -> impl Iterator<Item = &'b str> {
        let tokens = self.headers.tokens("sec-websocket-protocol");
        tokens.filter_map(|token| std::str::from_utf8(token).ok())
    }

    /// Returns the first of `supported` that the client offers.
    pub fn choose_protocol<'p>(&self, supported: &[&'p str]) -> Option<&'p str> {
        supported.iter().copied().find(|supported| self.protocols().any(|p| p == *supported))
    }

    /// Accepts compression, if the client offers any that `deflate` allows. Takes the first such
    /// offer. Offers with unknown, duplicate or wrong parameters are skipped.
    #[cfg(feature = "deflate")]
    pub fn agree_to_deflate(&mut self, deflate: &Deflate) -> Option<Agreement> {
        self.deflate = deflate.choose(self.headers.values(EXTENSIONS));
        self.deflate
    }

    /// Appends the response that accepts the upgrade, with these additional headers. `protocol`
    /// must be a subprotocol that was offered. Frames follow the response.
    ///
    /// # Errors
    /// A header cannot be sent; nothing is appended.
    pub fn accept(
        &self,
        protocol: Option<&str>,
        headers: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), InvalidHeader> {
        append(out, |out| {
            out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\n");
            append_header(out, "Upgrade", b"websocket")?;
            append_header(out, "Connection", b"Upgrade")?;
            append_header(out, "Sec-WebSocket-Accept", &accept_key(self.key))?;
            if let Some(protocol) = protocol {
                if !is_token(protocol) {
                    return Err(InvalidHeader);
                }
                append_header(out, "Sec-WebSocket-Protocol", protocol.as_bytes())?;
            }
            #[cfg(feature = "deflate")]
            if let Some(deflate) = self.deflate {
                append_header(out, EXTENSIONS, deflate.to_string().as_bytes())?;
            }
            append_headers(out, headers)
        })
    }
}

impl Refusal {
    /// The status of the response.
    pub const fn status(self) -> u16 {
        match self {
            Self::Malformed | Self::BadTarget | Self::NoHost | Self::Body | Self::BadKey => 400,
            Self::ForeignOrigin => 403,
            Self::NotGet => 405,
            Self::Late => 408,
            Self::NoUpgrade | Self::WrongVersion => 426,
            Self::HeadTooLarge => 431,
            Self::OldHttp => 505,
        }
    }

    /// The headers of the response that the status demands.
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NotGet => &[("Allow", "GET")],
            Self::NoUpgrade => &[("Upgrade", "websocket")],
            Self::WrongVersion => &[("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")],
            _ => &[],
        }
    }

    /// Appends the response. Close the connection after it.
    pub fn encode(self, out: &mut Vec<u8>) {
        let sent = respond(self.status(), self.headers(), self.to_string().as_bytes(), out);
        debug_assert_eq!(sent, Ok(()), "these headers can be sent");
    }
}

/// Appends a response with this status, these headers and this body. It is plain text, unless a
/// header is `Content-Type`. The response says that the connection closes, so close it afterwards.
///
/// # Errors
/// A header cannot be sent; nothing is appended.
///
/// # Panics
/// If the status does not have three digits.
pub fn respond(
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), InvalidHeader> {
    assert!((100..1000).contains(&status), "{status} is no status");
    append(out, |out| {
        out.extend_from_slice(format!("HTTP/1.1 {status} {}\r\n", reason(status)).as_bytes());
        append_header(out, "Connection", b"close")?;
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Content-Type")) {
            append_header(out, "Content-Type", b"text/plain")?;
        }
        append_header(out, "Content-Length", body.len().to_string().as_bytes())?;
        append_headers(out, headers)?;
        out.extend_from_slice(body);
        Ok(())
    })
}

/// The reason phrases of statuses that refusals are likely to have. A response may have none.
const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeadTooLarge => "request head is too large",
            Self::Malformed => "request is not http",
            Self::BadTarget => "request target does not fit its method",
            Self::Late => "request head has not arrived in time",
            Self::NotGet => "method is not get",
            Self::OldHttp => "http version is not 1.1",
            Self::NoHost => "request does not name one host",
            Self::Body => "request has a body",
            Self::NoUpgrade => "request asks for no upgrade to websocket",
            Self::BadKey => "sec-websocket-key is not 16 bytes in base64",
            Self::WrongVersion => "sec-websocket-version is not 13",
            Self::ForeignOrigin => "origin is not allowed",
        })
    }
}

impl error::Error for Refusal {}
