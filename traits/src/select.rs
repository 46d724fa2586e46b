//! [`select`]: waiting for two things without dropping the first.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// Waits for `first`, which goes on living, beside `second`, which does not.
///
/// This is how one waits for a timer, a queue or a stop signal while a read is pending: the read is
/// borrowed, not given away, so nothing of it is lost and it is waited for again afterwards. Both
/// are polled on every wake, so neither can starve the second; when both are ready both come back.
///
/// # Cancellation
/// Dropping it drops `second` and leaves `first` as it is, to be polled again.
///
/// # Panics
/// As `first` does when it is polled after it was ready: once [`Selected::first`] was `Some`, that
/// future is used up.
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

/// What [`select`] waited for: one of them, or both.
#[derive(Debug)]
pub struct Selected<A, B> {
    /// The output of the first future, if it is done.
    pub first: Option<A>,
    /// The output of the second future, if it is done.
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

    /// "Both are polled on every wake, so neither can starve the second": not even one that wakes
    /// itself whenever it is polled.
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

    /// "Dropping it drops `second` and leaves `first` as it is, to be polled again."
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
