//! [`beside`]: waiting for two things without dropping the first.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// Waits for `pinned`, which goes on living, beside `other`, which does not.
///
/// This is how one waits for a timer, a queue or a stop signal while a read is pending: the read is
/// borrowed, not given away, so nothing of it is lost and it is waited for again afterwards. Both
/// are polled on every wake, so neither can starve the other; when both are ready both come back.
///
/// # Cancellation
/// Dropping it drops `other` and leaves `pinned` as it is, to be polled again.
///
/// # Panics
/// As `pinned` does when it is polled after it was ready: once [`Ready::pinned`] was `Some`, that
/// future is used up.
///
/// ```
/// # use owned_io_sim::Sim;
/// # owned_io_sim::block_on(async {
/// use std::{pin::pin, time::Duration};
/// use owned_io::{Clock, OwnedRead, OwnedWrite, beside};
///
/// let (mut a, mut b) = owned_io_sim::pipe();
/// let mut read = pin!(b.read(Vec::with_capacity(16)));
/// let ready = beside(read.as_mut(), Sim::sleep(Duration::from_millis(10))).await;
/// assert!(ready.pinned.is_none(), "nothing was written yet");
///
/// let _ = a.write("late").await;
/// let (_, buf) = read.await.into_result()?; // the same read, resumed
/// assert!(b"late".starts_with(&buf) && !buf.is_empty());
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
pub async fn beside<A: Future, B: Future>(
    mut pinned: Pin<&mut A>,
    other: B,
) -> Ready<A::Output, B::Output> {
    let mut other = pin!(other);
    poll_fn(|cx| {
        let ready = Ready {
            pinned: into_option(pinned.as_mut().poll(cx)),
            other: into_option(other.as_mut().poll(cx)),
        };
        if ready.pinned.is_some() || ready.other.is_some() {
            Poll::Ready(ready)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// What [`beside`] waited for: one of them, or both.
#[derive(Debug)]
pub struct Ready<A, B> {
    /// The output of the pinned future, if it is done.
    pub pinned: Option<A>,
    /// The output of the other future, if it is done.
    pub other: Option<B>,
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

    /// "Both are polled on every wake, so neither can starve the other": not even one that wakes
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
            pin!(async { beside(pin!(always_ready()), third_time()).await.other.is_some() }),
            cx,
        );
        poll_thrice(
            pin!(async { beside(pin!(third_time()), always_ready()).await.pinned.is_some() }),
            cx,
        );
    }

    /// "Dropping it drops `other` and leaves `pinned` as it is, to be polled again."
    #[test]
    fn dropping_it_leaves_the_pinned_one() {
        struct Dropped<'a>(&'a Cell<bool>);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let cx = &mut Context::from_waker(Waker::noop());
        let (pinned_dropped, other_dropped) = (Cell::new(false), Cell::new(false));
        let mut polls = 0;
        let pinned_guard = Dropped(&pinned_dropped);
        let mut pinned = pin!(poll_fn(|_| {
            let _guard = &pinned_guard;
            polls += 1;
            if polls < 2 { Poll::Pending } else { Poll::Ready("resumed") }
        }));
        let other_guard = Dropped(&other_dropped);
        let mut both = Box::pin(beside(pinned.as_mut(), async move {
            let _guard = other_guard;
            pending::<()>().await;
        }));
        assert!(both.as_mut().poll(cx).is_pending());
        drop(both);
        assert!(other_dropped.get() && !pinned_dropped.get());
        assert_eq!(pinned.poll(cx), Poll::Ready("resumed"));
    }
}
