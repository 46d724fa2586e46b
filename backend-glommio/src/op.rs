//! What glommio can only be asked for by unsafe code: streams from descriptors, and reads into memory
//! that is not initialised.

use std::cell::RefCell;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{ptr, slice};

use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use owned_io::{IoBufMut, TRANSFER_BYTES_MAX, coop};

/// A connected socket, registered with the reactor.
#[derive(Debug)]
pub(crate) struct Tcp(RefCell<TcpStream>);

impl Tcp {
    /// Registers `fd`, with the reactor of the executor that polls this.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(RefCell::new(register(fd)))
    }

    /// Receives what has arrived into `buf`, which has room, from its start; sets its exact length.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut impl IoBufMut,
    ) -> Poll<io::Result<usize>> {
        let capacity = buf.buf_capacity().min(TRANSFER_BYTES_MAX);
        // SAFETY: `capacity` bytes from the pointer on may be written, and nobody else has them
        // while `buf` is borrowed. They need not be initialised: glommio passes the slice's address
        // and length to recv(2), and looks at nothing else of it (`NonBufferedStream::poll_read`).
        let bytes = unsafe { slice::from_raw_parts_mut(buf.buf_mut_ptr(), capacity) };
        let n = ready!(Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, bytes))?;
        // SAFETY: 1. and 2. The kernel wrote the first `n` bytes, and no more than the capacity.
        unsafe { buf.set_buf_len(n) };
        coop::consume_transfer(n);
        Poll::Ready(Ok(n))
    }

    /// Ready when a read would be.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        // What it says beyond that is the next read's to say.
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, &mut []).map(drop)
    }

    /// Sends the first of `bytes`, which are not none, or waits until that can be tried again.
    ///
    /// For when it could not be done just now: it costs two system calls more than the attempt.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(TRANSFER_BYTES_MAX)];
        // glommio's attempt lacks MSG_NOSIGNAL.
        let blocked = SigpipeBlocked::new();
        let polled = Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes);
        if let Poll::Ready(Err(error)) = &polled
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            blocked.take_back();
        }
        polled
    }

    /// Ready when the connection is made, or could not be.
    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, &[]).map_ok(drop)
    }

    pub(crate) fn with_fd<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let tcp = self.0.borrow();
        // SAFETY: the stream has it open while it is borrowed.
        f(unsafe { BorrowedFd::borrow_raw(tcp.as_raw_fd()) })
    }
}

/// Keeps SIGPIPE from this thread until it is dropped, if it was not kept from it anyway.
struct SigpipeBlocked {
    before: libc::sigset_t,
}

impl SigpipeBlocked {
    fn new() -> Self {
        let mut before = MaybeUninit::uninit();
        let pipe = sigpipe();
        // SAFETY: it reads one set and writes the other, which are there for it.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, before.as_mut_ptr()) };
        assert_eq!(error, 0, "pthread_sigmask fails only when asked for nonsense");
        // SAFETY: it was written, as nothing failed.
        Self { before: unsafe { before.assume_init() } }
    }

    /// Takes the signal from those that wait to be delivered.
    fn take_back(&self) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let pipe = sigpipe();
        // SAFETY: it reads the set and the time, and what it would write is not asked for.
        unsafe { libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const at_once) };
    }
}

impl Drop for SigpipeBlocked {
    fn drop(&mut self) {
        // SAFETY: it reads the set that the kernel gave, and what it would write is not asked for.
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
/// glommio waits only for descriptors that its streams own, and a stream does not give its own back.
/// So it is handed to one for each wait, and taken back when that is over.
#[derive(Debug)]
pub(crate) struct Waited(Option<State>);

#[derive(Debug)]
enum State {
    Idle(OwnedFd),
    /// Also after a wait was dropped: the next one goes on with it.
    Waiting(TcpStream),
}

impl Waited {
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self(Some(State::Idle(fd)))
    }

    /// Ready when reading, or accepting, is worth a try; a turn of the reactor from now at the
    /// earliest.
    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut tcp = match self.0.take().expect("put back below") {
            State::Idle(fd) => register(fd),
            State::Waiting(tcp) => tcp,
        };
        let polled = Pin::new(&mut tcp).poll_read(cx, &mut []);
        self.0 = Some(match polled {
            Poll::Pending => State::Waiting(tcp),
            // A listener says ENOTCONN, and a stream how many bytes: none, as none were asked for.
            Poll::Ready(_) => State::Idle(take_back(tcp)),
        });
        polled.map(drop)
    }
}

impl AsFd for Waited {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0.as_ref().expect("taken only within `poll_readable`") {
            State::Idle(fd) => fd.as_fd(),
            // SAFETY: the stream has it open while it is borrowed.
            State::Waiting(tcp) => unsafe { BorrowedFd::borrow_raw(tcp.as_raw_fd()) },
        }
    }
}

/// A stream that owns `fd`. glommio begins to wait for it to be readable.
fn register(fd: OwnedFd) -> TcpStream {
    // SAFETY: the descriptor is open, and owned by nobody else from here on.
    unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) }
}

/// The descriptor of a stream that waits for nothing.
///
/// The stream is forgotten. All that it holds then is a weak reference to the reactor, whose memory
/// is not freed, once, when the executor ends.
fn take_back(tcp: TcpStream) -> OwnedFd {
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

    use owned_io::Runtime;

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
