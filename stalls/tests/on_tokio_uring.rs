//! tokio-uring submits entries when its thread parks. A task that is always ready keeps it from that, and its timers
//! still run, so the heart beats.

mod common;

use std::time::Duration;

use common::{End, wait_for};
use owned_io_stalls::{Class, Config, Detector};

#[test]
fn entries_never_submitted() {
    let detector = Detector::start(Config::default()).unwrap();
    let end = End::default();
    let (watched, ended) = (detector.clone(), end.clone());
    let worker = std::thread::spawn(move || {
        tokio_uring::start(async move {
            let heart = watched.watch_current_thread("ring 0");
            tokio_uring::spawn(async move {
                loop {
                    heart.beat();
                    tokio::time::sleep(heart.interval()).await;
                }
            });
            let listener = tokio_uring::net::TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            tokio_uring::spawn(async move { listener.accept().await.map(drop) });
            while !ended.is_set() {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        });
    });
    let incident =
        wait_for(&detector, "yield", |it| it.verdict.class() == Class::UnsubmittedEntries);
    assert!(incident.to_string().contains("ACCEPT"), "{incident}");
    end.set();
    worker.join().unwrap();
    assert!(common::wait_for_end(&detector, Class::UnsubmittedEntries).lasted_ms > 0);
}
