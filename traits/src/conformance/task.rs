//! Cases about tasks.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use super::support::{
    A_WHILE, SOON, echo, echoed, expect_at_least, expect_closed, joined, pair, soon,
};
use crate::{JoinError, Runtime, select};

/// "Waits for the output of a task."
pub async fn a_task_returns_its_output<R: Runtime>() {
    let tasks: Vec<_> = (0..100).map(|n| R::spawn(async move { n * n })).collect();
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), n * n);
    }
}

/// "Starts a task on this thread and returns at once": the task has not run by then.
pub async fn spawn_returns_before_the_task_runs<R: Runtime>() {
    let runs = Rc::new(Cell::new(0));
    let task = R::spawn({
        let runs = Rc::clone(&runs);
        async move { runs.set(runs.get() + 1) }
    });
    assert_eq!(runs.get(), 0, "the runs of the task when `spawn` returns");
    joined::<R, _>("the task", task).await;
    assert_eq!(runs.get(), 1, "the runs of the task in all");
}

/// "The task continues when the handle is dropped."
pub async fn a_task_goes_on_when_its_handle_is_dropped<R: Runtime>() {
    let done = Rc::new(Cell::new(false));
    drop(R::spawn({
        let done = Rc::clone(&done);
        async move {
            R::sleep(Duration::from_millis(5)).await;
            done.set(true);
        }
    }));
    soon::<R, _>("the task", async {
        while !done.get() {
            R::sleep(A_WHILE).await;
        }
    })
    .await;
}

/// "If it panics, the handle returns `JoinError::Panicked`, and other tasks are not affected."
pub async fn a_panic_stays_in_its_task<R: Runtime>() {
    let (mut a, b) = pair::<R>().await;
    drop(R::spawn(echo(b)));
    for round in 0..3 {
        let panicking = R::spawn(async move {
            R::sleep(Duration::from_millis(1)).await;
            assert!(round > 9, "on purpose, round {round}");
        });
        let outcome = soon::<R, _>("the panic", panicking).await;
        let Err(JoinError::Panicked(panicked)) = outcome else {
            panic!("expected the handle to return `JoinError::Panicked`; seen: {outcome:?}");
        };
        assert_eq!(panicked.message(), format!("on purpose, round {round}"));
        let answer = soon::<R, _>("the neighbour", echoed(&mut a, b"still there?"));
        assert_eq!(answer.await, b"still there?");
    }
}

/// A panic drops the values of its task, so its connection closes.
pub async fn a_panic_closes_what_the_task_held<R: Runtime>() {
    let (mut a, b) = pair::<R>().await;
    let panicking = R::spawn(async move {
        let _held = b;
        R::sleep(Duration::from_millis(1)).await;
        panic!("on purpose");
    });
    expect_closed::<R>(&mut a).await;
    let outcome: Result<(), _> = panicking.await;
    assert!(outcome.is_err(), "expected the handle to return the panic; seen: success");
}

/// A task can be woken from any thread.
pub async fn wakes_come_from_other_threads<R: Runtime>() {
    const WAKES: u32 = if cfg!(miri) { 100 } else { 1_000 };
    let (to_thread, wakers) = mpsc::channel::<Waker>();
    let thread = thread::spawn(move || {
        for waker in wakers {
            waker.wake();
        }
    });
    for wake in 0..WAKES {
        let mut sent = false;
        poll_fn(|cx| {
            if sent {
                return Poll::Ready(());
            }
            sent = true;
            if wake % 100 == 0 {
                thread::sleep(Duration::from_micros(100)); // some wakes are late
            }
            to_thread.send(cx.waker().clone()).expect("the thread lives");
            Poll::Pending
        })
        .await;
    }
    drop(to_thread);
    thread.join().unwrap();
}

