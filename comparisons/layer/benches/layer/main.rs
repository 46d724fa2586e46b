//! `cargo bench -p owned-io-comparisons-layer --bench layer [FILTER]`: the cost of an echo on a runtime's own
//! streams, and through the traits.
//!
//! Both ends of a connection over loopback are in one thread. The client is always written by hand on the runtime's
//! own stream. The server is written by hand too in `by-hand`. In `traits` it is the same loop on `OwnedRead` and
//! `OwnedWrite`. Every answer is checked. `cargo matrix comparisons/plans/layer.toml` measures the same from outside,
//! with many connections.
//!
//! A time is the processor time of all round trips of a pass. The throughput is in round trips. glommio is left out,
//! because it adopts an existing socket only through `unsafe` code.

#![allow(missing_docs, reason = "criterion's macros generate the items")]

mod by_hand;
mod connection;

use std::io;
use std::time::Duration;

use by_hand::ByHand;
use connection::{Client, Echo, ROUND_TRIPS, SIZES};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use owned_io_comparisons_codec::{CpuTime, cpu_time};

fn layer(c: &mut Criterion<CpuTime>) {
    bench_runtime::<owned_io_tokio::Tokio>(c);
    bench_runtime::<owned_io_tokio_uring::TokioUring>(c);
    bench_runtime::<owned_io_compio::Compio>(c);
    bench_runtime::<owned_io_monoio::Monoio>(c);
}

fn bench_runtime<R: ByHand>(c: &mut Criterion<CpuTime>) {
    for len in SIZES {
        let mut group = c.benchmark_group(format!("{}/{len}", R::NAME));
        group.throughput(Throughput::Elements(ROUND_TRIPS.into()));
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        group.sample_size(30);
        for (name, echo) in [("by-hand", Echo::ByHand), ("traits", Echo::Traits)] {
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|passes| time::<R>(echo, len, passes).expect("loopback works"));
            });
        }
    }
}

/// The processor time of `passes` on a new connection and a new runtime.
fn time<R: ByHand>(echo: Echo, len: usize, passes: u64) -> io::Result<Duration> {
    R::block_on(R::Config::default(), async {
        let mut client = Client::<R>::connect(echo, len).await?;
        client.round_trips().await;
        let start = cpu_time();
        for _ in 0..passes {
            client.round_trips().await;
        }
        Ok(cpu_time() - start)
    })?
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = layer
}
criterion_main!(benches);
