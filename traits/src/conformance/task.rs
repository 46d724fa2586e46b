//! Cases about tasks.

use std::cell::Cell;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use super::support::{
    A_WHILE, SOON, connect, echo, echoed, expect_at_least, expect_closed, joined, listener,
    loopback, pair, read_to_end, scaled, soon,
};
use crate::{
    Deadline, JoinError, OwnedRead, OwnedWriteExt, Pool, PoolConfig, Runtime, StopSignal,
    TcpListener, channel, select,
};

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

/// `spawn_eager` "also polls the task once before it returns". Only once, and not again if it is done.
pub async fn spawn_eager_polls_the_task_at_once<R: Runtime>() {
    for is_done_at_once in [false, true] {
        let runs = Rc::new(Cell::new(0));
        let task = R::spawn_eager({
            let runs = Rc::clone(&runs);
            async move {
                runs.set(1);
                if !is_done_at_once {
                    R::sleep(Duration::ZERO).await;
                    runs.set(2);
                }
                runs.get()
            }
        });
        assert_eq!(runs.get(), 1, "how far the task is when `spawn_eager` returns");
        let expected = if is_done_at_once { 1 } else { 2 };
        assert_eq!(joined::<R, _>("the task", task).await, expected, "its output");
    }
}

/// "The runtime polls it again in its turn": whatever the task waited for in its first poll wakes it afterwards.
pub async fn an_eager_task_is_woken_by_what_it_waited_for_at_first<R: Runtime>() {
    let (mut listener, addr) = listener::<R>(loopback());
    let (mut a, mut b) = pair::<R>().await;
    let (mut pooled_a, mut pooled_b) = pair::<R>().await;
    let (mut full_a, mut full_b) = pair::<R>().await;
    let (sender, mut receiver) = channel(NonZeroUsize::MIN);
    let (stop, stopped) = (StopSignal::new(), Rc::new(Cell::new(false)));
    let slow = R::spawn(R::sleep(A_WHILE));
    let tasks = [
        ("a sleep", R::spawn_eager(R::sleep(A_WHILE))),
        ("a sleep of zero", R::spawn_eager(R::sleep(Duration::ZERO))),
        ("a deadline", R::spawn_eager(deadline(A_WHILE))),
        ("another task", R::spawn_eager(async { slow.await.expect("it does not panic") })),
        (
            "a blocking closure",
            R::spawn_eager(async {
                R::spawn_blocking(|| thread::sleep(A_WHILE)).await.expect("it does not panic");
            }),
        ),
        (
            "a value of a channel",
            R::spawn_eager(async move {
                assert_eq!(receiver.receive::<R>().await, Some(7));
            }),
        ),
        (
            "the stop signal",
            R::spawn_eager({
                let (stop, stopped) = (stop.clone(), Rc::clone(&stopped));
                async move {
                    stop.stopped().await;
                    stopped.set(true);
                }
            }),
        ),
        ("a client", R::spawn_eager(async move { listener.accept().await.map(drop).unwrap() })),
        (
            "a read",
            R::spawn_eager(async move {
                let read = b.read(Vec::with_capacity(8)).await.into_result();
                assert_eq!(read.expect("expected to read").0, 1, "the bytes that were sent");
            }),
        ),
        (
            "a pooled read",
            R::spawn_eager(async move {
                let pool = Pool::new(PoolConfig::default());
                let read = pooled_b.read_pooled(&pool).await.expect("expected to read");
                assert_eq!(&*read, b"x", "the bytes that were sent");
            }),
        ),
        (
            "a write",
            R::spawn_eager(async move {
                let bytes = vec![0x5a; scaled(16 << 20)]; // more than all buffers on the path hold
                full_b.write_all(bytes).await.into_result().expect("expected to write");
            }),
        ),
    ];
    R::sleep(A_WHILE).await; // all tasks were polled twice
    assert!(!stopped.get(), "expected the task to wait; seen: it is done");
    for client in [&mut a, &mut pooled_a] {
        client.write_all("x").await.into_result().expect("expected to write");
    }
    stop.stop();
    sender.send::<R>(7).await.expect("the receiver lives");
    let _client = connect::<R>(addr).await;
    // Until the task has written everything, and has dropped its end.
    drop(R::spawn(async move { drop(read_to_end(&mut full_a).await) }));
    for (what, task) in tasks {
        joined::<R, _>(&format!("a task that waited for {what}"), task).await;
    }
}

async fn deadline(left: Duration) {
    let mut deadline = Deadline::new();
    poll_fn(|cx| {
        if !deadline.is_set() {
            deadline.set(left, cx.waker());
        }
        deadline.poll_passed(cx)
    })
    .await;
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

/// "If it panics, the handle returns `JoinError::Panicked`", also if that is in the poll of `spawn_eager`, which returns.
pub async fn a_panic_of_an_eager_poll_stays_in_its_task<R: Runtime>() {
    for round in 0..3 {
        let panicking = R::spawn_eager(async move { assert!(round > 9, "on purpose, {round}") });
        let outcome = soon::<R, _>("the panic", panicking).await;
        let Err(JoinError::Panicked(panicked)) = outcome else {
            panic!("expected the handle to return `JoinError::Panicked`; seen: {outcome:?}");
        };
        assert_eq!(panicked.message(), format!("on purpose, {round}"));
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
