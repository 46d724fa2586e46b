//! The whole server: it binds the listeners, runs the workers, and reports how they ended.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use owned_io::{BoundAddr, Files, HandOver, ListenOptions, Runtime, WorkersConfig};

use crate::balance::Exchange;
use crate::config::{Balance, Config, Limits, Listener, Ring, Service};
use crate::connection_limit::{AddressLimit, SharedConnectionLimit};
use crate::drain::DrainSignal;
use crate::iggy::workers::Hub;
use crate::metrics::Metrics;
use crate::object::Objects;
use crate::stalls::Queues;
use crate::worker;

/// How a server ended that was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// Connections that had not ended by the deadline of the drain, and were reset.
    pub cut_off: usize,
}

/// Runs the server on `R` until `drain` is given. `listening` is called once for each listener, when all
/// workers listen on it; its address has the real port.
///
/// # Errors
/// The error of a bind, of the directory of the data, or of the first worker that failed.
pub fn run<R: Runtime + Files + HandOver>(
    config: &Config,
    drain: impl Into<DrainSignal>,
    listening: impl Fn(&Listener) + Send + Sync + 'static,
) -> io::Result<Outcome> {
    let drain = drain.into();
    let mut workers = WorkersConfig::<R>::new(config.workers);
    if config.ring == Ring::Tuned {
        workers.runtime = R::tuned();
    }
    workers.drain = config.drain + DRAIN_MARGIN;
    workers.stop = drain.stop.clone();
    let addresses = config.connections_per_address_max.map(NonZeroUsize::get);
    let addresses = addresses.map_or_else(AddressLimit::default, AddressLimit::new);
    let listeners = bind::<R>(config)?;
    let limit = SharedConnectionLimit::new(config.connections_max(), addresses);
    let iggy = config.iggy.as_ref().map(|iggy| Arc::new(Hub::new(iggy.credentials.clone())));
    let objects = config.objects.clone().map(|objects| Arc::new(Objects::new(objects)));
    let listening_on: Vec<_> = listeners.iter().map(|(listener, _)| *listener).collect();
    let has_log = config.iggy.as_ref().is_some_and(|iggy| iggy.data.is_some());
    let _probed = config.stalls.probe(&listening_on, config.connections_per_address_max.is_some());
    let server = Arc::new(Server {
        queues: config.stalls.queues(iggy.as_ref(), has_log),
        metrics: Metrics::new::<R>(
            config,
            listening_on.into_iter(),
            limit.clone(),
            iggy.clone(),
            objects.clone(),
        ),
        listeners,
        limit,
        iggy,
        objects,
        config: config.clone(),
        drain,
        workers_starting: config.workers.get().into(),
        listening: Box::new(listening),
        cut_off: AtomicUsize::new(0),
    });
    let shared = Arc::clone(&server);
    let exchange = exchange::<R>(config).map(Arc::new);
    R::run_workers(workers, move |worker| {
        let (server, exchange) = (Arc::clone(&shared), exchange.clone());
        async move { worker::serve::<R>(worker, &server, exchange.as_deref()).await }
    })?;
    Ok(Outcome { cut_off: server.cut_off.load(Ordering::Acquire) })
}

/// Extra time after the deadline of the drain before a worker counts as hung. The worker enforces the deadline
/// itself.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);

/// What the workers share.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) listeners: Vec<(Listener, BoundAddr)>,
    pub(crate) limit: SharedConnectionLimit,
    pub(crate) drain: DrainSignal,
    /// If there are streams for Iggy's clients.
    pub(crate) iggy: Option<Arc<Hub>>,
    /// If there is an origin.
    pub(crate) objects: Option<Arc<Objects>>,
    pub(crate) metrics: Metrics,
    /// If workers are watched for stalls.
    pub(crate) queues: Option<Queues>,
    /// As in [`Outcome`].
    pub(crate) cut_off: AtomicUsize,
    /// How many workers do not listen yet.
    workers_starting: AtomicUsize,
    listening: Box<dyn Fn(&Listener) + Send + Sync>,
}

impl Server {
    /// For each worker to call once it listens on all listeners. The last one announces them.
    pub(crate) fn worker_listens(&self) {
        if self.workers_starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.listeners.iter().for_each(|(listener, _)| (self.listening)(listener));
        }
    }
}

/// The queues by which workers hand connections over, if they do.
fn exchange<R: HandOver>(config: &Config) -> Option<Exchange<R>> {
    let is_balanced = config.balance == Balance::LeastConnections && config.workers.get() > 1;
    let of_clients = config.listeners.iter().filter(|it| it.service != Service::Admin);
    is_balanced.then(|| Exchange::new(config.workers, of_clients.count()))
}

fn bind<R: Runtime>(config: &Config) -> io::Result<Vec<(Listener, BoundAddr)>> {
    let bind = |listener: &Listener| {
        let bound = R::bind(listen_options(listener.addr, config.limits))?;
        Ok((Listener { addr: bound.local_addr(), ..*listener }, bound))
    };
    config.listeners.iter().map(bind).collect()
}

/// How many clients may wait for each worker to accept them, as far as `net.core.somaxconn` allows (4,096 since Linux 5.4).
/// One that finds the queue full tries again after a second. A burst of 3,000 does not fit into the 1,024 of the
/// contract, however fast the worker is: the clients may connect while it has no time slice.
const BACKLOG: u32 = 4_096;

fn listen_options(addr: SocketAddr, limits: Limits) -> ListenOptions {
    let mut options = ListenOptions::new(addr);
    options.backlog = BACKLOG;
    // The kernel must not give up on a peer that the service still waits for.
    options.unacknowledged_max =
        options.unacknowledged_max.map(|limit| limit.max(limits.message_time_max));
    options
}
