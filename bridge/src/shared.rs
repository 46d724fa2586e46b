//! [`Shared`]: the state that both halves of a connection share, and what they do with the engine.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use owned_io::backend::{Direction, StickyError};
use owned_io::{MemoryAccount, MemoryReleased, OwnedWrite, Runtime, ShutdownHandle, coop};
use owned_io_websocket::{CloseFrame, Fragment, Misuse, ProtocolError, StreamConfig, Timeout};

use crate::engine::{Engine, ReceiveStatus};
use crate::frame_tracker::FrameTracker;
use crate::sync_buffers::{CopyStats, SyncBuffers};
use crate::writing::{Done, Job, WriteDriver, write_each};

/// Boxed, so that it can be kept from one wait to the next.
pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// The state that both halves of a connection share.
pub(crate) struct Shared {
    engine: RefCell<Engine>,
    writer: RefCell<WriteDriver>,
    pub(crate) connection: ShutdownHandle,
    account: MemoryAccount,
    config: StreamConfig,
    now: fn() -> Instant,
    sleep: fn(Duration) -> Sleep,
    close: Cell<CloseState>,
    /// Why the connection failed.
    failure: Cell<Option<ProtocolError>>,
    /// Why nothing can be written any more.
    write_error: Cell<Option<StickyError>>,
    write_timer: RefCell<Option<Sleep>>,
    close_timer: RefCell<Option<Sleep>>,
    /// Which message the peer is sending.
    frame_tracker: RefCell<FrameTracker>,
    /// When the partially received message times out.
    message_deadline: Cell<Option<Instant>>,
    /// Fires at `message_deadline` or earlier. It keeps the deadline of the first such message
    /// until it has fired.
    message_timer: RefCell<Option<Sleep>>,
}

/// The state of closing the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseState {
    /// Not closing.
    Open,
    /// Our close frame is queued or written.
    Begun,
    /// Only what is queued is still sent. Then our side of the stream is to be ended.
    Draining,
    /// Our side of the stream has ended, or a job that ends it is running.
    WriteEnded,
}

impl Shared {
    pub(crate) fn new<R: Runtime>(
        engine: Engine,
        frame_tracker: FrameTracker,
        half: impl OwnedWrite + 'static,
        connection: ShutdownHandle,
        config: StreamConfig,
    ) -> Self {
        let mut writer = WriteDriver::new(|slot| write_each(half, slot));
        let account = engine.memory.account().clone();
        account.wake_when_evicted(writer.lasting_waker().clone());
        let new = Self {
            engine: RefCell::new(engine),
            writer: RefCell::new(writer),
            account,
            connection,
            config,
            now: R::now,
            sleep: |duration| Box::pin(R::sleep(duration)),
            close: Cell::new(CloseState::Open),
            failure: Cell::new(None),
            write_error: Cell::new(None),
            write_timer: RefCell::new(None),
            close_timer: RefCell::new(None),
            frame_tracker: RefCell::new(frame_tracker),
            message_deadline: Cell::new(None),
            message_timer: RefCell::new(None),
        };
        new.watch_message(true);
        new
    }

    /// These bytes of the peer have arrived.
    pub(crate) fn handle_received(&self, bytes: &[u8]) {
        let has_begun = self.frame_tracker.borrow_mut().push(bytes);
        self.watch_message(has_begun);
    }

    /// Decodes up to the next message.
    pub(crate) fn next(&self) -> ReceiveStatus {
        match self.failure.get() {
            Some(failure) => ReceiveStatus::Failed(failure),
            None => self.next_reserved(),
        }
    }

    fn next_reserved(&self) -> ReceiveStatus {
        let mut engine = self.engine.borrow_mut();
        match engine.memory.reserve_received(&self.frame_tracker.borrow()) {
            Ok(()) => engine.next(),
            Err(error) if engine.memory.exceeds_account() => ReceiveStatus::Failed(error),
            Err(_) => ReceiveStatus::OutOfMemory,
        }
    }

    /// Begins to wait until memory may have been released. Returns `None` if the connection has
    /// failed, because it is evicted or has waited too long.
    pub(crate) fn begin_wait_for_memory(&self) -> Option<MemoryReleased<Sleep>> {
        if self.account.is_evicted() {
            let is_writing = self.writer.borrow().is_busy();
            self.handle_eviction(is_writing);
            return None;
        }
        let waiting = self.engine.borrow().memory.wait((self.now)(), self.sleep);
        if waiting.is_none() {
            let failure = self.engine.borrow().memory.out_of_memory();
            self.fail(failure);
        }
        waiting
    }

    /// Waits until memory may have been released, and keeps the connection up meanwhile.
    pub(crate) async fn wait_for_memory(&self) {
        if let Some(waiting) = self.begin_wait_for_memory() {
            let mut waiting = pin!(waiting);
            poll_fn(|cx| self.poll_with_upkeep(waiting.as_mut(), cx)).await;
        }
    }

