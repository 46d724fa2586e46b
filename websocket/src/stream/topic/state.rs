//! [`TopicState`]: delivers what was published.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use owned_io::{Clock, Executor, coop};

use super::run::Run;
use super::subscriber::Subscription;
use crate::ProtocolError;
use crate::stream::shared::Sleep;
use crate::stream::{Buffers, Message};

/// The state of a topic, which its handles, its subscribers and its task share.
///
/// A delivery is a round over all subscriptions. Whoever drives it continues where the last one
/// stopped.
pub(super) struct TopicState {
    pub(super) run: RefCell<Run>,
    /// Bounded by the program, which subscribes.
    subscriptions: RefCell<Vec<Rc<Subscription>>>,
    /// The index of the subscription that is next in this round.
    next: Cell<usize>,
    /// What this round delivers: the messages and the segments that were sealed when it began.
    round: Cell<RoundEnd>,
    /// Whether another round has to follow even if nothing is published.
    is_round_due: Cell<bool>,
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
            run: RefCell::new(Run::new(&buffers.account(), kept_bytes_max)),
            subscriptions: RefCell::default(),
            next: Cell::new(0),
            round: Cell::default(),
            is_round_due: Cell::new(false),
            delivered: Cell::new(0),
            is_ended: Cell::new(false),
            waker: RefCell::default(),
            buffers: buffers.clone(),
            sleep: |duration| Box::pin(R::sleep(duration)),
        })
    }

    pub(super) fn publish(&self, message: Message<'_>) -> Result<(), ProtocolError> {
        let mut run = self.run.borrow_mut();
        run.publish(message, self.subscriber_count() > 0, &self.buffers)?;
        if run.is_open() {
            self.wake();
        }
        Ok(())
    }

    pub(super) fn published(&self) -> u64 {
        self.run.borrow().published()
    }

    pub(super) fn subscriber_count(&self) -> usize {
        self.subscriptions.borrow().len()
    }

    pub(super) fn kept_bytes(&self) -> usize {
        self.run.borrow().kept_bytes()
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
        if self.run.borrow_mut().seal() {
            self.is_round_due.set(true);
        }
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
    }

    /// The task of the topic.
    pub(super) async fn deliver(self: Rc<Self>) {
        loop {
            poll_fn(|cx| self.poll_work(cx)).await;
            let is_ended = self.is_ended();
            self.release_evicted();
            self.drain(u64::MAX).await;
            if is_ended {
                self.subscriptions.borrow().iter().for_each(|subscription| subscription.wake());
                return;
            }
        }
    }

    /// Delivers until the first `messages` messages are delivered, or nothing is left to do.
    pub(super) async fn drain(&self, messages: u64) {
        while self.delivered.get() < messages && self.deliver_next() {
            if !coop::has_budget() {
                (self.sleep)(Duration::ZERO).await;
                coop::refill();
            }
        }
    }

    fn poll_work(&self, cx: &Context<'_>) -> Poll<()> {
        let run = self.run.borrow();
        // A `flush` that was dropped may have left a round unfinished.
        let is_round_done = self.next.get() >= self.subscriber_count() && !self.is_round_due.get();
        if run.is_open() || !is_round_done || run.is_evicted() || self.is_ended() {
            return Poll::Ready(());
        }
        run.account().wake_when_evicted(cx.waker().clone());
        self.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Delivers to one subscriber, or ends a round and begins the next. Returns false if there is
    /// nothing left to deliver.
    fn deliver_next(&self) -> bool {
        let subscription = self.subscriptions.borrow().get(self.next.get()).cloned();
        if let Some(subscription) = subscription {
            self.next.set(self.next.get() + 1);
            subscription.deliver();
            return true;
        }
        let mut run = self.run.borrow_mut();
        let RoundEnd { messages, segments } = self.round.get();
        self.delivered.set(messages);
        run.handle_offered(segments);
        run.seal();
        let end = RoundEnd { messages: run.sealed(), segments: run.end() };
        self.round.set(end);
        if !self.is_round_due.take() && end.segments == segments {
            self.delivered.set(end.messages); // those were published without subscribers
            return false;
        }
        drop(run);
        self.next.set(0);
        if self.run.borrow().is_pinned() {
            self.abort_pinning();
        }
        true
    }

    /// Releases the memory that others need.
    fn release_evicted(&self) {
        if self.run.borrow().is_evicted() {
            self.run.borrow_mut().clear(&self.buffers.budget().account());
            self.is_round_due.set(true);
            self.abort_pinning();
        }
    }

    /// Aborts the connections whose writes hold segments that are no longer kept.
    fn abort_pinning(&self) {
        self.subscriptions.borrow().iter().for_each(|subscription| subscription.abort_pinning());
    }

    fn wake(&self) {
        let waker = self.waker.take();
        waker.as_ref().map(Waker::wake_by_ref);
    }
}
