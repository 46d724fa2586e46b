//! The client. It sends prepared bytes, so that its cost does not depend on the server.

use std::io;

use bytes::Bytes;
use owned_io::{ByteStream, OwnedReadExt, OwnedWriteExt};
use owned_io_websocket::handshake::{Key, Offer};

use crate::Direction;

/// The frame header of a server's message of more than 65,535 bytes.
const HEADER_BYTES: usize = 10;

/// The frame with which a server asks for the message.
const GO_BYTES: usize = 4;

/// Upgrades the connection. Then it receives the message and answers with an empty one, or sends the message once
/// the server asks for it.
///
/// # Errors
/// Errors of the connection, and a message that differs from `payload`.
pub(crate) async fn run(
    mut stream: impl ByteStream,
    direction: Direction,
    payload: Bytes,
) -> io::Result<()> {
    // Prepared first, so that the server does not wait for it.
    let (frame, answer) = (masked(&payload), masked(&[]));
    let frame_bytes = HEADER_BYTES + payload.len();
    let received = Vec::with_capacity(frame_bytes);

    let mut request = Vec::new();
    let encoded = Offer::default().encode(&Key::new([7; 16]), &mut request);
    encoded.map_err(io::Error::other)?;
    stream.write_all(request).await.into_result()?;
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let ((), byte) = stream.read_exact(Vec::with_capacity(1), 1).await.into_result()?;
        response.extend_from_slice(&byte);
    }
    match direction {
        Direction::Receives => {
            stream.read_exact(Vec::with_capacity(GO_BYTES), GO_BYTES).await.into_result()?;
            stream.write_all(frame).await.into_result()?;
        }
        Direction::Sends => {
            let ((), received) = stream.read_exact(received, frame_bytes).await.into_result()?;
            stream.write_all(answer).await.into_result()?;
            if received[HEADER_BYTES..] != *payload {
                return Err(io::Error::other("not the message that was sent"));
            }
        }
    }
    // The server has finished once it drops the connection.
    while stream.read(Vec::with_capacity(1024)).await.into_result().is_ok_and(|(n, _)| n > 0) {}
    Ok(())
}

fn masked(payload: &[u8]) -> Vec<u8> {
    const KEY: [u8; 4] = [1, 2, 3, 4];
    let mut frame = vec![0x82];
    match payload.len() {
        len @ 0..126 => frame.push(0x80 | len as u8),
        len => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&KEY);
    frame.extend(payload.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}
