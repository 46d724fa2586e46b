use std::{error, fmt};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::accept_key;
use super::head::{
    EXTENSIONS, HeadError, Headers, InvalidHeader, append, append_header, append_headers, is_token,
};
#[cfg(feature = "deflate")]
use crate::deflate::{Agreement, Deflate, ResponseError};

/// What a client asks a server for.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The server's name, and its port unless that is the scheme's own.
    pub host: &'a str,
    /// The path, and the query if there is one.
    pub path: &'a str,
    /// The subprotocols it can speak, the one it likes best first.
    pub protocols: &'a [&'a str],
    /// Others, `Origin` or `Authorization` for example.
    pub headers: &'a [(&'a str, &'a str)],
    /// Compression, and how messages are compressed if the server agrees. Default none.
    #[cfg(feature = "deflate")]
    pub deflate: Option<Deflate>,
}

/// A client's `Sec-WebSocket-Key`, one for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; 24]);

/// The head of the response to an [`Offer`].
#[derive(Clone, Copy, Debug)]
pub struct Response<'b> {
    status: u16,
    /// Whether it is HTTP/1.1, not 1.0.
    is_http_1_1: bool,
    headers: Headers<'b>,
}

/// Why a response is no agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The head is longer than the limit, or has more than
    /// [`HEADERS_MAX`](super::HEADERS_MAX) headers.
    HeadTooLarge,
    /// The head is not HTTP/1.1.
    Malformed,
    /// The server answers with another status than 101. The response says more: it may ask for
    /// credentials, or point somewhere else.
    Rejected {
        /// The status.
        status: u16,
    },
    /// No `Upgrade: websocket` or no `Connection: upgrade`.
    NoUpgrade,
    /// `Sec-WebSocket-Accept` is not what belongs to the key.
    WrongAccept,
    /// An extension that was not offered.
    UnknownExtension,
    /// Compression in another way than was offered.
    WrongDeflate,
    /// A subprotocol that was not offered, or more than one.
    UnknownProtocol,
}

impl Default for Offer<'_> {
    /// For `localhost`, `/`.
    fn default() -> Self {
        Self {
            host: "localhost",
            path: "/",
            protocols: &[],
            headers: &[],
            #[cfg(feature = "deflate")]
            deflate: None,
        }
    }
}

impl Offer<'_> {
    /// The same without compression.
    #[must_use]
    pub const fn uncompressed(&self) -> Self {
        Self {
            #[cfg(feature = "deflate")]
            deflate: None,
            ..*self
        }
    }

    /// Appends the request.
    ///
    /// # Errors
    /// A header that cannot be sent, or a path or subprotocol with characters that end it; nothing is
    /// appended.
    pub fn encode(&self, key: &Key, out: &mut Vec<u8>) -> Result<(), InvalidHeader> {
        let in_path = |byte: u8| byte.is_ascii_graphic();
        if !self.path.starts_with('/') || !self.path.bytes().all(in_path) {
            return Err(InvalidHeader);
        }
        if !self.protocols.iter().all(|protocol| is_token(protocol)) {
            return Err(InvalidHeader);
        }
        append(out, |out| {
            for part in [b"GET ", self.path.as_bytes(), b" HTTP/1.1\r\n"] {
                out.extend_from_slice(part);
            }
            append_header(out, "Host", self.host.as_bytes())?;
            append_header(out, "Upgrade", b"websocket")?;
            append_header(out, "Connection", b"Upgrade")?;
            append_header(out, "Sec-WebSocket-Version", b"13")?;
            append_header(out, "Sec-WebSocket-Key", &key.0)?;
            if !self.protocols.is_empty() {
                let protocols = self.protocols.join(", ");
                append_header(out, "Sec-WebSocket-Protocol", protocols.as_bytes())?;
            }
            #[cfg(feature = "deflate")]
            if let Some(deflate) = &self.deflate {
                append_header(out, EXTENSIONS, deflate.offer().as_bytes())?;
            }
            append_headers(out, self.headers)
        })
    }
}

impl Key {
    /// Of bytes that nobody can predict (section 4.1, item 7).
    pub fn new(random: [u8; 16]) -> Self {
        let mut key = [0; 24];
        let written = STANDARD.encode_slice(random, &mut key);
        debug_assert_eq!(written, Ok(24), "16 bytes are 24 characters");
        Self(key)
    }
}

