//! [`TailRequest`]: what a client asks for, and why it is refused.

use std::rc::Rc;

use owned_io::Clock;
use owned_io_http::Request;
use owned_io_websocket::handshake::Origins;

use super::Tail;
use super::format::{BINARY_PROTOCOL, Format};
use crate::iggy::Status;
use crate::iggy::broker::tail::{TailPlace, TailStart};
use crate::iggy::workers::Iggy;
use crate::service::http::{handshake_request, quoted};
use crate::service::streams::{
    Refusal, admit, failed, identifier, not_there, number, number_or_name,
};

/// A request for a tail whose client has the password.
#[derive(Debug)]
pub(in crate::service) struct TailRequest {
    iggy: Rc<Iggy>,
    place: TailPlace,
    begin: Begin,
    format: Format,
}

/// Where the messages begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    First,
    Next,
    Offset(u64),
}

const PATH: &str = "the path is /tail/STREAM/TOPIC/PARTITION\n";

impl TailRequest {
    /// Whether a path belongs to this service.
    pub(in crate::service) fn has_path(path: &str) -> bool {
        path == "/tail" || path.starts_with("/tail/")
    }

    /// Decodes a request with such a path.
    ///
    /// # Errors
    /// The answer: 400, 401 or 404.
    pub(in crate::service) fn decode(
        request: &Request<'_>,
        iggy: Option<&Rc<Iggy>>,
    ) -> Result<Self, Refusal> {
        let iggy = admit(request, iggy)?;
        let place = place(request.path())?;
        let begin = begin(request.query())?;
        // Another origin is refused later.
        let handshake = handshake_request(request).ok();
        let upgrade = handshake.and_then(|request| request.upgrade(Origins::Any).ok());
        let protocol = upgrade.and_then(|upgrade| upgrade.choose_protocol(&[BINARY_PROTOCOL]));
        let format = if protocol.is_some() { Format::Binary } else { Format::Json };
        Ok(Self { iggy, place, begin, format })
    }

    /// Finds the partition.
    ///
    /// # Errors
    /// The answer: 400, 404, 500 or 503.
    pub(in crate::service) async fn open<C: Clock>(self) -> Result<Tail, Refusal> {
        let Self { iggy, place, begin, format } = self;
        let found = iggy.find_tail::<C>(place.clone()).await;
        let TailStart { epoch, offsets } = found.map_err(|status| not_found(&place, status))?;
        let next = match begin {
            Begin::First => offsets.first,
            Begin::Next => offsets.next,
            Begin::Offset(offset) if offset <= offsets.next => offset,
            Begin::Offset(offset) => {
                let why = format!("from: {offset} is beyond the next offset, {}\n", offsets.next);
                return Err((400, why.into()));
            }
        };
        let is_at_end = next == offsets.next;
        Ok(Tail { iggy, epoch, format, next, is_at_end })
    }
}

impl Tail {
    /// The subprotocol that the client has asked for.
    pub(in crate::service) const fn protocol(&self) -> Option<&'static str> {
        self.format.protocol()
    }
}

fn place(path: &str) -> Result<TailPlace, Refusal> {
    let mut parts = path.strip_prefix("/tail/").unwrap_or_default().split('/');
    let (Some(stream), Some(topic), Some(partition), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err((404, PATH.into()));
    };
    let stream = identifier("stream", stream)?;
    let topic = identifier("topic", topic)?;
    let partition = number(partition).ok_or_else(|| not_there("partition", partition))?;
    Ok(TailPlace { stream, topic, partition })
}

/// The partition that is named so, without escapes.
///
/// # Errors
/// The answer: 404.
pub(in crate::service) fn place_of(
    stream: &str,
    topic: &str,
    partition: u32,
) -> Result<TailPlace, Refusal> {
    let stream = number_or_name(stream).ok_or_else(|| not_there("stream", stream))?;
    let topic = number_or_name(topic).ok_or_else(|| not_there("topic", topic))?;
    Ok(TailPlace { stream, topic, partition })
}

fn begin(query: &str) -> Result<Begin, Refusal> {
    let mut begin = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name != "from" {
            return Err((400, format!("{} is no parameter: from is\n", quoted(name)).into()));
        }
        let parsed = match (value, number(value)) {
            ("first", _) => Begin::First,
            ("next", _) => Begin::Next,
            (_, Some(offset)) => Begin::Offset(offset),
            _ => {
                let why = format!("from: {} is not first, next or an offset\n", quoted(value));
                return Err((400, why.into()));
            }
        };
        if begin.replace(parsed).is_some() {
            return Err((400, "from is given twice\n".into()));
        }
    }
    Ok(begin.unwrap_or(Begin::Next))
}

