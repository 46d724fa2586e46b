//! What the headers say about the connection and the body (RFC 9112 sections 3.2, 6 and 9.3).

use httparse::Header;

use super::request::BodyLength;
use super::{Refusal, target};

/// What the server has to know of a head before it can continue.
#[derive(Debug)]
pub(super) struct Framing {
    pub(super) body: BodyLength,
    pub(super) is_close: bool,
    pub(super) expects_continue: bool,
}

/// Checks the headers of a request for `target`, and returns what they say. `is_http_1_0`: its version, not 1.1.
pub(super) fn of(
    target: &str,
    is_http_1_0: bool,
    headers: &[Header<'_>],
    body_bytes_max: u64,
) -> Result<Framing, Refusal> {
    let (mut host, mut length, mut codings) = (None, None, Codings::default());
    let (mut is_close, mut expects_continue) = (is_http_1_0, false);
    for Header { name, value } in headers {
        if name.eq_ignore_ascii_case("host") {
            if host.replace(*value).is_some() {
                return Err(Refusal::SeveralHosts);
            }
        } else if name.eq_ignore_ascii_case("content-length") {
            if length.replace(*value).is_some() {
                return Err(Refusal::SeveralLengths);
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            value.split(|byte| *byte == b',').for_each(|coding| codings.add(coding.trim_ascii()));
        } else if name.eq_ignore_ascii_case("connection") {
            let mut options = value.split(|byte| *byte == b',');
            is_close |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
        } else if name.eq_ignore_ascii_case("expect") {
            if !value.eq_ignore_ascii_case(b"100-continue") {
                return Err(Refusal::Expectation);
            }
            expects_continue = !is_http_1_0; // RFC 9110 section 10.1.1
        }
    }
    match host {
        Some(host) => check_host(target, host)?,
        None if is_http_1_0 => {}
        None => return Err(Refusal::NoHost),
    }
    let body = match (length, codings.count) {
        (_, 1..) if is_http_1_0 => return Err(Refusal::OldVersionCoding),
        (None, 0) => BodyLength::Exact(0),
        (None, _) => {
            codings.check()?;
            BodyLength::Chunked
        }
        (Some(length), 0) => BodyLength::Exact(content_length(length)?),
        (Some(_), _) => return Err(Refusal::LengthAndCoding),
    };
    match body {
        BodyLength::Exact(bytes) if bytes > body_bytes_max => Err(Refusal::BodyTooLarge),
        BodyLength::Exact(0) => Ok(Framing { body, is_close, expects_continue: false }),
        _ => Ok(Framing { body, is_close, expects_continue }),
    }
}

/// Checks `Host`, and the authority of a target in absolute form.
fn check_host(target: &str, host: &[u8]) -> Result<(), Refusal> {
    if !target::is_host(host) {
        return Err(Refusal::Host);
    }
    match target::authority(target) {
        Some(other) if !other.as_bytes().eq_ignore_ascii_case(host) => Err(Refusal::OtherAuthority),
        _ => Ok(()),
    }
}

/// Parses the value of `Content-Length`: digits only, without a sign, a list or a base. Leading zeros are refused,
/// because some programs take them for a sign of octal digits.
fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    if value.contains(&b',') {
        return Err(Refusal::SeveralLengths);
    }
    let has_leading_zero = value.len() > 1 && value.starts_with(b"0");
    if value.is_empty() || has_leading_zero || !value.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::Length);
    }
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    value.iter().try_fold(0, add).ok_or(Refusal::BodyTooLarge)
}

/// The transfer codings of all headers, which together form one list.
#[derive(Default)]
struct Codings {
    count: usize,
    is_malformed: bool,
    chunked_count: usize,
    is_last_chunked: bool,
}

impl Codings {
    fn add(&mut self, coding: &[u8]) {
        let name = coding.split(|byte| *byte == b';').next().unwrap_or_default();
        let is_chunked = name.trim_ascii().eq_ignore_ascii_case(b"chunked");
        self.count += 1;
        self.chunked_count += usize::from(is_chunked);
        self.is_last_chunked = is_chunked;
        // `chunked` has no parameters (RFC 9112 section 7.1).
        self.is_malformed |= coding.is_empty() || (is_chunked && name.len() < coding.len());
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.is_malformed || self.chunked_count > 1 {
            Err(Refusal::Coding)
        } else if !self.is_last_chunked {
            Err(Refusal::NotChunked)
        } else if self.count > 1 {
            Err(Refusal::UnsupportedCoding)
        } else {
            Ok(())
        }
    }
}
