//! What requests of HTTP about Iggy's streams have in common: who is admitted, and how a path names a stream.

use std::borrow::Cow;
use std::rc::Rc;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use iggy_binary_protocol::WireIdentifier;
use owned_io_http::Request;

use super::http::{ABOUT_TO_END, quoted};
use crate::iggy::workers::Iggy;
use crate::iggy::{Credentials, Name, Status};

/// The status and the body of an answer that refuses a request.
pub(super) type Refusal = (u16, Cow<'static, str>);

/// The streams, if the client has the password for them (RFC 7617).
///
/// # Errors
/// The answer: 401 or 404.
pub(super) fn admit(request: &Request<'_>, iggy: Option<&Rc<Iggy>>) -> Result<Rc<Iggy>, Refusal> {
    let Some(iggy) = iggy else {
        return Err((404, "there are no streams: --iggy-password-file is missing\n".into()));
    };
    if !is_admitted(request.header("authorization"), iggy.credentials()) {
        return Err((401, "this path needs Iggy's user and password\n".into()));
    }
    Ok(Rc::clone(iggy))
}

/// Whether the header of a request has the user and the password.
fn is_admitted(header: Option<&[u8]>, credentials: &Credentials) -> bool {
    let admit = || {
        let (scheme, encoded) = std::str::from_utf8(header?).ok()?.trim().split_once(' ')?;
        let decoded = STANDARD.decode(encoded.trim_start()).ok()?;
        let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
        Some(scheme.eq_ignore_ascii_case("basic") && credentials.admit(user, password))
    };
    admit().unwrap_or(false)
}

/// The stream or the topic that a part of a path names: by a number, or by a name that it can have.
///
/// # Errors
/// The answer: 404. `what` is what the part names.
pub(super) fn identifier(what: &str, part: &str) -> Result<WireIdentifier, Refusal> {
    let decode = || number_or_name(&String::from_utf8(percent_decoded(part)?).ok()?);
    decode().ok_or_else(|| not_there(what, part))
}

/// The stream or the topic that `text` names: by a number, or by a name that it can have.
pub(super) fn number_or_name(text: &str) -> Option<WireIdentifier> {
    match number(text) {
        Some(number) => Some(WireIdentifier::numeric(number)),
        None => WireIdentifier::named(Name::new(text)?.as_str()).ok(),
    }
}

/// A number of digits alone.
pub(super) fn number<N: FromStr>(text: &str) -> Option<N> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Decodes `%XX` (RFC 3986 section 2.1). `None` if it is incomplete.
pub(super) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let ([high, low], after) = rest.split_first_chunk::<2>()?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        decoded.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = after;
    }
    Some(decoded)
}

/// The answer if there is no such thing. `named`: what the path has. It is quoted, so that it breaks no line.
pub(super) fn not_there(what: &str, named: &str) -> Refusal {
    (404, format!("{what} {} is not there\n", quoted(named)).into())
}

/// The answer if there is no such stream or topic.
fn unknown(what: &str, identifier: &WireIdentifier) -> Refusal {
    match identifier {
        WireIdentifier::Numeric(number) => not_there(what, &number.to_string()),
        WireIdentifier::String(name) => not_there(what, name),
    }
}

/// The answer if a request about a topic fails with `status`. `other`: the body if the status tells no more.
pub(super) fn failed(
    status: Status,
    stream: &WireIdentifier,
    topic: &WireIdentifier,
    other: &'static str,
) -> Refusal {
    match status {
        Status::StreamIdNotFound => unknown("stream", stream),
        Status::TopicIdNotFound => unknown("topic", topic),
        Status::TaskTimeout => (503, "the store does not answer, or has no room\n".into()),
        Status::Disconnected => (503, ABOUT_TO_END.into()),
        _ => (500, other.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_basic_with_the_right_credentials_is_admitted() {
        let credentials = Credentials::new("iggy".into(), "a:b é".into()).unwrap();
        let admitted = |header: &str| is_admitted(Some(header.as_bytes()), &credentials);
        let right = STANDARD.encode("iggy:a:b é");
        for scheme in ["Basic ", "basic ", "BASIC   "] {
            assert!(admitted(&format!("{scheme}{right}")));
        }
        assert!(!is_admitted(None, &credentials));
        let wrong = ["iggy:a:b", "iggy:", "iggy", ":a:b é", "", "iggz:a:b é"];
        for encoded in wrong.map(|wrong| STANDARD.encode(wrong)) {
            assert!(!admitted(&format!("Basic {encoded}")), "{encoded}");
        }
        for header in ["", "Basic", "Basic ", "Basic !", &*right, &*format!("Bearer {right}")] {
            assert!(!admitted(header), "{header}");
        }
        assert!(!is_admitted(Some(&[255]), &credentials));
    }
}
