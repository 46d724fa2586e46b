//! Disks that are full, or fail: in the simulator.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use common::{append, expect_batches, open, payload, read_all, scratch, small};
use owned_io::Clock;
use owned_io_log::{ErrorKind, Partition, PartitionConfig, ReadFrom, SyncPolicy, remove};
use owned_io_sim::{Fault, Sim, World, run, seeds};

/// Waits for the output of tasks.
async fn joined<T>(tasks: Vec<owned_io::JoinHandle<T>>) -> Vec<T> {
    let mut outputs = Vec::new();
    for task in tasks {
        outputs.push(task.await.expect("no panic"));
    }
    outputs
}

/// Appends batches at the same time.
fn append_all(
    log: &Partition<Sim>,
    numbers: std::ops::Range<u64>,
) -> Vec<owned_io::JoinHandle<Result<u64, owned_io_log::Error>>> {
    use owned_io::Executor;
    let append = |number| {
        let log = log.clone();
        Sim::spawn(async move { append(&log, number).await })
    };
    numbers.map(append).collect()
}

/// "One sync serves all who wait."
#[test]
fn one_sync_serves_all_who_wait() {
    run(seeds(5), async |world| {
        let dir = scratch::<Sim>();
        let (log, _) = open::<Sim>(&dir, PartitionConfig::default()).await;
        let before = world.trace().matches("is synced").count();
        joined(append_all(&log, 0..100)).await.into_iter().for_each(|result| _ = result.unwrap());
        let syncs = world.trace().matches("is synced").count() - before;
        assert!((1..20).contains(&syncs), "{syncs} syncs for 100 batches");
        Ok(())
    });
}

/// "All who wait get the error, and the partition takes no more writes. When it is opened again, batches that may exist
/// in the page cache only are written and synced again."
#[test]
fn a_failed_sync_is_final() {
    let kept = Rc::new(Cell::new(0));
    run(seeds(30), {
        let kept = Rc::clone(&kept);
        async move |world| {
            let host = world.host("disk");
            let (there, kept) = (host.clone(), Rc::clone(&kept));
            let dir = scratch::<Sim>();
            let again = dir.clone();
            let written = host.spawn(async move {
                let (log, _) = open::<Sim>(&dir, small()).await;
                for number in 0..10 {
                    append(&log, number).await.unwrap();
                }
                let next = log.offsets().next;
                let lasts = Duration::from_millis(10);
                World::current().apply(Fault::SyncErrors { host: there, lasts });
                for result in joined(append_all(&log, 10..20)).await {
                    let error = result.expect_err("the sync fails");
                    assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
                }
                Sim::sleep(lasts).await;
                assert_eq!(
                    append(&log, 20).await.expect_err("it is final").kind(),
                    ErrorKind::Failed
                );
                assert_eq!(log.flush().await.expect_err("it is final").kind(), ErrorKind::Failed);
                expect_batches(&log, 0..10).await;
                assert_eq!(log.offsets().next, next, "only acknowledged batches are visible");
                assert_eq!(log.close().await.expect_err("it failed").kind(), ErrorKind::Failed);
                // Whatever is found is durable then, and what comes after it.
                let (log, _) = open::<Sim>(&dir, small()).await;
                append(&log, 21).await.unwrap();
                read_all(&log, 0, 1000).await.unwrap()
            });
            let written = written.await.expect("no panic");
            assert!(written.len() >= 11);
            kept.set(kept.get() + written.len() - 11);
            world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
            Sim::sleep(Duration::from_secs(2)).await;
            let found = host.spawn(async move {
                let (log, _) = open::<Sim>(&again, small()).await;
                read_all(&log, 0, 1000).await.unwrap()
            });
            assert_eq!(found.await.expect("no panic"), written);
            Ok(())
        }
    });
    assert!(kept.get() > 0, "under no seed did recovery find what only the page cache had");
}

