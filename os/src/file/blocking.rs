//! [`Blocking`]: reads and writes on a blocking thread, of buffers that never leave their own thread. What is in the page
//! cache is read without one.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use owned_io::{
    BufResult, Clock, FILE_TRANSFER_BYTES_MAX, IoBuf, IoBufMut, IoVec, TRANSFER_BYTES_MAX, coop,
};
use rustix::fs::fdatasync;
use rustix::io::{pread, pwrite, pwritev, retry_on_intr};

use super::FileIo;
use super::paths::finished;
use crate::spawn_blocking;

/// A [`FileIo`] for runtimes without operations for files: each is a system call on a blocking thread.
///
/// A buffer need not be `Send`. It stays on its thread, and the blocking thread gets a pointer to its bytes. The buffer
/// of a dropped operation is kept until the call has ended. The first operation that begins on the thread after that
/// frees it. When the thread ends earlier, the buffer leaks.
///
/// A read first takes what is in the page cache, by a call that does not wait for the disk: at most
/// [`TRANSFER_BYTES_MAX`] bytes, as a read of a socket, and within the [budget](coop) of the poll. `C` is the clock of the
/// runtime: a task whose budget is used up yields by a sleep of zero.
#[derive(Debug)]
pub struct Blocking<C> {
    fd: Arc<OwnedFd>,
    /// The file system has refused a read that does not wait.
    always_waits: Cell<bool>,
    clock: PhantomData<fn() -> C>,
}

impl<C: Clock + Debug + 'static> FileIo for Blocking<C> {
    fn register(fd: Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self { fd, always_waits: Cell::new(false), clock: PhantomData })
    }

    async fn read_at<B: IoBufMut>(&self, mut buf: B, offset: u64) -> BufResult<usize, B> {
        if !self.always_waits.get() {
            coop::yield_if_exhausted::<C>().await;
            if let Some(n) = self.read_cached(&mut buf, offset) {
                free_ended();
                return BufResult(Ok(n), buf);
            }
        }
        let len = buf.buf_capacity().min(FILE_TRANSFER_BYTES_MAX);
        let room = Pointer(buf.buf_mut_ptr().cast::<MaybeUninit<u8>>());
        let read = move |fd: BorrowedFd<'_>| {
            // SAFETY: `len` bytes from the pointer on may be written (rule 1 of `IoBufMut`). `held` keeps the buffer
            // until the call has ended, and nothing else uses it. It moves meanwhile, its bytes do not (rule 2).
            let room = unsafe { slice::from_raw_parts_mut(room.get(), len) };
            let read = || pread(fd, &mut *room, offset).map(|(read, _)| read.len());
            Ok(retry_on_intr(read)?)
        };
        let BufResult(result, mut buf) = self.call(buf, read).await;
        if let Ok(n) = result {
            // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
            unsafe { buf.set_buf_len(n) };
        }
        BufResult(result, buf)
    }

    fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> impl Future<Output = BufResult<usize, B>> {
        let len = buf.buf_len().min(FILE_TRANSFER_BYTES_MAX);
        let bytes = Pointer(buf.buf_ptr().cast_mut());
        let write = move |fd: BorrowedFd<'_>| {
            // SAFETY: `len` bytes from the pointer on are initialised (rule 1 of `IoBuf`). `held` keeps the buffer
            // until the call has ended. It moves meanwhile, its bytes do not, and nothing changes them (2 and 4).
            let bytes = unsafe { slice::from_raw_parts(bytes.get(), len) };
            Ok(retry_on_intr(|| pwrite(fd, bytes, offset))?)
        };
        self.call(buf, write)
    }

    fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, IoVec<B>>> {
        let pieces = bufs.as_io_slices_within(FILE_TRANSFER_BYTES_MAX);
        let count = pieces.len();
        let pieces = Pointer(pieces.as_ptr().cast_mut().cast::<IoSlice<'static>>());
        let write = move |fd: BorrowedFd<'_>| {
            // SAFETY: the array and the bytes that it names keep their address while the `IoVec` moves. `held` keeps
            // the `IoVec` until the call has ended, and nothing changes it meanwhile.
            let pieces = unsafe { slice::from_raw_parts(pieces.get(), count) };
            Ok(retry_on_intr(|| pwritev(fd, pieces, offset))?)
        };
        self.call(bufs, write)
    }

    async fn sync_data(&self) -> io::Result<()> {
        let fd = Arc::clone(&self.fd);
        finished(spawn_blocking(move || Ok(fdatasync(&fd)?))).await
    }
}

