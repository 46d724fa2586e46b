//! Each adapter over connections of the simulator, whose reads and writes are short.

mod interface;

use std::io::{self, ErrorKind, IoSlice};
use std::pin::pin;
use std::time::Duration;

use interface::{
    ACCEPTED_BYTES_MAX, Adapter, PIPE_BYTES_MAX, buffers, for_each_adapter, is_waiting,
};
use owned_io::{ByteStream, Clock, Executor, OwnedRead, OwnedWrite, OwnedWriteExt, select};
use owned_io_compat::{FuturesIo, TokioIo};
use owned_io_sim::{Config, Sim, World, pipe};

for_each_adapter! {
    bytes_in_pieces_of_any_size_come_back
    a_dropped_future_loses_no_bytes
    the_end_of_the_stream_is_repeated
    a_peer_that_reads_nothing_stops_writes
    a_shutdown_sends_what_is_buffered
    a_failed_write_is_reported_by_all_that_follows
    nothing_is_read_and_written_at_once
}

const SENT_BYTES: usize = 300_000;

/// A length from 1 to `most`, often a short one.
fn random_len(most: usize) -> usize {
    let world = World::current();
    let usual = [1, 10, 1_000, 100_000][world.random(4) as usize];
    (1 + world.random(usual) as usize).min(most)
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// Sends `bytes` in pieces of any size, and ends the stream.
async fn send_in_pieces(mut half: impl OwnedWrite, bytes: Vec<u8>) -> io::Result<()> {
    let mut left = &bytes[..];
    while !left.is_empty() {
        let (piece, rest) = left.split_at(random_len(left.len()));
        half.write_all(piece.to_vec()).await.into_result()?;
        left = rest;
    }
    half.shutdown().await
}

async fn receive_to_end(half: &mut impl OwnedRead) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    loop {
        let (n, bytes) = half.read(Vec::with_capacity(4096)).await.into_result()?;
        if n == 0 {
            return Ok(received);
        }
        received.extend_from_slice(&bytes);
    }
}

/// Sends bytes to `echo` on the other end, and compares what comes back.
async fn compare_echo<A: Adapter>(echo: impl AsyncFnOnce(A) -> io::Result<()> + 'static) {
    let (near, far) = pipe();
    let io = A::adapt(near, &buffers());
    let echoing = Sim::spawn(async move { echo(io).await });
    let (mut read, write) = far.into_split();
    let sending = Sim::spawn(send_in_pieces(write, numbered(SENT_BYTES)));
    let received = receive_to_end(&mut read).await.unwrap();
    assert!(received == numbered(SENT_BYTES), "{} bytes came back", received.len());
    sending.await.unwrap().unwrap();
    echoing.await.unwrap().unwrap();
}

async fn echo<A: Adapter>(mut io: A) -> io::Result<()> {
    let mut buf = vec![0; 100_000];
    loop {
        let most = random_len(buf.len());
        let n = io.read(&mut buf[..most]).await?;
        if n == 0 {
            return io.shutdown().await;
        }
        let mut left = &buf[..n];
        while !left.is_empty() {
            let (first, second) = left.split_at(random_len(left.len()));
            let parts = [first, &[], second].map(IoSlice::new);
            left = &left[io.write_parts(&parts).await?..];
        }
    }
}

fn bytes_in_pieces_of_any_size_come_back<A: Adapter>() {
    for seed in owned_io_sim::seeds(20) {
        println!("seed {seed}"); // shown when the test fails
        Sim::block_on(Config::with_seed(seed), compare_echo::<A>(echo)).unwrap();
    }
}

/// Repeats an operation, whose future is dropped whenever it takes too long.
async fn impatiently<T>(mut operation: impl AsyncFnMut() -> T) -> T {
    loop {
        let patience = Duration::from_micros(World::current().random(20));
        let selected = select(pin!(operation()), Sim::sleep(patience)).await;
        if let Some(output) = selected.first {
            return output;
        }
    }
}

async fn echo_impatiently<A: Adapter>(mut io: A) -> io::Result<()> {
    let mut buf = vec![0; 10_000];
    loop {
        let n = impatiently(async || io.read(&mut buf).await).await?;
        if n == 0 {
            return impatiently(async || io.shutdown().await).await;
        }
        let mut at = 0;
        while at < n {
            at += impatiently(async || io.write(&buf[at..n]).await).await?;
        }
        if World::current().random(2) == 0 {
            impatiently(async || io.flush().await).await?;
        }
    }
}

/// Under some seeds a read or write that is dropped takes bytes with it.
fn a_dropped_future_loses_no_bytes<A: Adapter>() {
    owned_io_sim::run(owned_io_sim::seeds(20), async |_| {
        compare_echo::<A>(echo_impatiently).await;
        Ok(())
    });
}

