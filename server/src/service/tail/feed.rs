//! [`Feeds`]: a partition's messages, encoded once for all connections of a worker that are at the end.
//!
//! A feed has a [`Topic`] and a task, the feeder, which reads what is appended and publishes it. The feed ends with its
//! last subscriber. It also ends when it cannot go on: the partition is gone, messages were removed before it came to
//! them, a message is long, or there is no memory. Then its subscribers read on from the log, find out for themselves,
//! and begin another feed when they are at the end again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use event_listener::Event;
use iggy_binary_protocol::WireMessageIterator;
use owned_io::{Clock, Receiver, Runtime, Sender, channel, coop, select};
use owned_io_websocket::stream::{Message, Outgoing};
use owned_io_websocket::{MessageKind, OnLag, ProtocolError, Subscriber, Topic};

use super::format::Format;
use super::log::{MESSAGE_NANOS, READ_BYTES_MAX, Reader};
use crate::context::Resources;
use crate::iggy::broker::Epoch;
use crate::iggy::broker::tail::Tailed;
use crate::iggy::workers::Iggy;
use crate::metrics::WorkerMetrics;

/// The bytes that a topic keeps for slow subscribers. Who is further behind reads on from the log. A batch of 1,000
/// messages of 1,000 bytes fits nearly, so that it does not make everybody lag whose socket is full for a moment.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The longest message that is published, in bytes: a quarter of what is kept, as the topic asks for. Each subscriber
/// reads a longer one from the log.
const MESSAGE_BYTES_MAX: usize = KEPT_BYTES_MAX / 4;

/// The feeds of a worker. Cloning gives another handle to the same.
#[derive(Clone, Default)]
pub struct Feeds {
    /// Those that have not ended. Each has a subscriber, so that connections bound them.
    live: Rc<RefCell<BTreeMap<FeedKey, Weak<Feed>>>>,
}

/// What a feed publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FeedKey {
    pub(super) epoch: Epoch,
    pub(super) format: Format,
}

/// A feed, as its subscribers hold it. It ends when the last of them drops it.
pub(super) struct Feed {
    feeds: Feeds,
    key: FeedKey,
    /// The offset of the first message that it publishes. From there on it publishes all.
    first: u64,
    /// `None` once it has ended.
    topic: RefCell<Option<Topic>>,
    /// The offsets that connections [wait for](Self::wait_for), and how many do.
    wanted: RefCell<BTreeMap<u64, usize>>,
    /// Notified when one of them is reached, and at the end.
    reached: Event,
    metrics: Arc<WorkerMetrics>,
    /// Ends the feeder when it is dropped.
    _alive: Sender<Infallible>,
}

impl Feeds {
    /// A feed that has not ended.
    pub(super) fn get(&self, key: FeedKey) -> Option<Rc<Feed>> {
        self.live.borrow().get(&key).and_then(Weak::upgrade)
    }

    /// Begins a feed with the message at offset `first`. There is none yet. It ends if it is dropped.
    pub(super) fn start<R: Runtime>(
        &self,
        key: FeedKey,
        first: u64,
        iggy: &Rc<Iggy>,
        worker: &Resources,
    ) -> Rc<Feed> {
        let (alive, dropped) = channel(NonZeroUsize::MIN);
        let feed = Rc::new(Feed {
            feeds: self.clone(),
            key,
            first,
            topic: RefCell::new(Some(Topic::new::<R>(&worker.websocket_buffers, KEPT_BYTES_MAX))),
            wanted: RefCell::default(),
            reached: Event::new(),
            metrics: Arc::clone(&worker.metrics),
            _alive: alive,
        });
        self.live.borrow_mut().insert(key, Rc::downgrade(&feed));
        let room = worker.budget.common_account().reservation();
        let time_max = worker.limits.message_time_max;
        let reader = Reader::new(Rc::clone(iggy), key.epoch, room, time_max);
        drop(R::spawn(run::<R>(Rc::downgrade(&feed), reader, first, dropped)));
        feed
    }
}

impl Feed {
    /// The offset of the next message that it publishes. `None`: it has ended.
    pub(super) fn next(&self) -> Option<u64> {
        self.topic.borrow().as_ref().map(|topic| self.first + topic.published())
    }

