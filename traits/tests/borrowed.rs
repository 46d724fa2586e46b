//! Streams by mutable reference, and streams in boxes.

use owned_io::{ByteStream, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt, Pool, PoolConfig};

async fn send(mut write: impl OwnedWrite, text: &'static str) {
    write.write_all(text).await.into_result().unwrap();
}

async fn receive(mut read: impl OwnedRead, len: usize) -> Vec<u8> {
    read.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap().1
}

fn split<S: ByteStream>(stream: S) -> (S::ReadHalf, S::WriteHalf) {
    let _ = stream.shutdown_handle();
    stream.into_split()
}

/// A function that takes a stream by value also accepts a mutable reference or a box.
#[test]
fn streams_may_be_borrowed_and_boxed() {
    owned_io_sim::block_on(async {
        let (mut a, mut b) = owned_io_sim::pipe();
        send(&mut a, "lent").await;
        assert_eq!(receive(&mut b, 4).await, b"lent");
        let (mut read, write) = split(Box::new(b));
        send(Box::new(write), "boxed").await;
        assert_eq!(receive(&mut a, 5).await, b"boxed");
        a.shutdown().await.unwrap();
        let pool = Pool::new(PoolConfig::default());
        let mut lent = &mut read;
        assert!(OwnedRead::read_pooled(&mut lent, &pool).await.unwrap().is_empty());
    });
}
