//! Cases about the end of operations: by shutdown, by time limit, by drop.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::support::{
    A_WHILE, Counted, SOON, expect_bytes, expect_closed, expect_error, expect_pending, fill,
    joined, pair, pair_with, pattern, read_to_end, scaled, soon, within,
};
use super::{Declared, DroppedRead};
use crate::{
    BufResult, ByteStream, IoVec, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt, Pool,
    PoolConfig, Runtime, select, shutdown_after,
};

/// "`Shutdown::Read`: a pending read returns `Ok(0)`. `Shutdown::Both`: both of these."
pub async fn shutdown_handle_ends_a_pending_read<R: Runtime>() {
    for how in [Shutdown::Read, Shutdown::Both] {
        let (_a, mut b) = pair::<R>().await;
        let handle = b.shutdown_handle();
        let mut read = pin!(b.read(b"old".to_vec()));
        expect_pending::<R>("a read", read.as_mut()).await;
        handle.shutdown(how);
        let (n, buf) = soon::<R, _>("the read's end", read).await.into_result().unwrap();
        assert_eq!((n, buf.len()), (0, 0), "bytes read, and the length of the buffer: {how:?}");
    }
}

/// "A later read does so too while nothing is to be read. On Linux, bytes that the peer still sends can be
/// read."
pub async fn shutdown_handle_ends_later_reads_too<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    b.shutdown_handle().shutdown(Shutdown::Read);
    for _ in 0..2 {
        let read = soon::<R, _>("the end", b.read(b"old".to_vec()));
        let seen = read.await.into_result().unwrap();
        assert_eq!(seen, (0, Vec::new()), "a read after the shutdown, while nothing was sent");
        a.write_all("nevertheless").await.into_result().unwrap();
        R::sleep(A_WHILE).await;
        let read = soon::<R, _>("the bytes", b.read_exact(Vec::with_capacity(12), 12));
        let seen = read.await.into_result().unwrap().1;
        assert_eq!(seen, b"nevertheless", "the bytes sent after the shutdown");
    }
}

/// "The peer's next operation fails with `ConnectionReset`": queued bytes are discarded, which a shutdown would
/// still send. "At this end, pending and later reads and writes fail."
pub async fn abort_resets_and_ends_a_pending_write<R: Runtime>() {
    let (mut a, b) = pair_with::<R>(Some(16 * 1024)).await;
    let handle = b.shutdown_handle();
    let (mut read, mut write) = b.into_split();
    let sent = scaled(16 << 20);
    let mut writing = Box::pin(write.write_all(pattern(sent)));
    expect_pending::<R>("a write to a peer that does not read", writing.as_mut()).await;
    handle.abort();
    let ended = soon::<R, _>("the write's end", writing).await;
    assert!(ended.0.is_err(), "expected the pending write to fail; seen: success");
    let read = soon::<R, _>("the read's end", read.read(Vec::with_capacity(16))).await;
    assert!(read.0.is_err(), "expected a read after the abort to fail; seen: {read:?}");
    let later = soon::<R, _>("the write's end", write.write("later")).await;
    assert!(later.0.is_err(), "expected a write after the abort to fail; seen: {later:?}");

    let mut received = 0;
    let error = loop {
        let read = soon::<R, _>("the reset", a.read(Vec::with_capacity(64 * 1024))).await;
        match read.into_result() {
            Ok((n, _)) => received += n,
            Err(error) => break error,
        }
        assert!(
            (1..sent).contains(&received),
            "expected a reset before {sent} bytes and the end; seen: {received} bytes and no reset"
        );
    };
    expect_error::<()>(Err(error), ErrorKind::ConnectionReset);
}

/// "Pending reads fail": the result does not look like the end of the stream. "A closed connection needs no
/// reset."
pub async fn abort_ends_a_pending_read<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let handle = b.shutdown_handle();
    let mut read = Box::pin(b.read(b"old".to_vec()));
    expect_pending::<R>("a read", read.as_mut()).await;
    handle.abort();
    handle.abort();
    let BufResult(result, buf) = soon::<R, _>("the read's end", read).await;
    assert!(result.is_err(), "expected the pending read to fail; seen: {result:?}");
    assert_eq!(buf, b"old", "the buffer after an error");
    let read = soon::<R, _>("the reset", a.read(Vec::with_capacity(16))).await;
    expect_error(read.0, ErrorKind::ConnectionReset);
    drop(b);
    handle.abort();
}

