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
/// It does no I/O and reads no clock. Its only allocations are for payloads of control frames, on
/// first use. It has three parts, which can be used together or moved apart. The [`Receiver`]
/// belongs to the code that reads, the [`Sender`] to the code that writes. Both borrow [`Control`],
/// which has the control frames that are due, the closing handshake and the timers.
///
/// # The order of calls
///
/// - To read: call [`Control::handle_read_start`], read bytes into a buffer, call
///   [`Control::handle_received`], and then [`Receiver::decode`] until it needs more bytes.
/// - To write: [`Sender::encode`] messages, call [`Sender::poll_control`], write the bytes, and
///   call [`Sender::handle_written`].
/// - When [`Control::poll_timeout`] is due, call [`Control::handle_timeout`].
///
/// After each of these, `poll_control` may have something to send. Once [`Control::state`] is
/// [`Closed`](State::Closed) and everything is written, shut the stream down.
///
/// ```
/// use std::time::Instant;
/// use owned_io_websocket::engine::{Engine, Event};
/// use owned_io_websocket::{Config, MessageKind, Fragment};
///
/// let now = Instant::now();
/// let mut client = Engine::client(Config::default(), now, |key| key.fill(7)); // use real randomness
/// let mut server = Engine::server(Config::default(), now);
///
/// let mut wire = Vec::new();
/// client.sender.encode(&client.control, Fragment::Whole(MessageKind::Text), b"hello", &mut wire)?;
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
///             server.sender.encode(&server.control, Fragment::Whole(MessageKind::Text), echo, &mut answer)?;
///         }
///         Some(_) => {}  // a ping; `poll_control` sends the pong
///         None => break, // more bytes are needed
///     }
/// }
/// server.sender.poll_control(&server.control, &mut answer);
/// assert_eq!(answer, b"\x81\x05hello\x8A\x06there?");
/// # Ok::<(), owned_io_websocket::ProtocolError>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    /// Decodes what the peer sends.
    pub receiver: Receiver,
    /// Encodes what is sent to the peer.
    pub sender: Sender,
    /// The state that both share.
    pub control: Control,
}

impl Engine {
    /// Creates the server's side, with the limits and timeouts of `config`. `now` starts the
    /// timers.
    pub fn server(config: Config, now: Instant) -> Self {
        Self {
            receiver: Receiver::new(&config.engine, true),
            sender: Sender::new(&config.engine, None),
            control: Control::new(&config.stream, now),
        }
    }

    /// Creates the client's side, with the limits and timeouts of `config`. `now` starts the
    /// timers. `fill_random` fills a slice with unpredictable bytes, for masking keys (section
    /// 5.3).
    pub fn client(config: Config, now: Instant, fill_random: fn(&mut [u8])) -> Self {
        Self {
            receiver: Receiver::new(&config.engine, false),
            sender: Sender::new(&config.engine, Some(fill_random)),
            control: Control::new(&config.stream, now),
        }
    }
}
