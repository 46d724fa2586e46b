//! The accept loop: as many connections as there are places, and no end to it but the stop signal.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{ByteStream, Runtime, StopSignal, TcpListener, beside, is_exhaustion};
use tracing::{debug, warn};

use crate::connections::{Connections, Entry};
use crate::places::Places;
use crate::repeated::Repeated;

/// How long to wait when nobody can be accepted: descriptors or memory are used up, say. Short enough
/// that clients are taken again within 200 ms of there being some; long enough that asking costs
/// nothing.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Serves each connection of `listener`, in a task of its own, until `stop` is given: has `open` make of
/// it what `serve` is for. Meanwhile it has one of `places` and is among `connections`.
///
/// A connection that fails, or whose task panics, ends alone; one too many of its address is reset at
/// once. No error of accept(2) ends the loop. What clients can cause is logged at most once a second, with
/// how often it was not.
pub async fn accept_loop<R: Runtime, S, E: Error + 'static>(
    mut listener: R::TcpListener,
    places: Places,
    connections: Connections,
    stop: &StopSignal,
    open: impl AsyncFn(R::TcpStream, Entry) -> io::Result<S> + 'static,
    serve: impl AsyncFn(S, Entry) -> Result<(), E> + 'static,
) {
    let service = Rc::new(Service { open, serve });
    let (mut failing, mut turning_away) = (Repeated::default(), Repeated::default());
    let mut is_failing = false;
    // Asked each time: while clients are there, beside finds both ready.
    while !stop.is_stopped() {
        // An accept that is dropped has taken nobody.
        let next = pin!(places.take_for(listener.accept()));
        let Some((mut place, accepted)) = beside(next, stop.stopped()).await.pinned else {
            return;
        };
        match accepted {
            Ok((stream, peer)) => {
                if std::mem::take(&mut is_failing) {
                    warn!("accepting again");
                }
                if !places.give_to(&mut place, peer.ip()) {
                    stream.shutdown_handle().abort();
                    if let Some(unsaid) = turning_away.say(R::now()) {
                        warn!(addr = %peer.ip(), unsaid, "over connections-per-address-max: turned away");
                    }
                    continue;
                }
                let connection = connections.add(stream.shutdown_handle());
                let service = Rc::clone(&service);
                // Called in the task: a future that is moved into one takes its place twice there.
                drop(R::spawn(async move {
                    // Both until it is served, or its task has panicked.
                    let (_place, connection) = (place, connection);
                    let stream = match (service.open)(stream, connection.entry()).await {
                        Ok(stream) => stream,
                        Err(error) => return log_end(peer, &error),
                    };
                    if let Err(error) = (service.serve)(stream, connection.entry()).await {
                        log_end(peer, &error);
                    }
                }));
            }
            // The client has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Between two failures one client may get in, again and again.
                if let Some(unsaid) = failing.say(R::now()) {
                    let is_exhausted = is_exhaustion(&error);
                    warn!(%error, is_exhausted, unsaid, "cannot accept: clients wait until this is over");
                    is_failing = true;
                }
                R::sleep(BACK_OFF).await;
            }
        }
    }
}

/// What opens a connection that is served as it came.
///
/// # Errors
/// None.
pub async fn as_it_came<S>(stream: S, _: Entry) -> io::Result<S> {
    Ok(stream)
}

/// What is done with each connection.
struct Service<O, S> {
    open: O,
    serve: S,
}

fn log_end(peer: SocketAddr, error: &(dyn Error + 'static)) {
    debug!(%peer, error, "connection ended");
}
