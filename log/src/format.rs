//! The bytes of a segment. No I/O.
//!
//! ```text
//! segment := segment header, batch*
//!
//! segment header (40 bytes, little endian)      batch header (48 bytes, little endian)
//!  0  magic "OIOLOG\0\0"                          0  magic "OIOB"
//!  8  format version, u32                         4  CRC32C of bytes 8 to 47, u32
//! 12  salt, u32                                   8  CRC32C of the payload, u32
//! 16  base offset, u64                           12  length of the payload, u32
//! 24  timestamp of the batch before, u64         16  count of messages, u32
//! 32  reserved, u32: zero                        20  salt of the segment, u32
//! 36  CRC32C of bytes 0 to 35, u32               24  base offset, u64
//!                                                32  timestamp, µs since 1970, u64
//!                                                40  synced length, u64
//! ```
//!
//! The salt is random. So bytes of another segment, or of a payload, are no batch here.
//!
//! The synced length is how much of the segment was on the disk, by a sync that had returned, when the batch was
//! written. Recovery needs it to tell a torn tail from damage: bytes below it were acknowledged.

use bytes::{BufMut, Bytes, BytesMut};
use crc32c::{crc32c, crc32c_append};

/// The version that this crate writes.
pub(crate) const VERSION: u32 = 1;

pub(crate) const SEGMENT_HEADER_BYTES: usize = 40;
pub(crate) const BATCH_HEADER_BYTES: usize = 48;

const SEGMENT_MAGIC: [u8; 8] = *b"OIOLOG\0\0";
const BATCH_MAGIC: [u8; 4] = *b"OIOB";

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) salt: u32,
    pub(crate) base_offset: u64,
    /// The timestamp of the last batch of the segments before.
    pub(crate) timestamp: u64,
}

/// Why a segment header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// It has another magic, or its CRC is wrong.
    Damaged,
    /// It has this version, which is newer.
    Version(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(SEGMENT_HEADER_BYTES);
        bytes.put_slice(&SEGMENT_MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u32_le(self.salt);
        bytes.put_u64_le(self.base_offset);
        bytes.put_u64_le(self.timestamp);
        bytes.put_u32_le(0);
        bytes.put_u32_le(crc32c(&bytes));
        bytes.freeze()
    }

    pub(crate) fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<Self, HeaderError> {
        if bytes[..8] != SEGMENT_MAGIC {
            return Err(HeaderError::Damaged);
        }
        // A newer version may have its CRC elsewhere.
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Err(HeaderError::Version(version));
        }
        if version == 0 || crc32c(&bytes[..36]) != u32_at(bytes, 36) {
            return Err(HeaderError::Damaged);
        }
        let (salt, base_offset) = (u32_at(bytes, 12), u64_at(bytes, 16));
        Ok(Self { salt, base_offset, timestamp: u64_at(bytes, 24) })
    }
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) payload_crc: u32,
    pub(crate) payload_len: u32,
    pub(crate) count: u32,
    pub(crate) base_offset: u64,
    pub(crate) timestamp: u64,
    pub(crate) synced_len: u64,
}

