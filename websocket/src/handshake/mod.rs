//! The opening handshake (RFC 6455 section 4) as functions over bytes: one HTTP request, one response.
//!
//! A server reads until [`Request::decode`] returns a request. It may look at the path and the
//! headers, and then calls [`Request::upgrade`] to check the request. It responds with
//! [`Upgrade::accept`], with the [`Refusal`], or with any other status by [`respond`]:
//!
//! ```
//! use owned_io_websocket::handshake::{Offer, Origins, Refusal, Request, respond};
//!
//! /// Returns the response, or `None` if more bytes are needed.
//! fn answer(received: &[u8]) -> Option<Vec<u8>> {
//!     let mut out = Vec::new();
//!     let result = match Request::decode(received, 8192) {
//!         Ok(None) => return None,
//!         Ok(Some((request, _head_bytes))) if request.path() != "/chat" => {
//!             respond(404, &[], b"not found", &mut out).expect("no headers");
//!             return Some(out);
//!         }
//!         Ok(Some((request, _head_bytes))) => request.upgrade(Origins::Any).map(|upgrade| {
//!             let protocol = upgrade.choose_protocol(&["chat.v2", "chat.v1"]);
//!             upgrade.accept(protocol, &[("Server", "me")], &mut out).expect("good headers");
//!         }),
//!         Err(refusal) => Err(refusal),
//!     };
//!     result.unwrap_or_else(|refusal: Refusal| refusal.encode(&mut out));
//!     Some(out)
//! }
//!
//! let mut request = Vec::new();
//! let key = owned_io_websocket::handshake::Key::new([7; 16]); // use real randomness
//! let offer = Offer { host: "example.com", path: "/chat", protocols: &["chat.v1"], ..Offer::default() };
//! offer.encode(&key, &mut request).unwrap();
//! assert_eq!(answer(&request[..20]), None);
//! assert!(answer(&request).unwrap().starts_with(b"HTTP/1.1 101 "));
//! ```
//!
//! A client sends an [`Offer`], reads until [`Response::decode`] returns a response, and calls
//! [`Response::check`]. The only extension that is offered or accepted is compression, with feature
//! `deflate` and if it is configured.
//!
//! There are no timeouts here: the caller has to stop a peer that sends its head one byte a second.
//! Bytes behind a head belong to the first frame.

mod client;
mod head;
mod server;
mod target;

pub use client::{HandshakeError, Key, Offer, Response};
pub use head::{HEADERS_MAX, InvalidHeader};
pub use server::{Origins, Refusal, Request, Upgrade, respond};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

/// Computes the server's response to a `Sec-WebSocket-Key` (section 4.2.2, step 5.4), which proves
/// that the server supports the protocol.
///
/// ```
/// // The example of the RFC, section 1.3.
/// let accept = owned_io_websocket::handshake::accept_key(b"dGhlIHNhbXBsZSBub25jZQ==");
/// assert_eq!(&accept, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
/// ```
pub fn accept_key(key: &[u8]) -> [u8; 28] {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut accept = [0; 28];
    let written = STANDARD.encode_slice(digest, &mut accept);
    debug_assert_eq!(written, Ok(28), "20 bytes are 28 characters");
    accept
}
