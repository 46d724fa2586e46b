//! `cargo bench -p owned-io-comparisons-codec --bench ratios`: the cost of long messages in our engine relative to
//! its floor, and of text relative to binary.
//!
//! The floor copies each chunk and masks it. The least decoder also joins the frames that arrive in two chunks, as any
//! decoder must that hands out whole messages, and checks nothing.
//!
//! The two passes of a pair are a mebibyte each, and alternate. A figure is the median over the pairs and its 95 %
//! interval, in processor time. Every pass is checked.
//!
//! # How long messages are copied
//!
//! glibc copies from about 2 KiB on by `rep movsb`, on processors that say that it is fast. AMD's from Zen 3 on say so, and
//! it is up to 20 times slower there if the address of the destination is 1 to 31 above that of the source, modulo 4 KiB
//! (glibc bug 30994). So what is received and receive buffers begin at multiples of 64 here, as in the server's pools.
//! Assembled messages begin where malloc(3) puts them, as in the server. Medians of 1 to 6 runs, 2026-11-28, EPYC (Zen 3), glibc 2.36:
//!
//! | | whole / floor | assembled / floor | text / binary, whole | text / binary, assembled |
//! |---|---|---|---|---|
//! | 16 KiB, all as malloc(3) puts them | 1.16 | 1.52 to 1.82 | 1.05 | 0.14 to 0.15 |
//! | – as here | 1.08 to 1.12 | 1.66 to 1.93 | 0.99 to 1.00 | 0.58 to 1.01 |
//! | – assembled messages aligned too, without `rep movsb` (the tunable below) | 1.12 | 1.93 | 1.00 | 1.00 |
//! | 64 KiB, all as malloc(3) puts them | 1.87 to 2.02 | 1.25 | 1.00 | 1.00 |
//! | – as here | 1.14 to 1.20 | 1.30 to 1.33 | 1.01 to 1.06 | 1.00 to 1.02 |
//! | – assembled messages aligned too, without `rep movsb` | 1.07 | 1.30 | 0.99 | 1.00 |
//!
//! Half of what a whole frame of 16 KiB takes beyond the floor, and three quarters with 64 KiB, is the joining of frames:
//! "whole / least" is 1.05 and 1.04.
//!
//! An assembled message of 16 KiB is copied twice, because its frame has 8 bytes more than the receive buffer; the floor
//! copies once.
//!
//! On Intel's processors `rep movsb` is the better copy, and no other way of copying pays. "assembled / floor", medians of
//! 6 runs of 1,500 pairs, 2026-11-27, Xeon with AMX under KVM (family 6, model 167), glibc 2.36, in this bench with:
//!
//! | the message is copied | 16 KiB | 64 KiB |
//! |---|---|---|
//! | to where malloc(3) puts it | 0.92 | 1.07 |
//! | to an address that is a multiple of 64 | 0.95 | 1.06 |
//! | in pieces of 2 KiB, which are not copied by `rep movsb` | 1.08 | 1.09 |
//! | both | 1.08 | 1.10 |
//! | as in the first row, without `rep movsb` (`GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1073741824`) | 1.00 | 1.07 to 1.32 |
//!
//! So the engine and the stream copy by `copy_from_slice`, and leave the choice to libc.

mod ours;

use owned_io_comparisons_codec::{Tally, Wire, expect_ready};
use owned_io_websocket::frame::Opcode;

/// About a second for each ratio.
const PAIRS: usize = 20_000;

fn main() {
    println!(
        "| messages | whole / floor | whole / least | assembled / floor | text / binary, whole | text / binary, assembled |"
    );
    println!("|---|---|---|---|---|---|");
    for len in [1_000, 16 * 1024, 64 * 1024] {
        let binary = &Wire::new(Opcode::Binary, len);
        let text = &Wire::new(Opcode::Text, len);
        let whole = || read(binary, ours::whole(binary));
        let assembled = || read(binary, ours::assembled(binary));
        println!(
            "| {len} B | {} | {} | {} | {} | {} |",
            ratio(whole(), floor(binary)),
            ratio(whole(), read(binary, ours::least(binary))),
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
