//! [`TlsStream`]: its halves.

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
    BufResult, ByteStream, IoBuf, IoBufExt, IoBufMut, IoBufMutExt, IoVec, OwnedRead, OwnedWrite,
    Pool, PoolBuf, ShutdownHandle, Spare, coop, select,
};

use crate::TlsError;
use crate::handshake::read_to_end;
use crate::memory::until_granted;
use crate::session::{Readable, Session, WRITE_BYTES_MAX};
use crate::shared::Shared;

/// A TLS connection over a transport `S`, opened by an [`Acceptor`](crate::Acceptor) or a
/// [`Connector`](crate::Connector).
///
/// [`TlsConnection`](crate::TlsConnection) has what the handshake agreed on.
pub type TlsStream<S> = Duplex<TlsReadHalf<<S as ByteStream>::ReadHalf>, TlsWriteHalf>;

/// The half of a [`TlsStream`] that reads, over the transport's half `H`.
pub struct TlsReadHalf<H> {
    half: H,
    shared: Rc<Shared>,
    /// Whether the peer of a connection that has failed was waited for.
    has_lingered: bool,
}

/// The half of a [`TlsStream`] that writes.
pub struct TlsWriteHalf {
    shared: Rc<Shared>,
}

/// The connection over the transport's half that reads; `shared` has the other one.
pub(crate) fn stream<H>(half: H, shared: Shared) -> Duplex<TlsReadHalf<H>, TlsWriteHalf> {
    let shared = Rc::new(shared);
    let write = TlsWriteHalf { shared: Rc::clone(&shared) };
    Duplex::new(TlsReadHalf { half, shared, has_lingered: false }, write)
}

impl<H> TlsReadHalf<H> {
    /// The transport's half that reads. Its other half writes records for as long as the connection
    /// lives, and cannot be reached.
    pub const fn get_ref(&self) -> &H {
        &self.half
    }

    /// The transport's half that reads. What is read from it is missing in the connection, which fails then.
    pub const fn get_mut(&mut self) -> &mut H {
        &mut self.half
    }

    pub(crate) const fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }
}

impl<H: OwnedRead> TlsReadHalf<H> {
    /// Waits until something was filled, or there is nothing more to come.
    async fn receive(&mut self, filling: &mut impl Filling) -> io::Result<()> {
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
                    self.shared.session.borrow_mut().read(|plain| filling.push(plain));
                    return Ok(());
                }
                Ok(Readable::Undecrypted) => {
                    (self.shared.clock.sleep)(Duration::ZERO).await;
                    self.shared.session.borrow_mut().decrypt(&mut |plain| filling.push(plain));
                    self.shared.begin_answer().await;
                    if filling.is_done() {
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
                    self.shared.register(Direction::Read, cx); // to learn of an eviction
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
            let room = filling.room();
            if !self.shared.session.borrow_mut().has_memory_for(&bytes, room) {
                Box::pin(wait_for_memory(&self.shared, &bytes, room)).await?;
                if self.shared.is_read_shut() {
                    return Ok(());
                }
            }
            self.shared.session.borrow_mut().receive(&mut bytes, &mut |plain| filling.push(plain));
            drop(bytes);
            self.shared.begin_answer().await;
            if filling.is_done() {
                return Ok(());
            }
        }
    }
}

impl<H: OwnedRead> TlsReadHalf<H> {
    /// The connection has failed: the peer is told why, and our side is ended, before whoever reads drops
    /// the connection. If that were done with bytes that nobody has read, the peer might never see the
    /// alert, so these are read until it ends its side, too. That it cannot be told is not what our caller
    /// wants to know.
    async fn linger(&mut self) {
        let Self { half, shared, .. } = self;
        let mut ending = pin!(async {
            if poll_fn(|cx| shared.poll_last_words(cx)).await {
                read_to_end(half, &shared.buffers).await;
            }
        });
        if select(ending.as_mut(), (shared.clock.sleep)(LINGER)).await.first.is_none() {
            shared.connection.shutdown(Shutdown::Both);
            ending.await;
        }
    }
}

/// Waits until there is memory for what remains of these bytes, or reads are ended.
#[cold]
async fn wait_for_memory(shared: &Shared, bytes: &[u8], room: usize) -> io::Result<()> {
    let Shared { session, account, clock, .. } = shared;
    let is_granted = || shared.is_read_shut() || session.borrow_mut().has_memory_for(bytes, room);
    let poll = |cx: &Context<'_>| {
        shared.answer(cx);
        shared.register(Direction::Read, cx);
    };
    let waited = until_granted(account, *clock, is_granted, poll).await;
    match waited {
        // It may be for what runs over this to end the connection.
        Err(TlsError::Evicted) => Ok(shared.end_if_evicted(Direction::Read).await?),
        Err(failure) => {
            session.borrow_mut().fail(failure, 0); // which is told next
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// How long the peer of a connection that has failed may take to learn why: a round trip or two, and
/// some lost packets.
const LINGER: Duration = Duration::from_secs(5);

impl<H: OwnedRead> OwnedRead for TlsReadHalf<H> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.buf_capacity() == 0 {
            return BufResult(Ok(0), buf);
        }
        let mut filling = Owned { buf: Some(buf), len: 0 };
        let result = self.receive(&mut filling).await;
        let mut buf = filling.buf.expect("it is put back after each push");
        if result.is_ok() && filling.len == 0 {
            buf.buf_clear();
        }
        BufResult(result.map(|()| filling.len), buf)
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        let mut filling = Leased { pool, owned: Ok(None) };
        self.receive(&mut filling).await?;
        match filling.owned? {
            Some(Owned { buf: Some(buf), .. }) => Ok(buf),
            _ => Ok(pool.take()?),
        }
    }
}

impl TlsWriteHalf {
    /// Writes what `encrypt` encrypts, and says how many bytes it says.
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
        // Of a write that was given up, or an alert.
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
        let result = match bufs.as_io_slices() {
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
        // Why that cannot be written, the transport says again.
        let _ = poll_fn(|cx| self.shared.poll_flush(Direction::Write, cx)).await;
        poll_fn(|cx| self.shared.poll_shut(Direction::Write, cx)).await
    }
}

/// Where plaintext goes.
trait Filling {
    /// Takes the first of `plain`, and says how many.
    fn push(&mut self, plain: &[u8]) -> usize;

    /// How many bytes it takes, at least.
    fn room(&self) -> usize;

    /// Whether there is something to be told.
    fn is_done(&self) -> bool;
}

/// A buffer, which keeps what it holds until the first push.
struct Owned<B> {
    /// There except within a push.
    buf: Option<B>,
    len: usize,
}

impl<B: IoBufMut> Filling for Owned<B> {
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

/// A buffer of a pool, which is taken once there is something to put into it.
struct Leased<'a> {
    pool: &'a Pool,
    owned: io::Result<Option<Owned<PoolBuf>>>,
}

impl Filling for Leased<'_> {
    fn push(&mut self, plain: &[u8]) -> usize {
        if let Ok(None) = self.owned {
            let taken = self.pool.take();
            self.owned =
                taken.map(|buf| Some(Owned { buf: Some(buf), len: 0 })).map_err(io::Error::from);
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
