//! Helpers for the cases: connected pairs, bounded waits, bytes that can be verified.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::prove::waits_for;
use crate::{
    BufResult, ByteStream, ConnectOptions, IoBuf, JoinError, JoinHandle, ListenOptions, OwnedRead,
    OwnedWrite, Runtime, TcpListener, select,
};

/// The limit for events that must happen. Long enough for every operation on loopback on a busy machine, short
/// enough for a failing case.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// Long enough for bytes on loopback to arrive, and for a runtime to poll its tasks and I/O.
pub(super) const A_WHILE: Duration = Duration::from_millis(30);

/// `bytes`, or fewer under Miri, where every byte is slow. Still more than all buffers on the path hold.
pub(super) const fn scaled(bytes: usize) -> usize {
    if cfg!(miri) { bytes / 256 } else { bytes }
}

/// Runs a case.
pub(super) fn run<R: Runtime, F: Future>(config: &R::Config, case: F) -> F::Output {
    waits_for("the case's future");
    let case = async {
        let output = case.await;
        waits_for("the end of `block_on`, whose future is done");
        output
    };
    R::block_on(config.clone(), case).expect("expected the runtime to start")
}

/// Panics unless at least `min` of `what` were counted.
#[track_caller]
pub(super) fn expect_at_least(min: u32, what: &str, seen: u32) {
    assert!(seen >= min, "expected at least {min} {what}; seen: {seen}");
}

/// Panics unless `seen` is `expected`. Says where they differ, because they are too long to print.
#[track_caller]
pub(super) fn expect_bytes(seen: &[u8], expected: &[u8]) {
    let same = || seen.iter().zip(expected).take_while(|(seen, expected)| seen == expected).count();
    assert!(
        seen == expected,
        "expected {} bytes; seen: {} bytes, and the first {} are as expected",
        expected.len(),
        seen.len(),
        same()
    );
}

/// Panics unless `result` is an error of this kind. Returns the error.
#[track_caller]
pub(super) fn expect_error<T>(result: io::Result<T>, kind: ErrorKind) -> io::Error {
    match result {
        Err(error) if error.kind() == kind => error,
        Err(error) => panic!("expected the error {kind:?}; seen: {error:?}"),
        Ok(_) => panic!("expected the error {kind:?}; seen: success"),
    }
}

/// The output of a task. If the task panicked, panics with its panic.
pub(super) async fn joined<R: Runtime, T>(what: &str, task: JoinHandle<T>) -> T {
    match soon::<R, _>(what, task).await {
        Ok(output) => output,
        Err(JoinError::Panicked(panicked)) => panicked.resume(),
        Err(error) => panic!("expected {what}; seen: {error}"),
    }
}

/// The options to listen on any free port.
pub(super) fn loopback() -> ListenOptions {
    ListenOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// A listener on any free port, and its address.
pub(super) fn listener<R: Runtime>(options: ListenOptions) -> (R::TcpListener, SocketAddr) {
    let bound = R::bind(options).expect("expected a free port");
    (R::listen(&bound).expect("expected to listen"), bound.local_addr())
}

pub(super) async fn connect<R: Runtime>(addr: SocketAddr) -> R::TcpStream {
    R::connect(ConnectOptions::new(addr)).await.expect("expected to connect")
}

/// A client connection and the server's end of it.
pub(super) async fn pair<R: Runtime>() -> (R::TcpStream, R::TcpStream) {
    pair_with::<R>(None).await
}

/// A client connection and the server's end of it. `buffer_bytes` is the size of all kernel buffers between them.
pub(super) async fn pair_with<R: Runtime>(
    buffer_bytes: Option<u32>,
) -> (R::TcpStream, R::TcpStream) {
    let mut listen = loopback();
    listen.recv_buffer_bytes = buffer_bytes;
    listen.send_buffer_bytes = buffer_bytes;
    let (mut listener, addr) = listener::<R>(listen);
    let mut connect = ConnectOptions::new(addr);
    connect.recv_buffer_bytes = buffer_bytes;
    connect.send_buffer_bytes = buffer_bytes;
    let client = R::connect(connect).await.expect("expected to connect");
    let (server, _) = listener.accept().await.expect("expected to accept");
    (client, server)
}

/// Accepts `times` times, or until the client with the address `last`. Panics if an accept after an error does not wait,
/// or if no other task runs meanwhile. Returns the number of errors.
pub(super) async fn accept_and_expect_yields<R: Runtime>(
    listener: &mut R::TcpListener,
    times: u32,
    last: Option<SocketAddr>,
) -> u32 {
    let runs = count_runs::<R>();
    let (mut streams, mut errors, mut has_failed) = (Vec::new(), 0, false);
    for _ in 0..times {
        let mut has_waited = false;
        let mut accept = pin!(listener.accept());
        let accepted = poll_fn(|cx| {
            let polled = accept.as_mut().poll(cx);
            has_waited |= polled.is_pending();
            polled
        });
        let accepted = soon::<R, _>("a client or an error", accepted).await;
        assert!(
            has_waited || !has_failed,
            "expected an accept after an error to wait; seen: it returned at once"
        );
        has_failed = accepted.is_err();
        errors += u32::from(has_failed);
        let is_last = accepted.as_ref().is_ok_and(|(_, peer)| Some(*peer) == last);
        streams.extend(accepted); // they stay open
        if is_last {
            break;
        }
    }
    expect_at_least(
        errors / 4,
        &format!("runs of another task during {errors} errors"),
        runs.get(),
    );
    errors
}

/// A stream that its peer has reset. The next read returns the error.
pub(super) async fn reset_stream<R: Runtime>() -> R::TcpStream {
    let (a, mut b) = pair::<R>().await;
    crate::OwnedWriteExt::write_all(&mut b, "never read")
        .await
        .into_result()
        .expect("expected to write");
    R::sleep(A_WHILE).await;
    drop(a);
    R::sleep(A_WHILE).await;
    b
}

/// The output of `future`. Panics if it takes longer than [`SOON`].
pub(super) async fn soon<R: Runtime, F: Future>(what: &str, future: F) -> F::Output {
    waits_for(what);
    let output = within::<R, F>(SOON, future).await;
    output
        .unwrap_or_else(|| panic!("expected {what} within {SOON:?}; seen: it is still waited for"))
}

/// The output of `future` if it is ready within `limit`. Otherwise drops the future.
pub(super) async fn within<R: Runtime, F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    select(future.as_mut(), R::sleep(limit)).await.first
}

