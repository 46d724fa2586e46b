//! Metrics: what the server counts, and `/metrics` of [`admin`](crate::service::admin). `docs/metrics.md` lists all of
//! them, and says what they cost.
//!
//! | module | subject |
//! |---|---|
//! | `cells` | counters and histograms that one thread writes and any thread reads |
//! | `worker` | what each worker counts |
//! | `object` | what it counts of objects |
//! | `cause` | why connections end |
//! | `export` | Prometheus' text |
//! | `totals` | what the page of operators shows |

mod cause;
mod cells;
mod export;
mod object;
mod totals;
mod worker;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use cause::CloseCause;
pub use cells::{Counter, Gauge, Histogram};
pub use export::Exporter;
use export::{APPEND_SECONDS, Feed, GROUP_BATCHES, POLL_SECONDS, SYNC_SECONDS};
pub use object::{ObjectFetches, ObjectMetrics, ObjectRequests};
use owned_io::{Clock, Executor, Receiver, Runtime, Sender, channel, select};
pub(crate) use totals::Totals;
pub use worker::{
    ConnectionMetrics, EventMetrics, Flow, IggyMetrics, LogMetrics, LogObserver, Refusal, Traffic,
    WorkerMetrics,
};

use crate::config::{Config, Listener, Service};
use crate::connection_limit::SharedConnectionLimit;
use crate::context::Resources;
use crate::iggy::workers::Hub;
use crate::object::Objects;
use crate::service::metrics::Answers;
use crate::service::page::Views;

/// How long the other workers may take to reply. One that has more to do shows what it had the last time.
pub(crate) const GATHER_TIME_MAX: Duration = Duration::from_millis(100);

/// How many who gather may wait for a worker. It replies to all of them in one turn; those beyond do not wait for it.
const GATHERERS_MAX: NonZeroUsize = NonZeroUsize::new(16).expect("it is not zero");

/// The metrics of a server. Cloning gives another handle to the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    workers: Vec<WorkerEntry>,
    listeners: Vec<Listener>,
    limit: SharedConnectionLimit,
    hub: Option<Arc<Hub>>,
    objects: Option<Arc<Objects>>,
    has_log: bool,
    runtime: &'static str,
    /// Set by the first worker.
    started: OnceLock<SystemTime>,
    exporter: Exporter,
    answers: Answers,
    views: Views,
}

#[derive(Debug)]
struct WorkerEntry {
    metrics: Arc<WorkerMetrics>,
    requests: Sender<Reply>,
    /// Until the worker takes it.
    receiver: Mutex<Option<Receiver<Reply>>>,
}

/// A worker replies by dropping it.
type Reply = Sender<()>;

impl Metrics {
    /// Of a server that is about to start, with listeners that are bound.
    pub(crate) fn new<R: Executor>(
        config: &Config,
        listeners: impl Iterator<Item = Listener>,
        limit: SharedConnectionLimit,
        hub: Option<Arc<Hub>>,
        objects: Option<Arc<Objects>>,
    ) -> Self {
        let entry = |_| {
            let (requests, receiver) = channel(GATHERERS_MAX);
            let receiver = Mutex::new(Some(receiver));
            WorkerEntry { metrics: Arc::default(), requests, receiver }
        };
        let shared = Shared {
            workers: (0..config.workers.get()).map(entry).collect(),
            listeners: listeners.collect(),
            limit,
            hub,
            objects,
            has_log: config.iggy.as_ref().is_some_and(|iggy| iggy.data.is_some()),
            runtime: R::NAME,
            started: OnceLock::new(),
            exporter: config.exporter.clone(),
            answers: Answers::default(),
            views: Views::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The answers of `/metrics`, which all workers share.
    pub(crate) fn answers(&self) -> &Answers {
        &self.shared.answers
    }

    /// What the workers share of the page of operators.
    pub(crate) fn views(&self) -> &Views {
        &self.shared.views
    }

    /// What a worker counts.
    pub(crate) fn worker(&self, id: usize) -> Arc<WorkerMetrics> {
        Arc::clone(&self.shared.workers[id].metrics)
    }

    /// Lets the calling worker reply to those who gather, in a task.
    pub(crate) fn reply<R: Runtime>(&self, id: usize, resources: &Rc<Resources>) {
        self.shared.started.get_or_init(R::wall_clock);
        let receiver = &self.shared.workers[id].receiver;
        let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut receiver) = receiver else { return };
        let resources = Rc::clone(resources);
        drop(R::spawn(async move {
            while let Some(reply) = receiver.receive::<R>().await {
                publish(&resources);
                drop(reply);
            }
        }));
    }

    /// Asks each worker for what only its thread can read. Returns whether all that were asked have replied in time.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn gather<R: Clock>(&self) -> bool {
        let (reply, mut replied) = channel::<()>(NonZeroUsize::MIN);
        for worker in &self.shared.workers {
            // An error: the worker has ended, or enough others wait for it.
            let _ = worker.requests.try_send(reply.clone());
        }
        drop(reply);
        // Nothing is received: it ends with the last reply.
        let replied = select(pin!(replied.receive::<R>()), R::sleep(GATHER_TIME_MAX)).await;
        replied.first.is_some()
    }

