//! Functions of tokio over connections of the simulator, without tokio's runtime.

use std::time::Duration;

use owned_io::{
    Buffers, Clock, Executor, MemoryBudget, OwnedReadExt, OwnedWriteExt, Pool, PoolConfig,
};
use owned_io_compat::TokioIo;
use owned_io_sim::{Sim, SimStream, pipe};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional, split};

const SENT_BYTES: usize = 300_000;

fn adapt(stream: SimStream) -> TokioIo {
    let pool = Pool::new(PoolConfig::default());
    TokioIo::new::<Sim>(stream, &Buffers::new(pool, MemoryBudget::new(1 << 20)))
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// The halves of a client are in two tasks, so one of them must wake the other. In between is a proxy.
#[test]
fn bytes_pass_a_proxy_both_ways() {
    for seed in owned_io_sim::seeds(20) {
        println!("seed {seed}"); // shown when the test fails
        Sim::block_on(owned_io_sim::Config::with_seed(seed), async {
            let ((client, front), (back, server)) = (pipe(), pipe());
            let proxying =
                Sim::spawn(
                    async move { copy_bidirectional(&mut adapt(front), &mut adapt(back)).await },
                );
            let echoing = Sim::spawn(async move {
                let (mut read, mut write) = split(adapt(server));
                let copied = tokio::io::copy(&mut read, &mut write).await?;
                write.shutdown().await.map(|()| copied)
            });
            let (mut read, mut write) = split(adapt(client));
            let sending = Sim::spawn(async move {
                write.write_all(&numbered(SENT_BYTES)).await?;
                write.shutdown().await
            });
            let mut received = Vec::new();
            read.read_to_end(&mut received).await.unwrap();
            assert!(received == numbered(SENT_BYTES), "{} bytes came back", received.len());
            sending.await.unwrap().unwrap();
            assert_eq!(echoing.await.unwrap().unwrap(), SENT_BYTES as u64);
            let copied = (SENT_BYTES as u64, SENT_BYTES as u64);
            assert_eq!(proxying.await.unwrap().unwrap(), copied);
        })
        .unwrap();
    }
}

/// The writer is another task, which ends before its bytes are sent. From then on the reader drives the write.
#[test]
fn a_reader_sends_what_an_ended_writer_has_not_flushed() {
    for seed in owned_io_sim::seeds(20) {
        println!("seed {seed}"); // shown when the test fails
        Sim::block_on(owned_io_sim::Config::with_seed(seed), async {
            let (client, mut server) = pipe();
            let answering = Sim::spawn(async move {
                Sim::sleep(Duration::from_secs(1)).await;
                let bytes = Vec::with_capacity(SENT_BYTES);
                server.read_exact(bytes, SENT_BYTES).await.into_result()?;
                server.write_all("answer").await.into_result()
            });
            let (mut read, mut write) = split(adapt(client));
            let writing = Sim::spawn(async move { write.write_all(&numbered(SENT_BYTES)).await });
            let mut answer = [0; 6];
            read.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"answer");
            writing.await.unwrap().unwrap();
            answering.await.unwrap().unwrap();
        })
        .unwrap();
    }
}
