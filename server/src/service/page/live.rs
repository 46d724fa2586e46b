//! `/live`: the figures of the server, each second.

use std::pin::pin;
use std::time::Duration;

use owned_io::{OwnedRead, Runtime};
use owned_io_websocket::CloseFrame;
use owned_io_websocket::stream::{CloseHandle, Error, Incoming, Outgoing};

use super::send;
use crate::context::Context;
use crate::metrics::Metrics;
use crate::service::tail::ignore_messages;
use crate::service::websocket::while_receiving;

/// From one snapshot to the next. Its timer costs the worker of a viewer a little for each wait for I/O, see
/// [`Ticker`](crate::ticker::Ticker), and the others nothing.
const PUSH_PERIOD: Duration = Duration::from_secs(1);

/// Serves one viewer until either side closes the WebSocket.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the viewer does not read.
pub(super) async fn serve<R: Runtime>(
    incoming: &mut Incoming<impl OwnedRead>,
    outgoing: &mut Outgoing,
    handle: &CloseHandle,
    metrics: &Metrics,
    ctx: &Context,
) -> Result<(), Error> {
    let close = |frame: CloseFrame<'_>| {
        let _ = handle.close(frame); // an error: it is closing already
    };
    let receiving = pin!(ignore_messages(incoming, close, "a viewer only listens"));
    let pushing = pin!(async {
        // Each round waits for the viewer, and for the time.
        loop {
            let snapshot = metrics.views().last.get::<R>(metrics, ctx).await;
            send(outgoing, snapshot).await?;
            R::sleep(PUSH_PERIOD).await;
        }
    });
    while_receiving(receiving, pushing).await
}
