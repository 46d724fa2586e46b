//! [`EventsRequest`]: where events go, and why a request is refused before its body is read.

use std::rc::Rc;

use iggy_binary_protocol::WirePartitioning;
use iggy_binary_protocol::requests::messages::SendMessagesHeader;
use owned_io_http::{BodyLength, Request};

use super::body::{EventDecoder, Format, TooMuch, has_room_for};
use crate::config::{AllowedOrigins, Limits};
use crate::iggy::workers::Iggy;
use crate::service::http::quoted;
use crate::service::streams::{Refusal, admit, identifier, number, percent_decoded};

/// A request to append events, whose client has the password.
#[derive(Debug)]
pub(in crate::service) struct EventsRequest {
    pub(super) iggy: Rc<Iggy>,
    /// Without the number of messages.
    pub(super) to: SendMessagesHeader,
    format: Format,
    /// The length of the body, if it is known.
    length: Option<usize>,
    /// The most bytes of a batch.
    bytes_max: usize,
}

/// The media types of a body with an event in each line. In other bodies, line ends are a part of the event.
pub const LINES_TYPES: [&str; 3] =
    ["application/x-ndjson", "application/ndjson", "application/jsonl"];

const PATH: &str = "the path is /events/STREAM/TOPIC\n";

/// The answer to a body without events.
pub(super) const EMPTY: &str = "there is no event in the body\n";

impl EventsRequest {
    /// Whether a path belongs to this service.
    pub(in crate::service) fn has_path(path: &str) -> bool {
        path == "/events" || path.starts_with("/events/")
    }

    /// Decodes a request with such a path.
    ///
    /// # Errors
    /// The answer: 400, 401, 403, 404, 405, 413 or 415.
    pub(in crate::service) fn decode(
        request: &Request<'_>,
        iggy: Option<&Rc<Iggy>>,
        origins: &AllowedOrigins,
        limits: Limits,
    ) -> Result<Self, Refusal> {
        if request.method() != "POST" {
            return Err((405, "only POST is allowed\n".into()));
        }
        // Before the password: a browser asks its user for that.
        if !origins.with(|origins| origins.admit(request.values("origin"))) {
            return Err((403, "pages of this origin may not send events\n".into()));
        }
        let iggy = admit(request, iggy)?;
        let to = destination(request.path(), request.query())?;
        let format = format(request)?;
        let bytes_max = limits.message_bytes_max;
        let length = match request.body() {
            BodyLength::Exact(0) => return Err((400, EMPTY.into())),
            BodyLength::Exact(bytes) => Some(usize::try_from(bytes).unwrap_or(usize::MAX)),
            BodyLength::Chunked => None,
        };
        if format == Format::Whole && length.is_some_and(|bytes| !has_room_for(bytes, bytes_max)) {
            return Err(TooMuch::Bytes.refusal(bytes_max));
        }
        Ok(Self { iggy, to, format, length, bytes_max })
    }

    /// A decoder for the body. `now`: in µs since 1970.
    pub(super) fn decoder(&self, now: u64) -> EventDecoder {
        EventDecoder::new(self.format, self.length, self.bytes_max, now)
    }

    /// The answer to a body that has too much.
    pub(super) fn too_much(&self, what: TooMuch) -> Refusal {
        what.refusal(self.bytes_max)
    }
}

fn destination(path: &str, query: &str) -> Result<SendMessagesHeader, Refusal> {
    let mut parts = path.strip_prefix("/events/").unwrap_or_default().split('/');
    let (Some(stream), Some(topic), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err((404, PATH.into()));
    };
    Ok(SendMessagesHeader {
        stream_id: identifier("stream", stream)?,
        topic_id: identifier("topic", topic)?,
        partitioning: partitioning(query)?,
        messages_count: 0,
    })
}

/// Each way of Iggy to choose the partition of a batch.
fn partitioning(query: &str) -> Result<WirePartitioning, Refusal> {
    let mut chosen = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let one = match name {
            "partition" => number(value).map(WirePartitioning::PartitionId).ok_or_else(|| {
                format!("partition: {} is not the number of a partition\n", quoted(value))
            }),
            "key" => percent_decoded(value)
                .and_then(|key| WirePartitioning::messages_key(key).ok())
                .ok_or_else(|| format!("key: {} is not 1 to 255 bytes\n", quoted(value))),
            _ => Err(format!("{} is no parameter: partition and key are\n", quoted(name))),
        };
        let one = one.map_err(|why| (400, why.into()))?;
        if chosen.replace(one).is_some() {
            return Err((400, "partition or key is given once\n".into()));
        }
    }
    Ok(chosen.unwrap_or(WirePartitioning::Balanced))
}

