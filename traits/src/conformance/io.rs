//! Cases about reading and writing.

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;

use super::support::{
    A_WHILE, count_runs, expect_at_least, expect_bytes, expect_error, pair, pair_with, pattern,
    read_to_end, reset_stream, scaled, soon,
};
use crate::{
    BufResult, ByteStream, IoBuf, IoBufExt, IoBufMutExt, IoVec, LONE_WRITE_BYTES_MAX, OwnedRead,
    OwnedReadExt, OwnedWrite, OwnedWriteExt, Pool, PoolConfig, Runtime, Slice, Spare,
    TRANSFER_BYTES_MAX, copy,
};

/// "`Ok(n)`: the first `n` bytes of the buffer are new, and its length is exactly `n`, whatever it was before."
pub async fn read_sets_the_exact_length<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("5byte").await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    let (n, buf) = b.read(vec![0; 32]).await.into_result().unwrap();
    assert!((1..=5).contains(&n), "expected a read of 1 to 5 bytes; seen: {n}");
    assert_eq!(buf.len(), n, "the length of the buffer after a read of {n} bytes");
}

/// "The first `n` bytes of the buffer are new."
pub async fn read_leaves_no_stale_bytes<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("new").await.into_result().unwrap();
    let (n, buf) = b.read(b"stale bytes".to_vec()).await.into_result().unwrap();
    assert_eq!(buf, &b"new"[..n]);
}

/// "To append instead, read into `buf.spare()`."
pub async fn read_appends_through_spare<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let mut buf = Vec::with_capacity(64);
    for word in ["one ", "two ", "three"] {
        a.write_all(word).await.into_result().unwrap();
        let mut missing = word.len();
        while missing > 0 {
            let (n, spare) = b.read(buf.spare().limit(missing)).await.into_result().unwrap();
            buf = Spare::into_inner(spare);
            assert!(n > 0, "expected {missing} more bytes; seen: the end of the stream");
            missing -= n;
        }
    }
    assert_eq!(buf, b"one two three");
}

/// "Reads into `buf` and returns it": the same buffer, on success and on error.
pub async fn read_returns_the_same_buffer<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("bytes").await.into_result().unwrap();
    let buf = Vec::with_capacity(100);
    let (before, capacity) = (buf.as_ptr(), buf.capacity());
    let (_, buf) = b.read(buf).await.into_result().unwrap();
    assert_eq!((buf.as_ptr(), buf.capacity()), (before, capacity), "the buffer after a read");

    let mut b = reset_stream::<R>().await;
    let BufResult(result, buf) = b.read(buf).await;
    expect_error(result, ErrorKind::ConnectionReset);
    assert_eq!((buf.as_ptr(), buf.capacity()), (before, capacity), "the buffer after an error");
}

/// "The buffer comes back with its length unchanged, and no byte was consumed. The error keeps its OS error
/// code."
pub async fn read_error_leaves_the_length<R: Runtime>() {
    let mut b = reset_stream::<R>().await;
    let BufResult(result, buf) = b.read(b"length 9.".to_vec()).await;
    let error = expect_error(result, ErrorKind::ConnectionReset);
    assert_eq!(error.raw_os_error(), Some(104), "the OS error code of {error:?}");
    assert_eq!(buf, b"length 9.", "the buffer after an error");
}

/// "A buffer without capacity returns `Ok(0)` at once. The stream is unchanged, and the result says nothing about
/// it."
pub async fn read_without_capacity_returns_at_once<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let read = soon::<R, _>("a read without capacity", b.read(Vec::new()));
    assert_eq!(read.await.into_result().unwrap().0, 0, "bytes read without capacity");

    a.write_all("x").await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    let (n, _) = b.read(Vec::new()).await.into_result().unwrap();
    assert_eq!(n, 0, "bytes read without capacity");
    let (n, buf) = b.read(Vec::with_capacity(8)).await.into_result().unwrap();
    assert_eq!((n, &buf[..]), (1, &b"x"[..]), "the byte is still there");
}

/// "Request at most `TRANSFER_BYTES_MAX` bytes from the kernel: its length fields are 32 bits wide."
pub async fn read_takes_a_buffer_of_more_than_four_gibibytes<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("x").await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    // The memory is reserved but not touched, so it costs nothing. The low 32 bits of the capacity are zero.
    let mut buf = Vec::new();
    buf.try_reserve_exact(1 << 33).expect("8 GiB of address space (vm.overcommit_memory 0 or 1)");
    let (n, buf) = soon::<R, _>("a read", b.read(buf)).await.into_result().unwrap();
    assert_eq!((n, &buf[..]), (1, &b"x"[..]));
}