impl<C> Blocking<C> {
    /// Reads what the page cache has, and sets the length of `buf`. `None`: the next bytes are not in the cache, the file
    /// ends here, or the call has failed. The call on the blocking thread finds out which: Linux 5.9 and 5.10 may return 0
    /// before the end, see preadv2(2).
    fn read_cached(&self, buf: &mut impl IoBufMut, offset: u64) -> Option<usize> {
        let len = buf.buf_capacity().min(TRANSFER_BYTES_MAX);
        let room = libc::iovec { iov_base: buf.buf_mut_ptr().cast(), iov_len: len };
        let offset = libc::off_t::try_from(offset).ok()?;
        // Not rustix: it takes initialised buffers only.
        // SAFETY: `len` bytes from the pointer on may be written while `buf` is borrowed. The call keeps no pointer.
        let n = unsafe { libc::preadv2(self.fd.as_raw_fd(), &room, 1, offset, libc::RWF_NOWAIT) };
        let Ok(n) = usize::try_from(n) else {
            let error = io::Error::last_os_error();
            let is_unknown = matches!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EPERM)
            );
            self.always_waits.set(is_unknown);
            return None;
        };
        if n == 0 && len > 0 {
            return None;
        }
        // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
        unsafe { buf.set_buf_len(n) };
        coop::consume_transfer(n);
        Some(n)
    }

    /// Calls `f` on a blocking thread. Keeps `buf` until it has returned, even if the future is dropped.
    async fn call<B: 'static>(
        &self,
        buf: B,
        f: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize> + Send + 'static,
    ) -> BufResult<usize, B> {
        free_ended();
        let ended = Arc::new(AtomicBool::new(false));
        let mut held = Held { buf: Some(buf), ended: Arc::clone(&ended) };
        let (ended, fd) = (End(ended), Arc::clone(&self.fd));
        let call = spawn_blocking(move || {
            let result = f(fd.as_fd());
            drop(fd); // before the operation counts as ended: a lock ends with its descriptor
            drop(ended);
            result
        });
        let result = finished(call).await;
        BufResult(result, held.buf.take().expect("taken only here and on drop"))
    }
}

/// A pointer into a buffer that is kept on another thread.
#[derive(Clone, Copy)]
struct Pointer<T>(*mut T);

// SAFETY: it is only an address. Who uses it says why that is sound.
unsafe impl<T> Send for Pointer<T> {}

impl<T> Pointer<T> {
    /// The pointer. A closure that calls it captures the whole, not the field, which is not `Send`.
    const fn get(self) -> *mut T {
        self.0
    }
}

/// Sets the flag when the call has returned, has panicked, or was dropped before it began.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The buffer of a call that may run.
struct Held<B: 'static> {
    buf: Option<B>,
    ended: Arc<AtomicBool>,
}

impl<B> Drop for Held<B> {
    fn drop(&mut self) {
        let Some(buf) = self.buf.take() else { return };
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        let mut kept = Some(Kept { ended: Arc::clone(&self.ended), buf: Some(Box::new(buf)) });
        // Without the thread's locals the buffer leaks: see `Kept`.
        let _ = KEPT.try_with(|all| all.borrow_mut().extend(kept.take()));
    }
}

/// The buffer of a dropped operation.
struct Kept {
    ended: Arc<AtomicBool>,
    buf: Option<Box<dyn Any>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Acquire) {
            mem::forget(self.buf.take());
        }
    }
}

thread_local! {
    /// The number of operations that were dropped and have not ended bounds it.
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

/// Frees the buffers of dropped operations that have ended.
fn free_ended() {
    let ended = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.is_empty() {
            return Vec::new();
        }
        kept.extract_if(.., |kept| kept.ended.load(Ordering::Acquire)).collect()
    });
    drop(ended); // outside the borrow: a buffer may run code when it is dropped
}

#[cfg(test)]
mod tests;
