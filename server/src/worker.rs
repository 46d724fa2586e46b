//! One worker: its listeners, its connections, its end.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use owned_io::{
    BoundAddr, ByteStream, ListenOptions, Pool, Runtime, StopSignal, Worker, WorkersConfig, beside,
};
use owned_io_websocket::stream::Buffers;
use tracing::{info, warn};

use crate::accept::{accept_loop, as_it_came};
use crate::config::{Config, Limits, Listener, Ring, Service, WebSockets};
use crate::connections::{Connections, Entry};
use crate::leaving::Leaving;
use crate::per_address::PerAddress;
use crate::places::{Places, SharedPlaces};
use crate::service::source::Pattern;
use crate::service::{admin, echo, http, sink, source};
use crate::tls::WorkerTls;
use crate::watch::watch;

/// What a worker gets beyond the drain deadline, which it sees to itself, before it counts as hung.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);

/// How the server ended that was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Ended {
    /// Connections that had not ended when their time was over, and were reset.
    pub cut_off: usize,
}

/// Runs the server on `R` until it is asked to end by `leaving`; `listening` is called once for each
/// listener as soon as all workers listen on it.
///
/// # Errors
/// The bind's, or the first worker's that failed.
pub fn run<R: Runtime>(
    config: &Config,
    leaving: impl Into<Leaving>,
    listening: impl Fn(&Listener) + Send + Sync + 'static,
) -> io::Result<Ended> {
    let leaving = leaving.into();
    let bound = config
        .listeners
        .iter()
        .map(|listener| {
            let bound = R::bind(listen_options(listener.addr, config.limits))?;
            Ok((Listener { addr: bound.local_addr(), ..*listener }, bound))
        })
        .collect::<io::Result<Vec<_>>>()?;
    let mut workers = WorkersConfig::<R>::new(config.workers);
    if config.ring == Ring::Tuned {
        workers.runtime = R::tuned();
    }
    workers.drain = config.drain + DRAIN_MARGIN;
    workers.stop = leaving.stop.clone();
    let addresses = config.connections_per_address_max.map(NonZeroUsize::get);
    let addresses = addresses.map_or_else(PerAddress::default, PerAddress::at_most);
    let server = Arc::new(Server {
        ready: Ready { missing: config.workers.get().into(), listening: Box::new(listening) },
        bound,
        places: SharedPlaces::new(config.connections_max(), addresses),
        config: config.clone(),
        leaving,
        cut_off: AtomicUsize::new(0),
    });
    let of_worker = Arc::clone(&server);
    R::run_workers(workers, move |worker| {
        let server = Arc::clone(&of_worker);
        async move { serve::<R>(worker, &server).await }
    })?;
    Ok(Ended { cut_off: server.cut_off.load(Ordering::Acquire) })
}

/// What the workers share.
struct Server {
    config: Config,
    bound: Vec<(Listener, BoundAddr)>,
    places: SharedPlaces,
    leaving: Leaving,
    ready: Ready,
    /// As in [`Ended`].
    cut_off: AtomicUsize,
}

fn listen_options(addr: SocketAddr, limits: Limits) -> ListenOptions {
    let mut options = ListenOptions::new(addr);
    // The kernel must not give a peer up that the service has patience with.
    options.unacknowledged_max =
        options.unacknowledged_max.map(|limit| limit.max(limits.message_time_max));
    options
}

