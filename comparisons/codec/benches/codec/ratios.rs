//! `cargo bench -p owned-io-comparisons-codec --bench ratios`: the cost of long messages in our engine relative to
//! its floor, and of text relative to binary.
//!
//! The two passes of a pair are a mebibyte each, and alternate. A figure is the median over the pairs and its 95 %
//! interval, in processor time. Every pass is checked.

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
