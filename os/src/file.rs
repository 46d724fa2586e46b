//! Files: what all kernel backends share, over a type that reads, writes and syncs a descriptor.
//!
//! A backend implements [`FileIo`] by its ring, or names [`Blocking`], which does the same on the pool for blocking
//! closures. Everything else about files is a plain call on that pool, the same on every backend:
//!
//! ```ignore
//! pub type MyFile = owned_io_os::file::File<owned_io_os::file::Blocking<MyRuntime>>;
//!
//! impl Files for MyRuntime {
//!     type File = MyFile;
//!     owned_io_os::runtime_functions!(Files);
//! }
//! ```

mod blocking;
mod paths;

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use owned_io::{BufResult, FILE_OFFSET_MAX, IoBuf, IoBufMut, IoVec, OwnedReadAt, OwnedWriteAt};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstat, ftruncate};

pub use blocking::Blocking;
pub use paths::{create_dir_all, list_dir, open, remove_dir, remove_file, rename, sync_dir};

use crate::{check_written, spawn_blocking};

/// An open file. `I` reads, writes and syncs it.
#[derive(Debug)]
pub struct File<I> {
    io: I,
    fd: Arc<OwnedFd>,
}

/// Reads, writes and syncs of a descriptor.
///
/// An operation that was dropped keeps the descriptor open until it has ended, and its buffer valid.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait FileIo: Debug + Sized + 'static {
    /// Takes an open file. When it is dropped and its operations have ended, it holds no descriptor and no lock.
    ///
    /// # Errors
    /// The runtime's.
    fn register(fd: Arc<OwnedFd>) -> io::Result<Self>;

    /// Reads into `buf` from its start, and sets its exact length. `buf` has capacity, and `offset` is valid. Reads at
    /// most [`FILE_TRANSFER_BYTES_MAX`](owned_io::FILE_TRANSFER_BYTES_MAX) bytes.
    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B>;

    /// Writes the first bytes of `buf`, which is not empty. `offset` is valid. Writes at most
    /// [`FILE_TRANSFER_BYTES_MAX`](owned_io::FILE_TRANSFER_BYTES_MAX) bytes.
    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B>;

    /// Writes the next pieces of `bufs`, and does not advance. Some bytes are left in `bufs`. `offset` is valid.
    async fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> BufResult<usize, IoVec<B>>;

    /// `fdatasync`.
    async fn sync_data(&self) -> io::Result<()>;
}

impl<I: FileIo> File<I> {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let fd = Arc::new(fd);
        Ok(Self { io: I::register(Arc::clone(&fd))?, fd })
    }

    /// Calls `f` on a blocking thread.
    async fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let fd = Arc::clone(&self.fd);
        paths::finished(spawn_blocking(move || f(fd.as_fd()).map_err(io::Error::from))).await
    }
}

impl<I: FileIo> OwnedReadAt for File<I> {
    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        if let Err(error) = check_offset(offset) {
            return BufResult(Err(error), buf);
        }
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        self.io.read_at(buf, offset).await
    }
}

impl<I: FileIo> OwnedWriteAt for File<I> {
    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        if let Err(error) = check_offset(offset) {
            return BufResult(Err(error), buf);
        }
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        let BufResult(result, buf) = self.io.write_at(buf, offset).await;
        BufResult(result.and_then(check_written), buf)
    }

    async fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> BufResult<usize, IoVec<B>> {
        if let Err(error) = check_offset(offset) {
            return BufResult(Err(error), bufs);
        }
        if bufs.bytes_left() == 0 {
            return BufResult(Ok(0), bufs);
        }
        let BufResult(result, mut bufs) = self.io.write_vectored_at(bufs, offset).await;
        let result = result.and_then(check_written);
        if let Ok(n) = result {
            bufs.advance(n);
        }
        BufResult(result, bufs)
    }
}

impl<I: FileIo> owned_io::File for File<I> {
    fn sync_data(&self) -> impl Future<Output = io::Result<()>> {
        self.io.sync_data()
    }

    async fn size(&self) -> io::Result<u64> {
        let size = self.call(|fd| fstat(fd).map(|stat| stat.st_size)).await?;
        Ok(size.try_into().unwrap_or(0)) // no file has a negative length
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        check_offset(len)?;
        self.call(move |fd| ftruncate(fd, len)).await
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        check_offset(len)?;
        if len == 0 {
            return Ok(());
        }
        self.call(move |fd| fallocate(fd, FallocateFlags::KEEP_SIZE, 0, len)).await
    }

    async fn try_lock(&self) -> io::Result<()> {
        self.call(|fd| flock(fd, FlockOperation::NonBlockingLockExclusive)).await
    }
}

fn check_offset(offset: u64) -> io::Result<()> {
    if offset > FILE_OFFSET_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(())
}
