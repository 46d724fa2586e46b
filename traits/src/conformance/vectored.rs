//! Cases about vectored writes.

use super::support::{expect_bytes, pair, pair_with, pattern, read_to_end, scaled, soon};
use crate::{IOV_MAX, IoVec, LONE_WRITE_BYTES_MAX, OwnedWrite, OwnedWriteExt, Runtime};

/// "It is like a `write` of the concatenated pieces. After `Ok(n)`, `bufs` is already advanced by `n`."
pub async fn write_keeps_the_order_and_advances<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let mut bufs = IoVec::new();
    bufs.extend([&b"one "[..], b"", b"two ", b"three"]);
    while bufs.bytes_left() > 0 {
        let before = bufs.bytes_left();
        let (n, back) = a.write_vectored(bufs).await.into_result().unwrap();
        bufs = back;
        assert!(n > 0, "expected a write of at least one of {before} bytes; seen: none");
        assert_eq!(bufs.bytes_left(), before - n, "the bytes left after a write of {n}");
    }
    let expected = [&b"one "[..], b"", b"two ", b"three"];
    assert_eq!(bufs.into_bufs(), expected, "the pieces after the writes");
    a.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut b).await, b"one two three");
}

/// As `write`: "An empty buffer returns `Ok(0)` at once."
pub async fn write_of_nothing_returns_at_once<R: Runtime>() {
    let (mut a, _b) = pair::<R>().await;
    let (n, mut bufs) = a.write_vectored(IoVec::<Vec<u8>>::new()).await.into_result().unwrap();
    assert_eq!(n, 0, "bytes written of no pieces");
    bufs.push(Vec::new());
    let write = soon::<R, _>("a write of nothing", a.write_vectored(bufs));
    assert_eq!(write.await.into_result().unwrap().0, 0, "bytes written of an empty piece");
}

/// "At most `IOV_MAX` of them": further writes send the rest.
pub async fn write_takes_more_than_iov_max_pieces<R: Runtime>() {
    const PIECES: usize = if cfg!(miri) { 1 } else { 3 } * IOV_MAX + 17;
    let (mut a, mut b) = pair::<R>().await;
    let sent = pattern(PIECES * 5);
    let mut bufs = IoVec::with_capacity(PIECES);
    bufs.extend(sent.chunks(5).map(<[u8]>::to_vec));
    let reader = R::spawn(async move { read_to_end(&mut b).await });
    let ((), bufs) = a.write_all_vectored(bufs).await.into_result().unwrap();
    assert_eq!((bufs.bytes_left(), bufs.bufs().len()), (0, PIECES), "bytes left, and pieces");
    a.shutdown().await.unwrap();
    expect_bytes(&reader.await.unwrap(), &sent);
}

/// "Writes the bytes that are left in `bufs`, or the first of them": a short write may end anywhere.
pub async fn write_continues_after_a_short_write<R: Runtime>() {
    let (mut a, mut b) = pair_with::<R>(Some(16 * 1024)).await;
    let sent = pattern(scaled(16 << 20));
    let mut bufs = IoVec::new();
    bufs.extend(sent.chunks(7_001).map(<[u8]>::to_vec));
    let reader = R::spawn(async move { read_to_end(&mut b).await });
    a.write_all_vectored(bufs).await.into_result().unwrap();
    a.shutdown().await.unwrap();
    expect_bytes(&reader.await.unwrap(), &sent);
}

/// "It is like a `write` of the concatenated pieces", whatever their length is.
pub async fn write_takes_pieces_of_more_than_four_gibibytes<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    let reader = R::spawn(async move { read_to_end(&mut b).await });
    let mut bufs = IoVec::new();
    // Both lengths are 5 when truncated to 32 bits. The pages are only read, so they cost no memory.
    bufs.extend([vec![0; (1 << 32) + 5], vec![0; 5]]);
    let before = bufs.bytes_left();
    let write = soon::<R, _>("a write", a.write_vectored(bufs));
    let (n, bufs) = write.await.into_result().unwrap();
    assert!(
        (1..=LONE_WRITE_BYTES_MAX).contains(&n),
        "expected a write of 1 to {LONE_WRITE_BYTES_MAX} bytes; seen: {n}"
    );
    assert_eq!(bufs.bytes_left(), before - n, "the bytes left after a write of {n}");
    a.shutdown().await.unwrap();
    assert_eq!(reader.await.unwrap().len(), n, "the number of bytes that arrived");
}
