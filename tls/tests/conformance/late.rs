//! [`LateStream`]: a connection whose handshake may not be complete yet.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use owned_io::backend::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
use owned_io::{
    BufResult, ByteStream, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf, Runtime,
    ShutdownHandle,
};
use owned_io_tls::{TlsReadHalf, TlsStream, TlsWriteHalf};

pub(crate) type LateStream<S> = Duplex<LateRead<S>, LateWrite<S>>;

pub(crate) struct LateRead<S: ByteStream> {
    handshake: Rc<Handshake<S>>,
    half: Option<TlsReadHalf<S::ReadHalf>>,
}

pub(crate) struct LateWrite<S: ByteStream> {
    handshake: Rc<Handshake<S>>,
    half: Option<TlsWriteHalf>,
    addrs: [SocketAddr; 2],
}

/// What the halves share.
struct Handshake<S: ByteStream> {
    state: RefCell<State<S>>,
    waiting: RefCell<Vec<Waker>>,
    /// The handle of the transport, and after the handshake the handle of the connection.
    handle: RefCell<ShutdownHandle>,
    is_done: Cell<bool>,
    /// A shutdown that was requested during the handshake.
    shut: Cell<Option<Shutdown>>,
}

enum State<S: ByteStream> {
    Handshaking,
    Done(Option<TlsReadHalf<S::ReadHalf>>, Option<TlsWriteHalf>),
    Failed(io::ErrorKind),
}

impl<S: ByteStream> Handshake<S> {
    fn finish(&self, outcome: io::Result<TlsStream<S>>) {
        self.is_done.set(true);
        *self.state.borrow_mut() = match outcome {
            Ok(stream) => {
                let handle = stream.shutdown_handle();
                if let Some(how) = self.shut.take() {
                    handle.shutdown(how);
                }
                *self.handle.borrow_mut() = handle;
                let (read, write) = stream.into_split();
                State::Done(Some(read), Some(write))
            }
            Err(error) => State::Failed(error.kind()),
        };
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    async fn take<T>(&self, take: impl Fn(&mut State<S>) -> Option<T>) -> io::Result<T> {
        poll_fn(|cx| match &mut *self.state.borrow_mut() {
            State::Handshaking => {
                self.waiting.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            State::Failed(kind) => Poll::Ready(Err((*kind).into())),
            done => Poll::Ready(Ok(take(done).expect("taken once"))),
        })
        .await
    }
}

impl<S: ByteStream> ShutdownTarget for Handshake<S> {
    fn shutdown(&self, how: Shutdown) {
        if self.is_done.get() {
            self.handle.borrow().shutdown(how);
        } else {
            self.shut.set(Some(how));
        }
    }

    fn abort(&self) {
        self.handle.borrow().abort();
    }
}

impl<S: ByteStream> LateRead<S> {
    async fn half(&mut self) -> io::Result<&mut TlsReadHalf<S::ReadHalf>> {
        if self.half.is_none() {
            let taken = self.handshake.take(|state| match state {
                State::Done(read, _) => read.take(),
                _ => None,
            });
            self.half = Some(taken.await?);
        }
        Ok(self.half.as_mut().expect("just taken"))
    }
}

impl<S: ByteStream> LateWrite<S> {
    async fn half(&mut self) -> io::Result<&mut TlsWriteHalf> {
        if self.half.is_none() {
            let taken = self.handshake.take(|state| match state {
                State::Done(_, write) => write.take(),
                _ => None,
            });
            self.half = Some(taken.await?);
        }
        Ok(self.half.as_mut().expect("just taken"))
    }
}

/// A stream whose handshake is complete.
pub(crate) fn ready<S: ByteStream>(stream: TlsStream<S>, addrs: [SocketAddr; 2]) -> LateStream<S> {
    let handle = stream.shutdown_handle();
    let handshake = Rc::new(Handshake::new(handle));
    handshake.finish(Ok(stream));
    halves(handshake, addrs)
}

/// A stream whose handshake runs in a task of `R`. If both halves are dropped first, the transport is shut down.
pub(crate) fn begin<R: Runtime, S: ByteStream>(
    tcp: S,
    addrs: [SocketAddr; 2],
    begin: impl AsyncFnOnce(S) -> io::Result<TlsStream<S>> + 'static,
) -> LateStream<S> {
    let handshake = Rc::new(Handshake::new(tcp.shutdown_handle()));
    let waiting = Rc::downgrade(&handshake);
    drop(R::spawn(async move {
        let outcome = begin(tcp).await;
        if let Some(handshake) = waiting.upgrade() {
            handshake.finish(outcome);
        }
    }));
    halves(handshake, addrs)
}

fn halves<S: ByteStream>(handshake: Rc<Handshake<S>>, addrs: [SocketAddr; 2]) -> LateStream<S> {
    let read = LateRead { handshake: Rc::clone(&handshake), half: None };
    Duplex::new(read, LateWrite { handshake, half: None, addrs })
}

impl<S: ByteStream> Handshake<S> {
    fn new(handle: ShutdownHandle) -> Self {
        Self {
            state: RefCell::new(State::Handshaking),
            waiting: RefCell::default(),
            handle: RefCell::new(handle),
            is_done: Cell::new(false),
            shut: Cell::new(None),
        }
    }
}

impl<S: ByteStream> Drop for Handshake<S> {
    /// Ends a handshake whose result is no longer needed.
    fn drop(&mut self) {
        if !self.is_done.get() {
            self.handle.borrow().shutdown(Shutdown::Both);
        }
    }
}

impl<S: ByteStream> OwnedRead for LateRead<S> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        match self.half().await {
            Ok(half) => half.read(buf).await,
            Err(error) => BufResult(Err(error), buf),
        }
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.half().await?.read_pooled(pool).await
    }
}

impl<S: ByteStream> OwnedWrite for LateWrite<S> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        match self.half().await {
            Ok(half) => half.write(buf).await,
            Err(error) => BufResult(Err(error), buf),
        }
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        match self.half().await {
            Ok(half) => half.write_vectored(bufs).await,
            Err(error) => BufResult(Err(error), bufs),
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.half().await?.shutdown().await
    }
}

impl<S: ByteStream> Endpoint for LateWrite<S> {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Handshake<S>> = Rc::downgrade(&self.handshake);
        ShutdownHandle::new(target)
    }
}

impl<S: ByteStream> TcpEndpoint for LateWrite<S> {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs[0])
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs[1])
    }
}
