use std::ops::Range;

use super::{Control, Decoded, Event, Piece};
use crate::frame::{FIN, Header, LENGTH_16, MASKED, Opcode, mask, mask_is_ascii, rotate_key};
use crate::utf8::{Utf8Validator, unmask_text};
use crate::{
    CloseFrame, EngineConfig, Limit, MessageKind, ProtocolError, Violation, compressed_bytes_max,
};

/// Decodes the bytes that the peer sends into events, in the buffer that they were read into.
///
/// It never copies a message and never allocates memory for one. A frame that does not fit the
/// receive buffer is decoded in [pieces](Event::Piece). The first piece says how long the frame is.
/// The caller can read the rest directly into an assembled message, and decode it there:
///
/// ```
/// use std::time::Instant;
/// use owned_io_websocket::engine::{Engine, Event};
/// use owned_io_websocket::{Config, MessageKind, Fragment};
///
/// let now = Instant::now();
/// let mut client = Engine::client(Config::default(), now, |key| key.fill(7)); // use real randomness
/// let mut wire = Vec::new();
/// client.sender.encode(&client.control, Fragment::Whole(MessageKind::Binary), &[1; 100_000], &mut wire)?;
///
/// let Engine { mut receiver, control, .. } = Engine::server(Config::default(), now);
/// let (start, rest) = wire.split_at_mut(16 * 1024); // as much as a receive buffer holds
/// let decoded = receiver.decode(&control, start)?;
/// let Some(Event::Piece(piece)) = decoded.event else { panic!("100,000 bytes do not fit") };
///
/// let mut message = Vec::with_capacity(piece.payload.len() + piece.frame_bytes_left);
/// message.extend_from_slice(piece.payload);
/// while receiver.bytes_missing() > 0 {
///     let at = message.len();
///     message.extend_from_slice(&rest[..receiver.bytes_missing()]); // stands for a read
///     receiver.decode(&control, &mut message[at..])?;
/// }
/// assert_eq!(message, [1; 100_000]);
/// # Ok::<(), owned_io_websocket::ProtocolError>(())
/// ```
#[derive(Debug)]
pub struct Receiver {
    /// Whether the peer has to mask its frames: a client must, a server must not.
    is_peer_masking: bool,
    /// Whether the peer may compress messages.
    is_peer_compressing: bool,
    frame_bytes_max: usize,
    message_bytes_max: usize,
    whole_frame_bytes_max: usize,
    /// The smallest of the three limits above.
    whole_message_bytes_max: usize,

    phase: Phase,
    /// The current message, if it has several frames or pieces.
    message: Option<OpenMessage>,
    /// Checks the text of the current message, up to the bytes handed out.
    utf8: Utf8Validator,
}

/// A message in one frame that has arrived completely.
struct WholeMessage {
    kind: MessageKind,
    key: Option<[u8; 4]>,
    payload: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// A header comes next.
    Header,
    /// A header has arrived partially.
    HeaderPart,
    /// The payload of this frame comes next.
    Payload(CurrentFrame),
    /// The peer has closed. Later bytes are discarded (section 5.5.1).
    Closed,
    Failed(ProtocolError),
}

/// A frame whose header was decoded and whose payload was not, or only in part.
#[derive(Clone, Copy, Debug)]
struct CurrentFrame {
    opcode: Opcode,
    fin: bool,
    /// Whether nothing of its message came before.
    first: bool,
    /// Whether it is handed out whole.
    is_whole: bool,
    /// The key for the next byte that is not yet unmasked.
    key: Option<[u8; 4]>,
    /// How many bytes at the front of the buffer are unmasked already.
    unmasked_bytes: usize,
    /// How many bytes follow those.
    bytes_left: usize,
    /// How many of the following bytes were in the buffer at the last call, if they were left
    /// masked.
    bytes_seen: usize,
}

