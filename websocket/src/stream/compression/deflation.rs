use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use owned_io::coop::{self, cost};
use owned_io::{MemoryAccount, Reservation};

use crate::deflate::{
    COMPRESSOR_BYTES_MAX, Compressor, Deflate, Incompressible, OUTPUT_BYTES_MIN, Side,
};
use crate::stream::Buffers;
use crate::stream::compression::Spare;
use crate::stream::shared::Sleep;
use crate::{Kind, Part};

/// What compresses the messages that a connection sends.
pub(in crate::stream) struct Deflation {
    deflate: Deflate,
    window_bits: u8,
    takes_over: bool,
    /// The connection's own, with takeover; from the first message on.
    own: Option<Compressor>,
    /// For that, and for `long`.
    reservation: Reservation,
    /// Whether it cannot go on. Then nothing is compressed any more, which is always allowed.
    is_broken: bool,
    /// The message that is compressed piece by piece: see [`begin`](Self::begin).
    long: Option<Box<Long>>,
}

/// A long message, some of which is compressed.
struct Long {
    kind: Kind,
    payload: Bytes,
    /// How many bytes of the payload count as this connection's.
    payload_held: usize,
    /// How much of it is compressed.
    at: usize,
    compressed: Vec<u8>,
    /// Without takeover: lent to it until it is done.
    lent: Option<Compressor>,
    /// While others have their turn.
    turn: Option<Sleep>,
}

/// A long message that is to be sent now.
pub(in crate::stream) struct Finished {
    pub(in crate::stream) kind: Kind,
    /// Whether the payload is compressed; if not, it is as it was.
    pub(in crate::stream) is_compressed: bool,
    pub(in crate::stream) payload: Bytes,
    /// How many bytes of it count as this connection's.
    pub(in crate::stream) held_bytes: usize,
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
            long: None,
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
        coop::consume(cost::compressed(message.len()));
        if self.takes_over {
            if self.reservation.resize(COMPRESSOR_BYTES_MAX).is_err() {
                return false; // it goes as it is, and the next one may be compressed
            }
            let own = self.own.get_or_insert_with(|| Compressor::new(&deflate, window_bits));
            // However long it came out: what comes next may refer to it.
            self.is_broken = !own.compress(message, out);
            return !self.is_broken;
        }
        let spare = buffers.extension::<Spare>();
        let is_compressed = spare
            .with_compressor(&deflate, window_bits, |compressor| compressor.compress(message, out));
        is_compressed && out.len() < message.len()
    }

    /// Begins a message of more than [`AT_ONCE_BYTES_MAX`], of whose payload so many bytes are to be reserved.
    /// There is none [under way](Self::is_under_way). To be followed by [`go_on`](Self::go_on).
    ///
    /// # Errors
    /// There is no memory to compress it with: it is to be sent as it is. Nothing is reserved for it any more.
    pub(in crate::stream) fn begin(
        &mut self,
        kind: Kind,
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
        let lent = if self.takes_over {
            self.own.get_or_insert_with(|| Compressor::new(&deflate, window_bits));
            None
        } else {
            Some(buffers.extension::<Spare>().take_compressor(&deflate, window_bits))
        };
        let long = Long { kind, payload, payload_held, at: 0, compressed, lent, turn: None };
        self.long = Some(Box::new(long));
        Ok(())
    }

    /// Reserves memory for a copy of a message, and makes it: to [`begin`](Self::begin) with.
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

    /// Whether there is a message that was begun and is not finished.
    #[inline]
    pub(in crate::stream) const fn is_under_way(&self) -> bool {
        self.long.is_some()
    }

    /// How many bytes that message has come to so far; it counts as one at least.
    pub(in crate::stream) fn bytes_so_far(&self) -> usize {
        self.long.as_ref().map_or(0, |long| long.compressed.len().max(1))
    }

    /// Compresses another piece of the message that was begun; all of it, once that was the last.
    pub(in crate::stream) fn go_on(&mut self, buffers: &Buffers) -> Option<Finished> {
        let mut long = self.long.take()?;
        match long.compress_piece(self.own.as_mut(), &mut self.reservation) {
            Outcome::More => {
                self.long = Some(long);
                None
            }
            outcome => Some(self.finish(*long, outcome, buffers)),
        }
    }

    /// Lets others have their turn.
    pub(in crate::stream) fn poll_turn(
        &mut self,
        sleep: fn(Duration) -> Sleep,
        waker: &Waker,
    ) -> Poll<()> {
        if let Some(long) = &mut self.long {
            let turn = long.turn.get_or_insert_with(|| sleep(Duration::ZERO));
            ready!(turn.as_mut().poll(&mut Context::from_waker(waker)));
            long.turn = None;
            coop::refill();
        }
        Poll::Ready(())
    }

    /// Gives up the message that was begun, which is not sent then.
    pub(in crate::stream) fn give_up(&mut self) {
        if self.long.take().is_some() {
            self.own = None;
            self.release();
        }
    }

    fn finish(&mut self, long: Long, outcome: Outcome, buffers: &Buffers) -> Finished {
        let Long { kind, payload, payload_held, compressed, lent, .. } = long;
        let is_whole = matches!(outcome, Outcome::Whole);
        // With takeover, what comes next may refer to it, however long it came out.
        let is_compressed = is_whole && (self.takes_over || compressed.len() < payload.len());
        if !is_whole {
            // What it has taken in is not sent, so nothing may refer to it. It cannot forget within a message:
            // zlib-rs goes on within the block that was open (0.6.8).
            self.own = None;
        } else if let Some(lent) = lent {
            buffers.extension::<Spare>().give_compressor(&self.deflate, self.window_bits, lent);
        }
        self.is_broken = self.takes_over && matches!(outcome, Outcome::Broken);
        self.release();
        if is_compressed {
            let held_bytes = compressed.capacity();
            Finished { kind, is_compressed, payload: compressed.into(), held_bytes }
        } else {
            buffers.give(compressed);
            Finished { kind, is_compressed, payload, held_bytes: payload_held }
        }
    }

    /// Keeps what is reserved for the connection's own compressor alone.
    fn release(&mut self) {
        let kept = if self.own.is_some() { COMPRESSOR_BYTES_MAX } else { 0 };
        self.reservation.force(kept);
    }
}

