//! Cases about reads into buffers of a pool.

use std::io::ErrorKind;
use std::pin::pin;

use super::support::{
    A_WHILE, count_runs, expect_at_least, expect_bytes, expect_error, pair, pattern, reset_stream,
    scaled, soon,
};
use crate::{OwnedRead, OwnedWriteExt, Pool, PoolConfig, Runtime, select};

/// "The buffer contains the bytes that were read", and returns to the pool when it is dropped.
pub async fn read_returns_available_bytes<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let pool = Pool::new(PoolConfig::default());
    let sent = pattern(scaled(10 << 20));
    let writer = R::spawn({
        let sent = sent.clone();
        async move { a.write_all(sent).await.into_result().map(drop) }
    });
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let buf = b.read_pooled(&pool).await.unwrap();
        let (len, most) = (buf.len(), pool.buf_bytes());
        assert!((1..=most).contains(&len), "expected a read of 1 to {most} bytes; seen: {len}");
        assert_eq!(pool.leased(), 1, "the buffers in use while one is held");
        received.extend_from_slice(&buf);
    }
    expect_bytes(&received, &sent);
    assert_eq!(pool.leased(), 0, "the buffers in use after the last was dropped");
    writer.await.unwrap().unwrap();
}

/// "It is empty at the end of the stream."
pub async fn read_is_empty_at_the_end<R: Runtime>() {
    let (a, mut b) = pair::<R>().await;
    let pool = Pool::new(PoolConfig::default());
    drop(a);
    for _ in 0..2 {
        let read = soon::<R, _>("the end", b.read_pooled(&pool));
        assert_eq!(&read.await.unwrap()[..], b"", "the bytes of a read at the end");
    }
}

/// "Those of `read`": "The error keeps its OS error code."
pub async fn read_reports_a_reset<R: Runtime>() {
    let mut stream = reset_stream::<R>().await;
    let pool = Pool::new(PoolConfig::default());
    let read = soon::<R, _>("the reset", stream.read_pooled(&pool)).await;
    let error = expect_error(read, ErrorKind::ConnectionReset);
    assert_eq!(error.raw_os_error(), Some(104), "the OS error code of {error:?}");
    assert_eq!(pool.leased(), 0, "the buffers in use after an error");
}

/// "All waiting reads of a pool together hold at most `idle_max` of its buffers."
pub async fn pending_reads_hold_few_buffers<R: Runtime>() {
    const READS: usize = 6;
    let pool = Pool::new(PoolConfig { idle_max: 2, ..PoolConfig::default() });
    let (mut peers, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..READS {
        let (peer, mut stream) = pair::<R>().await;
        let pool = pool.clone();
        peers.push(peer);
        reads
            .push(R::spawn(async move { stream.read_pooled(&pool).await.map(|buf| buf.to_vec()) }));
    }
    R::sleep(A_WHILE).await;
    let held = pool.leased();
    assert!(
        held <= 2,
        "expected {READS} reads that wait to hold at most 2 buffers (`idle_max`); seen: {held}"
    );
    // Reads without a buffer are served as well, in any order.
    for (peer, read) in peers.iter_mut().zip(reads).rev() {
        peer.write_all("x").await.into_result().unwrap();
        assert_eq!(soon::<R, _>("the byte", read).await.unwrap().unwrap(), b"x");
    }
}

/// "`PoolExhausted` inside a `QuotaExceeded` if all buffers of the pool are in use: nothing was consumed, and a
/// later read continues there."
pub async fn read_loses_nothing_when_the_pool_is_exhausted<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let pool = Pool::new(PoolConfig { leased_max: 1, ..PoolConfig::default() });
    let taken = pool.take().unwrap();
    a.write_all("kept").await.into_result().unwrap();
    for _ in 0..3 {
        let read = soon::<R, _>("the refusal", b.read_pooled(&pool));
        expect_error(read.await, ErrorKind::QuotaExceeded);
    }
    drop(taken);
    let mut received = Vec::new();
    while received.len() < 4 {
        let read = soon::<R, _>("the bytes", b.read_pooled(&pool));
        received.extend_from_slice(&read.await.unwrap());
    }
    assert_eq!(received, b"kept");
}

/// "`PoolExhausted` if data is ready": a waiting read does not return it earlier.
pub async fn read_waits_while_the_pool_is_exhausted<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let pool = Pool::new(PoolConfig { leased_max: 1, ..PoolConfig::default() });
    let taken = pool.take().unwrap();
    let mut read = pin!(b.read_pooled(&pool));
    let selected = select(read.as_mut(), R::sleep(A_WHILE)).await;
    assert!(
        selected.first.is_none(),
        "expected the read to wait while no data is ready; seen: it is done: {:?}",
        selected.first.map(|read| read.map(|buf| buf.len()))
    );
    drop(taken);
    a.write_all("x").await.into_result().unwrap();
    assert_eq!(&*soon::<R, _>("the byte", read).await.unwrap(), b"x");
}

/// "Waits like `read`, and lets other tasks run like it."
pub async fn reads_that_never_wait_let_others_run<R: Runtime>() {
    const BYTES: u32 = if cfg!(miri) { 500 } else { 10_000 };
    let (mut a, mut b) = pair::<R>().await;
    let pool = Pool::new(PoolConfig { buf_bytes: 1, ..PoolConfig::default() });
    a.write_all(pattern(BYTES as usize)).await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    let runs = count_runs::<R>();
    for _ in 0..BYTES {
        assert_eq!(b.read_pooled(&pool).await.unwrap().len(), 1);
    }
    expect_at_least(10, &format!("runs of another task during {BYTES} reads"), runs.get());
}
