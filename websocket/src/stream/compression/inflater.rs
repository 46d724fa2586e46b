use owned_io::coop::{self, cost};
use owned_io::{MemoryAccount, Reservation};

use crate::deflate::{ContextParameters, CorruptData, DECOMPRESSOR_BYTES, Decompressor};
use crate::stream::Buffers;
use crate::stream::assembly::{Assembly, ReserveError, out_of_memory};
use crate::stream::compression::CodecPool;
use crate::utf8::Utf8Validator;
use crate::{Limit, MessageKind, ProtocolError, Violation};

/// Decompresses the messages that a connection receives.
pub(in crate::stream) struct Inflater {
    context_takeover: bool,
    /// With context takeover: the connection's own, from the first message on. Without: a pooled
    /// one, from the first piece of a message to the last.
    decompressor: Option<Decompressor>,
    /// Covers a decompressor that is kept between two calls.
    reservation: Reservation,
    /// The decompressed size of the current message so far.
    message_bytes: usize,
    message_bytes_max: usize,
    utf8: Utf8Validator,
    buffers: Buffers,
}

/// How much of a piece was decompressed.
pub(in crate::stream) enum InflateProgress {
    /// The whole piece.
    Complete,
    /// Its first `consumed` bytes. The rest waits for memory, or until the task has work budget
    /// again.
    Partial { consumed: usize, is_out_of_memory: bool },
}

impl Inflater {
    pub(super) fn new(
        theirs: ContextParameters,
        message_bytes_max: usize,
        buffers: Buffers,
        account: &MemoryAccount,
    ) -> Self {
        Self {
            context_takeover: theirs.takeover,
            decompressor: None,
            reservation: account.reservation(),
            message_bytes: 0,
            message_bytes_max,
            utf8: Utf8Validator::default(),
            buffers,
        }
    }

    /// Decompresses the next piece of a message, and appends it to `assembly`. `last`: the message
    /// ends with it.
    ///
    /// The decompressor is reserved before the first step. Without that memory, only a message that
    /// one step decompresses is taken.
    pub(in crate::stream) fn inflate(
        &mut self,
        kind: MessageKind,
        piece: &[u8],
        last: bool,
        assembly: &mut Assembly,
    ) -> Result<InflateProgress, ProtocolError> {
        let is_reserved =
            self.decompressor.is_some() || self.reservation.resize(DECOMPRESSOR_BYTES).is_ok();
        let is_kept = self.context_takeover || !last;
        if !is_reserved && is_kept {
            return self.refused();
        }
        let codec_pool = || self.buffers.extension::<CodecPool>().take_decompressor();
        let mut decompressor = self.decompressor.take().unwrap_or_else(codec_pool);
        let inflated = self.inflate_by(&mut decompressor, kind, piece, assembly);
        if !is_reserved && matches!(inflated, Ok(InflateProgress::Partial { .. })) {
            // The message takes more than one step. It begins again once there is memory for that.
            self.buffers.extension::<CodecPool>().give_decompressor(decompressor);
            (self.message_bytes, self.utf8) = (0, Utf8Validator::default());
            assembly.restart();
            return self.refused();
        }
        let is_done = matches!(inflated, Ok(InflateProgress::Complete)) && last;
        let finished = if is_done { self.finish(&mut decompressor) } else { Ok(()) };
        if self.context_takeover || !is_done {
            self.decompressor = Some(decompressor);
        } else {
            self.reservation.force(0);
            self.buffers.extension::<CodecPool>().give_decompressor(decompressor);
        }
        assembly.mark_decoded(is_done);
        finished.and(inflated)
    }

    /// There is no memory for a decompressor that is kept.
    fn refused(&self) -> Result<InflateProgress, ProtocolError> {
        let account = self.reservation.account();
        if account.bytes_max() < DECOMPRESSOR_BYTES {
            return Err(out_of_memory(account, DECOMPRESSOR_BYTES));
        }
        Ok(InflateProgress::Partial { consumed: 0, is_out_of_memory: true })
    }

    fn inflate_by(
        &mut self,
        decompressor: &mut Decompressor,
        kind: MessageKind,
        piece: &[u8],
        assembly: &mut Assembly,
    ) -> Result<InflateProgress, ProtocolError> {
        let expected = piece.len().saturating_mul(EXPECTED_RATIO).max(ROOM_BYTES_MIN);
        let mut rest = piece;
        // Each round but the last fills the spare capacity, or decompresses as much as a round may.
        loop {
            // One byte beyond the limit shows that the message is too long.
            let bytes_left = self.message_bytes_max.saturating_sub(self.message_bytes) + 1;
            let stopped = |rest: &[u8], is_out_of_memory| InflateProgress::Partial {
                consumed: piece.len() - rest.len(),
                is_out_of_memory,
            };
            if !coop::has_budget() {
                return Ok(stopped(rest, false));
            }
            if assembly.spare_capacity() == 0 {
                match assembly.reserve_capacity(expected.max(assembly.len()).min(bytes_left), None)
                {
                    Ok(()) => {}
                    Err(ReserveError::Retry) => return Ok(stopped(rest, true)),
                    Err(ReserveError::Fatal(error)) => return Err(error),
                }
            }
            let room = assembly.spare_capacity().min(ROUND_BYTES_MAX);
            let out = assembly.bytes_mut();
            let before = out.len();
            let is_all = decompressor.fill(&mut rest, out, room)?;
            let fresh = &out[before..];
            coop::consume(cost::inflated(fresh.len()));
            self.message_bytes += fresh.len();
            if self.message_bytes > self.message_bytes_max {
                let (max, got) = (self.message_bytes_max as u64, self.message_bytes as u64);
                return Err(ProtocolError::Limit { limit: Limit::Message, max, got });
            }
            if kind == MessageKind::Text && !self.utf8.push(fresh) {
                return Err(Violation::TextNotUtf8.into());
            }
            if is_all {
                return Ok(InflateProgress::Complete);
            }
        }
    }

    fn finish(&mut self, decompressor: &mut Decompressor) -> Result<(), ProtocolError> {
        self.message_bytes = 0;
        decompressor.finish()?;
        match self.utf8.is_complete() {
            true => Ok(()),
            false => Err(Violation::TextNotUtf8.into()),
        }
    }
}

impl From<CorruptData> for ProtocolError {
    fn from(_: CorruptData) -> Self {
        Violation::NotCompressed.into()
    }
}

/// The expected ratio of decompressed to compressed size, before it is known.
const EXPECTED_RATIO: usize = 4;

/// The smallest capacity that is reserved for output, in bytes, within the limit on messages.
const ROOM_BYTES_MIN: usize = 64;

/// The most bytes that one round decompresses: some 50 µs of work.
const ROUND_BYTES_MAX: usize = 32 * 1024;
