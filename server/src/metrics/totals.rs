//! [`Totals`]: what the [page](crate::service::page) of operators shows of the metrics.

use std::time::UNIX_EPOCH;

use serde::Serialize;

use super::{CloseCause, Counter, Flow, Histogram, IggyMetrics, Metrics, Refusal, Traffic};
use crate::config::Listener;

/// The figures of all workers together, as they were when somebody [gathered](Metrics::gather) last. Counters begin at
/// 0 with the server.
#[derive(Debug, Serialize)]
pub(crate) struct Totals {
    version: &'static str,
    runtime: &'static str,
    workers: usize,
    /// When the server started, in milliseconds since 1970.
    started_ms: u64,
    flows: Vec<FlowTotals>,
    connections: ConnectionTotals,
    memory: MemoryTotals,
    /// If there are streams for Iggy's clients.
    iggy: Option<IggyTotals>,
    /// If there is a log on disk.
    log: Option<LogTotals>,
}

#[derive(Debug, Serialize)]
struct FlowTotals {
    service: &'static str,
    transport: &'static str,
    /// `None`: it has bytes without messages.
    received_messages: Option<u64>,
    sent_messages: Option<u64>,
    received_bytes: u64,
    sent_bytes: u64,
}

#[derive(Debug, Serialize)]
struct ConnectionTotals {
    max: usize,
    waits: u64,
    listeners: Vec<ListenerTotals>,
}

#[derive(Debug, Serialize)]
struct ListenerTotals {
    name: &'static str,
    open: u64,
    accepted: u64,
    refused: u64,
    /// Accepts that failed.
    failed: u64,
}

/// Of the common parts of all budgets.
#[derive(Debug, Serialize)]
struct MemoryTotals {
    held_bytes: u64,
    limit_bytes: u64,
}

#[derive(Debug, Serialize)]
struct IggyTotals {
    clients: usize,
    hop_queue: usize,
    appended_messages: u64,
    appended_bytes: u64,
    polled_messages: u64,
    polled_bytes: u64,
    partitions: u64,
    stored_messages: u64,
    stored_bytes: u64,
}

#[derive(Debug, Serialize)]
struct LogTotals {
    written_bytes: u64,
    sync_failures: u64,
    /// The greatest value of each range of `sync_counts` but the last, in µs.
    sync_bounds_us: Vec<u64>,
    sync_counts: Vec<u64>,
}

impl Metrics {
    /// What was gathered last.
    pub(crate) fn totals(&self) -> Totals {
        let shared = &*self.shared;
        let started = shared.started.get().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let started_ms = started.map_or(0, |started| started.as_millis());
        let flows = self.served_flows();
        let listeners = shared.listeners.iter().map(|listener| self.listener_totals(listener));
        Totals {
            version: env!("CARGO_PKG_VERSION"),
            runtime: shared.runtime,
            workers: shared.workers.len(),
            started_ms: u64::try_from(started_ms).unwrap_or(u64::MAX),
            flows: flows.into_iter().map(|index| self.flow_totals(index)).collect(),
            connections: ConnectionTotals {
                max: shared.limit.count(),
                waits: shared.limit.waits(),
                listeners: listeners.collect(),
            },
            memory: MemoryTotals {
                held_bytes: self.sum(|worker| worker.gauges.memory_held_bytes.get()),
                limit_bytes: self.sum(|worker| worker.gauges.memory_limit_bytes.get()),
            },
            iggy: shared
                .hub
                .as_ref()
                .map(|hub| self.iggy_totals(hub.clients().count(), hub.waiting())),
            log: shared.has_log.then(|| self.log_totals()),
        }
    }

    fn flow_totals(&self, index: usize) -> FlowTotals {
        let (service, transport, _) = Traffic::default().all()[index];
        let sum =
            |of: fn(&Flow) -> &Counter| self.sum(|worker| of(worker.traffic.all()[index].2).get());
        let has_messages = (service, transport) != ("echo", "tcp");
        FlowTotals {
            service,
            transport,
            received_messages: has_messages.then(|| sum(|flow| &flow.received_messages)),
            sent_messages: has_messages.then(|| sum(|flow| &flow.sent_messages)),
            received_bytes: sum(|flow| &flow.received_bytes),
            sent_bytes: sum(|flow| &flow.sent_bytes),
        }
    }

    fn listener_totals(&self, listener: &Listener) -> ListenerTotals {
        let closed = |cause: CloseCause| {
            self.sum(|worker| worker.listener(listener).closed[cause as usize].get())
        };
        let closed: u64 = CloseCause::ALL.into_iter().map(closed).sum();
        // Read later, so that none is open that was not accepted.
        let accepted = self.sum(|worker| worker.listener(listener).accepted.get());
        let refused = |(refusal, _): (Refusal, _)| {
            self.sum(|worker| worker.listener(listener).refused[refusal as usize].get())
        };
        let failed = self.sum(|worker| {
            let listener = worker.listener(listener);
            listener.failures_by_exhaustion.get() + listener.other_failures.get()
        });
        ListenerTotals {
            name: listener.name(),
            open: accepted.saturating_sub(closed),
            accepted,
            refused: Refusal::ALL.into_iter().map(refused).sum(),
            failed,
        }
    }

    fn iggy_totals(&self, clients: usize, hop_queue: usize) -> IggyTotals {
        let sum = |of: fn(&IggyMetrics) -> &Counter| self.sum(|worker| of(&worker.iggy).get());
        IggyTotals {
            clients,
            hop_queue,
            appended_messages: sum(|iggy| &iggy.appended_messages),
            appended_bytes: sum(|iggy| &iggy.appended_bytes),
            polled_messages: sum(|iggy| &iggy.polled_messages),
            polled_bytes: sum(|iggy| &iggy.polled_bytes),
            partitions: self.sum(|worker| worker.gauges.partitions.get()),
            stored_messages: self.sum(|worker| worker.gauges.stored_messages.get()),
            stored_bytes: self.sum(|worker| worker.gauges.stored_bytes.get()),
        }
    }

    fn log_totals(&self) -> LogTotals {
        let syncs = self.shared.workers.iter().map(|worker| &worker.metrics.log.sync_seconds);
        let syncs: Vec<_> = syncs.collect();
        let bounds = syncs.first().map_or(&[][..], |syncs| syncs.bounds());
        LogTotals {
            written_bytes: self.sum(|worker| worker.log.written_bytes.get()),
            sync_failures: self.sum(|worker| worker.log.sync_failures.get()),
            sync_bounds_us: bounds.iter().map(|nanos| nanos / 1_000).collect(),
            sync_counts: Histogram::sum_counts(&syncs),
        }
    }
}
