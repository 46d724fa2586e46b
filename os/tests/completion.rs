//! Which reads and writes of the completion family begin an operation of the ring, and which are done without one.

#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::future::{poll_fn, ready};
use std::io::{self, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use owned_io::coop::{self, POLL_BUDGET_NANOS};
use owned_io::{
    BufResult, Clock, IoBuf, IoBufExt, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolConfig,
};
use owned_io_os as os;
use owned_io_os::completion::{Completion, CompletionSocket};

#[test]
fn the_first_read_begins_no_operation_unless_nothing_has_arrived() {
    for is_pooled in [false, true] {
        let pool = pool(1);
        let (mut stream, mut peer) = pair();
        peer.write_all(b"word").unwrap();
        assert_eq!(read(&mut stream, is_pooled.then_some(&pool)).unwrap(), b"word");
        assert_eq!(OPERATIONS.get(), 0, "(pooled: {is_pooled})");

        let (mut stream, _peer) = pair();
        let error = read(&mut stream, is_pooled.then_some(&pool)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(OPERATIONS.get(), 1, "(pooled: {is_pooled})");
    }
}

#[test]
fn the_first_four_writes_begin_no_operation() {
    let (mut stream, mut peer) = pair();
    for operations in [0, 0, 2] {
        assert_eq!(run(stream.write("single ")).unwrap(), 7);
        assert_eq!(run(stream.write_vectored(pieces())).unwrap(), 9);
        assert_eq!(OPERATIONS.get(), operations);
    }
    assert_eq!(received(&mut peer), b"single vectored ".repeat(3));
}

/// The least length of a long write, in bytes.
const LONG: usize = 8 * 1024;

#[test]
fn a_long_write_begins_no_operation() {
    for (bytes, operations) in [(LONG - 1, 2), (LONG, 0)] {
        let (mut stream, mut peer) = pair();
        for _ in 0..4 {
            assert_eq!(run(stream.write("first ")).unwrap(), 6);
        }
        assert_eq!(run(stream.write(vec![b'x'; bytes])).unwrap(), bytes);
        let mut bufs = IoVec::new();
        bufs.push(vec![b'y'; 5]);
        bufs.push(vec![b'y'; bytes - 5]);
        assert_eq!(run(stream.write_vectored(bufs)).unwrap(), bytes);
        assert_eq!(OPERATIONS.get(), operations, "{bytes} bytes");
        assert_eq!(received(&mut peer).len(), 4 * 6 + 2 * bytes);
    }
}

/// A peer that reads nothing is waited for in the ring.
#[test]
fn a_long_write_without_room_is_an_operation() {
    let (mut stream, mut peer) = pair();
    let mut written = 0;
    while OPERATIONS.get() == 0 {
        match run(stream.write(vec![0; LONG])) {
            Ok(n) => written += n,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock), // that of `Counting`
        }
    }
    assert_eq!(received(&mut peer).len(), written);
}

#[test]
fn a_write_without_budget_is_an_operation() {
    let (mut stream, mut peer) = pair();
    let spend_all = || coop::consume(POLL_BUDGET_NANOS.into());
    spend_all();
    assert_eq!(run(stream.write("single ")).unwrap(), 7);
    assert_eq!(OPERATIONS.get(), 1);
    spend_all();
    assert_eq!(run(stream.write_vectored(pieces())).unwrap(), 9);
    assert_eq!(OPERATIONS.get(), 2);
    assert_eq!(received(&mut peer), b"single vectored ");
}

#[test]
fn a_read_after_a_full_one_begins_no_operation() {
    for is_pooled in [false, true] {
        let (mut stream, mut peer) = pair();
        let pool = pool(1);
        let mut expect_read = |expected: &[u8], operations: u32, why: &str| {
            let bytes = read(&mut stream, is_pooled.then_some(&pool));
            assert_eq!(bytes.unwrap(), expected, "(pooled: {is_pooled})");
            assert_eq!(OPERATIONS.get(), operations, "{why} (pooled: {is_pooled})");
        };
        peer.write_all(b"0123456789").unwrap();
        expect_read(b"0123", 0, "it is the first");
        expect_read(b"4567", 0, "the one before was full");
        expect_read(b"89", 0, "the one before was full");
        peer.write_all(b"abcdef").unwrap();
        expect_read(b"abcd", 1, "the one before was short");
        expect_read(b"ef", 1, "the one before was full");
        peer.write_all(b"ghij").unwrap();
        expect_read(b"ghij", 2, "the one before was short");
        peer.shutdown(Shutdown::Write).unwrap();
        expect_read(b"", 2, "the one before was full");
        expect_read(b"", 3, "the one before was the end");
    }
}

/// A pool that has no buffer for a read that waits: the read waits without a buffer, and then takes one.
#[test]
fn a_read_after_a_full_one_that_waited_without_a_buffer_begins_no_operation() {
    let (mut stream, mut peer) = pair();
    let pool = pool(0);
    peer.write_all(b"xabcdef").unwrap();
    assert_eq!(read(&mut stream, None).unwrap(), b"xabc");
    coop::consume(POLL_BUDGET_NANOS.into()); // so this one waits
    peer.write_all(b"g").unwrap();
    assert_eq!(read(&mut stream, Some(&pool)).unwrap(), b"defg");
    assert_eq!(OPERATIONS.get(), 1);
    peer.write_all(b"h").unwrap();
    assert_eq!(read(&mut stream, Some(&pool)).unwrap(), b"h");
    assert_eq!(OPERATIONS.get(), 1);
}

/// So other tasks wait no longer for a peer that sends without end than for any other work.
#[test]
fn full_reads_begin_an_operation_once_the_budget_is_used_up() {
    let reads_max = u64::from(POLL_BUDGET_NANOS).div_ceil(coop::cost::transfer(4096));
    let (mut stream, mut peer) = pair();
    for n in 1..=reads_max + 1 {
        peer.write_all(&[0; 4096]).unwrap();
        let mut read = pin!(stream.read(Vec::with_capacity(4096)));
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(BufResult(result, _)) => assert_eq!(result.unwrap(), 4096),
            Poll::Pending => assert_eq!(n, reads_max + 1, "the number of the read that waits"),
        }
    }
    assert_eq!(OPERATIONS.get(), 1);
}