/// The same for the header of a segment: the first batches behind it may reach the disk in part, and the header is there.
#[test]
fn a_header_whose_sync_failed_is_written_again() {
    run(seeds(100), async |world| {
        let host = world.host("disk");
        let (there, dir) = (host.clone(), scratch::<Sim>());
        let again = dir.clone();
        let is_opened_again = Rc::new(Cell::new(false));
        let opened = Rc::clone(&is_opened_again);
        drop(host.spawn(async move {
            let (log, _) = open::<Sim>(&dir, small()).await;
            // After some of these batches the next one needs a new segment.
            let count = World::current().random(20);
            for number in 0..count {
                append(&log, number).await.unwrap();
            }
            let lasts = Duration::from_millis(10);
            World::current().apply(Fault::SyncErrors { host: there, lasts });
            append(&log, count).await.expect_err("the sync fails");
            Sim::sleep(lasts).await;
            let (log, _) = open::<Sim>(&dir, small()).await;
            opened.set(true);
            joined(append_all(&log, 100..110)).await;
        }));
        while !is_opened_again.get() {
            Sim::sleep(Duration::from_micros(10)).await;
        }
        Sim::sleep(Duration::from_micros(world.random(1_000))).await;
        world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
        Sim::sleep(Duration::from_secs(2)).await;
        let found = host.spawn(async move { drop(open::<Sim>(&again, small()).await) });
        found.await.expect("the partition opens");
        Ok(())
    });
}

/// "All batches that wait are refused, and what was written of them is cut. Later ones are taken when there is
/// space."
#[test]
fn a_full_disk_refuses_and_the_log_goes_on() {
    run(seeds(30), async |world| {
        let dir = scratch::<Sim>();
        let host = world.main_host();
        for round in 0..3 {
            let (log, recovered) = open::<Sim>(&dir, small()).await;
            assert_eq!(recovered.cut_bytes, 0, "what did not fit was cut");
            let mut stored: Vec<_> = read_all(&log, 0, 1000).await.unwrap();
            for number in 0..5 {
                append(&log, number).await.unwrap();
            }
            let next = log.offsets().next;
            host.limit_disk(log.size().bytes + world.random(1_500));
            let results = joined(append_all(&log, 10..30)).await;
            let refused = results.iter().filter(|result| result.is_err()).count();
            assert!(refused > 0, "round {round}");
            for error in results.into_iter().filter_map(Result::err) {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            }
            host.limit_disk(u64::MAX);
            let base = append(&log, 40).await.expect("there is space again");
            assert!(base >= next && base < next + 100);
            let all = read_all(&log, 0, 1000).await.unwrap();
            assert_eq!(all.len(), stored.len() + 5 + 20 - refused + 1);
            assert_eq!(all.last().unwrap().bytes, payload(40));
            assert!(all.is_sorted_by(|a, b| a.next_offset() == b.base_offset), "no gap");
            stored = all;
            log.close().await.unwrap();
            let (log, _) = open::<Sim>(&dir, small()).await;
            assert_eq!(read_all(&log, 0, 1000).await.unwrap(), stored);
            log.close().await.unwrap();
        }
        remove::<Sim>(dir).await.unwrap();
        Ok(())
    });
}

/// An error of a read reaches the reader, with its OS code, and nobody else.
#[test]
fn a_read_error_reaches_the_reader() {
    run(seeds(10), async |world| {
        let dir = scratch::<Sim>();
        let (log, _) = open::<Sim>(&dir, small()).await;
        for number in 0..40 {
            append(&log, number).await.unwrap();
        }
        let lasts = Duration::from_secs(1);
        world.apply(Fault::ReadErrors { host: world.main_host(), lasts });
        let error = log.read(ReadFrom::Offset(0), 1000).await.expect_err("reads fail");
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let source = std::error::Error::source(&error).expect("the cause");
        let source = source.downcast_ref::<std::io::Error>().expect("an I/O error");
        assert_eq!(source.raw_os_error(), Some(5));
        append(&log, 40).await.expect("writes go on");
        Sim::sleep(lasts).await;
        expect_batches(&log, 0..41).await;
        Ok(())
    });
}

