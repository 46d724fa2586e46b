//! Cases about the budget of work. They count how often other tasks run, because times depend on the load of the
//! machine.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use super::support::{
    A_WHILE, SOON, connect, count_runs, echo, echoed, expect_at_least, first_polled, joined,
    listener, loopback, pair, pattern, soon,
};
use crate::coop::{self, EAGER_BUDGET_NANOS, POLL_BUDGET_NANOS};
use crate::{
    ACCEPT_BATCH_MAX, ByteStream, IoVec, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt, Pool,
    PoolConfig, Runtime, TcpListener, channel, shutdown_after,
};

/// The number of operations in each case, each with [`WORK_NANOS`] of work.
const OPERATIONS: u32 = 200;

/// The work of one operation: two use up a budget.
const WORK_NANOS: u64 = POLL_BUDGET_NANOS as u64 / 2;

/// How often the counting task must run: half as often as [`OPERATIONS`] yield, because it may need two rounds of
/// the runtime for each run.
const RUNS_MIN: u32 = OPERATIONS / 4;

/// "Once the budget is used up, the task's next read or write first lets the runtime run other tasks": for a read
/// that has data ready.
pub async fn reads_yield_once_the_budget_is_used_up<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all(pattern(OPERATIONS as usize)).await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    let runs = count_runs::<R>();
    let mut buf = Vec::with_capacity(1);
    for _ in 0..OPERATIONS {
        coop::consume(WORK_NANOS);
        ((), buf) = b.read_exact(buf, 1).await.into_result().unwrap();
    }
    let what = format!("runs of another task during {OPERATIONS} reads");
    expect_at_least(RUNS_MIN, &what, runs.get());
}

/// The same for a pooled read.
pub async fn pooled_reads_yield_once_the_budget_is_used_up<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.write_all(pattern(OPERATIONS as usize)).await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    let pool = Pool::new(PoolConfig { buf_bytes: 1, ..PoolConfig::default() });
    let runs = count_runs::<R>();
    for _ in 0..OPERATIONS {
        coop::consume(WORK_NANOS);
        assert_eq!(b.read_pooled(&pool).await.unwrap().len(), 1);
    }
    let what = format!("runs of another task during {OPERATIONS} reads");
    expect_at_least(RUNS_MIN, &what, runs.get());
}

/// The same for an accept with a client in the queue.
pub async fn accepts_yield_once_the_budget_is_used_up<R: Runtime>() {
    const CLIENTS: u32 = ACCEPT_BATCH_MAX - 1; // less than a batch
    let (mut listener, addr) = listener::<R>(loopback());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect::<R>(addr).await);
    }
    let runs = count_runs::<R>();
    for _ in 0..CLIENTS {
        coop::consume(WORK_NANOS);
        soon::<R, _>("a client", listener.accept()).await.unwrap();
    }
    let what = format!("runs of another task during {CLIENTS} accepts");
    expect_at_least(CLIENTS / 4, &what, runs.get());
}

/// The same for a write that does not have to wait.
pub async fn writes_yield_once_the_budget_is_used_up<R: Runtime>() {
    let (mut a, _b) = pair::<R>().await; // all bytes fit into its buffers
    let runs = count_runs::<R>();
    for _ in 0..OPERATIONS {
        coop::consume(WORK_NANOS);
        let write = soon::<R, _>("a byte", a.write_all("x"));
        write.await.into_result().unwrap();
    }
    let what = format!("runs of another task during {OPERATIONS} writes");
    expect_at_least(RUNS_MIN, &what, runs.get());
}

/// The same for a vectored write: "It is like a `write`."
pub async fn vectored_writes_yield_once_the_budget_is_used_up<R: Runtime>() {
    let (mut a, _b) = pair::<R>().await; // all bytes fit into its buffers
    let runs = count_runs::<R>();
    let mut bufs = IoVec::new();
    for _ in 0..OPERATIONS {
        coop::consume(WORK_NANOS);
        bufs.clear();
        bufs.push("x");
        let write = soon::<R, _>("a byte", a.write_all_vectored(bufs));
        ((), bufs) = write.await.into_result().unwrap();
    }
    let what = format!("runs of another task during {OPERATIONS} vectored writes");
    expect_at_least(RUNS_MIN, &what, runs.get());
}

/// How many of 20 reads that need not wait return in their first poll, at least. The simulator lets some wait all the same.
const AT_ONCE_MIN: u32 = 3;

