//! The engine against RFC 6455: violations, limits, closing, answers and timers.

mod common;

use std::time::{Duration, Instant};

use common::{BINARY, CLOSE, CONTINUATION, FIN, Got, PING, PONG, ROLES, Reader, Role, TEXT};
use common::{engine, frame, message};
use owned_io_websocket::engine::{Engine, Event, State};
use owned_io_websocket::{
    CloseCode, CloseFrame, Config, Fragment, Limit, MessageKind, Misuse, ProtocolError, Timeout,
    Violation, compressed_bytes_max,
};

const SECOND: Duration = Duration::from_secs(1);
const NORMAL: CloseFrame<'_> = CloseFrame { code: Some(CloseCode::NORMAL), reason: "" };

fn small() -> Config {
    let mut config = Config::default();
    config.engine.frame_bytes_max = 1000;
    config.engine.message_bytes_max = 1500;
    config
}

/// The control frames that the engine has to send, unmasked.
fn sent(engine: &mut Engine) -> Vec<Got> {
    let mut wire = Vec::new();
    engine.sender.poll_control(&engine.control, &mut wire);
    // The client's frames are masked, the server's are not.
    let role = if wire.get(1).is_some_and(|second| second & 0x80 != 0) {
        Role::Server
    } else {
        Role::Client
    };
    let mut peer = Reader::new(role, Config::default());
    assert_eq!(peer.feed(&wire), Ok(()));
    peer.got
}

#[test]
fn every_violation_has_its_error_and_its_close_code() {
    use Violation as V;
    const PROTOCOL: CloseCode = CloseCode::PROTOCOL_ERROR;
    const DATA: CloseCode = CloseCode::INVALID_DATA;
    type Frames = &'static [(u8, &'static [u8])];
    let cases: &[(Frames, Violation, CloseCode)] = &[
        (&[(FIN | 0x40 | TEXT, b"")], V::ReservedBits, PROTOCOL),
        (&[(FIN | 0x20 | BINARY, b"")], V::ReservedBits, PROTOCOL),
        (&[(FIN | 0x10 | PING, b"")], V::ReservedBits, PROTOCOL),
        (&[(FIN | 0x3, b"")], V::ReservedOpcode, PROTOCOL),
        (&[(FIN | 0x7, b"")], V::ReservedOpcode, PROTOCOL),
        (&[(FIN | 0xB, b"")], V::ReservedOpcode, PROTOCOL),
        (&[(FIN | 0xF, b"")], V::ReservedOpcode, PROTOCOL),
        (&[(PING, b"")], V::FragmentedControlFrame, PROTOCOL),
        (&[(PONG, b"")], V::FragmentedControlFrame, PROTOCOL),
        (&[(CLOSE, b"")], V::FragmentedControlFrame, PROTOCOL),
        (&[(FIN | PING, &[0; 126])], V::LongControlFrame, PROTOCOL),
        (&[(FIN | CLOSE, &[0; 65_536])], V::LongControlFrame, PROTOCOL),
        (&[(FIN | CONTINUATION, b"a")], V::ContinuationWithoutStart, PROTOCOL),
        (&[(CONTINUATION, b"a")], V::ContinuationWithoutStart, PROTOCOL),
        (&[(FIN | TEXT, b"a"), (FIN | CONTINUATION, b"a")], V::ContinuationWithoutStart, PROTOCOL),
        (&[(TEXT, b"a"), (FIN | TEXT, b"a")], V::MessageWithinMessage, PROTOCOL),
        (&[(BINARY, b"a"), (FIN | PING, b""), (TEXT, b"a")], V::MessageWithinMessage, PROTOCOL),
        (&[(FIN | TEXT, b"\xFF")], V::TextNotUtf8, DATA),
        (&[(FIN | TEXT, b"cut off \xE2\x82")], V::TextNotUtf8, DATA),
        (&[(FIN | TEXT, b"surrogate \xED\xA0\x80")], V::TextNotUtf8, DATA),
        (&[(TEXT, b"\xE2"), (FIN | CONTINUATION, b"\x82")], V::TextNotUtf8, DATA),
        (&[(TEXT, b"\xE2"), (CONTINUATION, b"a")], V::TextNotUtf8, DATA),
        (&[(TEXT, b"\xE2"), (FIN | CONTINUATION, b"")], V::TextNotUtf8, DATA),
        (&[(FIN | CLOSE, b"\x03")], V::TruncatedCloseCode, PROTOCOL),
        (&[(FIN | CLOSE, b"\0\0")], V::ReservedCloseCode, PROTOCOL),
        (&[(FIN | CLOSE, b"\x03\xE7")], V::ReservedCloseCode, PROTOCOL), // 999
        (&[(FIN | CLOSE, b"\x03\xEC")], V::ReservedCloseCode, PROTOCOL), // 1004
        (&[(FIN | CLOSE, b"\x03\xED")], V::ReservedCloseCode, PROTOCOL), // 1005
        (&[(FIN | CLOSE, b"\x03\xEE")], V::ReservedCloseCode, PROTOCOL), // 1006
        (&[(FIN | CLOSE, b"\x03\xF7")], V::ReservedCloseCode, PROTOCOL), // 1015
        (&[(FIN | CLOSE, b"\x07\xD0")], V::ReservedCloseCode, PROTOCOL), // 2000
        (&[(FIN | CLOSE, b"\x13\x88")], V::ReservedCloseCode, PROTOCOL), // 5000
        (&[(FIN | CLOSE, b"\x03\xE8\xFF")], V::CloseReasonNotUtf8, DATA),
    ];
    for role in ROLES {
        for (frames, violation, code) in cases {
            let wire = frames.iter().map(|(first, payload)| frame(role, *first, payload));
            fails_with(
                role,
                &wire.collect::<Vec<_>>().concat(),
                ProtocolError::Peer(*violation),
                *code,
            );
        }
        let (peer_of_other, violation) = match role {
            Role::Server => (Role::Client, V::NotMasked),
            Role::Client => (Role::Server, V::Masked),
        };
        for first in [FIN | TEXT, BINARY, FIN | PING, FIN | CLOSE] {
            let wire = frame(peer_of_other, first, b"");
            fails_with(role, &wire, ProtocolError::Peer(violation), PROTOCOL);
        }
        let mask_bit = frame(role, FIN, b"")[1];
        for long in [
            &[FIN | TEXT, mask_bit | 126, 0, 125][..],
            &[FIN | BINARY, mask_bit | 127, 0, 0, 0, 0, 0, 0, 255, 255],
        ] {
            fails_with(role, long, ProtocolError::Peer(V::LengthNotMinimal), PROTOCOL);
        }
    }
}

