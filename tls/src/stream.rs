//! [`TlsStream`] and its halves.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Context;
use std::time::Duration;

use owned_io::backend::{Direction, Duplex, Endpoint};
use owned_io::{
    BufResult, ByteStream, IoBuf, IoBufExt, IoBufMut, IoBufMutExt, IoVec, MemoryWait, OwnedRead,
    OwnedWrite, Pool, PoolBuf, ShutdownHandle, Spare, coop, select,
};

use crate::TlsError;
use crate::handshake::read_to_end;
use crate::memory::until_granted;
use crate::session::{Readable, Session, WRITE_BYTES_MAX};
use crate::shared::Shared;

/// A TLS connection over a transport `S`, opened by an [`Acceptor`](crate::Acceptor) or a
/// [`Connector`](crate::Connector).
///
/// [`TlsConnection`](crate::TlsConnection) gives the results of the handshake.
pub type TlsStream<S> = Duplex<TlsReadHalf<<S as ByteStream>::ReadHalf>, TlsWriteHalf>;

/// The read half of a [`TlsStream`], over the transport's read half `H`.
pub struct TlsReadHalf<H> {
    half: H,
    shared: Rc<Shared>,
    /// Whether [`linger`](Self::linger) was called.
    has_lingered: bool,
}

/// The write half of a [`TlsStream`].
pub struct TlsWriteHalf {
    shared: Rc<Shared>,
}

/// The connection over the transport's read half. `shared` has the write half.
pub(crate) fn stream<H>(half: H, shared: Shared) -> Duplex<TlsReadHalf<H>, TlsWriteHalf> {
    let shared = Rc::new(shared);
    let write = TlsWriteHalf { shared: Rc::clone(&shared) };
    Duplex::new(TlsReadHalf { half, shared, has_lingered: false }, write)
}

impl<H> TlsReadHalf<H> {
    /// The transport's read half. The write half is not accessible: it writes records until the connection is
    /// dropped.
    pub const fn get_ref(&self) -> &H {
        &self.half
    }

    /// The transport's read half. Bytes that are read from it directly are missing in the connection, which then
    /// fails.
    pub const fn get_mut(&mut self) -> &mut H {
        &mut self.half
    }

    pub(crate) const fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }
}

impl<H: OwnedRead> TlsReadHalf<H> {
    /// Waits until `sink` has got something, or the stream has ended.
    async fn receive(&mut self, sink: &mut impl PlaintextSink) -> io::Result<()> {
        loop {
            if self.shared.account.is_evicted() {
                Box::pin(self.shared.end_if_evicted(Direction::Read)).await?;
            }
            let readable = self.shared.session.borrow().readable();
            match readable {
                Ok(Readable::Bytes) => {
                    if !coop::has_budget() {
                        (self.shared.clock.sleep)(Duration::ZERO).await;
                    }
                    coop::consume(coop::cost::tls_read());
                    self.shared.session.borrow_mut().read(|plain| sink.push(plain));
                    return Ok(());
                }
                Ok(Readable::Undecrypted) => {
                    (self.shared.clock.sleep)(Duration::ZERO).await;
                    self.shared.session.borrow_mut().decrypt(&mut |plain| sink.push(plain));
                    self.shared.begin_answer().await;
                    if sink.is_done() {
                        return Ok(());
                    }
                    continue;
                }
                Ok(Readable::End) => return Ok(()),
                Ok(Readable::Nothing) => {}
                Err(error) => {
                    let has_failed = self.shared.session.borrow().has_failed();
                    if has_failed && !std::mem::replace(&mut self.has_lingered, true) {
                        // Boxed, because it is needed once and large.
                        Box::pin(self.linger()).await;
                    }
                    return Err(error);
                }
            }
            let mut reading = pin!(self.half.read_pooled(self.shared.buffers.pool()));
            let read = poll_fn(|cx| {
                self.shared.check_eviction(Direction::Read, cx)?;
                self.shared.answer(cx);
                let polled = reading.as_mut().poll(cx);
                if polled.is_pending() && self.shared.session.borrow().held_bytes() > 0 {
                    self.shared.register(Direction::Read, cx); // so that an eviction wakes this
                }
                polled
            })
            .await;
            if read.is_err() && self.shared.account.is_evicted() {
                Box::pin(self.shared.end_if_evicted(Direction::Read)).await?;
            }
            let mut bytes = read?;
            if bytes.is_empty() {
                if self.shared.is_read_shut() {
                    return Ok(());
                }
                self.shared.session.borrow_mut().handle_end();
                continue;
            }
            let room = sink.room();
            if !self.shared.session.borrow_mut().has_memory_for(&bytes, room) {
                Box::pin(wait_for_memory(&self.shared, &bytes, room)).await?;
                if self.shared.is_read_shut() {
                    return Ok(());
                }
            }
            self.shared.session.borrow_mut().receive(&mut bytes, &mut |plain| sink.push(plain));
            drop(bytes);
            self.shared.begin_answer().await;
            if sink.is_done() {
                return Ok(());
            }
        }
    }
}

