//! The messages and the error do not depend on where the bytes are cut, nor on the buffer size.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use owned_io_websocket::engine::{Decoded, Engine, Event, State};
use owned_io_websocket::{Config, ProtocolError, MessageKind, Fragment};

#[derive(Debug, PartialEq)]
enum Got {
    Message(MessageKind, Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

fuzz_target!(|input: &[u8]| {
    let [role, cut, whole, wire @ ..] = input else { return };
    let one = run(*role, wire.len().max(1), 1 << 20, wire);
    let other = run(*role, usize::from(*cut) + 1, usize::from(*whole), wire);
    // Invalid text fails as soon as it arrives, in an incomplete frame too. The messages before the error, the error and
    // the answers do not depend on the cuts.
    assert_eq!(one, other);
});

fn run(role: u8, size: usize, whole: usize, wire: &[u8]) -> (Vec<Got>, Option<ProtocolError>, Vec<u8>) {
    let mut config = Config::default();
    config.engine.frame_bytes_max = 1 << 16;
    config.engine.message_bytes_max = 1 << 17;
    let now = Instant::now();
    let mut engine = match role & 1 {
        0 => Engine::server(config, now),
        _ => Engine::client(config, now, |keys| keys.fill(0x5A)),
    };
    engine.receiver.set_whole_frame_bytes_max(whole);
    let (mut buf, mut got, mut assembled, mut out) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // An empty chunk at the end, because the first bytes of a frame are processed together with the next ones.
    for chunk in wire.chunks(size).chain([&[][..]]) {
        engine.control.handle_received(now);
        buf.extend_from_slice(chunk);
        if let Err(error) = decode(&mut engine, &mut buf, &mut assembled, &mut got) {
            assert_eq!(engine.control.failure(), Some(error));
            engine.sender.poll_control(&engine.control, &mut out);
            assert_eq!(engine.control.state(), State::Closed);
            return (got, Some(error), out);
        }
    }
    let sent = engine.sender.encode(&engine.control, Fragment::Whole(MessageKind::Text), b"", &mut Vec::new());
    assert_eq!(sent.is_ok(), engine.control.state() == State::Open);
    engine.sender.poll_control(&engine.control, &mut out);
    (got, None, out)
}

fn decode(
    engine: &mut Engine,
    buf: &mut Vec<u8>,
    assembled: &mut Vec<u8>,
    got: &mut Vec<Got>,
) -> Result<(), ProtocolError> {
    let Engine { receiver, control, .. } = engine;
    loop {
        let Decoded { consumed, event } = receiver.decode(control, buf)?;
        let event = match event {
            None => {
                buf.drain(..consumed);
                return Ok(());
            }
            Some(Event::Text(text)) => Some(Got::Message(MessageKind::Text, text.as_bytes().to_vec())),
            Some(Event::Binary(payload)) => Some(Got::Message(MessageKind::Binary, payload.to_vec())),
            Some(Event::Ping(payload)) => Some(Got::Ping(payload.to_vec())),
            Some(Event::Pong(payload)) => Some(Got::Pong(payload.to_vec())),
            Some(Event::Close(frame)) => {
                Some(Got::Close(frame.code.map(|code| code.get()), frame.reason.into()))
            }
            Some(Event::Piece(piece)) => {
                assert!(!piece.first || assembled.is_empty());
                assembled.extend_from_slice(piece.payload);
                piece.last.then(|| Got::Message(piece.kind, std::mem::take(assembled)))
            }
        };
        got.extend(event);
        buf.drain(..consumed);
    }
}
