//! [`Incoming`]: received bytes that are incomplete.

use std::collections::TryReserveError;

/// Content type, version, length (RFC 8446 5.1).
pub(crate) const HEADER_BYTES: usize = 5;

/// Received bytes that cannot be processed yet: part of a record, perhaps behind records with part of a message.
///
/// Has memory only while it has bytes.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// Where the incomplete record begins. Invariant: at most `bytes.len()`. It must be stored, because rustls joins
    /// messages in the bytes before it, and overwrites headers there.
    record_at: usize,
}

impl Incoming {
    pub(crate) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The size of its memory, in bytes.
    pub(crate) const fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How many bytes of the record's header, or else of the record, are missing: at least one.
    pub(crate) fn missing(&self) -> usize {
        let record = &self.bytes[self.record_at..];
        record_bytes(record).unwrap_or(HEADER_BYTES) - record.len()
    }

    /// Appends bytes, at most as many as are [missing](Self::missing).
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TryReserveError> {
        self.bytes.try_reserve(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        self.record_at += whole_records(&self.bytes[self.record_at..], usize::MAX).1;
        Ok(())
    }

    /// Stores bytes that cannot be processed yet. It must be empty. The incomplete record begins at `record_at`.
    pub(crate) fn start(&mut self, bytes: &[u8], record_at: usize) -> Result<(), TryReserveError> {
        if !bytes.is_empty() {
            (self.bytes, self.record_at) = (copied(bytes)?, record_at);
        }
        Ok(())
    }

    /// Takes all bytes out. [`put`](Self::put) gives them back.
    pub(crate) fn take(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.record_at))
    }

    /// Takes the bytes back except the first `consumed`, which are whole records.
    pub(crate) fn put(&mut self, mut bytes: Vec<u8>, record_at: usize, consumed: usize) {
        if consumed < bytes.len() {
            if consumed > 0 {
                bytes.drain(..consumed);
                bytes.shrink_to_fit();
            }
            (self.bytes, self.record_at) = (bytes, record_at.saturating_sub(consumed));
        }
    }
}

/// A copy without spare capacity.
pub(crate) fn copied(bytes: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Counts the whole records at the beginning, at most `records_max`. Returns their number and length in bytes.
pub(crate) fn whole_records(bytes: &[u8], records_max: usize) -> (usize, usize) {
    let (mut records, mut at) = (0, 0);
    while records < records_max
        && let Some(record) = record_bytes(&bytes[at..])
        && record <= bytes.len() - at
    {
        at += record;
        records += 1;
    }
    (records, at)
}

/// The length of the record that begins here, if its header is complete.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let [_, _, _, high, low] = *bytes.first_chunk()?;
    Some(HEADER_BYTES + usize::from(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_what_is_missing() {
        let mut incoming = Incoming::default();
        let records = [23, 3, 3, 0, 2, 7, 7, 23, 3, 3, 0, 1, 7, 23, 3];
        assert_eq!(whole_records(&records, 9), (2, 13));
        assert_eq!(whole_records(&records, 1), (1, 7));
        // As if the first record had part of a message, and the rest was not processed.
        incoming.start(&records, 13).unwrap();
        assert_eq!((incoming.len(), incoming.missing()), (15, 3));
        incoming.push(&[3, 1, 0]).unwrap();
        assert_eq!(incoming.missing(), 256);
        incoming.push(&[0; 255]).unwrap();
        assert_eq!(incoming.missing(), 1);
        incoming.push(&[0]).unwrap();
        assert_eq!(incoming.missing(), HEADER_BYTES, "of the next");
        let (bytes, record_at) = incoming.take();
        assert_eq!((bytes.len(), record_at), (274, 274));
        incoming.put(bytes, record_at, 13);
        assert_eq!((incoming.len(), incoming.missing()), (261, HEADER_BYTES));
        let (bytes, record_at) = incoming.take();
        incoming.put(bytes, record_at, 261);
        assert_eq!((incoming.is_empty(), incoming.bytes.capacity()), (true, 0));
    }
}
