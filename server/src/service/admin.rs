//! Admin: a page about the server, its health, its stalls and its metrics, for its operators.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the [page], which has its figures from the WebSockets `/live` and `/tail` |
//! | `/health` | `ok`; 503 once the server is about to end, or needs a restart to store changes of streams and offsets |
//! | `/stalls` | the last stalls of the workers as JSON, or as a page if the client prefers `text/html` |
//! | `/metrics` | what the server counts, in [Prometheus' text format](crate::metrics) |
//!
//! Its connections count against a limit of their own, [`CONNECTIONS_MAX`]. So it answers however many clients are
//! connected to other listeners, until the last of them has disconnected. Clients that reach this listener can exhaust
//! that limit, so bind it to an address that they cannot reach.

use std::error::Error;
use std::time::Duration;

use owned_io::{Buffers, ByteStream, MemoryBudget, Pool, PoolConfig, Runtime};
use owned_io_http::{Connection, Response};

use super::http::{ANSWERS_BYTES_MIN, health, http_config, respond};
use super::metrics;
use super::page::{self, VIEW_BYTES, VIEWS_MAX};
use super::stalls::Answer;
use crate::connections::CloseMethod;
use crate::context::Context;

/// How many connections each worker serves at once: enough for a few load balancers, each with a few connections.
pub const CONNECTIONS_MAX: usize = 64;

/// How long an operator's client may wait before each request. Prometheus and load balancers ask at least once a
/// minute, and keep their connections.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The share of each connection in the budget, in bytes: for answers that are not written yet. Bodies of more than
/// 1 KiB are sent by reference, and do not count. The copy of a head whose body is awaited may exceed the share. Viewers
/// of the page have more, see [`VIEW_BYTES`].
const SHARE_BYTES: usize = 4 * 1024;

/// Buffers for [`CONNECTIONS_MAX`] connections.
pub fn buffers() -> Buffers {
    let mut pool = PoolConfig::default();
    pool.leased_max = CONNECTIONS_MAX + 1; // one has a second buffer while its head moves
    let shares_bytes = CONNECTIONS_MAX * SHARE_BYTES;
    let budget = MemoryBudget::new(shares_bytes + VIEWS_MAX * VIEW_BYTES);
    let budget = budget.with_shares(CONNECTIONS_MAX, shares_bytes);
    Buffers::new(Pool::new(pool), budget)
}

/// Serves one connection until either side ends it.
///
/// # Errors
/// Errors of the connection, and a bad request.
pub async fn serve<R: Runtime>(
    stream: impl ByteStream,
    ctx: &Context,
) -> Result<(), Box<dyn Error>> {
    let config = http_config(ctx.worker.limits, IDLE_MAX, ANSWERS_BYTES_MIN);
    let mut connection = Connection::<R, _>::new(stream, &ctx.websocket_buffers(), config);
    ctx.connection.set_close_method(CloseMethod::Http(connection.end_handle()));
    while let Some(request) = connection.next().await? {
        if request.method() == "GET"
            && let Some(path) = page::Path::of(request.path())
            && let Some(metrics) = &ctx.worker.all_metrics
        {
            // Boxed because few connections need it.
            return Ok(Box::pin(page::serve::<R, _>(connection, path, metrics, ctx)).await?);
        }
        let (status, body) = match (request.method(), request.path()) {
            ("GET" | "HEAD", "/") => {
                page::respond(&mut connection).await?;
                continue;
            }
            ("HEAD", "/live" | "/tail") => (426, "this path is a WebSocket\n"),
            ("GET" | "HEAD", "/health") => health(ctx),
            ("GET" | "HEAD", "/stalls") => {
                // An answer counts as being sent while it is queued: see the limit there.
                connection.flush().await?;
                let accept = connection.request().and_then(|request| request.header("accept"));
                let answer = Answer::new(&ctx.worker.stalls, accept);
                let headers = answer.headers();
                let response = Response::new(answer.status).with_headers(&headers);
                connection.respond(&response, answer.body).await?;
                continue;
            }
            ("GET" | "HEAD", "/metrics") => match &ctx.worker.all_metrics {
                Some(all) => {
                    connection.flush().await?; // gathering takes a while
                    // Boxed because few connections need it.
                    let answer = Box::pin(metrics::Answer::new::<R>(all)).await;
                    let headers = answer.headers();
                    let response = Response::new(answer.status).with_headers(&headers);
                    connection.respond(&response, answer.body).await?;
                    continue;
                }
                None => (404, "this server has no metrics\n"),
            },
            ("GET" | "HEAD", _) => (404, "the paths are /, /health, /stalls and /metrics\n"),
            _ => (405, "only GET and HEAD are allowed\n"),
        };
        respond(&mut connection, status, body.into()).await?;
    }
    Ok(())
}
