//! [`Subscriber`]: a connection's part in a topic.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use super::backlog::Position;
use super::segment::Segment;
use super::state::TopicState;
use crate::stream::queue::{Batch, COPIED_BYTES_MAX, Queue};
use crate::stream::shared::Shared;
use crate::{CloseCode, CloseFrame, Misuse, ProtocolError};

/// A subscription of a connection. Dropping it ends the subscription; a write in progress continues. It
/// does not keep the connection open.
///
/// A ticker that skips what a slow client has missed:
///
/// ```
/// use std::pin::pin;
/// use owned_io::{OwnedRead, select};
/// use owned_io_websocket::{Error, Incoming, OnLag, Outgoing, Topic};
///
/// async fn ticker(
///     mut incoming: Incoming<impl OwnedRead>,
///     outgoing: Outgoing,
///     prices: &Topic,
/// ) -> Result<(), Error> {
///     let mut subscriber = prices.subscribe(&outgoing, OnLag::Pause)?;
///     let receiving = async {
///         while incoming.receive().await?.is_some() {}
///         Ok(())
///     };
///     let skipping = async {
///         while subscriber.lagged().await.is_some() {
///             subscriber.resume();
///         }
///     };
///     let mut receiving = pin!(receiving);
///     match select(receiving.as_mut(), skipping).await.first {
///         Some(closed) => closed,
///         None => receiving.await, // there are no more prices
///     }
/// }
/// ```
pub struct Subscriber {
    subscription: Rc<Subscription>,
}

/// What happens when a subscriber [lags](super::Topic#slow-subscribers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLag {
    /// The connection is closed with [`CloseCode::TRY_AGAIN`].
    Close,
    /// The subscriber is paused: it gets no message until [`Subscriber::resume`].
    Pause,
}

/// A subscriber has lagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lagged {
    /// The number of messages that are published and will not be sent to it.
    pub missed: u64,
}

impl Subscriber {
    pub(super) fn new(
        topic: &Rc<TopicState>,
        connection: &Rc<Shared>,
        on_lag: OnLag,
    ) -> Result<Self, ProtocolError> {
        if !connection.is_server() {
            return Err(Misuse::NotMasked.into());
        }
        if !connection.is_open() {
            return Err(Misuse::SentAfterClose.into());
        }
        topic.seal();
        let (queue, mut backlog) = (connection.queue.borrow(), topic.backlog.borrow_mut());
        let subscription = Rc::new(Subscription {
            topic: Rc::clone(topic),
            connection: Rc::downgrade(connection),
            on_lag,
            is_compressed: queue
                .deflater()
                .is_some_and(|deflater| backlog.begin_compressed(deflater)),
            position: Cell::new(backlog.join()),
            state: Cell::new(State::Active),
            has_unreported_lag: Cell::new(false),
            index: Cell::new(0),
            waker: RefCell::default(),
        });
        topic.add(&subscription);
        connection.subscriptions.add(&subscription);
        connection.has_subscriptions.set(true);
        Ok(Self { subscription })
    }

