//! [`Transfer`]: an object that is arriving, as its readers see it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use event_listener::{Event, EventListener};

use super::{Failure, Head};

/// An object that is arriving from the origin. Readers of all workers share it.
///
/// A reader looks at it, and if it has to wait, it [listens](Self::listen), looks again, and then waits.
pub struct Transfer {
    state: Mutex<State>,
    block_bytes: usize,
    /// Notified after each change, by the task that fetches.
    changed: Event,
}

#[derive(Default)]
struct State {
    head: Option<Arc<Head>>,
    /// Full blocks.
    blocks: Vec<Bytes>,
    /// What has arrived of the next block. At most [`TAIL_PIECES_MAX`](super::fetch::TAIL_PIECES_MAX) pieces.
    tail: Vec<Bytes>,
    end: Option<End>,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The object has arrived.
    Complete,
    /// The origin has no such object: the status that it has answered, 404 or 410.
    Missing(u16),
    /// It cannot be had, or not all of it.
    Failed(Failure),
}

/// What is there at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Bytes from there on.
    Bytes(Bytes),
    /// Nothing yet.
    Nothing,
    /// The object ends before it or there, or it has failed.
    End(End),
}

impl Transfer {
    pub(super) fn new(block_bytes: usize) -> Self {
        Self { state: Mutex::default(), block_bytes, changed: Event::new() }
    }

    /// What the origin says about the object. `None`: it has not answered yet.
    ///
    /// # Errors
    /// The transfer has ended without an object.
    pub fn head(&self) -> Option<Result<Arc<Head>, End>> {
        let state = self.lock();
        match (&state.head, state.end) {
            (_, Some(end @ (End::Missing(_) | End::Failed(_)))) => Some(Err(end)),
            (Some(head), _) => Some(Ok(Arc::clone(head))),
            (None, _) => None,
        }
    }

    /// What has arrived at position `at`.
    pub fn read(&self, at: u64) -> Arrival {
        let state = self.lock();
        if let Some(end @ (End::Missing(_) | End::Failed(_))) = state.end {
            return Arrival::End(end);
        }
        match state.find(at, self.block_bytes) {
            Some(bytes) => Arrival::Bytes(bytes),
            None => state.end.map_or(Arrival::Nothing, Arrival::End),
        }
    }

    /// Begins to wait for a change.
    pub fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// How many readers wait.
    pub fn waiting(&self) -> usize {
        self.changed.total_listeners()
    }

    /// Wakes some readers that wait, those first that have waited longest.
    pub fn wake(&self, count: usize) {
        self.changed.notify_additional(count);
    }

    pub(super) fn begin(&self, head: Arc<Head>) {
        self.lock().head = Some(head);
    }

    /// Adds a piece behind the others of its block.
    pub(super) fn add_piece(&self, piece: Bytes) {
        self.lock().tail.push(piece);
    }

    /// Replaces the pieces of the block that is arriving by one.
    pub(super) fn join_pieces(&self, piece: Bytes) {
        let pieces = std::mem::replace(&mut self.lock().tail, vec![piece]);
        drop(pieces); // outside of the lock
    }

    /// Adds a block, of which the pieces have arrived before.
    pub(super) fn add_block(&self, block: Bytes) {
        let mut state = self.lock();
        state.blocks.push(block);
        let pieces = std::mem::take(&mut state.tail);
        drop(state);
        drop(pieces);
    }

    /// Ends it, unless it has ended. After a failure, what has arrived is of no use to anybody.
    pub(super) fn end(&self, end: End) {
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(end);
        let unused = match end {
            End::Complete => None,
            End::Missing(_) | End::Failed(_) => {
                Some((std::mem::take(&mut state.blocks), std::mem::take(&mut state.tail)))
            }
        };
        drop(state);
        drop(unused);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// All blocks, once the object has arrived. The last one may be shorter.
    pub(super) fn blocks(&self) -> Vec<Bytes> {
        let state = self.lock();
        state.blocks.iter().chain(&state.tail).cloned().collect()
    }

    pub(super) fn wake_all(&self) {
        self.changed.notify(usize::MAX);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("end", &self.lock().end).finish_non_exhaustive()
    }
}

impl State {
    fn find(&self, at: u64, block_bytes: usize) -> Option<Bytes> {
        let at = usize::try_from(at).ok()?;
        if let Some(block) = self.blocks.get(at / block_bytes) {
            return Some(block.slice(at % block_bytes..));
        }
        let mut from = at - self.blocks.len() * block_bytes;
        for piece in &self.tail {
            if from < piece.len() {
                return Some(piece.slice(from..));
            }
            from -= piece.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn each_position_has_what_has_arrived_there() {
        let transfer = Transfer::new(4);
        assert!(transfer.head().is_none());
        assert_eq!(transfer.read(0), Arrival::Nothing);
        transfer.begin(Arc::default());
        assert!(transfer.head().unwrap().is_ok());
        transfer.add_piece(bytes("a"));
        transfer.add_piece(bytes("bc"));
        let arrived = |at: u64| match transfer.read(at) {
            Arrival::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            other => format!("{other:?}"),
        };
        assert_eq!([0, 1, 2, 3, 9].map(arrived), ["a", "bc", "c", "Nothing", "Nothing"]);
        transfer.join_pieces(bytes("abc"));
        assert_eq!([0, 2].map(arrived), ["abc", "c"]);
        transfer.add_block(bytes("abcd"));
        transfer.add_piece(bytes("e"));
        assert_eq!([0, 3, 4, 5].map(arrived), ["abcd", "d", "e", "Nothing"]);
        transfer.end(End::Complete);
        assert_eq!([4, 5].map(arrived), ["e", "End(Complete)"]);
        assert_eq!(transfer.blocks(), ["abcd", "e"]);
    }

    #[test]
    fn a_transfer_that_fails_has_nothing_left() {
        let transfer = Transfer::new(4);
        transfer.begin(Arc::default());
        transfer.add_piece(bytes("a"));
        let failed = End::Failed(Failure::Truncated);
        transfer.end(failed);
        transfer.end(End::Complete);
        assert_eq!(transfer.head(), Some(Err(failed)));
        assert_eq!(transfer.read(0), Arrival::End(failed));
        assert!(transfer.blocks().is_empty());
    }
}