impl BatchHeader {
    pub(crate) fn encode(&self, salt: u32, bytes: &mut BytesMut) {
        let start = bytes.len();
        bytes.put_slice(&BATCH_MAGIC);
        bytes.put_u32_le(0);
        bytes.put_u32_le(self.payload_crc);
        bytes.put_u32_le(self.payload_len);
        bytes.put_u32_le(self.count);
        bytes.put_u32_le(salt);
        bytes.put_u64_le(self.base_offset);
        bytes.put_u64_le(self.timestamp);
        bytes.put_u64_le(self.synced_len);
        let crc = crc32c(&bytes[start + 8..]);
        bytes[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The header, if these bytes are one of the segment with this salt.
    pub(crate) fn decode(bytes: &[u8; BATCH_HEADER_BYTES], salt: u32) -> Option<Self> {
        let is_header = bytes[..4] == BATCH_MAGIC
            && u32_at(bytes, 20) == salt
            && crc32c(&bytes[8..]) == u32_at(bytes, 4);
        let header = Self {
            payload_crc: u32_at(bytes, 8),
            payload_len: u32_at(bytes, 12),
            count: u32_at(bytes, 16),
            base_offset: u64_at(bytes, 24),
            timestamp: u64_at(bytes, 32),
            synced_len: u64_at(bytes, 40),
        };
        let is_sane = header.count > 0
            && header.payload_len > 0
            && header.base_offset.checked_add(header.count.into()).is_some();
        (is_header && is_sane).then_some(header)
    }

    /// The bytes of the header and the payload.
    pub(crate) fn stored_len(&self) -> u64 {
        BATCH_HEADER_BYTES as u64 + u64::from(self.payload_len)
    }

    /// The offset after the last message.
    pub(crate) fn next_offset(&self) -> u64 {
        self.base_offset + u64::from(self.count)
    }
}

/// The CRC32C of the payload that consists of these parts.
pub(crate) fn payload_crc(parts: &[Bytes]) -> u32 {
    parts.iter().fold(0, |crc, part| crc32c_append(crc, part))
}

/// Checks the batches of a segment, whose bytes come in pieces of any size.
pub(crate) struct Scanner {
    salt: u32,
    /// The first bytes of the batch that is being read, up to its header.
    head: Vec<u8>,
    /// The batch whose payload is being read, the bytes of it that are missing, and the CRC of those that are not.
    body: Option<(BatchHeader, u32, u32)>,
    scanned: Scanned,
}

/// What the batches of a segment are, up to the first that is damaged or torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// The length of the segment up to there.
    pub(crate) valid_len: u64,
    pub(crate) next_offset: u64,
    pub(crate) timestamp: u64,
    /// The largest synced length that a batch tells.
    pub(crate) synced_len: u64,
}

impl Scanner {
    pub(crate) fn new(header: &SegmentHeader) -> Self {
        let scanned = Scanned {
            valid_len: SEGMENT_HEADER_BYTES as u64,
            next_offset: header.base_offset,
            timestamp: header.timestamp,
            synced_len: SEGMENT_HEADER_BYTES as u64,
        };
        Self {
            salt: header.salt,
            head: Vec::with_capacity(BATCH_HEADER_BYTES),
            body: None,
            scanned,
        }
    }

    /// Goes on at `position`, where `bytes` begin with a batch. `None` if they do not.
    pub(crate) fn resume(header: &SegmentHeader, position: u64, bytes: &[u8]) -> Option<Self> {
        let first = BatchHeader::decode(bytes.first_chunk()?, header.salt)?;
        let mut scanner = Self::new(header);
        let BatchHeader { base_offset: next_offset, timestamp, .. } = first;
        let synced_len = scanner.scanned.synced_len;
        scanner.scanned = Scanned { valid_len: position, next_offset, timestamp, synced_len };
        Some(scanner)
    }

    /// Takes the next bytes after the segment header. Calls `on_batch` with the header and the position of each valid
    /// batch. Returns false at the first batch that is not valid: nothing after it counts.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut on_batch: impl FnMut(&BatchHeader, u64),
    ) -> bool {
        // Each round consumes bytes, or ends a payload.
        while !bytes.is_empty() || matches!(self.body, Some((_, 0, _))) {
            let Some((header, missing, crc)) = &mut self.body else {
                let taken = bytes.len().min(BATCH_HEADER_BYTES - self.head.len());
                self.head.extend_from_slice(&bytes[..taken]);
                bytes = &bytes[taken..];
                let Ok(head) = self.head[..].try_into() else { continue };
                let Some(header) = BatchHeader::decode(head, self.salt) else { return false };
                let Scanned { valid_len, next_offset, timestamp, .. } = self.scanned;
                if header.base_offset != next_offset
                    || header.timestamp < timestamp
                    || header.synced_len > valid_len
                {
                    return false;
                }
                self.head.clear();
                self.body = Some((header, header.payload_len, 0));
                continue;
            };
            let taken = bytes.len().min(*missing as usize);
            *crc = crc32c_append(*crc, &bytes[..taken]);
            *missing -= taken as u32;
            bytes = &bytes[taken..];
            if *missing > 0 {
                continue;
            }
            let (header, crc) = (*header, *crc);
            self.body = None;
            if crc != header.payload_crc {
                return false;
            }
            on_batch(&header, self.scanned.valid_len);
            self.scanned.valid_len += header.stored_len();
            self.scanned.next_offset = header.next_offset();
            self.scanned.timestamp = header.timestamp;
            self.scanned.synced_len = self.scanned.synced_len.max(header.synced_len);
        }
        true
    }

    pub(crate) const fn scanned(&self) -> Scanned {
        self.scanned
    }
}

