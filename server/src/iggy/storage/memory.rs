//! [`MemoryStorage`]: messages in memory, within a limit.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::ready;
use std::rc::Rc;

use owned_io::coop;

use super::{
    Appended, BATCHES_MAX, LocalFuture, MessageLog, Offsets, Position, ReadError, ReadFrom, Size,
    Storage, StoredBatch, skipped,
};
use crate::iggy::Status;
use crate::iggy::catalogue::LogId;
use crate::iggy::messages::Batch;

/// Keeps messages in memory. All logs together hold at most a number of bytes; a batch that does not fit is refused as
/// [`TopicFull`](Status::TopicFull), and what is there stays. Nothing is left when the server ends.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    room: Rc<Room>,
    /// µs since 1970.
    now: fn() -> u64,
    /// Lets other tasks run.
    pause: fn() -> LocalFuture<'static, ()>,
}

/// What a batch takes beside its messages, in bytes.
const BATCH_OVERHEAD_BYTES: usize = 128;

/// The work of reading a batch, in nanoseconds: another handle to it, which is dropped later. Not measured.
const BATCH_NANOS: u64 = 50;

/// How many batches are freed before other tasks may run, and the work of each, in nanoseconds. Not measured.
const FREED_AT_ONCE: usize = 256;
const FREE_NANOS: u64 = 150;

/// The memory of all logs.
#[derive(Debug)]
struct Room {
    bytes_max: usize,
    bytes: Cell<usize>,
}

#[derive(Debug)]
struct MemoryLog {
    storage: MemoryStorage,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<StoredBatch>,
    next: u64,
    timestamp: u64,
    /// The bytes of the messages.
    bytes: u64,
    /// What it takes of the room.
    taken: usize,
}

impl MemoryStorage {
    /// A storage of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize, now: fn() -> u64) -> Self {
        let room = Rc::new(Room { bytes_max, bytes: Cell::new(0) });
        Self { room, now, pause: || Box::pin(ready(())) }
    }

    /// The same, which calls `pause` while it frees many batches, so that other tasks run.
    #[must_use]
    pub fn with_pause(self, pause: fn() -> LocalFuture<'static, ()>) -> Self {
        Self { pause, ..self }
    }

    /// The bytes that all logs hold.
    pub fn bytes(&self) -> usize {
        self.room.bytes.get()
    }
}

impl Storage for MemoryStorage {
    fn open<'a>(
        &'a self,
        logs: &'a [LogId],
    ) -> LocalFuture<'a, Result<Vec<Rc<dyn MessageLog>>, Status>> {
        let new = |_| MemoryLog { storage: self.clone(), state: RefCell::default() };
        let opened = logs.iter().map(new).map(|log| Rc::new(log) as Rc<dyn MessageLog>);
        Box::pin(ready(Ok(opened.collect())))
    }

    /// The memory is free once each log is [freed](MessageLog::free), or its last handle dropped.
    fn remove<'a>(&'a self, _: &'a [LogId]) -> LocalFuture<'a, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }

    fn record(&self, _: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }
}

impl MemoryLog {
    fn try_append(&self, batch: Batch, id: u128) -> Result<Appended, Status> {
        let room = &self.storage.room;
        let taken = batch.memory_bytes() + BATCH_OVERHEAD_BYTES;
        let bytes = room.bytes.get().saturating_add(taken);
        if bytes > room.bytes_max {
            return Err(Status::TopicFull);
        }
        let mut state = self.state.borrow_mut();
        let count = batch.count();
        let next = state.next.checked_add(count.into()).ok_or(Status::TopicFull)?;
        let timestamp = state.timestamp.max((self.storage.now)());
        let base_offset = state.next;
        let bytes_before = room.bytes.replace(bytes);
        debug_assert_eq!(bytes_before + taken, bytes);
        let stored = batch.stamp(Position { base_offset, timestamp }, id);
        (state.next, state.timestamp) = (next, timestamp);
        state.bytes += stored.len() as u64;
        state.taken += taken;
        state.batches.push_back(StoredBatch { base_offset, count, timestamp, bytes: stored });
        Ok(Appended { base_offset, count, timestamp })
    }

