//! [`Exporter`]: makes Prometheus' text of what was gathered, by `metrics-exporter-prometheus`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io, thread};

use metrics::{Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

/// How often samples are summed up that nobody has asked for, of which the detector of stalls makes a few a minute.
const UPKEEP_PERIOD: Duration = Duration::from_secs(60);

/// The bounds of `stalls_seconds`. A shorter stall is none.
const STALL_BOUNDS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Makes the text. Cloning gives another handle to the same.
///
/// The default is set up when somebody asks first, and does not have the figures of the detector of stalls.
#[derive(Clone, Default)]
pub struct Exporter {
    recorder: Arc<OnceLock<Arc<PrometheusRecorder>>>,
    is_started: bool,
}

impl Exporter {
    /// Starts a thread that sets it up, and that keeps it small from then on. It becomes the recorder of this process for
    /// the crate `metrics`, by which the detector of stalls reports, unless there is one.
    ///
    /// A thread, because the exporter calibrates a clock first, for up to 200 ms.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let exporter = Self { recorder: Arc::default(), is_started: true };
        let shared = Arc::downgrade(&exporter.recorder);
        thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            let recorder = Arc::new(new_recorder());
            let handle = recorder.handle();
            let _ = metrics::set_global_recorder(Arc::clone(&recorder)); // an error: there is one
            let Some(cell) = shared.upgrade() else { return };
            let _ = cell.set(recorder);
            drop(cell);
            while shared.strong_count() > 0 {
                thread::sleep(UPKEEP_PERIOD);
                handle.run_upkeep();
            }
        })?;
        Ok(exporter)
    }

    /// The text of what `feed` adds to it, and of the detector. None while it is being set up.
    pub(super) fn text(&self, feed: impl FnOnce(&Feed<'_>)) -> Option<String> {
        let recorder = match self.is_started {
            true => self.recorder.get()?,
            false => self.recorder.get_or_init(|| Arc::new(new_recorder())),
        };
        feed(&Feed { recorder });
        Some(recorder.handle().render())
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("is_started", &self.is_started).finish_non_exhaustive()
    }
}

fn new_recorder() -> PrometheusRecorder {
    let stalls = Matcher::Full("stalls_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(stalls, STALL_BOUNDS);
    let recorder = builder.expect("there are bounds").build_recorder();
    for (name, help) in COUNTERS {
        recorder.describe_counter(KeyName::from(*name), None, (*help).into());
    }
    for (name, help) in GAUGES {
        recorder.describe_gauge(KeyName::from(*name), None, (*help).into());
    }
    let (name, help) = STALLS;
    recorder.describe_histogram(KeyName::from(name), None, help.into());
    recorder
}

/// Sets what was gathered.
pub(super) struct Feed<'a> {
    recorder: &'a PrometheusRecorder,
}

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

impl Feed<'_> {
    /// Sets a counter, which never decreases.
    pub(super) fn counter(&self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
        self.recorder.register_counter(&key(name, labels), &METADATA).absolute(value);
    }

    /// Sets a gauge.
    pub(super) fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        self.recorder.register_gauge(&key(name, labels), &METADATA).set(value);
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels = labels.iter().map(|(key, value)| Label::new(*key, (*value).to_owned()));
    Key::from_parts(name, labels.collect::<Vec<_>>())
}

/// The counters, with their help. `docs/metrics.md` says more.
const COUNTERS: &[(&str, &str)] = &[
    ("owned_io_connections_accepted_total", "Connections that got a permit."),
    ("owned_io_connections_closed_total", "Accepted connections that have ended."),
    ("owned_io_connections_refused_total", "Connections that got no service."),
    ("owned_io_accept_failures_total", "Accepts that failed."),
    ("owned_io_accept_waits_total", "How often a listener began to wait for a permit."),
    ("owned_io_received_messages_total", "Messages from clients."),
    ("owned_io_received_bytes_total", "Bytes of messages from clients."),
    ("owned_io_sent_messages_total", "Messages to clients."),
    ("owned_io_sent_bytes_total", "Bytes of messages to clients."),
    ("owned_io_object_requests_total", "Requests for objects, by what they found."),
    ("owned_io_object_fetches_total", "Objects that were asked for at the origin."),
    ("owned_io_object_sent_bytes_total", "Bytes of objects to clients."),
    ("owned_io_iggy_commands_total", "Commands that were answered."),
    ("owned_io_iggy_refusals_total", "Commands that were refused, by Iggy's status."),
    ("owned_io_iggy_appended_messages_total", "Messages that producers were told are stored."),
    ("owned_io_iggy_appended_bytes_total", "Bytes of messages that are stored."),
    ("owned_io_iggy_polled_messages_total", "Messages in the answers to polls."),
    ("owned_io_iggy_polled_bytes_total", "Bytes of the answers to polls."),
    ("owned_io_events_requests_total", "Requests with events that were answered, by status."),
    ("owned_io_events_appended_total", "Events whose senders were told that they are stored."),
    ("owned_io_events_appended_bytes_total", "Bytes of these events."),
    ("owned_io_log_written_bytes_total", "Bytes written to the log."),
    ("owned_io_log_sync_failures_total", "Syncs of the log that failed."),
    ("stalls_total", "Stalls of a worker that are over."),
];

