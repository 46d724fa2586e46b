//! The cost of each kind of work, in nanoseconds. All protocols use this table.
//!
//! | work | fixed | per byte |
//! |---|---|---|
//! | [`transfer`]: a read or a write with its system call | 2,000 | 1/4 |
//! | [`frame_in`]: decoding a WebSocket frame, and passing its answer through the queue | 60 | 1/8 |
//! | [`frame_out`]: encoding a WebSocket frame; per byte that is copied or masked | 30 | 1/8 |
//! | [`bridged_frame`]: passing a frame through tungstenite, in either direction | 200 | 1/4 |
//! | [`inflated`]: one decompression step; per byte of output | 300 | 2 |
//! | [`compressed`]: compressing a message at the fastest level | 2,000 | 5 |
//! | [`compressed_piece`]: compressing a piece of a long message | 500 | 5 |
//! | [`tls_records`]: encrypting or decrypting TLS records | 400 each | 1/2 |
//! | [`tls_handshake`]: the key exchange and the signature of a TLS handshake, or their verification | 80,000 | – |
//! | [`tls_read`]: reading bytes that are already decrypted | 200 | – |
//! | [`sink_message`]: counting a message over TCP | 8 | – |
//! | [`source_message`]: generating a message over TCP; per byte that is copied | 12 | 1/8 |
//! | [`request_head`]: decoding the head of an HTTP request | 300 | 1/2 |
//! | [`response_head`]: encoding the head of an HTTP answer | 200 | 1/8 |
//! | [`body_piece`]: framing a piece of an HTTP body; per byte of framing, or that is copied | 60 | 1/8 |
//! | [`channel`]: putting a value into a channel, or taking one from it | 50 | – |
//!
//! The figures of HTTP are estimates. The others were measured on a 3 GHz core of 2021, in November 2026, and rounded. On a machine with half the
//! speed, tasks run twice as long before they yield. Nothing else depends on the figures. To measure one again,
//! let a server on one core do only that work, and divide its CPU time by the number of repetitions.

/// A read or a write of `bytes` bytes.
#[inline]
pub const fn transfer(bytes: usize) -> u64 {
    2_000 + bytes as u64 / 4
}

/// Decoding, unmasking and checking a WebSocket frame with `bytes` bytes of payload.
#[inline]
pub const fn frame_in(bytes: usize) -> u64 {
    60 + bytes as u64 / 8
}

/// Encoding a WebSocket frame. `bytes` bytes of its payload are copied or masked.
#[inline]
pub const fn frame_out(bytes: usize) -> u64 {
    30 + bytes as u64 / 8
}

/// Passing a frame with `bytes` bytes of payload through tungstenite.
#[inline]
pub const fn bridged_frame(bytes: usize) -> u64 {
    200 + bytes as u64 / 4
}

/// One decompression step with `bytes` bytes of output.
#[inline]
pub const fn inflated(bytes: usize) -> u64 {
    300 + bytes as u64 * 2
}

/// Compressing a message of `bytes` bytes.
#[inline]
pub const fn compressed(bytes: usize) -> u64 {
    2_000 + bytes as u64 * 5
}

/// Compressing a piece of a message, of `bytes` bytes.
#[inline]
pub const fn compressed_piece(bytes: usize) -> u64 {
    500 + bytes as u64 * 5
}

/// Encrypting or decrypting `records` TLS records, with `bytes` bytes in all.
#[inline]
pub const fn tls_records(records: usize, bytes: usize) -> u64 {
    records as u64 * 400 + bytes as u64 / 2
}

/// The key exchange and the signature of a TLS handshake, by elliptic curves. With RSA it is several times as much.
#[inline]
pub const fn tls_handshake() -> u64 {
    80_000
}

/// Reading bytes that are already decrypted.
#[inline]
pub const fn tls_read() -> u64 {
    200
}

/// Counting a message that a client sent to `sink` over TCP.
#[inline]
pub const fn sink_message() -> u64 {
    8
}

/// Generating a message of `source` over TCP. `bytes` of its bytes are copied.
#[inline]
pub const fn source_message(bytes: usize) -> u64 {
    12 + bytes as u64 / 8
}

/// Decoding the head of an HTTP request, of `bytes` bytes.
#[inline]
pub const fn request_head(bytes: usize) -> u64 {
    300 + bytes as u64 / 2
}

/// Encoding the head of an HTTP answer, of `bytes` bytes.
#[inline]
pub const fn response_head(bytes: usize) -> u64 {
    200 + bytes as u64 / 8
}

/// Decoding or framing a piece of an HTTP body. `bytes` bytes are framing or are copied.
#[inline]
pub const fn body_piece(bytes: usize) -> u64 {
    60 + bytes as u64 / 8
}

/// Putting a value into a [`channel`](crate::channel()), or taking one from it.
#[inline]
pub const fn channel() -> u64 {
    50
}
