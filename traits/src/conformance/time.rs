//! Cases about time and random numbers.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use super::support::{A_WHILE, SOON, echo, echoed, pair, soon, within};
use crate::{Deadline, Runtime};

/// "Waits until `duration` has passed, measured by `now` from the call or from the first poll."
pub async fn sleep_is_never_early<R: Runtime>() {
    for micros in [1, 500, 1_000, 1_500, 10_000, 20_000] {
        let duration = Duration::from_micros(micros);
        let started = R::now();
        R::sleep(duration).await;
        let took = R::now() - started;
        let most = duration + SOON;
        assert!(
            (duration..most).contains(&took),
            "expected a sleep to take {duration:?}, and less than {most:?}; seen: {took:?}"
        );
    }
}

/// "The runtime rounds the time up to the tick of its timers, by at most 2 ms."
pub async fn sleep_is_rounded_up_by_at_most_two_milliseconds<R: Runtime>() {
    const ROUNDED_MAX: Duration = Duration::from_millis(2);
    const SLEEPS: u32 = 16;
    const ATTEMPTS: u32 = 50;
    for micros in [1, 600, 1_000, 1_400] {
        let duration = Duration::from_micros(micros);
        let longest = SLEEPS * (duration + ROUNDED_MAX);
        let mut best = Duration::MAX;
        // Other programs may delay any attempt, but rarely all: the best one counts. An attempt consists of
        // many sleeps in a row, so that a start late in a tick is no advantage.
        for _ in 0..ATTEMPTS {
            let started = R::now();
            for _ in 0..SLEEPS {
                R::sleep(duration).await;
            }
            best = best.min(R::now() - started);
            if best <= longest {
                break;
            }
        }
        assert!(
            best <= longest,
            "expected {SLEEPS} sleeps of {duration:?} in a row to take at most {longest:?}; seen: \
             {best:?} at best"
        );
    }
}

/// Sleeps end in the order of their times, in whatever order they start.
pub async fn sleeps_end_in_order_of_time<R: Runtime>() {
    let order = Rc::new(RefCell::new(Vec::new()));
    let tasks: Vec<_> = [60, 20, 80, 40]
        .map(|millis| {
            let order = Rc::clone(&order);
            R::spawn(async move {
                R::sleep(Duration::from_millis(millis)).await;
                order.borrow_mut().push(millis);
            })
        })
        .into();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.borrow(), [20, 40, 60, 80]);
}

/// "Other tasks and I/O run while it waits, even for a duration of zero: within a bounded number of sleeps of zero
/// in a row, every ready task is polled, and so is I/O."
pub async fn sleep_of_zero_lets_others_run<R: Runtime>() {
    let (mut a, b) = pair::<R>().await;
    drop(R::spawn(echo(b)));
    let echoes = Rc::new(Cell::new(0));
    drop(R::spawn({
        let echoes = Rc::clone(&echoes);
        async move {
            loop {
                echoed(&mut a, b"x").await;
                echoes.set(echoes.get() + 1);
            }
        }
    }));
    // The sleeps are counted: if nothing else runs, simulated time does not advance.
    for _ in 0..100_000 {
        if echoes.get() >= 10 {
            return;
        }
        R::sleep(Duration::ZERO).await;
    }
    panic!("expected at least 10 echoes during 100,000 sleeps of zero; seen: {}", echoes.get());
}

/// "Safe": a sleep may be dropped at any time.
pub async fn sleep_may_be_dropped<R: Runtime>() {
    for _ in 0..100 {
        let slept = within::<R, _>(Duration::ZERO, R::sleep(SOON)).await;
        assert!(slept.is_none(), "expected a sleep of {SOON:?} to wait; seen: it is done at once");
    }
    R::sleep(Duration::from_millis(1)).await;
}

/// A sleep accepts the longest possible durations.
pub async fn sleep_may_be_endless<R: Runtime>() {
    let longest = [Duration::MAX, Duration::from_millis(u64::MAX), Duration::from_nanos(u64::MAX)];
    for duration in longest {
        let slept = within::<R, _>(A_WHILE, R::sleep(duration)).await;
        assert!(slept.is_none(), "expected a sleep of {duration:?} to wait; seen: it is done");
    }
}