    /// The text of all metrics. None while the exporter is being set up.
    pub(crate) fn text(&self) -> Option<String> {
        let mut text = self.shared.exporter.text(|feed| self.feed(feed))?;
        let mut write = |(name, help), of: fn(&WorkerMetrics) -> &Histogram| {
            let workers = self.shared.workers.iter();
            let histograms: Vec<_> = workers.map(|worker| of(&worker.metrics)).collect();
            Histogram::write(&mut text, name, help, &histograms);
        };
        if self.shared.hub.is_some() {
            write(APPEND_SECONDS, |worker| &worker.iggy.append_seconds);
            write(POLL_SECONDS, |worker| &worker.iggy.poll_seconds);
        }
        if self.shared.has_log {
            write(GROUP_BATCHES, |worker| &worker.log.group_batches);
            write(SYNC_SECONDS, |worker| &worker.log.sync_seconds);
        }
        Some(text)
    }

    fn feed(&self, feed: &Feed<'_>) {
        let shared = &*self.shared;
        let build = [("version", env!("CARGO_PKG_VERSION")), ("runtime", shared.runtime)];
        feed.gauge("owned_io_build_info", &build, 1.0);
        if let Some(started) = shared.started.get() {
            let started = started.duration_since(UNIX_EPOCH).unwrap_or_default();
            feed.gauge("process_start_time_seconds", &[], started.as_secs_f64());
        }
        feed.gauge("owned_io_workers", &[], shared.workers.len() as f64);
        feed.counter("owned_io_accept_waits_total", &[], shared.limit.waits());
        feed.gauge("owned_io_connections_max", &[], shared.limit.count() as f64);
        for listener in &shared.listeners {
            self.feed_listener(feed, listener);
        }
        self.feed_traffic(feed);
        for (id, worker) in shared.workers.iter().enumerate() {
            feed_worker(feed, &id.to_string(), &worker.metrics);
        }
        if let Some(objects) = &shared.objects {
            self.feed_objects(feed, objects);
        }
        if let Some(hub) = &shared.hub {
            feed.gauge("owned_io_iggy_clients", &[], hub.clients().count() as f64);
            feed.gauge("owned_io_iggy_hop_queue_length", &[], hub.waiting() as f64);
            self.feed_iggy(feed);
            if shared.listeners.iter().any(|listener| listener.service == Service::Http) {
                self.feed_events(feed);
            }
        }
        if shared.has_log {
            let bytes = self.sum(|worker| worker.log.written_bytes.get());
            feed.counter("owned_io_log_written_bytes_total", &[], bytes);
            let failures = self.sum(|worker| worker.log.sync_failures.get());
            feed.counter("owned_io_log_sync_failures_total", &[], failures);
            let failure = shared.hub.as_ref().map(|hub| hub.catalogue_failure().has_happened());
            let has_failed = f64::from(failure.unwrap_or_default());
            feed.gauge("owned_io_log_catalogue_failed", &[], has_failed);
        }
    }

    /// The sum over all workers.
    fn sum(&self, of: impl Fn(&WorkerMetrics) -> u64) -> u64 {
        self.shared.workers.iter().map(|worker| of(&worker.metrics)).sum()
    }