/// Feeds `wire` as a whole and byte by byte. Both fail, stay failed, and send nothing but the close code.
#[track_caller]
fn fails_with(role: Role, wire: &[u8], error: ProtocolError, code: CloseCode) {
    for size in [wire.len(), 1] {
        let mut reader = Reader::new(role, small());
        let result = wire.chunks(size).try_for_each(|chunk| reader.feed(chunk));
        assert_eq!(result, Err(error), "{wire:x?}");
        assert_eq!(reader.feed(&frame(role, FIN | TEXT, b"more")), Err(error));
        let Reader { mut engine, .. } = reader;
        assert_eq!(
            (engine.control.failure(), engine.control.state()),
            (Some(error), State::Closing)
        );
        let refused = engine.sender.encode(
            &engine.control,
            Fragment::Whole(MessageKind::Text),
            b"",
            &mut Vec::new(),
        );
        assert_eq!(refused, Err(ProtocolError::Misuse(Misuse::SentAfterClose)));
        let sent = sent(&mut engine);
        assert_eq!(sent.last(), Some(&Got::Close(Some(code), String::new())));
        assert_eq!(
            (engine.control.state(), engine.control.poll_timeout().is_some()),
            (State::Closed, true)
        );
        assert_eq!(engine.control.handle_end(), Err(error));
    }
}

