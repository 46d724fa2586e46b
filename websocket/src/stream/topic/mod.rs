//! [`Topic`]: messages that go to many connections of a worker.

mod backlog;
mod segment;
mod state;
mod subscriber;

use std::fmt;
use std::rc::Rc;

use owned_io::{Clock, Executor};

use super::{Buffers, Message, Outgoing};
use crate::{Limit, ProtocolError};

pub(super) use segment::Segment;
use state::TopicState;
pub(super) use subscriber::Subscriptions;
pub use subscriber::{Lagged, OnLag, Subscriber};

/// Messages that go to all subscribed connections of a worker: a chat room, a ticker.
///
/// ```
/// use owned_io::OwnedRead;
/// use owned_io_websocket::{Error, Incoming, OnLag, Outgoing, Topic};
///
/// /// A member of a chat room: what it sends goes to all members.
/// async fn chat(
///     mut incoming: Incoming<impl OwnedRead>,
///     outgoing: Outgoing,
///     room: Topic,
/// ) -> Result<(), Error> {
///     let _member = room.subscribe(&outgoing, OnLag::Close)?;
///     while let Some(message) = incoming.receive().await? {
///         room.send(message).await?;
///     }
///     Ok(())
/// }
/// ```
///
/// # Delivery
///
/// A message is encoded once. The topic has a task, which sends all that is published in a turn of the
/// event loop to each idle subscriber, in one write per 64 KiB, from memory that all of them share. Pings
/// and pongs leave between two writes. A write that is done at once
/// ([`OwnedWrite::try_write`](owned_io::OwnedWrite::try_write)) wakes no task of the subscriber. One that
/// waits, because the socket is full or because the stream has no such write, as over TLS, continues while
/// [`Incoming`](super::Incoming) or [`Outgoing`] is awaited. So a connection that only receives needs a
/// pending [`receive`](super::Incoming::receive) and nothing else. That also answers pings and the peer's
/// close frame.
///
/// A subscriber gets each message that is published after its subscription, in order. Messages that its
/// own [`Outgoing`] queues leave before those of a topic that are not being written yet. A message is
/// never sent within another. A connection can have several subscriptions, which take turns. Each write
/// looks at all of them, so there should be tens of them, not thousands.
///
/// If a subscriber has negotiated compression without context takeover, messages of at most 32 KiB are
/// also compressed, once for all subscribers with the same settings. The other subscribers get them
/// uncompressed, which is always allowed.
///
/// A clone is another handle to the same topic. When the last handle is dropped, the topic ends: what
/// was published is still sent, the connections stay open, and [`Subscriber::lagged`] returns `None`.
///
/// # Slow subscribers
///
/// A message is kept until each subscriber has taken it. If more than `kept_bytes_max` bytes would be
/// kept, the oldest are dropped, but only after a delivery has offered them to each subscriber. A
/// subscriber that has not taken them has lagged. This is noticed when its write in progress ends, and
/// [`OnLag`] says what happens then. If the peer accepts nothing at all, the
/// [`write_timeout`](crate::StreamConfig::write_timeout) ends the connection.
///
/// # Memory
///
/// A topic has an account of its own in the budget of the [`Buffers`], even if they are [set
/// to](Buffers::with_account) the account of a connection. It has [no
/// share](owned_io::MemoryBudget::common_account), so that topics take none from connections. It
/// reserves there what it holds. That is nothing while all subscribers are idle, and otherwise at most
/// about four times `kept_bytes_max`: once for messages that wait for the next delivery, once for those
/// that are kept, and twice for those that are not kept any more but are still being written. If the
/// last ones hold more, the connections that write them are aborted, because their peers are slow. With
/// compressed messages, the first two hold up to twice as much. If the account is
/// [evicted](owned_io::MemoryBudget::evict_holders), everything that is kept is dropped,
/// and such connections are aborted too.
pub struct Topic {
    handle: Rc<Handle>,
}

