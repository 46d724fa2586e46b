use std::time::Instant;

use super::{Control, State};
use crate::frame::{CONTROL_PAYLOAD_BYTES_MAX, Header, HeaderBytes, mask};
use crate::{EngineConfig, Fragment, Limit, MessageKind, Misuse, ProtocolError};

/// Encodes messages into the bytes that are sent to the peer.
///
/// A caller that gathers frames and writes many at once can choose for each frame:
///
/// - [`encode`](Self::encode) copies the payload behind its header. Best for small payloads.
/// - [`encode_header`](Self::encode_header) makes only the header. A server sends the payload in
///   place, possibly shared with other connections.
/// - [`encode_in_place`](Self::encode_in_place) makes the header of a payload that the caller owns
///   alone. A client masks the payload in place.
///
/// Write the frames in the order of the calls, including those of
/// [`poll_control`](Self::poll_control). Bytes that are encoded and not yet
/// [written](Self::handle_written) count towards
/// [`queue_bytes_max`](EngineConfig::queue_bytes_max).
///
/// ```
/// use std::time::Instant;
/// use owned_io_websocket::engine::Engine;
/// use owned_io_websocket::{Config, MessageKind, Fragment};
///
/// let now = Instant::now();
/// let Engine { mut sender, control, .. } = Engine::server(Config::default(), now);
/// let mut queue = Vec::new();
/// sender.encode(&control, Fragment::Whole(MessageKind::Text), b"small", &mut queue)?;
///
/// let large: std::rc::Rc<[u8]> = vec![0; 100_000].into();
/// let header = sender.encode_header(&control, Fragment::Whole(MessageKind::Binary), large.len())?;
/// queue.extend_from_slice(&header);
/// // Write `queue` and `large`, for example by one vectored write, and report what was written:
/// sender.handle_written(&control, queue.len() + large.len(), now);
/// assert_eq!(sender.queued_bytes(), 0);
/// # Ok::<(), owned_io_websocket::ProtocolError>(())
/// ```
#[derive(Debug)]
pub struct Sender {
    /// `None` on a server. Boxed, because a server has many connections.
    keys: Option<Box<MaskingKeys>>,
    /// Whether a message was begun and not ended.
    is_within_message: bool,
    queue_bytes_max: usize,
    queued_bytes: usize,
}

impl Sender {
    pub(super) fn new(config: &EngineConfig, fill_random: Option<fn(&mut [u8])>) -> Self {
        Self {
            keys: fill_random.map(|fill_random| Box::new(MaskingKeys::new(fill_random))),
            is_within_message: false,
            queue_bytes_max: config.queue_bytes_max,
            queued_bytes: 0,
        }
    }

    /// Appends a frame to `out`.
    ///
    /// Text must be UTF-8 over all its parts. That is not checked here; the peer will check it.
    ///
    /// # Errors
    /// [`Limit::Queue`], and each [`Misuse`] of messages. Nothing is appended, and nothing has
    /// changed.
    #[inline]
    pub fn encode(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let header = self.accept_frame(control, fragment, payload.len())?;
        append_frame(header, payload, out);
        Ok(())
    }

    /// Appends a message in one frame. Its payload is already compressed as negotiated with the
    /// peer (RFC 7692).
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_compressed(
        &mut self,
        control: &Control,
        kind: MessageKind,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let header = self.accept_frame(control, Fragment::Whole(kind), payload.len())?;
        append_frame(Header { compressed: true, ..header }, payload, out);
        Ok(())
    }

    /// Returns the header of a frame whose payload, of `payload_bytes` bytes, the caller sends
    /// unchanged.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode), and [`Misuse::NotMasked`] on a client.
    #[inline]
    pub fn encode_header(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload_bytes: usize,
    ) -> Result<HeaderBytes, ProtocolError> {
        if self.is_masking() {
            return Err(Misuse::NotMasked.into());
        }
        Ok(self.accept_frame(control, fragment, payload_bytes)?.encode())
    }

    /// Returns the header of a frame whose payload the caller sends in place. A client masks the
    /// payload.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode). The payload is unchanged.
    #[inline]
    pub fn encode_in_place(
        &mut self,
        control: &Control,
        fragment: Fragment,
        payload: &mut [u8],
    ) -> Result<HeaderBytes, ProtocolError> {
        let header = self.accept_frame(control, fragment, payload.len())?;
        if let Some(key) = header.key {
            mask(payload, key);
        }
        Ok(header.encode())
    }

    /// Appends the control frames that are due to `out`: pong, ping and close frame. Returns
    /// whether there were any.
    ///
    /// While the queue is full they wait, only the latest pong among them, until some of the queue
    /// is written.
    pub fn poll_control(&mut self, control: &Control, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        while self.queued_bytes == 0
            || self.queued_bytes + CONTROL_FRAME_BYTES_MAX <= self.queue_bytes_max
        {
            let Some((opcode, payload)) = control.poll_frame() else { break };
            let payload = payload.as_bytes();
            let key = self.keys.as_mut().map(|keys| keys.next());
            let payload_bytes = payload.len() as u64;
            let header = Header { fin: true, compressed: false, opcode, key, payload_bytes };
            let start = out.len();
            append_frame(header, payload, out);
            self.queued_bytes += out.len() - start;
        }
        out.len() > before
    }

