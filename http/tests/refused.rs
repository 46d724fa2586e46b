//! The rows of the table in the documentation: requests that are refused, and others that are not.

mod common;

use common::decode_any;
use owned_io_http::engine::{Date, Encoder};
use owned_io_http::{Limits, Refusal};

/// A row of the table.
struct Row {
    request: Vec<u8>,
    text: &'static str,
    /// The statuses of all answers.
    answers: &'static str,
    /// None if the engine does not refuse the request.
    refusal: Option<&'static str>,
    section: &'static str,
}

fn rows() -> Vec<Row> {
    let lines = include_str!("../requests.md").lines().filter(|line| line.starts_with("| `"));
    let rows = lines.map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        // The answer of nginx is for `interop/run`.
        let [text, answers, _nginx, refusal, section] = cells[..] else { panic!("no row: {line}") };
        let text = text.trim_matches('`');
        let refusal = refusal.strip_prefix('`').and_then(|name| name.strip_suffix('`'));
        Row { request: unescape(text), text, answers, refusal, section }
    });
    rows.collect()
}

/// Replaces `\r`, `\n`, `\t`, `\0`, `\xNN`, and `{TEXT*N}` by TEXT, N times.
fn unescape(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\\' => match &rest[1..2] {
                "x" => {
                    out.push(u8::from_str_radix(&rest[2..4], 16).unwrap());
                    4
                }
                escape => {
                    let known = [("r", b'\r'), ("n", b'\n'), ("t", b'\t'), ("0", 0)];
                    out.push(known.iter().find(|(name, _)| *name == escape).unwrap().1);
                    2
                }
            },
            '{' => {
                let end = rest.find('}').unwrap();
                let (repeated, times) = rest[1..end].rsplit_once('*').unwrap();
                out.extend(unescape(repeated).repeat(times.parse().unwrap()));
                end + 1
            }
            _ => {
                out.push(u8::try_from(first).unwrap());
                1
            }
        };
        rest = &rest[length..];
    }
    out
}

#[test]
fn every_row_is_refused_or_not_as_the_table_says_however_its_bytes_arrive() {
    let rows = rows();
    let refused = rows.iter().filter(|row| row.refusal.is_some()).count();
    assert!(refused >= 80, "{refused} of {} rows", rows.len());
    for Row { request, text, answers, refusal, section } in rows {
        let outcome = decode_any(&request, &Limits::default());
        let Some(refusal) = refusal else {
            assert_eq!(outcome.refusal, None, "{text}");
            continue;
        };
        let Some(found) = outcome.refusal else { panic!("accepted: {text}\n{outcome:?}") };
        // Those before the last one are the answers of the server to requests that are not refused.
        let (before, status) = answers.rsplit_once(' ').unwrap_or(("", answers));
        assert_eq!(outcome.requests.len(), before.split_ascii_whitespace().count(), "{text}");
        let found = (format!("{found:?}"), found.status().to_string(), found.section());
        assert_eq!(found, (refusal.to_owned(), status.to_owned(), section), "{text}");
    }
}

/// A refusal that no row shows would be a rule without a test. The two that are missing depend on time.
#[test]
fn the_table_shows_every_refusal_that_depends_on_bytes() {
    use Refusal::*;
    let shown: Vec<_> = rows().iter().filter_map(|row| row.refusal).collect();
    for refusal in [
        RequestLine,
        RequestLineTooLong,
        EmptyLines,
        UnsupportedVersion,
        Target,
        OtherAuthority,
        ServerWide,
        Connect,
        BareLf,
        BareCr,
        HeaderName,
        SpaceBeforeColon,
        Folding,
        HeaderValue,
        TooManyHeaders,
        HeadTooLarge,
        NoHost,
        SeveralHosts,
        Host,
        Length,
        SeveralLengths,
        LengthAndCoding,
        NotChunked,
        Coding,
        UnsupportedCoding,
        OldVersionCoding,
        Expectation,
        BodyTooLarge,
        ChunkSize,
        ChunkExtension,
        ChunkExtensionsTooLarge,
        ChunkEnd,
        Trailer,
        TrailersTooLarge,
    ] {
        assert!(shown.contains(&&*format!("{refusal:?}")), "{refusal:?}");
    }
}

#[test]
fn a_refusal_is_answered_with_its_status_and_ends_the_connection() {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(None);
    encoder.refuse(Refusal::SeveralLengths, false, &Date::default(), &mut out);
    let expected = "HTTP/1.1 400 Bad Request\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
        Connection: close\r\nContent-Length: 34\r\nContent-Type: text/plain\r\n\r\n\
        there are several content-lengths\n";
    assert_eq!(String::from_utf8(std::mem::take(&mut out)).unwrap(), expected);
    encoder.refuse(Refusal::SeveralLengths, true, &Date::default(), &mut out);
    let expected = expected.strip_suffix("there are several content-lengths\n").unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), expected, "the answer to HEAD has no body");
}
