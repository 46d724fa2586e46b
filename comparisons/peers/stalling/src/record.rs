//! [`Recorder`]: writes what happens to a file of JSON lines, from a thread of its own.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use owned_io_stalls::{Detector, Incident, Verdict};
use serde::Serialize;

/// How often the lateness of the heart and the incidents are written.
const SAMPLE: Duration = Duration::from_millis(50);

/// More lines are not written. A run of the lab has some hundreds.
const LINES_MAX: usize = 100_000;

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    /// When, in ms since 1970.
    unix_ms: u64,
    #[serde(flatten)]
    event: Event<'a>,
}

/// What happened.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// The fault begins.
    FaultBegan,
    /// It is over.
    FaultEnded,
    /// How late the heart is, or was at most since the line before.
    Late { ms: u64 },
    /// The detector has found a stall, or knows more of it. The evidence is left out but for the verdict's sentences.
    Incident {
        id: u64,
        worker: &'a str,
        began_unix_ms: u64,
        lasted_ms: u64,
        is_ongoing: bool,
        verdict: &'a Verdict,
    },
}

/// Clones write to the same file.
#[derive(Clone)]
pub(crate) struct Recorder {
    events: Sender<(u64, Event<'static>)>,
    pulse: Arc<Pulse>,
}

/// The heart as the recorder sees it: the detector's own figures are of the whole run.
#[derive(Default)]
struct Pulse {
    /// When the next beat is due. 0: there was none yet.
    due_unix_ms: AtomicU64,
    latest_ms: AtomicU64,
}

impl Recorder {
    /// Starts it. Without a file it records nothing.
    ///
    /// # Errors
    /// The file cannot be created, or the thread cannot be started.
    pub(crate) fn start(file: Option<&Path>, detector: Detector) -> io::Result<Self> {
        let (events, received) = channel();
        let pulse = Arc::new(Pulse::default());
        if let Some(path) = file {
            let cannot = |error: io::Error| {
                io::Error::new(error.kind(), format!("cannot create {}: {error}", path.display()))
            };
            let file = File::create(path).map_err(cannot)?;
            let pulse = Arc::clone(&pulse);
            thread::Builder::new()
                .name("events".to_owned())
                .spawn(move || write(file, &received, &detector, &pulse))?;
        }
        Ok(Self { events, pulse })
    }

    /// Takes no time of the event loop.
    pub(crate) fn record(&self, event: Event<'static>) {
        // Without a file nobody receives it.
        let _ = self.events.send((unix_ms(), event));
    }

    /// The event loop runs, and will beat again after `interval`.
    pub(crate) fn beat(&self, interval: Duration) {
        let now = unix_ms();
        let next = now + u64::try_from(interval.as_millis()).unwrap_or(u64::MAX / 2);
        let due = self.pulse.due_unix_ms.swap(next, Relaxed);
        if due > 0 {
            self.pulse.latest_ms.fetch_max(now.saturating_sub(due), Relaxed);
        }
    }
}

impl Pulse {
    /// How late the heart is now, or was at most since the last call.
    fn take_late_ms(&self) -> u64 {
        let due = self.due_unix_ms.load(Relaxed);
        let now = if due == 0 { 0 } else { unix_ms().saturating_sub(due) };
        now.max(self.latest_ms.swap(0, Relaxed))
    }
}

/// Writes until the server ends, or the file takes no more.
fn write(
    mut file: File,
    events: &Receiver<(u64, Event<'static>)>,
    detector: &Detector,
    pulse: &Pulse,
) {
    let mut known: Vec<Arc<Incident>> = Vec::new();
    let mut lines = 0;
    while lines < LINES_MAX {
        let mut batch = match events.recv_timeout(SAMPLE) {
            Ok((unix_ms, event)) => vec![Line { unix_ms, event }],
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        batch.push(Line { unix_ms: unix_ms(), event: Event::Late { ms: pulse.take_late_ms() } });
        let incidents = detector.incidents();
        let is_new = |incident: &&Arc<Incident>| !known.contains(incident);
        batch.extend(incidents.iter().filter(is_new).map(|incident| line(incident)));
        lines += batch.len();
        for line in &batch {
            let Ok(mut text) = serde_json::to_vec(line) else { return };
            text.push(b'\n');
            if file.write_all(&text).is_err() {
                return;
            }
        }
        drop(batch);
        known = incidents;
    }
}

fn line(incident: &Incident) -> Line<'_> {
    let Incident { id, worker, began_unix_ms, lasted_ms, is_ongoing, verdict, .. } = incident;
    let event = Event::Incident {
        id: *id,
        worker,
        began_unix_ms: *began_unix_ms,
        lasted_ms: *lasted_ms,
        is_ongoing: *is_ongoing,
        verdict,
    };
    Line { unix_ms: unix_ms(), event }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
