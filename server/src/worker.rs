//! One worker: it listens, serves its connections, and drains them.

use std::cell::RefCell;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use owned_io::{
    ByteStream, Files, HandOver, JoinError, JoinHandle, Runtime, StopSignal, Worker, select,
};
use owned_io_log::PartitionConfig;
use owned_io_stalls::Gauge;
use tracing::{error, info, warn};

use crate::accept::{Adopter, accept_loop, adopt_loop, balanced_accept_loop};
use crate::balance::{Ends, Exchange};
use crate::config::{DataConfig, Listener, Service};
use crate::connection_limit::ConnectionLimit;
use crate::connections::{ConnectionHandle, Connections};
use crate::context::{Context, Resources};
use crate::drain::drain;
use crate::iggy::broker::Broker;
#[cfg(feature = "kafka")]
use crate::iggy::catalogue::Catalogue;
#[cfg(feature = "kafka")]
use crate::iggy::storage::kafka::KafkaStorage;
use crate::iggy::storage::{DurableStorage, MemoryStorage};
use crate::iggy::workers::{Hub, Iggy};
use crate::iggy::{Environment, Node};
use crate::metrics::{CloseCause, ConnectionMetrics, LogObserver, Refusal, WorkerMetrics};
use crate::server::Server;
use crate::service::application::Application;
use crate::service::object::WorkerObjects;
use crate::service::{admin, echo, http, iggy as iggy_service, sink, source};
use crate::stalls::Queues;
use crate::usage::Meter;
use crate::watch::watch;

/// Serves until the stop signal, then drains. With an `exchange`, connections are served by the worker that has the
/// fewest.
pub(crate) async fn serve<R: Runtime + Files + HandOver>(
    worker: Worker,
    server: &Server,
    exchange: Option<&Exchange<R>>,
) -> io::Result<()> {
    let config = &server.config;
    if let Some(cpu) = config.cpus.get(worker.id % config.cpus.len().max(1)) {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("--pin: CPU {cpu}: {error}"));
        owned_io_os::pin_to_cpu(*cpu).map_err(named)?;
    }
    let opening = pin!(Acceptor::for_clients::<R>(server, &worker));
    let opened = select(opening, worker.stop.stopped()).await.first;
    // A large log takes seconds to open. A server that is asked to end meanwhile has served nobody.
    let Some(clients) = opened.transpose()? else { return Ok(()) };
    let ends = exchange.and_then(|exchange| exchange.join(worker.id));
    let mut ends = ends.unwrap_or_default().into_iter();
    let admins = Acceptor::for_admins(server, &clients.resources);
    config.stalls.watch_worker::<R>(worker.id, server.queues.as_ref(), &clients.resources);
    server.metrics.reply::<R>(worker.id, &clients.resources);
    let ticker = config.ticker.clone();
    drop(R::spawn(watch::<R>(clients.connections.clone(), config.limits, ticker)));
    let (mut accepting, mut accepting_admins) = (Vec::new(), Vec::new());
    for (listener, bound) in &server.listeners {
        let is_admin = listener.service == Service::Admin;
        let mut acceptor = if is_admin { admins.clone() } else { clients.clone() };
        let (tcp, listener, stop) = (R::listen(bound)?, *listener, worker.stop.clone());
        acceptor.gauge = config.stalls.connections(listener.addr);
        acceptor.limit = acceptor.limit.with_pauses(config.stalls.accept_pauses(listener.addr));
        let ends = if is_admin { None } else { ends.next() };
        let task = R::spawn(async move {
            // A loop that panics stops all workers; then the panic is reported.
            let _stop_all = StopOnDrop(stop);
            if listener.is_over_tls {
                let open = async move |stream, ctx: &Context| {
                    ctx.worker.tls.accept::<R, _>(stream, listener.service, &ctx.connection).await
                };
                acceptor.accept::<R, _>(tcp, listener, ends, open).await;
            } else {
                acceptor.accept::<R, _>(tcp, listener, ends, plain).await;
            }
        });
        if is_admin { accepting_admins.push(task) } else { accepting.push(task) }
    }
    server.worker_listens();
    let mut outcome = all_ended(accepting).await;
    info!(worker = worker.id, "draining");
    let deadline = R::now() + config.drain;
    if let Some(exchange) = exchange {
        exchange.close();
    }
    let adopted = all_ended(clients.adopting.take());
    let (cut_off, adopted) =
        drain::<R, _>(&clients.connections, &clients.limit, adopted, config.drain).await;
    outcome = outcome.and(adopted.unwrap_or(Ok(())));
    if cut_off > 0 {
        server.cut_off.fetch_add(cut_off, Ordering::AcqRel);
        warn!(worker = worker.id, cut_off, "reset what had not ended in time");
    }
    clients.resources.application.end::<R>().await;
    let has_broker = server.iggy.is_some() && has_broker(&worker);
    let has_objects = clients.resources.objects.is_some();
    if !accepting_admins.is_empty() || has_broker || has_objects {
        // The kernel sends some admins to this worker, even if only another worker still drains. The requests of Iggy's
        // clients come here. And it may be fetching an object that clients of other workers read.
        let left = deadline.saturating_duration_since(R::now());
        let _ = select(pin!(server.limit.all_released()), R::sleep(left)).await;
    }
    let closed = match &clients.resources.iggy {
        Some(iggy) if has_broker => {
            let left = deadline.saturating_duration_since(R::now());
            close_log::<R>(iggy, left).await
        }
        _ => Ok(()),
    };
    admins.stop.stop();
    outcome = outcome.and(all_ended(accepting_admins).await);
    admins.connections.close_all();
    let _ = select(pin!(admins.limit.all_released()), R::sleep(ADMINS_END_TIME_MAX)).await;
    outcome.map_err(io::Error::from).and(closed)
}

