//! [`Tracker`]: when each message was to be published, and when it was delivered first and last.

use super::super::histogram::Histogram;
use super::super::window::Window;

/// A message that was published.
#[derive(Clone, Copy, Debug)]
struct Published {
    intended: u64,
    first: u64,
    last: u64,
    deliveries: u32,
}

/// All messages of a run, by number.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    published: Vec<Published>,
}

/// Times of the messages of a window, of those that all subscribers got.
#[derive(Debug)]
pub(super) struct Spreads {
    /// From the moment a message was to be published until its first delivery.
    pub(super) first: Histogram,
    /// The same until its last.
    pub(super) last: Histogram,
    /// From its first delivery to its last.
    pub(super) spread: Histogram,
}

impl Tracker {
    /// Room for so many messages.
    pub(super) fn with_capacity(messages: usize) -> Self {
        Self { published: Vec::with_capacity(messages) }
    }

    /// How many messages were published.
    pub(super) const fn count(&self) -> u64 {
        self.published.len() as u64
    }

    /// Adds a message that is published now.
    pub(super) fn publish(&mut self, intended: u64) {
        self.published.push(Published { intended, first: 0, last: 0, deliveries: 0 });
    }

    /// Counts a delivery. The moment that the message was to be published; none if it was not.
    pub(super) fn deliver(&mut self, number: u64, now: u64) -> Option<u64> {
        let message = self.published.get_mut(usize::try_from(number).ok()?)?;
        if message.deliveries == 0 {
            message.first = now;
        }
        message.last = now;
        message.deliveries += 1;
        Some(message.intended)
    }

    /// The times of the messages that were to be published in the window and that `subscribers` got.
    pub(super) fn spreads(&self, window: &Window, subscribers: usize) -> Spreads {
        let new = Histogram::new;
        let mut spreads = Spreads { first: new(), last: new(), spread: new() };
        for message in &self.published {
            let Published { intended, first, last, deliveries } = *message;
            if window.contains(intended) && deliveries as usize == subscribers {
                spreads.first.record(first.saturating_sub(intended));
                spreads.last.record(last.saturating_sub(intended));
                spreads.spread.record(last - first);
            }
        }
        spreads
    }
}
