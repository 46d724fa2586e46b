//! Echo with two queue hops: the worker passes each message to an application, and sends what the application returns.
//!
//! That is how a server is built whose logic is on a thread of its own. Each worker has one application, which starts
//! when a connection first asks for it, and ends with the drain:
//!
//! ```text
//! connection ─┐                                          ┌─ mailbox ─ connection
//! connection ─┼─ queue ─→ application (a thread) ─ queue ─┼─ mailbox ─ connection
//! connection ─┘                                          └─ mailbox ─ connection
//! ```
//!
//! - **Bounds.** Each queue has room for [`QUEUE_MESSAGES_MAX`] messages. A connection has at most [`OUT_MESSAGES_MAX`]
//!   messages with the application, and passes none while those have [`OUT_BYTES_MAX`] bytes. These bytes are reserved in
//!   its memory account.
//! - **Back-pressure.** A connection waits while the queue is full, and reads nothing meanwhile. The application waits
//!   while the queue back is full.
//! - **Fairness.** Both queues are first in, first out, and a connection takes back all its messages before it passes
//!   others. So a message waits behind at most [`OUT_MESSAGES_MAX`] messages of each other connection.
//! - **A connection that ends** drops its mailbox. What the application returns for it later is dropped.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::{fmt, io, thread};

use bytes::Bytes;
use owned_io::{Clock, JoinHandle, Receiver, Reservation, Runtime, Sender, channel};
use owned_io_websocket::stream::{Error, Received, Unsent};
use owned_io_websocket::{AnyIncoming, AnyOutgoing, Fragment, MessageKind};

use super::iggy::reserve;
use super::websocket::complete_close;
use crate::context::Context;

/// How many messages each of the two queues has room for. A worker may pass as many before the application gets a time
/// slice. Each takes some 70 bytes in the queue.
pub const QUEUE_MESSAGES_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

/// How many messages a connection may have with the application.
pub const OUT_MESSAGES_MAX: usize = 64;

/// From how many bytes on a connection passes no further message: what one read brings at most.
pub const OUT_BYTES_MAX: usize = 64 * 1024;

/// Where an application runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In a task of the worker. A simulation repeats.
    #[default]
    Task,
    /// On a thread of its own, as the program has it.
    Thread,
}

/// The application of a worker.
#[derive(Debug)]
pub struct Application {
    placement: Placement,
    state: RefCell<State>,
}

#[derive(Debug)]
enum State {
    /// Nobody has asked for it.
    Idle,
    Running(Rc<Queues>),
    Ended,
}

/// A message of a client, while it is with the application.
struct OwnedMessage {
    kind: MessageKind,
    payload: Bytes,
}

/// A message, and whose it is.
struct Envelope {
    mailbox: u64,
    message: OwnedMessage,
}

enum Request {
    Message(Envelope),
    /// The application is to end, behind all messages that were passed before.
    End,
}

/// What the connections of a worker share.
struct Queues {
    requests: Sender<Request>,
    mailboxes: Rc<Mailboxes>,
    tasks: Cell<Option<Tasks>>,
}

/// What runs until the application has ended.
struct Tasks {
    delivery: JoinHandle<()>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Application {
    /// It starts when [`echo`] first needs it.
    pub const fn new(placement: Placement) -> Self {
        Self { placement, state: RefCell::new(State::Idle) }
    }

    /// How many messages wait for the application.
    pub fn queue_len(&self) -> usize {
        match &*self.state.borrow() {
            State::Running(queues) => queues.requests.len(),
            State::Idle | State::Ended => 0,
        }
    }

    /// Ends it, and waits until it has handled what was passed before. Connections that are still open fail when they
    /// use it.
    ///
    /// # Cancellation
    /// It ends all the same, once it is told to or no connection is left.
    pub async fn end<R: Clock>(&self) {
        let State::Running(queues) = self.state.replace(State::Ended) else { return };
        // An error: it has ended already.
        let _ = queues.requests.send::<R>(Request::End).await;
        let Some(Tasks { delivery, thread }) = queues.tasks.take() else { return };
        let _ = delivery.await;
        if let Some(thread) = thread {
            // It has dropped its end of the queue back, so it only has to return.
            let _ = thread.join();
        }
    }

    /// Starts it, unless it runs, and adds a connection.
    ///
    /// # Errors
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory): the thread cannot be started, or the application has ended.
    fn connect<R: Runtime>(&self) -> io::Result<Exchange> {
        let mut state = self.state.borrow_mut();
        if let State::Idle = *state {
            *state = State::Running(Rc::new(Queues::start::<R>(self.placement)?));
        }
        match &*state {
            State::Running(queues) => Ok(Exchange::new(Rc::clone(queues))),
            State::Idle | State::Ended => Err(ended()),
        }
    }
}

