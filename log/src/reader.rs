//! Reads of a partition, from memory or from its segments.

use std::rc::Rc;

use bytes::Bytes;
use owned_io::{Files, coop};

use crate::format::{BATCH_HEADER_BYTES, BatchHeader, SEGMENT_HEADER_BYTES, payload_crc};
use crate::segment::{IndexEntry, Metadata, Opened, Segment, Target};
use crate::shared::{Shared, State};
use crate::{Batch, Error};

/// The least that is read at once, in bytes: a small batch is mostly followed by others.
const READ_BYTES_MIN: u64 = 16 * 1024;

/// The most that is read at once, in bytes, unless one batch is larger.
const READ_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What is read at once for a long batch that is only expected, because the one before it was long, in reads of the length
/// that was asked for. Other consumers of the segment may be where batches are short.
const LONG_READS_MAX: u64 = 4;

/// The most batches that a read returns. Checking them is one piece of work, of some 100 µs if they are small.
pub const READ_BATCHES_MAX: usize = 1024;

/// The work of a batch that is returned, of a byte that is checked, and of a header that is decoded, in nanoseconds. Not
/// measured.
const BATCH_NANOS: u64 = 100;
const BYTES_CHECKED_PER_NANO: u64 = 8;
const HEADER_NANOS: u64 = 20;

pub(crate) async fn read<R: Files>(
    shared: &Shared<R>,
    target: Target,
    bytes_max: usize,
    batch_bytes_max: usize,
) -> Result<Vec<Batch>, Error> {
    if let Some(batches) = from_cache(&shared.state.borrow(), target, bytes_max) {
        return Ok(batches);
    }
    let mut at_least = 0;
    // Each round goes on to a later segment, or finds that one was removed meanwhile.
    loop {
        let Some((segment, next_base)) = find_segment(shared, target, at_least).await? else {
            return Ok(Vec::new());
        };
        let found = match segment.open(shared.config.segment_bytes).await {
            Ok(opened) => {
                shared.state.borrow_mut().note_use(&segment, &shared.config);
                read_segment(&segment, &opened, target, bytes_max, batch_bytes_max).await
            }
            Err(error) => Err(error),
        };
        match found {
            // A trim or a purge has removed it meanwhile. After a purge, another file has its name.
            _ if !shared.state.borrow().has_segment(&segment) => {}
            Ok(batches) if !batches.is_empty() => return Ok(batches),
            Ok(_) => match (next_base, target) {
                // The batch was in it, or in a segment between the two.
                (Some(next_base), Target::Offset(offset))
                    if (segment.base_offset..next_base).contains(&offset) =>
                {
                    return Err(Error::corrupt(&segment.path, segment.len.get()));
                }
                (Some(next_base), _) => at_least = next_base,
                (None, _) => return Ok(Vec::new()),
            },
            Err(error) => return Err(error),
        }
    }
}

/// The batches in memory, if the target is among them or after them.
fn from_cache<R: Files>(state: &State<R>, target: Target, bytes_max: usize) -> Option<Vec<Batch>> {
    let is_before = |batch: &Batch| match target {
        Target::Offset(offset) => batch.next_offset() <= offset,
        Target::Timestamp(timestamp) => batch.timestamp < timestamp,
    };
    match target {
        Target::Offset(offset) if offset >= state.next => return Some(Vec::new()),
        Target::Offset(offset) if offset < state.cache.front()?.base_offset => return None,
        // A batch that is not in memory may have the same timestamp as the first that is.
        Target::Timestamp(timestamp) if timestamp <= state.cache.front()?.timestamp => return None,
        _ => {}
    }
    let start = state.cache.partition_point(is_before);
    let mut bytes = 0_usize;
    let fits = |batch: &&Batch| {
        let is_first = bytes == 0;
        bytes = bytes.saturating_add(batch.bytes.len());
        is_first || bytes <= bytes_max
    };
    let cached = state.cache.range(start..).take(READ_BATCHES_MAX).take_while(fits);
    let found: Vec<_> = cached.cloned().collect();
    coop::consume(found.len() as u64 * BATCH_NANOS);
    Some(found)
}

