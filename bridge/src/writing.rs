//! Writes buffers, driven by whichever half is polled.

use std::convert::Infallible;
use std::io;

use owned_io::backend::JobSlot;
use owned_io::{BufResult, IoBufExt, OwnedWrite, Slice};

pub(crate) type WriteDriver = owned_io::backend::WriteDriver<Job, Done>;

pub(crate) enum Job {
    Write(Vec<u8>),
    Shutdown,
}

/// The result of a job, and the buffer that was written.
pub(crate) struct Done {
    pub(crate) result: io::Result<()>,
    pub(crate) buf: Option<Vec<u8>>,
}

/// Runs the jobs, and reports each write.
pub(crate) async fn write_each(mut half: impl OwnedWrite, slot: JobSlot<Job, Done>) -> Infallible {
    loop {
        let done = match slot.next().await {
            Job::Write(buf) => write_all(&mut half, buf, &slot).await,
            Job::Shutdown => Done { result: half.shutdown().await, buf: None },
        };
        slot.finish(done);
    }
}

async fn write_all(half: &mut impl OwnedWrite, buf: Vec<u8>, slot: &JobSlot<Job, Done>) -> Done {
    let BufResult(mut written, mut buf) = half.write(buf).await;
    let mut at = 0;
    let result = loop {
        match written {
            Ok(n) if at + n == buf.len() => break Ok(()),
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => at += n,
            Err(error) => break Err(error),
        }
        slot.progress();
        let rest = half.write(buf.buf_slice(at..)).await;
        BufResult(written, buf) = rest.map_buf(Slice::into_inner);
    };
    Done { result, buf: Some(buf) }
}