fn the_end_of_the_stream_is_repeated<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, mut far) = pipe();
        let buffers = buffers();
        let mut io = A::adapt(near, &buffers);
        far.write_all("hello").await.into_result().unwrap();
        far.shutdown().await.unwrap();
        let mut buf = [0; 10];
        io.read_exact(&mut buf[..5]).await.unwrap();
        assert_eq!(&buf[..5], b"hello");
        for _ in 0..3 {
            assert_eq!(io.read(&mut buf).await.unwrap(), 0);
            assert_eq!(buffers.pool().leased(), 0);
        }
        io.write_all(b"still here").await.unwrap();
        io.shutdown().await.unwrap();
        assert_eq!(receive_to_end(&mut far).await.unwrap(), b"still here");
    });
}

/// Writes until a write waits for a second. Returns how many bytes were accepted.
async fn fill<A: Adapter>(io: &mut A) -> usize {
    let (bytes, mut accepted) = (numbered(1 << 20), 0);
    loop {
        let writing = pin!(io.write(&bytes[accepted..]));
        match select(writing, Sim::sleep(Duration::from_secs(1))).await.first {
            Some(n) => accepted += n.unwrap(),
            None => return accepted,
        }
    }
}

fn a_peer_that_reads_nothing_stops_writes<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, mut far) = pipe();
        let buffers = buffers();
        let mut io = A::adapt(near, &buffers);
        let accepted = fill(&mut io).await;
        assert_eq!(accepted, PIPE_BYTES_MAX + ACCEPTED_BYTES_MAX);
        assert_eq!(buffers.budget().common_bytes_held(), ACCEPTED_BYTES_MAX);
        assert!(is_waiting(io.flush()).await, "flushed, but nothing was read");
        let reading = Sim::spawn(async move { receive_to_end(&mut far).await });
        io.flush().await.unwrap();
        assert_eq!(buffers.budget().common_bytes_held(), 0);
        io.write_all(&numbered(SENT_BYTES)).await.unwrap();
        io.shutdown().await.unwrap();
        let expected = [numbered(accepted), numbered(SENT_BYTES)].concat();
        assert!(reading.await.unwrap().unwrap() == expected);
    });
}

fn a_shutdown_sends_what_is_buffered<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, mut far) = pipe();
        let mut io = A::adapt(near, &buffers());
        let accepted = fill(&mut io).await;
        assert!(is_waiting(io.shutdown()).await, "shut down before the bytes were sent");
        let reading = Sim::spawn(async move {
            let received = receive_to_end(&mut far).await;
            far.write_all("to the end").await.into_result().unwrap();
            received
        });
        io.shutdown().await.unwrap();
        assert!(reading.await.unwrap().unwrap() == numbered(accepted));
        let mut answer = [0; 10];
        io.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"to the end");
        for _ in 0..2 {
            assert_eq!(io.write(b"too late").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            io.shutdown().await.unwrap();
        }
    });
}

#[test]
fn a_read_of_futures_drives_a_write_that_was_not_flushed() {
    read_without_a_flush::<FuturesIo>();
}

#[test]
fn a_read_of_tokio_drives_a_write_that_was_not_flushed() {
    read_without_a_flush::<TokioIo>();
}

/// A caller that waits for the answer to what it wrote, as over a socket, which needs no flush. hyper always flushes.
fn read_without_a_flush<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, far) = pipe();
        let mut io = A::adapt(near, &buffers());
        let answering = Sim::spawn(async move {
            let (mut read, mut write) = far.into_split();
            Sim::sleep(Duration::from_secs(1)).await;
            let mut left = SENT_BYTES;
            while left > 0 {
                left -= read.read(Vec::with_capacity(left)).await.into_result().unwrap().0;
            }
            write.write_all("answer").await.into_result().unwrap();
        });
        io.write_all(&numbered(SENT_BYTES)).await.unwrap();
        let mut answer = [0; 6];
        io.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        answering.await.unwrap();
    });
}

fn a_failed_write_is_reported_by_all_that_follows<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, far) = pipe();
        let mut io = A::adapt(near, &buffers());
        io.write_all(b"not read").await.unwrap();
        io.flush().await.unwrap();
        drop(far); // a reset, because of what was not read
        assert_eq!(io.write(b"accepted").await.unwrap(), 8);
        let error = io.flush().await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
        let later = [
            io.write(b"x").await.map(drop),
            io.flush().await,
            io.shutdown().await,
            io.flush().await,
        ];
        for result in later {
            assert_eq!(result.unwrap_err().raw_os_error(), error.raw_os_error());
        }
    });
}

fn nothing_is_read_and_written_at_once<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, mut far) = pipe();
        let mut io = A::adapt(near, &buffers());
        assert_eq!(io.read(&mut []).await.unwrap(), 0);
        assert_eq!(io.write(&[]).await.unwrap(), 0);
        assert_eq!(io.write_parts(&[]).await.unwrap(), 0);
        io.shutdown().await.unwrap();
        assert_eq!(receive_to_end(&mut far).await.unwrap(), b"");
    });
}