/// "`Ok(0)`: the peer has ended the stream. Every later read returns `Ok(0)` again."
pub async fn end_of_stream_is_zero_and_repeats<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("last").await.into_result().unwrap();
    a.shutdown().await.unwrap();
    assert_eq!(soon::<R, _>("the end", read_to_end(&mut b)).await, b"last");
    for _ in 0..3 {
        let read = soon::<R, _>("the end again", b.read(b"old".to_vec()));
        let (n, buf) = read.await.into_result().unwrap();
        assert_eq!((n, buf.len()), (0, 0), "bytes read at the end, and the length of the buffer");
    }
}

/// "Ends the write side: the peer reads all written bytes, then the end of the stream. The read side stays open."
pub async fn half_close_leaves_the_other_direction_open<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("question").await.into_result().unwrap();
    a.shutdown().await.unwrap();
    assert_eq!(soon::<R, _>("the question", read_to_end(&mut b)).await, b"question");
    b.write_all("answer").await.into_result().unwrap();
    b.shutdown().await.unwrap();
    assert_eq!(soon::<R, _>("the answer", read_to_end(&mut a)).await, b"answer");
}

/// "The buffer comes back unchanged."
pub async fn write_returns_the_buffer_unchanged<R: Runtime>() {
    let (mut a, b) = pair::<R>().await;
    let buf = b"some bytes".to_vec();
    let before = buf.as_ptr();
    let (n, buf) = a.write(buf).await.into_result().unwrap();
    assert!((1..=10).contains(&n), "expected a write of 1 to 10 bytes; seen: {n}");
    assert_eq!((buf.as_ptr(), &buf[..]), (before, &b"some bytes"[..]), "the buffer of a write");

    drop(b);
    let mut buf = buf;
    // The first writes may still be taken; bounded by the time a reset takes on loopback.
    for _ in 0..100 {
        let BufResult(result, back) = a.write(buf).await;
        assert_eq!(
            (back.as_ptr(), &back[..]),
            (before, &b"some bytes"[..]),
            "the buffer of a write"
        );
        if result.is_err() {
            return;
        }
        buf = back;
        R::sleep(A_WHILE).await;
    }
    panic!("expected a write to a closed peer to fail; seen: 100 writes succeeded");
}

/// "`Ok(n)`: the transport has taken the first `n` bytes. `n` is at least 1 and may be less than the length."
pub async fn write_takes_at_least_one_byte<R: Runtime>() {
    const BYTES: usize = scaled(4 << 20);
    let (mut a, mut b) = pair_with::<R>(Some(16 * 1024)).await;
    let reader = R::spawn(async move { read_to_end(&mut b).await });
    let sent = pattern(BYTES);
    let mut left = sent.clone().buf_slice(..);
    while left.buf_len() > 0 {
        let (n, back) = a.write(left).await.into_result().unwrap();
        let len = back.buf_len();
        assert!((1..=len).contains(&n), "expected a write of 1 to {len} bytes; seen: {n}");
        left = back;
        left.advance(n);
    }
    a.shutdown().await.unwrap();
    expect_bytes(&reader.await.unwrap(), &sent);
}

/// "Pass at most `coop::write_bytes_max` bytes to the kernel at once": a length is not truncated to 32 bits, and the
/// returned number of bytes arrives.
pub async fn write_takes_a_buffer_of_more_than_four_gibibytes<R: Runtime>() {
    for len in [1 << 32, (1 << 32) + 5] {
        let (mut a, mut b) = pair::<R>().await;
        let reader = R::spawn(async move { read_to_end(&mut b).await });
        // Its pages are only read, so they share the zero page and cost no memory.
        let write = soon::<R, _>("a write", a.write(vec![0; len]));
        let (n, buf) = write.await.into_result().unwrap();
        assert!(
            (1..=LONE_WRITE_BYTES_MAX).contains(&n),
            "expected a write of 1 to {LONE_WRITE_BYTES_MAX} bytes; seen: {n} bytes of {len}"
        );
        assert_eq!(buf.len(), len, "the length of the buffer after a write");
        a.shutdown().await.unwrap();
        assert_eq!(reader.await.unwrap().len(), n, "bytes of {len}");
    }
}

