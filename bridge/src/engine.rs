//! [`Engine`]: tungstenite with the interface of `owned-io-websocket`.

use bytes::Bytes;
use owned_io::coop;
use owned_io_websocket::frame::{Header, Opcode};
use owned_io_websocket::{
    CloseCode, CloseFrame, EngineConfig, Fragment, Limit, MessageKind, Misuse, ProtocolError,
};
use tungstenite::protocol::frame::coding::OpCode;
use tungstenite::protocol::frame::{CloseFrame as TungsteniteCloseFrame, Frame, FrameHeader};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Message, Utf8Bytes, WebSocket};

use crate::engine_memory::EngineMemory;
use crate::error::{ErrorClass, classify};
use crate::sync_buffers::SyncBuffers;

/// The most bytes of pongs that may be queued beyond the frames of the program. If more do not fit,
/// only the last is sent. They are not reserved.
const PONG_BYTES_MAX: usize = 4 * 1024;

/// The most bytes of a control frame, from a client.
const CONTROL_FRAME_BYTES_MAX: usize = CONTROL_PAYLOAD_BYTES_MAX + 6;

/// The longest payload of a control frame, in bytes (RFC 6455 section 5.5).
const CONTROL_PAYLOAD_BYTES_MAX: usize = 125;

/// tungstenite over memory: decodes what was received and encodes what is to be sent. It never
/// waits.
pub(crate) struct Engine {
    socket: WebSocket<SyncBuffers>,
    pub(crate) memory: EngineMemory,
    config: EngineConfig,
    role: Role,
    /// Whether a message was begun and not ended.
    is_within_message: bool,
    /// The bytes of frames queued since the queue was last empty.
    queued_bytes: usize,
    /// Whether there is something to write even if nobody flushes.
    has_replies: bool,
}

/// The peer's close frame.
pub(crate) struct PeerClose {
    code: Option<CloseCode>,
    reason: Utf8Bytes,
}

/// The outcome of looking for the next message.
pub(crate) enum ReceiveStatus {
    Message(Message),
    /// More bytes have to be read.
    NeedsRead,
    /// The task's work budget is used up. Other tasks have to run first.
    BudgetExhausted,
    /// Memory has to be released first.
    OutOfMemory,
    /// The closing handshake is done, except for what is still queued. Has the peer's close frame
    /// if that has just arrived.
    Closed(Option<PeerClose>),
    Failed(ProtocolError),
}

impl Engine {
    /// Creates the engine of a connection. `first` are the bytes that arrived behind the handshake.
    pub(crate) fn new(
        sync_buffers: SyncBuffers,
        memory: EngineMemory,
        first: Vec<u8>,
        role: Role,
        config: EngineConfig,
    ) -> Self {
        let limits = WebSocketConfig::default()
            .read_buffer_size(sync_buffers.base_bytes())
            .write_buffer_size(0) // the bridge's own buffer gathers writes
            .max_write_buffer_size(PONG_BYTES_MAX) // see `set_queued`
            .max_message_size(Some(config.message_bytes_max))
            .max_frame_size(Some(config.frame_bytes_max));
        let mut socket = WebSocket::from_partially_read(sync_buffers, first, role, Some(limits));
        socket.get_mut().set_outbound_bytes_max(PONG_BYTES_MAX);
        Self {
            socket,
            memory,
            config,
            role,
            is_within_message: false,
            queued_bytes: 0,
            has_replies: false,
        }
    }

    pub(crate) const fn is_server(&self) -> bool {
        matches!(self.role, Role::Server)
    }

    pub(crate) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(crate) const fn has_replies(&self) -> bool {
        self.has_replies
    }

    pub(crate) fn sync_buffers(&self) -> &SyncBuffers {
        self.socket.get_ref()
    }

    pub(crate) fn sync_buffers_mut(&mut self) -> &mut SyncBuffers {
        self.socket.get_mut()
    }

    /// Decodes up to the next message. Queues the answers to pings.
    pub(crate) fn next(&mut self) -> ReceiveStatus {
        loop {
            if !coop::has_budget() {
                return ReceiveStatus::BudgetExhausted;
            }
            return match self.socket.read() {
                Ok(message @ (Message::Text(_) | Message::Binary(_))) => {
                    consume(message.len());
                    self.memory.handle_message(message.len());
                    ReceiveStatus::Message(message)
                }
                Ok(Message::Close(frame)) => {
                    self.has_replies = true;
                    ReceiveStatus::Closed(Some(frame.into()))
                }
                Ok(Message::Ping(_)) => {
                    self.has_replies = true;
                    consume(0);
                    continue; // the next call queues the pong
                }
                Ok(Message::Pong(_) | Message::Frame(_)) => {
                    consume(0);
                    continue;
                }
                Err(error) => match classify(&error, &self.config) {
                    ErrorClass::WouldBlock => ReceiveStatus::NeedsRead,
                    ErrorClass::Closed => ReceiveStatus::Closed(None),
                    ErrorClass::Error(error) => ReceiveStatus::Failed(error),
                },
            };
        }
    }

