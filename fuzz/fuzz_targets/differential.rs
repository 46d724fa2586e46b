//! The engine and tungstenite get the same bytes: they return the same messages, and both fail or neither does.
#![no_main]

use std::io::{self, Read, Write};
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use owned_io_websocket::engine::{Decoded, Engine, Event};
use owned_io_websocket::{Config, ProtocolError, Violation};
use tungstenite::Message;
use tungstenite::protocol::{Role, WebSocket, WebSocketConfig};

const FRAME_BYTES_MAX: usize = 1 << 16;
const MESSAGE_BYTES_MAX: usize = 1 << 17;

#[derive(Debug, PartialEq)]
enum Got {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close,
    Failed,
}

/// A transport that returns its bytes and then would block. It takes every write.
struct Wire<'a>(&'a [u8]);

impl Read for Wire<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let [role, wire @ ..] = input else { return };
    let (ours, failure) = ours(*role, wire);
    let theirs = theirs(*role, wire);
    match failure {
        None => assert_eq!(ours, theirs),
        // tungstenite accepts these lengths.
        Some(ProtocolError::Peer(Violation::LengthNotMinimal | Violation::LongControlFrame)) => {
            assert_eq!(ours, theirs[..ours.len()]);
        }
        // tungstenite answers this without an error, unless it finds another error first.
        Some(ProtocolError::Peer(Violation::ReservedCloseCode)) => {
            let (last, before) = theirs.split_last().unwrap();
            assert_eq!(before, ours);
            assert!(matches!(last, Got::Close | Got::Failed));
        }
        // tungstenite waits until the frame is complete.
        Some(error) => {
            let fails = theirs.split_last() == Some((&Got::Failed, &ours[..]));
            assert!(fails || theirs == ours, "{error}: {ours:?} {theirs:?}");
        }
    }
});

fn ours(role: u8, wire: &[u8]) -> (Vec<Got>, Option<ProtocolError>) {
    let mut config = Config::default();
    config.engine.frame_bytes_max = FRAME_BYTES_MAX;
    config.engine.message_bytes_max = MESSAGE_BYTES_MAX;
    let now = Instant::now();
    let Engine { mut receiver, control, .. } = match role & 1 {
        0 => Engine::server(config, now),
        _ => Engine::client(config, now, |keys| keys.fill(0x5A)),
    };
    receiver.set_whole_frame_bytes_max(64);
    let (mut buf, mut got, mut assembled) = (wire.to_vec(), Vec::new(), Vec::new());
    loop {
        let Decoded { consumed, event } = match receiver.decode(&control, &mut buf) {
            Ok(decoded) => decoded,
            Err(error) => return (got, Some(error)),
        };
        match event {
            None => return (got, None),
            Some(Event::Text(text)) => got.push(Got::Text(text.as_bytes().to_vec())),
            Some(Event::Binary(payload)) => got.push(Got::Binary(payload.to_vec())),
            Some(Event::Ping(payload)) => got.push(Got::Ping(payload.to_vec())),
            Some(Event::Pong(payload)) => got.push(Got::Pong(payload.to_vec())),
            Some(Event::Close(_)) => {
                got.push(Got::Close);
                return (got, None);
            }
            Some(Event::Piece(piece)) => {
                assembled.extend_from_slice(piece.payload);
                if piece.last {
                    let message = std::mem::take(&mut assembled);
                    got.push(match piece.kind {
                        owned_io_websocket::MessageKind::Text => Got::Text(message),
                        owned_io_websocket::MessageKind::Binary => Got::Binary(message),
                    });
                }
            }
        }
        buf.drain(..consumed);
    }
}

fn theirs(role: u8, wire: &[u8]) -> Vec<Got> {
    let role = if role & 1 == 0 { Role::Server } else { Role::Client };
    let config = WebSocketConfig::default()
        .max_frame_size(Some(FRAME_BYTES_MAX))
        .max_message_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocket::from_raw_socket(Wire(wire), role, Some(config));
    let mut got = Vec::new();
    loop {
        got.push(match socket.read() {
            Ok(Message::Text(text)) => Got::Text(text.as_bytes().to_vec()),
            Ok(Message::Binary(payload)) => Got::Binary(payload.to_vec()),
            Ok(Message::Ping(payload)) => Got::Ping(payload.to_vec()),
            Ok(Message::Pong(payload)) => Got::Pong(payload.to_vec()),
            Ok(Message::Close(_)) => {
                got.push(Got::Close);
                return got;
            }
            Ok(Message::Frame(_)) => unreachable!("`read` gives messages"),
            Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return got;
            }
            Err(_) => {
                got.push(Got::Failed);
                return got;
            }
        });
    }
}
