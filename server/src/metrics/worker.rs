//! [`WorkerMetrics`]: what one worker counts.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use iggy_binary_protocol::COMMAND_TABLE;
use owned_io_log::{Group, Observer};

use super::CloseCause;
use super::cells::{Counter, Gauge, Histogram};
use super::object::ObjectMetrics;
use crate::config::{Listener, Service};
use crate::iggy::Status;

/// What one worker counts. Only its thread counts; any thread reads.
///
/// Aligned so that the cells share no cache line with what another core writes: of 64 bytes, of which x86 fetches two.
/// Those of commands and of histograms are in boxes: they are not counted for each message.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// What services receive and send.
    pub traffic: Traffic,
    /// What clients of Iggy ask for.
    pub iggy: IggyMetrics,
    /// What is asked of `/events`.
    pub events: EventMetrics,
    /// What the log on disk does.
    pub log: LogMetrics,
    /// What clients get of objects, and what is fetched.
    pub objects: ObjectMetrics,
    /// What only the worker's thread can read, as it was when somebody asked last.
    pub(super) gauges: WorkerGauges,
    listeners: [ListenerMetrics; Service::ALL.len() * 2],
}

impl WorkerMetrics {
    /// The connections of a listener.
    pub(super) const fn listener(&self, listener: &Listener) -> &ListenerMetrics {
        &self.listeners[listener.service as usize * 2 + listener.is_over_tls as usize]
    }

    /// The open connections of clients. Admins have others.
    pub(super) fn connections_open(&self) -> u64 {
        let of_clients = &self.listeners[..Service::Admin as usize * 2];
        let closed: u64 =
            of_clients.iter().flat_map(|listener| &listener.closed).map(Counter::get).sum();
        // Read later, so that none is open that was not accepted.
        let accepted: u64 = of_clients.iter().map(|listener| listener.accepted.get()).sum();
        accepted.saturating_sub(closed)
    }
}

/// Messages and their bytes, in both directions.
#[derive(Debug, Default)]
pub struct Flow {
    pub(super) received_messages: Counter,
    pub(super) received_bytes: Counter,
    pub(super) sent_messages: Counter,
    pub(super) sent_bytes: Counter,
}

impl Flow {
    /// Counts messages from a client, or bytes of them.
    #[inline]
    pub fn receive(&self, messages: u64, bytes: usize) {
        self.received_messages.add(messages);
        self.received_bytes.add(bytes as u64);
    }

    /// Counts messages to a client, or bytes of them.
    #[inline]
    pub fn send(&self, messages: u64, bytes: usize) {
        self.sent_messages.add(messages);
        self.sent_bytes.add(bytes as u64);
    }

    /// Counts bytes that were received, and are sent back.
    #[inline]
    pub fn receive_bytes(&self, bytes: usize) {
        self.received_bytes.add(bytes as u64);
    }

    /// Counts bytes that are sent.
    #[inline]
    pub fn send_bytes(&self, bytes: usize) {
        self.sent_bytes.add(bytes as u64);
    }
}

/// The flows of all services.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each is a service and how it is reached")]
pub struct Traffic {
    pub echo_tcp: Flow,
    pub echo_websocket: Flow,
    pub echo_application: Flow,
    pub sink_tcp: Flow,
    pub sink_websocket: Flow,
    pub source_tcp: Flow,
    pub source_websocket: Flow,
    pub iggy_tcp: Flow,
    pub iggy_websocket: Flow,
    pub tail_websocket: Flow,
}

impl Traffic {
    /// Each with the values of its labels `service` and `transport`.
    pub(super) const fn all(&self) -> [(&'static str, &'static str, &Flow); 10] {
        [
            ("echo", "tcp", &self.echo_tcp),
            ("echo", "websocket", &self.echo_websocket),
            ("echo-app", "websocket", &self.echo_application),
            ("sink", "tcp", &self.sink_tcp),
            ("sink", "websocket", &self.sink_websocket),
            ("source", "tcp", &self.source_tcp),
            ("source", "websocket", &self.source_websocket),
            ("iggy", "tcp", &self.iggy_tcp),
            ("iggy", "websocket", &self.iggy_websocket),
            ("tail", "websocket", &self.tail_websocket),
        ]
    }
}