async fn serve<R: Runtime>(worker: Worker, server: &Server) -> io::Result<()> {
    let config = &server.config;
    let places = server.places.of_worker();
    let connections = Connections::new(server.leaving.clone());
    let resources = Resources::new(config);
    drop(R::spawn(watch::<R>(connections.clone(), config.limits)));
    // Goes on while the others are drained.
    let admin_stop = StopSignal::new();
    let mut accepting = Vec::with_capacity(server.bound.len());
    let mut admins = Vec::new();
    for (Listener { service, is_over_tls, .. }, bound) in &server.bound {
        let (service, is_over_tls) = (*service, *is_over_tls);
        let listener = R::listen(bound)?;
        if service == Service::Admin {
            let (leaving, stop) = (server.leaving.clone(), admin_stop.clone());
            admins.push(R::spawn(async move {
                let _stop_all = StopWhenDropped(leaving.stop.clone());
                accept_admins::<R>(listener, leaving, &stop).await;
            }));
            continue;
        }
        let (places, connections) = (places.clone(), connections.clone());
        let (stop, resources) = (worker.stop.clone(), resources.clone());
        accepting.push(R::spawn(async move {
            // A loop that panics takes the others along, and the panic comes to light.
            let _stop_all = StopWhenDropped(stop.clone());
            if is_over_tls {
                let tls = resources.tls.clone();
                let open =
                    async move |stream, entry| tls.accept::<R, _>(stream, service, entry).await;
                accept::<R, _>(service, listener, places, connections, &stop, resources, open)
                    .await;
            } else {
                let open = as_it_came;
                accept::<R, _>(service, listener, places, connections, &stop, resources, open)
                    .await;
            }
        }));
    }
    server.ready.one_more(&server.bound);
    let mut outcome = Ok(());
    for accepting in accepting {
        outcome = outcome.and(accepting.await);
    }
    info!(worker = worker.id, "draining");
    connections.end();
    let deadline = R::now() + config.drain;
    if beside(pin!(places.all_free()), R::sleep(config.drain)).await.pinned.is_none() {
        let cut_off = connections.cut_off();
        server.cut_off.fetch_add(cut_off, Ordering::AcqRel);
        warn!(worker = worker.id, cut_off, "reset what had not ended in time");
    }
    if !admins.is_empty() {
        // The kernel sends some of those who ask to this worker, though another is busy yet.
        let left = deadline.saturating_duration_since(R::now());
        let _ = beside(pin!(server.places.all_free()), R::sleep(left)).await;
    }
    admin_stop.stop();
    for admin in admins {
        outcome = outcome.and(admin.await);
    }
    outcome.map_err(io::Error::from)
}

/// Accepts those who run the server.
async fn accept_admins<R: Runtime>(listener: R::TcpListener, leaving: Leaving, stop: &StopSignal) {
    let (places, connections) = (Places::new(admin::PLACES), Connections::new(leaving));
    let buffers = admin::buffers();
    let serve = move |stream, entry| admin::serve::<R>(stream, entry, buffers.clone());
    accept_loop::<R, _, _>(listener, places, connections, stop, as_it_came, serve).await;
}

/// Accepts the connections to a service, which is the same whatever `open` makes of them.
async fn accept<R: Runtime, S: ByteStream>(
    service: Service,
    listener: R::TcpListener,
    places: Places,
    connections: Connections,
    stop: &StopSignal,
    resources: Resources,
    open: impl AsyncFn(R::TcpStream, Entry) -> io::Result<S> + 'static,
) {
    let Resources { pool, frames, buffers, pattern, sockets, limits, .. } = resources;
    match service {
        Service::Echo => {
            let serve = async move |stream: S, entry: Entry| {
                echo::serve(stream, pool.clone(), &entry.watched()).await
            };
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
        Service::Sink => {
            let serve = async move |stream: S, entry: Entry| {
                sink::serve::<R>(stream, frames.clone(), limits, &entry.watched()).await
            };
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
        Service::Source => {
            let serve = async move |stream: S, entry: Entry| {
                source::serve::<R>(stream, pattern.clone(), limits, &entry.watched()).await
            };
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
        Service::Http => {
            let serve = move |stream: S, entry| {
                let (buffers, pattern) = (buffers.clone(), pattern.clone());
                http::serve::<R>(stream, entry, buffers, pattern, sockets.clone(), limits)
            };
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
        Service::Admin => unreachable!("it has places of its own"),
    }
}

/// What the connections of a worker share, over all its listeners.
#[derive(Clone)]
struct Resources {
    pool: Pool,
    frames: Pool,
    buffers: Buffers,
    pattern: Pattern,
    sockets: WebSockets,
    limits: Limits,
    tls: WorkerTls,
}

impl Resources {
    fn new(config: &Config) -> Self {
        let (memory, frames) = (config.memory, config.memory.frames());
        // Over TLS a connection has an account for its records, and one for what is in them.
        let budget = memory.budget(if config.tls.is_some() { 2 } else { 1 });
        Self {
            pool: memory.echo(),
            frames: frames.clone(),
            tls: WorkerTls::new(config.tls.clone(), frames.clone(), budget.clone()),
            buffers: Buffers::new(frames, budget),
            pattern: Pattern::default(),
            sockets: config.sockets.clone(),
            limits: config.limits,
        }
    }
}

/// Stops all workers when it is dropped.
struct StopWhenDropped(StopSignal);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Counts the workers that listen.
struct Ready {
    missing: AtomicUsize,
    listening: Box<Listening>,
}

/// Told of each listener.
type Listening = dyn Fn(&Listener) + Send + Sync;

impl Ready {
    fn one_more(&self, bound: &[(Listener, BoundAddr)]) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            for (listener, _) in bound {
                (self.listening)(listener);
            }
        }
    }
}