impl Queues {
    fn start<R: Runtime>(placement: Placement) -> io::Result<Self> {
        let (requests, passed) = channel(QUEUE_MESSAGES_MAX);
        let (returning, returned) = channel(QUEUE_MESSAGES_MAX);
        let thread = match placement {
            Placement::Task => {
                drop(R::spawn(run_in_task::<R>(passed, returning)));
                None
            }
            Placement::Thread => {
                let builder = thread::Builder::new().name("application".to_owned());
                let thread = builder.spawn(move || run_on_thread(passed, &returning));
                Some(thread.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?)
            }
        };
        let mailboxes = Rc::<Mailboxes>::default();
        let delivery = R::spawn(deliver::<R>(returned, Rc::clone(&mailboxes)));
        let tasks = Cell::new(Some(Tasks { delivery, thread }));
        Ok(Self { requests, mailboxes, tasks })
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// The application on its thread: it returns each message. It ends when it is told to, or when nobody is left.
fn run_on_thread(mut passed: Receiver<Request>, returning: &Sender<Envelope>) {
    while let Some(Request::Message(envelope)) = passed.receive_blocking() {
        if returning.send_blocking(envelope).is_err() {
            return;
        }
    }
}

/// The application in a task of the worker.
async fn run_in_task<R: Clock>(mut passed: Receiver<Request>, returning: Sender<Envelope>) {
    while let Some(Request::Message(envelope)) = passed.receive::<R>().await {
        if returning.send::<R>(envelope).await.is_err() {
            return;
        }
    }
}

/// Puts what the application returns into the mailboxes, until it has ended.
async fn deliver<R: Clock>(mut returned: Receiver<Envelope>, mailboxes: Rc<Mailboxes>) {
    let _close = CloseOnDrop(Rc::clone(&mailboxes));
    while let Some(Envelope { mailbox, message }) = returned.receive::<R>().await {
        mailboxes.put(mailbox, message);
    }
}

/// Where connections find their messages again. Bounded by the connection limit.
#[derive(Default)]
struct Mailboxes {
    entries: RefCell<BTreeMap<u64, Mailbox>>,
    last_id: Cell<u64>,
    is_closed: Cell<bool>,
}

#[derive(Default)]
struct Mailbox {
    /// At most [`OUT_MESSAGES_MAX`].
    messages: VecDeque<OwnedMessage>,
    waker: Option<Waker>,
}

impl Mailboxes {
    fn add(&self) -> u64 {
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        self.entries.borrow_mut().insert(id, Mailbox::default());
        id
    }

    /// Drops the message if its connection has ended.
    fn put(&self, id: u64, message: OwnedMessage) {
        let waker = self.entries.borrow_mut().get_mut(&id).and_then(|mailbox| {
            mailbox.messages.push_back(message);
            mailbox.waker.take()
        });
        // Not while the mailboxes are borrowed: a waker is code of the runtime.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the next message. Waits if there is none, unless none will come.
    async fn take(&self, id: u64) -> io::Result<OwnedMessage> {
        poll_fn(|cx| {
            let mut entries = self.entries.borrow_mut();
            let mailbox = entries.get_mut(&id).expect("it is there until its connection ends");
            if let Some(message) = mailbox.messages.pop_front() {
                return Poll::Ready(Ok(message));
            }
            if self.is_closed.get() {
                return Poll::Ready(Err(ended()));
            }
            mailbox.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Wakes all who wait for a message: none will come.
struct CloseOnDrop(Rc<Mailboxes>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.is_closed.set(true);
        let mut entries = self.0.entries.borrow_mut();
        let wakers: Vec<_> =
            entries.values_mut().filter_map(|mailbox| mailbox.waker.take()).collect();
        drop(entries);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A connection's messages that are with the application. Dropping it frees the mailbox.
struct Exchange {
    queues: Rc<Queues>,
    mailbox: u64,
    /// How many messages were passed and not taken back.
    out: usize,
}

impl Exchange {
    fn new(queues: Rc<Queues>) -> Self {
        let mailbox = queues.mailboxes.add();
        Self { queues, mailbox, out: 0 }
    }

    /// Passes a message, and waits while the queue is full.
    async fn pass<R: Clock>(&mut self, message: OwnedMessage) -> io::Result<()> {
        let envelope = Envelope { mailbox: self.mailbox, message };
        let passed = self.queues.requests.send::<R>(Request::Message(envelope)).await;
        passed.map_err(|_| ended())?;
        self.out += 1;
        Ok(())
    }

    /// Waits for the next message that comes back, in the order in which they were passed. None: all are back.
    async fn take_back(&mut self) -> io::Result<Option<OwnedMessage>> {
        if self.out == 0 {
            return Ok(None);
        }
        let message = self.queues.mailboxes.take(self.mailbox).await?;
        self.out -= 1;
        Ok(Some(message))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mailbox = self.queues.mailboxes.entries.borrow_mut().remove(&self.mailbox);
        drop(mailbox); // its waker is code of the runtime
    }
}

/// The client is told to try again later.
fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "the application does not run")
}

/// Passes each message to the application of the worker, and sends what comes back. The messages of one read are
/// answered by one write.
///
/// # Errors
/// Errors of the connection. [`OutOfMemory`](io::ErrorKind::OutOfMemory) if the application cannot be started, or there is
/// no memory for a message in time. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the peer does not read the
/// answers.
pub async fn echo<R: Runtime>(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    ctx: &Context,
) -> Result<(), Error> {
    let flow = &ctx.worker.metrics.traffic.echo_application;
    let echoing = async {
        let mut exchange = ctx.worker.application.connect::<R>()?;
        // What is with the application.
        let mut room = ctx.connection.account().reservation();
        while let Some(message) = incoming.receive_owned().await? {
            flow.receive(1, message.as_bytes().len());
            exchange.pass::<R>(owned::<R>(message, &mut room, ctx).await?).await?;
            while exchange.out < OUT_MESSAGES_MAX && room.bytes() < OUT_BYTES_MAX {
                let Some(message) = incoming.try_receive_owned() else { break };
                flow.receive(1, message.as_bytes().len());
                exchange.pass::<R>(owned::<R>(message, &mut room, ctx).await?).await?;
            }
            while let Some(message) = exchange.take_back().await? {
                // The queue reserves the same bytes, before any other connection can.
                let bytes = message.payload.len();
                room.force(room.bytes() - bytes);
                queue(message, outgoing).await?;
                flow.send(1, bytes);
            }
            outgoing.flush().await?;
        }
        Ok(())
    };
    let echoed = echoing.await;
    complete_close(incoming, outgoing, echoed).await
}

/// The message with bytes of its own, which are reserved in `room`. A long one was moved out, and is not copied.
async fn owned<R: Runtime>(
    message: Received<'_>,
    room: &mut Reservation,
    ctx: &Context,
) -> io::Result<OwnedMessage> {
    let kind = message.kind();
    let reserved = room.bytes();
    let payload = match message {
        Received::Borrowed(message) => {
            let bytes = message.as_bytes();
            let time_max = ctx.worker.limits.message_time_max;
            reserve::<R>(room, reserved + bytes.len(), time_max).await?;
            Bytes::copy_from_slice(bytes)
        }
        Received::Owned(_, payload) => {
            room.force(reserved + payload.len()); // it is there already
            payload
        }
    };
    Ok(OwnedMessage { kind, payload })
}

/// Queues a message to be sent, and waits for room if there is none.
async fn queue(message: OwnedMessage, outgoing: &mut impl AnyOutgoing) -> Result<(), Error> {
    let OwnedMessage { kind, mut payload } = message;
    while let Err(Unsent { error, payload: refused, .. }) =
        outgoing.write_bytes(Fragment::Whole(kind), payload)
    {
        outgoing.wait_for_room(error).await?;
        payload = refused;
    }
    Ok(())
}
