//! Functions on the traits of futures over connections of the simulator.

use futures_lite::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use owned_io::{Buffers, Executor, MemoryBudget, Pool, PoolConfig};
use owned_io_compat::FuturesIo;
use owned_io_sim::{Sim, SimStream, pipe};

const SENT_BYTES: usize = 300_000;

fn adapt(stream: SimStream) -> FuturesIo {
    let pool = Pool::new(PoolConfig::default());
    FuturesIo::new::<Sim>(stream, &Buffers::new(pool, MemoryBudget::new(1 << 20)))
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// The halves of a client are in two tasks, so one of them must wake the other.
#[test]
fn bytes_come_back_from_an_echo() {
    for seed in owned_io_sim::seeds(20) {
        println!("seed {seed}"); // shown when the test fails
        Sim::block_on(owned_io_sim::Config::with_seed(seed), async {
            let (client, server) = pipe();
            let echoing = Sim::spawn(async move {
                let (read, mut write) = split(adapt(server));
                let copied = copy(read, &mut write).await?;
                write.close().await.map(|()| copied)
            });
            let (mut read, mut write) = split(adapt(client));
            let sending = Sim::spawn(async move {
                write.write_all(&numbered(SENT_BYTES)).await?;
                write.close().await
            });
            let mut received = Vec::new();
            read.read_to_end(&mut received).await.unwrap();
            assert!(received == numbered(SENT_BYTES), "{} bytes came back", received.len());
            sending.await.unwrap().unwrap();
            assert_eq!(echoing.await.unwrap().unwrap(), SENT_BYTES as u64);
        })
        .unwrap();
    }
}
