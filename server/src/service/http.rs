//! HTTP: whether the server is well, and upgrades to WebSocket.
//!
//! | path | |
//! |---|---|
//! | `/health` | `ok` |
//! | `/echo` | a WebSocket: see [`websocket::echo`] |
//! | `/sink` | a WebSocket: see [`websocket::sink`] |
//! | `/source?messages=N&bytes=S&batch=B` | a WebSocket: see [`websocket::source`] |
//!
//! One request for each connection: what is no upgrade is answered, and the connection closed.

use owned_io::{ByteStream, Runtime};
use owned_io_websocket::Config;
use owned_io_websocket::handshake::Origins;
use owned_io_websocket::stream::{Buffers, Error, Pending, WebSocket};

use super::source::Pattern;
use super::websocket::{self, Messages};
use crate::config::Limits;
use crate::connections::{Ending, Entry};

/// What the queue of a connection may hold beyond a message: the echoes of what came in one read.
const QUEUE_BYTES_SPARE: usize = 64 * 1024;

/// Serves one connection until either side ends it.
///
/// # Errors
/// The handshake's, and the service's.
pub async fn serve<R: Runtime>(
    stream: impl ByteStream,
    entry: Entry,
    buffers: Buffers,
    pattern: Pattern,
    limits: Limits,
) -> Result<(), Error> {
    let pending = Pending::<R, _>::read(stream, &buffers, config(limits)).await?;
    match pending.request().path() {
        "/health" => pending.refuse(200, &[], b"ok\n").await,
        "/echo" => websocket::echo::<R>(accept(pending, entry).await?, limits).await,
        "/sink" => websocket::sink::<R>(accept(pending, entry).await?, limits).await,
        "/source" => match Messages::parse(pending.request().query(), limits.message_bytes_max) {
            Ok(messages) => {
                let socket = accept(pending, entry).await?;
                websocket::source::<R>(socket, messages, &pattern, limits).await
            }
            Err(why) => pending.refuse(400, &[], why.as_bytes()).await,
        },
        _ => pending.refuse(404, &[], b"there are /health, /echo, /sink and /source\n").await,
    }
}

async fn accept<R: Runtime, S: ByteStream>(
    pending: Pending<R, S>,
    entry: Entry,
) -> Result<WebSocket<S>, Error> {
    let socket = pending.accept(Origins::Any, None, &[]).await?;
    entry.set(Ending::WebSocket(socket.outgoing.close_handle()));
    Ok(socket)
}

fn config(limits: Limits) -> Config {
    let mut config = Config::default();
    config.frame_bytes_max = limits.message_bytes_max;
    config.message_bytes_max = limits.message_bytes_max;
    config.queue_bytes_max = limits.message_bytes_max + QUEUE_BYTES_SPARE;
    config
}