/// "An empty buffer returns `Ok(0)` at once, and the stream is unchanged."
pub async fn write_of_nothing_returns_at_once<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    for _ in 0..3 {
        let write = soon::<R, _>("a write of nothing", a.write(Vec::new()));
        assert_eq!(write.await.into_result().unwrap().0, 0);
    }
    a.write_all("something").await.into_result().unwrap();
    a.shutdown().await.unwrap();
    assert_eq!(soon::<R, _>("the end", read_to_end(&mut b)).await, b"something");
}

/// A write accepts every buffer type: "`Vec<u8>`, `String`, `&'static [u8]`,
/// `&'static [u8; N]`, `&'static str`, `Rc<[u8]>`, `Arc<[u8]>`, `Bytes`, `BytesMut`, `PoolBuf`,
/// `Slice` and `Spare`".
pub async fn write_takes_buffers_of_every_kind<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let mut pooled = Pool::new(PoolConfig::default()).take().unwrap();
    pooled.buf_fill(b"j");
    let mut spare = Vec::with_capacity(8).spare();
    spare.buf_fill(b"l");
    a.write_all(b"a".to_vec()).await.into_result().unwrap();
    a.write_all(b"b").await.into_result().unwrap();
    a.write_all(String::from("c")).await.into_result().unwrap();
    a.write_all(&b"d"[..]).await.into_result().unwrap();
    a.write_all("e").await.into_result().unwrap();
    a.write_all(Rc::<[u8]>::from(&b"f"[..])).await.into_result().unwrap();
    a.write_all(Arc::<[u8]>::from(&b"g"[..])).await.into_result().unwrap();
    a.write_all(bytes::Bytes::from_static(b"h")).await.into_result().unwrap();
    a.write_all(bytes::BytesMut::from(&b"i"[..])).await.into_result().unwrap();
    a.write_all(pooled).await.into_result().unwrap();
    let ((), slice) = a.write_all("-k-".buf_slice(1..2)).await.into_result().unwrap();
    assert_eq!(Slice::into_inner(slice), "-k-", "the buffer of a slice");
    a.write_all(spare).await.into_result().unwrap();
    a.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut b).await, b"abcdefghijkl");
}

/// "Writes the first of `bytes` that the transport takes at once. It does not wait." "`WouldBlock`: no byte was
/// taken. A `write` waits until one can be."
pub async fn try_write_counts_what_it_has_taken<R: Runtime>() {
    const BYTES: usize = scaled(1 << 20);
    let (mut a, mut b) = pair_with::<R>(Some(16 * 1024)).await;
    assert_eq!(a.try_write(&[]).unwrap(), 0);
    let reader = R::spawn(async move { read_to_end(&mut b).await });
    let sent = pattern(BYTES);
    let mut at = 0;
    while at < sent.len() {
        at += match a.try_write(&sent[at..]) {
            Ok(n) => {
                let left = sent.len() - at;
                assert!((1..=left).contains(&n), "expected 1 to {left} bytes; seen: {n}");
                n
            }
            Err(error) => {
                expect_error::<()>(Err(error), ErrorKind::WouldBlock);
                let write = soon::<R, _>("a write", a.write(sent[at..].to_vec()));
                write.await.into_result().unwrap().0
            }
        };
    }
    a.shutdown().await.unwrap();
    expect_bytes(&reader.await.unwrap(), &sent);
}

/// "`WouldBlock`: no byte was taken": to a peer that does not read, what was taken is what arrives.
pub async fn try_write_ends_when_the_peer_does_not_read<R: Runtime>() {
    /// Far more than the kernel buffers for a connection: some 10 MiB, by the defaults of `tcp_wmem` and `tcp_rmem`.
    const TAKEN_BYTES_MAX: usize = 64 << 20;
    let (mut a, mut b) = pair_with::<R>(Some(16 * 1024)).await;
    let sent = pattern(4096);
    let mut taken = Vec::new();
    let mut refusals = 0;
    // A backend may refuse without a reason, but not always.
    while refusals < 64 {
        match a.try_write(&sent) {
            Ok(n) => {
                taken.extend_from_slice(&sent[..n]);
                assert!(
                    taken.len() < TAKEN_BYTES_MAX,
                    "expected WouldBlock from a stream whose peer does not read; seen: {} bytes taken",
                    taken.len()
                );
            }
            Err(error) => {
                expect_error::<()>(Err(error), ErrorKind::WouldBlock);
                refusals += 1;
            }
        }
    }
    a.shutdown().await.unwrap();
    expect_bytes(&soon::<R, _>("the end", read_to_end(&mut b)).await, &taken);
    let error = a.try_write(b"too late").unwrap_err().kind();
    assert!(
        matches!(error, ErrorKind::BrokenPipe | ErrorKind::WouldBlock),
        "expected the error BrokenPipe or WouldBlock after a shutdown; seen: {error:?}"
    );
}