/// Section 8.1, and Autobahn 6.4: text fails at the first invalid byte, not at the end of the frame. The first bytes
/// that arrive of a frame are not validated yet. An error in them is found with the next byte.
#[test]
fn text_fails_at_the_first_invalid_byte() {
    let payload = b"\xCE\xBA\xE1\xBD\xB9\xCF\x83\xCE\xBC\xCE\xB5\xF4\x90\x80\x80edited";
    let bad = 12;
    for (role, whole_frame_bytes_max) in
        ROLES.into_iter().flat_map(|role| [(role, 4), (role, 1000)])
    {
        let reader = || Reader::whole_up_to(role, whole_frame_bytes_max);
        let mut first = reader();
        let wire = frame(role, FIN | TEXT, payload);
        let bad_at = wire.len() - payload.len() + bad;
        assert_eq!(wire[..bad_at].iter().try_for_each(|byte| first.feed(&[*byte])), Ok(()));
        assert_eq!(first.feed(&wire[bad_at..=bad_at]), Err(Violation::TextNotUtf8.into()));

        for cut in wire.len() - payload.len()..wire.len() {
            let mut reader = reader();
            let mut failed = reader.feed(&wire[..cut]);
            if cut <= bad_at {
                assert_eq!(failed, Ok(()));
                failed = reader.feed(&wire[cut..=bad_at]);
            }
            if failed.is_ok() {
                failed = reader.feed(&wire[cut.max(bad_at + 1)..][..1]);
            }
            assert_eq!(failed, Err(Violation::TextNotUtf8.into()));
        }
    }
}

#[test]
fn limits_hold_before_anything_is_received() {
    let announce = |len: u64| {
        let mut header = vec![FIN | BINARY, 0x80 | 127];
        header.extend_from_slice(&len.to_be_bytes());
        header.extend_from_slice(&common::KEY);
        header
    };
    for got in [1 << 16, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX] {
        let error = ProtocolError::Limit { limit: Limit::Frame, max: 1000, got };
        fails_with(Role::Server, &announce(got), error, CloseCode::TOO_LARGE);

        let mut unlimited = Config::default();
        unlimited.engine.frame_bytes_max = usize::MAX;
        unlimited.engine.message_bytes_max = usize::MAX;
        let result = Reader::new(Role::Server, unlimited).feed(&announce(got));
        assert_eq!(result.is_err(), got > isize::MAX as u64);
    }
    for role in ROLES {
        let error = ProtocolError::Limit { limit: Limit::Frame, max: 1000, got: 1001 };
        fails_with(role, &frame(role, FIN | TEXT, &[b'a'; 1001]), error, CloseCode::TOO_LARGE);
        let fragments =
            [frame(role, TEXT, &[b'a'; 1000]), frame(role, FIN | CONTINUATION, &[b'a'; 501])];
        let error = ProtocolError::Limit { limit: Limit::Message, max: 1500, got: 1501 };
        fails_with(role, &fragments.concat(), error, CloseCode::TOO_LARGE);

        let mut reader = Reader::new(role, small());
        let fragments =
            [frame(role, TEXT, &[b'a'; 1000]), frame(role, FIN | CONTINUATION, &[b'a'; 500])];
        assert_eq!(reader.feed(&fragments.concat()), Ok(()));
        assert_eq!(reader.got, [message(MessageKind::Text, &[b'a'; 1500])]);
    }
}

#[test]
fn a_long_frame_is_announced_before_its_payload_arrives() {
    let Engine { mut receiver, control, .. } = engine(Role::Server, Config::default());
    let mut wire = frame(Role::Server, FIN | BINARY, &[7; 100_000]);
    let header_bytes = wire.len() - 100_000;
    let decoded = receiver.decode(&control, &mut wire[..header_bytes]).unwrap();
    assert_eq!(decoded.consumed, header_bytes);
    let Some(Event::Piece(piece)) = decoded.event else { panic!("{decoded:?}") };
    assert_eq!((piece.first, piece.last, piece.payload.len()), (true, false, 0));
    assert_eq!(piece.frame_bytes_left, 100_000);
    assert_eq!(receiver.decode(&control, &mut []).unwrap().event, None);
}

