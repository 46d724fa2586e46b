//! The accept loops. They serve as many connections as the limit allows, and only the stop signal ends them.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{
    ByteStream, Clock, HandOver, Receiver, Runtime, StopSignal, TcpListener, is_exhaustion, select,
};
use tracing::{debug, warn};

use crate::balance::{Assignment, HandedOver, Outgoing};
use crate::connection_limit::{ConnectionLimit, Permit};
use crate::connections::{ConnectionHandle, Connections};
use crate::log_limit::LogLimit;
use crate::metrics::{ConnectionMetrics, Refusal};

/// How long the loop waits after an accept that failed, because descriptors or memory are used up for example.
/// Short enough that clients are accepted within 200 ms once descriptors are free again; long enough that the
/// attempts cost nothing.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Accepts connections from `listener` until `stop` is given, and runs `serve` for each in a task of its own.
/// While it runs, the connection holds a permit of `limit` and is registered in `connections`.
///
/// A client whose request came with it is usually answered at once, however many connections have work: `serve` is polled
/// [once](owned_io::Executor::spawn_eager) before the next client is accepted. These polls have a bound together. Clients
/// beyond it are served in their turn.
///
/// A connection that fails, or whose task panics, ends alone. A connection over the limit of its address is
/// reset at once. No error of accept(2) ends the loop. What clients can cause is logged at most once a second,
/// with the number of lines that were suppressed.
pub async fn accept_loop<R: Runtime, E: Into<Box<dyn Error>>>(
    mut listener: R::TcpListener,
    limit: ConnectionLimit,
    connections: Connections,
    stop: &StopSignal,
    serve: impl AsyncFn(R::TcpStream, ConnectionHandle) -> Result<(), E> + 'static,
) {
    let serve = Rc::new(serve);
    let mut refusal_log = LogLimit::default();
    let accept = async || listener.accept().await;
    let metrics = connections.metrics();
    accept_each::<R, _>(accept, &limit, metrics, stop, |stream, peer, mut permit| {
        if limit.assign(&mut permit, peer.ip()) {
            spawn::<R, E, _>(stream, peer, (permit, None), &connections, &serve);
        } else {
            refuse::<R>(&stream, peer, metrics, &mut refusal_log);
        }
    })
    .await;
}

/// [`accept_loop`] that hands each connection over to the worker that has the fewest. `adopter` serves those that stay
/// here.
pub(crate) async fn balanced_accept_loop<R: Runtime + HandOver, E: Into<Box<dyn Error>>, S>(
    mut listener: R::TcpListener,
    outgoing: Outgoing<R>,
    stop: &StopSignal,
    mut adopter: Adopter<S>,
) where
    S: AsyncFn(R::TcpStream, ConnectionHandle) -> Result<(), E> + 'static,
{
    let (limit, connections) = (adopter.limit.clone(), adopter.connections.clone());
    let mut refusal_log = LogLimit::default();
    let accept = async || R::accept_detached(&mut listener).await;
    let metrics = connections.metrics();
    accept_each::<R, _>(accept, &limit, metrics, stop, |connection, peer, mut permit| {
        if limit.assign(&mut permit, peer.ip()) {
            if let Some(kept) = outgoing.hand_over(connection, peer, permit) {
                adopter.adopt::<R, E>(kept);
            }
        } else {
            // A stream can be reset. What is only dropped is closed as if it had been served.
            match R::adopt(connection) {
                Ok(stream) => refuse::<R>(&stream, peer, metrics, &mut refusal_log),
                Err(error) => adopter.failed::<R>(&error),
            }
        }
    })
    .await;
}

/// Serves what is handed over to this worker, until no worker accepts any more. After the stop signal, the connections
/// that were on their way are still served, and close as others do in the [drain](crate::drain).
///
/// It lets other tasks run only when it has used up the [budget](owned_io::coop) of a poll by taking connections from
/// the queue. So it begins at most as many as the queue has room for, and what arrives meanwhile. The polls of
/// [`accept_loop`] for new clients are the same here.
pub(crate) async fn adopt_loop<R: Runtime + HandOver, E: Into<Box<dyn Error>>, S>(
    mut incoming: Receiver<HandedOver<R>>,
    mut adopter: Adopter<S>,
) where
    S: AsyncFn(R::TcpStream, ConnectionHandle) -> Result<(), E> + 'static,
{
    while let Some(handed) = incoming.receive::<R>().await {
        adopter.adopt::<R, E>(handed);
    }
}

