//! What requests and responses have in common: parsing and writing headers.

use std::{error, fmt};

/// The most headers that a head may have.
pub const HEADERS_MAX: usize = 64;

pub(super) const EXTENSIONS: &str = "Sec-WebSocket-Extensions";

/// The headers of a parsed head.
#[derive(Clone, Copy)]
pub(super) struct Headers<'b> {
    all: [httparse::Header<'b>; HEADERS_MAX],
    len: usize,
}

/// Why a head cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    TooLarge,
    Malformed,
}

/// A header that cannot be sent. Its name is not a token, or its value has control characters,
/// which could make it look like several headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHeader;

impl fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a header has characters that must not be sent")
    }
}

impl error::Error for InvalidHeader {}

impl<'b> Headers<'b> {
    /// Calls `parse` to parse a head into headers. Returns its result, the headers, and the length
    /// of the head in bytes; `None` if the head is incomplete.
    pub(super) fn parse<T>(
        bytes: &'b [u8],
        head_bytes_max: usize,
        parse: impl FnOnce(
            &mut [httparse::Header<'b>; HEADERS_MAX],
        ) -> Result<(httparse::Status<usize>, T), httparse::Error>,
    ) -> Result<Option<(T, Self, usize)>, HeadError> {
        let mut all = [httparse::EMPTY_HEADER; HEADERS_MAX];
        match parse(&mut all) {
            Ok((httparse::Status::Complete(head_bytes), start)) if head_bytes <= head_bytes_max => {
                let len = all.iter().take_while(|header| !header.name.is_empty()).count();
                Ok(Some((start, Self { all, len }, head_bytes)))
            }
            Ok((httparse::Status::Partial, _)) if bytes.len() < head_bytes_max => Ok(None),
            Ok(_) => Err(HeadError::TooLarge),
            Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooLarge),
            Err(_) => Err(HeadError::Malformed),
        }
    }

    /// Headers that were parsed elsewhere. `None` if there are more than [`HEADERS_MAX`].
    pub(super) fn collect(headers: impl IntoIterator<Item = (&'b str, &'b [u8])>) -> Option<Self> {
        let (mut all, mut len) = ([httparse::EMPTY_HEADER; HEADERS_MAX], 0);
        for (name, value) in headers {
            *all.get_mut(len)? = httparse::Header { name, value };
            len += 1;
        }
        Some(Self { all, len })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.all[..self.len].iter().map(|header| (header.name, header.value))
    }

    /// The values of all headers with this name.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The value of the header with this name, if there is exactly one.
    pub(super) fn single(&self, name: &str) -> Option<&'b [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The tokens in all headers with this name, which together form one list.
    pub(super) fn tokens(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.values(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|token| !token.is_empty())
    }

    pub(super) fn has_token(&self, name: &str, token: &str) -> bool {
        self.tokens(name).any(|found| found.eq_ignore_ascii_case(token.as_bytes()))
    }
}

impl fmt::Debug for Headers<'_> {
    /// Prints the names only: values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Appends what `write` writes, or nothing if it fails.
pub(super) fn append(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), InvalidHeader>,
) -> Result<(), InvalidHeader> {
    let start = out.len();
    write(out).inspect_err(|_| out.truncate(start))
}

/// Appends headers, and the empty line that ends a head.
pub(super) fn append_headers(
    out: &mut Vec<u8>,
    headers: &[(&str, &str)],
) -> Result<(), InvalidHeader> {
    for (name, value) in headers {
        append_header(out, name, value.as_bytes())?;
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

pub(super) fn append_header(
    out: &mut Vec<u8>,
    name: &str,
    value: &[u8],
) -> Result<(), InvalidHeader> {
    if !is_token(name) || value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(InvalidHeader);
    }
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
    Ok(())
}

/// Whether `token` is a token (RFC 9110 section 5.6.2).
pub(super) fn is_token(token: &str) -> bool {
    let in_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !token.is_empty() && token.bytes().all(in_token)
}
