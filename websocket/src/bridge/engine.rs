//! [`Engine`]: tungstenite under our names.

use bytes::Bytes;
use owned_io::coop;
use tungstenite::protocol::frame::coding::OpCode;
use tungstenite::protocol::frame::{CloseFrame as TheirCloseFrame, Frame, FrameHeader};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

use super::error::Meaning;
use super::memory::Memory;
use super::sync::SyncBuffers;
use crate::close::PeerClose;
use crate::frame::{CONTROL_PAYLOAD_BYTES_MAX, Header, Opcode};
use crate::{CloseCode, CloseFrame, Config, Error, Limit, Misuse, Part};

/// Control frames that may wait besides what the queue may hold, in bytes: the close frame, and answers
/// to pings. Of those that do not fit, the last one is sent.
const CONTROL_BYTES: usize = 4 * 1024;

/// What comes out of tungstenite when bytes were received, and goes into it to be sent. It does not
/// wait for anything.
pub(super) struct Engine {
    socket: WebSocket<SyncBuffers>,
    pub(super) memory: Memory,
    config: Config,
    role: Role,
    /// Whether a message was begun and not yet ended.
    is_within_message: bool,
    /// Bytes of frames that were queued since all was written last.
    queued_bytes: usize,
    /// Whether something is queued that has to leave even if nobody flushes.
    has_replies: bool,
}

/// What is found in what was received.
pub(super) enum Next {
    Message(Message),
    /// More has to be read.
    Starved,
    /// There may be more, but others have to have their turn first.
    Exhausted,
    /// There may be more, but no memory for it yet.
    OutOfMemory,
    /// The closing handshake is done, but for what is queued; and with the peer's close frame, if that has
    /// just come.
    Closed(Option<PeerClose>),
    Failed(Error),
}

impl Engine {
    /// A connection whose first frames have come with the handshake, maybe.
    pub(super) fn new(
        sync: SyncBuffers,
        memory: Memory,
        first: Vec<u8>,
        role: Role,
        config: Config,
    ) -> Self {
        let limits = WebSocketConfig::default()
            .read_buffer_size(sync.base_bytes())
            .write_buffer_size(0) // what is copied for the connection need not wait in another buffer
            .max_write_buffer_size(config.queue_bytes_max.saturating_add(CONTROL_BYTES))
            .max_message_size(Some(config.message_bytes_max))
            .max_frame_size(Some(config.frame_bytes_max));
        Self {
            socket: WebSocket::from_partially_read(sync, first, role, Some(limits)),
            memory,
            config,
            role,
            is_within_message: false,
            queued_bytes: 0,
            has_replies: false,
        }
    }

    pub(super) const fn is_server(&self) -> bool {
        matches!(self.role, Role::Server)
    }

    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(super) const fn has_replies(&self) -> bool {
        self.has_replies
    }

    pub(super) fn sync(&self) -> &SyncBuffers {
        self.socket.get_ref()
    }

    pub(super) fn sync_mut(&mut self) -> &mut SyncBuffers {
        self.socket.get_mut()
    }

    /// What was received says; pings are answered.
    pub(super) fn next(&mut self) -> Next {
        loop {
            if !coop::has_budget() {
                return Next::Exhausted;
            }
            return match self.socket.read() {
                Ok(message @ (Message::Text(_) | Message::Binary(_))) => {
                    consume(message.len());
                    self.memory.handle_message(message.len());
                    Next::Message(message)
                }
                Ok(Message::Close(frame)) => {
                    self.has_replies = true;
                    Next::Closed(Some(peer_close(frame)))
                }
                Ok(Message::Ping(_)) => {
                    self.has_replies = true;
                    consume(0);
                    continue; // it queues the pong when it is called again
                }
                Ok(Message::Pong(_) | Message::Frame(_)) => {
                    consume(0);
                    continue;
                }
                Err(error) => match Meaning::of(&error, &self.config) {
                    Meaning::WouldBlock => Next::Starved,
                    Meaning::Closed => Next::Closed(None),
                    Meaning::Error(error) => Next::Failed(error),
                },
            };
        }
    }