/// "`BrokenPipe` after any shutdown of the write side."
pub async fn write_after_shutdown_is_a_broken_pipe<R: Runtime>() {
    let (mut a, _b) = pair::<R>().await;
    a.shutdown().await.unwrap();
    let BufResult(result, buf) = a.write("too late").await;
    let error = expect_error(result, ErrorKind::BrokenPipe);
    assert_eq!(error.raw_os_error(), Some(32), "the OS error code of {error:?}");
    assert_eq!(buf, "too late", "the buffer after an error");
    let mut bufs = IoVec::new();
    bufs.push("too late");
    let BufResult(result, bufs) = a.write_vectored(bufs).await;
    expect_error(result, ErrorKind::BrokenPipe);
    assert_eq!(bufs.bytes_left(), 8, "the bytes left after an error");
}

/// "`BrokenPipe` or `ConnectionReset` if the peer is gone."
pub async fn write_to_a_closed_peer_fails<R: Runtime>() {
    let (mut a, b) = pair::<R>().await;
    drop(b);
    // The first writes may still be taken; bounded by the time a reset takes on loopback.
    for _ in 0..100 {
        R::sleep(A_WHILE).await;
        if let Err(error) = a.write("is it open?").await.0 {
            assert!(
                matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
                "expected the error BrokenPipe or ConnectionReset; seen: {error:?}"
            );
            return;
        }
    }
    panic!("expected a write to a closed peer to fail; seen: 100 writes succeeded");
}

/// `try_write`: "Otherwise those of `write`": "`BrokenPipe` or `ConnectionReset` if the peer is gone. The error keeps its
/// OS error code."
pub async fn try_write_to_a_closed_peer_fails<R: Runtime>() {
    let mut stream = reset_stream::<R>().await;
    // A backend may refuse without a reason, but not always.
    for _ in 0..64 {
        let error = match stream.try_write(b"is it open?") {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => error,
            Ok(n) => panic!("expected an error after a reset; seen: {n} bytes taken"),
        };
        let is_expected = match error.kind() {
            ErrorKind::BrokenPipe => error.raw_os_error() == Some(32),
            ErrorKind::ConnectionReset => error.raw_os_error() == Some(104),
            _ => false,
        };
        assert!(
            is_expected,
            "expected BrokenPipe or ConnectionReset with its code; seen: {error:?}"
        );
        return;
    }
}

/// "A repeated shutdown is no error while the peer's side is open. Neither is a first shutdown after the peer has ended
/// its own side."
pub async fn shutdown_may_be_repeated<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.shutdown().await.unwrap();
    a.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut b).await, b"");
    b.shutdown().await.unwrap();
}

/// "`NotConnected` once the connection is closed: reset, or ended by both sides."
pub async fn shutdown_reports_a_closed_connection<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.shutdown().await.unwrap();
    b.shutdown().await.unwrap();
    R::sleep(A_WHILE).await;
    for mut gone in [a, b, reset_stream::<R>().await] {
        let error = expect_error(gone.shutdown().await, ErrorKind::NotConnected);
        assert_eq!(error.raw_os_error(), Some(107), "the OS error code of {error:?}");
    }
}

/// "On success the buffer contains exactly these `len` bytes."
pub async fn read_exact_reads_exactly<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let sent = pattern(scaled(4 << 20));
    let writer = R::spawn({
        let sent = sent.clone();
        async move { a.write_all(sent).await.into_result().map(drop) }
    });
    let mut received = Vec::new();
    let mut buf = b"what the buffer held before".to_vec();
    buf.reserve(1000);
    while received.len() < sent.len() {
        let len = (received.len() % 997 + 1).min(sent.len() - received.len());
        ((), buf) = b.read_exact(buf, len).await.into_result().unwrap();
        assert_eq!(buf.len(), len, "the length of the buffer after `read_exact`");
        received.extend_from_slice(&buf);
    }
    expect_bytes(&received, &sent);
    let ((), buf) = b.read_exact(buf, 0).await.into_result().unwrap();
    assert_eq!(buf.len(), 0, "the length of the buffer after `read_exact` of nothing");
    writer.await.unwrap().unwrap();
}

