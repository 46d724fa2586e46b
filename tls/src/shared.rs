//! [`Shared`]: the state that both halves of a connection share.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use owned_io::backend::{Direction, JobSlot, ShutdownTarget, StickyError, WriteDriver};
use owned_io::{
    BufResult, IoBuf, IoBufExt, MemoryAccount, OwnedWrite, OwnedWriteExt, ShutdownHandle, Slice,
    select,
};

use crate::memory::ClockFns;
use crate::session::Session;
use crate::{Buffers, TlsError};

pub(crate) struct Shared {
    pub(crate) session: RefCell<Session>,
    pub(crate) buffers: Buffers,
    pub(crate) account: MemoryAccount,
    pub(crate) clock: ClockFns,
    /// [`Acceptor::close_timeout`](crate::Acceptor::close_timeout).
    pub(crate) close_timeout: Duration,
    writer: RefCell<WriteDriver<Job, Done>>,
    /// The waker of `writer`, which wakes both halves.
    waker: Waker,
    /// The handle of the transport.
    pub(crate) connection: ShutdownHandle,
    /// Whether a shutdown handle of this connection has shut down reads.
    is_read_shut: Cell<bool>,
    /// Whether the read half has records to write, such as an alert.
    is_answering: Cell<bool>,
    /// Whether the connection has failed because others needed its memory.
    is_evicted: Cell<bool>,
    /// Whether the alert about the eviction was sent, or is being sent.
    has_sent_alert: Cell<bool>,
    /// Why nothing can be written any more.
    write_error: Cell<Option<StickyError>>,
    /// The result of a shutdown of the transport, until it is returned.
    shutdown_result: Cell<Option<io::Result<()>>>,
}

/// An operation on the transport.
enum Job {
    /// Writes records, which are a part of a buffer.
    Write(Slice<Vec<u8>>),
    Shutdown,
}

/// The result of a [`Job`].
enum Done {
    /// The result of [`Job::Write`], and its buffer.
    Written(io::Result<()>, Vec<u8>),
    Shutdown(io::Result<()>),
}

/// How long sending the alert of an evicted connection may take: more than a round trip.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()>>>;

impl Shared {
    pub(crate) fn new(
        session: Session,
        half: impl OwnedWrite + 'static,
        connection: ShutdownHandle,
        buffers: Buffers,
        clock: ClockFns,
        close_timeout: Duration,
    ) -> Self {
        let mut writer = WriteDriver::with_half(half, &buffers, write_records);
        let account = session.account().clone();
        let waker = writer.lasting_waker().clone();
        account.wake_when_evicted(waker.clone());
        Self {
            session: RefCell::new(session),
            buffers,
            account,
            clock,
            close_timeout,
            waker,
            writer: RefCell::new(writer),
            connection,
            is_read_shut: Cell::new(false),
            is_answering: Cell::new(false),
            is_evicted: Cell::new(false),
            has_sent_alert: Cell::new(false),
            write_error: Cell::new(None),
            shutdown_result: Cell::new(None),
        }
    }

    pub(crate) const fn is_read_shut(&self) -> bool {
        self.is_read_shut.get()
    }

    /// Writes all records that are queued.
    pub(crate) fn poll_flush(
        &self,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_eviction(direction, cx)?;
        self.poll_write(direction, cx)
    }

