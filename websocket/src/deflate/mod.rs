//! Compression of messages: permessage-deflate (RFC 7692).
//!
//! [`Deflate`] has the settings. A server accepts the compression that a client offers if
//! [`HandshakeConfig::deflate`](crate::HandshakeConfig::deflate) is set. A client offers what its
//! [`Offer`](crate::handshake::Offer::deflate) says. The result is an [`Agreement`]. On the wire
//! the first frame of a compressed message has a bit set ([`Piece::compressed`]). Control frames
//! are never compressed, and any message may be sent uncompressed.
//!
//! [`Piece::compressed`]: crate::engine::Piece::compressed
//!
//! # Memory
//!
//! A side that keeps its context from one message to the next (context takeover) compresses better,
//! several times so for repetitive messages. It needs memory for each connection. Without takeover,
//! all connections of a worker share that memory.
//!
//! | | bytes | without takeover | with takeover |
//! |---|---|---|---|
//! | compressor | [`COMPRESSOR_BYTES_MAX`], 380 KiB; 250 KiB with a window of 9 bits | one for each level and window in use, at most 7 for each level; and one for each [long message](crate::stream::Outgoing#long-messages) that is being compressed | one for each connection that has sent a compressed message |
//! | decompressor | [`DECOMPRESSOR_BYTES`], 48 KiB | one, and one more for each message in several parts or steps that is incomplete | one for each connection that has received a compressed message |
//!
//! Decompressors of incomplete messages and compressors of long messages are reserved like
//! messages, see [memory](crate::stream#memory).
//!
//! # Secrets
//!
//! The length of a compressed message reveals something about its content. If a message has a
//! secret and data that an attacker chose, compression reveals the secret bit by bit (CRIME,
//! BREACH). With takeover the two may even be in different messages. Do not compress such messages.

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
/// config.handshake.deflate = Some(deflate); // for `accept`
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deflate {
    /// How much effort to spend, from 1 to 9; other values count as the nearest. Default 1: JSON of
    /// 1 KiB becomes half as long again as with 6, in a third of the time (2026-11-21).
    pub level: u8,
    /// Messages of fewer bytes than this are sent uncompressed. Default 64: shorter messages hardly
    /// shrink, and fit the same packet.
    pub message_bytes_min: usize,
    /// Whether sent messages refer to earlier ones, if the peer allows it. Default false: takeover
    /// needs [memory](crate::deflate#memory) for each connection.
    pub send_takeover: bool,
    /// Whether the peer's messages may refer to earlier ones. Default false: takeover needs
    /// [memory](crate::deflate#memory) here too. A client fails the handshake if the server does
    /// not comply.
    pub receive_takeover: bool,
    /// The window of sent messages: they refer back at most 2 to the power of this, in bytes. 9 to
    /// 15; other values count as the nearest. Default 15. The peer may request less. It may not
    /// request 8, which zlib does not support: a server declines such an offer, and a client fails
    /// the connection.
    pub send_window_bits: u8,
    /// The window of received messages, 9 to 15; other values count as the nearest. Default 15.
    /// Less saves memory at the peer, but none here. A server can request less only if the client's offer allows it.
    pub receive_window_bits: u8,
}

/// The most memory that a compressor needs, in bytes.
pub const COMPRESSOR_BYTES_MAX: usize = 380 * 1024;

/// The most memory that a decompressor needs, in bytes.
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

/// The smallest window that zlib compresses with. The RFC allows 8 too.
const WINDOW_BITS_MIN: u8 = 9;
const WINDOW_BITS_MAX: u8 = 15;

/// The end of a flushed block, which is left out of a message (section 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];
