//! `cargo bench -p owned-io-comparisons-codec --bench ratios`: the cost of long messages in our engine relative to
//! its floor, and of text relative to binary.
//!
//! The two passes of a pair are a mebibyte each, and alternate. A figure is the median over the pairs and its 95 %
//! interval, in processor time. Every pass is checked.
//!
//! # How long messages are copied
//!
//! glibc copies from about 2 KiB on by `rep movsb`, on processors that say that it is fast. AMD's from Zen 3 on say so,
//! and it is many times slower there for some distances between source and destination (glibc bug 30994). A ratio
//! here may then be far from 1: on another machine "text / binary, assembled" of 16 KiB was 0.140, and 1.05 with
//! `GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1073741824`.
//!
//! On the Intel processor below it is the better copy, and no other way of copying pays. "assembled / floor", medians of
//! 6 runs of 1,500 pairs, 2026-11-27, Xeon with AMX under KVM (family 6, model 167), glibc 2.36, in this bench with:
//!
//! | the message is copied | 16 KiB | 64 KiB |
//! |---|---|---|
//! | as here | 0.92 | 1.07 |
//! | to an address that is a multiple of 64 | 0.95 | 1.06 |
//! | in pieces of 2 KiB, which are not copied by `rep movsb` | 1.08 | 1.09 |
//! | both | 1.08 | 1.10 |
//! | as here, without `rep movsb` (the tunable) | 1.00 | 1.07 to 1.32 |
//!
//! The tunable changes the floor too. With 20,000 pairs "assembled / floor" of 16 KiB was 0.88 to 0.93 as here in 16
//! runs, and 1.02 to 1.03 with the tunable in 5. In 2 of those 16 runs "text / binary, assembled" of 16 KiB was 0.66
//! and 0.69 rather than 0.93 to 1.05; the cause is not known.
//!
//! So the engine and the stream copy by `copy_from_slice`, and leave the choice to libc.

mod ours;

use owned_io_comparisons_codec::{Tally, Wire, expect_ready};
use owned_io_websocket::frame::Opcode;

/// About a second for each ratio.
const PAIRS: usize = 20_000;

fn main() {
    println!(
        "| messages | whole / floor | assembled / floor | text / binary, whole | text / binary, assembled |"
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

fn ratio(mut pass: impl FnMut(), mut base: impl FnMut()) -> String {
    let ratio = owned_io_comparisons_codec::ratio(PAIRS, async || pass(), async || base());
    expect_ready(ratio)
}
