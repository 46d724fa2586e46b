//! The protocol as a state machine: bytes and times in, events and bytes out.

mod control;
mod event;
mod receive;
mod send;
mod timers;

use std::time::Instant;

pub use control::{Control, State};
pub use event::{Decoded, Event, Piece};
pub use receive::Receiver;
pub use send::Sender;

use crate::Config;

/// One side of a WebSocket connection, from the end of the handshake on (RFC 6455 sections 5 to 7).
///
/// It does no I/O, reads no clock, and allocates nothing but room for the payload of a control frame,
/// the first time there is one. It comes in three parts, to be used where they are or to be moved
/// apart: the [`Receiver`] and the [`Sender`] belong to whoever reads and writes, and [`Control`] is
/// what they share, by reference: what is to be answered, how the connection closes, and when
/// something is late.
///
/// # The order of calls
///
/// Reading: tell [`Control::handle_read_start`], read bytes into a buffer, tell
/// [`Control::handle_received`], and call [`Receiver::decode`] until it needs more. Writing: [`Sender::encode`] messages, then
/// [`Sender::poll_control`], write the bytes, and tell [`Sender::handle_written`]. After either,
/// and when [`Control::poll_timeout`] is due ([`Control::handle_timeout`]), there may be something
/// for `poll_control` to send. Once [`Control::state`] is [`Closed`](State::Closed) and all is
/// written, the stream can be shut down.
///
/// ```
/// use std::time::Instant;
/// use owned_io_websocket::engine::{Engine, Event};
/// use owned_io_websocket::{Config, Kind, Part};
///
/// let now = Instant::now();
/// let mut client = Engine::client(Config::default(), now, |key| key.fill(7)); // use real randomness
/// let mut server = Engine::server(Config::default(), now);
///
/// let mut wire = Vec::new();
/// client.sender.encode(&client.control, Part::Whole(Kind::Text), b"hello", &mut wire)?;
/// client.control.ping(b"there?")?;
/// client.sender.poll_control(&client.control, &mut wire);
///
/// let (mut at, mut answer) = (0, Vec::new());
/// server.control.handle_received(now);
/// while at < wire.len() {
///     let decoded = server.receiver.decode(&server.control, &mut wire[at..])?;
///     at += decoded.consumed;
///     match decoded.event {
///         Some(Event::Text(text)) => {
///             let echo = text.as_bytes();
///             server.sender.encode(&server.control, Part::Whole(Kind::Text), echo, &mut answer)?;
///         }
///         Some(_) => {}  // a ping, which is answered below
///         None => break, // more bytes are needed
///     }
/// }
/// server.sender.poll_control(&server.control, &mut answer);
/// assert_eq!(answer, b"\x81\x05hello\x8A\x06there?");
/// # Ok::<(), owned_io_websocket::ProtocolError>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    /// What the peer sends.
    pub receiver: Receiver,
    /// What is sent to the peer.
    pub sender: Sender,
    /// What the two share.
    pub control: Control,
}

impl Engine {
    /// The server's side, with the limits and the time-outs of `config`. `now` starts the timers.
    pub fn server(config: Config, now: Instant) -> Self {
        Self {
            receiver: Receiver::new(&config.engine, true),
            sender: Sender::new(&config.engine, None),
            control: Control::new(&config.stream, now),
        }
    }

    /// The client's side, with the limits and the time-outs of `config`. `now` starts the timers;
    /// `fill_random` fills bytes that nobody can predict, from which the masking keys are made (section
    /// 5.3).
    pub fn client(config: Config, now: Instant, fill_random: fn(&mut [u8])) -> Self {
        Self {
            receiver: Receiver::new(&config.engine, false),
            sender: Sender::new(&config.engine, Some(fill_random)),
            control: Control::new(&config.stream, now),
        }
    }
}
