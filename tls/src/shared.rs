//! [`Shared`]: what the halves of a connection share.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use owned_io::backend::{Broken, Desk, Half, ShutdownTarget, Writer};
use owned_io::{
    BufResult, IoBuf, IoBufExt, MemoryAccount, OwnedWrite, OwnedWriteExt, ShutdownHandle, Slice,
    beside,
};

use crate::memory::ClockFns;
use crate::session::Session;
use crate::{Buffers, TlsError};

pub(crate) struct Shared {
    pub(crate) session: RefCell<Session>,
    pub(crate) buffers: Buffers,
    pub(crate) account: MemoryAccount,
    pub(crate) clock: ClockFns,
    writer: RefCell<Writer<Job, Done>>,
    /// The writer's, for both halves.
    waker: Waker,
    /// The transport's.
    pub(crate) connection: ShutdownHandle,
    /// Whether it was this end that ended reads, from beside.
    is_read_shut: Cell<bool>,
    /// Whether what was received is to be answered, which nobody has written yet.
    is_answering: Cell<bool>,
    /// Whether it has failed because others needed its memory.
    is_evicted: Cell<bool>,
    /// And whether the peer was told, or is being told.
    has_told: Cell<bool>,
    /// Why nothing can be written any more.
    broken: Cell<Option<Broken>>,
    /// How a shutdown of the transport went, until somebody has asked.
    is_shut: Cell<Option<io::Result<()>>>,
}

/// What is to be done with the transport.
enum Job {
    /// Records, in some of a buffer.
    Write(Slice<Vec<u8>>),
    Shutdown,
}

/// How that went.
enum Done {
    /// And the buffer.
    Written(io::Result<()>, Vec<u8>),
    Shutdown(io::Result<()>),
}

/// How long a peer may take to be sent the alert of a connection that was evicted: a round trip and some.
const TELLING: Duration = Duration::from_secs(1);

pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()>>>;

impl Shared {
    pub(crate) fn new(
        session: Session,
        half: impl OwnedWrite + 'static,
        connection: ShutdownHandle,
        buffers: Buffers,
        clock: ClockFns,
    ) -> Self {
        let writer = Writer::new(|desk| write_records(half, desk));
        let account = session.account().clone();
        account.wake_when_evicted(writer.waker().clone());
        Self {
            session: RefCell::new(session),
            buffers,
            account,
            clock,
            waker: writer.waker().clone(),
            writer: RefCell::new(writer),
            connection,
            is_read_shut: Cell::new(false),
            is_answering: Cell::new(false),
            is_evicted: Cell::new(false),
            has_told: Cell::new(false),
            broken: Cell::new(None),
            is_shut: Cell::new(None),
        }
    }

    pub(crate) const fn is_read_shut(&self) -> bool {
        self.is_read_shut.get()
    }

    /// Writes all records that there are.
    pub(crate) fn poll_flush(&self, half: Half, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.check_eviction(half, cx)?;
        self.poll_write(half, cx)
    }

    /// Fails if the memory is needed elsewhere that TLS holds here: it is freed. An alert begins to be
    /// written, unless the peer takes nothing of what it was sent before; then the connection is reset.
    #[inline]
    pub(crate) fn check_eviction(&self, half: Half, cx: &Context<'_>) -> Result<(), TlsError> {
        if self.account.is_evicted() { self.end_evicted(half, cx) } else { Ok(()) }
    }

    #[cold]
    fn end_evicted(&self, half: Half, cx: &Context<'_>) -> Result<(), TlsError> {
        if self.is_evicted.get() {
            return Err(TlsError::Evicted);
        }
        if !self.session.borrow_mut().evict() {
            return Ok(());
        }
        self.is_evicted.set(true);
        if self.writer.borrow().is_busy() {
            self.connection.abort();
        }
        let _ = self.poll_write(half, cx); // the alert; or what has failed by that, whose buffer is free then
        Err(TlsError::Evicted)
    }

