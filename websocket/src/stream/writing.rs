//! Writes batches, driven by whichever half is polled.

use std::convert::Infallible;
use std::{io, mem};

use owned_io::backend::JobSlot;
use owned_io::{BufResult, IoBufExt, OwnedWrite, Slice, coop};

use super::queue::Batch;

pub(super) type WriteDriver = owned_io::backend::WriteDriver<Job, Done>;

pub(super) enum Job {
    Write(Batch),
    Shutdown,
}

/// The result of a job, and the batch that was written.
pub(super) struct Done {
    pub(super) result: io::Result<()>,
    pub(super) batch: Option<Batch>,
}

/// Like `write_all` and `write_all_vectored`, but reports each write. Each job comes with the half that
/// it is for. It is one function, because each future around another adds its part to every poll.
#[expect(clippy::manual_async_fn, reason = "an async function keeps its arguments twice")]
pub(super) fn write_batches<H: OwnedWrite>(
    slot: JobSlot<(H, Job), (H, Done)>,
) -> impl Future<Output = Infallible> {
    async move {
        loop {
            let (mut half, job) = slot.next().await;
            let (result, batch) = match job {
                Job::Write(Batch::Single(buf)) => {
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
                    (result, Some(Batch::Single(buf)))
                }
                Job::Write(Batch::Published(segment, is_compressed)) => {
                    let bytes = segment.bytes(is_compressed);
                    let mut at = 0;
                    // Most subscribers have room, and all of them are written to from the same memory. Such a write does
                    // not yield, so a poll that has done its work leaves the next batch to one that does.
                    let mut written = match coop::has_budget() {
                        true => half.try_write(bytes),
                        false => Err(io::ErrorKind::WouldBlock.into()),
                    };
                    if written
                        .as_ref()
                        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
                    {
                        written = half.write(bytes.clone()).await.0;
                    }
                    let result = loop {
                        match written {
                            Ok(n) if at + n == bytes.len() => break Ok(()),
                            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                            Ok(n) => at += n,
                            Err(error) => break Err(error),
                        }
                        slot.progress();
                        written = half.write(bytes.slice(at..)).await.0;
                    };
                    (result, Some(Batch::Published(segment, is_compressed)))
                }
                Job::Write(Batch::Vectored(mut array)) => {
                    let mut bufs = mem::take(&mut *array);
                    let result = loop {
                        if bufs.bytes_left() == 0 {
                            break Ok(());
                        }
                        let written;
                        BufResult(written, bufs) = half.write_vectored(bufs).await;
                        match written {
                            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                            Ok(_) => slot.progress(),
                            Err(error) => break Err(error),
                        }
                    };
                    *array = bufs;
                    (result, Some(Batch::Vectored(array)))
                }
                Job::Shutdown => (half.shutdown().await, None),
            };
            slot.finish((half, Done { result, batch }));
        }
    }
}