/// The segment to begin with, among those from the base offset `at_least` on, and the base offset of the next one.
async fn find_segment<R: Files>(
    shared: &Shared<R>,
    target: Target,
    at_least: u64,
) -> Result<Option<(Rc<Segment<R>>, Option<u64>)>, Error> {
    let before = match target {
        Target::Offset(offset) => offset,
        Target::Timestamp(timestamp) => last_before(shared, timestamp, at_least).await?,
    };
    let segments = &shared.state.borrow().segments;
    let first = segments.partition_point(|segment| segment.base_offset < at_least);
    let after = segments.partition_point(|segment| segment.base_offset <= before);
    let number = after.saturating_sub(1).max(first);
    let next_base = segments.get(number + 1).map(|segment| segment.base_offset);
    Ok(segments.get(number).map(|segment| (Rc::clone(segment), next_base)))
}

/// The base offset of the last segment, after the first one from `at_least` on, whose batch before it is older than
/// `timestamp`. `at_least` if there is none.
async fn last_before<R: Files>(
    shared: &Shared<R>,
    timestamp: u64,
    at_least: u64,
) -> Result<u64, Error> {
    // The last segment of which that is known, and the base offset of the first of which it is known not to be so.
    let (mut older, mut end) = (None::<Rc<Segment<R>>>, u64::MAX);
    // Each round halves what is between the two. Segments may come and go meanwhile.
    loop {
        let middle = {
            let segments = &shared.state.borrow().segments;
            let first = segments.partition_point(|segment| segment.base_offset < at_least);
            let low = older.as_ref().map_or(at_least, |segment| segment.base_offset);
            let start = segments.partition_point(|segment| segment.base_offset <= low);
            let start = start.max(first + 1); // the first one is never asked
            let end = segments.partition_point(|segment| segment.base_offset < end);
            if start >= end {
                break;
            }
            Rc::clone(&segments[usize::midpoint(start, end)])
        };
        // The header of a segment has the timestamp of the last batch before it.
        let is_older = match middle.header().await {
            Ok(header) => header.timestamp < timestamp,
            Err(_) if !shared.state.borrow().has_segment(&middle) => true, // it was removed
            Err(error) => return Err(error),
        };
        if is_older { older = Some(middle) } else { end = middle.base_offset }
    }
    // If it was removed, so were all before it. The read begins with the first one that is left then.
    let older = older.filter(|segment| shared.state.borrow().has_segment(segment));
    Ok(older.map_or(at_least, |segment| segment.base_offset))
}

/// The batches of a segment from the target on. The first has at most `batch_bytes_max` bytes.
async fn read_segment<R: Files>(
    segment: &Segment<R>,
    opened: &Opened<R>,
    target: Target,
    bytes_max: usize,
    batch_bytes_max: usize,
) -> Result<Vec<Batch>, Error> {
    let index = &opened.metadata.index;
    // Each round but the last makes the index shorter.
    loop {
        let entry = index.borrow().seek(target);
        let found = read_from(segment, opened, entry, target, bytes_max, batch_bytes_max).await?;
        match (found, entry) {
            // The entry is wrong, because the index came from the mark; or the batch is damaged. A read from an earlier
            // entry reports any damage.
            (None, Some(entry)) => index.borrow_mut().remove(entry),
            (found, _) => return Ok(found.unwrap_or_default()),
        }
    }
}