/// The connections of a listener, at one worker.
#[derive(Debug, Default)]
pub(super) struct ListenerMetrics {
    pub(super) accepted: Counter,
    pub(super) closed: [Counter; CloseCause::ALL.len()],
    pub(super) refused: [Counter; Refusal::ALL.len()],
    pub(super) failures_by_exhaustion: Counter,
    pub(super) other_failures: Counter,
}

/// Why a connection got no service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its address has as many as it may.
    AddressLimit,
    /// The TLS handshake failed.
    Tls,
    /// Its request for a WebSocket was none, or of a page of another origin.
    Upgrade,
}

impl Refusal {
    /// All of them, with the values of the label `reason`.
    pub(super) const ALL: [(Self, &'static str); 3] =
        [(Self::AddressLimit, "address_limit"), (Self::Tls, "tls"), (Self::Upgrade, "upgrade")];
}

/// Counts the connections of one listener at one worker. Cloning gives another handle to the same.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    worker: Arc<WorkerMetrics>,
    listener: Listener,
}

/// Of a worker and a listener that nobody reads.
impl Default for ConnectionMetrics {
    fn default() -> Self {
        let addr = (Ipv4Addr::UNSPECIFIED, 0).into();
        let listener = Listener { service: Service::Echo, addr, is_over_tls: false };
        Self::new(Arc::default(), listener)
    }
}

impl ConnectionMetrics {
    /// Of a listener.
    pub const fn new(worker: Arc<WorkerMetrics>, listener: Listener) -> Self {
        Self { worker, listener }
    }

    /// A connection got a permit.
    pub(crate) fn accepted(&self) {
        self.cells().accepted.add(1);
    }

    /// One of these has ended.
    pub(crate) fn closed(&self, cause: CloseCause) {
        self.cells().closed[cause as usize].add(1);
    }

    /// A connection got no service.
    pub(crate) fn refused(&self, refusal: Refusal) {
        self.cells().refused[refusal as usize].add(1);
    }

    /// An accept failed.
    pub(crate) fn accept_failed(&self, is_exhausted: bool) {
        let cells = self.cells();
        let failures =
            if is_exhausted { &cells.failures_by_exhaustion } else { &cells.other_failures };
        failures.add(1);
    }

    fn cells(&self) -> &ListenerMetrics {
        self.worker.listener(&self.listener)
    }
}

/// What clients of Iggy ask for, at the worker of their connection.
#[derive(Debug)]
pub struct IggyMetrics {
    /// By the place of the command in [`COMMAND_TABLE`]; the last are unknown ones.
    commands: Box<[CommandMetrics]>,
    /// By the place of the status in [`Status::ALL`].
    refusals: Box<[Counter]>,
    pub(super) appended_messages: Counter,
    pub(super) appended_bytes: Counter,
    pub(super) append_seconds: Histogram,
    pub(super) polled_messages: Counter,
    pub(super) polled_bytes: Counter,
    pub(super) poll_seconds: Histogram,
}

/// In nanoseconds: a batch in memory takes some microseconds, and one that waits for a sync as long as that.
const COMMAND_BOUNDS: &[u64] = &[
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
];

#[derive(Debug, Default)]
struct CommandMetrics {
    ok: Counter,
    refused: Counter,
}

impl Default for IggyMetrics {
    fn default() -> Self {
        Self {
            commands: (0..=COMMAND_TABLE.len()).map(|_| CommandMetrics::default()).collect(),
            refusals: Status::ALL.iter().map(|_| Counter::default()).collect(),
            appended_messages: Counter::default(),
            appended_bytes: Counter::default(),
            append_seconds: Histogram::new(COMMAND_BOUNDS, 1e9),
            polled_messages: Counter::default(),
            polled_bytes: Counter::default(),
            poll_seconds: Histogram::new(COMMAND_BOUNDS, 1e9),
        }
    }
}

impl IggyMetrics {
    /// Counts a command that was answered, or refused by `status`.
    pub(crate) fn answered(&self, code: u32, refused: Option<Status>) {
        // Some 20 ns, of the microseconds that a command takes.
        let known = COMMAND_TABLE.iter().position(|command| command.code == code);
        let command = &self.commands[known.unwrap_or(COMMAND_TABLE.len())];
        let Some(status) = refused else { return command.ok.add(1) };
        command.refused.add(1);
        if let Some(index) = Status::ALL.iter().position(|one| *one == status) {
            self.refusals[index].add(1);
        }
    }

