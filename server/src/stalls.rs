//! [`Stalls`]: the detector of stalls, as the server embeds it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use owned_io::{MemoryBudget, Runtime};
use owned_io_stalls::{Config, Detector, Gauge};

use crate::service::stalls::Answers;

/// How many stalls that are over are kept. One takes some 100 KB.
const INCIDENTS_MAX: usize = 16;

/// How many lines of log the stalls may have in a minute. Further ones are counted, and the next line has the number.
const REPORTS_PER_MINUTE: u32 = 12;

/// How much of the program's symbols is read while a worker stalls: the names of functions fit (3 MB in a release build,
/// 27 MB in an unoptimised one with all runtimes), and the lines of small programs. It is held for a minute, next to what
/// clients can make the server hold.
const SYMBOL_BYTES_MAX: usize = 32 << 20;

/// Whether workers are watched for stalls, and by what. Clones are the same.
///
/// The default watches nothing. Nor does any before [`start`](Self::start): it has no threads, so a simulation repeats.
#[derive(Clone, Default)]
pub struct Stalls {
    time_min: Option<Duration>,
    watching: Option<Watching>,
    answers: Arc<Answers>,
}

/// A detector that runs, and what its incidents have as evidence.
#[derive(Clone)]
struct Watching {
    detector: Detector,
    /// The bytes of the common part of the budget that the connections of all workers hold.
    bytes: Gauge,
}

/// A worker's part of a gauge that all workers share. Gauges by worker would be most of an incident's bytes, and the
/// detector has room for 64.
struct Share {
    gauge: Gauge,
    value: u64,
}

impl Share {
    fn of(gauge: &Gauge) -> Self {
        Self { gauge: gauge.clone(), value: 0 }
    }

    fn set(&mut self, value: u64) {
        self.gauge.add(value.wrapping_sub(self.value)); // a gauge wraps around, too
        self.value = value;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Stalls {
    /// Watches once it is started. A worker that does not get to its tasks for `time_min`, and 50 ms, has stalled.
    pub fn new(time_min: Duration) -> Self {
        Self { time_min: Some(time_min), ..Self::default() }
    }

    /// How late a worker must be for a stall. None: nothing is to be watched.
    pub fn time_min(&self) -> Option<Duration> {
        self.time_min
    }

    /// Starts threads that watch. The default has nothing to start.
    ///
    /// # Errors
    /// The threads cannot be started. Then nothing is watched.
    pub fn start(&mut self) -> io::Result<()> {
        let Some(time_min) = self.time_min else { return Ok(()) };
        let mut config = Config::default();
        config.threshold = time_min;
        config.incidents_max = INCIDENTS_MAX;
        config.reports_per_minute = REPORTS_PER_MINUTE;
        config.symbol_bytes_max = SYMBOL_BYTES_MAX;
        let detector = Detector::start(config)?;
        let bytes = detector.gauge("bytes held by connections", None);
        self.watching = Some(Watching { detector, bytes });
        Ok(())
    }

    /// Watches the calling worker until it ends. The bytes that its connections hold of the common part of the budget
    /// become evidence.
    pub(crate) fn watch_worker<R: Runtime>(&self, id: usize, budget: &MemoryBudget) {
        let Some(watching) = &self.watching else { return };
        let heart = watching.detector.watch_current_thread(&id.to_string());
        let mut bytes = Share::of(&watching.bytes);
        let budget = budget.clone();
        drop(R::spawn(async move {
            loop {
                heart.beat();
                bytes.set(budget.common_bytes_held() as u64);
                // A timer of the runtime would cost each wait for I/O, see `Ticker`.
                heart.tick().await;
            }
        }));
    }

    /// The gauge of the connections to a listener, which all workers share. The detector compares it with the sockets
    /// that are open. None if nothing is watched.
    pub(crate) fn connections(&self, listener: SocketAddr) -> Option<Gauge> {
        self.watching.as_ref().map(|watching| watching.detector.connections(listener))
    }

    /// The gauge of the accept loops of a listener that wait for a permit, which all workers share. The detector does not
    /// call that a fault. None if nothing is watched.
    pub(crate) fn accept_pauses(&self, listener: SocketAddr) -> Option<Gauge> {
        self.watching.as_ref().map(|watching| watching.detector.accept_pauses(listener))
    }

    /// The answers of `/stalls`, which all workers share.
    pub(crate) fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// The detector. None if nothing is watched.
    pub fn detector(&self) -> Option<&Detector> {
        self.watching.as_ref().map(|watching| &watching.detector)
    }
}

impl fmt::Debug for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stalls")
            .field("time_min", &self.time_min)
            .field("is_watching", &self.watching.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is started by a configuration alone.
    #[test]
    fn nothing_is_watched_before_it_is_started() {
        assert!(Stalls::new(Duration::from_millis(100)).detector().is_none());
        let mut off = Stalls::default();
        off.start().unwrap();
        assert!(off.detector().is_none());
    }
}