/// Section 5.5.2 and 5.5.3.
#[test]
fn the_latest_ping_is_answered() {
    for role in ROLES {
        let mut reader = Reader::new(role, Config::default());
        let pings = [frame(role, FIN | PING, b"first"), frame(role, FIN | PING, &[9; 125])];
        assert_eq!(reader.feed(&pings.concat()), Ok(()));
        assert_eq!(sent(&mut reader.engine), [Got::Pong(vec![9; 125])]);
        assert_eq!(sent(&mut reader.engine), []);
        assert_eq!(reader.feed(&frame(role, FIN | PONG, b"unasked")), Ok(()));
        assert_eq!(sent(&mut reader.engine), []);
    }
}

/// Section 5.5.1, 7.1.2, 7.1.3.
#[test]
fn the_peer_closes() {
    for role in ROLES {
        for (payload, code) in [
            (&b""[..], None),
            (b"\x03\xE9away", Some(CloseCode::GOING_AWAY)),
            (b"\x0F\xA0", CloseCode::new(4000)),
        ] {
            let mut reader = Reader::new(role, Config::default());
            let wire = [
                frame(role, FIN | PING, b"last"),
                frame(role, FIN | CLOSE, payload),
                frame(role, FIN | TEXT, b"ignored"),
                vec![0xFF; 9],
            ];
            assert_eq!(reader.feed(&wire.concat()), Ok(()));
            let reason = String::from_utf8_lossy(payload.get(2..).unwrap_or_default()).into_owned();
            assert_eq!(reader.got, [Got::Ping(b"last".to_vec()), Got::Close(code, reason)]);
            let mut engine = reader.engine;
            assert_eq!(engine.control.state(), State::Closing);
            assert_eq!(engine.control.close(NORMAL, Instant::now()), Ok(())); // too late: an answer is queued
            assert_eq!(
                sent(&mut engine),
                [Got::Pong(b"last".to_vec()), Got::Close(code, String::new())]
            );
            assert_eq!(engine.control.state(), State::Closed);
            assert_eq!(engine.control.handle_end(), Ok(()));
            assert_eq!(engine.control.failure(), None);
        }
    }
}

#[test]
fn we_close() {
    for role in ROLES {
        let mut reader = Reader::new(role, Config::default());
        let now = Instant::now();
        let Engine { sender, control, .. } = &mut reader.engine;
        control.ping(b"not after a close").unwrap();
        control.close(CloseFrame { reason: "done", ..NORMAL }, now).unwrap();
        control.close(CloseFrame { code: None, reason: "" }, now).unwrap(); // no effect: the first close counts
        assert_eq!(control.state(), State::Closing);
        let refused =
            sender.encode(control, Fragment::Whole(MessageKind::Binary), b"", &mut Vec::new());
        assert_eq!(refused, Err(Misuse::SentAfterClose.into()));
        assert_eq!(sent(&mut reader.engine), [Got::Close(Some(CloseCode::NORMAL), "done".into())]);
        assert_eq!(reader.engine.control.state(), State::Closing);

        // Messages that the peer sent before our close are still received. Its pings are no longer answered.
        let wire = [frame(role, FIN | TEXT, b"late"), frame(role, FIN | PING, b"")];
        assert_eq!(reader.feed(&wire.concat()), Ok(()));
        assert_eq!(sent(&mut reader.engine), []);
        assert_eq!(reader.feed(&frame(role, FIN | CLOSE, b"\x03\xE8")), Ok(()));
        assert_eq!(reader.got[0], message(MessageKind::Text, b"late"));
        assert_eq!(reader.engine.control.state(), State::Closed);
        assert_eq!(sent(&mut reader.engine), []);
        assert_eq!(reader.engine.control.handle_end(), Ok(()));
    }
}

#[test]
fn the_stream_ends_without_a_close_frame() {
    let ended = Err(ProtocolError::Peer(Violation::EndedWithoutClose));
    let mut engine = engine(Role::Server, Config::default());
    assert_eq!(engine.control.handle_end(), ended);
    assert_eq!((engine.control.state(), sent(&mut engine)), (State::Closed, vec![]));

    let closing = common::engine(Role::Client, Config::default()).control;
    closing.close(NORMAL, Instant::now()).unwrap();
    assert_eq!(closing.handle_end(), ended);
}

