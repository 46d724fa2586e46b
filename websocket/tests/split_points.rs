//! Every kind of frame decodes to the same events wherever it is cut.

mod common;

use common::{BINARY, CLOSE, CONTINUATION, FIN, Got, PING, PONG, ROLES, Reader, Role, TEXT};
use common::{frame, message};
use owned_io_websocket::{CloseCode, MessageKind};

/// Lengths of each class, and on both sides of the class boundaries.
const LENGTHS: [usize; 10] = [0, 1, 7, 124, 125, 126, 127, 65_535, 65_536, 70_001];

/// Frames of every kind, each with its event. The close frame is the last.
fn samples(role: Role, len: usize) -> Vec<(Vec<u8>, Got)> {
    let text: String = "a€\u{10348}é".chars().cycle().take(len / 2).collect();
    let text = text.as_bytes();
    let bytes: Vec<u8> = (0..=255).cycle().take(len).collect();
    let third = text.len() / 3;
    let fragments = [
        frame(role, TEXT, &text[..third]),
        frame(role, FIN | PING, b"in between"),
        frame(role, CONTINUATION, &text[third..2 * third]),
        frame(role, CONTINUATION, b""),
        frame(role, FIN | CONTINUATION, &text[2 * third..]),
    ];
    let mut samples = vec![
        (frame(role, FIN | BINARY, &bytes), message(MessageKind::Binary, &bytes)),
        (frame(role, FIN | TEXT, text), message(MessageKind::Text, text)),
        (fragments.concat(), message(MessageKind::Text, text)),
    ];
    if len <= 125 {
        samples.push((frame(role, FIN | PING, &bytes), Got::Ping(bytes.clone())));
        samples.push((frame(role, FIN | PONG, &bytes), Got::Pong(bytes)));
    }
    if len == 7 {
        let close = frame(role, FIN | CLOSE, b"\x03\xE8bye");
        samples.push((close, Got::Close(Some(CloseCode::NORMAL), "bye".into())));
    }
    samples
}

/// Limits with which frames are decoded whole, or in pieces.
const WHOLE_FRAME_BYTES_MAX: [usize; 3] = [14, 1000, 1 << 20];

/// Feeds `parts` and expects `expected`. Before a fragmented message it expects the ping between the fragments.
#[track_caller]
fn check(role: Role, whole: usize, parts: impl IntoIterator<Item: AsRef<[u8]>>, expected: &Got) {
    let mut reader = Reader::whole_up_to(role, whole);
    for part in parts {
        assert_eq!(reader.feed(part.as_ref()), Ok(()));
    }
    let ping = Got::Ping(b"in between".to_vec());
    let got: Vec<_> = reader.got.iter().filter(|got| **got != ping).collect();
    assert!(got == [expected], "{} events in place of one", got.len());
}

#[test]
fn in_two_parts() {
    for (role, len) in ROLES.into_iter().flat_map(|role| LENGTHS.map(|len| (role, len))) {
        for (wire, expected) in samples(role, len) {
            for whole in WHOLE_FRAME_BYTES_MAX {
                // Long frames are cut at every byte of the headers, and at some of the others.
                let all = if wire.len() > 60_000 { 24 } else { wire.len() };
                let step = |at: usize| if at < all || at + 6 > wire.len() { 1 } else { 9_973 };
                let mut cut = 0;
                while cut <= wire.len() {
                    check(role, whole, [&wire[..cut], &wire[cut..]], &expected);
                    cut += step(cut);
                }
            }
        }
    }
}

#[test]
fn in_three_parts() {
    for (role, len) in ROLES.into_iter().flat_map(|role| LENGTHS.map(|len| (role, len))) {
        for (wire, expected) in samples(role, len).into_iter().filter(|(wire, _)| wire.len() < 200)
        {
            for whole in WHOLE_FRAME_BYTES_MAX {
                for end in 0..=wire.len() {
                    for middle in 0..=end {
                        let parts = [&wire[..middle], &wire[middle..end], &wire[end..]];
                        check(role, whole, parts, &expected);
                    }
                }
            }
        }
    }
}

#[test]
fn byte_by_byte() {
    for (role, len) in
        ROLES.into_iter().flat_map(|role| [0, 1, 7, 125, 126, 3000].map(|l| (role, l)))
    {
        for (wire, expected) in samples(role, len) {
            for whole in WHOLE_FRAME_BYTES_MAX {
                check(role, whole, wire.chunks(1), &expected);
            }
        }
    }
}

#[test]
fn all_in_one_buffer_and_in_chunks_of_every_size() {
    for role in ROLES {
        let lengths = [0, 1, 7, 125, 126, 700];
        let mut samples: Vec<_> = lengths.into_iter().flat_map(|len| samples(role, len)).collect();
        samples.sort_by_key(|(_, got)| matches!(got, Got::Close(..))); // the close comes last
        let wire: Vec<u8> = samples.iter().flat_map(|(wire, _)| wire.clone()).collect();
        let expected: Vec<_> = samples.into_iter().map(|(_, got)| got).collect();
        let in_between = Got::Ping(b"in between".to_vec());
        for (whole, size) in
            WHOLE_FRAME_BYTES_MAX.into_iter().flat_map(|w| (1..=wire.len()).map(move |s| (w, s)))
        {
            let mut reader = Reader::whole_up_to(role, whole);
            for chunk in wire.chunks(size) {
                assert_eq!(reader.feed(chunk), Ok(()));
            }
            reader.got.retain(|got| *got != in_between);
            assert!(reader.got == expected, "{role:?}, chunks of {size}");
        }
    }
}