/// The batches of a segment from the target on. Reads from the batch of the index on that `entry` is about, or from the
/// first one. `None`: the entry is about another batch than is there.
async fn read_from<R: Files>(
    segment: &Segment<R>,
    opened: &Opened<R>,
    entry: Option<IndexEntry>,
    target: Target,
    bytes_max: usize,
    batch_bytes_max: usize,
) -> Result<Option<Vec<Batch>>, Error> {
    let Metadata { header: segment_header, long_batch, .. } = &*opened.metadata;
    let mut position = entry.map_or(SEGMENT_HEADER_BYTES as u64, |entry| entry.position);
    let mut next_offset = entry.map_or(segment.base_offset, |entry| entry.base_offset);
    let mut unconfirmed = entry;
    let at_once = (bytes_max as u64).clamp(READ_BYTES_MIN, READ_BYTES_MAX);
    let mut needed = long_batch
        .get()
        .min(BATCH_HEADER_BYTES.saturating_add(batch_bytes_max) as u64)
        .min(LONG_READS_MAX * at_once);
    let len = segment.len.get();
    let mut found = Vec::new();
    // Each round returns, goes on by at least one batch, or reads more of one.
    while position < len && found.is_empty() {
        let wanted = at_once.max(needed);
        let bytes = segment.read(&opened.file, position, wanted.min(len - position)).await?;
        let (mut at, mut payload) = (0, 0_usize);
        needed = 0;
        while let Some(head) = bytes.get(at as usize..).and_then(<[u8]>::first_chunk) {
            // The next read comes to the damage.
            let before_damage = |found: Vec<Batch>| match found.is_empty() {
                true => Err(Error::corrupt(&segment.path, position + at)),
                false => Ok(Some(released(found, bytes.len()))),
            };
            if found.len() == READ_BATCHES_MAX {
                break;
            }
            coop::consume(HEADER_NANOS);
            let header = BatchHeader::decode(head, segment_header.salt);
            if let Some(entry) = unconfirmed.take()
                && !header.is_some_and(|header| entry.agrees_with(&header))
            {
                return Ok(None);
            }
            let Some(header) = header else {
                return before_damage(found);
            };
            let end = at + header.stored_len();
            // Offsets have no gap, and the batch ends within the segment.
            if header.base_offset != next_offset || position + end > len {
                return before_damage(found);
            }
            if target.skips(&header) {
                (at, next_offset) = (end, header.next_offset());
                continue;
            }
            payload = payload.saturating_add(header.payload_len as usize);
            if !found.is_empty() && payload > bytes_max {
                break;
            }
            if found.is_empty() && payload > batch_bytes_max {
                return Err(Error::too_large(payload, batch_bytes_max));
            }
            if end > bytes.len() as u64 {
                needed = header.stored_len();
                break;
            }
            coop::consume(BATCH_NANOS + u64::from(header.payload_len) / BYTES_CHECKED_PER_NANO);
            let stored = bytes.slice(at as usize + BATCH_HEADER_BYTES..end as usize);
            if payload_crc(std::slice::from_ref(&stored)) != header.payload_crc {
                return before_damage(found);
            }
            if found.is_empty() {
                let stored_len = header.stored_len();
                long_batch.set(if stored_len > at_once { stored_len } else { 0 });
            }
            let BatchHeader { base_offset, count, timestamp, .. } = header;
            found.push(Batch { base_offset, count, timestamp, bytes: stored });
            (at, next_offset) = (end, header.next_offset());
        }
        found = released(found, bytes.len());
        if at == 0 && needed == 0 {
            if unconfirmed.is_some() {
                return Ok(None);
            }
            return Err(Error::corrupt(&segment.path, position)); // less than a header is left
        }
        position += at;
    }
    Ok(Some(found))
}

/// The batches of a read of `read_bytes` bytes, whose memory they share. If they are less than half of it, they are
/// copied, so that the rest is not held with them, unless there is no memory for a copy.
fn released(mut batches: Vec<Batch>, read_bytes: usize) -> Vec<Batch> {
    let bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
    if bytes >= read_bytes / 2 {
        return batches;
    }
    let mut copy = Vec::new();
    if copy.try_reserve_exact(bytes).is_err() {
        return batches;
    }
    coop::consume(bytes as u64 / 8);
    batches.iter().for_each(|batch| copy.extend_from_slice(&batch.bytes));
    let mut copy = Bytes::from(copy);
    for batch in &mut batches {
        batch.bytes = copy.split_to(batch.bytes.len());
    }
    batches
}