    /// Queues a frame of a message.
    pub(super) fn write(&mut self, part: Part, payload: Bytes) -> Result<(), Error> {
        match (part, self.is_within_message) {
            (Part::Whole(_) | Part::First(_), true) => Err(Misuse::MessageWithinMessage.into()),
            (Part::Middle | Part::Last, false) => Err(Misuse::ContinuationWithoutStart.into()),
            _ => {
                let (opcode, is_last) = part.opcode();
                self.queue(opcode, is_last, payload)?;
                self.is_within_message = !is_last;
                Ok(())
            }
        }
    }

    /// Queues a ping.
    pub(super) fn ping(&mut self, payload: &[u8]) -> Result<(), Error> {
        if payload.len() > CONTROL_PAYLOAD_BYTES_MAX {
            return Err(Misuse::LongControlFrame.into());
        }
        self.queue(Opcode::Ping, true, Bytes::copy_from_slice(payload))
    }

    /// Queues a close frame; whether there was room.
    pub(super) fn close(&mut self, frame: CloseFrame<'_>) -> bool {
        self.has_replies = true;
        let frame = frame
            .code
            .map(|code| TheirCloseFrame { code: code.get().into(), reason: frame.reason.into() });
        !matches!(self.socket.close(frame), Err(tungstenite::Error::WriteBufferFull(_)))
    }

    /// There is something to do that nobody flushes for.
    pub(super) const fn handle_ending(&mut self) {
        self.has_replies = true;
    }

    /// What is to be written next; none if all is.
    pub(super) fn take_outbound(&mut self) -> Option<Vec<u8>> {
        // All that it may say is that there is more, which is seen below, or that this is the end.
        let _ = self.socket.flush();
        self.sync_mut().take_outbound()
    }

    /// All is written.
    pub(super) fn handle_flushed(&mut self) {
        self.memory.handle_flushed();
        (self.queued_bytes, self.has_replies) = (0, false);
    }

    fn queue(&mut self, opcode: Opcode, fin: bool, payload: Bytes) -> Result<(), Error> {
        let key = (self.role == Role::Client).then_some([0; 4]); // it draws another, as long
        let payload_bytes = payload.len() as u64;
        let header = Header { fin, compressed: false, opcode, key, payload_bytes };
        let frame_bytes = header.encoded_bytes() + payload.len();
        let queued_bytes = self.queued_bytes.saturating_add(frame_bytes);
        let max = self.config.queue_bytes_max;
        if queued_bytes > max {
            let (limit, max, got) = (Limit::Queue, max as u64, queued_bytes as u64);
            return Err(Error::Limit { limit, max, got });
        }
        self.memory.reserve_queued(queued_bytes)?;
        consume(payload.len());
        let opcode = OpCode::from(opcode as u8);
        let header = FrameHeader { is_final: fin, opcode, ..FrameHeader::default() };
        let frame = Message::Frame(Frame::from_payload(header, payload));
        if let Err(error) = self.socket.write(frame) {
            match Meaning::of(&error, &self.config) {
                Meaning::WouldBlock => {} // it is queued all the same
                Meaning::Closed => return Err(Misuse::SentAfterClose.into()),
                Meaning::Error(error) => return Err(error),
            }
        }
        self.queued_bytes = queued_bytes;
        Ok(())
    }
}

/// Takes from the budget of the running poll what a frame costs: 200 ns, and a quarter of a nanosecond for
/// each byte that is copied.
fn consume(bytes: usize) {
    coop::consume(200 + bytes as u64 / 4);
}

fn peer_close(frame: Option<TheirCloseFrame>) -> PeerClose {
    match &frame {
        Some(frame) => {
            let code = CloseCode::new(frame.code.into());
            CloseFrame { code, reason: &frame.reason }.into()
        }
        None => CloseFrame { code: None, reason: "" }.into(),
    }
}
