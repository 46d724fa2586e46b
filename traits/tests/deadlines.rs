//! Deadlines by the simulated clock, which says exactly how late they are.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use owned_io::backend::run_main;
use owned_io::{Clock, Deadline, Executor};
use owned_io_sim::{Config, Sim, World, run, seeds};

/// What the timers of the simulator and the polls of the tasks that are woken together may add to a tick.
const ROUNDED_MAX: Duration = Duration::from_millis(2);

fn tick(left: Duration) -> Duration {
    (left / Deadline::TICKS_MIN).clamp(Duration::from_millis(1), Deadline::TICK_MAX)
}

async fn passed(deadline: &mut Deadline) {
    poll_fn(|cx| deadline.poll_passed(cx)).await;
}

fn random(below: u64) -> u64 {
    let mut bytes = [0; 8];
    <Sim as owned_io::Random>::fill_random(&mut bytes);
    u64::from_le_bytes(bytes) % below
}

#[test]
fn a_deadline_is_never_early_and_at_most_a_tick_late() {
    run(seeds(20), async |_world: World| {
        let count = Rc::new(Cell::new(0));
        for _ in 0..200 {
            let count = Rc::clone(&count);
            drop(Sim::spawn(async move {
                let mut deadline = Deadline::new();
                // A fifth is set for an hour at most, most for seconds, and some for less than a millisecond.
                for millis_max in [1, 100, 10_000, 100_000, 3_600_000] {
                    Sim::sleep(Duration::from_nanos(random(50_000_000))).await;
                    let left = Duration::from_nanos(random(millis_max * 1_000_000));
                    let due = Sim::now() + left;
                    deadline.set(left, Waker::noop()); // the poll replaces it
                    passed(&mut deadline).await;
                    let late = Sim::now().checked_duration_since(due).expect("it is early");
                    assert!(late <= tick(left) + ROUNDED_MAX, "{left:?} is late by {late:?}");
                }
                count.set(count.get() + 1);
            }));
        }
        Sim::sleep(Duration::from_secs(2 * 3_600)).await;
        assert_eq!(count.get(), 200, "all have passed");
        Ok(())
    });
}

#[test]
fn long_deadlines_of_many_connections_share_wakes_of_the_runtime() {
    let events = |count: u64| {
        let config = Config::with_seed(1);
        let summary = owned_io_sim::simulate(config, async |_world: World| {
            let mut deadlines: Vec<_> = (0..count).map(|_| Deadline::new()).collect();
            for deadline in &mut deadlines {
                let left = Duration::from_secs(20) + Duration::from_micros(random(10_000_000));
                deadline.set(left, Waker::noop());
            }
            Sim::sleep(Duration::from_secs(40)).await;
            assert!(deadlines.iter().all(Deadline::has_passed));
            Ok(())
        });
        summary.events
    };
    // Ten seconds have 79 ticks. A timer for each would be 10,000 events.
    assert!(events(10_000) < 1_000, "{}", events(10_000));
}

#[test]
fn an_endless_deadline_never_passes() {
    owned_io_sim::block_on(async {
        let mut deadline = Deadline::new();
        assert!(!deadline.is_set());
        deadline.set(Duration::MAX, Waker::noop());
        assert!(deadline.is_set());
        Sim::sleep(Duration::from_secs(100 * 365 * 24 * 3_600)).await;
        assert!(!deadline.has_passed());
    });
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn only_the_last_time_and_the_last_waker_count() {
    owned_io_sim::block_on(async {
        let (first, last) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
        let (first_waker, last_waker) =
            (Waker::from(Arc::clone(&first)), Waker::from(Arc::clone(&last)));
        let second = Duration::from_secs(1);
        let mut deadline = Deadline::new();
        deadline.set(second, &first_waker);
        deadline.set(3 * second, &first_waker);
        assert_eq!(Arc::strong_count(&first), 3, "one waker of the two was dropped");
        let polled = deadline.poll_passed(&Context::from_waker(&last_waker));
        assert_eq!(polled, Poll::Pending);
        assert_eq!(Arc::strong_count(&first), 2, "it is replaced");
        Sim::sleep(2 * second).await;
        assert!(!deadline.has_passed());
        Sim::sleep(2 * second).await;
        assert!(deadline.has_passed());
        assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
        assert_eq!(deadline.poll_passed(&Context::from_waker(&last_waker)), Poll::Ready(()));
        assert!(!deadline.is_set() && !deadline.has_passed());

        deadline.set(second, &last_waker);
        drop(deadline);
        Sim::sleep(2 * second).await;
        assert_eq!(last.0.load(Ordering::Relaxed), 1, "a dropped one wakes nobody");
        assert_eq!(Arc::strong_count(&last), 2, "and keeps no waker");
    });
}

#[test]
fn a_runtime_within_a_runtime_has_deadlines_of_its_own() {
    owned_io_sim::block_on(async {
        let mut outer = Deadline::new();
        outer.set(Duration::from_secs(1), Waker::noop());
        // This is the part of a nested runtime that could confuse the deadlines.
        let nested = run_main::<Sim, _>(async {
            let mut inner = Deadline::new();
            inner.set(Duration::from_secs(5), Waker::noop());
            passed(&mut inner).await;
            inner
        });
        let mut inner = nested.await.unwrap();
        assert!(outer.has_passed());
        inner.set(Duration::from_secs(1), Waker::noop());
        // Those of the thread are the outer ones again.
        let mut outer = Deadline::new();
        outer.set(Duration::from_secs(2), Waker::noop());
        passed(&mut outer).await;
        assert!(!inner.has_passed(), "its runtime has ended");
    });
}