    fn feed_listener(&self, feed: &Feed<'_>, listener: &Listener) {
        let labels = [("listener", listener.name()), ("service", listener.service.name())];
        let and = |key, value| [labels[0], labels[1], (key, value)];
        let mut closed_sum = 0;
        for cause in CloseCause::ALL {
            let closed = self.sum(|it| it.listener(listener).closed[cause as usize].get());
            let labels = and("cause", cause.label());
            feed.counter("owned_io_connections_closed_total", &labels, closed);
            closed_sum += closed;
        }
        // Read later, so that none is open that was not accepted.
        let accepted = self.sum(|it| it.listener(listener).accepted.get());
        feed.counter("owned_io_connections_accepted_total", &labels, accepted);
        let open = accepted.saturating_sub(closed_sum);
        feed.gauge("owned_io_connections_open", &labels, open as f64);
        for (refusal, reason) in Refusal::ALL {
            let refused = self.sum(|it| it.listener(listener).refused[refusal as usize].get());
            feed.counter("owned_io_connections_refused_total", &and("reason", reason), refused);
        }
        let exhausted = self.sum(|it| it.listener(listener).failures_by_exhaustion.get());
        let other = self.sum(|it| it.listener(listener).other_failures.get());
        for (cause, failures) in [("exhausted", exhausted), ("other", other)] {
            feed.counter("owned_io_accept_failures_total", &and("cause", cause), failures);
        }
    }

    /// The places in [`Traffic::all`] of what the listeners serve.
    fn served_flows(&self) -> Vec<usize> {
        let serves = |service| self.shared.listeners.iter().any(|it| it.service == service);
        let has_http = serves(Service::Http);
        let is_served = |service, transport| match (service, transport) {
            ("iggy" | "tail", _) if self.shared.hub.is_none() => false,
            (_, "websocket") => has_http,
            _ => Service::ALL.into_iter().any(|it| it.name() == service && serves(it)),
        };
        let flows = Traffic::default().all().map(|(service, transport, _)| (service, transport));
        let flows = flows.into_iter().enumerate();
        flows.filter(|(_, flow)| is_served(flow.0, flow.1)).map(|(index, _)| index).collect()
    }

    fn feed_traffic(&self, feed: &Feed<'_>) {
        for index in self.served_flows() {
            let (service, transport, _) = Traffic::default().all()[index];
            let labels = [("service", service), ("transport", transport)];
            let sum = |of: fn(&Flow) -> &Counter| {
                self.sum(|worker| of(worker.traffic.all()[index].2).get())
            };
            let (received, sent) =
                (sum(|flow| &flow.received_messages), sum(|flow| &flow.sent_messages));
            feed.counter("owned_io_received_bytes_total", &labels, sum(|it| &it.received_bytes));
            feed.counter("owned_io_sent_bytes_total", &labels, sum(|it| &it.sent_bytes));
            if (service, transport) == ("echo", "tcp") {
                continue; // bytes without messages
            }
            feed.counter("owned_io_received_messages_total", &labels, received);
            feed.counter("owned_io_sent_messages_total", &labels, sent);
        }
    }

    fn feed_objects(&self, feed: &Feed<'_>, objects: &Objects) {
        let requests = ObjectRequests::default().all().map(|(label, _)| label);
        for (index, found) in requests.into_iter().enumerate() {
            let sum = self.sum(|worker| worker.objects.requests.all()[index].1.get());
            feed.counter("owned_io_object_requests_total", &[("found", found)], sum);
        }
        let fetches = ObjectFetches::default().all().map(|(label, _)| label);
        for (index, outcome) in fetches.into_iter().enumerate() {
            let sum = self.sum(|worker| worker.objects.fetches.all()[index].1.get());
            feed.counter("owned_io_object_fetches_total", &[("outcome", outcome)], sum);
        }
        let sent = self.sum(|worker| worker.objects.sent_bytes.get());
        feed.counter("owned_io_object_sent_bytes_total", &[], sent);
        let totals = objects.totals();
        feed.gauge("owned_io_objects", &[], totals.objects as f64);
        feed.gauge("owned_io_object_held_bytes", &[], totals.held_bytes as f64);
    }