/// "Writes continue, pending ones included", also while the peer sends.
pub async fn shutdown_handle_for_reads_leaves_a_pending_write<R: Runtime>() {
    for is_vectored in [false, true] {
        let (mut a, mut b) = pair_with::<R>(Some(16 * 1024)).await;
        let handle = a.shutdown_handle();
        // More than fits anywhere on the way, so it pends sooner or later.
        let sent = pattern(scaled(16 << 20));
        let writer = R::spawn({
            let sent = sent.clone();
            async move {
                if is_vectored {
                    let mut bufs = IoVec::new();
                    bufs.extend([sent]);
                    a.write_all_vectored(bufs).await.0?;
                } else {
                    a.write_all(sent).await.0?;
                }
                a.shutdown().await.map(|()| a)
            }
        });
        R::sleep(A_WHILE).await;
        b.write_all("meanwhile").await.into_result().unwrap();
        R::sleep(A_WHILE).await;
        handle.shutdown(Shutdown::Read);
        R::sleep(A_WHILE).await;
        let reader = R::spawn(async move { read_to_end(&mut b).await });
        // Dropped with bytes unread, it would reset.
        let _a = joined::<R, _>("the write's end", writer).await.unwrap();
        expect_bytes(&joined::<R, _>("the end of the stream", reader).await, &sent);
    }
}

/// As for a read: a pending pooled read returns an empty buffer.
pub async fn shutdown_handle_ends_a_pending_pooled_read<R: Runtime>() {
    let (_a, b) = pair::<R>().await;
    let handle = b.shutdown_handle();
    let (mut read, _write) = b.into_split();
    let pool = Pool::new(PoolConfig::default());
    let mut read = pin!(read.read_pooled(&pool));
    expect_pending::<R>("a pooled read", read.as_mut()).await;
    handle.shutdown(Shutdown::Both);
    let buf = soon::<R, _>("the read's end", read).await.unwrap();
    assert_eq!(&buf[..], b"", "the bytes of a read that a shutdown ended");
}

/// "`Shutdown::Both`: a pending write also ends, with that error or a short count."
pub async fn shutdown_handle_ends_a_pending_write<R: Runtime>() {
    let (mut a, _b) = pair_with::<R>(Some(16 * 1024)).await;
    let handle = a.shutdown_handle();
    // More than fits anywhere on the way, so it pends sooner or later.
    let writer = R::spawn(async move { a.write_all(pattern(scaled(64 << 20))).await.0 });
    R::sleep(A_WHILE).await;
    handle.shutdown(Shutdown::Both);
    let written = joined::<R, _>("the write's end", writer).await;
    expect_error(written, ErrorKind::BrokenPipe);
}

/// "`bytes_left` is the number of bytes that were not written", if `write_all_vectored` fails.
pub async fn write_all_vectored_reports_progress<R: Runtime>() {
    const BYTES: usize = scaled(64 << 20);
    let (mut a, mut b) = pair_with::<R>(Some(16 * 1024)).await;
    let handle = a.shutdown_handle();
    let mut bufs = IoVec::new();
    bufs.extend(pattern(BYTES).chunks(7_001).map(<[u8]>::to_vec));
    let writer = R::spawn(async move { a.write_all_vectored(bufs).await });
    // From the first byte on, the writer has made progress to report.
    let first = soon::<R, _>("the first byte", b.read_exact(Vec::with_capacity(1), 1)).await;
    let ((), mut received) = first.into_result().unwrap();
    R::sleep(A_WHILE).await;
    handle.shutdown(Shutdown::Both);
    let BufResult(result, bufs) = joined::<R, _>("the write's end", writer).await;
    expect_error(result, ErrorKind::BrokenPipe);
    received.extend(soon::<R, _>("the end", read_to_end(&mut b)).await);
    assert_eq!(received.len(), BYTES - bufs.bytes_left(), "the number of bytes that were written");
    expect_bytes(&received, &pattern(BYTES)[..received.len()]);
}

/// "`Shutdown::Write`: the peer reads the end of the stream. A later write fails with `BrokenPipe`."
pub async fn shutdown_handle_ends_the_write_side<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("before").await.into_result().unwrap();
    a.shutdown_handle().shutdown(Shutdown::Write);
    assert_eq!(soon::<R, _>("the end", read_to_end(&mut b)).await, b"before");
    expect_error(a.write("after").await.0, ErrorKind::BrokenPipe);
    b.write_all("the other way").await.into_result().unwrap();
    drop(b);
    assert_eq!(soon::<R, _>("the other way", read_to_end(&mut a)).await, b"the other way");
}

/// "It does not keep the connection open: once the stream and its halves are dropped, it does
/// nothing."
pub async fn shutdown_handle_does_not_keep_the_stream_open<R: Runtime>() {
    let (a, mut b) = pair::<R>().await;
    let handle = a.shutdown_handle();
    let (read, write) = a.into_split();
    drop((read, write));
    expect_closed::<R>(&mut b).await;
    // If the handle still used its descriptor, these new connections might have the same one.
    let (mut c, mut d) = pair::<R>().await;
    handle.shutdown(Shutdown::Both);
    c.write_all("unharmed").await.into_result().unwrap();
    let read = d.read_exact(Vec::with_capacity(8), 8).await;
    assert_eq!(read.into_result().unwrap().1, b"unharmed");
}

