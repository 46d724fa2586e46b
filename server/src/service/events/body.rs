//! [`EventDecoder`]: the events in the pieces of a body.

use std::collections::TryReserveError;

use iggy_binary_protocol::message_layout::WIRE_MESSAGE_HEADER_SIZE;
use memchr::memchr;
use owned_io::coop;

use crate::iggy::messages::{Batch, BatchEncoder, MESSAGES_MAX};
use crate::service::streams::Refusal;

/// What the events of a body are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The whole body is one.
    Whole,
    /// Each line is one.
    Lines,
}

/// Collects events in a batch, wherever a body is cut into pieces.
///
/// Call [`decode`](Self::decode) with each piece until it [needs bytes](Progress::NeedsBytes), and then
/// [`finish`](Self::finish). Each byte is copied once. It allocates nothing but in [`make_room`](Self::make_room).
///
/// A line ends with LF or CRLF. The last line may have no end. Empty lines are no events.
#[derive(Debug)]
pub(super) struct EventDecoder {
    format: Format,
    batch: BatchEncoder,
    /// The most bytes that the batch may have.
    bytes_max: usize,
    /// The most room that is made.
    room_max: usize,
    /// Whether the last piece ended with CR. It is a part of the event unless LF follows.
    has_cr: bool,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More bytes have to arrive. All that were given are taken.
    NeedsBytes,
    /// Room for so many bytes has to be made.
    NeedsRoom(usize),
    /// An event, or a part of one, was taken. Bytes may be left.
    Taken,
}

/// What a batch has too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooMuch {
    Events,
    Bytes,
}

/// The least room that is made at first if nobody knows how much is needed, in bytes. The share of each connection has
/// as much.
const ROOM_BYTES_MIN: usize = 4 * 1024;

/// The work of finding a line and beginning a message, in nanoseconds. An estimate.
const LINE_NANOS: u64 = 30;

/// Whether a batch of at most `bytes_max` bytes has room for one event of `event_bytes`.
pub(super) const fn has_room_for(event_bytes: usize, bytes_max: usize) -> bool {
    event_bytes.saturating_add(WIRE_MESSAGE_HEADER_SIZE) <= bytes_max
}

impl EventDecoder {
    /// For a body of `length` bytes, if that is known, and a batch of at most `bytes_max`, with the headers of its
    /// messages. `now`: in µs since 1970.
    pub(super) fn new(format: Format, length: Option<usize>, bytes_max: usize, now: u64) -> Self {
        let room_max = match (format, length) {
            (Format::Whole, Some(bytes)) => bytes.saturating_add(WIRE_MESSAGE_HEADER_SIZE),
            _ => bytes_max,
        };
        let room_max = room_max.min(bytes_max);
        Self { format, batch: BatchEncoder::new(now), bytes_max, room_max, has_cr: false }
    }

    /// Takes an event, or a part of one, from the front of `bytes`.
    ///
    /// # Errors
    /// The batch would have too much. It cannot be continued.
    pub(super) fn decode(&mut self, bytes: &mut &[u8]) -> Result<Progress, TooMuch> {
        if bytes.is_empty() {
            return Ok(Progress::NeedsBytes);
        }
        let line_end = match self.format {
            Format::Whole => None,
            Format::Lines => memchr(b'\n', bytes),
        };
        let (part, rest) = match line_end {
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (*bytes, &bytes[bytes.len()..]),
        };
        coop::consume(LINE_NANOS + part.len() as u64 / 16);
        // Whether a CR at the end is one of a line end is known once the byte behind it is.
        let (payload, ends_with_cr) = match part.strip_suffix(b"\r") {
            Some(payload) if self.format == Format::Lines => (payload, true),
            _ => (part, false),
        };
        let held: &[u8] = if self.has_cr && !part.is_empty() { b"\r" } else { b"" };
        if !(held.is_empty() && payload.is_empty()) {
            if !self.batch.is_within_message() && self.batch.count() == MESSAGES_MAX {
                return Err(TooMuch::Events);
            }
            let needed = self.batch.bytes_with(held.len() + payload.len());
            if needed > self.bytes_max {
                return Err(TooMuch::Bytes);
            }
            if needed > self.batch.capacity() {
                return Ok(Progress::NeedsRoom(self.room_for(needed)));
            }
            self.batch.push(held);
            self.batch.push(payload);
        }
        self.has_cr = ends_with_cr && line_end.is_none();
        if line_end.is_some() {
            self.batch.end_message();
        }
        *bytes = rest;
        Ok(Progress::Taken)
    }