    /// Queues a frame of a message.
    pub(crate) fn write(
        &mut self,
        fragment: Fragment,
        payload: Bytes,
    ) -> Result<(), ProtocolError> {
        match (fragment, self.is_within_message) {
            (Fragment::Whole(_) | Fragment::First(_), true) => {
                Err(Misuse::MessageWithinMessage.into())
            }
            (Fragment::Middle | Fragment::Last, false) => {
                Err(Misuse::ContinuationWithoutStart.into())
            }
            _ => {
                let (opcode, is_last) = opcode(fragment);
                self.queue(opcode, is_last, payload)?;
                self.is_within_message = !is_last;
                Ok(())
            }
        }
    }

    /// Queues a ping.
    pub(crate) fn ping(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        if payload.len() > CONTROL_PAYLOAD_BYTES_MAX {
            return Err(Misuse::LongControlFrame.into());
        }
        self.queue(Opcode::Ping, true, Bytes::copy_from_slice(payload))
    }

    /// Queues a close frame. There is always room for it.
    pub(crate) fn close(&mut self, frame: CloseFrame<'_>) {
        self.has_replies = true;
        self.set_queued(self.queued_bytes.saturating_add(2 * CONTROL_FRAME_BYTES_MAX));
        // First a pong that waited for room is queued, because nothing may follow the close frame. An
        // error means the same as below.
        let _ = self.socket.flush();
        let frame = frame.code.map(|code| TungsteniteCloseFrame {
            code: code.get().into(),
            reason: frame.reason.into(),
        });
        // An error means that the buffer of the bridge is full or is being written, or that the
        // connection is closed.
        let _ = self.socket.close(frame);
    }

    /// The connection is ending. Something may be left to write even if nobody flushes.
    pub(crate) const fn handle_ending(&mut self) {
        self.has_replies = true;
    }

    /// Takes the buffer to write next; `None` if everything is written.
    pub(crate) fn take_outbound(&mut self) -> Option<Vec<u8>> {
        // An error means that the buffer is full, which is seen below, or that the connection is
        // closed.
        let _ = self.socket.flush();
        self.sync_buffers_mut().take_outbound()
    }

    /// Everything is written.
    pub(crate) fn handle_flushed(&mut self) {
        self.memory.handle_flushed();
        self.has_replies = false;
        if self.queued_bytes > 0 {
            self.set_queued(0);
        }
    }

    /// Records how many bytes were queued since the queue was last empty. Both buffers then take that
    /// many bytes, and the pongs.
    fn set_queued(&mut self, queued_bytes: usize) {
        self.queued_bytes = queued_bytes;
        let bytes_max = queued_bytes.saturating_add(PONG_BYTES_MAX);
        self.socket.set_config(|config| config.max_write_buffer_size = bytes_max);
        self.sync_buffers_mut().set_outbound_bytes_max(bytes_max);
    }

    fn queue(&mut self, opcode: Opcode, fin: bool, payload: Bytes) -> Result<(), ProtocolError> {
        let key = (self.role == Role::Client).then_some([0; 4]); // for the length only: tungstenite draws the key
        let payload_bytes = payload.len() as u64;
        let header = Header { fin, compressed: false, opcode, key, payload_bytes };
        let frame_bytes = header.encoded_bytes() + payload.len();
        let queued_bytes = self.queued_bytes.saturating_add(frame_bytes);
        let max = self.config.queue_bytes_max;
        if queued_bytes > max {
            let (limit, max, got) = (Limit::Queue, max as u64, queued_bytes as u64);
            return Err(ProtocolError::Limit { limit, max, got });
        }
        if !self.socket.can_write() {
            return Err(Misuse::SentAfterClose.into()); // before memory is reserved
        }
        self.memory.reserve_queued(queued_bytes)?;
        consume(payload.len());
        let queued_before = self.queued_bytes;
        self.set_queued(queued_bytes);
        let opcode = OpCode::from(opcode as u8);
        let header = FrameHeader { is_final: fin, opcode, ..FrameHeader::default() };
        let frame = Message::Frame(Frame::from_payload(header, payload));
        let Err(error) = self.socket.write(frame) else { return Ok(()) };
        let refused = match classify(&error, &self.config) {
            ErrorClass::WouldBlock => return Ok(()), // queued all the same
            ErrorClass::Closed => Misuse::SentAfterClose.into(),
            ErrorClass::Error(error) => error,
        };
        self.set_queued(queued_before);
        Err(refused)
    }
}

/// Charges a frame to the work budget of the running poll.
fn consume(bytes: usize) {
    coop::consume(coop::cost::bridged_frame(bytes));
}

/// The opcode of a frame, and whether it is the last of its message.
const fn opcode(fragment: Fragment) -> (Opcode, bool) {
    const fn of(kind: MessageKind) -> Opcode {
        match kind {
            MessageKind::Text => Opcode::Text,
            MessageKind::Binary => Opcode::Binary,
        }
    }
    match fragment {
        Fragment::Whole(kind) => (of(kind), true),
        Fragment::First(kind) => (of(kind), false),
        Fragment::Middle => (Opcode::Continuation, false),
        Fragment::Last => (Opcode::Continuation, true),
    }
}

impl PeerClose {
    pub(crate) fn frame(&self) -> CloseFrame<'_> {
        CloseFrame { code: self.code, reason: &self.reason }
    }
}

impl From<Option<TungsteniteCloseFrame>> for PeerClose {
    fn from(frame: Option<TungsteniteCloseFrame>) -> Self {
        match frame {
            Some(frame) => Self { code: CloseCode::new(frame.code.into()), reason: frame.reason },
            None => Self { code: None, reason: Utf8Bytes::default() },
        }
    }
}
