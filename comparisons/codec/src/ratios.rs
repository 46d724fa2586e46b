//! The ratio of two costs that differ little. The speed of a machine varies more between two benches of a run than
//! such costs differ, so the two passes alternate.

use std::env;
use std::time::Duration;

use crate::cpu_time;

/// The number of pairs without `--bench`, as `cargo test --benches` runs it: enough to see that it works.
const SMOKE_PAIRS: usize = 10;

/// The processor time of `pass` divided by that of `base`: the median over the pairs, and its 95 % interval (by
/// ranks). One fortieth as many pairs run first, to warm up.
pub async fn ratio(
    pairs: usize,
    mut pass: impl AsyncFnMut(),
    mut base: impl AsyncFnMut(),
) -> String {
    let pairs = if is_bench() { pairs } else { SMOKE_PAIRS };
    let warm_up_pairs = pairs / 40;
    let mut ratios = Vec::with_capacity(pairs);
    for number in 0..warm_up_pairs + pairs {
        // Each is first in every other pair, so that both start equally often with the cache of the other.
        let (pass, base) = if number % 2 == 0 {
            let pass = time(&mut pass).await;
            (pass, time(&mut base).await)
        } else {
            let base = time(&mut base).await;
            (time(&mut pass).await, base)
        };
        if number >= warm_up_pairs {
            ratios.push(pass.as_secs_f64() / base.as_secs_f64());
        }
    }
    ratios.sort_by(f64::total_cmp);
    let half_width = (0.98 * (pairs as f64).sqrt()) as usize; // 1.96 standard deviations of a rank
    let (low, high) = (ratios[pairs / 2 - half_width], ratios[pairs / 2 + half_width]);
    format!("{:.3} ({low:.3}–{high:.3})", ratios[pairs / 2])
}

/// Whether `cargo bench` runs the program, and not `cargo test --benches`.
pub fn is_bench() -> bool {
    env::args().any(|arg| arg == "--bench")
}

async fn time(pass: &mut impl AsyncFnMut()) -> Duration {
    let start = cpu_time();
    pass().await;
    cpu_time() - start
}
