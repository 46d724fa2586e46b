use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use owned_io::backend::{Direction, StickyError};
use owned_io::coop::{self, cost};
use owned_io::{MemoryAccount, MemoryBudget, MemoryWait, OwnedWrite, ShutdownHandle};

use super::Buffers;
use super::assembly::out_of_memory;
use super::lazy_timer::LazyTimer;
use super::queue::{Batch, Queue};
use super::topic::Subscriptions;
use super::writing::{Done, Job, WriteDriver, write_batches};
use crate::engine::{Control, State};
use crate::{CloseFrame, Timeout};

/// The state that both halves of a connection share.
#[repr(C)] // the fields that each message uses lie together, in as few cache lines as possible
pub(super) struct Shared {
    pub(super) queue: RefCell<Queue>,
    pub(super) writer: RefCell<WriteDriver>,
    /// The timer of the half that receives.
    pub(super) timer: RefCell<LazyTimer>,
    pub(super) clock: ClockFns,
    /// Why nothing can be written any more.
    write_error: Cell<Option<StickyError>>,
    /// How often the waker of `writer` has changed. Timers have copies of it.
    pub(super) waker_version: Cell<u32>,
    /// The wait for memory of the half that sends, from a refusal until a message is queued. Most connections never have
    /// one.
    send_wait: Cell<Option<Box<MemoryWait>>>,
    /// A server ends the stream once the closing handshake is done (RFC 6455 7.1.1).
    is_server: bool,
    /// Whether our side of the stream has ended, or a job that ends it is running.
    is_write_ended: Cell<bool>,
    /// Whether our side of the stream stays open although the connection is over. The half that receives decides how to
    /// end it.
    is_end_held: Cell<bool>,
    /// Whether `subscriptions` has any. Each batch looks at this.
    pub(super) has_subscriptions: Cell<bool>,
    /// The wait for memory of the half that receives, once there was one.
    receive_wait: OnceCell<Box<MemoryWait>>,
    pub(super) account: MemoryAccount,
    /// The budget of `account`.
    budget: MemoryBudget,
    pub(super) control: Control,
    pub(super) connection: ShutdownHandle,
    pub(super) subscriptions: Subscriptions,
}

/// The clock of the runtime as plain functions, so that a connection does not name its runtime.
#[derive(Clone, Copy)]
pub(super) struct ClockFns {
    pub(super) now: fn() -> Instant,
    pub(super) sleep: fn(Duration) -> Sleep,
}

/// Boxed, so that it can be kept from one wait to the next. That is one allocation for many
/// messages.
pub(super) type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// See [`Shared::hold_end`].
pub(super) struct HeldEnd<'s>(&'s Shared);

impl Drop for HeldEnd<'_> {
    fn drop(&mut self) {
        self.0.is_end_held.set(false);
    }
}

impl Shared {
    pub(super) fn new<R: owned_io::Clock>(
        control: Control,
        queue: Queue,
        half: impl OwnedWrite + 'static,
        connection: ShutdownHandle,
        account: MemoryAccount,
        is_server: bool,
    ) -> Self {
        let writer = WriteDriver::with_half(half, queue.buffers(), write_batches);
        Self {
            receive_wait: OnceCell::new(),
            budget: account.budget(),
            send_wait: Cell::new(None),
            control,
            queue: RefCell::new(queue),
            writer: RefCell::new(writer),
            connection,
            clock: ClockFns { now: R::now, sleep: |duration| Box::pin(R::sleep(duration)) },
            timer: RefCell::new(LazyTimer::new(Direction::Read)),
            is_server,
            is_write_ended: Cell::new(false),
            is_end_held: Cell::new(false),
            has_subscriptions: Cell::new(false),
            waker_version: Cell::new(0),
            account,
            subscriptions: Subscriptions::default(),
            write_error: Cell::new(None),
        }
    }

