//! The reporter: a thread that writes `tracing` events and metrics.
//!
//! It is not the thread of the watchdog, because a subscriber may block (on a pipe that nobody reads, for example),
//! and writes to descriptors of the program, which the watchdog has not.

#[cfg(feature = "metrics")]
mod figures;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::detector::Shared;
use crate::incident::Incident;

/// How many messages may wait for the reporter. Further ones are counted and lost, but for the ends of stalls, which the
/// watchdog sends again.
pub(crate) const WAITING_MAX: usize = 64;

/// How many functions of a stack an event has. The message names the line of the one that matters.
const FRAMES_MAX: usize = 16;

/// A message of the watchdog: a stall began, lasts, or ended.
pub(crate) struct Message {
    pub(crate) incident: Arc<Incident>,
    /// How many events were left out before this one. `None`: this is left out, too, and is for metrics alone.
    pub(crate) event: Option<u64>,
}

/// Reports until the watchdog ends.
pub(crate) fn run(messages: &Receiver<Message>, shared: &Shared) {
    #[cfg(feature = "metrics")]
    let mut figures = figures::Figures::default();
    // The figures of the workers are new as often as looks are taken. Without metrics nobody wants them.
    let is_wanted = cfg!(feature = "metrics");
    let patience = if is_wanted { shared.config.look_interval } else { Duration::from_secs(3_600) };
    loop {
        let message = match messages.recv_timeout(patience) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // A subscriber of the program, or its recorder of metrics, may panic. The subscriber may also block, so it is last.
        #[cfg(feature = "metrics")]
        let _ = catch_unwind(AssertUnwindSafe(|| {
            message.iter().for_each(|message| figures.count(&message.incident));
            figures.set_workers(shared);
        }));
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some((incident, suppressed)) = message.as_ref().and_then(to_event) {
                event(incident, suppressed);
            }
        }));
    }
}

/// The incident of a message that is an event, and how many were left out before.
fn to_event(message: &Message) -> Option<(&Incident, u64)> {
    Some((&*message.incident, message.event?))
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