    /// Fails as [`check_eviction`](Self::check_eviction) does, once the peer was told.
    #[cold]
    pub(crate) async fn end_if_evicted(&self, half: Half) -> Result<(), TlsError> {
        let checked = poll_fn(|cx| Poll::Ready(self.check_eviction(half, cx))).await;
        if checked.is_err() && !self.has_told.replace(true) {
            let mut telling = pin!(poll_fn(|cx| match self.poll_write(half, cx) {
                Poll::Ready(Ok(())) => self.poll_shut(half, cx),
                other => other,
            }));
            let told = beside(telling.as_mut(), (self.clock.sleep)(TELLING)).await.pinned;
            if !matches!(told, Some(Ok(()))) {
                self.connection.abort();
            }
        }
        checked
    }

    /// Has a half woken that waits for something else, when there is something to be written, to be ended
    /// or to be given up.
    pub(crate) fn register(&self, half: Half, cx: &Context<'_>) {
        self.writer.borrow_mut().register(half, cx);
    }

    fn poll_write(&self, half: Half, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        // Each turn but the last does a job; there are two at most, that of the other half first.
        loop {
            if writer.is_busy() {
                let polled = self.poll_job(&mut writer, half, cx);
                if polled.is_pending() {
                    self.session.borrow_mut().settle(); // what the peer does not take
                }
                ready!(polled);
            } else if let Some(broken) = self.broken.get() {
                return Poll::Ready(Err(broken.into()));
            } else if let Some(records) = self.session.borrow_mut().take_records() {
                writer.start(Job::Write(records));
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Goes on with what the half that reads has to say: an alert, mostly. It waits for nothing: who
    /// reads does so meanwhile, and has it polled again by this task.
    pub(crate) fn answer(&self, cx: &Context<'_>) {
        if self.is_answering.get() && self.poll_flush(Half::Read, cx).is_ready() {
            self.is_answering.set(false);
        }
    }

    /// To be called after something was received: begins to [answer](Self::answer) it, at once, for there
    /// may be no other read.
    pub(crate) async fn begin_answer(&self) {
        if !self.session.borrow().outgoing.is_empty() {
            self.is_answering.set(true);
        }
        if self.is_answering.get() {
            poll_fn(|cx| {
                self.answer(cx);
                Poll::Ready(())
            })
            .await;
        }
    }

    /// Waits until what the half that reads has to say was written, or cannot be, and our side of the
    /// transport is ended: whether the peer may know, then. If reads are ended meanwhile, not.
    pub(crate) fn poll_last_words(&self, cx: &Context<'_>) -> Poll<bool> {
        let ended = match self.poll_flush(Half::Read, cx) {
            Poll::Ready(Ok(())) => self.poll_shut(Half::Read, cx),
            ended => ended,
        };
        match ended {
            Poll::Ready(result) => Poll::Ready(result.is_ok() && !self.is_read_shut.get()),
            Poll::Pending if self.is_read_shut.get() => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
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

    fn poll_job(&self, writer: &mut Writer<Job, Done>, half: Half, cx: &Context<'_>) -> Poll<()> {
        match ready!(writer.poll(half, cx)) {
            Done::Written(result, buf) => {
                self.session.borrow_mut().handle_written(buf);
                if let Err(error) = result {
                    self.broken.set(Some((&error).into()));
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
            self.waker.wake_by_ref();
        }
        self.connection.shutdown(how);
    }

    fn abort(&self) {
        self.connection.abort();
    }
}

async fn write_records(mut half: impl OwnedWrite, desk: Desk<Job, Done>) -> Infallible {
    loop {
        desk.finish(match desk.next().await {
            Job::Write(records) => {
                // As a rule one write does. `write_all` comes at a price, even so.
                let BufResult(written, records) = half.write(records).await;
                let BufResult(result, records) = match written {
                    Ok(n) if n == records.buf_len() => BufResult(Ok(()), records),
                    Ok(n) => {
                        half.write_all(records.buf_slice(n..)).await.map_buf(Slice::into_inner)
                    }
                    Err(error) => BufResult(Err(error), records),
                };
                Done::Written(result, records.into_inner())
            }
            Job::Shutdown => Done::Shutdown(half.shutdown().await),
        });
    }
}