type Stream = os::completion::Stream<Counting>;

thread_local! {
    /// The operations that have begun.
    static OPERATIONS: Cell<u32> = const { Cell::new(0) };
}

/// A socket whose operations are counted.
#[derive(Debug)]
struct Counting(OwnedFd);

impl AsFd for Counting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Completion for Counting {
    type Clock = NoClock;

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(fd))
    }

    async fn recv<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        operation().await;
        BufResult(os::try_read(self.as_fd(), &mut buf), buf)
    }

    async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        operation().await;
        BufResult(os::try_write(self.as_fd(), buf.buf_bytes()), buf)
    }

    async fn send_vectored<B: IoBuf>(&self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        operation().await;
        BufResult(os::try_write_vectored(self.as_fd(), &mut bufs), bufs)
    }

    async fn readable(&self) -> io::Result<()> {
        operation().await;
        Ok(())
    }

    async fn writable(&self) -> io::Result<()> {
        operation().await;
        Ok(())
    }
}

/// Counts an operation. Like that of a ring it completes after its first poll.
async fn operation() {
    OPERATIONS.set(OPERATIONS.get() + 1);
    let mut is_submitted = false;
    poll_fn(|_| match mem::replace(&mut is_submitted, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    })
    .await;
}

/// Nothing here waits for a time.
struct NoClock;

impl Clock for NoClock {
    fn now() -> Instant {
        Instant::now()
    }

    fn wall_clock() -> SystemTime {
        SystemTime::now()
    }

    fn sleep(_duration: Duration) -> impl Future<Output = ()> + 'static {
        ready(())
    }
}

/// A connection and its peer, with a full budget and no operation so far.
fn pair() -> (Stream, UnixStream) {
    OPERATIONS.set(0);
    coop::refill();
    let (ours, peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    peer.set_nonblocking(true).unwrap();
    (os::adopt::<CompletionSocket<Counting>>(ours.into()).unwrap(), peer)
}

/// Two pieces of nine bytes in all.
fn pieces() -> IoVec<&'static str> {
    let mut bufs = IoVec::new();
    bufs.push("vecto");
    bufs.push("red ");
    bufs
}

/// Polls an operation until it is done. Each poll after the first begins with a full budget.
fn run<T, B>(operation: impl Future<Output = BufResult<T, B>>) -> io::Result<T> {
    const POLLS_MAX: u32 = 3; // an operation of the ring takes two
    let mut operation = pin!(operation);
    for _ in 0..POLLS_MAX {
        let polled = operation.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        coop::refill();
        if let Poll::Ready(BufResult(result, _)) = polled {
            return result;
        }
    }
    panic!("expected it to be done after {POLLS_MAX} polls; seen: it waits");
}

/// A pool of buffers of four bytes. Reads that wait hold at most `idle_max` of them.
fn pool(idle_max: usize) -> Pool {
    let mut config = PoolConfig::default();
    config.buf_bytes = 4;
    config.idle_max = idle_max;
    Pool::new(config)
}

/// Reads up to four bytes, into a buffer of `pool` or another.
fn read(stream: &mut Stream, pool: Option<&Pool>) -> io::Result<Vec<u8>> {
    run(async {
        match pool {
            None => {
                let BufResult(result, buf) = stream.read(Vec::with_capacity(4)).await;
                BufResult(result.map(|_| buf), ())
            }
            Some(pool) => BufResult(stream.read_pooled(pool).await.map(|buf| buf.to_vec()), ()),
        }
    })
}

/// The bytes that have arrived at the peer.
fn received(peer: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let error = peer.read_to_end(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    bytes
}