/// Serves connections that any worker has accepted, in tasks of this one.
pub(crate) struct Adopter<S> {
    limit: ConnectionLimit,
    connections: Connections,
    serve: Rc<S>,
    failure_log: LogLimit,
}

impl<S> Adopter<S> {
    pub(crate) fn new(limit: &ConnectionLimit, connections: &Connections, serve: &Rc<S>) -> Self {
        let (limit, connections, serve) = (limit.clone(), connections.clone(), Rc::clone(serve));
        Self { limit, connections, serve, failure_log: LogLimit::default() }
    }

    fn adopt<R: Runtime + HandOver, E: Into<Box<dyn Error>>>(&mut self, handed: HandedOver<R>)
    where
        S: AsyncFn(R::TcpStream, ConnectionHandle) -> Result<(), E> + 'static,
    {
        let HandedOver { connection, peer, permit, assignment } = handed;
        let held = (self.limit.adopt(permit), Some(assignment));
        match R::adopt(connection) {
            Ok(stream) => spawn::<R, E, S>(stream, peer, held, &self.connections, &self.serve),
            Err(error) => self.failed::<R>(&error),
        }
    }

    /// A connection was closed, because the runtime could not register it.
    fn failed<R: Clock>(&mut self, error: &io::Error) {
        self.connections.metrics().accept_failed(is_exhaustion(error));
        if let Some(suppressed) = self.failure_log.admit(R::now()) {
            warn!(%error, suppressed, "closed: the runtime cannot serve another connection");
        }
    }
}

/// Accepts clients until `stop` is given, and calls `accepted` for each.
async fn accept_each<R: Clock, C>(
    mut accept: impl AsyncFnMut() -> io::Result<(C, SocketAddr)>,
    limit: &ConnectionLimit,
    metrics: &ConnectionMetrics,
    stop: &StopSignal,
    mut accepted: impl FnMut(C, SocketAddr, Permit),
) {
    let mut failure_log = LogLimit::default();
    let mut is_failing = false;
    // Checked before each accept: while clients wait, `select` finds both futures ready.
    while !stop.is_stopped() {
        // An accept that is dropped has accepted nobody.
        let next = pin!(limit.acquire(accept()));
        let Some((permit, outcome)) = select(next, stop.stopped()).await.first else {
            return;
        };
        match outcome {
            Ok((client, peer)) => {
                if std::mem::take(&mut is_failing) {
                    warn!("accepting again");
                }
                accepted(client, peer, permit);
            }
            // The client has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                let is_exhausted = is_exhaustion(&error);
                metrics.accept_failed(is_exhausted);
                // Failures and accepted clients may alternate, so these lines are limited too.
                if let Some(suppressed) = failure_log.admit(R::now()) {
                    warn!(%error, is_exhausted, suppressed, "cannot accept: clients wait until this is over");
                    is_failing = true;
                }
                R::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Starts a task that serves a connection, and polls it once. Nothing is borrowed here that `serve` may use.
fn spawn<R: Runtime, E: Into<Box<dyn Error>>, S>(
    stream: R::TcpStream,
    peer: SocketAddr,
    held: (Permit, Option<Assignment>),
    connections: &Connections,
    serve: &Rc<S>,
) where
    S: AsyncFn(R::TcpStream, ConnectionHandle) -> Result<(), E> + 'static,
{
    let mut connection = connections.add(stream.shutdown_handle());
    connection.set_peer(peer);
    let serve = Rc::clone(serve);
    // `serve` is called in the task: a future that is moved into a task takes its space twice.
    drop(R::spawn_eager(async move {
        // Until the connection has ended, or its task has panicked. By reference: a variable would take the space again.
        let _held = &held;
        if let Err(error) = serve(stream, connection).await {
            log_end(peer, &*error.into());
        }
    }));
}

/// Resets a connection over the limit of its address.
fn refuse<R: Clock>(
    stream: &impl ByteStream,
    peer: SocketAddr,
    metrics: &ConnectionMetrics,
    log: &mut LogLimit,
) {
    stream.shutdown_handle().abort();
    metrics.refused(Refusal::AddressLimit);
    if let Some(suppressed) = log.admit(R::now()) {
        warn!(addr = %peer.ip(), suppressed, "reset: over connections-per-address-max");
    }
}

fn log_end(peer: SocketAddr, error: &(dyn Error + 'static)) {
    debug!(%peer, error, "connection ended");
}
