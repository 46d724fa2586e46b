//! [`join_all`]: several futures at once.

use std::future::poll_fn;
use std::task::Poll;

/// How many partitions are opened, closed, purged or removed at once. Each may wait for the disk several times.
pub(super) const PARTITIONS_AT_ONCE: usize = 32;

/// Runs futures at once. Returns their outputs in order.
pub(super) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| Some(Box::pin(future))).collect();
    let mut outputs: Vec<_> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            if let Some(Poll::Ready(ready)) = future.as_mut().map(|it| it.as_mut().poll(cx)) {
                (*future, *output) = (None, Some(ready));
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
