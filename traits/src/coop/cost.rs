//! What each kind of work costs, in nanoseconds: the one table that all protocols count by.
//!
//! | work | once | for each byte |
//! |---|---|---|
//! | [`transfer`]: a read or a write, its system call | 2,000 | 1/4 |
//! | [`frame_in`]: a WebSocket frame is decoded, with the turn of its answer through the queue | 60 | 1/8 |
//! | [`frame_out`]: a WebSocket frame is encoded; for each byte that is copied or masked | 30 | 1/8 |
//! | [`bridged_frame`]: a frame goes through tungstenite, either way | 200 | 1/4 |
//! | [`inflated`]: a round of decompression, and what comes out of it | 300 | 2 |
//! | [`compressed`]: a message is compressed, at the fastest level | 2,000 | 5 |
//! | [`compressed_piece`]: the same for a piece of a long message | 500 | 5 |
//! | [`tls_records`]: TLS records are encrypted or decrypted | 400 each | 1/2 |
//! | [`tls_read`]: bytes that are decrypted already are read | 200 | – |
//! | [`sink_message`]: a message over TCP is counted | 8 | – |
//! | [`source_message`]: a message over TCP is made; for each byte that is copied | 12 | 1/8 |
//!
//! Measured on a 3 GHz core of 2021, in November 2026, and rounded. On a machine that is half as fast a turn takes
//! twice as long; nothing else depends on the figures. To measure one again, have a server on one core do that work
//! alone, and divide its processor time by how often it was done.

/// A read or a write of so many bytes.
#[inline]
pub const fn transfer(bytes: usize) -> u64 {
    2_000 + bytes as u64 / 4
}

/// A WebSocket frame with so many bytes of payload is decoded, unmasked and checked.
#[inline]
pub const fn frame_in(bytes: usize) -> u64 {
    60 + bytes as u64 / 8
}

/// A WebSocket frame is encoded, of whose payload so many bytes are copied or masked.
#[inline]
pub const fn frame_out(bytes: usize) -> u64 {
    30 + bytes as u64 / 8
}

/// A frame with so many bytes of payload goes through tungstenite.
#[inline]
pub const fn bridged_frame(bytes: usize) -> u64 {
    200 + bytes as u64 / 4
}

/// A round of decompression, of which so many bytes come.
#[inline]
pub const fn inflated(bytes: usize) -> u64 {
    300 + bytes as u64 * 2
}

/// A message of so many bytes is compressed.
#[inline]
pub const fn compressed(bytes: usize) -> u64 {
    2_000 + bytes as u64 * 5
}

/// A piece of a message is compressed, of so many bytes.
#[inline]
pub const fn compressed_piece(bytes: usize) -> u64 {
    500 + bytes as u64 * 5
}

/// So many TLS records are encrypted or decrypted, with so many bytes in all.
#[inline]
pub const fn tls_records(records: usize, bytes: usize) -> u64 {
    records as u64 * 400 + bytes as u64 / 2
}

/// Bytes are read that are decrypted already.
#[inline]
pub const fn tls_read() -> u64 {
    200
}

/// A message is counted that a client has sent to `sink` over TCP.
#[inline]
pub const fn sink_message() -> u64 {
    8
}

/// A message of `source` over TCP is made, of which so many bytes are copied.
#[inline]
pub const fn source_message(bytes: usize) -> u64 {
    12 + bytes as u64 / 8
}
