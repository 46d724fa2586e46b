//! Once warm, reads and writes through the adapters allocate nothing.

#[path = "../../websocket/tests/counting/mod.rs"]
mod counting;
mod interface;

use counting::allocations;
use interface::{Adapter, buffers, for_each_adapter};
use owned_io::{Executor, OwnedRead, OwnedWriteExt};
use owned_io_sim::{Sim, pipe};

for_each_adapter! {
    short_echoes_allocate_nothing
    long_echoes_allocate_nothing
    lengths_that_alternate_allocate_nothing
}

/// Echoes 200 messages whose lengths alternate, one after the other, and returns the allocations of the last 100 on
/// both sides.
fn allocations_of<A: Adapter>(lens: [usize; 2]) -> usize {
    owned_io_sim::block_on(async {
        let (near, mut far) = pipe();
        let echoing = Sim::spawn(async move {
            let (mut io, mut buf) = (A::adapt(near, &buffers()), vec![0; 10_000]);
            loop {
                match io.read(&mut buf).await.unwrap() {
                    0 => return io.shutdown().await,
                    n => io.write_all(&buf[..n]).await.unwrap(),
                }
                io.flush().await.unwrap();
            }
        });
        let (mut before, mut sent, mut buf) = (0, vec![7; 100_000], Vec::with_capacity(100_000));
        for round in 0..200 {
            if round == 100 {
                before = allocations();
            }
            let mut left = lens[round % 2];
            sent.resize(left, 7);
            ((), sent) = far.write_all(sent).await.into_result().unwrap();
            while left > 0 {
                let n;
                (n, buf) = far.read(buf).await.into_result().unwrap();
                assert!((1..=left).contains(&n), "{n} bytes, {left} are left");
                left -= n;
            }
        }
        let allocated = allocations() - before;
        drop(far);
        echoing.await.unwrap().unwrap();
        allocated
    })
}

fn short_echoes_allocate_nothing<A: Adapter>() {
    assert_eq!(allocations_of::<A>([5, 5]), 0);
}

fn long_echoes_allocate_nothing<A: Adapter>() {
    assert_eq!(allocations_of::<A>([30_000, 30_000]), 0);
}

fn lengths_that_alternate_allocate_nothing<A: Adapter>() {
    assert_eq!(allocations_of::<A>([1, 30_000]), 0);
}
