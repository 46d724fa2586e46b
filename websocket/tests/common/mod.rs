//! Helpers of the engine's tests. They encode frames by hand, not with the crate's encoder.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::Instant;

use owned_io_websocket::engine::{Decoded, Engine, Event};
use owned_io_websocket::{CloseCode, Config, MessageKind, ProtocolError};

/// The opcodes of RFC 6455 section 5.2, and the bit that makes a frame the last of its message.
pub(crate) const CONTINUATION: u8 = 0x0;
pub(crate) const TEXT: u8 = 0x1;
pub(crate) const BINARY: u8 = 0x2;
pub(crate) const CLOSE: u8 = 0x8;
pub(crate) const PING: u8 = 0x9;
pub(crate) const PONG: u8 = 0xA;
pub(crate) const FIN: u8 = 0x80;

pub(crate) const KEY: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// The side that decodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Role {
    Server,
    Client,
}

pub(crate) const ROLES: [Role; 2] = [Role::Server, Role::Client];

pub(crate) fn engine(role: Role, config: Config) -> Engine {
    match role {
        Role::Server => Engine::server(config, Instant::now()),
        Role::Client => Engine::client(config, Instant::now(), |key| key.fill(0x5A)),
    }
}

/// A frame as the peer of `role` sends it.
pub(crate) fn frame(role: Role, first: u8, payload: &[u8]) -> Vec<u8> {
    let masked = role == Role::Server;
    let mask_bit = if masked { 0x80 } else { 0 };
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(mask_bit | len as u8),
        len @ 126..0x1_0000 => {
            bytes.push(mask_bit | 126);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(mask_bit | 127);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    if masked {
        bytes.extend_from_slice(&KEY);
        bytes.extend(payload.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
    } else {
        bytes.extend_from_slice(payload);
    }
    bytes
}

/// What was received, with the pieces of a message assembled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Got {
    Message(MessageKind, Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<CloseCode>, String),
}

/// An engine, a receive buffer, and the message that is being assembled.
pub(crate) struct Reader {
    pub(crate) engine: Engine,
    buf: Vec<u8>,
    assembled: Option<(MessageKind, Vec<u8>)>,
    pub(crate) got: Vec<Got>,
}

impl Reader {
    pub(crate) fn new(role: Role, config: Config) -> Self {
        Self { engine: engine(role, config), buf: Vec::new(), assembled: None, got: Vec::new() }
    }

    /// A reader whose engine returns frames of up to `whole_frame_bytes_max` whole.
    pub(crate) fn whole_up_to(role: Role, whole_frame_bytes_max: usize) -> Self {
        let mut new = Self::new(role, Config::default());
        new.engine.receiver.set_whole_frame_bytes_max(whole_frame_bytes_max);
        new
    }

    /// Adds `bytes` to the buffer, and decodes everything that is complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.buf.extend_from_slice(bytes);
        while let Some(got) = self.decode()? {
            self.got.extend(got);
        }
        Ok(())
    }

    /// None if more bytes are needed.
    fn decode(&mut self) -> Result<Option<Option<Got>>, ProtocolError> {
        let Engine { receiver, control, .. } = &mut self.engine;
        let Decoded { consumed, event } = receiver.decode(control, &mut self.buf)?;
        let got = match event {
            None => None,
            Some(Event::Text(text)) => Some(Some(message(MessageKind::Text, text.as_bytes()))),
            Some(Event::Binary(payload)) => Some(Some(message(MessageKind::Binary, payload))),
            Some(Event::Ping(payload)) => Some(Some(Got::Ping(payload.to_vec()))),
            Some(Event::Pong(payload)) => Some(Some(Got::Pong(payload.to_vec()))),
            Some(Event::Close(frame)) => Some(Some(Got::Close(frame.code, frame.reason.into()))),
            Some(Event::Piece(piece)) => {
                assert_eq!(piece.first, self.assembled.is_none());
                let (kind, assembled) = self.assembled.get_or_insert((piece.kind, Vec::new()));
                assert_eq!(*kind, piece.kind);
                assembled.extend_from_slice(piece.payload);
                assert_eq!(piece.frame_bytes_left, receiver.bytes_missing());
                let whole = if piece.last { self.assembled.take() } else { None };
                Some(whole.map(|(kind, bytes)| Got::Message(kind, bytes)))
            }
        };
        self.buf.drain(..consumed);
        Ok(got)
    }
}

pub(crate) fn message(kind: MessageKind, payload: &[u8]) -> Got {
    Got::Message(kind, payload.to_vec())
}
