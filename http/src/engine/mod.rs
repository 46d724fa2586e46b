//! The protocol as state machines: bytes in, requests and bytes out.
//!
//! It does no I/O and reads no clock. The [`Decoder`] belongs to the code that reads, the [`Encoder`] to the code that
//! writes, and [`Timers`] to the code that waits.
//!
//! ```
//! use owned_io_http::engine::{BodyLength, Date, Decoder, Encoder, Exchange, Response};
//! use owned_io_http::Limits;
//!
//! let received = b"PUT /a HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\n\r\nabc";
//! let mut decoder = Decoder::new(&Limits::default());
//! let head_bytes = decoder.decode_head(received)?.expect("it is complete");
//! let (head, rest) = received.split_at(head_bytes);
//! assert_eq!((decoder.request(head).method(), decoder.request(head).path()), ("PUT", "/a"));
//! let piece = decoder.decode_body(rest)?;
//! assert_eq!(&rest[piece.content], b"abc");
//! assert!(decoder.is_body_at_end());
//!
//! let (mut encoder, mut out) = (Encoder::new(None), Vec::new());
//! let (length, exchange) = (BodyLength::Exact(2), Exchange::default());
//! encoder.begin(&Response::new(201), length, exchange, &Date::default(), &mut out).expect("no headers");
//! if encoder.frame(2, &mut out).expect("it fits") {
//!     out.extend_from_slice(b"ok");
//! }
//! encoder.finish(&mut out).expect("it is complete");
//! assert!(out.starts_with(b"HTTP/1.1 201 Created\r\n") && out.ends_with(b"\r\nContent-Length: 2\r\n\r\nok"));
//! # Ok::<(), owned_io_http::Refusal>(())
//! ```
//!
//! # What is refused
//!
#![doc = include_str!("../../requests.md")]

mod body;
mod date;
mod decoder;
mod encoder;
mod framing;
mod head;
mod range;
mod refusal;
mod request;
mod response;
mod target;
mod timers;

pub use body::{BodyDecoder, BodyPiece, CHUNK_EXTENSIONS_BYTES_MAX, TRAILERS_BYTES_MAX};
pub use date::Date;
pub use decoder::Decoder;
pub use encoder::{Encoder, Exchange};
pub use range::RangeChoice;
pub use refusal::Refusal;
pub use request::{BodyLength, HEADERS_MAX, Request};
pub use response::{InvalidHeader, Response};
pub use timers::{Timers, Wait};