/// "A read that follows one that has filled its buffer should return in its first poll what has arrived, while there
/// is budget."
pub async fn reads_after_a_full_one_return_at_once<R: Runtime>() {
    const READS: u32 = 20; // less than a budget
    let (mut a, mut b) = pair::<R>().await;
    let pool = Pool::new(PoolConfig { buf_bytes: 1, ..PoolConfig::default() });
    for is_pooled in [false, true] {
        let writing = R::spawn(async move {
            R::sleep(A_WHILE).await;
            a.write_all(pattern(1 + READS as usize)).await.into_result().unwrap();
            a
        });
        let first = soon::<R, _>("a byte", b.read(Vec::with_capacity(1))); // it waits
        assert_eq!(first.await.0.unwrap(), 1, "the bytes of the first read");
        a = joined::<R, _>("the end of the write", writing).await;
        R::sleep(A_WHILE).await; // the next poll starts with a full budget
        let mut at_once = 0;
        for _ in 0..READS {
            let (read, is_at_once) = if is_pooled {
                let (read, is_at_once) = first_polled(b.read_pooled(&pool)).await;
                (read.map(|buf| buf.len()), is_at_once)
            } else {
                let (read, is_at_once) = first_polled(b.read(Vec::with_capacity(1))).await;
                (read.0, is_at_once)
            };
            assert_eq!(read.unwrap(), 1, "the bytes of a read");
            at_once += u32::from(is_at_once);
        }
        let what = format!("reads that return at once after a full one (pooled: {is_pooled})");
        expect_at_least(AT_ONCE_MIN, &what, at_once);
    }
}

/// `try_write`: "It counts as work of the poll, but does not let other tasks run."
pub async fn tried_writes_count_as_work<R: Runtime>() {
    const TRIES: u32 = 1_000;
    let (mut a, _b) = pair::<R>().await; // all bytes fit into its buffers
    R::sleep(A_WHILE).await; // the next poll starts with a full budget
    let mut taken = 0;
    for _ in 0..TRIES {
        if !coop::has_budget() {
            return;
        }
        taken += a.try_write(b"x").unwrap_or(0); // a backend may refuse without a reason
    }
    assert!(
        taken == 0,
        "expected {taken} writes in a poll to use up its budget; seen: some is left"
    );
}

/// The same for a write within [`shutdown_after`](crate::shutdown_after()).
pub async fn writes_in_shutdown_after_yield_too<R: Runtime>() {
    let (mut a, _b) = pair::<R>().await;
    let connection = a.shutdown_handle();
    let runs = count_runs::<R>();
    for _ in 0..OPERATIONS {
        coop::consume(WORK_NANOS);
        let write = shutdown_after::<R, _>(SOON, &connection, a.write_all("x"));
        write.await.into_result().unwrap();
    }
    // The limit is lower: `shutdown_after` polls the write twice in a row. A yield that is only a delay may be
    // over at the second poll.
    let what = format!("runs of another task during {OPERATIONS} writes");
    expect_at_least(RUNS_MIN / 2, &what, runs.get());
}

/// "... lets the runtime run other tasks and do its I/O": another connection is served within a bounded number of
/// reads.
pub async fn reads_let_io_run_once_the_budget_is_used_up<R: Runtime>() {
    const READS: u32 = if cfg!(miri) { 400 } else { 4_000 };
    let (mut a, mut b) = pair::<R>().await;
    a.write_all(pattern(READS as usize)).await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    let echoes = count_echoes::<R>().await;
    let mut buf = Vec::with_capacity(1);
    for _ in 0..READS {
        coop::consume(WORK_NANOS);
        ((), buf) = b.read_exact(buf, 1).await.into_result().unwrap();
    }
    let what = format!("echoes during {READS} reads");
    expect_at_least(READS / YIELDS_TO_ECHO_MAX / 2, &what, echoes.get());
}

/// "A task that finds a value each time lets others run": another connection is served within a bounded number of
/// values.
pub async fn channels_let_io_run_once_the_budget_is_used_up<R: Runtime>() {
    const VALUES: u32 = if cfg!(miri) { 400 } else { 4_000 };
    let (sender, mut receiver) = channel(NonZeroUsize::MIN);
    let echoes = count_echoes::<R>().await;
    for value in 0..VALUES {
        coop::consume(WORK_NANOS);
        sender.send::<R>(value).await.expect("the receiver lives");
        assert_eq!(receiver.receive::<R>().await, Some(value), "the value that was sent");
    }
    let what = format!("echoes while {VALUES} values were passed");
    expect_at_least(VALUES / YIELDS_TO_ECHO_MAX / 2, &what, echoes.get());
}