/// What came of a piece of a long message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    More,
    Whole,
    /// There is no memory for more, or it does not shrink: the message is to be sent as it is.
    InVain,
    /// The same, and the compressor cannot go on.
    Broken,
}

impl Long {
    fn compress_piece(
        &mut self,
        own: Option<&mut Compressor>,
        reservation: &mut Reservation,
    ) -> Outcome {
        let Self { payload, payload_held, at, compressed, lent, .. } = self;
        let is_lent = lent.is_some();
        let Some(compressor) = lent.as_mut().or(own) else { return Outcome::Broken };
        let end = payload.len().min(*at + PIECE_BYTES);
        let last = end == payload.len();
        let mut piece = &payload[*at..end];
        coop::consume(cost::compressed_piece(piece.len()));
        *at = end;
        // Each round but the last fills the room there is.
        loop {
            if compressed.capacity() - compressed.len() < OUTPUT_BYTES_MIN {
                let more = compressed.len().max(PIECE_BYTES);
                let held = *payload_held + compressed.len() + more;
                if reservation.resize(COMPRESSOR_BYTES_MAX + held).is_err()
                    || compressed.try_reserve_exact(more).is_err()
                {
                    return Outcome::InVain;
                }
            }
            match compressor.fill(&mut piece, last, compressed) {
                Ok(true) if last => return Outcome::Whole,
                Ok(true) if is_lent && compressed.len() >= payload.len() => return Outcome::InVain,
                Ok(true) => return Outcome::More,
                Ok(false) => {}
                Err(Incompressible) => return Outcome::Broken,
            }
        }
    }
}

/// Messages of at most so many bytes are compressed at once: some 160 µs of work.
pub(in crate::stream) const AT_ONCE_BYTES_MAX: usize = 32 * 1024;

/// How many bytes of a longer one are a piece: some 80 µs of work.
const PIECE_BYTES: usize = 16 * 1024;
