use std::ops::Range;

use super::{Control, Decoded, Event, Piece};
use crate::frame::{FIN, Header, LENGTH_16, MASKED, Opcode, mask, mask_is_ascii, rotate_key};
use crate::utf8::{Utf8Validator, unmask_text};
use crate::{
    CloseFrame, EngineConfig, Kind, Limit, ProtocolError, Violation, compressed_bytes_max,
};

/// Turns the bytes that the peer sends into events, in the buffer that they were read into.
///
/// It never copies a message, and never allocates for one. What does not fit the receive buffer comes
/// out in [pieces](Event::Piece), the first of which says how long the frame is; the caller can read
/// the rest to where it assembles the message, and have it decoded there:
///
/// ```
/// use std::time::Instant;
/// use owned_io_websocket::engine::{Engine, Event};
/// use owned_io_websocket::{Config, Kind, Part};
///
/// let now = Instant::now();
/// let mut client = Engine::client(Config::default(), now, |key| key.fill(7)); // use real randomness
/// let mut wire = Vec::new();
/// client.sender.encode(&client.control, Part::Whole(Kind::Binary), &[1; 100_000], &mut wire)?;
///
/// let Engine { mut receiver, control, .. } = Engine::server(Config::default(), now);
/// let (start, rest) = wire.split_at_mut(16 * 1024); // a receive buffer full, say
/// let decoded = receiver.decode(&control, start)?;
/// let Some(Event::Piece(piece)) = decoded.event else { panic!("100,000 bytes do not fit") };
///
/// let mut message = Vec::with_capacity(piece.payload.len() + piece.frame_bytes_left);
/// message.extend_from_slice(piece.payload);
/// while receiver.bytes_missing() > 0 {
///     let at = message.len();
///     message.extend_from_slice(&rest[..receiver.bytes_missing()]); // stands for reading there
///     receiver.decode(&control, &mut message[at..])?;
/// }
/// assert_eq!(message, [1; 100_000]);
/// # Ok::<(), owned_io_websocket::ProtocolError>(())
/// ```
#[derive(Debug)]
pub struct Receiver {
    /// Whether the peer has to mask what it sends: a client has to, a server must not.
    is_peer_masking: bool,
    /// Whether it may compress messages.
    is_peer_compressing: bool,
    frame_bytes_max: usize,
    message_bytes_max: usize,
    whole_frame_bytes_max: usize,
    /// The least of the three.
    whole_message_bytes_max: usize,

    phase: Phase,
    /// The message in several frames that is under way.
    message: Option<OpenMessage>,
    /// Of the text that is under way, what has come out of the decoder.
    utf8: Utf8Validator,
}

/// A message in one frame, all of which is here.
struct WholeMessage {
    kind: Kind,
    key: Option<[u8; 4]>,
    payload: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// A header comes next.
    Header,
    /// Some of a header has come, and the rest comes next.
    HeaderPart,
    /// The payload of this frame comes next.
    Payload(CurrentFrame),
    /// The peer has closed. What comes after is thrown away (section 5.5.1).
    Closed,
    Failed(ProtocolError),
}

/// A frame whose header is done with, and whose payload is not.
#[derive(Clone, Copy, Debug)]
struct CurrentFrame {
    opcode: Opcode,
    fin: bool,
    /// Whether nothing of its message came before.
    first: bool,
    /// Whether it is to come out whole.
    is_whole: bool,
    /// For the next byte that is not yet unmasked.
    key: Option<[u8; 4]>,
    /// How many bytes, at the front of the buffer, are unmasked already.
    unmasked_bytes: usize,
    /// How many bytes follow those.
    bytes_left: usize,
    /// How many of them were in the buffer when it was looked at last, if they were left as they are.
    bytes_seen: usize,
}

impl CurrentFrame {
    /// Whether it is a message of its own, that is to come out whole.
    const fn is_message(&self) -> bool {
        self.is_whole && self.first && self.fin
    }
}

#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    kind: Kind,
    compressed: bool,
    /// Of all its frames so far, as they were announced.
    bytes: usize,
}