/// Waits until all tasks have ended. The error is the first panic.
async fn all_ended(tasks: Vec<JoinHandle<()>>) -> Result<(), JoinError> {
    let mut outcome = Ok(());
    for task in tasks {
        outcome = outcome.and(task.await);
    }
    outcome
}

/// How long the requests of admins may take that have arrived when everything else has ended, and their clients to end
/// then. A worker counts as hung a second after the deadline of the drain, of which closing the log may take a half.
const ADMINS_END_TIME_MAX: Duration = Duration::from_millis(250);

/// What an accept loop works with. Cloning gives another handle to the same.
#[derive(Clone)]
struct Acceptor {
    limit: ConnectionLimit,
    connections: Connections,
    resources: Rc<Resources>,
    stop: StopSignal,
    /// Counts the connections to the listener.
    gauge: Option<Gauge>,
    /// The tasks that serve what other workers hand over. They end when no worker accepts any more.
    adopting: Rc<RefCell<Vec<JoinHandle<()>>>>,
}

impl Acceptor {
    async fn for_clients<R: Runtime + Files>(server: &Server, worker: &Worker) -> io::Result<Self> {
        let config = &server.config;
        let (tls, websockets) = (config.tls.clone(), config.websockets.clone());
        let mut resources = Resources::new(config.memory, tls, websockets, config.limits);
        resources.metrics = server.metrics.worker(worker.id);
        resources.iggy = iggy::<R>(server, worker, &resources.metrics).await?.map(Rc::new);
        resources.application = Rc::new(Application::new(config.application));
        resources.objects = server.objects.clone().map(|objects| {
            Rc::new(WorkerObjects::new::<R>(objects, Arc::clone(&resources.metrics)))
        });
        let connections = Connections::new(server.drain.clone(), resources.budget.clone());
        let limit = server.limit.for_worker();
        let (resources, stop) = (Rc::new(resources), worker.stop.clone());
        let adopting = Rc::default();
        Ok(Self { limit, connections, resources, stop, gauge: None, adopting })
    }

    /// With a limit and buffers of their own, and a stop signal that is given after the drain.
    fn for_admins(server: &Server, clients: &Resources) -> Self {
        let (websocket_buffers, stalls) = (admin::buffers(), server.config.stalls.clone());
        let all_metrics = Some(server.metrics.clone());
        Self {
            limit: ConnectionLimit::new(admin::CONNECTIONS_MAX),
            connections: Connections::new(server.drain.clone(), websocket_buffers.budget().clone()),
            resources: Rc::new(Resources {
                websocket_buffers,
                stalls,
                all_metrics,
                ..clients.clone()
            }),
            stop: StopSignal::new(),
            gauge: None,
            adopting: Rc::default(),
        }
    }

    /// Accepts connections to the service of `listener`. With `ends`, the worker that has the fewest serves them. `open`
    /// performs the handshake, if there is one.
    async fn accept<R: Runtime + HandOver, S: ByteStream>(
        mut self,
        tcp: R::TcpListener,
        listener: Listener,
        ends: Option<Ends<R>>,
        open: impl AsyncFn(R::TcpStream, &Context) -> io::Result<S> + 'static,
    ) {
        let metrics = ConnectionMetrics::new(Arc::clone(&self.resources.metrics), listener);
        self.connections = self.connections.with_metrics(metrics);
        // An accept loop for each service, so that a task is no larger than its service needs.
        match listener.service {
            Service::Echo => self.accept_for::<R, _, _>(tcp, ends, open, echo::serve).await,
            Service::Sink => self.accept_for::<R, _, _>(tcp, ends, open, sink::serve::<R>).await,
            Service::Source => {
                self.accept_for::<R, _, _>(tcp, ends, open, source::serve::<R>).await;
            }
            Service::Iggy => {
                self.accept_for::<R, _, _>(tcp, ends, open, iggy_service::serve::<R>).await;
            }
            Service::Http => self.accept_for::<R, _, _>(tcp, ends, open, http::serve::<R>).await,
            Service::Admin => self.accept_for::<R, _, _>(tcp, ends, open, admin::serve::<R>).await,
        }
    }

