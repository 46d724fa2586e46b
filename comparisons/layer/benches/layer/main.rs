//! `cargo bench -p owned-io-comparisons-layer --bench layer [FILTER]`: what an echo costs on a runtime's
//! own streams, and through the traits.
//!
//! Both ends of a connection over loopback are in one thread. The one that asks is written by hand on
//! the runtime's own stream, for both; the one that echoes so too in `by-hand`, and in `traits` the same
//! loop on `OwnedRead` and `OwnedWrite`. Every answer is checked. `cargo matrix comparisons/plans/layer.toml`
//! measures the same from outside, with many connections.
//!
//! Times are processor time, that of all round trips of a pass, and the throughput is in round trips.
//! glommio is not here: it takes a socket from outside by `unsafe` only.

#![allow(missing_docs, reason = "made by criterion's macros")]

mod by_hand;
mod connection;

use std::io;
use std::time::Duration;

use by_hand::ByHand;
use connection::{Client, Echo, ROUND_TRIPS, SIZES};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use owned_io_comparisons_codec::{CpuTime, cpu_time};

fn layer(c: &mut Criterion<CpuTime>) {
    on::<owned_io_tokio::Tokio>(c);
    on::<owned_io_tokio_uring::TokioUring>(c);
    on::<owned_io_compio::Compio>(c);
    on::<owned_io_monoio::Monoio>(c);
}

fn on<R: ByHand>(c: &mut Criterion<CpuTime>) {
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

/// What so many passes cost, on a connection and a runtime of their own.
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