/// "Runs `f` on another thread, so that the tasks of this thread continue."
pub async fn blocking_closures_let_others_run<R: Runtime>() {
    let (go_on, wait) = mpsc::channel();
    let blocked = R::spawn(R::spawn_blocking(move || wait.recv_timeout(SOON)));
    R::sleep(A_WHILE).await;
    let sent = go_on.send("from the runtime's thread");
    assert!(
        sent.is_ok(),
        "expected the closure to run on another thread; seen: it kept the runtime's until it gave up"
    );
    let received = soon::<R, _>("the closure", blocked).await.unwrap().unwrap();
    assert_eq!(received.unwrap(), "from the runtime's thread");
}

/// "The call starts `f`, even if the future is never polled."
pub async fn blocking_closures_start_at_once<R: Runtime>() {
    let started = Arc::new(AtomicBool::new(false));
    let unpolled = R::spawn_blocking({
        let started = Arc::clone(&started);
        move || started.store(true, Ordering::SeqCst)
    });
    let starts = soon::<R, _>("its start", async {
        while !started.load(Ordering::SeqCst) {
            R::sleep(Duration::from_millis(1)).await;
        }
    });
    starts.await;
    soon::<R, _>("its result", unpolled).await.unwrap();
}

/// "`Panicked` if `f` panics", repeatedly.
pub async fn blocking_closures_may_panic<R: Runtime>() {
    for _ in 0..3 {
        let outcome = soon::<R, _>("the panic", R::spawn_blocking(|| panic!("on purpose"))).await;
        let outcome: Result<(), _> = outcome;
        let panicked = outcome.expect_err("expected the panic of the closure; seen: success");
        assert_eq!(panicked.message(), "on purpose");
        assert_eq!(R::spawn_blocking(|| 7).await.unwrap(), 7);
    }
}

/// "Dropping the future discards the result. If `f` has started, it runs to its end."
pub async fn started_blocking_closures_run_to_their_end<R: Runtime>() {
    let (started, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut closure = Box::pin(R::spawn_blocking({
        let (started, ended) = (Arc::clone(&started), Arc::clone(&ended));
        move || {
            started.store(true, Ordering::SeqCst);
            thread::sleep(3 * A_WHILE);
            ended.store(true, Ordering::SeqCst);
        }
    }));
    let starts = soon::<R, _>("its start", async {
        while !started.load(Ordering::SeqCst) {
            select(closure.as_mut(), R::sleep(Duration::from_millis(1))).await;
        }
    });
    starts.await;
    drop(closure);
    let waited = soon::<R, _>("its end", async {
        while !ended.load(Ordering::SeqCst) {
            R::sleep(A_WHILE).await;
        }
    });
    waited.await;
}

/// Other tasks, timers and connections proceed while a task is always ready: it wakes itself on each poll.
pub async fn an_always_ready_task_lets_others_run<R: Runtime>() {
    let (during, _) = echoes_during_an_always_ready_task::<R>().await;
    expect_at_least(3, "echoes while a task is always ready for two seconds", during);
}

/// The number of echoes that another task completes, a millisecond apart: first while a task is always ready
/// for two seconds, then in two seconds without it. Deviations use this function.
pub async fn echoes_during_an_always_ready_task<R: Runtime>() -> (u32, u32) {
    // Twenty preemptions of glommio, which are 100 ms apart. A busy machine delays each.
    let lasts = Duration::from_millis(if cfg!(miri) { 5 } else { 2_000 });
    let (mut a, b) = pair::<R>().await;
    drop(R::spawn(echo(b)));
    let echoes = Rc::new(Cell::new(0));
    drop(R::spawn({
        let echoes = Rc::clone(&echoes);
        async move {
            loop {
                echoed(&mut a, b"during").await;
                R::sleep(Duration::from_millis(1)).await;
                echoes.set(echoes.get() + 1);
            }
        }
    }));
    R::sleep(A_WHILE).await;
    let (before, until) = (echoes.get(), R::now() + lasts);
    poll_fn(|cx| {
        if R::now() >= until {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    let during = echoes.get() - before;
    R::sleep(lasts).await;
    (during, echoes.get() - before - during)
}