#[test]
fn parts_out_of_order_are_misuse() {
    use Fragment::{First, Last, Middle, Whole};
    for role in ROLES {
        let Engine { mut sender, control, .. } = engine(role, Config::default());
        let mut wire = Vec::new();
        let within = Err(Misuse::MessageWithinMessage.into());
        let without = Err(Misuse::ContinuationWithoutStart.into());
        let mut send = |fragment, payload: &str| {
            let before = wire.len();
            let result = sender.encode(&control, fragment, payload.as_bytes(), &mut wire);
            assert!(result.is_ok() || wire.len() == before);
            result
        };
        assert_eq!([send(Middle, "a"), send(Last, "a")], [without; 2]);
        assert_eq!(send(First(MessageKind::Text), "a"), Ok(()));
        assert_eq!(
            [send(Whole(MessageKind::Text), "a"), send(First(MessageKind::Binary), "a")],
            [within; 2]
        );
        assert_eq!(
            [send(Middle, "b"), send(Last, "c"), send(Whole(MessageKind::Text), "d")],
            [Ok(()); 3]
        );
        assert_eq!(send(Last, "a"), without);

        let other = if role == Role::Server { Role::Client } else { Role::Server };
        let mut peer = Reader::new(other, Config::default());
        assert_eq!(peer.feed(&wire), Ok(()));
        assert_eq!(
            peer.got,
            [message(MessageKind::Text, b"abc"), message(MessageKind::Text, b"d")]
        );

        assert_eq!(control.ping(&[0; 126]), Err(Misuse::LongControlFrame.into()));
        let reason = "r".repeat(CloseFrame::REASON_BYTES_MAX + 1);
        let long = CloseFrame { reason: &reason, ..NORMAL };
        assert_eq!(control.close(long, Instant::now()), Err(Misuse::LongControlFrame.into()));
        assert_eq!(control.state(), State::Open);
    }
}

#[test]
fn the_three_functions_that_send_write_the_same_bytes() {
    for (role, len) in
        ROLES.into_iter().flat_map(|role| [0, 1, 125, 126, 65_535, 65_536].map(|len| (role, len)))
    {
        let payload: Vec<u8> = (0..=255).cycle().take(len).collect();
        let fragment = Fragment::Whole(MessageKind::Binary);
        let Engine { mut sender, control, .. } = engine(role, Config::default());
        let mut copied = Vec::new();
        sender.encode(&control, fragment, &payload, &mut copied).unwrap();
        assert_eq!(sender.queued_bytes(), copied.len());

        let mut own = payload.clone();
        let header = sender.encode_in_place(&control, fragment, &mut own).unwrap();
        assert!([&header, &own[..]].concat() == copied);
        assert_eq!(sender.queued_bytes(), 2 * copied.len());

        let header = sender.encode_header(&control, fragment, len);
        match role {
            Role::Server => assert!([&header.unwrap(), &payload[..]].concat() == copied),
            Role::Client => assert_eq!(header.err(), Some(Misuse::NotMasked.into())),
        }
    }
}

#[test]
fn a_full_queue_refuses_messages_until_there_is_room() {
    let mut config = Config::default();
    config.engine.queue_bytes_max = 1000;
    let Engine { mut sender, mut receiver, control } = engine(Role::Server, config);
    let (fragment, mut wire) = (Fragment::Whole(MessageKind::Binary), Vec::new());
    sender.encode(&control, fragment, &[0; 900], &mut wire).unwrap();
    let full = Err(ProtocolError::Limit { limit: Limit::Queue, max: 1000, got: 904 + 100 + 14 });
    assert_eq!(sender.encode(&control, fragment, &[0; 100], &mut wire), full);
    assert_eq!(wire.len(), 904);

    receiver.decode(&control, &mut frame(Role::Server, FIN | PING, b"waits")).unwrap();
    assert!(!sender.poll_control(&control, &mut wire));
    sender.handle_written(&control, 904, Instant::now());
    assert!(sender.poll_control(&control, &mut wire));
    assert_eq!(sender.encode(&control, fragment, &[0; 100], &mut wire), Ok(()));
}

