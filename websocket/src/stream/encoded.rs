//! [`EncodedFrame`]: a frame to send to many connections.

use std::fmt;

use bytes::Bytes;

use crate::Fragment;
use crate::frame::Header;

/// A server's frame, encoded once to be sent to many clients by
/// [`Outgoing::write_frame`](super::Outgoing::write_frame).
///
/// Cloning copies no bytes, and a clone can go to another thread. The frame is not compressed.
/// Connections that have negotiated compression accept it too: compression is optional for each
/// message. A [`Topic`](super::Topic) sends to many clients with less work.
///
/// ```
/// use owned_io_websocket::stream::{EncodedFrame, Error, Outgoing};
/// use owned_io_websocket::{MessageKind, Fragment};
///
/// async fn publish(event: &str, subscribers: &mut [Outgoing]) {
///     let frame = EncodedFrame::new(Fragment::Whole(MessageKind::Text), event.as_bytes());
///     for subscriber in subscribers {
///         // The queue of a subscriber that reads too slowly is full. It misses this event.
///         let _ = subscriber.write_frame(&frame);
///     }
/// }
/// ```
#[derive(Clone)]
pub struct EncodedFrame {
    fragment: Fragment,
    payload_bytes: usize,
    bytes: Bytes,
}

impl EncodedFrame {
    /// Copies `payload` behind its header. Text must be UTF-8 over all its parts.
    pub fn new(fragment: Fragment, payload: &[u8]) -> Self {
        let (opcode, fin) = fragment.opcode();
        let payload_bytes = payload.len() as u64;
        let header = Header { fin, compressed: false, opcode, key: None, payload_bytes };
        let bytes = [&*header.encode(), payload].concat().into();
        Self { fragment, payload_bytes: payload.len(), bytes }
    }

    /// Which part of a message the frame is.
    pub const fn fragment(&self) -> Fragment {
        self.fragment
    }

    /// The length of the payload, in bytes.
    pub const fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// The encoded frame: header and payload.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl fmt::Debug for EncodedFrame {
    /// Prints the length of the payload, not the payload: it may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedFrame({:?}, {} bytes)", self.fragment, self.payload_bytes)
    }
}