/// [`Deadline`]: "never early", and "late by at most a tick", in whatever order they are set.
pub async fn deadlines_pass_within_a_tick<R: Runtime>() {
    let tasks: Vec<_> = [60, 20, 1, 200, 0, 20, 128, 100]
        .map(|millis| {
            R::spawn(async move {
                let (started, left) = (R::now(), Duration::from_millis(millis));
                wait(&mut Deadline::new(), left).await;
                (left, R::now() - started)
            })
        })
        .into();
    for task in tasks {
        let (left, took) = task.await.unwrap();
        // Other programs may delay it. The simulator's own tests look at the tick.
        assert!(
            (left..left + SOON).contains(&took),
            "expected a deadline of {left:?} to pass then, and soon; seen: {took:?}"
        );
    }
}

/// [`Deadline`]: "Replaces what was set before". A dropped one wakes nobody, and others go on.
pub async fn a_deadline_that_moves_or_is_dropped_wakes_nobody<R: Runtime>() {
    let (mut moved, started) = (Deadline::new(), R::now());
    for _ in 0..10 {
        // It is polled within the select, and then dropped or moved away.
        let passed = within::<R, _>(A_WHILE / 3, wait(&mut Deadline::new(), SOON)).await;
        assert!(passed.is_none(), "expected a deadline in {SOON:?} to wait; seen: it has passed");
        let passed = within::<R, _>(A_WHILE / 10, wait(&mut moved, A_WHILE)).await;
        assert!(passed.is_none() || R::now() - started >= A_WHILE, "it is early");
    }
    moved.clear();
    let passed = within::<R, _>(A_WHILE, poll_fn(|cx| moved.poll_passed(cx))).await;
    assert!(passed.is_none(), "expected one that is not set to wait; seen: it has passed");
    soon::<R, _>("a deadline", wait(&mut moved, A_WHILE)).await;
}

async fn wait(deadline: &mut Deadline, left: Duration) {
    let mut is_new = true;
    poll_fn(|cx| {
        if std::mem::take(&mut is_new) {
            deadline.set(left, cx.waker());
        }
        deadline.poll_passed(cx)
    })
    .await;
}

/// Sleeps end soon while connections are busy.
pub async fn sleep_ends_while_connections_are_busy<R: Runtime>() {
    for _ in 0..20 {
        let (mut a, b) = pair::<R>().await;
        drop(R::spawn(echo(b)));
        drop(R::spawn(async move {
            loop {
                echoed(&mut a, &[1; 100]).await;
            }
        }));
    }
    // In the simulation, a millisecond takes a thousand polls.
    let (sleeps, duration) = if cfg!(miri) { (2, 1) } else { (10, 10) };
    for _ in 0..sleeps {
        soon::<R, _>("a short sleep", R::sleep(Duration::from_millis(duration))).await;
    }
}

/// "The time of the runtime's monotonic clock", and the time of day.
pub async fn clocks_go_forward<R: Runtime>() {
    const SLEEP: Duration = Duration::from_millis(20);
    let (started, day) = (R::now(), R::wall_clock());
    R::sleep(SLEEP).await;
    let passed = R::now() - started;
    assert!(
        passed >= SLEEP,
        "expected the clock to go {SLEEP:?} forward in a sleep; seen: {passed:?}"
    );
    // The wall clock may be set while this runs, but not to a time before this case was written.
    let written = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for seen in [day, R::wall_clock()] {
        assert!(seen > written, "expected the time of day to be after {written:?}; seen: {seen:?}");
    }
}

/// "Fills `bytes` with random bytes": all of them, and different ones on each call.
pub async fn random_bytes_differ<R: Runtime>() {
    let (mut one, mut other) = ([0; 4096], [0; 4096]);
    R::fill_random(&mut one);
    R::fill_random(&mut other);
    assert!(
        one != other,
        "expected two calls to return different bytes; seen: the same bytes twice"
    );
    // The chance that 64 random bytes are all zero is below 2^-500.
    let zeros = one.chunks(64).position(|chunk| chunk.iter().all(|byte| *byte == 0));
    assert!(zeros.is_none(), "expected all bytes to be random; seen: 64 zeros in block {zeros:?}");
    R::fill_random(&mut []);
}