    /// Registers the task of the half that sends. It is woken when the connection begins to close,
    /// or is evicted.
    pub(crate) fn register_write(&self, cx: &Context<'_>) {
        self.writer.borrow_mut().register(Direction::Write, cx);
    }

    /// Yields to other tasks and then refills the task's work budget, which is used up.
    pub(crate) async fn yield_now(&self) {
        let mut pause = pin!((self.sleep)(Duration::ZERO));
        poll_fn(|cx| self.poll_with_upkeep(pause.as_mut(), cx)).await;
        coop::refill();
    }

    /// Fails the connection, because others need the memory that it holds. The peer is told, unless
    /// a write is still waiting for it.
    #[cold]
    fn handle_eviction(&self, is_writing: bool) {
        self.engine.borrow().memory.end_wait();
        if self.failure.get().is_some() {
            return;
        }
        let failure = self.engine.borrow().memory.out_of_memory();
        self.fail(failure);
        if is_writing {
            self.connection.abort();
        } else {
            self.connection.shutdown(Shutdown::Read);
        }
    }

    /// Queues a frame of a message.
    pub(crate) fn write(&self, fragment: Fragment, payload: Bytes) -> Result<(), ProtocolError> {
        self.check_open()?;
        self.engine.borrow_mut().write(fragment, payload)
    }

    /// Queues a ping.
    pub(crate) fn ping(&self, payload: &[u8]) -> Result<(), ProtocolError> {
        self.check_open()?;
        self.engine.borrow_mut().ping(payload)
    }