/// Ends the topic when it is dropped.
struct Handle {
    state: Rc<TopicState>,
}

impl Topic {
    /// Creates a topic, and starts the task that delivers its messages. `kept_bytes_max` bounds what is
    /// kept for slow subscribers, in bytes, including what is published and not yet delivered. Both count
    /// with their frame headers, uncompressed, and with 128 bytes for each write. With 0, nothing can be
    /// published. Start with 256 KiB, or four times the longest message if that is more.
    ///
    /// # Panics
    /// Outside [`block_on`](Executor::block_on) of the runtime.
    pub fn new<R: Executor + Clock>(buffers: &Buffers, kept_bytes_max: usize) -> Self {
        let state = TopicState::new::<R>(buffers, kept_bytes_max);
        drop(R::spawn(Rc::clone(&state).deliver()));
        Self { handle: Rc::new(Handle { state }) }
    }

    /// Queues a copy of a message for all subscribers. Does not wait. The message leaves in the next
    /// delivery. Without subscribers it is only counted.
    ///
    /// # Errors
    /// The message was not published, and may be published again later.
    ///
    /// - [`Limit::Queue`]: what is published and not yet delivered would exceed `kept_bytes_max`.
    ///   [`send`](Self::send) waits for room.
    /// - [`Limit::Memory`]: the memory budget is used up.
    pub fn publish(&self, message: Message<'_>) -> Result<(), ProtocolError> {
        self.handle.state.publish(message)
    }

    /// Publishes a message like [`publish`](Self::publish), and waits for room if necessary. It does not
    /// wait until the message is delivered.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish). [`Limit::Queue`] means that the message alone exceeds the limit.
    ///
    /// # Cancellation
    /// The message may or may not be published. Otherwise safe.
    pub async fn send(&self, message: Message<'_>) -> Result<(), ProtocolError> {
        loop {
            match self.publish(message) {
                Err(ProtocolError::Limit { limit: Limit::Queue, .. })
                    if self.handle.state.has_undelivered() =>
                {
                    self.flush().await;
                }
                result => return result,
            }
        }
    }

    /// Waits until everything that was published so far is delivered: written to each idle subscriber, or
    /// being written. For programs that publish many messages in a row.
    ///
    /// If a write to a subscriber is still in progress, this lets other tasks and I/O run at least once,
    /// so that writes can complete. While more than half of `kept_bytes_max` is kept, it does so up to 8
    /// times. It does not wait longer for slow subscribers.
    ///
    /// # Cancellation
    /// Safe. The topic's task continues.
    pub async fn flush(&self) {
        self.handle.state.flush().await;
    }

    /// Subscribes a connection of a server. It gets the messages that are published from now on.
    ///
    /// # Errors
    /// [`Misuse::NotMasked`](crate::Misuse::NotMasked) on a client;
    /// [`Misuse::SentAfterClose`](crate::Misuse::SentAfterClose) if the connection is closing.
    pub fn subscribe(
        &self,
        outgoing: &Outgoing,
        on_lag: OnLag,
    ) -> Result<Subscriber, ProtocolError> {
        Subscriber::new(&self.handle.state, outgoing.shared(), on_lag)
    }

    /// The number of messages that were published.
    pub fn published(&self) -> u64 {
        self.handle.state.published()
    }

    /// The number of subscribers.
    pub fn subscriber_count(&self) -> usize {
        self.handle.state.subscriber_count()
    }

    /// The bytes that are kept for slow subscribers, at most `kept_bytes_max`. They count as described at
    /// [`new`](Self::new).
    pub fn kept_bytes(&self) -> usize {
        self.handle.state.kept_bytes()
    }
}

impl Clone for Topic {
    fn clone(&self) -> Self {
        Self { handle: Rc::clone(&self.handle) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.state.end();
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic")
            .field("published", &self.published())
            .field("subscriber_count", &self.subscriber_count())
            .field("kept_bytes", &self.kept_bytes())
            .finish_non_exhaustive()
    }
}
