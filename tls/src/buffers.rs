//! [`Buffers`]: the memory that connections share.

use std::cell::RefCell;
use std::rc::Rc;

use owned_io::Pool;

/// The memory of one worker's TLS connections: the pool that records are received into, and the buffers
/// that they leave from.
///
/// A connection has a buffer only while there is something in it, so an idle one has none. Cloning
/// gives another handle to the same memory.
#[derive(Clone, Debug)]
pub struct Buffers {
    pool: Pool,
    /// The one used last is used first: at most [`SPARE_MAX`], each of at most [`SPARE_BYTES_MAX`].
    spare: Rc<RefCell<Vec<Vec<u8>>>>,
}

/// With [`SPARE_BYTES_MAX`], 6 MiB.
const SPARE_MAX: usize = 64;
/// The records of the longest write fit.
const SPARE_BYTES_MAX: usize = 96 * 1024;

impl Buffers {
    /// Receives into buffers of `pool`, whose length is of no matter to TLS: several records that came
    /// at once are received by one read if they fit, and one that does not fit comes in pieces. The
    /// largest record is [somewhat longer](https://www.rfc-editor.org/rfc/rfc8446#section-5.2) than
    /// 16 KiB.
    ///
    /// A read has one of them until it has its plaintext somewhere else. Connections that are
    /// themselves read with this pool need two buffers each at a time, then.
    pub fn new(pool: Pool) -> Self {
        Self { pool, spare: Rc::default() }
    }

    /// The pool that records are received into.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A buffer of any length; its bytes are of no meaning, but initialised.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a buffer back. It keeps its length, so that its bytes need not be initialised again.
    pub(crate) fn give(&self, buf: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if (1..=SPARE_BYTES_MAX).contains(&buf.capacity()) && spare.len() < SPARE_MAX {
            spare.push(buf);
        }
    }
}