/// Whether `future` is still pending after [`A_WHILE`]. Drops it.
pub(super) async fn stays_pending<R: Runtime>(future: impl Future) -> bool {
    within::<R, _>(A_WHILE, future).await.is_none()
}

/// Polls `future` for [`A_WHILE`], then drops it. Panics if it is done by then.
pub(super) async fn expect_pending<R: Runtime>(what: &str, future: impl Future) {
    let is_pending = stays_pending::<R>(future).await;
    assert!(is_pending, "expected {what} to wait; seen: it is done");
}

/// Waits until the stream is closed: the peer has ended it or reset it.
pub(super) async fn expect_closed<R: Runtime>(stream: &mut impl OwnedRead) {
    let closed = soon::<R, _>("the end of the stream", async {
        loop {
            let BufResult(result, _) = stream.read(Vec::with_capacity(4096)).await;
            match result {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    });
    closed.await;
}

/// Reads until the end of the stream.
pub(super) async fn read_to_end(stream: &mut impl OwnedRead) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (n, buf) = stream
            .read(Vec::with_capacity(16 * 1024))
            .await
            .into_result()
            .expect("expected to read");
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&buf);
    }
}

/// Writes until the kernel takes no more bytes, and drops the pending write. Then no byte fits before the peer
/// reads.
pub(super) async fn fill<R: Runtime>(stream: &mut impl OwnedWrite) {
    // Bounded, because buffers on loopback grow to a few megabytes only.
    for _ in 0..10_000 {
        let write = stream.write(vec![0x5a; 64 * 1024]);
        match within::<R, _>(A_WHILE, write).await {
            Some(BufResult(result, _)) => {
                let n = result.expect("expected to write");
                assert!(n > 0, "expected a write to take at least one byte; seen: it took none");
            }
            None => return,
        }
    }
    panic!(
        "expected a write to wait for the peer, which does not read; seen: 10,000 writes did not"
    );
}

/// `len` pseudo-random bytes, so that lost or swapped bytes are detected.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Counts how often another task runs. The task yields after each run, and ends after a million runs.
pub(super) fn count_runs<R: Runtime>() -> Rc<Cell<u32>> {
    let runs = Rc::new(Cell::new(0));
    drop(R::spawn({
        let runs = Rc::clone(&runs);
        async move {
            while runs.get() < 1_000_000 {
                R::sleep(Duration::ZERO).await;
                runs.set(runs.get() + 1);
            }
        }
    }));
    runs
}

/// Echoes until the client ends the stream.
pub(super) async fn echo(stream: impl ByteStream) {
    let (mut read, mut write) = stream.into_split();
    let mut buf = Vec::with_capacity(4096);
    loop {
        let BufResult(result, filled) = read.read(buf).await;
        if !matches!(result, Ok(1..)) {
            return;
        }
        let BufResult(result, unchanged) =
            crate::OwnedWriteExt::write_all(&mut write, filled).await;
        if result.is_err() {
            return;
        }
        buf = unchanged;
    }
}

/// Sends `bytes`, and reads and returns as many.
pub(super) async fn echoed(stream: &mut (impl OwnedRead + OwnedWrite), bytes: &[u8]) -> Vec<u8> {
    use crate::{OwnedReadExt, OwnedWriteExt};
    stream.write_all(bytes.to_vec()).await.into_result().expect("expected to write");
    let buf = Vec::with_capacity(bytes.len());
    stream.read_exact(buf, bytes.len()).await.into_result().expect("expected to read").1
}

/// A buffer that counts its drops.
pub(super) struct Counted {
    pub(super) bytes: Vec<u8>,
    pub(super) drops: Rc<Cell<u32>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.set(self.drops.get() + 1);
    }
}

// SAFETY: 1. The pointer and the length are the vector's. 2. Its bytes are on the heap, and the vector never
// grows. 3. Both change through `&mut` only. 4. The vector owns its bytes.
unsafe impl IoBuf for Counted {
    fn buf_ptr(&self) -> *const u8 {
        self.bytes.buf_ptr()
    }
    fn buf_len(&self) -> usize {
        self.bytes.buf_len()
    }
}

// SAFETY: 1. The pointer and the capacity are the vector's. 2. The vector never grows. 3. `set_buf_len` is the
// vector's.
unsafe impl crate::IoBufMut for Counted {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.buf_mut_ptr()
    }
    fn buf_capacity(&self) -> usize {
        self.bytes.buf_capacity()
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        // SAFETY: 1. and 2. The caller's promises, passed on.
        unsafe { self.bytes.set_buf_len(len) }
    }
}

/// The output of `operation`, and whether its first poll returned it.
pub(super) async fn first_polled<F: Future>(operation: F) -> (F::Output, bool) {
    let mut operation = pin!(operation);
    match poll_once(operation.as_mut()).await {
        Poll::Ready(output) => (output, true),
        Poll::Pending => (operation.await, false),
    }
}

/// Polls `future` once. To drop it afterwards is to drop it while it is pending, unless it is ready.
pub(super) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}
