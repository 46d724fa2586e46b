//! Compression of messages: permessage-deflate (RFC 7692).
//!
//! [`Deflate`] says how; a server agrees to it where a client offers it
//! ([`HandshakeConfig::deflate`](crate::HandshakeConfig::deflate) says whether), and a client offers what its
//! [`Offer`](crate::handshake::Offer::deflate) says. What both sides agreed on is an [`Agreement`]. On the
//! wire a compressed message is one whose first frame has a bit set ([`Piece::compressed`]); control
//! frames are never compressed, and any message may go as it is.
//!
//! [`Piece::compressed`]: crate::engine::Piece::compressed
//!
//! # Memory
//!
//! A side that keeps its context from one message to the next compresses better, repetitive messages
//! several times as well, and takes memory for each connection; one that does not shares it with all
//! connections of its worker.
//!
//! | | bytes | without takeover | with takeover |
//! |---|---|---|---|
//! | compressor | [`COMPRESSOR_BYTES_MAX`], 380 KiB; with a window of 9 bits 250 KiB | one for each level and window that is in use, at most 7 for each level; and one for each [long message](crate::stream::Outgoing#long-messages) that is being compressed | one for each connection that has sent a message that was compressed |
//! | decompressor | [`DECOMPRESSOR_BYTES`], 48 KiB | one, and one more for each message that comes in several parts and is incomplete | one for each connection that has been sent a compressed message |
//!
//! The decompressors of incomplete messages, and the compressors of long ones, are reserved, as the messages
//! are: see [`Buffers`](crate::stream#memory).
//!
//! # Secrets
//!
//! How long a compressed message is tells something about what is in it. Where it holds a secret and, in
//! the same message or with takeover in another, something that an attacker chose, compression gives the
//! secret away bit by bit (CRIME, BREACH). Have no compression there.

mod compressor;
mod decompressor;
mod negotiation;

pub(crate) use compressor::{CompressError, Compressor, OUTPUT_BYTES_MIN};
pub(crate) use decompressor::{CorruptData, Decompressor};
pub(crate) use negotiation::ResponseError;
pub use negotiation::{Agreement, ContextParameters};

/// How messages are compressed, and what the peer may do.
///
/// ```
/// use owned_io_websocket::Config;
/// use owned_io_websocket::deflate::Deflate;
///
/// let mut deflate = Deflate::default();
/// deflate.send_takeover = true;
/// let mut config = Config::default();
/// config.handshake.deflate = Some(deflate); // to accept with
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deflate {
    /// How hard to look for what repeats, from 1 to 9, or the nearest of those. Default 1: JSON of 1 KiB
    /// comes out half as long again as with 6, in a third of the time (2026-11-21).
    pub level: u8,
    /// Messages of fewer bytes than this go as they are. Default 64: shorter ones hardly shrink, and
    /// leave in the same packet.
    pub message_bytes_min: usize,
    /// Whether what is sent refers to messages before it, if the peer allows it. Default false: it takes
    /// [memory](crate::deflate#memory) for each connection.
    pub send_takeover: bool,
    /// Whether the peer may do that. Default false: it takes [memory](crate::deflate#memory) here too. A server
    /// that does not keep to it when asked by a client is not spoken to.
    pub receive_takeover: bool,
    /// How far back what is sent refers: 2 to the power of this, in bytes; 9 to 15, or the nearest of
    /// those. Default 15. The peer may ask for less, but not for 8, which zlib cannot do: a server declines
    /// such an offer, and a client fails the connection.
    pub send_window_bits: u8,
    /// How far back the peer may refer, 9 to 15 or the nearest of those. Default 15; less saves it memory,
    /// but none here. A client need not let a server ask for it.
    pub receive_window_bits: u8,
}

/// The most that a compressor takes, in bytes.
pub const COMPRESSOR_BYTES_MAX: usize = 380 * 1024;

/// The most that a decompressor takes, in bytes.
pub const DECOMPRESSOR_BYTES: usize = 48 * 1024;

impl Default for Deflate {
    fn default() -> Self {
        Self {
            level: 1,
            message_bytes_min: 64,
            send_takeover: false,
            receive_takeover: false,
            send_window_bits: WINDOW_BITS_MAX,
            receive_window_bits: WINDOW_BITS_MAX,
        }
    }
}

/// What zlib compresses with. The RFC has 8 too.
const WINDOW_BITS_MIN: u8 = 9;
const WINDOW_BITS_MAX: u8 = 15;

/// What ends a flushed block, and is left out of a message (section 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];