    /// The number of bytes queued since the queue was last empty.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.engine.borrow().queued_bytes()
    }

    pub(crate) fn copy_stats(&self) -> CopyStats {
        self.engine.borrow().sync_buffers().copy_stats()
    }

    pub(crate) fn begin_close(&self, frame: CloseFrame<'_>) -> Result<(), ProtocolError> {
        if frame.reason.len() > CloseFrame::REASON_BYTES_MAX {
            return Err(Misuse::LongControlFrame.into());
        }
        if self.close.get() == CloseState::Open {
            self.engine.borrow_mut().close(frame);
            self.set_close(CloseState::Begun);
            self.writer.borrow().waker().wake_by_ref(); // there is a frame to send
        }
        Ok(())
    }

    /// Fails the connection. The peer is told why, if there is a code for it.
    pub(crate) fn fail(&self, failure: ProtocolError) {
        if self.failure.get().is_some() {
            return; // the first failure is the cause
        }
        self.failure.set(Some(failure));
        if let Some(code) = failure.close_code() {
            self.engine.borrow_mut().close(CloseFrame { code: Some(code), reason: "" });
        }
        self.end();
    }

    /// From now on only what is queued is sent.
    pub(crate) fn end(&self) {
        if self.close.get() != CloseState::WriteEnded {
            self.set_close(CloseState::Draining);
        }
        self.engine.borrow_mut().handle_ending();
    }

    /// Shuts the connection down in both directions, at once.
    pub(crate) fn shut_down(&self) {
        self.connection.shutdown(Shutdown::Both);
    }

    /// Ends the connection after a timeout: by a reset if the peer accepts no data, so that the
    /// kernel does not keep unsent bytes for it, and otherwise by [`shut_down`](Self::shut_down).
    pub(crate) fn end_on_timeout(&self, timeout: Timeout) {
        match timeout {
            Timeout::Write => self.connection.abort(),
            _ => self.shut_down(),
        }
    }

    pub(crate) const fn failure(&self) -> Option<ProtocolError> {
        self.failure.get()
    }

    pub(crate) fn with_buffers<T>(&self, f: impl FnOnce(&mut SyncBuffers) -> T) -> T {
        f(self.engine.borrow_mut().sync_buffers_mut())
    }

    /// Lets tungstenite fill its buffer and writes that, until both are empty. Then ends our side
    /// of the stream, if the connection is over.
    pub(crate) fn poll_flush(
        &self,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        if self.account.is_evicted() {
            self.handle_eviction(writer.is_busy());
        }
        loop {
            if let Some(error) = self.write_error.get() {
                if self.close.get() != CloseState::Open {
                    self.shut_down(); // the peer cannot be told
                }
                return Poll::Ready(Err(error.into()));
            }
            if !writer.is_busy() {
                let Some(job) = self.next_job() else {
                    self.handle_flushed(&writer);
                    return Poll::Ready(Ok(()));
                };
                writer.start(job);
            }
            let Poll::Ready(Done { result, buf }) = writer.poll(direction, cx) else {
                ready!(self.poll_write_timer(&writer));
                continue;
            };
            self.handle_write_moved();
            // Without a buffer it was a shutdown, which may find the stream gone already.
            if let Some(buf) = buf {
                self.with_buffers(|buffers| buffers.give_back(buf));
                self.write_error.set(result.err().as_ref().map(StickyError::from));
            }
        }
    }

    /// Polls `operation`. Before and after, sends answers and handles timers.
    pub(crate) fn poll_with_upkeep<F: Future>(
        &self,
        mut operation: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let is_evicted = self.account.is_evicted() && self.failure.get().is_none();
        if is_evicted || self.engine.borrow().has_replies() || self.writer.borrow().is_busy() {
            let _ = self.poll_flush(Direction::Read, cx); // an error is reported to the next send
        }
        if let Poll::Ready(output) = operation.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        self.writer.borrow_mut().register(Direction::Read, cx);
        if self.poll_message_timer().is_ready() {
            let _ = self.poll_flush(Direction::Read, cx); // writes the close frame
        }
        ready!(self.poll_close_timer());
        operation.poll(cx) // ready now, because the connection was shut down
    }

    fn check_open(&self) -> Result<(), ProtocolError> {
        match (self.failure.get(), self.close.get()) {
            (None, CloseState::Open) => Ok(()),
            _ => Err(Misuse::SentAfterClose.into()),
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut engine = self.engine.borrow_mut();
        if let Some(buf) = engine.take_outbound() {
            return Some(Job::Write(buf));
        }
        // RFC 6455 7.1.1: the server ends the stream, or the side that fails the connection.
        let is_ours_to_end = engine.is_server() || self.failure.get().is_some();
        if self.close.get() == CloseState::Draining && is_ours_to_end {
            self.close.set(CloseState::WriteEnded);
            return Some(Job::Shutdown);
        }
        None
    }

    /// Everything is written.
    fn handle_flushed(&self, writer: &WriteDriver) {
        self.engine.borrow_mut().handle_flushed();
        let mut timer = self.close_timer.borrow_mut();
        if self.close.get() != CloseState::Open && timer.is_none() {
            *timer = Some((self.sleep)(self.config.close_timeout));
            writer.waker().wake_by_ref(); // the half that receives watches the timer
        }
    }

    /// Updates the deadline of the partially received message, if there is one. `has_begun`: it
    /// began with the last bytes.
    fn watch_message(&self, has_begun: bool) {
        if !self.frame_tracker.borrow().is_under_way() {
            self.message_deadline.set(None);
        } else if has_begun && let Some(limit) = self.config.message_timeout {
            self.message_deadline.set((self.now)().checked_add(limit));
        }
    }

    /// Ready when a message has taken too long to arrive and the connection has failed.
    fn poll_message_timer(&self) -> Poll<()> {
        let (Some(due), CloseState::Open) = (self.message_deadline.get(), self.close.get()) else {
            return Poll::Pending;
        };
        let waker = self.writer.borrow().waker().clone();
        let mut timer = self.message_timer.borrow_mut();
        loop {
            let left = || due.saturating_duration_since((self.now)());
            let sleep = timer.get_or_insert_with(|| (self.sleep)(left()));
            ready!(sleep.as_mut().poll(&mut Context::from_waker(&waker)));
            *timer = None;
            if (self.now)() >= due {
                self.fail(ProtocolError::Timeout(Timeout::Message));
                return Poll::Ready(());
            }
        }
    }

    fn set_close(&self, close: CloseState) {
        if self.close.replace(close) == CloseState::Open {
            *self.write_timer.borrow_mut() = None; // closing has another timeout
        }
    }

    /// The peer has accepted some of what is written. A peer that violated the protocol gets no
    /// extra time for the rest.
    fn handle_write_moved(&self) {
        if self.failure.get().is_none() {
            *self.write_timer.borrow_mut() = None;
        }
    }

    /// Ready when a write has waited for the peer for too long.
    fn poll_write_timer(&self, writer: &WriteDriver) -> Poll<()> {
        let (limit, timeout) = match self.close.get() {
            CloseState::Open => (self.config.write_timeout, Timeout::Write),
            _ => (Some(self.config.close_timeout), Timeout::Close),
        };
        let Some(limit) = limit else { return Poll::Pending };
        if writer.take_progress() {
            self.handle_write_moved();
        }
        let mut timer = self.write_timer.borrow_mut();
        let sleep = timer.get_or_insert_with(|| (self.sleep)(limit));
        ready!(sleep.as_mut().poll(&mut Context::from_waker(writer.waker())));
        *timer = Some((self.sleep)(limit));
        self.fail_on_timeout(timeout);
        Poll::Ready(())
    }

    /// Ready when the closing handshake has taken too long.
    fn poll_close_timer(&self) -> Poll<()> {
        let mut timer = self.close_timer.borrow_mut();
        let Some(sleep) = &mut *timer else { return Poll::Pending };
        let waker = self.writer.borrow().waker().clone();
        ready!(sleep.as_mut().poll(&mut Context::from_waker(&waker)));
        *timer = None;
        self.fail_on_timeout(Timeout::Close);
        Poll::Ready(())
    }

    fn fail_on_timeout(&self, timeout: Timeout) {
        if self.failure.get().is_none() {
            self.failure.set(Some(ProtocolError::Timeout(timeout)));
        }
        self.end_on_timeout(timeout);
    }
}
