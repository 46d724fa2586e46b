use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use owned_io::coop::{self, cost};
use owned_io::{MemoryAccount, Reservation};

use crate::deflate::{
    COMPRESSOR_BYTES_MAX, CompressError, Compressor, ContextParameters, Deflate, OUTPUT_BYTES_MIN,
};
use crate::stream::Buffers;
use crate::stream::compression::CodecPool;
use crate::stream::shared::Sleep;
use crate::{Fragment, MessageKind};

/// Compresses the messages that a connection sends.
pub(in crate::stream) struct Deflater {
    deflate: Deflate,
    window_bits: u8,
    context_takeover: bool,
    /// With context takeover: the connection's own compressor, from the first message on.
    own_compressor: Option<Compressor>,
    /// Covers `own_compressor` and `long`.
    reservation: Reservation,
    /// Whether the compressor has failed. Then nothing is compressed any more, which the RFC always
    /// allows.
    is_disabled: bool,
    /// The message that is being compressed in pieces, see [`begin`](Self::begin).
    long: Option<Box<LongMessage>>,
}

/// A long message that is partly compressed.
struct LongMessage {
    kind: MessageKind,
    payload: Bytes,
    /// How many bytes of the payload count as memory of this connection.
    payload_held: usize,
    /// How many bytes are compressed.
    done_bytes: usize,
    compressed: Vec<u8>,
    /// Without context takeover: a pooled compressor, lent until the message is done.
    lent_compressor: Option<Compressor>,
    /// Set while other tasks run.
    pause: Option<Sleep>,
}

/// A long message that can be sent.
pub(in crate::stream) struct FinishedMessage {
    pub(in crate::stream) kind: MessageKind,
    /// Whether the payload is compressed. Otherwise it is the original message.
    pub(in crate::stream) is_compressed: bool,
    pub(in crate::stream) payload: Bytes,
    /// How many bytes of the payload count as memory of this connection.
    pub(in crate::stream) held_bytes: usize,
}

impl Deflater {
    pub(super) fn new(deflate: &Deflate, ours: ContextParameters, account: &MemoryAccount) -> Self {
        let ContextParameters { takeover, window_bits } = ours;
        Self {
            deflate: *deflate,
            window_bits,
            context_takeover: takeover,
            own_compressor: None,
            reservation: account.reservation(),
            is_disabled: false,
            long: None,
        }
    }

    /// A deflater with the same settings, for messages that go to many connections. `None` with
    /// context takeover: each connection then has its own context.
    pub(in crate::stream) fn shareable(&self, account: &MemoryAccount) -> Option<Self> {
        let Self { ref deflate, window_bits, context_takeover, .. } = *self;
        let ours = ContextParameters { takeover: false, window_bits };
        (!context_takeover).then(|| Self::new(deflate, ours, account))
    }

    /// Whether this connection may send what the [shared](Self::shareable) deflater compresses.
    pub(in crate::stream) fn can_share(&self, shared: &Self) -> bool {
        !self.context_takeover
            && self.window_bits == shared.window_bits
            && self.deflate == shared.deflate
    }

    /// Whether a frame is to be compressed. Parts are not: each would need a flush of the
    /// compressor.
    #[inline]
    pub(in crate::stream) const fn accepts(
        &self,
        fragment: Fragment,
        payload_bytes: usize,
    ) -> bool {
        matches!(fragment, Fragment::Whole(_))
            && payload_bytes >= self.deflate.message_bytes_min
            && !self.is_disabled
    }

