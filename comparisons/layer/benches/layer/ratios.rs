//! `cargo bench -p owned-io-comparisons-layer --bench ratios`: the cost of an echo through the traits divided by that
//! of an echo written by hand.
//!
//! Both connections are on the same runtime. Their passes, of a hundred round trips each, alternate. A figure is the
//! median over the pairs and its 95 % interval, in processor time. The client and the kernel are most of the cost,
//! and are the same in both. The control compares two connections by hand: its distance from 1 is chance, and the
//! effect of the order in which they were opened.

mod by_hand;
mod connection;

use std::io;

use by_hand::ByHand;
use connection::{Client, Echo, SIZES};
use owned_io_comparisons_codec::ratio;

/// Some seconds for each ratio.
const PAIRS: usize = 1_000;

fn main() -> io::Result<()> {
    let [small, large] = SIZES;
    println!("| runtime | {small} B | {large} B | control, {small} B | {large} B |");
    println!("|---|---|---|---|---|");
    print_row::<owned_io_tokio::Tokio>()?;
    print_row::<owned_io_tokio_uring::TokioUring>()?;
    print_row::<owned_io_compio::Compio>()?;
    print_row::<owned_io_monoio::Monoio>()
}

fn print_row<R: ByHand>() -> io::Result<()> {
    let [small, large] = SIZES.map(|len| ratio_to_by_hand::<R>(Echo::Traits, len));
    let [small_control, large_control] = SIZES.map(|len| ratio_to_by_hand::<R>(Echo::ByHand, len));
    println!("| {} | {} | {} | {} | {} |", R::NAME, small?, large?, small_control?, large_control?);
    Ok(())
}

fn ratio_to_by_hand<R: ByHand>(echo: Echo, len: usize) -> io::Result<String> {
    R::block_on(R::Config::default(), async {
        let mut pass = Client::<R>::connect(echo, len).await?;
        let mut base = Client::<R>::connect(Echo::ByHand, len).await?;
        let ratio =
            ratio(PAIRS, async || pass.round_trips().await, async || base.round_trips().await);
        Ok(ratio.await)
    })?
}
