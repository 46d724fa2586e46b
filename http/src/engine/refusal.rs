use std::{error, fmt};

/// Why a request is refused.
///
/// Unless its name says that a limit is exceeded or that the server does not support something, the client
/// violates the section that [`section`](Self::section) names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The request line is not a method, a target and a version, with one space between them.
    RequestLine,
    /// The request line is longer than [`request_line_bytes_max`](crate::Limits::request_line_bytes_max).
    RequestLineTooLong,
    /// More than one empty line precedes the request line.
    EmptyLines,
    /// A version of HTTP that this package does not support.
    UnsupportedVersion,
    /// The target has no form that its method allows, or contains characters that no target has.
    Target,
    /// The authority of the target is not the one of `Host`.
    OtherAuthority,
    /// `OPTIONS *` asks about the server as a whole, which this package does not support.
    ServerWide,
    /// `CONNECT` asks for a proxy.
    Connect,
    /// A line ends with LF alone.
    BareLf,
    /// A CR is not followed by LF.
    BareCr,
    /// The name of a header is not a token.
    HeaderName,
    /// A space precedes the colon behind the name of a header.
    SpaceBeforeColon,
    /// A header continues on the next line (obs-fold).
    Folding,
    /// The value of a header contains a control character.
    HeaderValue,
    /// The head has more than [`HEADERS_MAX`](super::HEADERS_MAX) headers.
    TooManyHeaders,
    /// The head is longer than [`head_bytes_max`](crate::Limits::head_bytes_max).
    HeadTooLarge,
    /// There is no `Host`.
    NoHost,
    /// There are several `Host` headers.
    SeveralHosts,
    /// `Host` is not a host with an optional port.
    Host,
    /// `Content-Length` is not a decimal number, or has leading zeros.
    Length,
    /// There are several lengths, even if they are equal.
    SeveralLengths,
    /// There are a `Content-Length` and a `Transfer-Encoding`.
    LengthAndCoding,
    /// The last transfer coding is not `chunked`, so the end of the body is unknown.
    NotChunked,
    /// The list of transfer codings is malformed, or names `chunked` twice or with a parameter.
    Coding,
    /// A transfer coding besides `chunked`, which this package does not support.
    UnsupportedCoding,
    /// A transfer coding in a request of HTTP/1.0, which has none.
    OldVersionCoding,
    /// An expectation other than `100-continue`, which this package does not support.
    Expectation,
    /// The body is longer than [`body_bytes_max`](crate::Limits::body_bytes_max).
    BodyTooLarge,
    /// The size of a chunk is not a hexadecimal number of at most 16 digits.
    ChunkSize,
    /// A chunk extension has no name, or contains a control character.
    ChunkExtension,
    /// The chunk extensions of a body are longer than
    /// [`CHUNK_EXTENSIONS_BYTES_MAX`](super::CHUNK_EXTENSIONS_BYTES_MAX).
    ChunkExtensionsTooLarge,
    /// A chunk is longer than its size says.
    ChunkEnd,
    /// A trailer is not a header.
    Trailer,
    /// The trailers are longer than [`TRAILERS_BYTES_MAX`](super::TRAILERS_BYTES_MAX).
    TrailersTooLarge,
    /// The head took longer than [`head`](crate::Timeouts::head).
    HeadLate,
    /// The body took longer than [`body`](crate::Timeouts::body), or came at a lower rate than
    /// [`body_rate_min`](crate::Timeouts::body_rate_min).
    BodyLate,
}

impl Refusal {
    /// The status of the answer.
    pub const fn status(self) -> u16 {
        self.facts().0
    }

    /// The section that forbids the request, or that describes the answer: for example `RFC 9112 6.3`.
    pub const fn section(self) -> &'static str {
        self.facts().1
    }

    /// The status, the section, and what the client is told.
    const fn facts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::RequestLine => (400, "RFC 9112 3", "the request line is malformed"),
            Self::RequestLineTooLong => (414, "RFC 9112 3", "the request line is too long"),
            Self::EmptyLines => (400, "RFC 9112 2.2", "several empty lines before the request"),
            Self::UnsupportedVersion => {
                (505, "RFC 9110 15.6.6", "this version of http is not supported")
            }
            Self::Target => (400, "RFC 9112 3.2", "the target does not fit the method"),
            Self::OtherAuthority => {
                (400, "RFC 9112 3.2.2", "the target and the host header name different servers")
            }
            Self::ServerWide => (501, "RFC 9112 3.2.4", "options * is not supported"),
            Self::Connect => (501, "RFC 9112 3.2.3", "connect is not supported"),
            Self::BareLf => (400, "RFC 9112 2.2", "a line ends without cr"),
            Self::BareCr => (400, "RFC 9112 2.2", "a cr is not followed by lf"),
            Self::HeaderName => (400, "RFC 9110 5.1", "the name of a header is not a token"),
            Self::SpaceBeforeColon => (400, "RFC 9112 5.1", "a space before the colon of a header"),
            Self::Folding => (400, "RFC 9112 5.2", "a header continues on the next line"),
            Self::HeaderValue => {
                (400, "RFC 9110 5.5", "the value of a header contains a control character")
            }
            Self::TooManyHeaders => (431, "RFC 6585 5", "there are too many headers"),
            Self::HeadTooLarge => (431, "RFC 6585 5", "the head is too large"),
            Self::NoHost => (400, "RFC 9112 3.2", "there is no host header"),
            Self::SeveralHosts => (400, "RFC 9112 3.2", "there are several host headers"),
            Self::Host => (400, "RFC 9112 3.2", "the host header is not a host"),
            Self::Length => (400, "RFC 9112 6.3", "the content-length is not a number"),
            Self::SeveralLengths => (400, "RFC 9112 6.3", "there are several content-lengths"),
            Self::LengthAndCoding => {
                (400, "RFC 9112 6.3", "there are a content-length and a transfer-encoding")
            }
            Self::NotChunked => (400, "RFC 9112 6.3", "the last transfer coding is not chunked"),
            Self::Coding => (400, "RFC 9112 7", "the transfer codings are malformed"),
            Self::UnsupportedCoding => (501, "RFC 9112 6.1", "a transfer coding is not supported"),
            Self::OldVersionCoding => (400, "RFC 9112 6.1", "http/1.0 has no transfer codings"),
            Self::Expectation => (417, "RFC 9110 10.1.1", "an expectation is not supported"),
            Self::BodyTooLarge => (413, "RFC 9110 15.5.14", "the body is too large"),
            Self::ChunkSize => (400, "RFC 9112 7.1", "the size of a chunk is malformed"),
            Self::ChunkExtension => (400, "RFC 9112 7.1.1", "a chunk extension is malformed"),
            Self::ChunkExtensionsTooLarge => {
                (413, "RFC 9112 7.1.1", "the chunk extensions are too large")
            }
            Self::ChunkEnd => (400, "RFC 9112 7.1", "a chunk is longer than its size"),
            Self::Trailer => (400, "RFC 9112 7.1.2", "a trailer is malformed"),
            Self::TrailersTooLarge => (431, "RFC 6585 5", "the trailers are too large"),
            Self::HeadLate => (408, "RFC 9110 15.5.9", "the request has not arrived in time"),
            Self::BodyLate => (408, "RFC 9110 15.5.9", "the body has not arrived in time"),
        }
    }

    /// What the client is told, without a line end.
    pub(crate) const fn text(self) -> &'static str {
        self.facts().2
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl error::Error for Refusal {}