/// "`TimedOut` if the limit came first: a time limit never looks like a clean end of the stream", and "its buffer
/// always comes back."
pub async fn shutdown_after_is_not_a_clean_end<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let handle = b.shutdown_handle();
    let buf = Vec::with_capacity(100);
    let before = buf.as_ptr();
    let read = shutdown_after::<R, _>(A_WHILE, &handle, b.read(buf));
    let BufResult(result, buf) = soon::<R, _>("the deadline", read).await;
    expect_error(result, ErrorKind::TimedOut);
    assert_eq!(buf.as_ptr(), before, "the address of the buffer");
    expect_closed::<R>(&mut a).await;
}

/// The same for a write that waits for a peer that does not read.
pub async fn shutdown_after_ends_a_write<R: Runtime>() {
    let (mut a, _b) = pair_with::<R>(Some(16 * 1024)).await;
    let handle = a.shutdown_handle();
    let write =
        shutdown_after::<R, _>(A_WHILE * 3, &handle, a.write_all(pattern(scaled(64 << 20))));
    let BufResult(result, buf) = soon::<R, _>("the deadline", write).await;
    expect_error(result, ErrorKind::TimedOut);
    assert_eq!(buf.len(), scaled(64 << 20), "the length of the buffer");
}

/// An operation that is done within the limit is not affected.
pub async fn shutdown_after_keeps_success<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let handle = b.shutdown_handle();
    for word in ["one", "two"] {
        a.write_all(word).await.into_result().unwrap();
        let read = b.read_exact(Vec::with_capacity(3), 3);
        let ((), buf) = shutdown_after::<R, _>(SOON, &handle, read).await.into_result().unwrap();
        assert_eq!(buf, word.as_bytes());
    }
}

/// "The read is borrowed, so none of its bytes are lost: await it again afterwards."
pub async fn select_resumes_the_read<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let sent = pattern(5_000);
    let writer = R::spawn({
        let sent = sent.clone();
        async move {
            for part in sent.chunks(100) {
                a.write_all(part.to_vec()).await.into_result().unwrap();
                R::sleep(Duration::from_millis(1)).await;
            }
            a.shutdown().await.unwrap();
        }
    });
    let (mut received, mut interrupted) = (Vec::new(), 0);
    loop {
        let mut read = pin!(b.read(Vec::with_capacity(64)));
        let (n, buf) = loop {
            let selected = select(read.as_mut(), R::sleep(Duration::from_micros(100))).await;
            if let Some(result) = selected.first {
                break result.into_result().unwrap();
            }
            interrupted += 1;
        };
        if n == 0 {
            break;
        }
        received.extend_from_slice(&buf);
    }
    expect_bytes(&received, &sent);
    assert!(
        interrupted > 0,
        "expected reads that wait for a sender that sleeps; seen: none waited"
    );
    writer.await.unwrap();
}

/// "If both are ready, both outputs come back."
pub async fn select_returns_both<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all("x").await.into_result().unwrap();
    let read = R::spawn(async move { b.read(Vec::with_capacity(1)).await.into_result() });
    R::sleep(A_WHILE).await;
    let mut read = pin!(read);
    let selected = select(read.as_mut(), std::future::ready("other")).await;
    let first = selected.first.expect("expected the first output; seen: it was not ready");
    assert_eq!(first.unwrap().unwrap().1, b"x", "the bytes of the read");
    assert_eq!(selected.second, Some("other"), "the second output");
}

/// `DroppedRead`: "what happens to bytes that arrive after a pending read was dropped."
pub async fn dropped_read_does_what_is_declared<R: Runtime>(declared: &Declared) {
    let declared = declared.dropped_read;
    if declared == DroppedRead::LosesNothing {
        // No bytes are lost, even if they arrive right after the drop.
        let (mut a, mut b) = pair::<R>().await;
        for _ in 0..50 {
            let read = within::<R, _>(Duration::ZERO, b.read(Vec::with_capacity(16))).await;
            assert!(
                read.is_none(),
                "expected a read to wait while nothing was sent; seen: {read:?}"
            );
            a.write_all("kept").await.into_result().unwrap();
            let read = within::<R, _>(SOON, b.read_exact(Vec::with_capacity(4), 4)).await;
            let seen = read.map(|read| read.into_result().unwrap().1);
            assert!(
                seen.as_deref() == Some(b"kept"),
                "expected the bytes that were sent right after the drop, as `dropped_read: \
                 {declared:?}` declares; seen within {SOON:?}: {seen:?}"
            );
        }
    }
    let (mut a, mut b) = pair::<R>().await;
    expect_pending::<R>("a read", b.read(Vec::with_capacity(16))).await;
    // This is long enough for a cancellation to reach the kernel.
    R::sleep(A_WHILE).await;
    a.write_all("first").await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    a.write_all("second").await.into_result().unwrap();
    a.shutdown().await.unwrap();
    let received = soon::<R, _>("the end", read_to_end(&mut b)).await;
    let expected = match declared {
        DroppedRead::LosesNothing | DroppedRead::Cancelled => &b"firstsecond"[..],
        DroppedRead::LosesNextBytes => b"second",
    };
    let seen = match &received[..] {
        b"firstsecond" => "nothing was lost: declare `LosesNothing`, or `Cancelled`".to_owned(),
        b"second" => "the next bytes were lost: declare `LosesNextBytes`".to_owned(),
        other => format!("of \"firstsecond\", \"{}\" arrived", other.escape_ascii()),
    };
    assert!(
        received == expected,
        "expected what `dropped_read: {declared:?}` declares; seen: {seen}"
    );
}