/// "Each poll of a task has a budget": neither earlier work of the task nor work of other tasks counts.
pub async fn each_poll_begins_with_a_full_budget<R: Runtime>() {
    let spend_all = || {
        const EXPECTED: &str = "expected a full budget when a poll begins";
        assert!(coop::has_budget(), "{EXPECTED}; seen: it is used up");
        coop::consume(u64::from(POLL_BUDGET_NANOS) - 1);
        assert!(coop::has_budget(), "{EXPECTED}; seen: it is used up in part");
        coop::consume(u64::from(POLL_BUDGET_NANOS));
        assert!(!coop::has_budget(), "{EXPECTED}, and no more; seen: more");
    };
    let tasks = [Duration::ZERO, Duration::from_millis(1)].map(|wait| {
        R::spawn(async move {
            for _ in 0..20 {
                spend_all();
                R::sleep(wait).await;
            }
        })
    });
    for task in tasks {
        joined::<R, _>("the end of the task", task).await;
        spend_all(); // also in a poll of the main future
    }
}

/// "Once such polls have used up `EAGER_BUDGET_NANOS` within one poll of the caller, this behaves like `spawn`." "The poll
/// has a budget of its own, and leaves that of the caller as it is."
pub async fn eager_polls_have_a_bound<R: Runtime>() {
    const TASKS: u32 = 100;
    R::sleep(A_WHILE).await; // the next poll starts with a full budget
    for _ in 0..2 {
        let polled = Rc::new(Cell::new(0));
        let start = || {
            let polled = Rc::clone(&polled);
            R::spawn_eager(async move {
                assert!(coop::has_budget(), "expected a budget of its own; seen: it is used up");
                coop::consume(WORK_NANOS);
                polled.set(polled.get() + 1);
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(|_| start()).collect();
        let at_once = polled.get();
        let polls_max = EAGER_BUDGET_NANOS / WORK_NANOS as u32 + 1;
        assert!(
            (1..=polls_max).contains(&at_once),
            "expected 1 to {polls_max} of {TASKS} tasks to be polled at once; seen: {at_once}"
        );
        assert!(coop::has_budget(), "expected the budget of the caller to stay; seen: it is gone");
        for task in tasks {
            joined::<R, _>("the end of the task", task).await;
        }
        assert_eq!(polled.get(), TASKS, "the polls of the tasks in all");
    }
}

/// "Lets other tasks and I/O run if the budget is used up", in a service that neither reads nor writes.
pub async fn yield_if_exhausted_lets_io_run<R: Runtime>() {
    const YIELDS: u32 = if cfg!(miri) { 200 } else { 2_000 };
    let (runs, echoes) = (count_runs::<R>(), count_echoes::<R>().await);
    let before = runs.get();
    for _ in 0..YIELDS {
        coop::consume(POLL_BUDGET_NANOS.into());
        coop::yield_if_exhausted::<R>().await;
        assert!(coop::has_budget(), "expected a budget after a yield; seen: it is used up");
    }
    let (runs, echoes) = (runs.get() - before, echoes.get());
    expect_at_least(YIELDS / 2, &format!("runs of another task during {YIELDS} yields"), runs);
    let what = format!("echoes during {YIELDS} yields");
    expect_at_least(YIELDS / YIELDS_TO_ECHO_MAX, &what, echoes);
}

/// "Otherwise it is ready at once."
pub async fn yield_if_exhausted_is_ready_while_there_is_budget<R: Runtime>() {
    let runs = count_runs::<R>();
    R::sleep(A_WHILE).await; // the next poll starts with a full budget
    let before = runs.get();
    for _ in 0..POLL_BUDGET_NANOS / 1_000 {
        let mut ready = pin!(coop::yield_if_exhausted::<R>());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = ready.as_mut().poll(&mut cx);
        assert!(polled.is_ready(), "expected no yield while there is budget; seen: it yields");
        coop::consume(999);
    }
    assert_eq!(runs.get(), before, "runs of another task");
}

/// The most yields of a task per echo of another client. The client and the server each write and read, and each
/// step takes at most a few rounds of the runtime.
const YIELDS_TO_ECHO_MAX: u32 = 40;

/// Counts the echoes between a client and a server, which are tasks of this thread. Returns after the first echo.
async fn count_echoes<R: Runtime>() -> Rc<Cell<u32>> {
    let (mut client, server) = pair::<R>().await;
    drop(R::spawn(echo(server)));
    let echoes = Rc::new(Cell::new(0));
    drop(R::spawn({
        let echoes = Rc::clone(&echoes);
        async move {
            loop {
                echoed(&mut client, b"x").await;
                echoes.set(echoes.get() + 1);
            }
        }
    }));
    let begun = soon::<R, _>("the first echo", async {
        while echoes.get() == 0 {
            R::sleep(Duration::ZERO).await;
        }
    });
    begun.await;
    echoes.set(0);
    echoes
}
