//! [`TopicState`]: delivers what was published.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use owned_io::coop::{self, cost};
use owned_io::{Clock, Executor};

use super::backlog::Backlog;
use super::subscriber::Subscription;
use crate::ProtocolError;
use crate::stream::shared::Sleep;
use crate::stream::{Buffers, Message};

/// How often a flush lets other tasks run, at most, so that busy subscribers can catch up. Writes
/// complete within one or two turns of the event loop, unless the peer is slow.
const FLUSH_YIELDS_MAX: u32 = 8;

/// The state of a topic, which its handles, its subscribers and its task share.
///
/// A delivery is a round over all subscriptions. Whoever drives it continues where the last one
/// stopped.
pub(super) struct TopicState {
    pub(super) backlog: RefCell<Backlog>,
    /// Bounded by the program, which subscribes.
    subscriptions: RefCell<Vec<Rc<Subscription>>>,
    /// The index of the subscription that is next in this round.
    next: Cell<usize>,
    /// What this round delivers: the messages and the segments that were sealed when it began.
    round: Cell<RoundEnd>,
    /// Whether this round aborts connections whose writes hold segments that are no longer kept.
    aborts_pinning: Cell<bool>,
    /// Whether a write was in progress when this round, or the last one, came to its connection.
    has_busy: Cell<bool>,
    /// Whether another round has to follow even if nothing is published.
    is_round_due: Cell<bool>,
    /// Whether memory was released for others since the last round began.
    is_evicted: Cell<bool>,
    /// The number of messages that rounds have delivered.
    delivered: Cell<u64>,
    is_ended: Cell<bool>,
    /// Wakes the task of the topic.
    waker: RefCell<Option<Waker>>,
    buffers: Buffers,
    sleep: fn(Duration) -> Sleep,
}

/// The end of what a round delivers.
#[derive(Clone, Copy, Default)]
struct RoundEnd {
    messages: u64,
    segments: u64,
}

impl TopicState {
    pub(super) fn new<R: Executor + Clock>(buffers: &Buffers, kept_bytes_max: usize) -> Rc<Self> {
        Rc::new(Self {
            backlog: RefCell::new(Backlog::new(&buffers.budget().common_account(), kept_bytes_max)),
            subscriptions: RefCell::default(),
            next: Cell::new(0),
            round: Cell::default(),
            aborts_pinning: Cell::new(false),
            has_busy: Cell::new(false),
            is_round_due: Cell::new(false),
            is_evicted: Cell::new(false),
            delivered: Cell::new(0),
            is_ended: Cell::new(false),
            waker: RefCell::default(),
            buffers: buffers.clone(),
            sleep: |duration| Box::pin(R::sleep(duration)),
        })
    }

    pub(super) fn publish(&self, message: Message<'_>) -> Result<(), ProtocolError> {
        let has_subscribers = self.subscriber_count() > 0;
        self.backlog.borrow_mut().publish(message, has_subscribers, &self.buffers)?;
        if has_subscribers {
            self.wake();
        }
        Ok(())
    }

    pub(super) fn published(&self) -> u64 {
        self.backlog.borrow().published()
    }

    pub(super) fn subscriber_count(&self) -> usize {
        self.subscriptions.borrow().len()
    }

    pub(super) fn kept_bytes(&self) -> usize {
        self.backlog.borrow().kept_bytes()
    }

    pub(super) fn has_undelivered(&self) -> bool {
        self.backlog.borrow().has_undelivered()
    }

    pub(super) const fn is_ended(&self) -> bool {
        self.is_ended.get()
    }

    /// No more is published.
    pub(super) fn end(&self) {
        self.is_ended.set(true);
        self.wake();
    }

    /// Seals what was published. A subscriber that joins now gets what is published afterwards.
    pub(super) fn seal(&self) {
        self.backlog.borrow_mut().seal();
    }

    pub(super) fn add(&self, subscription: &Rc<Subscription>) {
        let mut subscriptions = self.subscriptions.borrow_mut();
        subscription.index.set(subscriptions.len());
        subscriptions.push(Rc::clone(subscription));
    }