    /// Subscribes a connection, which gets the [next](Self::next) message and all behind it. `None`: the feed has
    /// ended.
    pub(super) fn subscribe(
        &self,
        outgoing: &Outgoing,
    ) -> Option<Result<Subscriber, ProtocolError>> {
        let topic = self.topic.borrow();
        topic.as_ref().map(|topic| topic.subscribe(outgoing, OnLag::Pause))
    }

    /// The offset of the next message for a subscriber of this feed.
    pub(super) fn offset_of(&self, subscriber: &Subscriber) -> u64 {
        self.first + subscriber.position()
    }

    /// Waits until the next message is that at `offset`, or one behind it, or the feed has ended.
    pub(super) async fn wait_for(&self, offset: u64) {
        *self.wanted.borrow_mut().entry(offset).or_default() += 1;
        let _wanted = Wanted { feed: self, offset };
        // Each round waits for the feeder.
        loop {
            let reached = self.reached.listen();
            if self.next().is_none_or(|next| next >= offset) {
                return;
            }
            reached.await;
        }
    }

    /// Publishes what was read. `None`: the feed cannot go on.
    async fn publish<R: Clock>(&self, tailed: &Tailed) -> Option<()> {
        let topic = self.topic.borrow().clone()?;
        let mut encoded = Vec::new();
        for batch in &tailed.batches {
            for message in WireMessageIterator::new(&batch.bytes, batch.count) {
                coop::yield_if_exhausted::<R>().await;
                coop::consume(MESSAGE_NANOS);
                let (message, next) = (message.ok()?, self.next()?);
                if message.offset() < next {
                    continue; // the batch began before what was asked for
                }
                if message.offset() > next {
                    return None; // there are offsets without messages, and each subscriber is told if messages were removed
                }
                if self.wanted.borrow().contains_key(&next) {
                    self.reached.notify(usize::MAX);
                    // They join now, or read on.
                    R::sleep(Duration::ZERO).await;
                }
                let pushed = self.key.format.pushed(&message);
                if pushed.bytes() > MESSAGE_BYTES_MAX {
                    return None;
                }
                encoded.clear();
                pushed.encode(&mut encoded);
                let message = match self.key.format.kind() {
                    MessageKind::Text => Message::Text(std::str::from_utf8(&encoded).ok()?),
                    MessageKind::Binary => Message::Binary(&encoded),
                };
                // When it returns, the message was published in the same poll.
                topic.send(message).await.ok()?;
                // A subscriber that lags reads it from the log, and is counted again.
                let subscribers = topic.subscriber_count();
                let flow = &self.metrics.traffic.tail_websocket;
                flow.send(subscribers as u64, subscribers * encoded.len());
            }
        }
        Some(())
    }

    fn end(&self) {
        if self.topic.take().is_some() {
            self.feeds.live.borrow_mut().remove(&self.key);
        }
        self.reached.notify(usize::MAX);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end();
    }
}

/// The feeder. It reads while there are subscribers, and holds no memory while it waits for messages.
async fn run<R: Runtime>(
    feed: Weak<Feed>,
    mut reader: Reader,
    first: u64,
    mut dropped: Receiver<Infallible>,
) {
    let mut dropped = pin!(dropped.receive::<R>());
    let mut next = first;
    loop {
        // Without a reservation: what is new is mostly in the memory of the log already.
        let read = {
            let reading = pin!(reader.read::<R>(next, READ_BYTES_MAX));
            select(reading, dropped.as_mut()).await.first
        };
        let Some(feed) = feed.upgrade() else { return };
        let published = match &read {
            Some(Ok(tailed)) => feed.publish::<R>(tailed).await,
            _ => None,
        };
        drop(read);
        reader.release();
        let Some(reached) = published.and_then(|()| feed.next()) else {
            feed.end();
            return;
        };
        next = reached;
    }
}

/// An offset that a connection waits for.
struct Wanted<'a> {
    feed: &'a Feed,
    offset: u64,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut wanted = self.feed.wanted.borrow_mut();
        if let Some(count) = wanted.get_mut(&self.offset) {
            *count -= 1;
            if *count == 0 {
                wanted.remove(&self.offset);
            }
        }
    }
}

impl fmt::Debug for Feeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feeds").field("live", &self.live.borrow().len()).finish()
    }
}