    /// Counts messages that were stored, and how long that took.
    pub(crate) fn appended(&self, messages: u32, bytes: usize, time: Duration) {
        self.appended_messages.add(messages.into());
        self.appended_bytes.add(bytes as u64);
        self.append_seconds.record(nanoseconds(time));
    }

    /// Counts messages in the answer to a poll, its bytes, and how long it took to make it.
    pub(crate) fn polled(&self, messages: u32, bytes: usize, time: Duration) {
        self.polled_messages.add(messages.into());
        self.polled_bytes.add(bytes as u64);
        self.poll_seconds.record(nanoseconds(time));
    }

    /// Each command: its name, how often it was answered, and how often refused.
    pub(super) fn commands(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let names = COMMAND_TABLE.iter().map(|command| command.name).chain(["unknown"]);
        names
            .zip(self.commands.iter())
            .map(|(name, cells)| (name, cells.ok.get(), cells.refused.get()))
    }

    /// Each status, and how often it was the answer.
    pub(super) fn refusals(&self) -> impl Iterator<Item = (Status, u64)> {
        Status::ALL.into_iter().zip(self.refusals.iter()).map(|(status, cell)| (status, cell.get()))
    }
}

/// What is asked of `/events`, at the worker of the connection.
#[derive(Debug)]
pub struct EventMetrics {
    /// By the place of the status in [`STATUSES`](Self::STATUSES); the last are others.
    requests: Box<[Counter]>,
    pub(super) appended: Counter,
    pub(super) appended_bytes: Counter,
}

impl Default for EventMetrics {
    fn default() -> Self {
        let requests = (0..=Self::STATUSES.len()).map(|_| Counter::default()).collect();
        Self { requests, appended: Counter::default(), appended_bytes: Counter::default() }
    }
}

impl EventMetrics {
    /// The statuses that requests are answered by.
    const STATUSES: [u16; 13] = [200, 400, 401, 403, 404, 405, 408, 413, 415, 431, 500, 503, 507];

    /// Counts a request that was answered by this status.
    pub(crate) fn answered(&self, status: u16) {
        let known = Self::STATUSES.iter().position(|one| *one == status);
        self.requests[known.unwrap_or(Self::STATUSES.len())].add(1);
    }

    /// Counts events that are stored.
    pub(crate) fn appended(&self, events: u32, bytes: usize) {
        self.appended.add(events.into());
        self.appended_bytes.add(bytes as u64);
    }

    /// Each status, and how many requests it has answered.
    pub(super) fn requests(&self) -> impl Iterator<Item = (String, u64)> {
        let labels = Self::STATUSES.iter().map(u16::to_string).chain(["other".to_owned()]);
        labels.zip(self.requests.iter()).map(|(label, cell)| (label, cell.get()))
    }
}

/// What the log on disk does, at the worker that has it.
#[derive(Debug)]
pub struct LogMetrics {
    pub(super) written_bytes: Counter,
    pub(super) group_batches: Histogram,
    pub(super) sync_seconds: Histogram,
    pub(super) sync_failures: Counter,
}

/// In batches: a group has one if nobody else waits, and thousands if they are small.
const GROUP_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096];

/// In nanoseconds: a disk with a cache of its own takes tens of microseconds, a disk that turns tens of milliseconds, and a
/// disk that fails takes seconds.
const SYNC_BOUNDS: &[u64] = COMMAND_BOUNDS.split_at(3).1;

const _: () = assert!(SYNC_BOUNDS[0] == 50_000, "syncs are counted from 50 µs on");