/// A dropped `OwnedWrite::shutdown`: "the stream is unchanged or shut down."
pub async fn dropped_shutdown_leaves_the_stream_usable<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    drop(a.shutdown()); // not polled
    a.write_all("before").await.into_result().unwrap();
    {
        let mut shutdown = pin!(a.shutdown());
        let polled = poll_fn(|cx| Poll::Ready(shutdown.as_mut().poll(cx))).await;
        assert!(
            !matches!(polled, Poll::Ready(Err(_))),
            "expected a shutdown to wait or to succeed; seen: {polled:?}"
        );
    }
    let is_shut = match a.write_all("!").await.into_result() {
        Ok(_) => false,
        Err(error) => {
            expect_error::<()>(Err(error), ErrorKind::BrokenPipe);
            true
        }
    };
    a.shutdown().await.unwrap();
    let received = soon::<R, _>("the end", read_to_end(&mut b)).await;
    assert_eq!(received, if is_shut { &b"before"[..] } else { b"before!" });
    b.write_all("the other way").await.into_result().unwrap();
    let read = soon::<R, _>("the other way", a.read_exact(Vec::with_capacity(13), 13));
    assert_eq!(read.await.into_result().unwrap().1, b"the other way");
}

/// A drop of the stream after a dropped read "still closes the connection."
pub async fn dropped_read_and_stream_close<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    expect_pending::<R>("a read", b.read(Vec::with_capacity(16))).await;
    drop(b);
    expect_closed::<R>(&mut a).await;

    let (mut a, b) = pair::<R>().await;
    let (mut read, write) = b.into_split();
    let pool = Pool::new(PoolConfig::default());
    expect_pending::<R>("a pooled read", read.read_pooled(&pool)).await;
    drop((read, write));
    expect_closed::<R>(&mut a).await;
}

/// "Dropping it closes the connection, even while the kernel still works on a forgotten operation."
pub async fn forgotten_read_and_stream_close<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let mut read = Box::pin(b.read(Vec::with_capacity(16)));
    expect_pending::<R>("a read", read.as_mut()).await;
    if cfg!(miri) {
        drop(read); // Miri reports a forgotten value as a leak
    } else {
        std::mem::forget(read);
    }
    drop(b);
    expect_closed::<R>(&mut a).await;
}

/// The same after a pending write was dropped.
pub async fn dropped_write_and_stream_close<R: Runtime>() {
    let (mut a, mut b) = pair_with::<R>(Some(16 * 1024)).await;
    fill::<R>(&mut b).await;
    drop(b);
    expect_closed::<R>(&mut a).await;
}

/// "A dropped read forfeits its buffer, which is freed when the kernel releases it": once, and at the latest
/// when the stream is dropped.
pub async fn dropped_read_frees_its_buffer_with_the_stream<R: Runtime>() {
    let (a, mut b) = pair::<R>().await;
    let drops = Rc::new(Cell::new(0));
    let buf = Counted { bytes: Vec::with_capacity(16), drops: Rc::clone(&drops) };
    expect_pending::<R>("a read", b.read(buf)).await;
    drop(b);
    let freed = soon::<R, _>("the buffer to be freed", async {
        while drops.get() == 0 {
            R::sleep(A_WHILE).await;
        }
    });
    freed.await;
    R::sleep(A_WHILE).await;
    assert_eq!(drops.get(), 1, "how often the buffer was freed");
    drop(a);
}

/// "As for `read`. The buffer returns to the pool."
pub async fn dropped_pooled_read_returns_its_buffer<R: Runtime>() {
    let (_a, mut b) = pair::<R>().await;
    let pool = Pool::new(PoolConfig::default());
    expect_pending::<R>("a pooled read", b.read_pooled(&pool)).await;
    drop(b);
    let back = soon::<R, _>("the buffer to come back", async {
        while pool.leased() > 0 {
            R::sleep(A_WHILE).await;
        }
    });
    back.await;
}