#[test]
fn masking_keys_are_used_once() {
    let start = Instant::now();
    let counted = |keys: &mut [u8]| {
        for (at, byte) in keys.iter_mut().enumerate() {
            *byte = at as u8;
        }
    };
    let Engine { mut sender, control, .. } = Engine::client(Config::default(), start, counted);
    let mut wire = Vec::new();
    for _ in 0..32 {
        sender.encode(&control, Fragment::Whole(MessageKind::Text), b"", &mut wire).unwrap();
    }
    let mut keys: Vec<_> = wire.chunks(6).map(|frame| &frame[2..]).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 32);
}

#[test]
fn a_silent_peer_is_pinged_and_then_fails() {
    let mut config = Config::default();
    config.stream.ping_interval = Some(30 * SECOND);
    config.stream.pong_timeout = 20 * SECOND;
    config.stream.close_timeout = 5 * SECOND;
    let start = Instant::now();
    let mut engine = Engine::server(config, start);
    assert_eq!(engine.control.poll_timeout(), Some(start + 30 * SECOND));
    engine.control.handle_received(start + SECOND);
    assert_eq!(engine.control.handle_timeout(start + 30 * SECOND), Ok(())); // the bytes at 1 s moved the deadline
    assert_eq!(
        (sent(&mut engine), engine.control.poll_timeout()),
        (vec![], Some(start + 31 * SECOND))
    );

    assert_eq!(engine.control.handle_timeout(start + 31 * SECOND), Ok(()));
    assert_eq!(sent(&mut engine), [Got::Ping(vec![])]);
    assert_eq!(engine.control.poll_timeout(), Some(start + 51 * SECOND));
    engine.control.handle_received(start + 50 * SECOND); // any bytes count, not only a pong
    assert_eq!(engine.control.poll_timeout(), Some(start + 80 * SECOND));

    assert_eq!(engine.control.handle_timeout(start + 80 * SECOND), Ok(()));
    let dead = Err(ProtocolError::Timeout(Timeout::Pong));
    assert_eq!(engine.control.handle_timeout(start + 100 * SECOND), dead);
    assert_eq!(sent(&mut engine), [Got::Close(Some(CloseCode::INTERNAL_ERROR), String::new())]);
    assert_eq!(engine.control.state(), State::Closed);
    assert_eq!(engine.control.poll_timeout(), Some(start + 105 * SECOND));
    let late = Err(ProtocolError::Timeout(Timeout::Close));
    assert_eq!(engine.control.handle_timeout(start + 105 * SECOND), late);
    assert_eq!(engine.control.failure(), dead.err()); // the first failure is kept
}

#[test]
fn a_connection_without_messages_is_closed_after_the_idle_timeout() {
    let mut config = Config::default();
    config.stream.ping_interval = None;
    config.stream.idle_timeout = Some(60 * SECOND);
    let start = Instant::now();
    let mut engine = Engine::server(config, start);
    let Engine { receiver, sender, control } = &mut engine;

    control.handle_received(start + 5 * SECOND);
    receiver.decode(control, &mut frame(Role::Server, FIN | TEXT, b"")).unwrap();
    assert_eq!(control.poll_timeout(), Some(start + 65 * SECOND));
    control.handle_received(start + 10 * SECOND);
    receiver.decode(control, &mut frame(Role::Server, TEXT, b"a fragment")).unwrap();
    control.handle_received(start + 20 * SECOND);
    receiver.decode(control, &mut frame(Role::Server, FIN | PING, b"")).unwrap(); // a ping is no message
    assert_eq!(control.poll_timeout(), Some(start + 70 * SECOND));

    control.handle_received(start + 30 * SECOND);
    sender.encode(control, Fragment::Whole(MessageKind::Text), b"", &mut Vec::new()).unwrap();
    sender.handle_written(control, 2, start + 40 * SECOND); // the time of the write counts
    assert_eq!(control.poll_timeout(), Some(start + 100 * SECOND));
    assert_eq!(
        control.handle_timeout(start + 100 * SECOND),
        Err(ProtocolError::Timeout(Timeout::Idle))
    );
    let close = Got::Close(Some(CloseCode::GOING_AWAY), String::new());
    assert_eq!(sent(&mut engine), [Got::Pong(vec![]), close]);
}

