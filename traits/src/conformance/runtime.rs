//! Cases about the start and the end of a runtime.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::support::{A_WHILE, pair};
use crate::{JoinError, OwnedRead, Panicked, Runtime};

/// "Runs `future` … on this thread, until `future` is done", and returns its output.
pub fn block_on_returns_the_output<R: Runtime>(config: &R::Config) {
    let here = std::thread::current().id();
    let borrowed = String::from("output");
    let output = R::block_on(config.clone(), async {
        R::sleep(Duration::from_millis(1)).await;
        assert_eq!(std::thread::current().id(), here, "the thread of the future");
        borrowed.as_str()
    });
    assert_eq!(output.unwrap(), "output", "the output of `block_on`");
}

/// One thread can run several runtimes, one after the other.
pub fn block_on_may_be_repeated<R: Runtime>(config: &R::Config) {
    for _ in 0..10 {
        let echoed = R::block_on(config.clone(), async {
            let (mut a, b) = pair::<R>().await;
            drop(R::spawn(super::support::echo(b)));
            super::support::echoed(&mut a, b"again").await
        });
        assert_eq!(echoed.unwrap(), b"again");
    }
}

/// "Panics if `future` panics, with its panic." The thread can run another runtime afterwards.
pub fn block_on_propagates_a_panic<R: Runtime>(config: &R::Config) {
    let panicking = || {
        R::block_on(config.clone(), async {
            R::sleep(Duration::from_millis(1)).await;
            panic!("on purpose");
        })
    };
    let Err(payload) = catch_unwind(AssertUnwindSafe(panicking)) else {
        panic!("expected `block_on` to panic, as its future does; seen: it returned");
    };
    assert_eq!(Panicked::new(payload).message(), "on purpose");
    block_on_returns_the_output::<R>(config);
}

/// "Panics if called within itself."
pub fn nested_block_on_panics<R: Runtime>(config: &R::Config) {
    let nested = || R::block_on(config.clone(), async {});
    let outcome = R::block_on(config.clone(), async { catch_unwind(AssertUnwindSafe(nested)) });
    if let Ok(nested) = outcome.unwrap() {
        panic!("expected a panic of `block_on` within `block_on`; seen: it returned {nested:?}");
    }
    block_on_returns_the_output::<R>(config);
}

/// A runtime may run within a poll of another one (a simulation in a test, for example). Each ends its own tasks,
/// and only those.
pub fn block_on_ends_its_own_tasks_only<R: Runtime>(config: &R::Config) {
    let ended = Rc::new(Cell::new(0));
    let hold = || {
        let ended = Rc::clone(&ended);
        let count = on_drop(move || ended.set(ended.get() + 1));
        async move {
            let _count = count;
            std::future::pending::<()>().await;
        }
    };
    R::block_on(config.clone(), async {
        drop(R::spawn(hold()));
        R::sleep(A_WHILE).await;
        // This is the part of a nested runtime that could confuse the tasks.
        let nested = crate::backend::run_main::<R, _>(async { drop(R::spawn(hold())) });
        nested.await.unwrap();
        assert_eq!(ended.get(), 1, "the tasks that ended with the inner runtime");
        R::sleep(A_WHILE).await;
        drop(R::spawn(hold()));
        R::sleep(A_WHILE).await;
    })
    .unwrap();
    assert_eq!(ended.get(), 3, "the tasks that ended with both runtimes");
}

/// "The tasks are dropped within the runtime, so destructors may call it."
pub fn block_on_ends_its_tasks_within_the_runtime<R: Runtime>(config: &R::Config) {
    let ended = Rc::new(Cell::new(false));
    R::block_on(config.clone(), async {
        let held = on_drop({
            let ended = Rc::clone(&ended);
            move || {
                let now = R::now();
                drop(R::spawn(async move { R::now() - now }));
                ended.set(true);
            }
        });
        drop(R::spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        }));
        R::sleep(A_WHILE).await;
    })
    .unwrap();
    assert!(
        ended.get(),
        "expected what a task holds to be dropped where it can spawn; seen: that panicked, or it was \
         not dropped (is `run_main` the body of `block_on`?)"
    );
}

