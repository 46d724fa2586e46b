//! The accept loop. It serves as many connections as the limit allows, and only the stop signal ends it.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{ByteStream, Runtime, StopSignal, TcpListener, is_exhaustion, select};
use tracing::{debug, warn};

use crate::connection_limit::ConnectionLimit;
use crate::connections::{ConnectionHandle, Connections};
use crate::log_limit::LogLimit;
use crate::metrics::Refusal;

/// How long the loop waits after an accept that failed, because descriptors or memory are used up for example.
/// Short enough that clients are accepted within 200 ms once descriptors are free again; long enough that the
/// attempts cost nothing.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Accepts connections from `listener` until `stop` is given, and runs `serve` for each in a task of its own.
/// While it runs, the connection holds a permit of `limit` and is registered in `connections`.
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
    let (mut failure_log, mut refusal_log) = (LogLimit::default(), LogLimit::default());
    let mut is_failing = false;
    // Checked before each accept: while clients wait, `select` finds both futures ready.
    while !stop.is_stopped() {
        // An accept that is dropped has accepted nobody.
        let next = pin!(limit.acquire(listener.accept()));
        let Some((mut permit, accepted)) = select(next, stop.stopped()).await.first else {
            return;
        };
        match accepted {
            Ok((stream, peer)) => {
                if std::mem::take(&mut is_failing) {
                    warn!("accepting again");
                }
                if !limit.assign(&mut permit, peer.ip()) {
                    stream.shutdown_handle().abort();
                    connections.metrics().refused(Refusal::AddressLimit);
                    if let Some(suppressed) = refusal_log.admit(R::now()) {
                        warn!(addr = %peer.ip(), suppressed, "reset: over connections-per-address-max");
                    }
                    continue;
                }
                let mut connection = connections.add(stream.shutdown_handle());
                connection.set_peer(peer);
                let serve = Rc::clone(&serve);
                // `serve` is called in the task: a future that is moved into a task takes its space twice.
                drop(R::spawn(async move {
                    let _permit = permit; // until the connection has ended, or its task has panicked
                    if let Err(error) = serve(stream, connection).await {
                        log_end(peer, &*error.into());
                    }
                }));
            }
            // The client has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                let is_exhausted = is_exhaustion(&error);
                connections.metrics().accept_failed(is_exhausted);
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

fn log_end(peer: SocketAddr, error: &(dyn Error + 'static)) {
    debug!(%peer, error, "connection ended");
}
