//! [`Topic`]: messages that go to many connections of a worker.

mod run;
mod state;
mod subscriber;

use std::fmt;
use std::rc::Rc;

use owned_io::{Clock, Executor};

use super::{Buffers, Message, Outgoing};
use crate::ProtocolError;

pub(super) use run::Segment;
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
///     mut outgoing: Outgoing,
///     room: Topic,
/// ) -> Result<(), Error> {
///     let _member = room.subscribe(&outgoing, OnLag::Close)?;
///     while let Some(message) = incoming.receive().await? {
///         if room.publish(message).is_err() {
///             room.flush().await; // more was published than the topic holds
///         }
///     }
///     Ok(())
/// }
/// ```
///
/// A message is encoded once. A task of the topic, which [`new`](Self::new) starts, sends all that is
/// published in a turn of the event loop to each idle subscriber, in one write from memory that all
/// of them share. This wakes no task of a subscriber, unless the socket is full or the runtime
/// completes writes later. Such a write is continued while [`Incoming`](super::Incoming) or
/// [`Outgoing`] is awaited, so a connection that only receives needs no more than a pending
/// [`receive`](super::Incoming::receive), which also answers pings and the peer's close frame.
///
/// A subscriber gets each message from its subscription on, in order. What its own
/// [`Outgoing`] queues leaves first, and never within a message of the topic, nor the other way
/// round. A connection can have many subscriptions.
///
/// If a subscriber has negotiated compression without context takeover, a message of at most 32 KiB is
/// also compressed, once. All subscribers with the same settings get that. The others get it
/// uncompressed, which is always allowed.
///
/// A clone is another handle to the same topic. When the last handle is dropped, the topic ends:
/// what was published is still sent, the connections stay open, and
/// [`Subscriber::lagged`] returns `None`.
///
/// # Slow subscribers
///
/// Messages that were sealed for delivery are kept until each subscriber has taken them, up to
/// `kept_bytes_max` bytes. Beyond that the oldest are dropped. A subscriber that still needs them has
/// lagged. It is noticed when the write in progress ends, and [`OnLag`] says what happens then. A
/// peer that accepts nothing at all fails by the
/// [`write_timeout`](crate::StreamConfig::write_timeout) of its connection.
///
/// # Memory
///
/// What a topic holds is reserved in an account of the [`Buffers`]: nothing while all subscribers
/// are idle. It is at most about four times `kept_bytes_max`: published and not yet delivered, kept
/// for slow subscribers, and dropped but still being written. If writes in progress hold more, the
/// connections that lag meanwhile are aborted. If the account is
/// [evicted](owned_io::MemoryBudget::evict_holders), all that is kept is dropped.
pub struct Topic {
    handle: Rc<Handle>,
}

/// Ends the topic when it is dropped.
struct Handle {
    state: Rc<TopicState>,
}

impl Topic {
    /// Creates a topic, and starts the task that delivers its messages. `kept_bytes_max` bounds what is
    /// kept for slow subscribers, and what is published before the next delivery, in bytes.
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
    /// - [`Limit::Queue`](crate::Limit::Queue): what was published since the last delivery would
    ///   exceed `kept_bytes_max`. [`flush`](Self::flush) makes room, unless the message alone exceeds it.
    /// - [`Limit::Memory`](crate::Limit::Memory): the memory budget is used up.
    pub fn publish(&self, message: Message<'_>) -> Result<(), ProtocolError> {
        self.handle.state.publish(message)
    }

    /// Waits until everything published so far was delivered: each idle subscriber was sent it, and
    /// each other one will be when its socket accepts data. A program that publishes much in one go
    /// calls it to keep pace.
    ///
    /// # Cancellation
    /// Safe. The topic's task continues.
    pub async fn flush(&self) {
        let state = &self.handle.state;
        state.drain(state.published()).await;
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

    /// The bytes that are kept for slow subscribers, at most `kept_bytes_max`.
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
