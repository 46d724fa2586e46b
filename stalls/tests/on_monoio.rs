//! monoio runs ready tasks before I/O and timers, so a task that is always ready stops both for as long as it lives.

mod common;

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use common::{End, LIMIT, wait_for};
use owned_io_stalls::{Class, Config, Detector};

#[test]
fn a_task_that_is_always_ready() {
    let detector = Detector::start(Config::default()).unwrap();
    let end = End::default();
    let (watched, ended) = (detector.clone(), end.clone());
    let worker = std::thread::spawn(move || {
        let mut runtime =
            monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build().unwrap();
        runtime.block_on(async move {
            let heart = watched.watch_current_thread("ring 0");
            monoio::spawn(async move {
                loop {
                    heart.beat();
                    monoio::time::sleep(heart.interval()).await;
                }
            });
            monoio::time::sleep(Duration::from_millis(100)).await;
            monoio::spawn(poll_fn(move |context| {
                context.waker().wake_by_ref();
                if ended.is_set() { Poll::Ready(()) } else { Poll::Pending }
            }))
            .await;
        });
    });
    let incident = wait_for(&detector, "monoio", |it| it.verdict.has(Class::SelfWakingTask));
    assert!(!incident.verdict.has(Class::BlockedLoop), "{incident}");
    end.set();
    worker.join().unwrap();
}

/// monoio leaks the tasks that wait when their runtime ends, and with them the heart.
#[test]
fn a_runtime_that_has_ended_does_not_stall() {
    let detector = Detector::start(Config::default()).unwrap();
    let watched = detector.clone();
    let worker = std::thread::spawn(move || {
        let mut runtime =
            monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build().unwrap();
        runtime.block_on(async move {
            let heart = watched.watch_current_thread("ring 0");
            monoio::spawn(async move {
                loop {
                    heart.beat();
                    monoio::time::sleep(heart.interval()).await;
                }
            });
            monoio::time::sleep(Duration::from_millis(100)).await;
        });
    });
    worker.join().unwrap();
    let until = Instant::now() + LIMIT;
    while !detector.snapshot().workers.is_empty() {
        assert!(Instant::now() < until, "{:#?}", detector.snapshot());
        std::thread::sleep(Duration::from_millis(20));
    }
}
