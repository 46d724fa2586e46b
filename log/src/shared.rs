//! [`Shared`]: what the handles of a partition share with its writer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use owned_io::Files;

use crate::segment::Segment;
use crate::signal::{Answered, Reply, Signal, reply};
use crate::{
    Appended, Batch, Error, Observer, Offsets, PartitionConfig, Position, Retention, Trimmed,
};

/// What the handles share with the writer.
pub(crate) struct Shared<R: Files> {
    pub(crate) dir: PathBuf,
    pub(crate) config: PartitionConfig,
    /// Never borrowed across an await, nor while code of the caller runs.
    pub(crate) state: RefCell<State<R>>,
    /// A request was queued, or the partition is closed.
    pub(crate) work: Signal,
    /// There may be room for another batch.
    pub(crate) room: Signal,
    /// Batches were acknowledged, or none will be any more.
    pub(crate) committed: Signal,
    /// Who learns of writes and syncs.
    pub(crate) observer: RefCell<Option<Rc<dyn Observer>>>,
}

pub(crate) struct State<R: Files> {
    /// In order. The last is written to. Empty during a purge, and after one until there is room for a segment.
    pub(crate) segments: VecDeque<Rc<Segment<R>>>,
    /// Their lengths together.
    pub(crate) bytes: u64,
    /// The segments whose index is in memory, except the last one. The one that was used last comes first. Files of the
    /// first ones are open.
    pub(crate) recent: VecDeque<Rc<Segment<R>>>,
    /// `None` once the writer has ended.
    pub(crate) lock: Option<R::File>,
    /// `queue_bytes_max` and one batch bound it. Other requests than appends are few: one for each waiting task.
    pub(crate) queue: VecDeque<Request>,
    /// The [cost](Queued::cost) of the batches that are queued or being written.
    pub(crate) queue_bytes: usize,
    /// The offset of the next batch, and the time of the last one.
    pub(crate) assigned: Position,
    /// The offset after the last acknowledged message.
    pub(crate) next: u64,
    /// The last acknowledged batches without a gap, oldest first.
    pub(crate) cache: VecDeque<Batch>,
    /// Their bytes, and [`BATCH_OVERHEAD_BYTES`] for each.
    pub(crate) cache_bytes: usize,
    pub(crate) is_purging: bool,
    pub(crate) is_closing: bool,
    pub(crate) failed: Option<Error>,
}

/// What the writer is asked to do.
pub(crate) enum Request {
    Append(Queued),
    Flush(Reply<()>),
    /// The last one: sync, and mark the clean end.
    Close(Reply<()>),
    Purge(Reply<()>),
    Trim(Keep, Reply<Trimmed>),
}

/// A batch that waits to be written.
pub(crate) struct Queued {
    pub(crate) appended: Appended,
    pub(crate) parts: Vec<Bytes>,
    pub(crate) bytes: usize,
    pub(crate) reply: Reply<Appended>,
}

/// What a batch in memory costs besides its bytes, at most: its places in queues, its answer, its stored header. The
/// settings count it, because the smallest batches have one byte.
pub(crate) const BATCH_OVERHEAD_BYTES: usize = 256;

impl Queued {
    /// What it costs in memory, in bytes.
    pub(crate) fn cost(&self) -> usize {
        let parts = self.parts.len().saturating_mul(BATCH_OVERHEAD_BYTES);
        self.bytes.saturating_add(parts)
    }
}

/// What a trim keeps.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
    Retention(Retention),
    /// Messages from this offset on.
    From(u64),
}

impl<R: Files> Shared<R> {
    /// Queues a request.
    pub(crate) fn request<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<Answered<T>, Error> {
        if let Some(error) = self.state.borrow().refusal() {
            return Err(error);
        }
        let (reply, answered) = reply();
        self.state.borrow_mut().queue.push_back(request(reply));
        self.work.notify();
        Ok(answered)
    }