pub(super) fn not_found(place: &TailPlace, status: Status) -> Refusal {
    match status {
        Status::PartitionNotFound => not_there("partition", &place.partition.to_string()),
        _ => failed(status, &place.stream, &place.topic, "the partition cannot be read\n"),
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::WireIdentifier;

    use super::*;

    fn named(name: &str) -> WireIdentifier {
        WireIdentifier::named(name).unwrap()
    }

    #[test]
    fn a_path_has_names_and_numbers_or_its_bad_part_is_named() {
        let orders = |topic| TailPlace { stream: named("orders"), topic, partition: 3 };
        for (path, expected) in [
            ("/tail/orders/7/3", orders(WireIdentifier::numeric(7))),
            ("/tail/orders/7a/3", orders(named("7a"))),
            ("/tail/%6frders/stra%C3%9Fe%207/3", orders(named("straße 7"))),
            ("/tail/orders/%2537/3", orders(named("%37"))),
            ("/tail/orders/99999999999/3", orders(named("99999999999"))),
        ] {
            assert_eq!(place(path), Ok(expected), "{path}");
        }
        let long = format!("/tail/{}/t/0", "n".repeat(256));
        for (path, culprit) in [
            ("/tail", "/tail/STREAM"),
            ("/tail/", "/tail/STREAM"),
            ("/tail/s/t", "/tail/STREAM"),
            ("/tail/s/t/0/", "/tail/STREAM"),
            ("/tail//t/0", "stream \"\""),
            ("/tail/a%2Fb/t/0", "stream \"a%2Fb\""),
            ("/tail/%/t/0", "stream \"%\""),
            ("/tail/%f/t/0", "stream \"%f\""),
            ("/tail/%+1/t/0", "stream"),
            ("/tail/%ff/t/0", "stream"),
            ("/tail/a%00/t/0", "stream"),
            (&*long, "stream"),
            ("/tail/s//0", "topic \"\""),
            ("/tail/s/t/", "partition \"\""),
            ("/tail/s/t/x", "partition \"x\""),
            ("/tail/s/t/-1", "partition \"-1\""),
            ("/tail/s/t/+1", "partition \"+1\""),
            ("/tail/s/t/4294967296", "partition"),
        ] {
            let (status, body) = place(path).unwrap_err();
            assert!(status == 404 && body.contains(culprit), "{path}: {status} {body}");
        }
    }

    #[test]
    fn a_place_has_names_and_numbers_without_escapes() {
        let place = |stream, topic| TailPlace { stream, topic, partition: 3 };
        let percent = place(named("%37"), WireIdentifier::numeric(7));
        assert_eq!(place_of("%37", "7", 3), Ok(percent));
        assert_eq!(place_of("a b", "ß", 3), Ok(place(named("a b"), named("ß"))));
        for (stream, topic, culprit) in [
            ("", "t", "stream \"\""),
            ("a/b", "t", "stream \"a/b\""),
            ("s", "\0", "topic \"\\0\""),
            ("s", &*"n".repeat(256), "topic"),
        ] {
            let (status, body) = place_of(stream, topic, 3).unwrap_err();
            assert!(status == 404 && body.contains(culprit), "{status} {body}");
        }
    }

    #[test]
    fn a_query_says_where_messages_begin_or_its_bad_parameter_is_named() {
        for (query, expected) in [
            ("", Begin::Next),
            ("from=next", Begin::Next),
            ("from=first", Begin::First),
            ("from=0", Begin::Offset(0)),
            ("&from=18446744073709551615", Begin::Offset(u64::MAX)),
        ] {
            assert_eq!(begin(query), Ok(expected), "{query}");
        }
        for (query, culprit) in [
            ("from", "\"\""),
            ("from=last", "\"last\""),
            ("from=-1", "\"-1\""),
            ("from=18446744073709551616", "18446744073709551616"),
            ("from=1&from=1", "twice"),
            ("from=1&until=2", "\"until\""),
        ] {
            let (status, body) = begin(query).unwrap_err();
            assert!(status == 400 && body.contains(culprit), "{query}: {status} {body}");
        }
    }
}
