//! Once warm, the engine allocates nothing, whatever it receives and sends.

mod common;
mod counting;

use std::time::Instant;

use common::{BINARY, CONTINUATION, FIN, KEY, PING, ROLES, Role, TEXT, engine, frame};
use counting::{allocations, live_bytes, peak_bytes};
use owned_io_websocket::engine::{Decoded, Engine, Event};
use owned_io_websocket::{Config, Fragment, MessageKind};

#[test]
fn echo_of_every_size_in_both_roles() {
    for role in ROLES {
        let mut wire = Vec::new();
        for len in [0, 16, 200, 1000, 16 * 1024, 64 * 1024] {
            let payload = vec![b'a'; len];
            wire.extend(frame(role, FIN | TEXT, &payload));
            wire.extend(frame(role, BINARY, &payload));
            wire.extend(frame(role, FIN | PING, b"ping"));
            wire.extend(frame(role, FIN | CONTINUATION, &payload));
        }
        let mut engine = engine(role, Config::default());
        let mut buf = Vec::with_capacity(16 * 1024);
        let mut out = Vec::with_capacity(2 * wire.len());
        let mut before = 0;
        for round in 0..3 {
            if round == 1 {
                before = allocations(); // warm
            }
            let mut left = &wire[..];
            while !left.is_empty() {
                let (chunk, rest) = left.split_at(left.len().min(buf.capacity() - buf.len()));
                buf.extend_from_slice(chunk);
                left = rest;
                echo(&mut engine, &mut buf, &mut out);
            }
            let Engine { sender, control, .. } = &mut engine;
            sender.handle_written(control, out.len(), Instant::now());
            // A frame of a client is longer than one of a server by the masking key.
            assert!(out.len().abs_diff(wire.len()) < 200, "{} for {}", out.len(), wire.len());
            out.clear();
        }
        assert_eq!(allocations(), before);
    }
}

/// The engine allocates nothing for the length that a header announces, even without a limit.
#[test]
fn a_frame_header_allocates_nothing() {
    let mut config = Config::default();
    (config.engine.frame_bytes_max, config.engine.message_bytes_max) = (usize::MAX, usize::MAX);
    for len in [1_u64 << 20, 1 << 40, 1 << 62, 1 << 63] {
        for config in [Config::default(), config] {
            let Engine { mut receiver, control, .. } = engine(Role::Server, config);
            let mut header =
                [vec![FIN | BINARY, 0xFF], len.to_be_bytes().to_vec(), KEY.to_vec()].concat();
            let before = live_bytes();
            peak_bytes();
            let is_refused = receiver.decode(&control, &mut header).is_err();
            assert_eq!(
                is_refused,
                len > (config.engine.frame_bytes_max as u64).min(isize::MAX as u64)
            );
            let peak = peak_bytes() - before;
            assert!(peak <= 256, "{peak} bytes: at most a close frame");
        }
    }
}

/// Echoes each event in `buf`. Bytes of an incomplete frame stay in `buf`.
fn echo(engine: &mut Engine, buf: &mut Vec<u8>, out: &mut Vec<u8>) {
    let Engine { receiver, sender, control } = engine;
    control.handle_received(Instant::now());
    let mut at = 0;
    loop {
        let Decoded { consumed, event } = receiver.decode(control, &mut buf[at..]).unwrap();
        at += consumed;
        let (fragment, payload) = match event {
            None => break,
            Some(Event::Text(text)) => (Fragment::Whole(MessageKind::Text), text.as_bytes()),
            Some(Event::Binary(payload)) => (Fragment::Whole(MessageKind::Binary), &*payload),
            Some(Event::Piece(piece)) => {
                let fragment = match (piece.first, piece.last) {
                    (true, true) => Fragment::Whole(piece.kind),
                    (true, false) => Fragment::First(piece.kind),
                    (false, false) => Fragment::Middle,
                    (false, true) => Fragment::Last,
                };
                (fragment, &*piece.payload)
            }
            Some(_) => {
                sender.poll_control(control, out);
                continue;
            }
        };
        sender.encode(control, fragment, payload, out).unwrap();
    }
    buf.drain(..at);
}
