//! Echo: bytes are sent back as they arrive.

use std::io;

use owned_io::{ByteStream, IoBuf, IoBufExt, OwnedRead, OwnedWrite, OwnedWriteExt, Pool};

use crate::context::Context;
use crate::watch::Activity;

/// Serves one connection until its peer ends it.
///
/// Each read is followed by a write of the same buffer, which goes back to its pool afterwards.
///
/// # Errors
/// Those of the connection. [`TimedOut`](io::ErrorKind::TimedOut) if the [watch](crate::watch) ended it.
pub async fn serve(stream: impl ByteStream, ctx: &Context) -> io::Result<()> {
    let activity = ctx.connection.watched();
    let (mut read, mut write) = stream.into_split();
    let echoed = echo(&mut read, &mut write, &ctx.worker.echo_pool, &activity).await;
    if echoed.is_ok() {
        // Over TLS the end needs a close_notify. An error means that the peer has gone.
        let _ = write.shutdown().await;
    }
    activity.outcome(echoed)
}

/// As [`copy`](owned_io::copy), but reports its progress to `activity`.
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
        // A short write is rare. `write_all` every time would cost 50 of some 1,200 instructions an echo on tokio.
        if n < len {
            write.write_all(buf.buf_slice(n..)).await.into_result()?;
        }
        activity.read();
    }
}
