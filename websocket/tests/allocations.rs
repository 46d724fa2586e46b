//! Once warm, the engine allocates nothing, whatever comes and goes.

mod common;
mod counting;

use std::time::Instant;

use common::{BINARY, CONTINUATION, FIN, PING, ROLES, TEXT, engine, frame};
use counting::allocations;
use owned_io_websocket::{Config, Decoded, Engine, Event, Kind, Part};

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
            // A client's frames are longer by their key, a server's shorter.
            assert!(out.len().abs_diff(wire.len()) < 200, "{} for {}", out.len(), wire.len());
            out.clear();
        }
        assert_eq!(allocations(), before);
    }
}

/// Answers each event in `buf` with the same, and leaves there what needs more bytes.
fn echo(engine: &mut Engine, buf: &mut Vec<u8>, out: &mut Vec<u8>) {
    let Engine { receiver, sender, control } = engine;
    control.handle_received(Instant::now());
    let mut at = 0;
    loop {
        let Decoded { consumed, event } = receiver.decode(control, &mut buf[at..]).unwrap();
        at += consumed;
        let (part, payload) = match event {
            None => break,
            Some(Event::Text(text)) => (Part::Whole(Kind::Text), text.as_bytes()),
            Some(Event::Binary(payload)) => (Part::Whole(Kind::Binary), &*payload),
            Some(Event::Piece(piece)) => {
                let part = match (piece.first, piece.last) {
                    (true, true) => Part::Whole(piece.kind),
                    (true, false) => Part::First(piece.kind),
                    (false, false) => Part::Middle,
                    (false, true) => Part::Last,
                };
                (part, &*piece.payload)
            }
            Some(_) => {
                sender.poll_control(control, out);
                continue;
            }
        };
        sender.encode(control, part, payload, out).unwrap();
    }
    buf.drain(..at);
}
