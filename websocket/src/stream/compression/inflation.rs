use crate::deflate::{Corrupt, DECOMPRESSOR_BYTES, Decompressor, Side};
use crate::stream::Buffers;
use crate::stream::assembly::Assembly;
use crate::utf8::Utf8;
use crate::{Error, Kind, Limit, Violation};

/// What decompresses the messages that a connection receives.
pub(in crate::stream) struct Inflation {
    takes_over: bool,
    /// The connection's own with takeover, from the first message on; otherwise one that is lent to it,
    /// and promised, from the first piece of a message to the last.
    decompressor: Option<Decompressor>,
    /// Of the message that is under way, what has come out so far.
    message_bytes: usize,
    message_bytes_max: usize,
    utf8: Utf8,
    buffers: Buffers,
}

impl Inflation {
    pub(super) fn new(theirs: Side, message_bytes_max: usize, buffers: Buffers) -> Self {
        Self {
            takes_over: theirs.takeover,
            decompressor: None,
            message_bytes: 0,
            message_bytes_max,
            utf8: Utf8::default(),
            buffers,
        }
    }

    /// Decompresses the next piece of a message, the last of it or not, behind what there is in
    /// `assembly`.
    pub(in crate::stream) fn inflate(
        &mut self,
        kind: Kind,
        piece: &[u8],
        last: bool,
        assembly: &mut Assembly,
    ) -> Result<(), Error> {
        let kept = self.decompressor.take();
        let is_promised = !self.takes_over && kept.is_some();
        if !self.takes_over && !last && !is_promised {
            self.buffers.promise(DECOMPRESSOR_BYTES)?; // it is kept until the message ends
        }
        let spare = || self.buffers.compression().take_decompressor();
        let mut decompressor = kept.unwrap_or_else(spare);
        let inflated = self.inflate_by(&mut decompressor, kind, piece, assembly);
        let finished = inflated.and_then(|()| match last {
            true => self.finish(&mut decompressor),
            false => Ok(()),
        });
        if self.takes_over || !last {
            self.decompressor = Some(decompressor);
        } else {
            self.buffers.compression().give_decompressor(decompressor);
            if is_promised {
                self.buffers.release(DECOMPRESSOR_BYTES);
            }
        }
        assembly.settle(last);
        finished
    }

    fn inflate_by(
        &mut self,
        decompressor: &mut Decompressor,
        kind: Kind,
        mut piece: &[u8],
        assembly: &mut Assembly,
    ) -> Result<(), Error> {
        let expected = piece.len().saturating_mul(EXPECTED_RATIO);
        loop {
            // One byte more than is allowed shows what is too long.
            let bytes_left = self.message_bytes_max.saturating_sub(self.message_bytes);
            let out = assembly.room(expected, bytes_left.saturating_add(1));
            let before = out.len();
            let is_all = decompressor.fill(&mut piece, out)?;
            let fresh = &out[before..];
            let fresh_bytes = fresh.len();
            self.message_bytes += fresh_bytes;
            if self.message_bytes > self.message_bytes_max {
                let (max, got) = (self.message_bytes_max as u64, self.message_bytes as u64);
                return Err(Error::Limit { limit: Limit::Message, max, got });
            }
            if kind == Kind::Text && !self.utf8.push(fresh) {
                return Err(Violation::TextNotUtf8.into());
            }
            assembly.promise(fresh_bytes)?;
            if is_all {
                return Ok(());
            }
        }
    }

    fn finish(&mut self, decompressor: &mut Decompressor) -> Result<(), Error> {
        self.message_bytes = 0;
        decompressor.finish()?;
        match self.utf8.is_complete() {
            true => Ok(()),
            false => Err(Violation::TextNotUtf8.into()),
        }
    }
}

impl Drop for Inflation {
    fn drop(&mut self) {
        if self.decompressor.is_some() && !self.takes_over {
            self.buffers.release(DECOMPRESSOR_BYTES);
        }
    }
}

impl From<Corrupt> for Error {
    fn from(_: Corrupt) -> Self {
        Violation::NotCompressed.into()
    }
}

/// How many times as long as it came a message is taken to be, before that is known.
const EXPECTED_RATIO: usize = 4;
