//! [`EncodedFrame`]: one frame for many connections.

use std::fmt;

use bytes::Bytes;

use crate::Part;
use crate::frame::Header;

/// A frame of a server, encoded once to be sent to many clients by
/// [`Outgoing::write_frame`](super::Outgoing::write_frame).
///
/// Cloning it copies nothing, and it may go to other threads. It is not compressed, whatever a connection
/// has agreed on: where messages may be compressed, they may also come as they are.
///
/// ```
/// use owned_io_websocket::stream::{EncodedFrame, Error, Outgoing};
/// use owned_io_websocket::{Kind, Part};
///
/// async fn publish(event: &str, subscribers: &mut [Outgoing]) {
///     let frame = EncodedFrame::new(Part::Whole(Kind::Text), event.as_bytes());
///     for subscriber in subscribers {
///         // Who does not read fast enough has a full queue, and misses this event.
///         let _ = subscriber.write_frame(&frame);
///     }
/// }
/// ```
#[derive(Clone)]
pub struct EncodedFrame {
    part: Part,
    payload_bytes: usize,
    bytes: Bytes,
}

impl EncodedFrame {
    /// A copy of `payload` behind its header. Text must be UTF-8 over all its parts.
    pub fn new(part: Part, payload: &[u8]) -> Self {
        let (opcode, fin) = part.opcode();
        let payload_bytes = payload.len() as u64;
        let header = Header { fin, compressed: false, opcode, key: None, payload_bytes };
        let bytes = [&*header.encode(), payload].concat().into();
        Self { part, payload_bytes: payload.len(), bytes }
    }

    /// Which part of a message it is.
    pub const fn part(&self) -> Part {
        self.part
    }

    /// How long its payload is.
    pub const fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// The frame as it goes over the wire.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl fmt::Debug for EncodedFrame {
    /// How long the payload is, not what it is: that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedFrame({:?}, {} bytes)", self.part, self.payload_bytes)
    }
}