    async fn accept_for<R: Runtime + HandOver, S, E: Into<Box<dyn Error>>>(
        self,
        tcp: R::TcpListener,
        ends: Option<Ends<R>>,
        open: impl AsyncFn(R::TcpStream, &Context) -> io::Result<S> + 'static,
        serve: impl AsyncFn(S, &Context) -> Result<(), E> + 'static,
    ) {
        let Self { limit, connections, resources, stop, gauge, adopting } = self;
        let serve = async move |stream, connection: ConnectionHandle| {
            let _counted = gauge.as_ref().map(Gauge::count); // until the stream is dropped
            let ctx = Context { connection, worker: Rc::clone(&resources) };
            let stream = match open(stream, &ctx).await {
                Ok(stream) => stream,
                Err(error) => {
                    ctx.connection.refuse(Refusal::Tls);
                    return Err(Box::<dyn Error>::from(error));
                }
            };
            let served: Result<(), Box<dyn Error>> = serve(stream, &ctx).await.map_err(Into::into);
            count_end(&served, &ctx.connection);
            served
        };
        let Some(Ends { outgoing, incoming }) = ends else {
            return accept_loop::<R, Box<dyn Error>>(tcp, limit, connections, &stop, serve).await;
        };
        let serve = Rc::new(serve);
        let [here, handed_over] = [(); 2].map(|()| Adopter::new(&limit, &connections, &serve));
        let stop_all = StopOnDrop(stop.clone());
        adopting.borrow_mut().push(R::spawn(async move {
            let _stop_all = stop_all; // as of the accept loop
            adopt_loop::<R, Box<dyn Error>, _>(incoming, handed_over).await;
        }));
        balanced_accept_loop::<R, Box<dyn Error>, _>(tcp, outgoing, &stop, here).await;
    }
}

/// Counts why a connection ends.
fn count_end(served: &Result<(), Box<dyn Error>>, connection: &ConnectionHandle) {
    match served.as_ref().map_err(|error| CloseCause::of(&**error)) {
        Ok(()) => connection.set_cause(CloseCause::Ended),
        Err(CloseCause::Refused) => connection.refuse(Refusal::Upgrade),
        Err(cause) => connection.set_cause(cause),
    }
}

/// Whether the worker has the broker of all workers.
const fn has_broker(worker: &Worker) -> bool {
    worker.id == 0
}

/// What a worker has of Iggy, if there are streams for its clients.
///
/// # Errors
/// The directory of the data cannot be opened. The error names the option and the file.
async fn iggy<R: Runtime + Files>(
    server: &Server,
    worker: &Worker,
    metrics: &Arc<WorkerMetrics>,
) -> io::Result<Option<Iggy>> {
    let (Some(hub), Some(config)) = (server.iggy.clone(), server.config.iggy.as_ref()) else {
        return Ok(None);
    };
    if !has_broker(worker) {
        return Ok(Some(Iggy::without_broker(hub).with_metrics(Arc::clone(metrics))));
    }
    let _refusal = RefuseWithoutBroker(Arc::clone(&hub));
    let environment = Environment::of::<R>();
    let addr = |service| {
        let mut listeners = server.listeners.iter().map(|(listener, _)| listener);
        listeners.find(|listener| listener.service == service).map(|listener| listener.addr)
    };
    let workers = u32::try_from(server.config.workers.get()).unwrap_or(u32::MAX);
    let node = Node { tcp: addr(Service::Iggy), websocket: addr(Service::Http), workers };
    let clients = hub.clients().clone();
    let meter = match server.config.measures_usage {
        true => Meter::of_process(config.data.as_ref().map(|data| data.dir.clone())),
        false => Meter::default(),
    };
    #[cfg(feature = "kafka")]
    if let Some(kafka) = &config.kafka {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("--store kafka: {error}"));
        let storage = Box::new(KafkaStorage::<R>::new(kafka.clone()).map_err(named)?);
        let catalogue = Catalogue::numbered_by_name();
        let restored = Broker::restore(storage, catalogue, clients, environment, node).await;
        let broker = restored.map_err(io::Error::other)?.with_meter(meter);
        return Ok(Some(Iggy::with_broker::<R>(hub, broker).with_metrics(Arc::clone(metrics))));
    }
    let broker = match &config.data {
        None => {
            let storage = MemoryStorage::new(config.memory_max, environment.now)
                .with_pause(environment.pause);
            Broker::new(Box::new(storage), clients, environment, node)
        }
        Some(DataConfig { dir, sync }) => {
            let mut partitions = PartitionConfig::default();
            partitions.sync = *sync;
            partitions.batch_bytes_max = server.config.limits.message_bytes_max;
            let opened = DurableStorage::<R>::open(dir, partitions, config.memory_max).await;
            let (storage, catalogue) =
                opened.map_err(|error| io::Error::new(error.kind(), format!("--data: {error}")))?;
            storage.report_failure(hub.catalogue_failure().clone());
            storage.observe(Rc::new(LogObserver(Arc::clone(metrics))));
            if let Some(appends) = server.queues.as_ref().and_then(Queues::appends) {
                storage.count_appends(appends.clone());
            }
            let restored =
                Broker::restore(Box::new(storage), catalogue, clients, environment, node).await;
            restored.map_err(io::Error::other)?
        }
    };
    let broker = broker.with_meter(meter);
    Ok(Some(Iggy::with_broker::<R>(hub, broker).with_metrics(Arc::clone(metrics))))
}