/// What the events of a body are.
fn format(request: &Request<'_>) -> Result<Format, Refusal> {
    // What it is encoded in would be lost.
    let is_identity = |coding: &[u8]| coding.eq_ignore_ascii_case(b"identity");
    if !request.values("content-encoding").all(is_identity) {
        return Err((
            415,
            "a Content-Encoding is not decoded: send the events as they are\n".into(),
        ));
    }
    let mut types = request.values("content-type");
    let (first, None) = (types.next(), types.next()) else {
        return Err((400, "Content-Type is given twice\n".into()));
    };
    let media_type = first.unwrap_or_default().split(|byte| *byte == b';').next();
    let media_type = media_type.unwrap_or_default().trim_ascii();
    let is_lines = |name: &str| media_type.eq_ignore_ascii_case(name.as_bytes());
    Ok(if LINES_TYPES.into_iter().any(is_lines) { Format::Lines } else { Format::Whole })
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::WireIdentifier;
    use owned_io_http::engine::Decoder;

    use super::*;

    fn named(name: &str) -> WireIdentifier {
        WireIdentifier::named(name).unwrap()
    }

    #[test]
    fn a_path_has_names_and_numbers_or_its_bad_part_is_named() {
        for (path, stream, topic) in [
            ("/events/orders/7", named("orders"), WireIdentifier::numeric(7)),
            ("/events/%6frders/stra%C3%9Fe%207", named("orders"), named("straße 7")),
            ("/events/0/%2537", WireIdentifier::numeric(0), named("%37")),
        ] {
            let to = destination(path, "").unwrap();
            assert_eq!((to.stream_id, to.topic_id), (stream, topic), "{path}");
            assert_eq!(to.partitioning, WirePartitioning::Balanced);
        }
        for (path, culprit) in [
            ("/events", "/events/STREAM/TOPIC"),
            ("/events/", "/events/STREAM/TOPIC"),
            ("/events/s", "/events/STREAM/TOPIC"),
            ("/events/s/t/", "/events/STREAM/TOPIC"),
            ("/events/s/t/0", "/events/STREAM/TOPIC"),
            ("/events//t", "stream \"\""),
            ("/events/s/", "topic \"\""),
            ("/events/a%2Fb/t", "stream \"a%2Fb\""),
            ("/events/s/%", "topic \"%\""),
            ("/events/s/%ff", "topic"),
        ] {
            let (status, body) = destination(path, "").unwrap_err();
            assert!(status == 404 && body.contains(culprit), "{path}: {status} {body}");
        }
    }

    #[test]
    fn a_query_chooses_the_partition_as_iggy_does_or_its_bad_parameter_is_named() {
        let key = |key: &[u8]| WirePartitioning::MessagesKey(key.to_vec());
        let longest = "k".repeat(255);
        for (query, expected) in [
            ("", WirePartitioning::Balanced),
            ("&", WirePartitioning::Balanced),
            ("partition=0", WirePartitioning::PartitionId(0)),
            ("partition=4294967295", WirePartitioning::PartitionId(u32::MAX)),
            ("key=user-7", key(b"user-7")),
            ("key=a%20b+c%ff%00", key(b"a b+c\xff\0")),
            ("key=a=b", key(b"a=b")),
            (&*format!("key={longest}"), key(longest.as_bytes())),
        ] {
            assert_eq!(partitioning(query), Ok(expected), "{query}");
        }
        for (query, culprit) in [
            ("partition", "\"\""),
            ("partition=-1", "\"-1\""),
            ("partition=+1", "\"+1\""),
            ("partition=4294967296", "4294967296"),
            ("key=", "\"\""),
            ("key=%f", "\"%f\""),
            (&*format!("key={longest}k"), "255 bytes"),
            ("partition=1&key=a", "once"),
            ("key=a&key=a", "once"),
            ("balanced", "\"balanced\""),
            ("Partition=1", "\"Partition\""),
        ] {
            let (status, body) = partitioning(query).unwrap_err();
            assert!(status == 400 && body.contains(culprit), "{query}: {status} {body}");
            assert!(body.len() < 128, "{body}");
        }
    }

    #[test]
    fn the_media_type_says_whether_lines_are_events() {
        let format = |headers: &str| {
            let head = format!("POST /events/s/t HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
            let mut decoder = Decoder::new(&owned_io_http::Limits::default());
            assert_eq!(decoder.decode_head(head.as_bytes()), Ok(Some(head.len())));
            format(&decoder.request(head.as_bytes()))
        };
        for (headers, expected) in [
            ("", Format::Whole),
            ("Content-Type: application/json\r\n", Format::Whole),
            ("Content-Type: text/plain; charset=utf-8\r\n", Format::Whole),
            ("Content-Type: application/x-ndjson\r\n", Format::Lines),
            ("content-type: Application/X-NDJSON ; charset=utf-8\r\n", Format::Lines),
            ("Content-Type: application/ndjson\r\nContent-Encoding: identity\r\n", Format::Lines),
            ("Content-Type: application/jsonl\r\n", Format::Lines),
            ("Content-Type: application/x-ndjson-seq\r\n", Format::Whole),
        ] {
            assert_eq!(format(headers), Ok(expected), "{headers}");
        }
        for (headers, expected) in [
            ("Content-Type: text/plain\r\nContent-Type: text/plain\r\n", 400),
            ("Content-Encoding: gzip\r\n", 415),
            ("Content-Encoding: identity\r\nContent-Encoding: br\r\n", 415),
        ] {
            assert_eq!(format(headers).unwrap_err().0, expected, "{headers}");
        }
    }
}