    /// Waits until the subscriber has lagged. The number is what it has missed until now. While it is
    /// paused it misses more, and [`resume`](Self::resume) returns the final number. Each lag is returned
    /// once.
    ///
    /// `None`: the subscriber gets nothing more. Either the topic has ended, and its last message is
    /// written or being written, or the subscriber is paused; or it has lagged with [`OnLag::Close`]; or
    /// the connection is dropped, or closes, which the next delivery notices.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn lagged(&mut self) -> Option<Lagged> {
        let subscription = &*self.subscription;
        poll_fn(|cx| {
            if subscription.has_unreported_lag.take() {
                return Poll::Ready(Some(Lagged { missed: subscription.missed() }));
            }
            let is_over = match subscription.state.get() {
                State::Active => subscription.topic.is_ended() && subscription.is_done(),
                State::Lagged => {
                    subscription.topic.is_ended() || subscription.on_lag == OnLag::Close
                }
                State::Stopped => true,
            };
            if is_over {
                return Poll::Ready(None);
            }
            subscription.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Continues with the next message that is published. Returns what was missed. If the subscriber is
    /// not paused, it does nothing and returns `None`.
    ///
    /// A service that stores its messages sends the missed ones from its storage. When none is left, it
    /// calls this, without an await in between, so that no message is published meanwhile.
    pub fn resume(&mut self) -> Option<Lagged> {
        let Subscription { topic, state, position, has_unreported_lag, .. } = &*self.subscription;
        if state.get() != State::Lagged {
            return None;
        }
        topic.seal();
        let lagged = Lagged { missed: self.subscription.missed() };
        position.set(topic.backlog.borrow_mut().join());
        state.set(State::Active);
        has_unreported_lag.set(false);
        Some(lagged)
    }

    /// The number of messages of the topic before the next one for the subscriber. While it is paused,
    /// that is the first one that it missed.
    pub fn position(&self) -> u64 {
        self.subscription.position.get().messages
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let subscription = &self.subscription;
        subscription.stop();
        subscription.topic.remove(subscription);
        if subscription.is_compressed {
            subscription.topic.backlog.borrow_mut().end_compressed();
        }
        if let Some(connection) = subscription.connection.upgrade() {
            connection.subscriptions.remove(subscription);
            connection.has_subscriptions.set(!connection.subscriptions.is_empty());
        }
    }
}

/// What a topic and a connection know of a subscriber.
pub(super) struct Subscription {
    topic: Rc<TopicState>,
    connection: Weak<Shared>,
    on_lag: OnLag,
    /// Whether it gets compressed messages.
    is_compressed: bool,
    position: Cell<Position>,
    state: Cell<State>,
    /// Whether it has lagged, and [`Subscriber::lagged`] has not returned that yet.
    has_unreported_lag: Cell<bool>,
    /// The index in the list of the topic.
    pub(super) index: Cell<usize>,
    /// The task that waits in [`Subscriber::lagged`].
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its position counts in the backlog.
    Active,
    /// It has lagged.
    Lagged,
    /// Nothing can be sent any more.
    Stopped,
}

impl Subscription {
    /// Sends what was published, if the connection is idle. If it is not, whoever drives the write
    /// in progress continues with that. Returns whether a write is in progress.
    pub(super) fn deliver(&self) -> bool {
        let state = self.state.get();
        let is_done =
            state == State::Active && self.topic.backlog.borrow().is_at_end(self.position.get());
        if is_done || state == State::Stopped {
            return false;
        }
        match self.connection.upgrade() {
            Some(connection) if connection.is_open() => {
                state == State::Active && connection.deliver()
            }
            _ => {
                self.stop();
                self.wake();
                false
            }
        }
    }

    /// Aborts the connection if the subscriber has lagged while a write was in progress.
    pub(super) fn abort_pinning(&self) {
        let is_lagging = self.topic.backlog.borrow().is_lagging(self.position.get());
        if self.state.get() == State::Active
            && is_lagging
            && let Some(connection) = self.connection.upgrade()
            && connection.writer.borrow().is_busy()
        {
            connection.connection.abort();
            self.stop();
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        let waker = self.waker.take();
        waker.as_ref().map(Waker::wake_by_ref);
    }

    fn stop(&self) {
        if self.state.replace(State::Stopped) == State::Active {
            self.topic.backlog.borrow_mut().leave(self.position.get());
        }
    }

    fn missed(&self) -> u64 {
        self.topic.published() - self.position.get().messages
    }

    /// Whether all that was published is sent or being sent.
    fn is_done(&self) -> bool {
        self.missed() == 0
    }

    /// Whether it has lagged. If so, it is paused, and the task that waits for that is woken.
    fn check_lag(&self) -> bool {
        self.topic.release_evicted();
        let has_lagged = self.topic.backlog.borrow().is_lagging(self.position.get());
        if has_lagged {
            self.state.set(State::Lagged);
            self.has_unreported_lag.set(true);
            self.wake();
        }
        has_lagged
    }

    fn take(&self, bytes_max: usize) -> Option<Rc<Segment>> {
        let mut position = self.position.get();
        let next =
            self.topic.backlog.borrow_mut().take(&mut position, self.is_compressed, bytes_max);
        self.position.set(position);
        if self.topic.is_ended() && self.is_done() {
            self.wake();
        }
        next
    }
}

/// The subscriptions of a connection. They stop when it is dropped.
#[derive(Default)]
pub(in crate::stream) struct Subscriptions {
    /// In the order in which they may send next.
    list: RefCell<Vec<Rc<Subscription>>>,
}

impl Subscriptions {
    fn add(&self, subscription: &Rc<Subscription>) {
        let mut list = self.list.borrow_mut();
        list.reserve_exact(1); // most connections have one
        list.push(Rc::clone(subscription));
    }

    fn remove(&self, subscription: &Rc<Subscription>) {
        self.list.borrow_mut().retain(|other| !Rc::ptr_eq(other, subscription));
    }

    fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// The next batch of published messages; none unless the connection `accepts` them. `close` begins
    /// to close the connection, because of a subscriber that has lagged.
    pub(in crate::stream) fn next_batch(
        &self,
        queue: &mut Queue,
        accepts: bool,
        close: impl Fn(CloseFrame<'_>),
    ) -> Option<Batch> {
        let count = self.list.borrow().len();
        for at in 0..count {
            let Some(subscription) = self.list.borrow().get(at).cloned() else { break };
            if subscription.state.get() != State::Active {
                continue;
            }
            if subscription.check_lag() {
                if subscription.on_lag == OnLag::Close {
                    close(CloseFrame { code: Some(CloseCode::TRY_AGAIN), reason: "lagged" });
                    return None;
                }
            } else if accepts && let Some(segment) = subscription.take(usize::MAX) {
                let batch = batch(&subscription, segment, queue);
                if let Some(rest) = self.list.borrow_mut().get_mut(at..) {
                    rest.rotate_left(1); // the others are next
                }
                return Some(batch);
            }
        }
        None
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for subscription in self.list.get_mut() {
            subscription.stop();
            subscription.wake();
        }
    }
}

/// A batch that begins with `segment`. Short segments are copied together, so that a subscriber that
/// is behind needs fewer writes.
fn batch(subscription: &Subscription, segment: Rc<Segment>, queue: &mut Queue) -> Batch {
    let has_more = !subscription.topic.backlog.borrow().is_at_end(subscription.position.get());
    let is_compressed = subscription.is_compressed;
    if has_more && segment.bytes(is_compressed).len() <= COPIED_BYTES_MAX {
        let copied = queue.copy_published(segment.bytes(is_compressed), |room| {
            let next = subscription.take(room.min(COPIED_BYTES_MAX))?;
            Some(next.bytes(is_compressed).clone())
        });
        if let Some(batch) = copied {
            return batch;
        }
    }
    Batch::Published(segment, is_compressed)
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("position", &self.position()).finish_non_exhaustive()
    }
}