impl Default for LogMetrics {
    fn default() -> Self {
        Self {
            written_bytes: Counter::default(),
            group_batches: Histogram::new(GROUP_BOUNDS, 1.0),
            sync_seconds: Histogram::new(SYNC_BOUNDS, 1e9),
            sync_failures: Counter::default(),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Counts what the logs of a worker do.
#[derive(Clone, Debug)]
pub struct LogObserver(pub Arc<WorkerMetrics>);

impl Observer for LogObserver {
    fn wrote(&self, group: Group) {
        let log = &self.0.log;
        log.written_bytes.add(group.bytes);
        log.group_batches.record(group.batches as u64);
    }

    fn synced(&self, time: Duration, is_ok: bool) {
        let log = &self.0.log;
        log.sync_seconds.record(nanoseconds(time));
        if !is_ok {
            log.sync_failures.add(1);
        }
    }
}

/// What only the worker's thread can read.
#[derive(Debug, Default)]
pub(super) struct WorkerGauges {
    pub(super) memory_held_bytes: Gauge,
    pub(super) memory_limit_bytes: Gauge,
    pub(super) leased_buffers: Gauge,
    pub(super) application_queue: Gauge,
    pub(super) partitions: Gauge,
    pub(super) stored_messages: Gauge,
    pub(super) stored_bytes: Gauge,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_cells_of_its_own() {
        let worker = Arc::new(WorkerMetrics::default());
        let mut listeners = Vec::new();
        for service in Service::ALL {
            for is_over_tls in [false, true] {
                let addr = (Ipv4Addr::LOCALHOST, 1).into();
                listeners.push(Listener { service, addr, is_over_tls });
            }
        }
        for (n, listener) in listeners.iter().enumerate() {
            let metrics = ConnectionMetrics::new(Arc::clone(&worker), *listener);
            (0..=n).for_each(|_| metrics.accepted());
            metrics.refused(Refusal::Upgrade);
            metrics.closed(CloseCause::Panic);
        }
        for (n, listener) in listeners.iter().enumerate() {
            let cells = worker.listener(listener);
            assert_eq!(cells.accepted.get(), n as u64 + 1);
            assert_eq!(cells.refused.each_ref().map(Counter::get), [0, 0, 1]);
            assert_eq!(cells.closed[CloseCause::Panic as usize].get(), 1);
        }
        assert!(Refusal::ALL.iter().enumerate().all(|(n, (refusal, _))| *refusal as usize == n));
    }

    #[test]
    fn commands_are_counted_by_name_and_outcome() {
        let iggy = IggyMetrics::default();
        iggy.answered(iggy_binary_protocol::codes::PING_CODE, None);
        iggy.answered(iggy_binary_protocol::codes::SEND_MESSAGES_CODE, Some(Status::TopicFull));
        iggy.answered(u32::MAX, Some(Status::InvalidCommand));
        let counted: Vec<_> = iggy.commands().filter(|(_, ok, refused)| ok + refused > 0).collect();
        assert_eq!(counted, [("ping", 1, 0), ("message.send", 0, 1), ("unknown", 0, 1)]);
        let refused: Vec<_> = iggy.refusals().filter(|(_, count)| *count > 0).collect();
        assert_eq!(refused, [(Status::InvalidCommand, 1), (Status::TopicFull, 1)]);
    }

    #[test]
    fn requests_with_events_are_counted_by_their_status() {
        let events = EventMetrics::default();
        for status in [200, 507, 507, 999] {
            events.answered(status);
        }
        events.appended(3, 70);
        let counted: Vec<_> = events.requests().filter(|(_, count)| *count > 0).collect();
        let expected = [("200", 1), ("507", 2), ("other", 1)];
        assert_eq!(counted, expected.map(|(label, count)| (label.to_owned(), count)));
        assert_eq!((events.appended.get(), events.appended_bytes.get()), (3, 70));
    }

    #[test]
    fn what_the_log_does_is_counted() {
        let worker = Arc::new(WorkerMetrics::default());
        let observer = LogObserver(Arc::clone(&worker));
        observer.synced(Duration::from_millis(3), true);
        observer.synced(Duration::MAX, false);
        assert_eq!(worker.log.sync_failures.get(), 1);
    }
}
