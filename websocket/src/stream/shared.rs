use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use owned_io::backend::{Broken, Half};
use owned_io::{MemoryAccount, MemoryWait, OwnedWrite, ShutdownHandle};

use super::assembly::out_of_memory;
use super::queue::Queue;
use super::timer::LazyTimer;
use super::writing::{Done, Job, Writer, write_batches};
use crate::engine::{Control, State};
use crate::{CloseFrame, Timeout};

/// What the halves of a connection share.
#[repr(C)] // what each message looks at lies together, in as few cache lines as it fits
pub(super) struct Shared {
    pub(super) queue: RefCell<Queue>,
    pub(super) writer: RefCell<Writer>,
    /// That of the half that receives.
    pub(super) timer: RefCell<LazyTimer>,
    pub(super) clock: ClockFns,
    /// Why nothing can be written any more.
    broken: Cell<Option<Broken>>,
    /// Whether it is for us to end the stream once the closing handshake is done (RFC 6455 7.1.1).
    is_server: bool,
    /// Whether our side of the stream is ended, or about to be.
    is_write_ended: Cell<bool>,
    pub(super) control: Control,
    pub(super) connection: ShutdownHandle,
    pub(super) account: MemoryAccount,
    waited: MemoryWait,
}

/// The functions of a runtime, so that a connection need not name it.
#[derive(Clone, Copy)]
pub(super) struct ClockFns {
    pub(super) now: fn() -> Instant,
    pub(super) sleep: fn(Duration) -> Sleep,
}

/// Boxed, and so kept from one wait to the next: it costs an allocation once in many messages.
pub(super) type Sleep = Pin<Box<dyn Future<Output = ()>>>;

impl Shared {
    pub(super) fn new<R: owned_io::Clock>(
        control: Control,
        queue: Queue,
        half: impl OwnedWrite + 'static,
        connection: ShutdownHandle,
        account: MemoryAccount,
        is_server: bool,
    ) -> Self {
        let writer = Writer::new(|desk| write_batches(half, desk));
        let timer = LazyTimer::new(Half::Read, writer.waker().clone());
        account.wake_when_evicted(writer.waker().clone());
        Self {
            control,
            queue: RefCell::new(queue),
            writer: RefCell::new(writer),
            connection,
            clock: ClockFns { now: R::now, sleep: |duration| Box::pin(R::sleep(duration)) },
            timer: RefCell::new(timer),
            is_server,
            is_write_ended: Cell::new(false),
            account,
            waited: MemoryWait::default(),
            broken: Cell::new(None),
        }
    }

    pub(super) fn begin_close(&self, frame: CloseFrame<'_>) -> Result<(), crate::ProtocolError> {
        self.control.close(frame, (self.clock.now)())?;
        self.writer.borrow().waker().wake_by_ref(); // there is something to send, and a new deadline
        Ok(())
    }

    /// Writes all that is queued and due; then, if that was the end, ends our side of the stream.
    pub(super) fn poll_flush(&self, half: Half, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        if self.account.is_evicted() && self.control.failure().is_none() {
            self.handle_eviction(writer.is_busy());
        }
        loop {
            if let Some(broken) = self.broken.get() {
                return Poll::Ready(Err(broken.into()));
            }
            if !writer.is_busy() {
                let Some(job) = self.next_job() else {
                    if !self.queue.borrow().is_compressing() {
                        return Poll::Ready(Ok(()));
                    }
                    ready!(self.poll_compression(&mut writer, half, cx));
                    continue;
                };
                writer.start(job);
            }
            let Poll::Ready(Done { result, batch }) = writer.poll(half, cx) else {
                if writer.has_moved() {
                    self.handle_write_blocked(&writer);
                }
                return Poll::Pending;
            };
            match (result, batch) {
                (Ok(()), Some(batch)) => {
                    let now = self.control.write_time(self.clock.now);
                    self.queue.borrow_mut().handle_written(&self.control, batch, now);
                }
                (Err(error), Some(_)) => {
                    self.control.handle_write_failed();
                    self.broken.set(Some((&error).into()));
                    self.queue.borrow_mut().clear();
                }
                (_, None) => {} // ended, or gone already
            }
        }
    }

    /// Compresses a long message until it is queued.
    #[cold]
    fn poll_compression(&self, writer: &mut Writer, half: Half, cx: &Context<'_>) -> Poll<()> {
        writer.register(half, cx);
        let sleep = self.clock.sleep;
        self.queue.borrow_mut().poll_compression(&self.control, sleep, writer.waker())
    }

    /// Queues the answer to a ping that has just come: each has its own, before what is sent later.
    pub(super) fn queue_replies(&self) {
        self.queue.borrow_mut().push_replies(&self.control);
    }

    /// Goes on with a write that is under way, and writes what is queued if a control frame is due,
    /// or among it. Whoever sends the next message learns of an error.
    #[inline]
    pub(super) fn poll_replies(&self, half: Half, cx: &Context<'_>) {
        let is_due = self.control.has_due_frames()
            || self.account.is_evicted()
            || self.queue.borrow().has_replies()
            || self.control.state() == State::Closed;
        if is_due || self.writer.borrow().is_busy() {
            let _ = self.poll_flush(half, cx);
        }
    }

    /// Waits until memory may have been given back: to try again then what was refused. Fails the connection
    /// when that takes much too long.
    pub(super) async fn wait_for_memory(&self) {
        let ClockFns { now, sleep } = self.clock;
        match self.waited.begin(&self.account, now(), sleep) {
            Some(released) => released.await,
            None => {
                self.control.fail(out_of_memory(&self.account, self.account.held_bytes()));
            }
        }
    }

    /// What was refused is granted.
    #[inline]
    pub(super) fn stop_waiting_for_memory(&self) {
        self.waited.end();
    }

    /// Others need the memory that this connection holds: it fails. The peer is told, unless it takes
    /// nothing of what it was sent before.
    #[cold]
    fn handle_eviction(&self, is_writing: bool) {
        self.control.fail(out_of_memory(&self.account, self.account.held_bytes()));
        self.queue.borrow_mut().abandon_long();
        if is_writing {
            self.connection.abort();
        } else {
            self.connection.shutdown(Shutdown::Read);
        }
    }

    /// Ends the connection both ways, at once.
    pub(super) fn abort(&self) {
        self.connection.shutdown(Shutdown::Both);
    }

    /// The same when a time was over: what a peer has not taken that takes nothing is not kept for it.
    pub(super) fn abort_on_timeout(&self, timeout: Timeout) {
        match timeout {
            Timeout::Write => self.connection.abort(),
            _ => self.abort(),
        }
    }

    /// A write waits for the peer. The half that receives watches that too, if it waits: it is all
    /// there is once a flush was given up.
    fn handle_write_blocked(&self, writer: &Writer) {
        self.control.handle_write_blocked((self.clock.now)());
        let due = self.control.poll_write_timeout();
        if due.is_some_and(|due| self.timer.borrow_mut().recheck_by(due)) {
            writer.waker().wake_by_ref();
        }
    }

    fn next_job(&self) -> Option<Job> {
        if let Some(batch) = self.queue.borrow_mut().take_batch(&self.control) {
            return Some(Job::Write(batch));
        }
        let is_ended = self.control.state() == State::Closed
            && (self.is_server || self.control.failure().is_some())
            && !self.queue.borrow().is_compressing();
        (is_ended && !self.is_write_ended.replace(true)).then_some(Job::Shutdown)
    }
}
