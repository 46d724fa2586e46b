//! The unsafe code that glommio's streams need: streams from descriptors, and the length of a buffer after a read.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use owned_io::{IoBufMut, PoolBuf, TRANSFER_BYTES_MAX, coop};
use owned_io_os as os;

/// A connected socket, registered with the reactor.
#[derive(Debug)]
pub(crate) struct Tcp {
    tcp: RefCell<TcpStream>,
    /// Something is likely to have arrived: a read has waited, nothing was read yet, or the last attempt has filled its
    /// buffer. A client that was accepted has often sent its request, and a full buffer has often left bytes behind.
    /// glommio sees them only after it has polled the ring.
    expects_data: Cell<bool>,
}

impl Tcp {
    /// Registers `fd`, with the reactor of the executor that polls this.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { tcp: RefCell::new(register(fd)), expects_data: Cell::new(true) }
    }

    /// Receives what has arrived into `buf` from its start, and sets its exact length. `buf` has capacity.
    ///
    /// glommio receives into initialised bytes only. So glommio waits, and this receives. That takes two system calls
    /// for each read that waits, where [`poll_read_pooled`](Self::poll_read_pooled) takes one.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut impl IoBufMut,
    ) -> Poll<io::Result<usize>> {
        // Each round after the first two was woken for bytes that another reader took.
        loop {
            if !self.expects_data.replace(false) {
                let polled = self.poll_readable(cx);
                self.expects_data.set(polled.is_pending());
                ready!(polled)?;
            }
            match self.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    /// Receives into a buffer of a pool, by glommio's own receive. The memory of such a buffer is initialised once.
    pub(crate) fn poll_read_pooled(
        &self,
        cx: &mut Context<'_>,
        buf: &mut PoolBuf,
    ) -> Poll<io::Result<usize>> {
        if self.expects_data.replace(false) {
            match self.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
        let memory = buf.memory_mut();
        let room = memory.len().min(TRANSFER_BYTES_MAX);
        let polled = Pin::new(&mut *self.tcp.borrow_mut()).poll_read(cx, &mut memory[..room]);
        let n = ready!(polled)?;
        assert!(n <= room, "glommio received more than there is room for");
        // SAFETY: 1. `n` is at most the capacity, as checked above. 2. All of the memory is initialised.
        unsafe { buf.set_buf_len(n) };
        coop::consume_transfer(n);
        Poll::Ready(Ok(n))
    }

    /// Receives what has arrived, and records whether that has filled `buf`.
    fn try_read(&self, buf: &mut impl IoBufMut) -> io::Result<usize> {
        let n = os::try_read(self.as_fd(), buf)?;
        self.expects_data.set(n == buf.buf_capacity().min(TRANSFER_BYTES_MAX));
        Ok(n)
    }

    /// Ready when a read would be. An error that this returns is not returned by the next read.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Without room, glommio's receive takes no bytes and waits like any other.
        Pin::new(&mut *self.tcp.borrow_mut()).poll_read(cx, &mut []).map_ok(drop)
    }

    /// Sends the first of `bytes`, or waits until that can be tried again. `bytes` is not empty.
    ///
    /// Call it after a failed attempt. It makes two system calls more than an attempt.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(coop::write_bytes_max())];
        // glommio's attempt lacks MSG_NOSIGNAL.
        let blocked = SigpipeBlocked::new();
        let polled = Pin::new(&mut *self.tcp.borrow_mut()).poll_write(cx, bytes);
        if let Poll::Ready(Err(error)) = &polled
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            blocked.consume_signal();
        }
        polled
    }

    /// Ready when an attempt to connect has ended.
    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.tcp.borrow_mut()).poll_write(cx, &[]).map_ok(drop)
    }
}

impl AsFd for Tcp {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the stream has it open as long as `self` is borrowed. Nothing puts another stream in its place.
        unsafe { BorrowedFd::borrow_raw(self.tcp.borrow().as_raw_fd()) }
    }
}

/// Blocks SIGPIPE on this thread until it is dropped, and then restores the signal mask.
struct SigpipeBlocked {
    before: libc::sigset_t,
}