impl Receiver {
    pub(super) fn new(config: &EngineConfig, is_peer_masking: bool) -> Self {
        let memory_max = isize::MAX as usize; // the longest slice there can be
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

    /// What [`set_whole_frame_bytes_max`](Self::set_whole_frame_bytes_max) is without a call of it: for
    /// receive buffers of 16 KiB.
    pub const WHOLE_FRAME_BYTES_MAX: usize = 16 * 1024 - Header::BYTES_MAX;

    /// From now on frames of at most this payload, in bytes, are handed out whole, once they are complete in
    /// the receive buffer; longer ones in [pieces](Event::Piece), as their bytes come. To be called before
    /// the first bytes are decoded.
    ///
    /// The receive buffer must hold this much and the longest header, 14 bytes, and no less than 139
    /// bytes: control frames are always whole.
    pub fn set_whole_frame_bytes_max(&mut self, bytes: usize) {
        self.whole_frame_bytes_max = bytes;
        self.whole_message_bytes_max = bytes.min(self.frame_bytes_max).min(self.message_bytes_max);
    }

    /// From now on the peer may compress messages, by an extension that was agreed on (RFC 7692). Those
    /// come in [pieces](Event::Piece), however short they are, that say so. The limits are on what comes
    /// over the wire, which may be [longer](compressed_bytes_max) than
    /// [`message_bytes_max`](EngineConfig::message_bytes_max), and nothing is known of the text: both are for the
    /// caller to see to, whose it is to decompress them.
    pub const fn allow_compressed(&mut self) {
        self.is_peer_compressing = true;
    }

    /// Decodes what is at the front of `buf`, at most one event. For the next one, call it again
    /// with what follows the [consumed](Decoded::consumed) bytes.
    ///
    /// Text that cannot be UTF-8 any more fails with the byte that shows it; or, if that byte is in the
    /// part of a frame that came first, with the next that comes.
    ///
    /// When more bytes are needed, call it again with the same bytes, less those consumed, and more
    /// behind them. The bytes may move meanwhile, but are not to be changed: a part of them may be
    /// unmasked already.
    ///
    /// # Errors
    /// [`ProtocolError::Peer`] and [`ProtocolError::Limit`]. The connection has failed, the close frame that says why
    /// is queued, and every later call says the same.
    ///
    /// # Panics
    /// If bytes are left out that came before and were not consumed.
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

    /// The same for what most frames are, a message of its own that is all here: of what kind it is,
    /// and where its payload. None if it is anything else, or fails: [`decode`](Self::decode) tells.
    #[inline(always)]
    pub(crate) fn decode_whole(
        &mut self,
        control: &Control,
        buf: &mut [u8],
    ) -> Option<(Kind, Range<usize>)> {
        let WholeMessage { kind, key, payload } = self.peek_whole_message(buf)?;
        self.message_event(control, kind, &mut buf[payload.clone()], 0, key).ok()?;
        Some((kind, payload))
    }

    /// How many bytes the frame that is under way lacks, if its header has come; otherwise 0. A frame
    /// that is to come out whole needs all of them; of one in pieces, each part is a piece.
    pub const fn bytes_missing(&self) -> usize {
        match self.phase {
            Phase::Payload(frame) => frame.bytes_left - frame.bytes_seen,
            _ => 0,
        }
    }

    /// What is at the front of `buf`, if it is what most frames are: a message of its own, all here,
    /// that is to come out whole, with nothing else under way. All others, and what is wrong, are left
    /// to [`decode_slow`](Self::decode_slow).
    #[inline(always)]
    fn peek_whole_message(&self, buf: &[u8]) -> Option<WholeMessage> {
        const TEXT: u8 = FIN | Opcode::Text as u8;
        const BINARY: u8 = FIN | Opcode::Binary as u8;
        let &[first, second, ..] = buf else { return None };
        let kind = match first {
            TEXT => Kind::Text,
            BINARY => Kind::Binary,
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

    /// Checks a frame against the rules of section 5 and the limits, before any of its payload is
    /// looked at.
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
            (Opcode::Text, None) => (true, OpenMessage { kind: Kind::Text, compressed, bytes: 0 }),
            (Opcode::Binary, None) => {
                (true, OpenMessage { kind: Kind::Binary, compressed, bytes: 0 })
            }
        };
        let bytes = (message.bytes as u64).saturating_add(bytes_left as u64);
        // Of one that is compressed it is the caller who sees how long it is then.
        let bytes_max = match message.compressed {
            true => compressed_bytes_max(self.message_bytes_max),
            false => self.message_bytes_max,
        };
        let bytes = check_limit(Limit::Message, bytes, bytes_max)?;
        self.message = Some(OpenMessage { bytes, ..message });
        Ok(CurrentFrame { first, ..frame })
    }

    /// Goes on with the frame that is under way, whose payload begins at `start`.
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
        // Most often the next bytes make it whole, and all of it is unmasked and checked at once: to
        // look at text again when it is whole would make 64 KiB cost half as much again as binary.
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
        // Text is checked as it comes, so that what cannot be text any more fails soon.
        if message.is_some() {
            control.handle_data();
        }
        let is_text =
            message.is_some_and(|message| message.kind == Kind::Text && !message.compressed);
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

    /// A message in one frame, whose first `unmasked_bytes` bytes are unmasked already.
    #[inline]
    fn message_event<'b>(
        &mut self,
        control: &Control,
        kind: Kind,
        payload: &'b mut [u8],
        unmasked_bytes: usize,
        key: Option<[u8; 4]>,
    ) -> Result<Event<'b>, ProtocolError> {
        control.handle_data();
        match kind {
            Kind::Binary => {
                if let Some(key) = key {
                    mask(&mut payload[unmasked_bytes..], key);
                }
                Ok(Event::Binary(payload))
            }
            Kind::Text => match unmask_text(payload, unmasked_bytes, key) {
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
            _ => Event::Pong(payload),
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