/// The gauges, with their help.
const GAUGES: &[(&str, &str)] = &[
    ("owned_io_build_info", "The version and the runtime."),
    ("process_start_time_seconds", "When the server started, in seconds since 1970."),
    ("owned_io_workers", "Workers."),
    ("owned_io_connections_open", "Accepted connections that have not ended."),
    ("owned_io_connections_max", "Permits for connections."),
    ("owned_io_worker_connections", "Connections that a worker serves, without those of admins."),
    ("owned_io_memory_held_bytes", "What connections hold of the common memory of a worker."),
    ("owned_io_memory_limit_bytes", "The common memory of a worker."),
    ("owned_io_pool_buffers_leased", "Receive buffers in use."),
    ("owned_io_application_queue_length", "Messages that wait for the application."),
    ("owned_io_objects", "Objects in the cache, or arriving there."),
    ("owned_io_object_held_bytes", "What objects take in memory."),
    ("owned_io_iggy_clients", "Connected clients of Iggy."),
    ("owned_io_iggy_hop_queue_length", "Commands on their way to the worker with the streams."),
    ("owned_io_iggy_partitions", "Partitions of all topics."),
    ("owned_io_iggy_stored_messages", "Messages in all partitions."),
    ("owned_io_iggy_stored_bytes", "What all partitions take."),
    (
        "owned_io_log_catalogue_failed",
        "1: nothing can be created until the server is started again.",
    ),
    ("stalls_ongoing_seconds", "How long the present stall has lasted."),
    ("stalls_heartbeat_late_p50_seconds", "The median lateness of a worker."),
    ("stalls_heartbeat_late_p99_seconds", "The 99th percentile of the lateness of a worker."),
    ("stalls_heartbeat_late_max_seconds", "The greatest lateness of a worker."),
];

/// The histogram of the detector of stalls.
const STALLS: (&str, &str) = ("stalls_seconds", "How long stalls lasted.");

/// The histograms of Iggy's commands.
pub(super) const APPEND_SECONDS: (&str, &str) =
    ("owned_io_iggy_append_seconds", "How long it took to store the messages of a request.");
pub(super) const POLL_SECONDS: (&str, &str) = (
    "owned_io_iggy_poll_seconds",
    "How long it took until an answer to a poll was made, with the wait for memory.",
);

/// The histograms of the log.
pub(super) const GROUP_BATCHES: (&str, &str) =
    ("owned_io_log_group_batches", "Batches in one write, which one sync serves.");
pub(super) const SYNC_SECONDS: (&str, &str) =
    ("owned_io_log_sync_seconds", "How long syncs of the log took.");

#[cfg(test)]
mod tests {
    use super::*;

    /// Each with its type, and nothing else.
    #[test]
    fn the_documentation_lists_what_there_is() {
        let histograms = [STALLS, APPEND_SECONDS, POLL_SECONDS, GROUP_BATCHES, SYNC_SECONDS];
        let kinds = [(COUNTERS, "counter"), (GAUGES, "gauge"), (&histograms[..], "histogram")];
        let rows = |(families, kind): (&[(&'static str, &str)], &'static str)| {
            families.iter().map(|(name, _)| format!("| `{name}` | {kind} |")).collect::<Vec<_>>()
        };
        let mut expected: Vec<_> = kinds.into_iter().flat_map(rows).collect();
        let document = include_str!("../../../docs/metrics.md");
        let is_metric = |line: &&str| {
            ["counter", "gauge", "histogram"]
                .iter()
                .any(|kind| line.contains(&format!("| {kind} |")))
        };
        let mut documented: Vec<_> = document
            .lines()
            .filter(is_metric)
            .map(|line| line.split('|').take(3).collect::<Vec<_>>().join("|") + "|")
            .collect();
        expected.sort_unstable();
        documented.sort_unstable();
        assert_eq!(documented, expected);
        for (name, _) in COUNTERS {
            assert!(name.ends_with("_total"), "{name}");
        }
    }

    #[test]
    fn a_default_exporter_makes_text() {
        let exporter = Exporter::default();
        let feed = |value| {
            move |feed: &Feed<'_>| {
                feed.counter("owned_io_accept_waits_total", &[], value);
                feed.gauge("owned_io_memory_held_bytes", &[("worker", "0")], 1.5);
            }
        };
        exporter.text(feed(7)).unwrap();
        let text = exporter.text(feed(9)).unwrap();
        for line in [
            "# HELP owned_io_accept_waits_total How often a listener began to wait for a permit.",
            "# TYPE owned_io_accept_waits_total counter",
            "owned_io_accept_waits_total 9",
            "owned_io_memory_held_bytes{worker=\"0\"} 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
