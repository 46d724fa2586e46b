//! A thread that wakes the tasks which beat hearts by [`Heart::tick`](crate::Heart::tick), so that no event loop needs
//! a timer for it.
//!
//! It is not the thread of the watchdog: to wake a task writes to a descriptor of its runtime, and the watchdog has
//! none of the program's.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use crate::detector::Shared;

/// How long it may take until the first task is noticed. Its heart is not late meanwhile.
const NOBODY_WAITS: Duration = Duration::from_millis(500);

/// Wakes until the detector is dropped.
pub(crate) fn run(shared: &Shared) {
    let mut pause = NOBODY_WAITS;
    while !shared.stop.wait(pause) {
        pause = NOBODY_WAITS;
        for heart in shared.hearts.all() {
            if heart.uses_ticks.load(Acquire) && !heart.is_gone.load(Acquire) {
                pause = shared.config.interval;
                if heart.wake_task().is_err() {
                    shared.note(format!(
                        "worker {}: its runtime cannot be woken from another thread; sleep for Heart::interval instead",
                        heart.name
                    ));
                }
            }
        }
    }
}
