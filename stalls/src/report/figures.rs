//! [`Figures`]: what the facade `metrics` gets.

use std::time::Instant;

use crate::detector::Shared;
use crate::incident::Incident;

/// What metrics were told. Belongs to the thread of the reporter.
#[derive(Default)]
pub(super) struct Figures {
    /// When the figures of the workers were set last.
    workers_set: Option<Instant>,
}

impl Figures {
    /// Counts a stall that is over, or sets how long one has lasted.
    pub(super) fn count(&mut self, incident: &Incident) {
        let labels = [
            ("worker", incident.worker.clone()),
            ("class", incident.verdict.class().name().to_owned()),
        ];
        if incident.is_ongoing {
            metrics::gauge!("stalls_ongoing_seconds", &labels).set(incident.lasted_ms as f64 / 1e3);
        } else {
            metrics::gauge!("stalls_ongoing_seconds", &labels).set(0.0);
            metrics::counter!("stalls_total", &labels).increment(1);
            metrics::histogram!("stalls_seconds", &labels).record(incident.lasted_ms as f64 / 1e3);
        }
    }

    /// Sets how late each worker beats, unless that was done within the interval of looks.
    pub(super) fn set_workers(&mut self, shared: &Shared) {
        let interval = shared.config.look_interval;
        if self.workers_set.is_some_and(|set| set.elapsed() < interval) {
            return;
        }
        self.workers_set = Some(Instant::now());
        for worker in shared.workers() {
            let labels = [("worker", worker.name)];
            for (name, us) in [
                ("stalls_heartbeat_late_p50_seconds", worker.lateness.p50_us),
                ("stalls_heartbeat_late_p99_seconds", worker.lateness.p99_us),
                ("stalls_heartbeat_late_max_seconds", worker.lateness.max_us),
            ] {
                metrics::gauge!(name, &labels).set(us as f64 / 1e6);
            }
        }
    }
}