impl<'b> Response<'b> {
    /// The response at the front of `bytes`, and how many bytes its head is long; none if more bytes
    /// are needed.
    ///
    /// # Errors
    /// [`HandshakeError::HeadTooLarge`], [`HandshakeError::Malformed`].
    pub fn decode(
        bytes: &'b [u8],
        head_bytes_max: usize,
    ) -> Result<Option<(Self, usize)>, HandshakeError> {
        let read = Headers::parse(bytes, head_bytes_max, |headers| {
            let mut response = httparse::Response::new(headers);
            let head_bytes = response.parse(bytes)?;
            let start = (response.code, response.version);
            Ok((head_bytes, start))
        });
        match read {
            Ok(Some(((Some(status), version), headers, head_bytes))) => {
                let is_http_1_1 = version == Some(1);
                Ok(Some((Self { status, is_http_1_1, headers }, head_bytes)))
            }
            Ok(None) => Ok(None),
            Ok(Some(_)) | Err(HeadError::Malformed) => Err(HandshakeError::Malformed),
            Err(HeadError::TooLarge) => Err(HandshakeError::HeadTooLarge),
        }
    }

    /// The status: 101 if the server agrees.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The value of the first header with this name, in whichever case.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.headers.values(name).next()
    }

    /// All headers, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.headers.iter()
    }

    /// Checks the response against section 4.1; gives the subprotocol that was agreed on, one of those
    /// of the offer.
    ///
    /// # Errors
    /// Each [`HandshakeError`] but [`HandshakeError::HeadTooLarge`].
    pub fn check<'a>(
        &self,
        offer: &Offer<'a>,
        key: &Key,
    ) -> Result<Option<&'a str>, HandshakeError> {
        let headers = self.headers;
        if self.status != 101 {
            return Err(HandshakeError::Rejected { status: self.status });
        }
        if !self.is_http_1_1 {
            return Err(HandshakeError::Malformed);
        }
        if !headers.has_token("upgrade", "websocket") || !headers.has_token("connection", "upgrade")
        {
            return Err(HandshakeError::NoUpgrade);
        }
        if headers.single("sec-websocket-accept") != Some(&accept_key(&key.0)) {
            return Err(HandshakeError::WrongAccept);
        }
        self.check_extensions(offer)?;
        let mut chosen = headers.values("sec-websocket-protocol");
        let offered = match chosen.next() {
            None => return Ok(None),
            Some(chosen) => offer.protocols.iter().find(|offered| offered.as_bytes() == chosen),
        };
        match (offered, chosen.next()) {
            (Some(protocol), None) => Ok(Some(protocol)),
            _ => Err(HandshakeError::UnknownProtocol),
        }
    }

    /// How messages may be compressed, by a response that was [checked](Self::check).
    #[cfg(feature = "deflate")]
    pub fn deflate(&self, offer: &Offer<'_>) -> Option<Agreement> {
        offer.deflate.and_then(|deflate| deflate.check(self.headers.values(EXTENSIONS)).ok()?)
    }

    fn check_extensions(&self, offer: &Offer<'_>) -> Result<(), HandshakeError> {
        #[cfg(feature = "deflate")]
        if let Some(deflate) = &offer.deflate {
            return match deflate.check(self.headers.values(EXTENSIONS)) {
                Ok(_) => Ok(()),
                Err(ResponseError::Unknown) => Err(HandshakeError::UnknownExtension),
                Err(ResponseError::Parameters) => Err(HandshakeError::WrongDeflate),
            };
        }
        let _ = offer;
        match self.headers.tokens(EXTENSIONS).next() {
            None => Ok(()),
            Some(_) => Err(HandshakeError::UnknownExtension),
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeadTooLarge => "response head is too large",
            Self::Malformed => "response is not http/1.1",
            Self::Rejected { status } => return write!(f, "server rejects with status {status}"),
            Self::NoUpgrade => "response agrees to no upgrade to websocket",
            Self::WrongAccept => "sec-websocket-accept does not belong to the key",
            Self::UnknownExtension => "server chose an extension that was not offered",
            Self::WrongDeflate => "server chose a compression that was not offered",
            Self::UnknownProtocol => "server chose a subprotocol that was not offered",
        })
    }
}

impl error::Error for HandshakeError {}