    /// The memory that the connections of the worker share.
    pub(super) fn buffers(&self) -> Ref<'_, Buffers> {
        Ref::map(self.queue.borrow(), Queue::buffers)
    }

    pub(super) fn begin_close(&self, frame: CloseFrame<'_>) -> Result<(), crate::ProtocolError> {
        self.control.close(frame, (self.clock.now)())?;
        self.writer.borrow().waker().wake_by_ref(); // there is a frame to send, and a new deadline
        Ok(())
    }

    pub(super) const fn is_server(&self) -> bool {
        self.is_server
    }

    /// Whether messages can still be sent.
    pub(super) fn is_open(&self) -> bool {
        self.control.state() == State::Open && self.write_error.get().is_none()
    }

    /// Writes what topics have published for the connection, without waiting, unless a write is in
    /// progress. The halves continue what is not written at once. Returns whether a write is in
    /// progress.
    pub(super) fn deliver(&self) -> bool {
        if self.writer.borrow().is_busy() {
            return true;
        }
        let is_pending = self.poll_write(None).is_pending();
        if is_pending {
            coop::consume(cost::transfer(0)); // the write has begun, and counted no work yet
        }
        is_pending
    }

    /// Whether everything is written that our own side has queued. A write in progress is then of a
    /// topic.
    pub(super) fn is_flushed(&self) -> bool {
        let queue = self.queue.borrow();
        queue.queued_bytes() == 0
            && !queue.is_compressing()
            && !self.control.has_due_frames()
            && self.control.state() == State::Open
    }

    /// Writes all that is queued and due, and what was published for the connection. Then ends our
    /// side of the stream, if the connection is over.
    pub(super) fn poll_flush(
        &self,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_write(Some((direction, cx)))
    }

    /// Like [`poll_flush`](Self::poll_flush). Without a task to wake, the registered ones are woken.
    /// Inlined, so that a flush does not look at whether there is a task.
    #[inline(always)]
    fn poll_write(&self, task: Option<(Direction, &Context<'_>)>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.borrow_mut();
        if self.is_evicted() {
            self.handle_eviction(writer.is_busy());
        }
        loop {
            if let Some(error) = self.write_error.get() {
                return Poll::Ready(Err(error.into()));
            }
            if !writer.is_busy() {
                let Some(job) = self.next_job(writer.waker()) else {
                    if !self.queue.borrow().is_compressing() {
                        return Poll::Ready(Ok(()));
                    }
                    let Some((direction, cx)) = task else { return Poll::Pending };
                    ready!(self.poll_compression(&mut writer, direction, cx));
                    continue;
                };
                writer.start(job);
            }
            let polled = match task {
                Some((direction, cx)) => {
                    self.register(&mut writer, direction, cx); // before the poll, which may wake it at once
                    writer.poll_registered(direction)
                }
                None => writer.drive(),
            };
            let Poll::Ready(Done { result, batch }) = polled else {
                if writer.take_progress() {
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
                    self.write_error.set(Some((&error).into()));
                    self.queue.borrow_mut().clear();
                }
                (_, None) => {} // a shutdown, which may find the stream gone already
            }
        }
    }

    /// Registers the task of a half, which waits. It is woken when a write can continue, by a timer, by
    /// a close or by an eviction.
    #[inline]
    pub(super) fn register_task(&self, direction: Direction, cx: &Context<'_>) {
        self.register(&mut self.writer.borrow_mut(), direction, cx);
    }

    #[inline]
    fn register(&self, writer: &mut WriteDriver, direction: Direction, cx: &Context<'_>) {
        if writer.register(direction, cx) {
            self.handle_new_waker(writer);
        }
    }

    #[cold]
    fn handle_new_waker(&self, writer: &WriteDriver) {
        self.waker_version.set(self.waker_version.get().wrapping_add(1));
        self.account.wake_when_evicted(writer.waker().clone());
    }

    /// Compresses the long message until it is queued.
    #[cold]
    fn poll_compression(
        &self,
        writer: &mut WriteDriver,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Poll<()> {
        self.register(writer, direction, cx);
        let sleep = self.clock.sleep;
        self.queue.borrow_mut().poll_compression(&self.control, sleep, writer.waker())
    }

    /// Queues the pong for the ping that has just arrived, ahead of messages that are sent later. Each
    /// ping gets its own pong until 4 KiB of them wait; then only the latest does.
    pub(super) fn queue_replies(&self) {
        self.queue.borrow_mut().push_replies(&self.control);
    }

    /// Continues a write in progress, and starts one if a control frame is due or queued. An error
    /// is reported to the next send.
    #[inline]
    pub(super) fn poll_replies(&self, direction: Direction, cx: &Context<'_>) {
        let is_due = self.control.has_due_frames()
            || self.is_evicted()
            || self.queue.borrow().has_replies()
            || self.control.state() == State::Closed;
        if is_due || self.writer.borrow().is_busy() {
            let _ = self.poll_flush(direction, cx);
        }
    }

    /// Whether others need the memory that the connection holds.
    #[inline]
    fn is_evicted(&self) -> bool {
        self.budget.has_evicted() && self.account.is_evicted()
    }

    /// Waits until memory may have been released, so that a refused reservation of the half that receives can be tried
    /// again. Fails the connection when it is evicted, or when the wait takes too long.
    pub(super) fn wait_to_receive(&self) -> impl Future<Output = ()> {
        self.wait_for_memory(self.receive_wait.get_or_init(|| Box::new(memory_wait(&self.control))))
    }

    /// The same for the half that sends. Its wait ends when the future is dropped.
    pub(super) async fn wait_to_send(&self) {
        let waited = self.send_wait.take();
        let waited = waited.unwrap_or_else(|| Box::new(memory_wait(&self.control)));
        self.wait_for_memory(&waited).await;
        if self.control.failure().is_none() {
            self.send_wait.set(Some(waited));
        }
    }

    async fn wait_for_memory(&self, waited: &MemoryWait) {
        let ClockFns { now, sleep } = self.clock;
        match waited.begin(&self.account, now(), sleep) {
            _ if self.is_evicted() => {
                let is_writing = self.writer.borrow().is_busy();
                self.handle_eviction(is_writing);
            }
            Some(released) => released.await,
            None => {
                self.control.fail(out_of_memory(&self.account, self.account.held_bytes()));
            }
        }
    }

    /// The half that receives has read: it has the memory for that.
    #[inline]
    pub(super) fn stop_waiting_to_receive(&self) {
        if let Some(waited) = self.receive_wait.get() {
            waited.end();
        }
    }

    /// A message was queued.
    #[inline]
    pub(super) fn stop_waiting_to_send(&self) {
        self.send_wait.take();
    }

    /// Fails the connection, because others need the memory that it holds. The peer is told, unless
    /// a write is still waiting for it.
    #[cold]
    fn handle_eviction(&self, is_writing: bool) {
        // The connection may linger, and must not limit others to their fair part meanwhile.
        self.stop_waiting_to_receive();
        self.send_wait.take();
        if self.control.failure().is_some() {
            return;
        }
        self.control.fail(out_of_memory(&self.account, self.account.held_bytes()));
        self.queue.borrow_mut().abandon_long();
        if is_writing {
            self.connection.abort();
        } else {
            self.connection.shutdown(Shutdown::Read);
        }
    }

    /// No flush ends our side of the stream, until the guard is dropped.
    pub(super) fn hold_end(&self) -> HeldEnd<'_> {
        self.is_end_held.set(true);
        HeldEnd(self)
    }

    /// Drops the half that writes. Everything is written.
    pub(super) fn drop_write_half(&self) {
        self.is_write_ended.set(true);
        let half = self.writer.borrow_mut().take_half();
        drop(half); // nothing is borrowed any more
    }

    /// Shuts the connection down in both directions, at once.
    pub(super) fn shut_down(&self) {
        self.connection.shutdown(Shutdown::Both);
    }

    /// Ends the connection after a timeout: by a reset if the peer accepts no data, so that the
    /// kernel does not keep unsent bytes for it, and otherwise by [`shut_down`](Self::shut_down).
    pub(super) fn end_on_timeout(&self, timeout: Timeout) {
        match timeout {
            Timeout::Write => self.connection.abort(),
            _ => self.shut_down(),
        }
    }

    /// A write waits for the peer. The half that receives watches the write timeout too, because a
    /// flush may have been dropped and then nobody else does.
    fn handle_write_blocked(&self, writer: &WriteDriver) {
        self.control.handle_write_blocked((self.clock.now)());
        let due = self.control.poll_write_timeout();
        if due.is_some_and(|due| self.timer.borrow_mut().recheck_by(due)) {
            writer.waker().wake_by_ref();
        }
    }

    fn next_job(&self, waker: &Waker) -> Option<Job> {
        if let Some(batch) = self.queue.borrow_mut().take_batch(&self.control) {
            return Some(Job::Write(batch));
        }
        if self.has_subscriptions.get()
            && let Some(batch) = self.next_published(waker)
        {
            return Some(Job::Write(batch));
        }
        let is_ended = self.control.state() == State::Closed
            && (self.is_server || self.control.failure().is_some())
            && !self.is_end_held.get()
            && !self.queue.borrow().is_compressing();
        (is_ended && !self.is_write_ended.replace(true)).then_some(Job::Shutdown)
    }

    /// The next messages of a topic, or the close frame because of a subscriber that has lagged.
    fn next_published(&self, waker: &Waker) -> Option<Batch> {
        let mut queue = self.queue.borrow_mut();
        let accepts = queue.accepts_published(&self.control);
        let batch = self.subscriptions.next_batch(&mut queue, accepts, |frame| {
            if self.control.close(frame, (self.clock.now)()).is_ok() {
                waker.wake_by_ref(); // there is a new deadline
            }
        });
        match batch {
            Some(_) => self.control.handle_data(),
            None => return queue.take_batch(&self.control),
        }
        batch
    }
}

/// A wait of at most the message timeout.
fn memory_wait(control: &Control) -> MemoryWait {
    control.message_timeout().map_or_else(MemoryWait::default, MemoryWait::new)
}