    /// Removes a subscription. Others keep their place before or after the current one of the round.
    pub(super) fn remove(&self, subscription: &Subscription) {
        let mut subscriptions = self.subscriptions.borrow_mut();
        let mut at = subscription.index.get();
        let next = self.next.get();
        if at < next {
            subscriptions.swap(at, next - 1);
            subscriptions[at].index.set(at);
            at = next - 1;
            self.next.set(at);
        }
        subscriptions.swap_remove(at);
        if let Some(moved) = subscriptions.get(at) {
            moved.index.set(at);
        }
        let is_empty = subscriptions.is_empty();
        drop(subscriptions);
        if is_empty && self.is_ended() {
            self.wake();
        }
    }

    /// The task of the topic. After the end of the topic, it stays until the last subscriber is gone,
    /// because the memory that slow subscribers hold may have to be released.
    pub(super) async fn deliver(self: Rc<Self>) {
        let mut is_end_reported = false;
        loop {
            poll_fn(|cx| self.poll_work(is_end_reported, cx)).await;
            let is_ended = self.is_ended();
            self.drain(u64::MAX).await;
            if is_ended && !is_end_reported {
                is_end_reported = true;
                self.wake_subscribers();
            }
            if is_ended && self.subscriber_count() == 0 {
                return;
            }
        }
    }

    /// Like [`drain`](Self::drain). Then lets the connections continue whose writes were in progress:
    /// once, and for longer while more than half of what may be kept is kept.
    pub(super) async fn flush(&self) {
        self.drain(self.published()).await;
        let mut yields = 0;
        while self.has_busy.get()
            && (yields == 0 || self.backlog.borrow().is_half_full())
            && yields < FLUSH_YIELDS_MAX
        {
            (self.sleep)(Duration::ZERO).await;
            coop::refill();
            yields += 1;
        }
    }

    /// Delivers until the first `messages` messages are delivered, or nothing is left to do.
    async fn drain(&self, messages: u64) {
        while self.delivered.get() < messages && self.deliver_next() {
            if !coop::has_budget() {
                (self.sleep)(Duration::ZERO).await;
                coop::refill();
            }
        }
    }

    fn poll_work(&self, is_end_reported: bool, cx: &Context<'_>) -> Poll<()> {
        let backlog = self.backlog.borrow();
        let is_ended = self.is_ended() && (!is_end_reported || self.subscriber_count() == 0);
        // A `flush` that was dropped may have left a round unfinished.
        let is_round_done = self.next.get() >= self.subscriber_count() && !self.is_round_due.get();
        let is_sealed = backlog.end() > self.round.get().segments;
        if backlog.is_open() || is_sealed || !is_round_done || backlog.is_evicted() || is_ended {
            return Poll::Ready(());
        }
        backlog.account().wake_when_evicted(cx.waker().clone());
        self.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Delivers to one subscriber, or ends a round and begins the next. Returns false if there is
    /// nothing left to deliver.
    fn deliver_next(&self) -> bool {
        let subscription = self.subscriptions.borrow().get(self.next.get()).cloned();
        if let Some(subscription) = subscription {
            self.next.set(self.next.get() + 1);
            coop::consume(cost::frame_out(0));
            if self.aborts_pinning.get() {
                subscription.abort_pinning();
            }
            if subscription.deliver() {
                self.has_busy.set(true);
            }
            return true;
        }
        self.release_evicted();
        let mut backlog = self.backlog.borrow_mut();
        let RoundEnd { messages, segments } = self.round.get();
        self.delivered.set(messages);
        backlog.handle_offered(segments);
        backlog.seal();
        let end = RoundEnd { messages: backlog.sealed(), segments: backlog.end() };
        self.round.set(end);
        if !self.is_round_due.take() && end.segments == segments {
            self.delivered.set(end.messages); // those were published without subscribers
            return false;
        }
        self.aborts_pinning.set(self.is_evicted.take() || backlog.is_pinned());
        self.has_busy.set(false);
        self.next.set(0);
        true
    }

    /// Releases the memory that others need. The next round aborts the connections whose writes hold
    /// some of it.
    pub(super) fn release_evicted(&self) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_evicted() {
            backlog.clear(&self.buffers.budget().common_account());
            self.is_evicted.set(true);
            self.is_round_due.set(true);
            drop(backlog);
            self.wake();
        }
    }

    /// Wakes the tasks that wait in `lagged`.
    fn wake_subscribers(&self) {
        let subscriptions = self.subscriptions.borrow().clone();
        subscriptions.iter().for_each(|subscription| subscription.wake());
    }

    fn wake(&self) {
        let waker = self.waker.take();
        waker.as_ref().map(Waker::wake_by_ref);
    }
}
