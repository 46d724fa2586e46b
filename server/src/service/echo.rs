//! Echo: what arrives goes back, as it arrives.

use std::io;

use owned_io::{ByteStream, IoBuf, IoBufExt, OwnedRead, OwnedWrite, OwnedWriteExt, Pool};

use crate::context::Context;
use crate::watch::Activity;

/// Serves one connection until its peer ends it.
///
/// Cut-through: one read, one write, through a buffer of the pool that is held only meanwhile.
///
/// # Errors
/// The connection's; [`TimedOut`](io::ErrorKind::TimedOut) when the [watch](crate::watch) ended it.
pub async fn serve(stream: impl ByteStream, ctx: &Context) -> io::Result<()> {
    let activity = ctx.connection.watched();
    let (mut read, mut write) = stream.into_split();
    let echoed = echo(&mut read, &mut write, &ctx.worker.echo_pool, &activity).await;
    if echoed.is_ok() {
        // Over TLS an end has to be said. Who is gone need not hear it.
        let _ = write.shutdown().await;
    }
    activity.outcome(echoed)
}

/// As [`copy`](owned_io::copy), but tells of each turn.
async fn echo(
    read: &mut impl OwnedRead,
    write: &mut impl OwnedWrite,
    pool: &Pool,
    activity: &Activity,
) -> io::Result<()> {
    loop {
        let buf = read.read_pooled(pool).await?;
        let len = buf.buf_len();
        if len == 0 {
            return Ok(());
        }
        activity.write();
        let (n, buf) = write.write(buf).await.into_result()?;
        // Rarely: a `write_all` of each would take 50 instructions more an echo, of 1,200 on tokio.
        if n < len {
            write.write_all(buf.buf_slice(n..)).await.into_result()?;
        }
        activity.read();
    }
}
