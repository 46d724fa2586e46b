//! Admin: the health of the server, its stalls and its metrics, for its operators.
//!
//! | path | answer |
//! |---|---|
//! | `/health` | `ok`; 503 once the server is about to end |
//! | `/stalls` | the last stalls of the workers as JSON, or as a page if the client prefers `text/html` |
//! | `/metrics` | what the server counts, in [Prometheus' text format](crate::metrics) |
//!
//! Its connections count against a limit of their own, [`CONNECTIONS_MAX`]. So it answers however many clients are
//! connected to other listeners, until the last of them has disconnected. Clients that reach this listener can exhaust
//! that limit, so bind it to an address that they cannot reach.

use owned_io::{ByteStream, MemoryBudget, Pool, PoolConfig, Runtime};
use owned_io_websocket::stream::{Buffers, Error, PendingRequest};

use super::http::health;
use super::metrics;
use super::stalls::Answer;
use super::websocket::websocket_config;
use crate::config::Deflate;
use crate::context::Context;

/// How many connections each worker serves at once: enough for a few load balancers, each with a few connections.
pub const CONNECTIONS_MAX: usize = 64;

/// Buffers for [`CONNECTIONS_MAX`] connections.
pub fn buffers() -> Buffers {
    let mut pool = PoolConfig::default();
    pool.leased_max = CONNECTIONS_MAX;
    Buffers::new(Pool::new(pool), MemoryBudget::new(0))
}

/// Serves one connection, which has one request.
///
/// # Errors
/// Errors of the connection, and a bad request.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> Result<(), Error> {
    let buffers = ctx.websocket_buffers();
    let config = websocket_config(Deflate::Off, ctx.worker.limits, 0);
    let pending = PendingRequest::<R, _>::read(stream, &buffers, config).await?;
    let request = pending.request();
    let (status, body) = match (request.method(), request.path()) {
        ("GET" | "HEAD", "/health") => health(&ctx.connection),
        ("GET" | "HEAD", "/stalls") => {
            let answer = Answer::new(&ctx.worker.stalls, request.header("accept"));
            return pending.respond(answer.status, &answer.headers(), &answer.body).await;
        }
        ("GET" | "HEAD", "/metrics") => match &ctx.worker.all_metrics {
            Some(all) => {
                // Boxed because few connections need it.
                let answer = Box::pin(metrics::Answer::new::<R>(all)).await;
                return pending.respond(answer.status, &answer.headers(), &answer.body).await;
            }
            None => (404, "this server has no metrics\n"),
        },
        ("GET" | "HEAD", _) => (404, "the paths are /health, /stalls and /metrics\n"),
        _ => (405, "only GET and HEAD are allowed\n"),
    };
    let headers: &[_] = if status == 405 { &[("Allow", "GET, HEAD")] } else { &[] };
    pending.respond(status, headers, body.as_bytes()).await
}