impl SigpipeBlocked {
    fn new() -> Self {
        let mut before = MaybeUninit::uninit();
        let pipe = sigpipe();
        // SAFETY: it reads one set and writes the other. Both are valid.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, before.as_mut_ptr()) };
        assert_eq!(error, 0, "pthread_sigmask fails only for invalid arguments");
        // SAFETY: it was written, as nothing failed.
        Self { before: unsafe { before.assume_init() } }
    }

    /// Removes the signal from the pending ones.
    fn consume_signal(&self) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let pipe = sigpipe();
        // SAFETY: it reads the set and the time, and writes nothing to a null pointer.
        unsafe { libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const at_once) };
    }
}

impl Drop for SigpipeBlocked {
    fn drop(&mut self) {
        // SAFETY: it reads the set that the kernel wrote, and writes nothing to a null pointer.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

fn sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it writes the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it changes the set, which was written above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE) };
    // SAFETY: as above.
    unsafe { set.assume_init() }
}

/// A descriptor of any kind that can be waited for.
///
/// glommio waits only for descriptors that its streams own, and a stream does not give its descriptor back.
/// So each wait puts the descriptor into a new stream, and takes it back afterwards.
#[derive(Debug)]
pub(crate) struct PolledFd(Option<State>);

#[derive(Debug)]
enum State {
    Idle(OwnedFd),
    /// Also after a wait was dropped. The next wait continues with it.
    Waiting(TcpStream),
}

impl PolledFd {
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self(Some(State::Idle(fd)))
    }

    /// Ready when a read or an accept may succeed. That takes at least one iteration of the reactor.
    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut tcp = match self.0.take().expect("put back below") {
            State::Idle(fd) => register(fd),
            State::Waiting(tcp) => tcp,
        };
        let polled = Pin::new(&mut tcp).poll_read(cx, &mut []);
        self.0 = Some(match polled {
            Poll::Pending => State::Waiting(tcp),
            // A listener returns ENOTCONN. A stream returns the number of bytes: zero, as none were asked for.
            Poll::Ready(_) => State::Idle(into_fd(tcp)),
        });
        polled.map(drop)
    }
}

impl AsFd for PolledFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0.as_ref().expect("taken only within `poll_readable`") {
            State::Idle(fd) => fd.as_fd(),
            // SAFETY: the stream has it open while it is borrowed.
            State::Waiting(tcp) => unsafe { BorrowedFd::borrow_raw(tcp.as_raw_fd()) },
        }
    }
}

/// A stream that owns `fd`. glommio begins to wait until it is readable.
fn register(fd: OwnedFd) -> TcpStream {
    // SAFETY: the descriptor is open, and nothing else owns it from here on.
    unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) }
}

/// The descriptor of a stream that waits for nothing.
///
/// The stream is leaked. It holds only a weak reference to the reactor. That keeps the reactor's allocation, once,
/// after the executor has ended.
fn into_fd(tcp: TcpStream) -> OwnedFd {
    let tcp = ManuallyDrop::new(tcp);
    // SAFETY: the stream has the descriptor open, and will never use or close it.
    unsafe { OwnedFd::from_raw_fd(tcp.as_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use owned_io::Executor;

    use super::*;
    use crate::{Config, Glommio};

    #[test]
    fn glommios_own_attempt_to_write_raises_no_signal() {
        let raised = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(libc::SIGPIPE, Arc::clone(&raised)).unwrap();
        let error = Glommio::block_on(Config::default(), async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let tcp = Tcp::new(ours.into());
            drop(theirs);
            poll_fn(|cx| tcp.poll_write(cx, b"x")).await.unwrap_err()
        });
        assert_eq!(error.unwrap().raw_os_error(), Some(libc::EPIPE));
        assert!(!raised.load(Ordering::SeqCst));
        signal_hook::low_level::raise(libc::SIGPIPE).unwrap();
        assert!(raised.load(Ordering::SeqCst), "it is not blocked any more");
    }
}