    fn find(&self, from: ReadFrom, mut count: u32, bytes_max: usize) -> Vec<StoredBatch> {
        let batches = &self.state.borrow().batches;
        let first = match from {
            ReadFrom::Offset(offset) => batches
                .partition_point(|batch| batch.base_offset + u64::from(batch.count) <= offset),
            ReadFrom::Timestamp(timestamp) => {
                batches.partition_point(|batch| batch.timestamp < timestamp)
            }
        };
        let mut bytes = 0;
        let mut found = Vec::new();
        for batch in batches.range(first..).take(BATCHES_MAX) {
            bytes += batch.bytes.len();
            if !found.is_empty() && (bytes > bytes_max || count == 0) {
                break;
            }
            coop::consume(BATCH_NANOS);
            let wanted = batch.count.saturating_sub(skipped(from, batch.base_offset));
            count = count.saturating_sub(wanted);
            found.push(batch.clone());
        }
        found
    }

    /// Removes all messages.
    fn clear(&self) -> Removed {
        let State { batches, taken, .. } = self.state.take();
        Removed { storage: self.storage.clone(), batches, taken }
    }
}

/// Batches that were removed from a log. Their room is given back when their memory is free.
struct Removed {
    storage: MemoryStorage,
    batches: VecDeque<StoredBatch>,
    taken: usize,
}

impl Removed {
    /// Frees them. Other tasks run meanwhile.
    async fn free(mut self) {
        while !self.batches.is_empty() {
            let count = self.batches.len().min(FREED_AT_ONCE);
            self.batches.drain(..count);
            coop::consume(count as u64 * FREE_NANOS);
            if !coop::has_budget() {
                (self.storage.pause)().await;
            }
        }
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        let bytes = &self.storage.room.bytes;
        bytes.set(bytes.get() - self.taken);
    }
}

impl MessageLog for MemoryLog {
    fn append(&self, batch: Batch, id: u128) -> LocalFuture<'_, Result<Appended, Status>> {
        Box::pin(ready(self.try_append(batch, id)))
    }

    fn read(
        &self,
        from: ReadFrom,
        count: u32,
        bytes_max: usize,
    ) -> LocalFuture<'_, Result<Vec<StoredBatch>, ReadError>> {
        Box::pin(ready(Ok(self.find(from, count, bytes_max))))
    }

    fn offsets(&self) -> Offsets {
        Offsets { first: 0, next: self.state.borrow().next }
    }

    fn size(&self) -> Size {
        Size { bytes: self.state.borrow().bytes, segments: 1 }
    }

    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(ready(Ok(())))
    }

    fn free(&self) -> LocalFuture<'_, ()> {
        Box::pin(self.clear().free())
    }

    fn purge(&self) -> LocalFuture<'_, Result<(), Status>> {
        let removed = self.clear();
        Box::pin(async {
            removed.free().await;
            Ok(())
        })
    }
}