impl CurrentFrame {
    /// Whether the frame is a whole message and is handed out whole.
    const fn is_message(&self) -> bool {
        self.is_whole && self.first && self.fin
    }
}

#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    kind: MessageKind,
    compressed: bool,
    /// The sum of the announced lengths of its frames so far.
    bytes: usize,
}

impl Receiver {
    pub(super) fn new(config: &EngineConfig, is_peer_masking: bool) -> Self {
        let memory_max = isize::MAX as usize; // the longest possible slice
        let frame_bytes_max = config.frame_bytes_max.min(memory_max);
        let message_bytes_max = config.message_bytes_max.min(memory_max);
        let mut new = Self {
            is_peer_masking,
            is_peer_compressing: false,
            frame_bytes_max,
            message_bytes_max,
            whole_frame_bytes_max: 0,
            whole_message_bytes_max: 0,
            phase: Phase::Header,
            message: None,
            utf8: Utf8Validator::default(),
        };
        new.set_whole_frame_bytes_max(Self::WHOLE_FRAME_BYTES_MAX);
        new
    }

    /// The default of [`set_whole_frame_bytes_max`](Self::set_whole_frame_bytes_max), for receive
    /// buffers of 16 KiB. Streams set it by the buffers of their pool.
    pub const WHOLE_FRAME_BYTES_MAX: usize = 16 * 1024 - Header::BYTES_MAX;

    /// Sets the longest payload, in bytes, of a frame that is handed out whole, once all of it is
    /// in the receive buffer. Longer frames are handed out in [pieces](Event::Piece) as their bytes
    /// arrive. Call this before the first bytes are decoded.
    ///
    /// The receive buffer must hold this payload and the longest header, 14 bytes, and at least 139
    /// bytes: control frames are always handed out whole.
    pub fn set_whole_frame_bytes_max(&mut self, bytes: usize) {
        self.whole_frame_bytes_max = bytes;
        self.whole_message_bytes_max = bytes.min(self.frame_bytes_max).min(self.message_bytes_max);
    }

    /// The longest message allowed, in bytes.
    pub(crate) const fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// Allows the peer to compress messages, by a negotiated extension (RFC 7692). Compressed
    /// messages are handed out in [pieces](Event::Piece) that say so, however short they are.
    ///
    /// The caller decompresses them, and has two duties. The limits here apply to the compressed
    /// bytes, which may be [more](compressed_bytes_max) than
    /// [`message_bytes_max`](EngineConfig::message_bytes_max), so the caller limits the
    /// decompressed message. And the caller checks text.
    pub const fn allow_compressed(&mut self) {
        self.is_peer_compressing = true;
    }