    /// If others need the memory that TLS holds here, frees it and fails. Begins to write an alert, unless an earlier
    /// write is still pending because the peer takes nothing; then the connection is reset.
    #[inline]
    pub(crate) fn check_eviction(
        &self,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Result<(), TlsError> {
        if self.account.is_evicted() { self.end_evicted(direction, cx) } else { Ok(()) }
    }

    #[cold]
    fn end_evicted(&self, direction: Direction, cx: &Context<'_>) -> Result<(), TlsError> {
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
        let _ = self.poll_write(direction, cx); // writes the alert, or frees the buffer of the write that was aborted
        Err(TlsError::Evicted)
    }

    /// Like [`check_eviction`](Self::check_eviction), but waits until the alert was sent.
    #[cold]
    pub(crate) async fn end_if_evicted(&self, direction: Direction) -> Result<(), TlsError> {
        let checked = poll_fn(|cx| Poll::Ready(self.check_eviction(direction, cx))).await;
        if checked.is_err() && !self.has_sent_alert.replace(true) {
            let mut alert = pin!(poll_fn(|cx| match self.poll_write(direction, cx) {
                Poll::Ready(Ok(())) => self.poll_shut(direction, cx),
                other => other,
            }));
            let sent = select(alert.as_mut(), (self.clock.sleep)(ALERT_TIMEOUT)).await.first;
            if !matches!(sent, Some(Ok(()))) {
                self.connection.abort(); // unlike a shutdown, it frees what the peer does not take
            }
        }
        checked
    }

    /// Registers the task of `direction`. It is woken when the writer makes progress, when reads are shut down, or
    /// when the connection is evicted.
    pub(crate) fn register(&self, direction: Direction, cx: &Context<'_>) {
        self.writer.borrow_mut().register(direction, cx);
    }

    fn poll_write(&self, direction: Direction, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        // Each iteration but the last does one job. There are at most two, that of the other half first.
        loop {
            if writer.is_busy() {
                let polled = self.poll_job(&mut writer, direction, cx);
                if polled.is_pending() {
                    self.session.borrow_mut().settle(); // counts records that the peer does not take
                }
                ready!(polled);
            } else if let Some(error) = self.write_error.get() {
                return Poll::Ready(Err(error.into()));
            } else if let Some(records) = self.session.borrow_mut().take_records() {
                writer.start(Job::Write(records));
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Continues to write the records of the read half, mostly alerts. It does not wait: the read continues, and
    /// its task is woken to poll this again.
    pub(crate) fn answer(&self, cx: &Context<'_>) {
        if self.is_answering.get() && self.poll_flush(Direction::Read, cx).is_ready() {
            self.is_answering.set(false);
        }
    }

    /// Call it after bytes were received. Begins to [answer](Self::answer) at once, because there may be no other
    /// read.
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

    /// Writes the records of the read half, and ends our side of the transport. Returns whether both succeeded, so
    /// that the peer may get the records. Returns false if reads are shut down meanwhile.
    pub(crate) fn poll_end(&self, cx: &Context<'_>) -> Poll<bool> {
        let ended = match self.poll_flush(Direction::Read, cx) {
            Poll::Ready(Ok(())) => self.poll_shut(Direction::Read, cx),
            ended => ended,
        };
        match ended {
            Poll::Ready(result) => Poll::Ready(result.is_ok() && !self.is_read_shut.get()),
            Poll::Pending if self.is_read_shut.get() => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Ends our side of the transport.
    pub(crate) fn poll_shut(&self, direction: Direction, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        // At most two iterations, as in `poll_flush`. The result of an earlier, dropped shutdown counts as well.
        loop {
            if let Some(result) = self.shutdown_result.take() {
                return Poll::Ready(result);
            }
            if !writer.is_busy() {
                writer.start(Job::Shutdown);
            }
            ready!(self.poll_job(&mut writer, direction, cx));
        }
    }

    fn poll_job(
        &self,
        writer: &mut WriteDriver<Job, Done>,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Poll<()> {
        match ready!(writer.poll(direction, cx)) {
            Done::Written(result, buf) => {
                self.session.borrow_mut().handle_written(buf);
                if let Err(error) = result {
                    self.write_error.set(Some((&error).into()));
                }
            }
            Done::Shutdown(result) => self.shutdown_result.set(Some(result)),
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

/// Executes jobs, each with the half that comes with it.
async fn write_records<H: OwnedWrite>(slot: JobSlot<(H, Job), (H, Done)>) -> Infallible {
    loop {
        let (mut half, job) = slot.next().await;
        let done = match job {
            Job::Write(records) => {
                // One write is usually enough, and cheaper than `write_all`.
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
        };
        slot.finish((half, done));
    }
}
