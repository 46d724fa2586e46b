//! [`Shared`]: what the halves of a connection share.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use owned_io::backend::ShutdownTarget;
use owned_io::{OwnedWrite, ShutdownHandle};

use crate::Buffers;
use crate::session::Session;
use crate::writer::{Done, Half, Job, Writer};

pub(crate) struct Shared {
    pub(crate) session: RefCell<Session>,
    pub(crate) buffers: Buffers,
    /// Lets the runtime, and all others, have their turn.
    pub(crate) turn: fn() -> Turn,
    writer: RefCell<Writer>,
    /// The transport's.
    connection: ShutdownHandle,
    /// Whether it was this end that ended reads, from beside.
    is_read_shut: Cell<bool>,
    /// Why nothing can be written any more.
    broken: Cell<Option<Broken>>,
    /// How a shutdown of the transport went, until somebody has asked.
    is_shut: Cell<Option<io::Result<()>>>,
}

pub(crate) type Turn = Pin<Box<dyn Future<Output = ()>>>;

/// An I/O error to be told again and again.
#[derive(Clone, Copy)]
struct Broken {
    os_error: Option<i32>,
    kind: io::ErrorKind,
}

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

    fn poll_job(&self, writer: &mut Writer, half: Half, cx: &Context<'_>) -> Poll<()> {
        match ready!(writer.poll(half, cx)) {
            Done::Written(result, buf) => {
                self.buffers.give(buf);
                if let Err(error) = result {
                    let (os_error, kind) = (error.raw_os_error(), error.kind());
                    self.broken.set(Some(Broken { os_error, kind }));
                }
            }
            Done::Shutdown(result) => self.is_shut.set(Some(result)),
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

impl From<Broken> for io::Error {
    fn from(Broken { os_error, kind }: Broken) -> Self {
        os_error.map_or_else(|| kind.into(), Self::from_raw_os_error)
    }
}
