//! Admin: the health of the server, for its operators.
//!
//! | path | |
//! |---|---|
//! | `/health` | `ok`; 503 once the server is about to end |
//!
//! It has a connection limit of its own, [`CONNECTIONS_MAX`], so it answers however many clients there are. It
//! answers until the last of their connections has ended. Whoever can reach it can use that limit up: bind it
//! to an address that clients cannot reach.

use owned_io::{ByteStream, MemoryBudget, Pool, PoolConfig, Runtime};
use owned_io_websocket::Config;
use owned_io_websocket::stream::{Buffers, Error, PendingRequest};

use super::http::health;
use crate::context::Context;

/// How many each worker serves at once: a load balancer or two, each with a few connections.
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
/// Those of the connection, and of a bad request.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> Result<(), Error> {
    let buffers = ctx.websocket_buffers();
    let pending = PendingRequest::<R, _>::read(stream, &buffers, Config::default()).await?;
    let request = pending.request();
    let (status, body) = match (request.method(), request.path()) {
        ("GET" | "HEAD", "/health") => health(&ctx.connection),
        ("GET" | "HEAD", _) => (404, "there is /health\n"),
        _ => (405, "there are GET and HEAD alone\n"),
    };
    let headers: &[_] = if status == 405 { &[("Allow", "GET, HEAD")] } else { &[] };
    pending.respond(status, headers, body.as_bytes()).await
}
