//! One worker: its listeners, its connections, its end.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use owned_io::{
    BoundAddr, ByteStream, ListenOptions, MemoryBudget, Pool, PoolConfig, Runtime, StopSignal,
    Worker, WorkersConfig, beside,
};
use owned_io_websocket::stream::Buffers;
use tracing::{info, warn};

use crate::accept::{accept_loop, as_it_came};
use crate::config::{Config, Deflate, Engine, Limits, Ring, Service};
use crate::connections::{Connections, Entry};
use crate::places::Places;
use crate::service::source::Pattern;
use crate::service::{Budget, echo, http, sink, source};
use crate::tls::WorkerTls;

/// What a worker gets beyond the drain deadline, which it sees to itself, before it counts as hung.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);

/// Runs the server on `R` until it is stopped by `stop`; `listening` is called once for each listener
/// as soon as all workers listen on it.
///
/// # Errors
/// The bind's, or the first worker's that failed.
pub fn run<R: Runtime>(
    config: &Config,
    stop: StopSignal,
    listening: impl Fn(Service, SocketAddr) + Send + Sync + 'static,
) -> io::Result<()> {
    let bound = config
        .listeners
        .iter()
        .map(|(service, addr)| Ok((*service, R::bind(ListenOptions::new(*addr))?)))
        .collect::<io::Result<Vec<_>>>()?;
    let mut workers = WorkersConfig::<R>::new(config.workers);
    if config.ring == Ring::Tuned {
        workers.runtime = R::tuned();
    }
    workers.drain = config.drain + DRAIN_MARGIN;
    workers.stop = stop;
    let ready = Arc::new(Ready::new(config.workers.get(), bound.clone(), Box::new(listening)));
    let config = Arc::new(config.clone());
    R::run_workers(workers, move |worker| {
        let (bound, config, ready) = (bound.clone(), Arc::clone(&config), Arc::clone(&ready));
        async move { serve::<R>(worker, &bound, &config, &ready).await }
    })
}

async fn serve<R: Runtime>(
    worker: Worker,
    bound: &[(Service, BoundAddr)],
    config: &Config,
    ready: &Ready,
) -> io::Result<()> {
    let places = Places::new(config.limits.connections_max);
    let connections = Connections::default();
    let resources = Resources::new(config);
    let mut accepting = Vec::with_capacity(bound.len());
    for (service, addr) in bound {
        let listener = R::listen(addr)?;
        let (places, connections) = (places.clone(), connections.clone());
        let (stop, resources) = (worker.stop.clone(), resources.clone());
        let service = *service;
        accepting.push(R::spawn(async move {
            // A loop that panics takes the others along, and the panic comes to light.
            let _stop_all = StopWhenDropped(stop.clone());
            if service.is_over_tls() {
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
    ready.one_more();
    let mut outcome = Ok(());
    for accepting in accepting {
        outcome = outcome.and(accepting.await);
    }
    info!(worker = worker.id, "draining");
    connections.end();
    if beside(pin!(places.all_free()), R::sleep(config.drain)).await.pinned.is_none() {
        warn!(worker = worker.id, open = places.taken(), "closing what has not ended in time");
    }
    outcome.map_err(io::Error::from)
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
    let Resources { pool, frames, budget, buffers, pattern, engine, deflate, limits, .. } =
        resources;
    match service {
        Service::Echo | Service::EchoTls => {
            let serve = move |stream: S, _| echo::serve(stream, pool.clone());
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
        Service::Sink | Service::SinkTls => {
            let serve = move |stream: S, _| {
                sink::serve::<R>(stream, frames.clone(), limits, budget.clone())
            };
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
        Service::Source | Service::SourceTls => {
            let serve = move |stream: S, _| source::serve::<R>(stream, pattern.clone(), limits);
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
        Service::Http | Service::Https => {
            let serve = move |stream: S, entry| {
                let (buffers, pattern) = (buffers.clone(), pattern.clone());
                http::serve::<R>(stream, entry, buffers, pattern, engine, deflate, limits)
            };
            accept_loop::<R, _, _>(listener, places, connections, stop, open, serve).await;
        }
    }
}

/// What the connections of a worker share, over all its listeners.
#[derive(Clone)]
struct Resources {
    pool: Pool,
    frames: Pool,
    budget: Budget,
    buffers: Buffers,
    pattern: Pattern,
    engine: Engine,
    deflate: Deflate,
    limits: Limits,
    tls: WorkerTls,
}

/// Bytes of the buffers that frames are received into, and the messages of the sink: many that a peer sends
/// at once come in one read, and frames of up to this length are handed out where they are. 16 echoes of
/// 1 KiB took 0.6 of the time that they took with buffers of 16 KiB, 16 of 16 KiB a third; with 128 KiB they
/// took as long. A sink of 1 MB on io_uring took up to three times as long with 16 KiB as with these.
const FRAMES_BYTES: usize = 64 * 1024;

/// How many of those are kept, and held by reads that wait: with their length, 16 MiB.
const FRAMES_IDLE_MAX: usize = 256;

impl Resources {
    fn new(config: &Config) -> Self {
        let Config { engine, deflate, limits, .. } = *config;
        let mut pool = PoolConfig::default();
        pool.leased_max = limits.connections_max.max(1);
        let mut frames = pool;
        // Over TLS a connection has one of frames while it receives one of records.
        frames.leased_max = frames.leased_max.saturating_mul(2);
        frames.buf_bytes = FRAMES_BYTES;
        frames.idle_max = FRAMES_IDLE_MAX;
        let frames = Pool::new(frames);
        Self {
            pool: Pool::new(pool),
            frames: frames.clone(),
            budget: Budget::new(limits.announced_bytes_max),
            tls: WorkerTls::new(config.tls.clone(), frames.clone()),
            buffers: Buffers::new(frames, MemoryBudget::new(limits.announced_bytes_max)),
            pattern: Pattern::default(),
            engine,
            deflate,
            limits,
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
    bound: Vec<(Service, BoundAddr)>,
    listening: Box<Listening>,
}

/// Told of each listener.
type Listening = dyn Fn(Service, SocketAddr) + Send + Sync;

impl Ready {
    fn new(workers: usize, bound: Vec<(Service, BoundAddr)>, listening: Box<Listening>) -> Self {
        Self { missing: workers.into(), bound, listening }
    }

    fn one_more(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            for (service, bound) in &self.bound {
                (self.listening)(*service, bound.local_addr());
            }
        }
    }
}
