//! [`Shared`]: what the halves of a connection share.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use owned_io::backend::{Broken, Done, Half, Job, ShutdownTarget, Writer};
use owned_io::{OwnedWrite, ShutdownHandle, Slice};

use crate::Buffers;
use crate::session::Session;

pub(crate) struct Shared {
    pub(crate) session: RefCell<Session>,
    pub(crate) buffers: Buffers,
    /// Lets the runtime, and all others, have their turn.
    pub(crate) turn: fn() -> Turn,
    writer: RefCell<Writer<Records>>,
    /// The transport's.
    connection: ShutdownHandle,
    /// Whether it was this end that ended reads, from beside.
    is_read_shut: Cell<bool>,
    /// Why nothing can be written any more.
    broken: Cell<Option<Broken>>,
    /// How a shutdown of the transport went, until somebody has asked.
    is_shut: Cell<Option<io::Result<()>>>,
}

/// Some of a buffer.
type Records = Slice<Vec<u8>>;

pub(crate) type Turn = Pin<Box<dyn Future<Output = ()>>>;

impl Shared {
    pub(crate) fn new(
        session: Session,
        half: impl OwnedWrite + 'static,
        connection: ShutdownHandle,
        buffers: Buffers,
        turn: fn() -> Turn,
    ) -> Self {
        Self {
            session: RefCell::new(session),
            buffers,
            turn,
            writer: RefCell::new(Writer::new(half)),
            connection,
            is_read_shut: Cell::new(false),
            broken: Cell::new(None),
            is_shut: Cell::new(None),
        }
    }

    pub(crate) const fn is_read_shut(&self) -> bool {
        self.is_read_shut.get()
    }

    /// Writes all records that there are.
    pub(crate) fn poll_flush(&self, half: Half, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        // Each turn but the last does a job; there are two at most, that of the other half first.
        loop {
            if writer.is_busy() {
                ready!(self.poll_job(&mut writer, half, cx));
            } else if let Some(broken) = self.broken.get() {
                return Poll::Ready(Err(broken.into()));
            } else if let Some(records) = self.session.borrow_mut().outgoing.take() {
                writer.start(Job::Write(records));
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ends our side of the transport.
    pub(crate) fn poll_shut(&self, half: Half, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        // As in `poll_flush`. A shutdown that was given up, and went on, will do.
        loop {
            if let Some(result) = self.is_shut.take() {
                return Poll::Ready(result);
            }
            if !writer.is_busy() {
                writer.start(Job::Shutdown);
            }
            ready!(self.poll_job(&mut writer, half, cx));
        }
    }

    fn poll_job(&self, writer: &mut Writer<Records>, half: Half, cx: &Context<'_>) -> Poll<()> {
        let Done { result, batch } = ready!(writer.poll(half, cx));
        match batch {
            Some(records) => {
                self.buffers.give(records.into_inner());
                if let Err(error) = result {
                    self.broken.set(Some((&error).into()));
                }
            }
            None => self.is_shut.set(Some(result)),
        }
        Poll::Ready(())
    }
}

impl ShutdownTarget for Shared {
    fn shutdown(&self, how: Shutdown) {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.is_read_shut.set(true);
        }
        self.connection.shutdown(how);
    }
}
