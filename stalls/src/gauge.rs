//! [`Gauge`]: a figure that the program keeps, for example the length of a queue.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::evidence::GaugeValue;

/// A figure that the program keeps and the watchdog reads: the length of a queue, or bytes that wait.
///
/// A gauge is an atomic and not a closure, because a closure might wait for a lock that the stalled worker holds.
#[derive(Debug, Clone)]
pub struct Gauge {
    pub(crate) name: Arc<str>,
    pub(crate) limit: Option<u64>,
    value: Arc<AtomicU64>,
}

impl Gauge {
    pub(crate) fn new(name: &str, limit: Option<u64>) -> Self {
        Self { name: name.into(), limit, value: Arc::default() }
    }

    /// Sets the figure.
    pub fn set(&self, value: u64) {
        self.value.store(value, Relaxed);
    }

    /// Adds to the figure. It wraps around, so that an [`add`](Self::add) that comes after its [`sub`](Self::sub) is
    /// exact. Meanwhile the figure is below 0, and counts as 0; so does anything over `i64::MAX`.
    pub fn add(&self, count: u64) {
        self.value.fetch_add(count, Relaxed);
    }

    /// Subtracts from the figure.
    pub fn sub(&self, count: u64) {
        self.value.fetch_sub(count, Relaxed);
    }

    /// Adds 1 until the guard is dropped.
    pub fn count(&self) -> Counted {
        self.add(1);
        Counted(Arc::clone(&self.value))
    }

    pub(crate) fn load(&self) -> u64 {
        let value = self.value.load(Relaxed);
        if i64::try_from(value).is_ok() { value } else { 0 }
    }

    /// The figure, with its name and its limit.
    pub(crate) fn reading(&self) -> GaugeValue {
        GaugeValue { name: self.name.to_string(), value: self.load(), limit: self.limit }
    }
}

/// Adds 1 to a [`Gauge`] while it exists: see [`Gauge::count`].
#[derive(Debug)]
#[must_use = "the count ends when this is dropped"]
pub struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A listener for which the program counts: its connections, or its accept loops that wait on purpose.
#[derive(Debug, Clone)]
pub(crate) struct CountedListener {
    pub(crate) addr: SocketAddr,
    pub(crate) gauge: Gauge,
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_figure_below_0_is_0() {
        let gauge = super::Gauge::new("g", Some(1));
        gauge.sub(2);
        assert_eq!(gauge.load(), 0);
        gauge.add(5);
        assert_eq!(gauge.load(), 3);
        gauge.set(u64::MAX);
        assert_eq!(gauge.load(), 0);
    }

    #[test]
    fn what_is_counted_counts_until_it_is_dropped() {
        let gauge = super::Gauge::new("g", None);
        let counted = [gauge.count(), gauge.count()];
        assert_eq!(gauge.load(), 2);
        drop(counted);
        assert_eq!(gauge.load(), 0);
    }
}
