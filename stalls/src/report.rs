//! The reporter: a thread that writes `tracing` events and metrics.
//!
//! It is not the thread of the watchdog, because a subscriber may block (on a pipe that nobody reads, for example),
//! and writes to descriptors of the program, which the watchdog has not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::incident::Incident;

/// How many messages may wait for the reporter. Further ones are counted and lost.
pub(crate) const WAITING_MAX: usize = 64;

/// How many functions of a stack an event has. The message names the line of the one that matters.
const FRAMES_MAX: usize = 16;

/// A message of the watchdog.
pub(crate) enum Message {
    /// A stall began, lasts, or ended; and how many reports were left out before this one.
    Report(Arc<Incident>, u64),
    /// The figures of each worker, for metrics.
    #[cfg(feature = "metrics")]
    Workers(Vec<crate::WorkerSnapshot>),
}

/// Reports until the watchdog ends.
pub(crate) fn run(messages: &Receiver<Message>) {
    for message in messages {
        // A subscriber of the program may panic.
        let _ = catch_unwind(AssertUnwindSafe(|| report(&message)));
    }
}

fn report(message: &Message) {
    match message {
        Message::Report(incident, suppressed) => {
            event(incident, *suppressed);
            #[cfg(feature = "metrics")]
            count(incident);
        }
        #[cfg(feature = "metrics")]
        Message::Workers(workers) => {
            for worker in workers {
                let labels = [("worker", worker.name.clone())];
                metrics::gauge!("stalls_heartbeat_late_p50_seconds", &labels)
                    .set(worker.lateness.p50_us as f64 / 1e6);
                metrics::gauge!("stalls_heartbeat_late_p99_seconds", &labels)
                    .set(worker.lateness.p99_us as f64 / 1e6);
                metrics::gauge!("stalls_heartbeat_late_max_seconds", &labels)
                    .set(worker.lateness.max_us as f64 / 1e6);
            }
        }
    }
}

fn event(incident: &Incident, suppressed: u64) {
    let class = incident.verdict.class().name();
    if incident.is_ongoing {
        let stack = incident.evidence.threads.iter().find_map(|thread| thread.stacks.last());
        let frames = stack.into_iter().flat_map(|stack| &stack.frames).take(FRAMES_MAX);
        let frames: Vec<String> = frames
            .map(|frame| frame.function.clone().unwrap_or_else(|| frame.to_string()))
            .collect();
        let stack = frames.join("\n");
        tracing::warn!(
            target: "stalls", id = incident.id, worker = incident.worker, class, lasted_ms = incident.lasted_ms,
            suppressed, stack, "{incident}"
        );
    } else {
        tracing::info!(
            target: "stalls", id = incident.id, worker = incident.worker, class, lasted_ms = incident.lasted_ms,
            suppressed, "{incident}"
        );
    }
}

#[cfg(feature = "metrics")]
fn count(incident: &Incident) {
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
