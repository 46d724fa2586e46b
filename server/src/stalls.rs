//! [`Stalls`]: the detector of stalls, as the server embeds it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use owned_io::{MemoryBudget, Runtime};
use owned_io_stalls::{Config, Detector};

use crate::connection_limit::ConnectionLimit;
use crate::service::stalls::Answers;

/// How many stalls that are over are kept. One takes some 100 KB.
const INCIDENTS_MAX: usize = 16;

/// How many lines of log the stalls may have in a minute. Further ones are counted, and the next line has the number.
const REPORTS_PER_MINUTE: u32 = 12;

/// How much of the program's symbols is read while a worker stalls: the names of functions fit (3 MB in a release build,
/// 17 MB in an unoptimised one), and the lines of small programs. It is held for a minute, next to what clients can make
/// the server hold.
const SYMBOL_BYTES_MAX: usize = 24 << 20;

/// Watches the workers from threads of its own. Clones are the same.
///
/// The default watches nothing and has no threads, so that a simulation repeats. The program starts one.
#[derive(Clone, Default)]
pub struct Stalls {
    detector: Option<Detector>,
    answers: Arc<Answers>,
}

impl Stalls {
    /// Starts to watch. A worker that does not get to its tasks for `time_min`, and 50 ms, has stalled.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn start(time_min: Duration) -> io::Result<Self> {
        let mut config = Config::default();
        config.threshold = time_min;
        config.incidents_max = INCIDENTS_MAX;
        config.reports_per_minute = REPORTS_PER_MINUTE;
        config.symbol_bytes_max = SYMBOL_BYTES_MAX;
        Ok(Self { detector: Some(Detector::start(config)?), answers: Arc::default() })
    }

    /// Watches the calling worker until it ends. Its connections, and the bytes that they hold of the common part of
    /// the budget, become evidence.
    pub(crate) fn watch_worker<R: Runtime>(
        &self,
        id: usize,
        limit: &ConnectionLimit,
        budget: &MemoryBudget,
    ) {
        let Some(detector) = &self.detector else { return };
        let heart = detector.watch_current_thread(&id.to_string());
        let connections = detector.gauge(&format!("connections of worker {id}"), None);
        let bytes = detector.gauge(&format!("bytes held by connections of worker {id}"), None);
        let (limit, budget) = (limit.clone(), budget.clone());
        drop(R::spawn(async move {
            loop {
                heart.beat();
                connections.set(limit.in_use() as u64);
                bytes.set(budget.common_bytes_held() as u64);
                // A timer of the runtime would cost each wait for I/O, see `Ticker`.
                heart.tick().await;
            }
        }));
    }

    /// The answers of `/stalls`, which all workers share.
    pub(crate) fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// The detector. None if nothing is watched.
    pub fn detector(&self) -> Option<&Detector> {
        self.detector.as_ref()
    }
}

impl fmt::Debug for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stalls").field("is_watching", &self.detector.is_some()).finish()
    }
}
