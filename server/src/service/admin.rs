//! Admin: how the server is, for those who run it.
//!
//! | path | |
//! |---|---|
//! | `/health` | `ok`; 503 once the server is about to end |
//!
//! It has places of its own, [`PLACES`], so that it answers however many clients there are; and it answers
//! until the last of their connections has ended. Whoever can reach it can take those places: it belongs on
//! an address that clients cannot reach.

use owned_io::{ByteStream, MemoryBudget, Pool, PoolConfig, Runtime};
use owned_io_websocket::Config;
use owned_io_websocket::stream::{Buffers, Error, Pending};

use super::http::health;
use crate::context::Context;

/// How many are served at once by each worker: a load balancer or two, each with a few connections.
pub const PLACES: usize = 64;

/// Buffers for as many.
pub fn buffers() -> Buffers {
    let mut pool = PoolConfig::default();
    pool.leased_max = PLACES;
    Buffers::new(Pool::new(pool), MemoryBudget::new(0))
}

/// Serves one connection: one request.
///
/// # Errors
/// The connection's, and those of a bad request.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> Result<(), Error> {
    let buffers = ctx.websocket_buffers();
    let pending = Pending::<R, _>::read(stream, &buffers, Config::default()).await?;
    let request = pending.request();
    let (status, body) = match (request.method(), request.path()) {
        ("GET" | "HEAD", "/health") => health(&ctx.connection),
        ("GET" | "HEAD", _) => (404, "there is /health\n"),
        _ => (405, "there are GET and HEAD alone\n"),
    };
    let headers: &[_] = if status == 405 { &[("Allow", "GET, HEAD")] } else { &[] };
    pending.respond(status, headers, body.as_bytes()).await
}
