//! `cargo bench -p owned-io-comparisons-layer --bench ratios`: what an echo through the traits costs by
//! what one by hand does.
//!
//! Both connections are on the same runtime and take turns, a pass of a hundred round trips each: the
//! median over the pairs and its 95 % interval, in processor time. The end that asks, and the kernel,
//! cost most of it and are in both. The control is two by hand: what it is off 1 by is chance, and that
//! one of them was opened first.

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
    on::<owned_io_tokio::Tokio>()?;
    on::<owned_io_tokio_uring::TokioUring>()?;
    on::<owned_io_compio::Compio>()?;
    on::<owned_io_monoio::Monoio>()
}

fn on<R: ByHand>() -> io::Result<()> {
    let [small, large] = SIZES.map(|len| to_by_hand::<R>(Echo::Traits, len));
    let [small_control, large_control] = SIZES.map(|len| to_by_hand::<R>(Echo::ByHand, len));
    println!("| {} | {} | {} | {} | {} |", R::NAME, small?, large?, small_control?, large_control?);
    Ok(())
}

fn to_by_hand<R: ByHand>(echo: Echo, len: usize) -> io::Result<String> {
    R::block_on(R::Config::default(), async {
        let mut pass = Client::<R>::connect(echo, len).await?;
        let mut base = Client::<R>::connect(Echo::ByHand, len).await?;
        let ratio =
            ratio(PAIRS, async || pass.round_trips().await, async || base.round_trips().await);
        Ok(ratio.await)
    })?
}