impl<H: OwnedRead> TlsReadHalf<H> {
    /// Sends the alert of a connection that has failed, ends our side, and reads until the peer ends its side. If the
    /// connection were dropped with unread bytes, the peer might never see the alert. A failure to send the alert is
    /// not reported, because the caller needs the failure of the connection.
    async fn linger(&mut self) {
        let Self { half, shared, .. } = self;
        let mut ending = pin!(async {
            if poll_fn(|cx| shared.poll_end(cx)).await {
                read_to_end(half, &shared.buffers).await;
            }
        });
        let late = (shared.clock.sleep)(shared.close_timeout);
        if select(ending.as_mut(), late).await.first.is_none() {
            shared.connection.shutdown(Shutdown::Both); // not a reset, after which the alert may be lost
            ending.await;
        }
    }
}

/// Waits until there is memory for the rest of `bytes`, or reads are shut down.
#[cold]
async fn wait_for_memory(shared: &Shared, bytes: &[u8], room: usize) -> io::Result<()> {
    let Shared { session, account, clock, .. } = shared;
    let is_granted = || shared.is_read_shut() || session.borrow_mut().has_memory_for(bytes, room);
    let poll = |cx: &Context<'_>| {
        shared.answer(cx);
        shared.register(Direction::Read, cx);
    };
    let waited = until_granted(account, *clock, MemoryWait::default(), is_granted, poll).await;
    match waited {
        // Without an error, the protocol above ends the connection.
        Err(TlsError::Evicted) => Ok(shared.end_if_evicted(Direction::Read).await?),
        Err(failure) => {
            session.borrow_mut().fail(failure, 0); // the next iteration returns it
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

impl<H: OwnedRead> OwnedRead for TlsReadHalf<H> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        let mut sink = OwnedSink { buf: Some(buf), len: 0 };
        let result = self.receive(&mut sink).await;
        let mut buf = sink.buf.expect("it is put back after each push");
        if result.is_ok() && sink.len == 0 {
            buf.buf_clear();
        }
        BufResult(result.map(|()| sink.len), buf)
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        let mut sink = PooledSink { pool, owned: Ok(None) };
        self.receive(&mut sink).await?;
        match sink.owned? {
            Some(OwnedSink { buf: Some(buf), .. }) => Ok(buf),
            _ => Ok(pool.take()?),
        }
    }
}

impl TlsWriteHalf {
    /// Writes the records that `encrypt` makes. Returns its result: how many bytes of plaintext it took.
    async fn send(
        &mut self,
        encrypt: impl FnOnce(&mut Session) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let sent = self.try_send(encrypt).await;
        if sent.is_err() && self.shared.account.is_evicted() {
            Box::pin(self.shared.end_if_evicted(Direction::Write)).await?;
        }
        sent
    }

