//! Messages on TCP: a length, and that many bytes; and what a worker commits to them.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use owned_io::{BufResult, ShutdownHandle};

/// The bytes that a worker may have promised to messages that have not all arrived.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Rc<Cell<usize>>,
}

impl Budget {
    /// So many.
    pub fn new(bytes: usize) -> Self {
        Self { left: Rc::new(Cell::new(bytes)) }
    }

    /// Commits `bytes`, until what this returns is dropped.
    ///
    /// # Errors
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) when fewer are left.
    pub fn commit(&self, bytes: usize) -> io::Result<Announced> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "more is announced than this worker commits to (announced-bytes-max)",
            )
        })?;
        self.left.set(left);
        Ok(Announced { left: Rc::clone(&self.left), bytes })
    }
}

/// Bytes committed to a message; given back when dropped.
#[derive(Debug)]
pub struct Announced {
    left: Rc<Cell<usize>>,
    bytes: usize,
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.left.set(self.left.get() + self.bytes);
    }
}

/// What was written in time. What was not is thrown away, also by the kernel: it would keep it for a peer that
/// takes nothing.
pub(super) fn or_abort<T, B>(
    written: BufResult<T, B>,
    connection: &ShutdownHandle,
) -> io::Result<(T, B)> {
    written.into_result().inspect_err(|error| {
        if error.kind() == io::ErrorKind::TimedOut {
            connection.abort();
        }
    })
}

/// The error for a message that is larger than the limit.
pub(super) fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message is announced that is longer than message-bytes-max",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_given_back() {
        let budget = Budget::new(10);
        let first = budget.commit(7).unwrap();
        assert_eq!(budget.commit(4).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        let second = budget.commit(3).unwrap();
        drop((first, second));
        budget.commit(10).unwrap();
    }
}