    fn feed_iggy(&self, feed: &Feed<'_>) {
        let workers = &self.shared.workers;
        let mut commands = Vec::new();
        let mut refusals = Vec::new();
        for worker in workers {
            for (index, (name, ok, refused)) in worker.metrics.iggy.commands().enumerate() {
                if commands.len() == index {
                    commands.push((name, 0, 0));
                }
                commands[index].1 += ok;
                commands[index].2 += refused;
            }
            for (index, (status, count)) in worker.metrics.iggy.refusals().enumerate() {
                if refusals.len() == index {
                    refusals.push((status, 0));
                }
                refusals[index].1 += count;
            }
        }
        for (name, ok, refused) in commands {
            for (outcome, count) in [("ok", ok), ("refused", refused)] {
                let labels = [("command", name), ("outcome", outcome)];
                feed.counter("owned_io_iggy_commands_total", &labels, count);
            }
        }
        for (status, count) in refusals {
            let status = status.code().to_string();
            feed.counter("owned_io_iggy_refusals_total", &[("status", &status)], count);
        }
        let sum = |of: fn(&IggyMetrics) -> &Counter| self.sum(|worker| of(&worker.iggy).get());
        let appended = (sum(|it| &it.appended_messages), sum(|it| &it.appended_bytes));
        feed.counter("owned_io_iggy_appended_messages_total", &[], appended.0);
        feed.counter("owned_io_iggy_appended_bytes_total", &[], appended.1);
        let polled = (sum(|it| &it.polled_messages), sum(|it| &it.polled_bytes));
        feed.counter("owned_io_iggy_polled_messages_total", &[], polled.0);
        feed.counter("owned_io_iggy_polled_bytes_total", &[], polled.1);
        // One worker has them.
        let partitions = self.sum(|worker| worker.gauges.partitions.get());
        feed.gauge("owned_io_iggy_partitions", &[], partitions as f64);
        let messages = self.sum(|worker| worker.gauges.stored_messages.get());
        feed.gauge("owned_io_iggy_stored_messages", &[], messages as f64);
        let bytes = self.sum(|worker| worker.gauges.stored_bytes.get());
        feed.gauge("owned_io_iggy_stored_bytes", &[], bytes as f64);
    }

    fn feed_events(&self, feed: &Feed<'_>) {
        let mut requests = BTreeMap::<_, u64>::new();
        for worker in &self.shared.workers {
            for (status, count) in worker.metrics.events.requests() {
                *requests.entry(status).or_default() += count;
            }
        }
        for (status, count) in requests {
            feed.counter("owned_io_events_requests_total", &[("status", &status)], count);
        }
        let appended = self.sum(|worker| worker.events.appended.get());
        feed.counter("owned_io_events_appended_total", &[], appended);
        let bytes = self.sum(|worker| worker.events.appended_bytes.get());
        feed.counter("owned_io_events_appended_bytes_total", &[], bytes);
    }
}

fn feed_worker(feed: &Feed<'_>, id: &str, worker: &WorkerMetrics) {
    let labels = [("worker", id)];
    let gauges = &worker.gauges;
    feed.gauge("owned_io_worker_connections", &labels, worker.connections_open() as f64);
    feed.gauge("owned_io_memory_held_bytes", &labels, gauges.memory_held_bytes.get() as f64);
    feed.gauge("owned_io_memory_limit_bytes", &labels, gauges.memory_limit_bytes.get() as f64);
    feed.gauge("owned_io_application_queue_length", &labels, gauges.application_queue.get() as f64);
    feed.gauge("owned_io_pool_buffers_leased", &labels, gauges.leased_buffers.get() as f64);
}

/// Writes what only this thread can read.
fn publish(resources: &Resources) {
    let gauges = &resources.metrics.gauges;
    let budget = &resources.budget;
    gauges.memory_held_bytes.set(budget.common_bytes_held() as u64);
    gauges.memory_limit_bytes.set(budget.common_bytes_max() as u64);
    gauges.leased_buffers.set(resources.pool.leased() as u64);
    gauges.application_queue.set(resources.application.queue_len() as u64);
    if let Some((partitions, totals)) = resources.iggy.as_ref().and_then(|iggy| iggy.stored()) {
        gauges.partitions.set(partitions as u64);
        gauges.stored_messages.set(totals.messages);
        gauges.stored_bytes.set(totals.bytes);
    }
}