    async fn try_send(
        &mut self,
        encrypt: impl FnOnce(&mut Session) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // Records of a write that was dropped, or an alert.
        poll_fn(|cx| self.shared.poll_flush(Direction::Write, cx)).await?;
        let n = encrypt(&mut self.shared.session.borrow_mut())?;
        poll_fn(|cx| self.shared.poll_flush(Direction::Write, cx)).await?;
        Ok(n)
    }

    pub(crate) const fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }
}

impl Endpoint for TlsWriteHalf {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Shared> = Rc::downgrade(&self.shared);
        ShutdownHandle::new(target)
    }
}

impl OwnedWrite for TlsWriteHalf {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(Ok(0), buf);
        }
        let result = self.send(|session| session.encrypt(buf.buf_bytes())).await;
        BufResult(result, buf)
    }

    async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        let result = match bufs.as_io_slices_within(coop::write_bytes_max()) {
            [] => return BufResult(Ok(0), bufs),
            [only] => self.send(|session| session.encrypt(only)).await,
            [long, ..] if long.len() >= WRITE_BYTES_MAX => {
                self.send(|session| session.encrypt(long)).await
            }
            pieces => {
                let len = bufs.bytes_left().min(WRITE_BYTES_MAX);
                self.send(|session| session.encrypt_together(pieces, len)).await
            }
        };
        if let Ok(n) = result {
            bufs.advance(n);
        }
        BufResult(result, bufs)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.shared.session.borrow_mut().close();
        // If the close_notify cannot be written, the shutdown of the transport fails as well.
        let _ = poll_fn(|cx| self.shared.poll_flush(Direction::Write, cx)).await;
        poll_fn(|cx| self.shared.poll_shut(Direction::Write, cx)).await
    }
}

/// The destination of decrypted bytes.
trait PlaintextSink {
    /// Takes the first bytes of `plain`, and returns how many.
    fn push(&mut self, plain: &[u8]) -> usize;

    /// The bytes that it can take at least.
    fn room(&self) -> usize;

    /// Whether the read has a result: bytes, or an error of the sink.
    fn is_done(&self) -> bool;
}

/// A buffer of the caller. Its contents stay until the first push.
struct OwnedSink<B> {
    /// None only within a push.
    buf: Option<B>,
    len: usize,
}

impl<B: IoBufMut> PlaintextSink for OwnedSink<B> {
    fn push(&mut self, plain: &[u8]) -> usize {
        let Some(mut buf) = self.buf.take() else { return 0 };
        let n = if self.len == 0 {
            buf.buf_fill(plain)
        } else {
            let mut spare = buf.spare();
            let n = spare.buf_fill(plain);
            buf = Spare::into_inner(spare);
            n
        };
        self.buf = Some(buf);
        self.len += n;
        n
    }

    fn room(&self) -> usize {
        self.buf.as_ref().map_or(0, |buf| buf.buf_capacity() - self.len)
    }

    fn is_done(&self) -> bool {
        self.len > 0
    }
}

/// A buffer of a pool. It is taken with the first push.
struct PooledSink<'a> {
    pool: &'a Pool,
    owned: io::Result<Option<OwnedSink<PoolBuf>>>,
}

impl PlaintextSink for PooledSink<'_> {
    fn push(&mut self, plain: &[u8]) -> usize {
        if let Ok(None) = self.owned {
            let taken = self.pool.take();
            self.owned = taken
                .map(|buf| Some(OwnedSink { buf: Some(buf), len: 0 }))
                .map_err(io::Error::from);
        }
        match &mut self.owned {
            Ok(Some(owned)) => owned.push(plain),
            _ => 0,
        }
    }

    fn room(&self) -> usize {
        match &self.owned {
            Ok(Some(owned)) => owned.room(),
            Ok(None) => self.pool.buf_bytes(),
            Err(_) => 0,
        }
    }

    fn is_done(&self) -> bool {
        !matches!(self.owned, Ok(None))
    }
}

impl<H> fmt::Debug for TlsReadHalf<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsReadHalf").finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsWriteHalf").finish_non_exhaustive()
    }
}
