//! [`select`]: waits for two futures and keeps the first one.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// Waits until `first` or `second` is ready. Borrows `first`, and drops `second`.
///
/// Use it to wait for a timer, a queue or a stop signal while a read is pending. The read is borrowed,
/// so none of its bytes are lost: await it again afterwards.
///
/// Every wake polls both futures, so neither can starve the other. If both are ready, both outputs come
/// back.
///
/// # Cancellation
/// Safe. Dropping it drops `second`. `first` stays pending and can be polled again.
///
/// # Panics
/// If `first` panics. Most futures panic when they are polled after they were ready, so do not pass
/// `first` again once [`Selected::first`] was `Some`.
///
/// ```
/// # use owned_io_sim::Sim;
/// # owned_io_sim::block_on(async {
/// use std::{pin::pin, time::Duration};
/// use owned_io::{Clock, OwnedRead, OwnedWrite, select};
///
/// let (mut a, mut b) = owned_io_sim::pipe();
/// let mut read = pin!(b.read(Vec::with_capacity(16)));
/// let selected = select(read.as_mut(), Sim::sleep(Duration::from_millis(10))).await;
/// assert!(selected.first.is_none(), "nothing was written yet");
///
/// let _ = a.write("late").await;
/// let (_, buf) = read.await.into_result()?; // the same read, resumed
/// assert!(b"late".starts_with(&buf) && !buf.is_empty());
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
pub async fn select<A: Future, B: Future>(
    mut first: Pin<&mut A>,
    second: B,
) -> Selected<A::Output, B::Output> {
    let mut second = pin!(second);
    poll_fn(|cx| {
        let selected = Selected {
            first: into_option(first.as_mut().poll(cx)),
            second: into_option(second.as_mut().poll(cx)),
        };
        if selected.first.is_some() || selected.second.is_some() {
            Poll::Ready(selected)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// The output of [`select`]: at least one of the two is `Some`.
#[derive(Debug)]
pub struct Selected<A, B> {
    /// The output of the first future, if it was ready.
    pub first: Option<A>,
    /// The output of the second future, if it was ready.
    pub second: Option<B>,
}

fn into_option<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::task::{Context, Waker};

    use super::*;

    /// "Every wake polls both futures, so neither can starve the other", not even a future that wakes
    /// itself on each poll.
    #[test]
    fn neither_starves_the_other() {
        let cx = &mut Context::from_waker(Waker::noop());
        let busy = Cell::new(0);
        let always_ready = || {
            poll_fn(|cx| {
                busy.set(busy.get() + 1);
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            })
        };
        let third_time = || {
            let mut polls = 0;
            poll_fn(move |_| {
                polls += 1;
                if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
            })
        };
        let poll_thrice = |mut both: Pin<&mut dyn Future<Output = bool>>, cx: &mut Context<'_>| {
            busy.set(0);
            assert!(both.as_mut().poll(cx).is_pending());
            assert!(both.as_mut().poll(cx).is_pending());
            assert_eq!(both.as_mut().poll(cx), Poll::Ready(true));
            assert_eq!(busy.get(), 3);
        };
        poll_thrice(
            pin!(async { select(pin!(always_ready()), third_time()).await.second.is_some() }),
            cx,
        );
        poll_thrice(
            pin!(async { select(pin!(third_time()), always_ready()).await.first.is_some() }),
            cx,
        );
    }

    /// "Dropping it drops `second`. `first` stays pending and can be polled again."
    #[test]
    fn dropping_it_leaves_the_first_pending() {
        struct Dropped<'a>(&'a Cell<bool>);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let cx = &mut Context::from_waker(Waker::noop());
        let (first_dropped, second_dropped) = (Cell::new(false), Cell::new(false));
        let mut polls = 0;
        let first_guard = Dropped(&first_dropped);
        let mut first = pin!(poll_fn(|_| {
            let _guard = &first_guard;
            polls += 1;
            if polls < 2 { Poll::Pending } else { Poll::Ready("resumed") }
        }));
        let second_guard = Dropped(&second_dropped);
        let mut both = Box::pin(select(first.as_mut(), async move {
            let _guard = second_guard;
            pending::<()>().await;
        }));
        assert!(both.as_mut().poll(cx).is_pending());
        drop(both);
        assert!(second_dropped.get() && !first_dropped.get());
        assert_eq!(first.poll(cx), Poll::Ready("resumed"));
    }
}