/// "A task that is always ready does not delay the return."
pub fn block_on_returns_while_a_task_is_always_ready<R: Runtime>(config: &R::Config) {
    assert!(
        block_on_returns_before_a_task_gives_up::<R>(config),
        "expected `block_on` to return while a task is always ready; seen: it waited until the \
         task gave up (does it run until no task is ready?)"
    );
}

/// Whether `block_on` returns before an always-ready task gives up. [`run_main`](crate::backend::run_main) does
/// not know the task. Deviations use this function.
pub fn block_on_returns_before_a_task_gives_up<R: Runtime>(config: &R::Config) -> bool {
    /// The task gives up after this many polls or after `LASTS`, whichever is first. Some milliseconds are enough
    /// if the end of the runtime takes a bounded number of polls. A runtime that preempts by a timer needs more.
    const POLLS_MAX: u32 = 20_000_000;
    const LASTS: Duration = Duration::from_secs(2);
    let has_given_up = Rc::new(Cell::new(false));
    R::block_on(config.clone(), async {
        let has_given_up = Rc::clone(&has_given_up);
        let (mut polls, started) = (0, Instant::now());
        // The main future is done before the first poll of this task. It may then be the only task.
        R::spawn_detached(poll_fn(move |cx| {
            polls += 1;
            if polls == POLLS_MAX || (polls % 1024 == 0 && started.elapsed() >= LASTS) {
                has_given_up.set(true);
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    })
    .unwrap();
    !has_given_up.get()
}

fn on_drop(f: impl FnMut()) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(f)
}

/// "Tasks that are still running are dropped before this returns, with everything that they hold."
pub fn block_on_ends_the_tasks_that_still_run<R: Runtime>(config: &R::Config) {
    struct Ended(Rc<Cell<u32>>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let ended = Rc::new(Cell::new(0));
    let started = Rc::new(Cell::new(0));
    let output = R::block_on(config.clone(), async {
        let (mut a, mut b) = pair::<R>().await;
        let start = || {
            started.set(started.get() + 1);
            Ended(Rc::clone(&ended))
        };
        let reads = (start(), start());
        drop(R::spawn(async move {
            let _reads = reads.0;
            a.read(Vec::with_capacity(8)).await
        }));
        drop(R::spawn(async move {
            let _reads = reads.1;
            b.read(Vec::with_capacity(8)).await
        }));
        let sleeps = start();
        drop(R::spawn(async move {
            let _sleeps = sleeps;
            R::sleep(Duration::from_secs(1_000)).await;
        }));
        let waits = start();
        let handle = R::spawn(async move {
            let _waits = waits;
            std::future::pending::<()>().await;
        });
        R::sleep(A_WHILE).await;
        // This task is never polled before the runtime ends.
        let new = start();
        drop(R::spawn(async move {
            let _new = new;
        }));
        Some(handle)
    });
    assert_eq!((started.get(), ended.get()), (5, 5), "the tasks that were started, and dropped");
    drop(output);
}

/// A handle that outlives its runtime returns the output of a finished task, or "`JoinError::Ended`".
/// It returns `JoinError::Panicked` only if something panicked.
pub fn handles_report_the_end_of_block_on<R: Runtime>(config: &R::Config) {
    let handles = R::block_on(config.clone(), async {
        let done = R::spawn(async { 7 });
        let ended = R::spawn(std::future::pending::<()>());
        let panicked = R::spawn(async {
            let _held = on_drop(|| panic!("on purpose"));
            std::future::pending::<()>().await;
        });
        R::sleep(A_WHILE).await;
        // This task is never polled before the runtime ends.
        let new = R::spawn(async {});
        (done, ended, panicked, new)
    });
    let (done, ended, panicked, new) = handles.unwrap();
    let outputs =
        R::block_on(config.clone(), async { (done.await, ended.await, panicked.await, new.await) });
    let (done, ended, panicked, new) = outputs.unwrap();
    assert_eq!(done.unwrap(), 7, "the output of a finished task");
    for ended in [ended, new] {
        assert!(
            matches!(ended, Err(JoinError::Ended)),
            "expected the handle to return `JoinError::Ended`; seen: {ended:?}"
        );
    }
    let Err(JoinError::Panicked(panicked)) = panicked else {
        panic!("expected the handle to return `JoinError::Panicked`; seen: {panicked:?}");
    };
    assert_eq!(panicked.message(), "on purpose");
}
