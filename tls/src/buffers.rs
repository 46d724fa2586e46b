//! [`Buffers`]: the memory that connections share.

use std::cell::RefCell;
use std::rc::Rc;

use owned_io::{MemoryAccount, MemoryBudget, Pool};

/// The memory of one worker's TLS connections: the pool that records are received into, and the buffers
/// that they leave from, and the budget for what they hold.
///
/// A connection has a buffer only while there is something in it, so an idle one has none. Cloning
/// gives another handle to the same memory.
#[derive(Clone, Debug)]
pub struct Buffers {
    pool: Pool,
    budget: MemoryBudget,
    /// That of the connection, if it has one already.
    account: Option<MemoryAccount>,
    /// The one used last is used first: at most [`SPARE_MAX`], each of [`CAPACITY_MIN`] to
    /// [`SPARE_BYTES_MAX`] bytes.
    spare: Rc<RefCell<Vec<Vec<u8>>>>,
}

/// The least that a buffer for a write has, in bytes: smaller ones, of alerts, are not kept.
pub(crate) const CAPACITY_MIN: usize = 1024;
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
    ///
    /// What connections hold beyond those buffers is reserved in an account of `budget` for each of them:
    /// parts of records and of handshakes, as they come (at most 164 KiB during a handshake, 72 KiB after
    /// it); what was decrypted and is not read yet (one buffer of the pool, decrypted or not); records that
    /// the peer does not take (64 KiB, and what encryption adds). rustls's own state is not counted, some
    /// KiB for each connection, nor are the buffers that are kept for the next write, 6 MiB at most.
    ///
    /// Where a reservation is refused, a read waits, so that the peer feels back-pressure, and a write
    /// encrypts less: 4 KiB at least, which it takes whether or not there is room for them. A connection
    /// that waits for half a minute fails with [`TlsError::OutOfMemory`](crate::TlsError::OutOfMemory), and
    /// one that holds much while others wait ([`MemoryBudget::relieve`]) with
    /// [`TlsError::Evicted`](crate::TlsError::Evicted).
    pub fn new(pool: Pool, budget: MemoryBudget) -> Self {
        Self { pool, budget, account: None, spare: Rc::default() }
    }

    /// The same memory, for a connection that has an account already: what it holds is reserved there. It
    /// must be an account of the same budget to be bounded by that.
    ///
    /// So TLS and what runs over it share what one connection may hold. If the account is evicted and TLS
    /// holds nothing, it is for what runs over it to end the connection.
    #[must_use]
    pub fn in_account(&self, account: &MemoryAccount) -> Self {
        Self { account: Some(account.clone()), ..self.clone() }
    }

    /// The budget for what connections hold.
    pub const fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The connection's account.
    pub(crate) fn account(&self) -> MemoryAccount {
        self.account.clone().unwrap_or_else(|| self.budget.account())
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
        if (CAPACITY_MIN..=SPARE_BYTES_MAX).contains(&buf.capacity()) && spare.len() < SPARE_MAX {
            spare.push(buf);
        }
    }
}
