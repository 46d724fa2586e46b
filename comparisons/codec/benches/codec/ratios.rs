//! `cargo bench -p owned-io-comparisons-codec --bench ratios`: what long messages cost our engine beside
//! its floor, and text beside binary.
//!
//! These ratios are near 1, and the machine's speed moves by more than that between two benches of a
//! run. So the two that are compared take turns, a pass of a mebibyte each: the median over the pairs
//! and its 95 % interval (by ranks), in processor time. Every pass is checked.

mod ours;

use std::time::Duration;

use owned_io_comparisons_codec::{Tally, Wire, cpu_time};
use owned_io_websocket::frame::Opcode;

/// About a second for each ratio.
const PAIRS: usize = 20_000;
const WARM_UP_PAIRS: usize = 500;

fn main() {
    println!(
        "| messages | whole, to the floor | put together, to the floor | text to binary, whole | put together |"
    );
    println!("|---|---|---|---|---|");
    for len in [1_000, 16 * 1024, 64 * 1024] {
        let binary = &Wire::new(Opcode::Binary, len);
        let text = &Wire::new(Opcode::Text, len);
        let whole = || read(binary, ours::whole(binary));
        let assembled = || read(binary, ours::assembled(binary));
        println!(
            "| {len} B | {} | {} | {} | {} |",
            ratio(whole(), floor(binary)),
            ratio(assembled(), floor(binary)),
            ratio(read(text, ours::whole(text)), whole()),
            ratio(read(text, ours::assembled(text)), assembled()),
        );
    }
}

fn read(wire: &Wire, mut pass: impl FnMut(&mut Tally)) -> impl FnMut() {
    move || {
        let mut tally = Tally::default();
        pass(&mut tally);
        assert_eq!(tally, wire.tally);
    }
}

fn floor(wire: &Wire) -> impl FnMut() {
    let mut pass = ours::floor(wire);
    move || assert_eq!(pass(), wire.bytes.len())
}

/// What `pass` costs by what `base` does: the median, and its interval.
fn ratio(mut pass: impl FnMut(), mut base: impl FnMut()) -> String {
    let mut ratios = Vec::with_capacity(PAIRS);
    for number in 0..WARM_UP_PAIRS + PAIRS {
        // Each goes first in every other pair, so that neither always finds the other's cache.
        let (pass, base) = if number % 2 == 0 {
            let pass = time(&mut pass);
            (pass, time(&mut base))
        } else {
            let base = time(&mut base);
            (time(&mut pass), base)
        };
        if number >= WARM_UP_PAIRS {
            ratios.push(pass.as_secs_f64() / base.as_secs_f64());
        }
    }
    ratios.sort_by(f64::total_cmp);
    let half_width = (0.98 * (PAIRS as f64).sqrt()) as usize; // 1.96 standard deviations of a rank
    let (low, high) = (ratios[PAIRS / 2 - half_width], ratios[PAIRS / 2 + half_width]);
    format!("{:.3} ({low:.3}–{high:.3})", ratios[PAIRS / 2])
}

fn time(pass: &mut impl FnMut()) -> Duration {
    let start = cpu_time();
    pass();
    cpu_time() - start
}