#[test]
fn a_message_that_does_not_end_closes_the_connection() {
    let mut config = Config::default();
    (config.stream.ping_interval, config.stream.message_timeout) = (None, Some(60 * SECOND));
    let start = Instant::now();
    let mut engine = Engine::server(config, start);
    let Engine { receiver, control, .. } = &mut engine;
    let mut received = Vec::new();
    // Receives these bytes, and returns the deadline.
    let mut receive = |seconds: u32, bytes: &[u8]| {
        control.handle_received(start + seconds * SECOND);
        received.extend_from_slice(bytes);
        loop {
            let decoded = receiver.decode(control, &mut received).unwrap();
            let (consumed, is_over) = (decoded.consumed, decoded.event.is_none());
            received.drain(..consumed);
            if is_over {
                return control.poll_timeout();
            }
        }
    };
    let due = |seconds: u32| Some(start + seconds * SECOND);
    let whole = frame(Role::Server, FIN | TEXT, b"whole");
    assert_eq!(receive(5, &whole), None, "between messages nothing is due");

    // The time begins with the first byte of a header. Control frames between the fragments do not change it.
    let first = frame(Role::Server, TEXT, b"first");
    assert_eq!(receive(10, &first[..1]), due(70));
    assert_eq!(receive(20, &first[1..]), due(70));
    assert_eq!(receive(30, &frame(Role::Server, FIN | PING, b"")), due(70));
    let last = frame(Role::Server, FIN | CONTINUATION, b"last");
    assert_eq!(receive(40, &last[..7]), due(70));
    assert_eq!(receive(50, &last[7..]), None);

    // The next message has its own time, even if its start arrives with the end of the message before.
    assert_eq!(receive(60, &whole[..8]), due(120));
    assert_eq!(receive(70, &[&whole[8..], &whole[..8]].concat()), due(130));

    // The time until the next read begins does not count. Later calls change nothing.
    control.handle_read_start(start + 75 * SECOND);
    assert_eq!(control.poll_timeout(), due(135));
    control.handle_read_start(start + 80 * SECOND);
    assert_eq!(control.poll_timeout(), due(135));
    assert_eq!(control.handle_timeout(start + 134 * SECOND), Ok(()));
    let late = Err(ProtocolError::Timeout(Timeout::Message));
    assert_eq!(control.handle_timeout(start + 135 * SECOND), late);
    let close = Got::Close(Some(CloseCode::POLICY), String::new());
    assert_eq!(sent(&mut engine), [Got::Pong(vec![]), close]);
}

#[test]
fn a_peer_that_does_not_answer_a_close_fails() {
    let start = Instant::now();
    let mut engine = Engine::client(Config::default(), start, |key| key.fill(1));
    engine.control.close(NORMAL, start + 3 * SECOND).unwrap();
    assert_eq!(engine.control.poll_timeout(), Some(start + 8 * SECOND));
    assert_eq!(engine.control.handle_timeout(start + 7 * SECOND), Ok(()));
    assert_eq!(engine.control.state(), State::Closing);
    let late = ProtocolError::Timeout(Timeout::Close);
    assert_eq!(engine.control.handle_timeout(start + 8 * SECOND), Err(late));
    assert_eq!((engine.control.state(), engine.control.failure()), (State::Closed, Some(late)));
    assert_eq!(sent(&mut engine), []);
}