    /// Allocates what [`NeedsRoom`](Progress::NeedsRoom) asked for.
    ///
    /// # Errors
    /// The allocation failed.
    pub(super) fn make_room(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        self.batch.make_room(bytes)
    }

    /// The batch. `None`: there is no event. A CR at the very end counts as a line end that was cut.
    pub(super) fn finish(self) -> Option<Batch> {
        self.batch.finish()
    }

    /// Twice as much as there is, so that few bytes are moved often; but no more than can be needed, and at first no more
    /// than has arrived.
    fn room_for(&self, needed: usize) -> usize {
        let doubled = (2 * self.batch.capacity()).max(ROOM_BYTES_MIN);
        needed.max(doubled.min(self.room_max))
    }
}

impl TooMuch {
    /// The answer. `bytes_max`: the most bytes of a batch.
    pub(super) fn refusal(self, bytes_max: usize) -> Refusal {
        match self {
            Self::Events => (400, format!("there are more than {MESSAGES_MAX} events\n").into()),
            Self::Bytes => {
                let why = format!(
                    "the events are longer than --message-bytes-max: {bytes_max} bytes, of which \
                     each takes {WIRE_MESSAGE_HEADER_SIZE} beside its own\n"
                );
                (413, why.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::WireMessageIterator;

    use super::*;
    use crate::iggy::storage::Position;

    fn take(decoder: &mut EventDecoder, piece: &[u8]) -> Result<(), TooMuch> {
        let mut rest = piece;
        loop {
            match decoder.decode(&mut rest)? {
                Progress::NeedsBytes => return Ok(()),
                Progress::NeedsRoom(bytes) => decoder.make_room(bytes).unwrap(),
                Progress::Taken => {}
            }
        }
    }

    fn payloads(batch: Option<Batch>) -> Vec<Vec<u8>> {
        let Some(batch) = batch else { return Vec::new() };
        let count = batch.count();
        let stored = batch.stamp(Position { base_offset: 0, timestamp: 1 }, 1);
        let messages = WireMessageIterator::new(&stored, count).map(Result::unwrap);
        let payloads: Vec<_> = messages.map(|message| message.payload().to_vec()).collect();
        assert_eq!(payloads.len(), count as usize);
        payloads
    }

    /// The events of a body, which is cut every `cut` bytes.
    fn events(format: Format, body: &[u8], cut: usize) -> Vec<Vec<u8>> {
        let [events, same] = [None, Some(body.len())].map(|length| {
            let mut decoder = EventDecoder::new(format, length, 1 << 20, 7);
            body.chunks(cut).for_each(|piece| take(&mut decoder, piece).unwrap());
            payloads(decoder.finish())
        });
        assert!(events == same, "whether the length is known or not");
        events
    }

    #[test]
    fn lines_are_events_wherever_they_are_cut() {
        let long = vec![b'x'; 10_000];
        let long_lines = [&long[..], b"\n", &long, b"\r\n", &long].concat();
        for (body, expected) in [
            (&b""[..], &[][..]),
            (b"\n", &[]),
            (b"\r\n\n\r\n", &[]),
            (b"one", &[&b"one"[..]]),
            (b"one\n", &[b"one"]),
            (b"one\r\n", &[b"one"]),
            (b"one\ntwo\r\nthree", &[b"one", b"two", b"three"]),
            (b"\n\none\n\n\r\ntwo\n\n", &[b"one", b"two"]),
            (b"a\rb\n\rc\r\r\nd\r", &[b"a\rb", b"\rc\r", b"d"]),
            (b" \n\t\r\n", &[b" ", b"\t"]),
            (b"\0\n\xff\n", &[b"\0", b"\xff"]),
            (&long_lines, &[&long, &long, &long]),
        ] {
            for cut in (1..12).chain([4_096, 9_999, 10_001, 1 << 20]) {
                let events = events(Format::Lines, body, cut);
                assert!(events == expected, "cut every {cut}: {}", body.escape_ascii());
            }
        }
    }

    #[test]
    fn a_whole_body_is_one_event_with_its_line_ends() {
        for body in [&b"one"[..], b"\n", b"one\r\ntwo\r\n", b"\r", &[7; 100_000]] {
            for cut in [1, 2, 4_096, 1 << 20] {
                assert!(events(Format::Whole, body, cut) == [body], "cut every {cut}");
            }
        }
        assert!(events(Format::Whole, b"", 1).is_empty());
    }

    #[test]
    fn a_batch_has_no_more_events_and_bytes_than_iggy_allows() {
        let most = MESSAGES_MAX as usize;
        let mut decoder = EventDecoder::new(Format::Lines, None, 64 << 20, 7);
        take(&mut decoder, &b"a\n".repeat(most)).unwrap();
        take(&mut decoder, b"\n\r\n\n").unwrap();
        assert_eq!(take(&mut decoder, b"a"), Err(TooMuch::Events));
        for (format, length) in
            [(Format::Lines, None), (Format::Whole, None), (Format::Whole, Some(936))]
        {
            let mut decoder = EventDecoder::new(format, length, 1_000, 7);
            take(&mut decoder, &[b'a'; 936]).unwrap();
            assert_eq!(take(&mut decoder, b"a"), Err(TooMuch::Bytes));
            let batch = decoder.finish().unwrap();
            assert_eq!((batch.bytes(), batch.count()), (1_000, 1));
        }
        let mut decoder = EventDecoder::new(Format::Lines, None, 1_000, 7);
        take(&mut decoder, &b"a\n".repeat(15)).unwrap(); // 975 bytes
        assert_eq!(take(&mut decoder, b"a"), Err(TooMuch::Bytes));
        assert!(has_room_for(936, 1_000) && !has_room_for(937, 1_000));
        assert!(!has_room_for(usize::MAX, 1_000));
    }

    #[test]
    fn room_is_made_as_bytes_arrive_and_is_exact_for_a_whole_body() {
        let mut decoder = EventDecoder::new(Format::Whole, Some(200), 16 << 20, 7);
        let decode = |decoder: &mut EventDecoder, len| decoder.decode(&mut &vec![7; len][..]);
        assert_eq!(decode(&mut decoder, 100), Ok(Progress::NeedsRoom(264)));
        for length in [None, Some(16_000_000)] {
            let mut decoder = EventDecoder::new(Format::Whole, length, 16 << 20, 7);
            assert_eq!(decode(&mut decoder, 1), Ok(Progress::NeedsRoom(ROOM_BYTES_MIN)));
            let (mut arrived, mut steps) = (0, 0);
            while arrived < 16_000_000 {
                match decode(&mut decoder, 10_000).unwrap() {
                    Progress::NeedsRoom(bytes) => {
                        assert!(bytes <= 2 * (arrived + 10_064).max(ROOM_BYTES_MIN), "{bytes}");
                        decoder.make_room(bytes).unwrap();
                        steps += 1;
                    }
                    progress => {
                        assert_eq!(progress, Progress::Taken);
                        arrived += 10_000;
                    }
                }
            }
            assert!(steps < 16, "{steps}");
            let batch = decoder.finish().unwrap();
            assert!(batch.memory_bytes() <= 16_000_064 + 16_000_064 / 4);
        }
    }
}