    /// Appends the compressed message to `out`. Returns false if the message is to be sent
    /// uncompressed.
    pub(in crate::stream) fn compress(
        &mut self,
        message: &[u8],
        out: &mut Vec<u8>,
        buffers: &Buffers,
    ) -> bool {
        let Self { deflate, window_bits, .. } = *self;
        coop::consume(cost::compressed(message.len()));
        if self.context_takeover {
            if self.reservation.resize(COMPRESSOR_BYTES_MAX).is_err() {
                return false; // no memory now; the next message may be compressed
            }
            let own_compressor =
                self.own_compressor.get_or_insert_with(|| Compressor::new(&deflate, window_bits));
            // Sent compressed even if it is longer: later messages may refer to it.
            self.is_disabled = !own_compressor.compress(message, out);
            return !self.is_disabled;
        }
        let codec_pool = buffers.extension::<CodecPool>();
        let is_compressed = codec_pool.compress(&deflate, window_bits, message, out);
        is_compressed && out.len() < message.len()
    }

    /// Begins a message of more than [`IMMEDIATE_BYTES_MAX`] bytes, and reserves `payload_held`
    /// bytes for its payload. No other message may be [under way](Self::is_under_way). Follow it
    /// with [`compress_next`](Self::compress_next).
    ///
    /// # Errors
    /// Returns the payload if there is no memory to compress it. It is to be sent uncompressed, and
    /// nothing is reserved for it.
    pub(in crate::stream) fn begin(
        &mut self,
        kind: MessageKind,
        payload: Bytes,
        payload_held: usize,
        buffers: &Buffers,
    ) -> Result<(), Bytes> {
        let compressed = buffers.take();
        let needed = COMPRESSOR_BYTES_MAX + payload_held + compressed.capacity();
        if self.reservation.resize(needed).is_err() {
            buffers.give(compressed);
            self.release();
            return Err(payload);
        }
        let Self { deflate, window_bits, .. } = *self;
        let lent_compressor = if self.context_takeover {
            self.own_compressor.get_or_insert_with(|| Compressor::new(&deflate, window_bits));
            None
        } else {
            Some(buffers.extension::<CodecPool>().take_compressor(&deflate, window_bits))
        };
        let long = LongMessage {
            kind,
            payload,
            payload_held,
            done_bytes: 0,
            compressed,
            lent_compressor,
            pause: None,
        };
        self.long = Some(Box::new(long));
        Ok(())
    }

    /// Reserves memory for a copy of a message and makes the copy, for [`begin`](Self::begin).
    pub(in crate::stream) fn copy(&mut self, message: &[u8]) -> Option<Bytes> {
        self.reservation.resize(COMPRESSOR_BYTES_MAX + message.len()).ok()?;
        let mut copy = Vec::new();
        if copy.try_reserve_exact(message.len()).is_err() {
            self.release();
            return None;
        }
        copy.extend_from_slice(message);
        Some(copy.into())
    }

    /// Whether a message was begun and is not finished.
    #[inline]
    pub(in crate::stream) const fn is_under_way(&self) -> bool {
        self.long.is_some()
    }

    /// The compressed size of that message so far, in bytes; at least 1.
    pub(in crate::stream) fn compressed_bytes(&self) -> usize {
        self.long.as_ref().map_or(0, |long| long.compressed.len().max(1))
    }

    /// Compresses the next piece of that message. Returns the message after its last piece.
    pub(in crate::stream) fn compress_next(
        &mut self,
        buffers: &Buffers,
    ) -> Option<FinishedMessage> {
        let mut long = self.long.take()?;
        match long.compress_piece(self.own_compressor.as_mut(), &mut self.reservation) {
            CompressOutcome::More => {
                self.long = Some(long);
                None
            }
            outcome => Some(self.finish(*long, outcome, buffers)),
        }
    }

    /// Yields to other tasks.
    pub(in crate::stream) fn poll_pause(
        &mut self,
        sleep: fn(Duration) -> Sleep,
        waker: &Waker,
    ) -> Poll<()> {
        if let Some(long) = &mut self.long {
            let pause = long.pause.get_or_insert_with(|| sleep(Duration::ZERO));
            ready!(pause.as_mut().poll(&mut Context::from_waker(waker)));
            long.pause = None;
            coop::refill();
        }
        Poll::Ready(())
    }