/// The close timeout begins with the first `handle_timeout` after the violation, however long ago its bytes were read.
#[test]
fn the_close_timeout_of_a_violation_begins_when_it_is_found() {
    let start = Instant::now();
    let Engine { mut receiver, control, .. } = Engine::server(Config::default(), start);
    let unmasked = ProtocolError::Peer(Violation::NotMasked);
    assert_eq!(receiver.decode(&control, &mut [FIN | TEXT, 1, b'a']), Err(unmasked));
    assert_eq!(control.handle_timeout(start + 60 * SECOND), Ok(()));
    assert_eq!(control.poll_timeout(), Some(start + 65 * SECOND));
    let late = Err(ProtocolError::Timeout(Timeout::Close));
    assert_eq!(control.handle_timeout(start + 65 * SECOND), late);
}

#[test]
fn deadlines_beyond_the_range_of_the_clock_are_none() {
    let mut config = Config::default();
    config.stream.ping_interval = Some(Duration::MAX);
    config.stream.idle_timeout = Some(Duration::MAX);
    config.stream.close_timeout = Duration::MAX;
    let control = Engine::server(config, Instant::now()).control;
    assert_eq!(control.poll_timeout(), None);
    control.close(NORMAL, Instant::now()).unwrap();
    assert_eq!(control.poll_timeout(), None);
}

/// RFC 7692 section 6, where compression was negotiated.
#[test]
fn a_compressed_message_is_passed_on_with_its_flag() {
    const COMPRESSED: u8 = 0x40;
    for role in ROLES {
        let mut engine = engine(role, Config::default());
        engine.receiver.allow_compressed();
        let mut wire = [
            frame(role, FIN | COMPRESSED | TEXT, b"\xF2\xFF"), // UTF-8 is not checked here
            frame(role, COMPRESSED | BINARY, b"first"),
            frame(role, FIN | CONTINUATION, b"last"),
            frame(role, FIN | TEXT, b"plain"),
        ]
        .concat();
        let mut at = 0;
        let mut next = |expected: Result<(bool, bool, &[u8]), &str>| {
            let decoded = engine.receiver.decode(&engine.control, &mut wire[at..]).unwrap();
            at += decoded.consumed;
            match (decoded.event, expected) {
                (Some(Event::Piece(piece)), Ok((first, last, payload))) => {
                    assert!(piece.compressed);
                    assert_eq!((piece.first, piece.last, &*piece.payload), (first, last, payload));
                }
                (Some(Event::Text(text)), Err(expected)) => assert_eq!(text, expected),
                other => panic!("{other:?}"),
            }
        };
        next(Ok((true, true, b"\xF2\xFF")));
        next(Ok((true, false, b"first")));
        next(Ok((false, true, b"last")));
        next(Err("plain"));

        let mut wire = Vec::new();
        let Engine { sender, control, .. } = &mut engine;
        sender.encode_compressed(control, MessageKind::Binary, b"payload", &mut wire).unwrap();
        assert_eq!(wire[0], FIN | COMPRESSED | BINARY);
        sender.encode(control, Fragment::First(MessageKind::Text), b"part", &mut wire).unwrap();
        let within = sender.encode_compressed(control, MessageKind::Text, b"", &mut wire);
        assert_eq!(within, Err(Misuse::MessageWithinMessage.into()));
    }
}

/// Data that does not shrink may be longer on the wire than `message_bytes_max`.
#[test]
fn a_compressed_message_may_be_longer_on_the_wire() {
    const COMPRESSED: u8 = 0x40;
    let mut config = Config::default();
    config.engine.message_bytes_max = 1000;
    let max = compressed_bytes_max(1000);
    assert_eq!(max, 1206);
    for role in ROLES {
        for (first, bytes, allowed) in [
            (FIN | COMPRESSED | BINARY, max, max),
            (FIN | COMPRESSED | BINARY, max + 1, max),
            (FIN | BINARY, 1000, 1000),
            (FIN | BINARY, 1001, 1000),
        ] {
            let mut engine = engine(role, config);
            engine.receiver.allow_compressed();
            let mut wire = frame(role, first, &vec![0; bytes]);
            let decoded = engine.receiver.decode(&engine.control, &mut wire);
            let (limit, max, got) = (Limit::Message, allowed as u64, bytes as u64);
            let failure = (bytes > allowed).then_some(ProtocolError::Limit { limit, max, got });
            assert_eq!(decoded.err(), failure);
        }
    }
}