    /// Decodes at most one event at the front of `buf`. For the next event, call it again with the
    /// bytes after the [consumed](Decoded::consumed) ones.
    ///
    /// Invalid UTF-8 fails at the first byte that shows it. If that byte is in the part of a frame
    /// that arrived first, it fails when the next bytes arrive.
    ///
    /// When more bytes are needed, call it again with the same bytes, without those consumed, and
    /// more behind them. The bytes may be moved meanwhile, but not changed: some may be unmasked
    /// already.
    ///
    /// # Errors
    /// [`ProtocolError::Peer`] and [`ProtocolError::Limit`]. The connection has failed, a close
    /// frame with the reason is queued, and every later call returns the same error.
    ///
    /// # Panics
    /// If bytes are missing that were passed before and not consumed.
    #[inline]
    pub fn decode<'b>(
        &mut self,
        control: &Control,
        buf: &'b mut [u8],
    ) -> Result<Decoded<'b>, ProtocolError> {
        let Some(WholeMessage { kind, key, payload }) = self.peek_whole_message(buf) else {
            return self.decode_slow(control, buf);
        };
        let consumed = payload.end;
        let event = self.message_event(control, kind, &mut buf[payload], 0, key)?;
        Ok(Decoded { consumed, event: Some(event) })
    }

    /// Like [`decode`](Self::decode) for the most common frame, a whole message that has arrived
    /// completely. Returns its kind and where its payload is. Returns `None` for anything else and
    /// for errors; `decode` then handles them.
    #[inline(always)]
    pub(crate) fn decode_whole(
        &mut self,
        control: &Control,
        buf: &mut [u8],
    ) -> Option<(MessageKind, Range<usize>)> {
        let WholeMessage { kind, key, payload } = self.peek_whole_message(buf)?;
        self.message_event(control, kind, &mut buf[payload.clone()], 0, key).ok()?;
        Some((kind, payload))
    }

    /// How many bytes the current frame lacks if its header has been decoded, and otherwise 0. A
    /// frame that is handed out whole needs all of them. For other frames any part makes a piece.
    pub const fn bytes_missing(&self) -> usize {
        match self.phase {
            Phase::Payload(frame) => frame.bytes_left - frame.bytes_seen,
            _ => 0,
        }
    }

    /// Finds the most common frame at the front of `buf`: a whole message that has arrived
    /// completely and fits the limits, while no other message is incomplete.
    /// [`decode_slow`](Self::decode_slow) handles everything else, and all errors.
    #[inline(always)]
    fn peek_whole_message(&self, buf: &[u8]) -> Option<WholeMessage> {
        const TEXT: u8 = FIN | Opcode::Text as u8;
        const BINARY: u8 = FIN | Opcode::Binary as u8;
        let &[first, second, ..] = buf else { return None };
        let kind = match first {
            TEXT => MessageKind::Text,
            BINARY => MessageKind::Binary,
            _ => return None,
        };
        let is_masked = second & MASKED != 0;
        if !matches!(self.phase, Phase::Header)
            || self.message.is_some()
            || is_masked != self.is_peer_masking
        {
            return None;
        }
        let (len, at) = match second & !MASKED {
            short @ 0..LENGTH_16 => (short.into(), 2),
            LENGTH_16 => (u16::from_be_bytes(*buf[2..].first_chunk()?), 4),
            _ => return None,
        };
        let (key, start) = match is_masked {
            true => (Some(*buf.get(at..)?.first_chunk()?), at + 4),
            false => (None, at),
        };
        let payload = start..start + usize::from(len);
        let fits = payload.end <= buf.len() && payload.len() <= self.whole_message_bytes_max;
        let is_minimal = at == 2 || len >= LENGTH_16.into();
        (fits && is_minimal).then_some(WholeMessage { kind, key, payload })
    }

    #[inline(never)]
    fn decode_slow<'b>(
        &mut self,
        control: &Control,
        buf: &'b mut [u8],
    ) -> Result<Decoded<'b>, ProtocolError> {
        let decoded = self.decode_frame(control, buf);
        let is_between = matches!(self.phase, Phase::Header) && self.message.is_none();
        control.handle_message_progress(!is_between);
        decoded
    }

    fn decode_frame<'b>(
        &mut self,
        control: &Control,
        buf: &'b mut [u8],
    ) -> Result<Decoded<'b>, ProtocolError> {
        if !matches!(self.phase, Phase::Header | Phase::HeaderPart) {
            return self.decode_payload(control, buf, 0);
        }
        let (header, header_bytes) = match Header::decode(buf) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => {
                self.phase = if buf.is_empty() { Phase::Header } else { Phase::HeaderPart };
                return Ok(Decoded { consumed: 0, event: None });
            }
            Err(violation) => return Err(self.fail(control, violation.into())),
        };
        match self.accept_header(&header) {
            Ok(frame) => self.phase = Phase::Payload(frame),
            Err(error) => return Err(self.fail(control, error)),
        }
        self.decode_payload(control, buf, header_bytes)
    }

    /// Checks a header against section 5 and the limits, before any payload is looked at.
    fn accept_header(&mut self, header: &Header) -> Result<CurrentFrame, ProtocolError> {
        match header.key {
            None if self.is_peer_masking => return Err(Violation::NotMasked.into()),
            Some(_) if !self.is_peer_masking => return Err(Violation::Masked.into()),
            _ => {}
        }
        let Header { fin, compressed, opcode, key, payload_bytes } = *header;
        if compressed && !self.is_peer_compressing {
            return Err(Violation::ReservedBits.into());
        }
        let bytes_left = check_limit(Limit::Frame, payload_bytes, self.frame_bytes_max)?;
        let is_whole = opcode.is_control() || bytes_left <= self.whole_frame_bytes_max;
        let frame = CurrentFrame {
            opcode,
            fin,
            first: false,
            is_whole,
            key,
            unmasked_bytes: 0,
            bytes_left,
            bytes_seen: 0,
        };
        let (first, message) = match (opcode, self.message) {
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => return Ok(frame),
            (Opcode::Continuation, Some(message)) => (false, message),
            (Opcode::Continuation, None) => {
                return Err(Violation::ContinuationWithoutStart.into());
            }
            (_, Some(_)) => return Err(Violation::MessageWithinMessage.into()),
            (Opcode::Text, None) => {
                (true, OpenMessage { kind: MessageKind::Text, compressed, bytes: 0 })
            }
            (Opcode::Binary, None) => {
                (true, OpenMessage { kind: MessageKind::Binary, compressed, bytes: 0 })
            }
        };
        let bytes = (message.bytes as u64).saturating_add(bytes_left as u64);
        // The caller limits the decompressed length.
        let bytes_max = match message.compressed {
            true => compressed_bytes_max(self.message_bytes_max),
            false => self.message_bytes_max,
        };
        let bytes = check_limit(Limit::Message, bytes, bytes_max)?;
        self.message = Some(OpenMessage { bytes, ..message });
        Ok(CurrentFrame { first, ..frame })
    }

    /// Continues the current frame, whose payload begins at `start`.
    fn decode_payload<'b>(
        &mut self,
        control: &Control,
        buf: &'b mut [u8],
        start: usize,
    ) -> Result<Decoded<'b>, ProtocolError> {
        let mut frame = match self.phase {
            Phase::Payload(frame) => frame,
            Phase::Failed(error) => return Err(error),
            Phase::Closed | Phase::Header | Phase::HeaderPart => {
                return Ok(Decoded { consumed: buf.len(), event: None });
            }
        };
        let end = buf.len().min(start + frame.unmasked_bytes + frame.bytes_left);
        let payload = &mut buf[start..end];
        let message = self.message.filter(|_| !frame.opcode.is_control());
        if let Some(OpenMessage { kind, compressed: false, .. }) = message
            && frame.is_message()
            && payload.len() == frame.unmasked_bytes + frame.bytes_left
        {
            (self.phase, self.message, self.utf8) = (Phase::Header, None, Utf8Validator::default());
            let event =
                self.message_event(control, kind, payload, frame.unmasked_bytes, frame.key)?;
            return Ok(Decoded { consumed: end, event: Some(event) });
        }
        // Usually the next bytes complete the frame, and then all of it is unmasked and checked at
        // once. Checking text a second time when the frame is complete would make 64 KiB of text
        // cost half as much again as binary.
        if frame.is_whole
            && frame.unmasked_bytes + frame.bytes_seen == 0
            && payload.len() < frame.bytes_left
        {
            self.phase = Phase::Payload(CurrentFrame { bytes_seen: payload.len(), ..frame });
            return Ok(Decoded { consumed: start, event: None });
        }
        frame.bytes_seen = 0;
        let fresh = &mut payload[frame.unmasked_bytes..];
        let mut is_ascii = false;
        if let Some(key) = frame.key {
            is_ascii = mask_is_ascii(fresh, key);
            frame.key = Some(rotate_key(key, fresh.len()));
        }
        frame.bytes_left -= fresh.len();
        // Text is checked as it arrives, so that invalid text fails early.
        if message.is_some() {
            control.handle_data();
        }
        let is_text =
            message.is_some_and(|message| message.kind == MessageKind::Text && !message.compressed);
        if is_text && !(is_ascii && self.utf8.is_complete() || self.utf8.push(fresh)) {
            return Err(self.fail(control, Violation::TextNotUtf8.into()));
        }

        if frame.bytes_left > 0 && (frame.is_whole || fresh.is_empty() && !frame.first) {
            frame.unmasked_bytes = if frame.is_whole { payload.len() } else { 0 };
            self.phase = Phase::Payload(frame);
            return Ok(Decoded { consumed: start, event: None });
        }
        self.phase = match frame.bytes_left {
            0 => Phase::Header,
            _ => Phase::Payload(CurrentFrame { first: false, ..frame }),
        };
        let event = match message {
            Some(message) => self.piece_event(message, frame, payload),
            None => self.control_event(control, frame.opcode, payload),
        };
        match event {
            Ok(event) => Ok(Decoded { consumed: end, event: Some(event) }),
            Err(violation) => Err(self.fail(control, violation.into())),
        }
    }

    /// Makes the event of a message in one frame. The first `unmasked_bytes` bytes are unmasked
    /// already.
    #[inline]
    fn message_event<'b>(
        &mut self,
        control: &Control,
        kind: MessageKind,
        payload: &'b mut [u8],
        unmasked_bytes: usize,
        key: Option<[u8; 4]>,
    ) -> Result<Event<'b>, ProtocolError> {
        control.handle_data();
        match kind {
            MessageKind::Binary => {
                if let Some(key) = key {
                    mask(&mut payload[unmasked_bytes..], key);
                }
                Ok(Event::Binary(payload))
            }
            MessageKind::Text => match unmask_text(payload, unmasked_bytes, key) {
                Some(text) => Ok(Event::Text(text)),
                None => Err(self.fail(control, Violation::TextNotUtf8.into())),
            },
        }
    }

    fn piece_event<'b>(
        &mut self,
        message: OpenMessage,
        frame: CurrentFrame,
        payload: &'b mut [u8],
    ) -> Result<Event<'b>, Violation> {
        let CurrentFrame { first, bytes_left, .. } = frame;
        let last = frame.fin && bytes_left == 0;
        if last {
            self.message = None;
            if !self.utf8.is_complete() {
                return Err(Violation::TextNotUtf8);
            }
        }
        let OpenMessage { kind, compressed, .. } = message;
        Ok(Event::Piece(Piece {
            kind,
            compressed,
            payload,
            first,
            last,
            frame_bytes_left: bytes_left,
        }))
    }

    fn control_event<'b>(
        &mut self,
        control: &Control,
        opcode: Opcode,
        payload: &'b mut [u8],
    ) -> Result<Event<'b>, Violation> {
        let payload = &*payload;
        Ok(match opcode {
            Opcode::Ping => {
                control.handle_ping(payload);
                Event::Ping(payload)
            }
            Opcode::Close => {
                let frame = CloseFrame::decode(payload)?;
                self.phase = Phase::Closed;
                control.handle_close(frame);
                Event::Close(frame)
            }
            _ => {
                control.handle_pong();
                Event::Pong(payload)
            }
        })
    }

    #[cold]
    fn fail(&mut self, control: &Control, error: ProtocolError) -> ProtocolError {
        let error = control.fail(error);
        self.phase = Phase::Failed(error);
        error
    }
}

fn check_limit(limit: Limit, got: u64, max: usize) -> Result<usize, ProtocolError> {
    match usize::try_from(got) {
        Ok(bytes) if bytes <= max => Ok(bytes),
        _ => Err(ProtocolError::Limit { limit, max: max as u64, got }),
    }
}