/// "It is synced within about this time", also if nothing is appended any more.
#[test]
fn the_interval_policy_syncs_in_time() {
    let interval = Duration::from_millis(50);
    run(seeds(20), async |world| {
        let host = world.host("disk");
        let dir = scratch::<Sim>();
        let again = dir.clone();
        let mut config = small();
        config.sync = SyncPolicy::Interval(interval);
        let writing = host.spawn(async move {
            let (log, _) = open::<Sim>(&dir, config).await;
            for number in 0..25 {
                append(&log, number).await.unwrap();
            }
            Sim::sleep(interval * 2).await;
            std::mem::forget(log); // no close, and no end of the writer
        });
        writing.await.expect("no panic");
        world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
        Sim::sleep(Duration::from_secs(2)).await;
        let found = host.spawn(async move {
            let (log, _) = open::<Sim>(&again, config).await;
            expect_batches(&log, 0..25).await;
        });
        found.await.expect("no panic");
        Ok(())
    });
}

/// Appends wait while the queue is full, and a slow disk does not make it longer.
#[test]
fn the_queue_is_bounded() {
    run(seeds(5), async |world| {
        let dir = scratch::<Sim>();
        let mut config = small();
        config.queue_bytes_max = 1000;
        let (log, _) = open::<Sim>(&dir, config).await;
        world.apply(Fault::SlowDisk { host: world.main_host(), lasts: Duration::from_secs(5) });
        let stamped = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                use owned_io::Executor;
                let (log, stamped) = (log.clone(), Rc::clone(&stamped));
                Sim::spawn(async move {
                    let stamp = |_| {
                        stamped.set(stamped.get() + 1);
                        [bytes::Bytes::from(vec![7; 300])]
                    };
                    log.append(1, stamp).await.unwrap();
                    stamped.set(stamped.get() - 1);
                })
            })
            .collect();
        while stamped.get() == 0 {
            Sim::sleep(Duration::from_millis(1)).await;
        }
        while log.offsets().next < 50 {
            // 1,000 bytes and one batch of 300, and batches whose tasks were not polled since.
            assert!(stamped.get() <= 10, "{} batches of 300 bytes wait", stamped.get());
            Sim::sleep(Duration::from_millis(100)).await;
        }
        joined(tasks).await;
        Ok(())
    });
}

/// "All batches that wait are refused, and what was written of them is cut": a crash does not bring them back.
#[test]
fn what_was_refused_stays_refused_after_a_crash() {
    run(seeds(100), async |world| {
        let host = world.host("disk");
        let there = host.clone();
        let dir = scratch::<Sim>();
        let again = dir.clone();
        let stored = Rc::new(Cell::new(0));
        let counted = Rc::clone(&stored);
        let writing = host.spawn(async move {
            let (log, _) = open::<Sim>(&dir, PartitionConfig::default()).await;
            for number in 0..3 {
                append(&log, number).await.unwrap();
            }
            // Most of them fit, but they are written together, and the last does not.
            there.limit_disk(log.size().bytes + 3_000);
            let results = joined(append_all(&log, 3..30)).await;
            counted.set(3 + results.iter().filter(|result| result.is_ok()).count());
            World::current().apply(Fault::Crash { host: there, down: Duration::from_secs(1) });
            Sim::sleep(Duration::from_secs(1)).await; // it ends here
        });
        assert!(writing.await.is_err());
        host.limit_disk(u64::MAX);
        Sim::sleep(Duration::from_secs(2)).await;
        let found = host.spawn(async move {
            let (log, recovered) = open::<Sim>(&again, PartitionConfig::default()).await;
            assert_eq!(recovered.cut_bytes, 0, "it was cut before");
            read_all(&log, 0, 1000).await.unwrap().len()
        });
        assert_eq!(found.await.expect("no panic"), stored.get());
        Ok(())
    });
}
