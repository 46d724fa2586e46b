use owned_io::{MemoryAccount, Reservation, coop};

use crate::Part;
use crate::deflate::{COMPRESSOR_BYTES_MAX, Compressor, Deflate, Side};
use crate::stream::Buffers;

/// What compresses the messages that a connection sends.
pub(in crate::stream) struct Deflation {
    deflate: Deflate,
    window_bits: u8,
    takes_over: bool,
    /// The connection's own, with takeover; from the first message on.
    own: Option<Compressor>,
    /// For that.
    reservation: Reservation,
    /// Whether it cannot go on. Then nothing is compressed any more, which is always allowed.
    is_broken: bool,
}

impl Deflation {
    pub(super) fn new(deflate: &Deflate, ours: Side, account: &MemoryAccount) -> Self {
        let Side { takeover, window_bits } = ours;
        Self {
            deflate: *deflate,
            window_bits,
            takes_over: takeover,
            own: None,
            reservation: account.reservation(),
            is_broken: false,
        }
    }

    /// Whether a frame is to be compressed: parts are not, each of which would need to be flushed.
    #[inline]
    pub(in crate::stream) const fn takes(&self, part: Part, payload_bytes: usize) -> bool {
        matches!(part, Part::Whole(_))
            && payload_bytes >= self.deflate.message_bytes_min
            && !self.is_broken
    }

    /// Appends a message to `out`, compressed, and says whether that is to be sent. If not, the message
    /// is to be sent as it is.
    pub(in crate::stream) fn compress(
        &mut self,
        message: &[u8],
        out: &mut Vec<u8>,
        buffers: &Buffers,
    ) -> bool {
        let Self { deflate, window_bits, .. } = *self;
        coop::consume(MESSAGE_NANOS + message.len() as u64 * NANOS_PER_BYTE);
        if self.takes_over {
            if self.reservation.resize(COMPRESSOR_BYTES_MAX).is_err() {
                return false; // it goes as it is, and the next one may be compressed
            }
            let own = self.own.get_or_insert_with(|| Compressor::new(&deflate, window_bits));
            // However long it came out: what comes next may refer to it.
            self.is_broken = !own.compress(message, out);
            return !self.is_broken;
        }
        let spare = buffers.compression();
        let is_compressed = spare
            .with_compressor(&deflate, window_bits, |compressor| compressor.compress(message, out));
        is_compressed && out.len() < message.len()
    }
}

/// What the compression of a message costs, in nanoseconds.
const MESSAGE_NANOS: u64 = 2_000;

/// What each of its bytes costs, at the fastest level.
const NANOS_PER_BYTE: u64 = 5;
