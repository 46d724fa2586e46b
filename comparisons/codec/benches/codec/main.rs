//! `cargo bench -p owned-io-comparisons-codec [FILTER]`: the cost of a message in each codec, without the kernel.
//! Every pass checks the number of messages, the number of bytes, and a checksum.
//!
//! - `decode/SIZE`, `decode-text/SIZE`: masked frames that arrive in chunks of 64 KiB. `floor` copies the same chunks
//!   and masks them once. `least` also joins the frames that arrive in two chunks, and checks nothing.
//! - `encode/SIZE`: 100,000 messages of a server, then one flush.
//!
//! A time is the processor time of all messages of a pass, so that other programs on the machine disturb little. The
//! throughput is in messages.

#![allow(missing_docs, reason = "criterion's macros generate the items")]

mod encode;
mod ours;
mod peers;

use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use owned_io_comparisons_codec::{CpuTime, Tally, Wire};
use owned_io_websocket::frame::Opcode;

const ENCODED_MESSAGES: usize = 100_000;

fn decode(c: &mut Criterion<CpuTime>) {
    for (opcode, name) in [(Opcode::Binary, "decode"), (Opcode::Text, "decode-text")] {
        for len in [16, 200, 1_000, 16 * 1024, 64 * 1024] {
            let wire = &Wire::new(opcode, len);
            let group = &mut group(c, &format!("{name}/{len}"), wire.tally.messages);
            read(group, "owned-io", wire, ours::whole(wire));
            read(group, "owned-io-assembled", wire, ours::assembled(wire));
            floor(group, wire);
            read(group, "least", wire, ours::least(wire));
            read(group, "tungstenite", wire, peers::tungstenite(wire));
            read(group, "fastwebsockets", wire, peers::fastwebsockets(wire));
            read(group, "tokio-websockets", wire, peers::tokio_websockets(wire));
            read(group, "sockudo-ws", wire, peers::sockudo(wire));
            read(group, "web-socket", wire, peers::web_socket(wire));
        }
    }
}

fn encode(c: &mut Criterion<CpuTime>) {
    for len in [16, 200] {
        let group = &mut group(c, &format!("encode/{len}"), ENCODED_MESSAGES);
        let expected = ENCODED_MESSAGES * (len + if len < 126 { 2 } else { 4 });
        write(group, "owned-io", expected, encode::owned_io(len, ENCODED_MESSAGES));
        write(group, "tungstenite", expected, encode::tungstenite(len, ENCODED_MESSAGES));
    }
}

fn group<'c>(
    c: &'c mut Criterion<CpuTime>,
    name: &str,
    messages: usize,
) -> BenchmarkGroup<'c, CpuTime> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(messages as u64));
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.sample_size(30);
    group
}

/// Decodes all messages of the wire once in each pass.
fn read(
    group: &mut BenchmarkGroup<'_, CpuTime>,
    name: &str,
    wire: &Wire,
    mut pass: impl FnMut(&mut Tally),
) {
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let mut tally = Tally::default();
            pass(&mut tally);
            assert_eq!(tally, wire.tally);
        });
    });
}

/// Encodes all messages and flushes once in each pass. A pass returns the number of bytes written.
fn write(
    group: &mut BenchmarkGroup<'_, CpuTime>,
    name: &str,
    expected: usize,
    mut pass: impl FnMut() -> usize,
) {
    group.bench_function(name, |bencher| bencher.iter(|| assert_eq!(pass(), expected)));
}

fn floor(group: &mut BenchmarkGroup<'_, CpuTime>, wire: &Wire) {
    let mut pass = ours::floor(wire);
    group.bench_function("floor", |bencher| bencher.iter(|| assert_eq!(pass(), wire.bytes.len())));
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = decode, encode
}
criterion_main!(benches);