    /// Drops the message that was begun. It is not sent.
    pub(in crate::stream) fn abandon(&mut self) {
        if self.long.take().is_some() {
            self.own_compressor = None;
            self.release();
        }
    }

    fn finish(
        &mut self,
        long: LongMessage,
        outcome: CompressOutcome,
        buffers: &Buffers,
    ) -> FinishedMessage {
        let LongMessage { kind, payload, payload_held, compressed, lent_compressor, .. } = long;
        let is_whole = matches!(outcome, CompressOutcome::Complete);
        // With context takeover later messages may refer to it, even if it came out longer.
        let is_compressed = is_whole && (self.context_takeover || compressed.len() < payload.len());
        if !is_whole {
            // The compressor has seen bytes that are not sent, so nothing may refer to them. Its
            // context cannot be reset within a message: zlib-rs continues the open block (0.6.8).
            self.own_compressor = None;
        } else if let Some(lent_compressor) = lent_compressor {
            buffers.extension::<CodecPool>().give_compressor(
                &self.deflate,
                self.window_bits,
                lent_compressor,
            );
        }
        self.is_disabled = self.context_takeover && matches!(outcome, CompressOutcome::Failed);
        self.release();
        if is_compressed {
            let held_bytes = compressed.capacity();
            FinishedMessage { kind, is_compressed, payload: compressed.into(), held_bytes }
        } else {
            buffers.give(compressed);
            FinishedMessage { kind, is_compressed, payload, held_bytes: payload_held }
        }
    }

    /// Keeps only the reservation for the connection's own compressor.
    fn release(&mut self) {
        let kept = if self.own_compressor.is_some() { COMPRESSOR_BYTES_MAX } else { 0 };
        self.reservation.force(kept);
    }
}

/// The outcome of compressing one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompressOutcome {
    More,
    Complete,
    /// There is no memory for more, or the output is not shorter. The message is sent uncompressed.
    NotShorter,
    /// The compressor has failed. The message is sent uncompressed.
    Failed,
}

impl LongMessage {
    fn compress_piece(
        &mut self,
        own_compressor: Option<&mut Compressor>,
        reservation: &mut Reservation,
    ) -> CompressOutcome {
        let Self { payload, payload_held, done_bytes, compressed, lent_compressor, .. } = self;
        let is_lent = lent_compressor.is_some();
        let Some(compressor) = lent_compressor.as_mut().or(own_compressor) else {
            return CompressOutcome::Failed;
        };
        let end = payload.len().min(*done_bytes + PIECE_BYTES);
        let last = end == payload.len();
        let mut piece = &payload[*done_bytes..end];
        coop::consume(cost::compressed_piece(piece.len()));
        *done_bytes = end;
        // Each round but the last fills the spare capacity.
        loop {
            if compressed.capacity() - compressed.len() < OUTPUT_BYTES_MIN {
                let more = compressed.len().max(PIECE_BYTES);
                let held = *payload_held + compressed.len() + more;
                if reservation.resize(COMPRESSOR_BYTES_MAX + held).is_err()
                    || compressed.try_reserve_exact(more).is_err()
                {
                    return CompressOutcome::NotShorter;
                }
            }
            match compressor.fill(&mut piece, last, compressed) {
                Ok(true) if last => return CompressOutcome::Complete,
                Ok(true) if is_lent && compressed.len() >= payload.len() => {
                    return CompressOutcome::NotShorter;
                }
                Ok(true) => return CompressOutcome::More,
                Ok(false) => {}
                Err(CompressError) => return CompressOutcome::Failed,
            }
        }
    }
}

/// Messages of at most this many bytes are compressed in one step of some 160 µs.
pub(in crate::stream) const IMMEDIATE_BYTES_MAX: usize = 32 * 1024;

/// The length of a piece of a longer message, in bytes: some 80 µs of work.
const PIECE_BYTES: usize = 16 * 1024;