    /// Tells the observer, if there is one.
    pub(crate) fn tell(&self, event: impl FnOnce(&dyn Observer)) {
        // Not borrowed while it is called: it is code of the caller.
        let observer = self.observer.borrow().clone();
        if let Some(observer) = observer {
            event(&*observer);
        }
    }

    pub(crate) fn close(&self) {
        self.state.borrow_mut().is_closing = true;
        self.work.notify();
        self.room.notify();
        self.committed.notify();
    }

    /// `Some` if an append need not wait: it may go on, or it is refused.
    pub(crate) fn check_room(&self) -> Option<Result<(), Error>> {
        let state = self.state.borrow();
        if let Some(error) = state.refusal() {
            return Some(Err(error));
        }
        // An empty queue takes a batch, whatever the limit is.
        let has_room = state.queue_bytes < self.config.queue_bytes_max || state.queue_bytes == 0;
        let has_room = has_room && !state.is_purging;
        has_room.then_some(Ok(()))
    }

    pub(crate) fn next_position(&self, now: SystemTime) -> Position {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let now = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let Position { base_offset, timestamp } = self.state.borrow().assigned;
        Position { base_offset, timestamp: now.max(timestamp) }
    }
}

impl<R: Files> State<R> {
    pub(crate) fn offsets(&self) -> Offsets {
        let first = self.segments.front().map_or(self.next, |first| first.base_offset);
        Offsets { first: first.min(self.next), next: self.next }
    }

    /// Adds the segment that is written to from now on.
    pub(crate) fn push_segment(&mut self, segment: Rc<Segment<R>>) {
        self.bytes += segment.len.get();
        self.segments.push_back(segment);
    }

    /// Takes the first segment out, to remove it.
    pub(crate) fn pop_segment(&mut self) -> Option<Rc<Segment<R>>> {
        let first = self.segments.pop_front()?;
        self.bytes -= first.len.get();
        self.recent.retain(|recent| !Rc::ptr_eq(recent, &first));
        Some(first)
    }

    /// Puts back the first segment, which could not be removed.
    pub(crate) fn restore_segment(&mut self, first: Rc<Segment<R>>) {
        first.free(); // it is not among the recent ones
        self.bytes += first.len.get();
        self.segments.push_front(first);
    }

    /// Takes all segments out, to remove them.
    pub(crate) fn clear_segments(&mut self) {
        self.bytes = 0;
        self.recent.clear();
        self.segments.clear();
    }

    /// Whether it is one of the segments, and not one of the same name that was removed.
    pub(crate) fn has_segment(&self, segment: &Rc<Segment<R>>) -> bool {
        let found = self.segments.binary_search_by_key(&segment.base_offset, |it| it.base_offset);
        found.is_ok_and(|at| Rc::ptr_eq(&self.segments[at], segment))
    }

    /// Notes that a segment is used. Closes the files beyond
    /// [`open_segments_max`](PartitionConfig::open_segments_max), and frees the indexes beyond
    /// [`indexes_max`](PartitionConfig::indexes_max).
    pub(crate) fn note_use(&mut self, used: &Rc<Segment<R>>, config: &PartitionConfig) {
        // The last one is written to, and stays open. One that was removed is freed by its last reader.
        let is_last = self.segments.back().is_some_and(|last| Rc::ptr_eq(last, used));
        if is_last || !self.has_segment(used) {
            return;
        }
        self.recent.retain(|recent| !Rc::ptr_eq(recent, used));
        self.recent.push_front(Rc::clone(used));
        for recent in self.recent.iter().skip(config.open_segments_max) {
            recent.opened.replace(None);
        }
        let kept = config.indexes_max.max(config.open_segments_max).min(self.recent.len());
        for recent in self.recent.drain(kept..) {
            recent.free();
        }
    }

    /// Why nothing more can be asked for.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.failed.clone().or_else(|| self.is_closing.then(Error::closed))
    }
}
