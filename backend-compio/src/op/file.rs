//! Operations of files on the ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use compio_driver::{OpCode, OpEntry};
use compio_runtime::submit;
use io_uring::{opcode, types};
use owned_io::{BufResult, FILE_TRANSFER_BYTES_MAX, IoBuf, IoBufMut, IoVec};

use super::{Tracked, os_error};

/// Reads into `buf` from its start, and sets its exact length. `buf` has capacity.
pub(crate) async fn read_at<B: IoBufMut>(
    fd: &Arc<OwnedFd>,
    buf: B,
    offset: u64,
) -> BufResult<usize, B> {
    let op = ReadAt { fd: Arc::clone(fd), buf, offset };
    let (result, Tracked(op)) = submit(Tracked(op)).await.into();
    let mut buf = op.buf;
    let result = result.map_err(os_error);
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
    let op = WriteAt { fd: Arc::clone(fd), buf, offset };
    let (result, Tracked(op)) = submit(Tracked(op)).await.into();
    BufResult(result.map_err(os_error), op.buf)
}

/// Writes the next pieces of `bufs`. Some bytes are left in `bufs`.
pub(crate) async fn write_vectored_at<B: IoBuf>(
    fd: &Arc<OwnedFd>,
    bufs: IoVec<B>,
    offset: u64,
) -> BufResult<usize, IoVec<B>> {
    let op = WriteVectoredAt { fd: Arc::clone(fd), bufs, offset };
    let (result, Tracked(op)) = submit(Tracked(op)).await.into();
    BufResult(result.map_err(os_error), op.bufs)
}

/// Makes the contents durable.
pub(crate) async fn sync_data(fd: &Arc<OwnedFd>) -> io::Result<()> {
    let op = SyncData { fd: Arc::clone(fd) };
    submit(Tracked(op)).await.0.map(drop).map_err(os_error)
}

/// `READ`.
struct ReadAt<B> {
    fd: Arc<OwnedFd>,
    buf: B,
    offset: u64,
}

// SAFETY: the entry is valid until the operation completes. It names the descriptor, which the operation holds. It
// points to memory of the buffer that may be written (rule 1 of `IoBufMut`) and that stays where it is (rule 2) until
// the operation gives the buffer back.
unsafe impl<B: IoBufMut> OpCode for ReadAt<B> {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let len = transfer_len(self.buf.buf_capacity());
        let fd = types::Fd(self.fd.as_raw_fd());
        opcode::Read::new(fd, self.buf.buf_mut_ptr(), len).offset(self.offset).build().into()
    }
}

/// `WRITE`.
struct WriteAt<B> {
    fd: Arc<OwnedFd>,
    buf: B,
    offset: u64,
}

// SAFETY: the entry is valid until the operation completes. It names the descriptor, which the operation holds. It
// points to initialised bytes of the buffer (rule 1 of `IoBuf`), which stay where and as they are (2 and 4) until the
// operation gives the buffer back.
unsafe impl<B: IoBuf> OpCode for WriteAt<B> {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let len = transfer_len(self.buf.buf_len());
        let fd = types::Fd(self.fd.as_raw_fd());
        opcode::Write::new(fd, self.buf.buf_ptr(), len).offset(self.offset).build().into()
    }
}

/// `WRITEV`.
struct WriteVectoredAt<B> {
    fd: Arc<OwnedFd>,
    bufs: IoVec<B>,
    offset: u64,
}

// SAFETY: the entry is valid until the operation completes. It names the descriptor, which the operation holds. It
// points to the pieces, an array of `iovec` (`IoSlice` has its layout) over initialised bytes. Array and bytes keep
// their address, and nothing changes them meanwhile.
unsafe impl<B: IoBuf> OpCode for WriteVectoredAt<B> {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let pieces = self.bufs.as_io_slices_within(FILE_TRANSFER_BYTES_MAX);
        let fd = types::Fd(self.fd.as_raw_fd());
        let write = opcode::Writev::new(fd, pieces.as_ptr().cast(), pieces.len() as u32);
        write.offset(self.offset).build().into()
    }
}

/// `FSYNC` of the data.
struct SyncData {
    fd: Arc<OwnedFd>,
}

// SAFETY: the entry is valid until the operation completes. It names the descriptor, which the operation holds, and
// points to nothing.
unsafe impl OpCode for SyncData {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let sync = opcode::Fsync::new(types::Fd(self.fd.as_raw_fd()));
        sync.flags(types::FsyncFlags::DATASYNC).build().into()
    }
}

fn transfer_len(len: usize) -> u32 {
    len.min(FILE_TRANSFER_BYTES_MAX) as u32
}