/// Gives its room back.
impl Drop for MemoryLog {
    fn drop(&mut self) {
        drop(self.clear());
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::WirePartitioning;

    use super::*;
    use crate::iggy::messages::tests::request;

    fn batch(payloads: &[&[u8]]) -> Batch {
        Batch::decode(request(payloads, &WirePartitioning::Balanced)).unwrap().1
    }

    #[test]
    fn a_batch_that_does_not_fit_is_refused_and_room_is_given_back() {
        owned_io_sim::block_on(async {
            let storage = MemoryStorage::new(10_000, || 5);
            let mut logs = storage.open(&[LogId(0), LogId(1)]).await.unwrap();
            let (other, log) = (logs.pop().unwrap(), logs.pop().unwrap());
            let first = log.append(batch(&[b"a", b"b"]), 1).await.unwrap();
            assert_eq!(first, Appended { base_offset: 0, count: 2, timestamp: 5 });
            let held = storage.bytes();
            assert_eq!(log.append(batch(&[&[1; 10_000]]), 1).await, Err(Status::TopicFull));
            assert_eq!(storage.bytes(), held);
            other.append(batch(&[&[1; 9_000]]), 1).await.unwrap();
            assert_eq!(log.append(batch(&[&[1; 1_000]]), 1).await, Err(Status::TopicFull));
            assert_eq!(log.offsets(), Offsets { first: 0, next: 2 });
            other.purge().await.unwrap();
            assert_eq!(other.offsets(), Offsets::default());
            log.append(batch(&[&[1; 1_000]]), 1).await.unwrap();
            drop((log, other));
            assert_eq!(storage.bytes(), 0);
        });
    }

    #[test]
    fn others_run_while_many_batches_are_freed() {
        thread_local!(static PAUSES: Cell<u32> = const { Cell::new(0) });
        owned_io_sim::block_on(async {
            let storage = MemoryStorage::new(10 << 20, || 1).with_pause(|| {
                PAUSES.set(PAUSES.get() + 1);
                coop::refill();
                Box::pin(ready(()))
            });
            let log = storage.open(&[LogId(0)]).await.unwrap().remove(0);
            for is_purge in [true, false] {
                for _ in 0..5_000 {
                    log.append(batch(&[b"a"]), 1).await.unwrap();
                }
                PAUSES.set(0);
                coop::refill();
                match is_purge {
                    true => log.purge().await.unwrap(),
                    false => log.free().await,
                }
                assert!(PAUSES.get() >= 8, "{} pauses", PAUSES.get());
                assert_eq!((storage.bytes(), log.offsets()), (0, Offsets::default()));
            }
        });
    }

    #[test]
    fn batches_are_found_by_offset_and_by_time() {
        thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });
        owned_io_sim::block_on(async {
            let storage = MemoryStorage::new(1 << 20, || NOW.get());
            let log = storage.open(&[LogId(0)]).await.unwrap().remove(0);
            for (now, payloads) in
                [(10, &[&b"0"[..], b"1", b"2"][..]), (9, &[b"3"]), (20, &[b"4", b"5"])]
            {
                NOW.set(now);
                log.append(batch(payloads), 1).await.unwrap();
            }
            let bases = async |from, bytes_max| -> Vec<u64> {
                let found = log.read(from, u32::MAX, bytes_max).await.unwrap();
                found.iter().map(|batch| batch.base_offset).collect()
            };
            for (offset, expected) in [
                (0, &[0, 3, 4][..]),
                (2, &[0, 3, 4]),
                (3, &[3, 4]),
                (5, &[4]),
                (6, &[]),
                (u64::MAX, &[]),
            ] {
                assert_eq!(bases(ReadFrom::Offset(offset), usize::MAX).await, expected);
            }
            for (timestamp, expected) in
                [(0, &[0, 3, 4][..]), (10, &[0, 3, 4]), (11, &[4]), (21, &[])]
            {
                assert_eq!(bases(ReadFrom::Timestamp(timestamp), usize::MAX).await, expected);
            }
            assert_eq!(bases(ReadFrom::Offset(0), 0).await, [0], "at least one");
        });
    }

    /// A connection yields between its polls once they have done enough work. So a poll must do little more than it
    /// counts, also if it has many small batches before it.
    #[test]
    fn a_read_returns_no_more_batches_than_are_wanted() {
        owned_io_sim::block_on(async {
            let storage = MemoryStorage::new(1 << 20, || 1);
            let log = storage.open(&[LogId(0)]).await.unwrap().remove(0);
            for _ in 0..BATCHES_MAX + 100 {
                log.append(batch(&[b"0", b"1"]), 1).await.unwrap();
            }
            let first = ReadFrom::Offset(0);
            for (from, count, expected) in [
                (first, 1, 1),
                (first, 2, 1),
                (first, 3, 2),
                (ReadFrom::Offset(1), 1, 1),
                (ReadFrom::Offset(1), 2, 2),
                (ReadFrom::Timestamp(1), 5, 3),
                (first, u32::MAX, BATCHES_MAX),
            ] {
                coop::refill();
                let found = log.read(from, count, usize::MAX).await.unwrap();
                assert_eq!(found.len(), expected, "{from:?}, {count}");
                let counted = coop::spent_nanos();
                assert!(counted >= expected as u64 * BATCH_NANOS, "{counted} for {expected}");
            }
        });
    }
}
