//! Operations of files on the ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, types};
use owned_io::{BufResult, FILE_TRANSFER_BYTES_MAX, IoBuf, IoBufMut, IoVec};

use super::submit;

/// Reads into `buf` from its start, and sets its exact length. `buf` has capacity.
pub(crate) async fn read_at<B: IoBufMut>(
    fd: &Arc<OwnedFd>,
    mut buf: B,
    offset: u64,
) -> BufResult<usize, B> {
    let len = transfer_len(buf.buf_capacity());
    let entry = opcode::Read::new(target(fd), buf.buf_mut_ptr(), len).offset(offset).build();
    // SAFETY: 1. It writes at most `len` bytes, within the capacity, to the buffer's memory, which stays where it is
    // while the buffer moves (rule 2 of `IoBufMut`). 2. and 3. The descriptor and the buffer are held.
    let op = unsafe { submit(entry, (Arc::clone(fd), buf)) };
    let (result, (_fd, mut buf)) = op.await;
    if let Ok(n) = result {
        // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
        unsafe { buf.set_buf_len(n) };
    }
    BufResult(result, buf)
}

/// Writes the first bytes of `buf`, which is not empty.
pub(crate) async fn write_at<B: IoBuf>(
    fd: &Arc<OwnedFd>,
    buf: B,
    offset: u64,
) -> BufResult<usize, B> {
    let len = transfer_len(buf.buf_len());
    let entry = opcode::Write::new(target(fd), buf.buf_ptr(), len).offset(offset).build();
    // SAFETY: 1. It reads `len` initialised bytes, which stay where they are while the buffer moves (rule 2 of
    // `IoBuf`). 2. and 3. The descriptor and the buffer are held.
    let op = unsafe { submit(entry, (Arc::clone(fd), buf)) };
    let (result, (_fd, buf)) = op.await;
    BufResult(result, buf)
}

/// Writes the next pieces of `bufs`. Some bytes are left in `bufs`.
pub(crate) async fn write_vectored_at<B: IoBuf>(
    fd: &Arc<OwnedFd>,
    bufs: IoVec<B>,
    offset: u64,
) -> BufResult<usize, IoVec<B>> {
    let pieces = bufs.as_io_slices_within(FILE_TRANSFER_BYTES_MAX);
    let write = opcode::Writev::new(target(fd), pieces.as_ptr().cast(), pieces.len() as u32);
    let entry = write.offset(offset).build();
    // SAFETY: 1. It reads the pieces, an array of `iovec` (`IoSlice` has its layout) over initialised bytes. Array and
    // bytes stay where they are while the `IoVec` moves, and nothing changes them meanwhile. 2. and 3. The descriptor
    // and the `IoVec` are held.
    let op = unsafe { submit(entry, (Arc::clone(fd), bufs)) };
    let (result, (_fd, bufs)) = op.await;
    BufResult(result, bufs)
}

/// Makes the contents durable.
pub(crate) async fn sync_data(fd: &Arc<OwnedFd>) -> io::Result<()> {
    let entry = opcode::Fsync::new(target(fd)).flags(types::FsyncFlags::DATASYNC).build();
    // SAFETY: 1. It uses no memory. 2. The descriptor is held. 3. Nothing else is used.
    let op = unsafe { submit(entry, Arc::clone(fd)) };
    op.await.0.map(drop)
}

fn target(fd: &Arc<OwnedFd>) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn transfer_len(len: usize) -> u32 {
    len.min(FILE_TRANSFER_BYTES_MAX) as u32
}