/// Whether `bytes`, which come after the valid batches of a segment, have a batch that proves that bytes after
/// `valid_len` were on the disk. Then the segment is damaged, and not torn.
pub(crate) fn proves_damage(bytes: &[u8], salt: u32, valid_len: u64) -> bool {
    bytes.windows(BATCH_HEADER_BYTES).any(|window| {
        window[..4] == BATCH_MAGIC
            && BatchHeader::decode(window.try_into().expect("a window has this length"), salt)
                .is_some_and(|header| header.synced_len > valid_len)
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader { salt: 77, base_offset: 100, timestamp: 5 };

    fn batch(base_offset: u64, synced_len: u64, payload: &[u8]) -> BytesMut {
        let header = BatchHeader {
            payload_crc: crc32c(payload),
            payload_len: payload.len() as u32,
            count: 2,
            base_offset,
            timestamp: 6,
            synced_len,
        };
        let mut bytes = BytesMut::new();
        header.encode(HEADER.salt, &mut bytes);
        bytes.put_slice(payload);
        bytes
    }

    fn scan(bytes: &[u8], chunk: usize) -> (Scanned, Vec<u64>) {
        let (mut scanner, mut found) = (Scanner::new(&HEADER), Vec::new());
        for chunk in bytes.chunks(chunk) {
            if !scanner.feed(chunk, |header, _| found.push(header.base_offset)) {
                break;
            }
        }
        (scanner.scanned(), found)
    }

    #[test]
    fn a_segment_header_is_read_back_and_a_changed_one_refused() {
        let bytes = HEADER.encode();
        let bytes: [u8; SEGMENT_HEADER_BYTES] = bytes[..].try_into().unwrap();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(HEADER));
        for at in 0..SEGMENT_HEADER_BYTES {
            let mut changed = bytes;
            changed[at] ^= 0x40;
            assert!(SegmentHeader::decode(&changed).is_err(), "byte {at}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(SegmentHeader::decode(&newer), Err(HeaderError::Version(2)));
    }

    /// Cut at each byte, and fed in pieces of each size, the whole batches are found and no others.
    #[test]
    fn every_cut_keeps_the_whole_batches() {
        let bytes =
            [batch(100, 40, b"one"), batch(102, 40, b"two!"), batch(104, 91, b"3")].concat();
        let ends = [51, 103, 152];
        for cut in 0..=bytes.len() {
            for chunk in [1, 7, 48, 1000] {
                let (scanned, found) = scan(&bytes[..cut], chunk);
                let whole = ends.iter().filter(|end| **end <= cut).count();
                assert_eq!(found, [100, 102, 104][..whole], "cut at {cut}");
                let valid_len = 40 + if whole == 0 { 0 } else { ends[whole - 1] as u64 };
                assert_eq!(scanned.valid_len, valid_len, "cut at {cut}");
                assert_eq!(scanned.next_offset, 100 + 2 * whole as u64);
            }
        }
    }

    /// A changed byte ends the valid part before its batch, whichever byte it is.
    #[test]
    fn every_changed_byte_is_noticed() {
        let bytes = [batch(100, 40, b"one"), batch(102, 40, b"two!")].concat();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let (_, found) = scan(&changed, 1000);
            assert_eq!(found, [100, 102][..usize::from(at >= 51)], "byte {at}");
        }
    }

    #[test]
    fn batches_of_other_segments_and_out_of_order_are_refused() {
        let mut other = BytesMut::new();
        BatchHeader::decode(batch(100, 40, b"x")[..48].try_into().unwrap(), 77)
            .unwrap()
            .encode(78, &mut other);
        other.put_slice(b"x");
        assert_eq!(scan(&other, 1000).1, []);
        assert_eq!(scan(&batch(101, 40, b"a gap"), 1000).1, []);
        assert_eq!(scan(&batch(100, 41, b"synced beyond itself"), 1000).1, []);
    }

    #[test]
    fn only_a_later_batch_that_was_written_after_a_sync_proves_damage() {
        let torn =
            [b"garbage OIOB garbage".to_vec(), batch(102, 40, b"unsynced").to_vec()].concat();
        assert!(!proves_damage(&torn, 77, 40));
        let damaged = [torn, batch(104, 200, b"synced").to_vec()].concat();
        assert!(proves_damage(&damaged, 77, 40));
        assert!(!proves_damage(&damaged, 78, 40), "of another segment");
        assert!(!proves_damage(&[], 77, 40));
    }
}