/// Syncs and closes the log, in what is left of the drain.
///
/// # Errors
/// Something may not be on the disk: an operation has failed, or the time is up.
async fn close_log<R: Runtime>(iggy: &Iggy, left: Duration) -> io::Result<()> {
    let closed = select(pin!(iggy.close()), R::sleep(left.max(CLOSE_TIME_MIN))).await.first;
    // With `--fsync batch`, what was acknowledged is on the disk all the same.
    let error = match closed {
        Some(Ok(())) => return Ok(()),
        _ if iggy.has_shared_topics() => io::Error::new(
            io::ErrorKind::TimedOut,
            "--store kafka: not all messages were acknowledged in time: their clients were not told so",
        ),
        Some(Err(_)) => {
            io::Error::other("--data: the log could not be synced: see the log of the server")
        }
        None => io::Error::new(
            io::ErrorKind::TimedOut,
            "--data: the log was not synced in time: without --fsync batch, its end may be lost",
        ),
    };
    error!("{error}");
    Err(error)
}

/// How long the log may take to close when nothing is left of the drain. A worker counts as hung a second after it.
const CLOSE_TIME_MIN: Duration = Duration::from_millis(500);

/// Opens a connection without TLS.
async fn plain<S>(stream: S, _: &Context) -> io::Result<S> {
    Ok(stream)
}

/// Refuses the commands of other workers when it is dropped, if the broker was not opened by then.
struct RefuseWithoutBroker(Arc<Hub>);

impl Drop for RefuseWithoutBroker {
    fn drop(&mut self) {
        self.0.refuse_without_broker();
    }
}

/// Stops all workers when it is dropped.
struct StopOnDrop(StopSignal);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use owned_io_sim::Sim;

    use super::*;
    use crate::iggy::catalogue::LogId;
    use crate::iggy::storage::{LocalFuture, MessageLog, Storage};
    use crate::iggy::{Credentials, Status};

    /// A storage whose disk never answers.
    struct StuckStorage;

    impl Storage for StuckStorage {
        fn open<'a>(
            &'a self,
            _: &'a [LogId],
        ) -> LocalFuture<'a, Result<Vec<Rc<dyn MessageLog>>, Status>> {
            Box::pin(pending())
        }

        fn remove<'a>(&'a self, _: &'a [LogId]) -> LocalFuture<'a, Result<(), Status>> {
            Box::pin(ready(Ok(())))
        }

        fn record(&self, _: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
            Box::pin(ready(Ok(())))
        }

        fn close(&self) -> LocalFuture<'_, Result<(), Status>> {
            Box::pin(pending())
        }
    }

    #[test]
    fn a_log_that_is_not_synced_in_time_is_an_error() {
        owned_io_sim::block_on(async {
            let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
            let hub = Arc::new(Hub::new(credentials));
            let (clients, environment) = (hub.clients().clone(), Environment::of::<Sim>());
            let broker = Broker::new(Box::new(StuckStorage), clients, environment, Node::default());
            let iggy = Iggy::with_broker::<Sim>(hub, broker);
            let error = close_log::<Sim>(&iggy, Duration::ZERO).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().contains("--data"), "{error}");
        });
    }
}
