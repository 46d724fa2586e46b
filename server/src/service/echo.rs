//! Echo: bytes are sent back as they arrive.

use std::io;

use owned_io::{BufResult, ByteStream, IoBufExt, OwnedRead, OwnedWrite, OwnedWriteExt};

use crate::context::Context;

/// Serves one connection until its peer ends it.
///
/// Each read is followed by a write of the same buffer. The buffer then returns to its pool.
///
/// # Errors
/// Errors of the connection. [`TimedOut`](io::ErrorKind::TimedOut) if the [watch](crate::watch) ended it.
pub async fn serve(stream: impl ByteStream, ctx: &Context) -> io::Result<()> {
    let activity = ctx.connection.watched();
    let flow = &ctx.worker.metrics.traffic.echo_tcp;
    let (mut read, mut write) = stream.into_split();
    // Like `owned_io::copy`, but it records its progress. A separate future for the loop would make each poll slower.
    let echoed = loop {
        let buf = match read.read_pooled(&ctx.worker.pool).await {
            Ok(buf) if !buf.is_empty() => buf,
            ended => break ended.map(drop),
        };
        let len = buf.len();
        flow.receive_bytes(len);
        activity.begin_answer();
        let BufResult(mut written, buf) = write.write(buf).await;
        // A short write is rare. `write_all` each time would cost 50 of about 1,200 instructions of an echo on tokio.
        if let Ok(n) = written
            && n < len
        {
            written = write.write_all(buf.buf_slice(n..)).await.0.map(|()| len);
        }
        if let Err(error) = written {
            break Err(error);
        }
        flow.send_bytes(len);
        activity.begin_wait();
    };
    if echoed.is_ok() {
        // Over TCP this sends the FIN, over TLS the close_notify before it. An error means that the peer has disconnected.
        activity.begin_answer();
        let _ = write.shutdown().await;
    }
    activity.outcome(echoed)
}
