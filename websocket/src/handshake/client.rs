use std::{error, fmt};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::accept_key;
use super::head::{
    EXTENSIONS, HeadError, Headers, InvalidHeader, append, append_header, append_headers, is_token,
};
#[cfg(feature = "deflate")]
use crate::deflate::{Agreement, Deflate, ResponseError};

/// A client's request for an upgrade.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    /// The name of the server, with its port unless that is the default of the scheme.
    pub host: &'a str,
    /// The path, with the query if there is one.
    pub path: &'a str,
    /// The subprotocols that the client supports, the preferred one first.
    pub protocols: &'a [&'a str],
    /// Additional headers, for example `Origin` or `Authorization`.
    pub headers: &'a [(&'a str, &'a str)],
    /// The compression to offer, and to use if the server accepts. Default `None`.
    #[cfg(feature = "deflate")]
    pub deflate: Option<Deflate>,
}

/// A client's `Sec-WebSocket-Key`. Each connection needs its own.
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

/// Why a response does not accept the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The head is longer than the limit, or has more than
    /// [`HEADERS_MAX`](super::HEADERS_MAX) headers.
    HeadTooLarge,
    /// The head is not HTTP/1.1.
    Malformed,
    /// The status is not 101. The response says more: it may ask for credentials, or redirect.
    Rejected {
        /// The status.
        status: u16,
    },
    /// No `Upgrade: websocket` or no `Connection: upgrade`.
    NoUpgrade,
    /// `Sec-WebSocket-Accept` does not match the key.
    WrongAccept,
    /// An extension that was not offered.
    UnknownExtension,
    /// The parameters of the compression are not those offered.
    WrongDeflate,
    /// A subprotocol that was not offered, or several.
    UnknownProtocol,
}

impl Default for Offer<'_> {
    /// An offer for path `/` on `localhost`.
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
    /// Returns the same offer without compression.
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
    /// A header that cannot be sent; or a path or subprotocol with characters that would end it.
    /// Nothing is appended.
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
    /// Creates a key from unpredictable bytes (section 4.1, item 7).
    pub fn new(random: [u8; 16]) -> Self {
        let mut key = [0; 24];
        let written = STANDARD.encode_slice(random, &mut key);
        debug_assert_eq!(written, Ok(24), "16 bytes are 24 characters");
        Self(key)
    }
}

impl<'b> Response<'b> {
    /// Decodes the response at the front of `bytes`. Returns it with the length of its head in
    /// bytes, or `None` if more bytes are needed.
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

    /// The status: 101 if the server accepts.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The value of the first header with this name. Case does not matter.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.headers.values(name).next()
    }

    /// All headers, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.headers.iter()
    }

    /// Checks the response against section 4.1. Returns the subprotocol that the server chose from
    /// the offer, if any.
    ///
    /// # Errors
    /// Each [`HandshakeError`] except [`HandshakeError::HeadTooLarge`].
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

    /// Returns the negotiated compression. The response must have been [checked](Self::check).
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

impl fmt::Debug for Offer<'_> {
    /// Prints the names of the headers only: values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        let mut offer = f.debug_struct("Offer");
        offer.field("host", &self.host).field("path", &self.path);
        offer.field("protocols", &self.protocols).field("headers", &names);
        #[cfg(feature = "deflate")]
        offer.field("deflate", &self.deflate);
        offer.finish()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_prints_the_names_of_its_headers_and_not_their_values() {
        let headers = &[("Authorization", "Bearer secret")];
        let printed = format!("{:?}", Offer { headers, ..Offer::default() });
        assert!(!printed.contains("secret"), "{printed}");
        assert!(printed.contains("Authorization"), "{printed}");
    }
}