/// "`UnexpectedEof` if the stream ends first: the buffer contains the bytes read so far."
pub async fn read_exact_reports_an_early_end<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("half").await.into_result().unwrap();
    a.shutdown().await.unwrap();
    let BufResult(result, buf) = b.read_exact(Vec::with_capacity(8), 8).await;
    expect_error(result, ErrorKind::UnexpectedEof);
    assert_eq!(buf, b"half");
}

/// "`InvalidInput` if the buffer's capacity is less than `len`: nothing was consumed."
pub async fn read_exact_needs_the_capacity<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("x").await.into_result().unwrap();
    let small = b"small".to_vec().into_boxed_slice().into_vec();
    let BufResult(result, small) = b.read_exact(small, 6).await;
    expect_error(result, ErrorKind::InvalidInput);
    assert_eq!(small, b"small");
    assert_eq!(b.read_exact(small, 1).await.into_result().unwrap().1, b"x");
}

/// "A loop of reads lets other tasks run, even if no read ever has to wait."
pub async fn reads_that_never_wait_let_others_run<R: Runtime>() {
    const BYTES: u32 = if cfg!(miri) { 500 } else { 10_000 };
    let (mut a, mut b) = pair::<R>().await;
    a.write_all(pattern(BYTES as usize)).await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    let runs = count_runs::<R>();
    let mut buf = Vec::with_capacity(1);
    for _ in 0..BYTES {
        ((), buf) = b.read_exact(buf, 1).await.into_result().unwrap();
    }
    expect_at_least(10, &format!("runs of another task during {BYTES} reads"), runs.get());
}

/// "Lets other tasks run, as `read` does."
pub async fn writes_that_never_wait_let_others_run<R: Runtime>() {
    const BYTES: u32 = if cfg!(miri) { 500 } else { 10_000 };
    let (mut a, _b) = pair::<R>().await; // all bytes fit into its buffers
    let runs = count_runs::<R>();
    for _ in 0..BYTES {
        let write = soon::<R, _>("a byte", a.write_all("x"));
        write.await.into_result().unwrap();
    }
    expect_at_least(10, &format!("runs of another task during {BYTES} writes"), runs.get());
}

/// "The most bytes that one read passes to the kernel", and one write, whatever the size of the buffer is, and however
/// many bytes are ready. The writer may be alone.
pub async fn one_operation_transfers_a_bounded_number_of_bytes<R: Runtime>() {
    const BYTES: usize = if cfg!(miri) { 2 } else { 16 } * TRANSFER_BYTES_MAX;
    const PIECES: usize = 64;
    let (mut a, mut b) = pair::<R>().await;
    let writing = R::spawn(async move {
        let BufResult(result, _) = a.write(vec![1; BYTES]).await;
        let mut longest = result.unwrap();
        let mut pieces = IoVec::with_capacity(PIECES);
        (0..PIECES).for_each(|_| pieces.push(vec![1; BYTES / PIECES]));
        while pieces.bytes_left() > 0 {
            let result;
            BufResult(result, pieces) = a.write_vectored(pieces).await;
            longest = longest.max(result.unwrap());
        }
        a.shutdown().await.unwrap();
        longest
    });
    // By then more bytes are ready than one read may take, if the kernel's buffers hold as many.
    R::sleep(A_WHILE).await;
    let (mut buf, mut longest) = (Vec::with_capacity(BYTES), 0);
    loop {
        let (n, filled) = b.read(buf).await.into_result().unwrap();
        if n == 0 {
            break;
        }
        longest = longest.max(n);
        buf = filled;
    }
    assert!(
        longest <= TRANSFER_BYTES_MAX,
        "expected a read to take at most {TRANSFER_BYTES_MAX} bytes; seen: {longest}"
    );
    let longest = writing.await.unwrap();
    assert!(
        longest <= LONE_WRITE_BYTES_MAX,
        "expected a write to take at most {LONE_WRITE_BYTES_MAX} bytes; seen: {longest}"
    );
}

