//! The engine, driven as a stream drives it, and the floor: the least work that decoding needs.

use std::hint::black_box;
use std::time::Instant;

use owned_io_comparisons_codec::{CHUNK_BYTES, Connection, Tally, Wire};
use owned_io_websocket::Config;
use owned_io_websocket::engine::{Decoded, Engine, Event};
use owned_io_websocket::frame::mask;
use peers_common::AlignedBytes;

/// A receive buffer as a stream has one. Bytes are read behind those that are not decoded yet.
struct Buffer {
    bytes: AlignedBytes,
    start: usize,
    end: usize,
}

impl Buffer {
    fn new(capacity: usize) -> Self {
        Self { bytes: AlignedBytes::zeroed(capacity), start: 0, end: 0 }
    }

    /// Reads once, behind the bytes that are not decoded yet. These are moved to the front if room is short. After the
    /// start of a long frame it reads no further than the frame's end, so that the bytes of long frames never move.
    fn fill(&mut self, connection: &mut Connection, missing: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let held = self.end - self.start;
        if self.bytes.len() - self.end < missing.max(1024) {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
        }
        let spare = &mut self.bytes[self.end..];
        let max = if held > 2048 { missing } else { spare.len() };
        let bytes = connection.next(max);
        spare[..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }
}

/// Decodes every message whole, in a receive buffer that has room for a chunk behind the start of a message.
pub(crate) fn whole(wire: &Wire) -> impl FnMut(&mut Tally) {
    let whole_frame_bytes_max = (wire.tally.bytes / wire.tally.messages).max(16 * 1024);
    let now = Instant::now(); // the codec alone is measured, not the clock
    let Engine { mut receiver, control, .. } = Engine::server(Config::default(), now);
    receiver.set_whole_frame_bytes_max(whole_frame_bytes_max);
    let (mut connection, expected) = (Connection::new(wire), wire.tally.messages);
    let mut buffer = Buffer::new(whole_frame_bytes_max + CHUNK_BYTES);
    move |tally| {
        while tally.messages < expected {
            let buf = &mut buffer.bytes[buffer.start..buffer.end];
            let Decoded { consumed, event } = receiver.decode(&control, buf).unwrap();
            buffer.start += consumed;
            match event {
                Some(Event::Binary(payload)) => tally.add(payload),
                Some(Event::Text(text)) => tally.add(text.as_bytes()),
                Some(other) => panic!("{other:?}"),
                None => {
                    control.handle_received(now);
                    buffer.fill(&mut connection, receiver.bytes_missing());
                }
            }
        }
    }
}

/// Decodes with a receive buffer of 16 KiB. A longer message is assembled in a buffer of its announced size, into
/// which the rest of the message is read.
pub(crate) fn assembled(wire: &Wire) -> impl FnMut(&mut Tally) {
    let now = Instant::now();
    let Engine { mut receiver, control, .. } = Engine::server(Config::default(), now);
    let (mut connection, expected) = (Connection::new(wire), wire.tally.messages);
    let mut buffer = Buffer::new(16 * 1024);
    move |tally| {
        while tally.messages < expected {
            let buf = &mut buffer.bytes[buffer.start..buffer.end];
            let Decoded { consumed, event } = receiver.decode(&control, buf).unwrap();
            buffer.start += consumed;
            match event {
                Some(Event::Binary(payload)) => tally.add(payload),
                Some(Event::Text(text)) => tally.add(text.as_bytes()),
                Some(Event::Piece(piece)) => {
                    let mut message =
                        Vec::with_capacity(piece.payload.len() + piece.frame_bytes_left);
                    message.extend_from_slice(piece.payload);
                    while receiver.bytes_missing() > 0 {
                        let at = message.len();
                        message.extend_from_slice(connection.next(receiver.bytes_missing()));
                        control.handle_received(now);
                        receiver.decode(&control, &mut message[at..]).unwrap();
                    }
                    tally.add(&message);
                }
                Some(other) => panic!("{other:?}"),
                None => {
                    control.handle_received(now);
                    buffer.fill(&mut connection, receiver.bytes_missing());
                }
            }
        }
    }
}

/// The least that any decoder of whole messages does: it reads as [`whole`] does, so that it joins frames that arrive in
/// two chunks, and unmasks them. It knows their length, and checks nothing.
pub(crate) fn least(wire: &Wire) -> impl FnMut(&mut Tally) {
    let payload_bytes = wire.tally.bytes / wire.tally.messages;
    let frame_bytes = wire.bytes.len() / wire.tally.messages;
    let (mut connection, expected) = (Connection::new(wire), wire.tally.messages);
    let mut buffer = Buffer::new(payload_bytes.max(16 * 1024) + CHUNK_BYTES);
    move |tally| {
        while tally.messages < expected {
            let held = buffer.end - buffer.start;
            if held < frame_bytes {
                buffer.fill(&mut connection, frame_bytes - held);
                continue;
            }
            let frame = &mut buffer.bytes[buffer.start..][..frame_bytes];
            let (header, payload) = frame.split_at_mut(frame_bytes - payload_bytes);
            mask(payload, *header.last_chunk().unwrap());
            tally.add(black_box(payload));
            buffer.start += frame_bytes;
        }
    }
}

/// Copies each chunk and masks it once.
pub(crate) fn floor(wire: &Wire) -> impl FnMut() -> usize {
    let (mut connection, expected) = (Connection::new(wire), wire.bytes.len());
    let mut buf = AlignedBytes::zeroed(CHUNK_BYTES);
    move || {
        let mut read = 0;
        while read < expected {
            let bytes = connection.next(CHUNK_BYTES);
            let buf = &mut buf[..bytes.len()];
            buf.copy_from_slice(bytes);
            mask(buf, [1, 2, 3, 4]);
            read += black_box(buf).len();
        }
        read
    }
}