    /// This many bytes of what was encoded have been written.
    ///
    /// # Panics
    /// If fewer bytes were [queued](Self::queued_bytes).
    pub fn handle_written(&mut self, control: &Control, bytes: usize, now: Instant) {
        self.handle_written_at(control, bytes, Some(now));
    }

    /// Like [`handle_written`](Self::handle_written), with [`Control::write_time`].
    pub(crate) fn handle_written_at(
        &mut self,
        control: &Control,
        bytes: usize,
        now: Option<Instant>,
    ) {
        assert!(bytes <= self.queued_bytes, "{bytes} bytes written of {}", self.queued_bytes);
        self.queued_bytes -= bytes;
        control.handle_written(now);
    }

    /// Whether payloads are masked, as a client's are.
    #[inline]
    pub(crate) const fn is_masking(&self) -> bool {
        self.keys.is_some()
    }

    /// The number of bytes that are encoded and not yet written.
    pub const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Checks a frame against section 5.4 and the limit on the queue.
    #[inline]
    pub(crate) fn check_frame(
        &self,
        control: &Control,
        fragment: Fragment,
        len: usize,
    ) -> Result<(), ProtocolError> {
        if control.state() != State::Open {
            return Err(Misuse::SentAfterClose.into());
        }
        match (fragment, self.is_within_message) {
            (Fragment::Whole(_) | Fragment::First(_), true) => {
                return Err(Misuse::MessageWithinMessage.into());
            }
            (Fragment::Middle | Fragment::Last, false) => {
                return Err(Misuse::ContinuationWithoutStart.into());
            }
            _ => {}
        }
        let queued = self.queued_bytes.saturating_add(len).saturating_add(Header::BYTES_MAX);
        if queued > self.queue_bytes_max {
            return Err(self.queue_full(queued));
        }
        Ok(())
    }

    /// Checks a frame and counts it.
    #[inline]
    fn accept_frame(
        &mut self,
        control: &Control,
        fragment: Fragment,
        len: usize,
    ) -> Result<Header, ProtocolError> {
        self.check_frame(control, fragment, len)?;
        Ok(self.begin_frame(control, fragment, len))
    }

    /// Counts a frame that was [checked](Self::check_frame) before, and returns its header. The
    /// connection may have begun to close since: the frame comes before the close frame.
    #[inline]
    pub(crate) fn begin_frame(
        &mut self,
        control: &Control,
        fragment: Fragment,
        len: usize,
    ) -> Header {
        let (opcode, fin) = fragment.opcode();
        self.is_within_message = !fin;
        let key = self.keys.as_mut().map(|keys| keys.next());
        let header = Header { fin, compressed: false, opcode, key, payload_bytes: len as u64 };
        self.queued_bytes += header.encoded_bytes() + len;
        control.handle_data();
        header
    }

    #[cold]
    fn queue_full(&self, queued: usize) -> ProtocolError {
        ProtocolError::Limit {
            limit: Limit::Queue,
            max: self.queue_bytes_max as u64,
            got: queued as u64,
        }
    }
}

/// The length of the longest control frame, in bytes.
const CONTROL_FRAME_BYTES_MAX: usize = CONTROL_PAYLOAD_BYTES_MAX + Header::BYTES_MAX;

#[inline]
fn append_frame(header: Header, payload: &[u8], out: &mut Vec<u8>) {
    // Copies a fixed length, longer than a header can be, and truncates. That avoids a copy of
    // variable length.
    let encoded = header.encode();
    out.reserve(encoded.padded().len() + payload.len());
    let start = out.len() + encoded.len();
    out.extend_from_slice(encoded.padded());
    out.truncate(start);
    out.extend_from_slice(payload);
    if let Some(key) = header.key {
        mask(&mut out[start..], key);
    }
}

/// Masking keys. Each is used once. They are drawn several at a time, because random bytes may cost
/// a system call.
struct MaskingKeys {
    fill_random: fn(&mut [u8]),
    drawn: [[u8; 4]; 32],
    left: usize,
}

impl MaskingKeys {
    fn new(fill_random: fn(&mut [u8])) -> Self {
        Self { fill_random, drawn: [[0; 4]; 32], left: 0 }
    }

    #[inline]
    fn next(&mut self) -> [u8; 4] {
        if self.left == 0 {
            (self.fill_random)(self.drawn.as_flattened_mut());
            self.left = self.drawn.len();
        }
        self.left -= 1;
        self.drawn[self.left]
    }
}

impl std::fmt::Debug for MaskingKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MaskingKeys").finish_non_exhaustive() // keys are secret
    }
}