/// "Copies bytes from `reader` to `writer` until the end of the stream. Returns their number. Does not shut down
/// the writer."
pub async fn copy_moves_everything_and_counts<R: Runtime>() {
    const BYTES: usize = scaled(1 << 20);
    let (client, server) = pair::<R>().await;
    let echo = R::spawn(async move {
        let (mut read, mut write) = server.into_split();
        let copied = copy(&mut read, &mut write, &Pool::new(PoolConfig::default())).await;
        write.write_all(" still open").await.into_result().unwrap();
        copied.unwrap()
    });
    let (mut read, mut write) = client.into_split();
    drop(R::spawn(async move {
        write.write_all(pattern(BYTES)).await.into_result().unwrap();
        write.shutdown().await.unwrap();
    }));
    let received = read_to_end(&mut read).await;
    expect_bytes(&received, &[&pattern(BYTES)[..], b" still open"].concat());
    assert_eq!(echo.await.unwrap(), BYTES as u64, "the number of bytes that `copy` returns");
}

/// "The bytes of each read are written before the next read", however long the next read waits.
pub async fn copy_writes_before_the_next_read<R: Runtime>() {
    let ((mut source, mut reader), (mut writer, mut sink)) = (pair::<R>().await, pair::<R>().await);
    drop(R::spawn(async move {
        copy(&mut reader, &mut writer, &Pool::new(PoolConfig::default())).await
    }));
    for word in ["one", "two"] {
        source.write_all(word).await.into_result().unwrap();
        let read = soon::<R, _>(word, sink.read_exact(Vec::with_capacity(3), 3));
        assert_eq!(read.await.into_result().unwrap().1, word.as_bytes());
    }
}

/// "Bytes that were read but not written are lost", and no others.
pub async fn copy_loses_only_what_it_could_not_write<R: Runtime>() {
    let ((mut source, mut reader), (mut writer, _sink)) = (pair::<R>().await, pair::<R>().await);
    writer.shutdown().await.unwrap();
    source.write_all("x").await.into_result().unwrap();
    let pool = Pool::new(PoolConfig::default());
    let copied = soon::<R, _>("the error", copy(&mut reader, &mut writer, &pool));
    expect_error(copied.await, ErrorKind::BrokenPipe);
    assert_eq!(pool.leased(), 0, "the buffers that `copy` holds after its end");
    source.write_all("next").await.into_result().unwrap();
    let read = soon::<R, _>("the next bytes", reader.read_exact(Vec::with_capacity(4), 4));
    assert_eq!(read.await.into_result().unwrap().1, b"next");
}

/// "Splits the connection into two halves, so that one task can read while another writes."
pub async fn halves_read_and_write_at_once<R: Runtime>() {
    const BYTES: usize = scaled(4 << 20);
    let (a, b) = pair_with::<R>(Some(16 * 1024)).await;
    let mut tasks = Vec::new();
    for stream in [a, b] {
        let (mut read, mut write) = stream.into_split();
        tasks.push(R::spawn(async move {
            // If the halves excluded each other, neither end would ever read.
            let writer = R::spawn(async move {
                write.write_all(pattern(BYTES)).await.into_result().unwrap();
                write.shutdown().await.unwrap();
            });
            let received = read_to_end(&mut read).await;
            writer.await.unwrap();
            received
        }));
    }
    for task in tasks {
        expect_bytes(&task.await.unwrap(), &pattern(BYTES));
    }
}

/// No byte of a long stream is lost, doubled or swapped: a gibibyte through buffers of 64 KiB.
pub async fn a_gibibyte_arrives_whole<R: Runtime>() {
    const BYTES: usize = scaled(1 << 30);
    const BLOCK: usize = 64 * 1024 - 8; // not a power of two, so that a shift is detected
    let (mut a, mut b) = pair::<R>().await;
    let writer = R::spawn(async move {
        let (mut sent, mut block) = (0, pattern(BLOCK));
        while sent < BYTES {
            block[..8].copy_from_slice(&(sent as u64).to_le_bytes()); // each block differs
            let ((), back) = a.write_all(block).await.into_result().unwrap();
            (sent, block) = (sent + BLOCK, back);
        }
        a.shutdown().await.unwrap();
        sent
    });
    let (mut received, mut expected) = (0, pattern(BLOCK));
    let mut buf = Vec::with_capacity(BLOCK);
    loop {
        let BufResult(result, back) = b.read_exact(buf, BLOCK).await;
        buf = back;
        if let Err(error) = result {
            expect_error::<()>(Err(error), ErrorKind::UnexpectedEof);
            assert_eq!(buf.len(), 0, "the bytes after the last whole block");
            break;
        }
        expected[..8].copy_from_slice(&(received as u64).to_le_bytes());
        if buf != expected {
            panic!("expected the block that was sent at byte {received}; seen: other bytes");
        }
        received += BLOCK;
    }
    assert_eq!(received, writer.await.unwrap(), "the number of bytes that arrived");
}
