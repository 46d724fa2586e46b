//! What the cases share: connected pairs, bounded waits, bytes that can be checked.

use std::cell::Cell;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use super::prove::waits_for;
use crate::{
    BufResult, ByteStream, ConnectOptions, IoBuf, ListenOptions, OwnedRead, OwnedWrite, Runtime,
    TcpListener, select,
};

/// Long enough for anything on loopback, on a busy machine; short enough to wait for in a case that
/// fails.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// Long enough for whatever is under way on loopback to arrive, or for a runtime to turn.
pub(super) const A_WHILE: Duration = Duration::from_millis(30);

/// `bytes`, or fewer where every byte is slow (Miri); still more than any buffer on the way holds.
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

/// Any free port.
pub(super) fn loopback() -> ListenOptions {
    ListenOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// A listener on any free port, and its address.
pub(super) fn listener<R: Runtime>(options: ListenOptions) -> (R::TcpListener, SocketAddr) {
    let bound = R::bind(options).expect("a free port");
    (R::listen(&bound).expect("to listen"), bound.local_addr())
}

pub(super) async fn connect<R: Runtime>(addr: SocketAddr) -> R::TcpStream {
    R::connect(ConnectOptions::new(addr)).await.expect("to connect")
}

/// A client and the server's end of it.
pub(super) async fn pair<R: Runtime>() -> (R::TcpStream, R::TcpStream) {
    pair_with::<R>(None).await
}

/// A client and the server's end of it, with small buffers on the way if `buffer_bytes` says so.
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
    let client = R::connect(connect).await.expect("to connect");
    let (server, _) = listener.accept().await.expect("to accept");
    (client, server)
}

/// A stream whose peer has reset it, which its next read tells.
pub(super) async fn reset_stream<R: Runtime>() -> R::TcpStream {
    let (a, mut b) = pair::<R>().await;
    crate::OwnedWriteExt::write_all(&mut b, "never read").await.into_result().expect("to write");
    R::sleep(A_WHILE).await;
    drop(a);
    R::sleep(A_WHILE).await;
    b
}

/// The output of `future`, which must come soon.
pub(super) async fn soon<R: Runtime, F: Future>(what: &str, future: F) -> F::Output {
    waits_for(what);
    let output = within::<R, F>(SOON, future).await;
    output
        .unwrap_or_else(|| panic!("expected {what} within {SOON:?}; seen: it is still waited for"))
}

/// The output of `future`, if it comes within `limit`. Drops it if not.
pub(super) async fn within<R: Runtime, F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    select(future.as_mut(), R::sleep(limit)).await.first
}

/// Whether `future` is still pending after a while. Drops it.
pub(super) async fn stays_pending<R: Runtime>(future: impl Future) -> bool {
    within::<R, _>(A_WHILE, future).await.is_none()
}

/// Waits until the peer has ended the stream, or it was reset: either way it is closed.
pub(super) async fn expect_closed<R: Runtime>(stream: &mut impl OwnedRead) {
    let closed = soon::<R, _>("the end of the stream", async {
        loop {
            let BufResult(result, _) = stream.read(Vec::with_capacity(4096)).await;
            match result {
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    });
    assert!(closed.await);
}

/// Reads until the end of the stream.
pub(super) async fn read_to_end(stream: &mut impl OwnedRead) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (n, buf) =
            stream.read(Vec::with_capacity(16 * 1024)).await.into_result().expect("to read");
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&buf);
    }
}

/// Writes until the kernel takes no more for a while, and forgets the write that is pending then:
/// what is left is a stream that a peer must read from before another byte fits in.
pub(super) async fn fill<R: Runtime>(stream: &mut impl OwnedWrite) {
    // Bounded: buffers on loopback grow to some megabytes.
    for _ in 0..10_000 {
        let write = stream.write(vec![0x5a; 64 * 1024]);
        match within::<R, _>(A_WHILE, write).await {
            Some(BufResult(result, _)) => assert!(result.expect("to write") > 0),
            None => return,
        }
    }
    panic!("the connection takes bytes for ever");
}

/// `len` bytes, none of them what its neighbours would be if some were lost or swapped.
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

/// Counts how often a task has had its turn that is done with it at once, a million times at most.
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

/// Echoes until the client ends, then ends too.
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

/// Sends `bytes` and reads as many back.
pub(super) async fn echoed(stream: &mut (impl OwnedRead + OwnedWrite), bytes: &[u8]) -> Vec<u8> {
    use crate::{OwnedReadExt, OwnedWriteExt};
    stream.write_all(bytes.to_vec()).await.into_result().expect("to write");
    let buf = Vec::with_capacity(bytes.len());
    stream.read_exact(buf, bytes.len()).await.into_result().expect("to read").1
}

/// A buffer whose drops are counted.
pub(super) struct Counted {
    pub(super) bytes: Vec<u8>,
    pub(super) drops: Rc<Cell<u32>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.set(self.drops.get() + 1);
    }
}

// SAFETY: 1. Pointer and length are the vector's. 2. Its bytes are on the heap, and nobody grows it.
// 3. Both change through `&mut` only. 4. The vector owns its bytes.
unsafe impl IoBuf for Counted {
    fn buf_ptr(&self) -> *const u8 {
        self.bytes.buf_ptr()
    }
    fn buf_len(&self) -> usize {
        self.bytes.buf_len()
    }
}

// SAFETY: 1. The vector's pointer and capacity. 2. Nobody grows it. 3. `set_buf_len` is the vector's.
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
