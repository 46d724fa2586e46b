//! Guarantees that only a sequence of a few faults can break: in the simulator.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use common::{append, edit, expect_batches, open, read_all, scratch, segments, small};
use owned_io::{Clock, Executor, Files, OpenMode, select};
use owned_io_log::{
    ErrorKind, Journal, Offsets, Partition, PartitionConfig, ReadFrom, Retention, SyncPolicy,
    remove,
};
use owned_io_sim::{Fault, Sim, World, run, seeds};

/// Appends batches of `bytes` bytes until one is in a second segment. Returns the number of batches.
async fn fill_segment(log: &Partition<Sim>, bytes: usize) -> u64 {
    let before = log.size().segments;
    let mut count = 0;
    while log.size().segments == before {
        append_bytes(log, bytes).await.unwrap();
        count += 1;
    }
    count
}

async fn append_bytes(log: &Partition<Sim>, bytes: usize) -> Result<u64, owned_io_log::Error> {
    let stamp = |position: owned_io_log::Position| {
        let mut payload = position.base_offset.to_le_bytes().to_vec();
        payload.resize(bytes, 7);
        [Bytes::from(payload)]
    };
    Ok(log.append(1, stamp).await?.base_offset)
}

/// Panics unless each of the offsets below `next` can be read, and is that of the batch it was given to.
async fn expect_each_offset(log: &Partition<Sim>, next: u64) {
    assert_eq!(log.offsets(), Offsets { first: 0, next });
    for offset in 0..next {
        let batches = log.read(ReadFrom::Offset(offset), 1).await.expect("it can be read");
        assert_eq!(batches.first().map(|batch| batch.base_offset), Some(offset));
        assert_eq!(batches[0].bytes[..8], offset.to_le_bytes());
    }
}

/// "A full disk is no failure": a segment that could not be created hides nothing that is appended later.
#[test]
fn a_segment_that_could_not_be_created_hides_nothing() {
    run(seeds(30), async |world| {
        let dir = scratch::<Sim>();
        let host = world.main_host();
        let (log, _) = open::<Sim>(&dir, small()).await;
        let mut next = 0;
        while log.size().bytes < 3_200 {
            append_bytes(&log, 200).await.unwrap();
            next += 1;
        }
        // The file of the next segment is created, but its header or a part of it is not written.
        host.limit_disk(log.size().bytes + world.random(40));
        let error = append_bytes(&log, 1_000).await.expect_err("the disk is full");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        host.limit_disk(u64::MAX);
        // It fits in the segment before, and the next ones do not.
        for bytes in [100, 3_000, 3_000] {
            assert_eq!(append_bytes(&log, bytes).await.unwrap(), next);
            next += 1;
        }
        expect_each_offset(&log, next).await;
        log.close().await.unwrap();
        let (log, _) = open::<Sim>(&dir, small()).await;
        expect_each_offset(&log, next).await;
        // Nor does it survive a purge.
        host.limit_disk(log.size().bytes + 10);
        append_bytes(&log, 3_500).await.expect_err("the disk is full");
        host.limit_disk(u64::MAX);
        log.purge().await.unwrap();
        append_bytes(&log, 100).await.unwrap();
        log.close().await.unwrap();
        let (log, _) = open::<Sim>(&dir, small()).await;
        expect_each_offset(&log, 1).await;
        Ok(())
    });
}

/// "A full disk is no failure" of a purge, also if there is no room for the first file of what comes next.
#[test]
fn a_purge_needs_no_room() {
    run(seeds(30), async |world| {
        let dir = scratch::<Sim>();
        let host = world.main_host();
        let (log, _) = open::<Sim>(&dir, small()).await;
        for _ in 0..world.random(30) {
            append_bytes(&log, 200).await.unwrap();
        }
        // Others take what the purge makes free, but for less than a header.
        host.limit_disk(world.random(40));
        for _ in 0..1 + world.random(2) {
            log.purge().await.unwrap();
            expect_each_offset(&log, 0).await;
            log.flush().await.unwrap();
            let error = append_bytes(&log, 100).await.expect_err("the disk is full");
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
        let is_reopened = world.random(2) == 0;
        let mut log = log;
        if is_reopened {
            log.close().await.unwrap();
            host.limit_disk(u64::MAX);
            log = open::<Sim>(&dir, small()).await.0;
        }
        host.limit_disk(u64::MAX);
        for offset in 0..30 {
            assert_eq!(append_bytes(&log, 200).await.unwrap(), offset);
        }
        expect_each_offset(&log, 30).await;
        log.close().await.unwrap();
        expect_each_offset(&open::<Sim>(&dir, small()).await.0, 30).await;
        Ok(())
    });
}

/// "Batches get offsets in the order of these calls", also after purges that wait for each other.
#[test]
fn two_purges_at_once_give_no_offset_twice() {
    run(seeds(30), async |_| {
        let dir = scratch::<Sim>();
        let (log, _) = open::<Sim>(&dir, small()).await;
        for _ in 0..5 {
            append_bytes(&log, 100).await.unwrap();
        }
        let purges: Vec<_> = (0..3)
            .map(|_| {
                let log = log.clone();
                Sim::spawn(async move { log.purge().await.unwrap() })
            })
            .collect();
        Sim::sleep(Duration::ZERO).await;
        let appends: Vec<_> = (0..4)
            .map(|_| {
                let log = log.clone();
                Sim::spawn(async move { append_bytes(&log, 100).await.unwrap() })
            })
            .collect();
        for purge in purges {
            purge.await.unwrap();
        }
        let mut offsets = Vec::new();
        for append in appends {
            offsets.push(append.await.unwrap());
        }
        offsets.push(append_bytes(&log, 100).await.unwrap());
        offsets.sort_unstable();
        assert_eq!(offsets, [0, 1, 2, 3, 4]);
        log.close().await.unwrap();
        let (log, _) = open::<Sim>(&dir, small()).await;
        expect_each_offset(&log, 5).await;
        Ok(())
    });
}

/// "[`Recovered`](owned_io_log::Recovered) says how many bytes were cut": for a journal too.
#[test]
fn a_journal_says_what_was_cut() {
    run(seeds(5), async |_| {
        let dir = scratch::<Sim>();
        let (journal, replay) = Journal::<Sim>::open(&dir, small()).await.unwrap();
        assert_eq!((replay.recovered.cut_bytes, replay.recovered.cut_file), (0, None));
        journal.append(Bytes::from_static(b"one")).await.unwrap();
        journal.close().await.unwrap();
        let path = segments::<Sim>(&dir).await.remove(0);
        edit::<Sim>(&path, |bytes| bytes.extend([0; 10])).await;
        let (_journal, replay) = Journal::<Sim>::open(&dir, small()).await.unwrap();
        assert_eq!((replay.recovered.cut_bytes, replay.recovered.cut_file), (10, Some(path)));
        assert_eq!(replay.records, [&b"one"[..]]);
        Ok(())
    });
}

/// "What was written of this one takes no space", also if the process has ended meanwhile.
#[test]
fn an_unfinished_snapshot_is_removed() {
    run(seeds(20), async |world| {
        let dir = scratch::<Sim>();
        let host = world.main_host();
        let unfinished = dir.join("snapshot.new");
        let is_there = async || {
            let entries = Sim::list_dir(&dir).await.unwrap();
            entries.iter().any(|entry| entry.name == "snapshot.new")
        };
        let (journal, _) = Journal::<Sim>::open(&dir, small()).await.unwrap();
        journal.append(Bytes::from_static(b"one")).await.unwrap();
        host.limit_disk(1_000);
        let error =
            journal.snapshot(Bytes::from(vec![7; 5_000])).await.expect_err("the disk is full");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(!is_there().await);
        host.limit_disk(u64::MAX);
        journal.close().await.unwrap();

        drop(Sim::open(&unfinished, OpenMode::CreateNew).await?);
        let (journal, replay) = Journal::<Sim>::open(&dir, small()).await.unwrap();
        assert!(!is_there().await);
        assert_eq!((replay.snapshot, replay.records), (None, vec![Bytes::from_static(b"one")]));
        journal.close().await.unwrap();
        Ok(())
    });
}

/// A record that is acknowledged after a snapshot is replayed, although an earlier one was refused meanwhile.
#[test]
fn a_snapshot_does_not_hide_a_later_record() {
    run(seeds(30), async |world| {
        let dir = scratch::<Sim>();
        let host = world.main_host();
        let (journal, _) = Journal::<Sim>::open(&dir, small()).await.unwrap();
        let journal = Rc::new(journal);
        journal.append(Bytes::from_static(b"one")).await.unwrap();
        host.limit_disk(0);
        let refused = Sim::spawn({
            let journal = Rc::clone(&journal);
            async move {
                let result = journal.append(Bytes::from_static(b"two")).await;
                World::current().main_host().limit_disk(u64::MAX);
                result
            }
        });
        Sim::sleep(Duration::ZERO).await;
        journal.snapshot(Bytes::from_static(b"one two")).await.unwrap();
        let error = refused.await.unwrap().expect_err("the disk was full");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        journal.append(Bytes::from_static(b"three")).await.unwrap();
        Rc::into_inner(journal).unwrap().close().await.unwrap();
        let (_journal, replay) = Journal::<Sim>::open(&dir, small()).await.expect("it opens");
        assert_eq!(replay.snapshot.unwrap(), "one two");
        assert_eq!(replay.records, ["three"]);
        Ok(())
    });
}

/// Otherwise the records after it would be replayed on an empty state.
#[test]
fn a_journal_whose_snapshot_is_lost_is_refused() {
    run(seeds(5), async |_| {
        let dir = scratch::<Sim>();
        let (journal, _) = Journal::<Sim>::open(&dir, small()).await.unwrap();
        journal.append(Bytes::from_static(b"one")).await.unwrap();
        journal.snapshot(Bytes::from_static(b"one")).await.unwrap();
        journal.append(Bytes::from_static(b"two")).await.unwrap();
        journal.close().await.unwrap();
        let (path, hidden) = (dir.join("snapshot"), dir.join("hidden"));
        Sim::rename(&path, &hidden).await?;
        let error = Journal::<Sim>::open(&dir, small()).await.expect_err("the snapshot is lost");
        assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&*path)), "{error}");
        Sim::rename(&hidden, &path).await?;
        Sim::sleep(Duration::from_secs(1)).await; // until the task of the one that was refused has ended
        let (_journal, replay) = Journal::<Sim>::open(&dir, small()).await.unwrap();
        assert_eq!(replay.snapshot.unwrap(), "one");
        assert_eq!(replay.records, ["two"]);
        Ok(())
    });
}

/// "The bytes of the records that are not in the snapshot": a refused one is no record. A dropped one may be.
#[test]
fn a_refused_record_makes_no_snapshot_due() {
    run(seeds(10), async |world| {
        let host = world.main_host();
        let (journal, _) = Journal::<Sim>::open(scratch::<Sim>(), small()).await.unwrap();
        journal.append(Bytes::from(vec![1; 100])).await.unwrap();
        assert_eq!(journal.bytes_since_snapshot(), 100);
        host.limit_disk(0);
        for _ in 0..5 {
            let record = Bytes::from(vec![2; 50]);
            let error = journal.append(record).await.expect_err("the disk is full");
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
        assert_eq!(journal.bytes_since_snapshot(), 100);
        host.limit_disk(u64::MAX);
        let dropped = journal.append(Bytes::from(vec![3; 10]));
        drop(select(std::pin::pin!(dropped), Sim::sleep(Duration::ZERO)).await);
        journal.flush().await.unwrap();
        assert_eq!(journal.bytes_since_snapshot(), 110);
        Ok(())
    });
}

/// A snapshot whose future was dropped does not damage the next one.
#[test]
fn a_dropped_snapshot_does_not_damage_the_next() {
    run(seeds(200), async |world| {
        let host = world.host("disk");
        let dir = scratch::<Sim>();
        let again = dir.clone();
        let writing = host.spawn(async move {
            let (journal, _) = Journal::<Sim>::open(&dir, small()).await.unwrap();
            for round in 0..5_u8 {
                journal.append(vec![round; 100].into()).await.unwrap();
                let first = journal.snapshot(vec![round; 1_500].into());
                let limit = Duration::from_micros(World::current().random(2_500));
                drop(select(std::pin::pin!(first), Sim::sleep(limit)).await);
                journal.append(vec![100 + round; 100].into()).await.unwrap();
                journal.snapshot(vec![100 + round; 900].into()).await.unwrap();
            }
            journal.close().await.unwrap();
        });
        writing.await.expect("no panic");
        world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
        Sim::sleep(Duration::from_secs(2)).await;
        let found = host.spawn(async move {
            let (_journal, replay) = Journal::<Sim>::open(&again, small()).await.expect("it opens");
            assert_eq!(replay.snapshot.unwrap(), vec![104; 900]);
        });
        found.await.expect("no panic");
        Ok(())
    });
}

/// "Waits until everything that was appended before is on the disk, whatever the policy is."
#[test]
fn a_flush_makes_all_segments_durable() {
    for policy in [SyncPolicy::Never, SyncPolicy::Interval(Duration::MAX)] {
        run(seeds(30), async move |world| {
            let host = world.host("disk");
            let dir = scratch::<Sim>();
            let again = dir.clone();
            let mut config = small();
            config.sync = policy;
            let writing = host.spawn(async move {
                let (log, _) = open::<Sim>(&dir, config).await;
                for number in 0..60 {
                    append(&log, number).await.unwrap();
                }
                assert!(log.size().segments > 3);
                log.flush().await.unwrap();
                std::mem::forget(log);
            });
            writing.await.expect("no panic");
            world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
            Sim::sleep(Duration::from_secs(2)).await;
            let found = host.spawn(async move {
                let (log, _) = open::<Sim>(&again, config).await;
                expect_batches(&log, 0..60).await;
            });
            found.await.expect("no panic");
            Ok(())
        });
    }
}

/// "When it is opened again, batches that may exist in the page cache only are written and synced again", whatever the
/// policy is.
#[test]
fn a_failed_flush_is_made_good_when_the_partition_is_opened() {
    run(seeds(50), async |world| {
        let host = world.host("disk");
        let there = host.clone();
        let dir = scratch::<Sim>();
        let again = dir.clone();
        let mut config = small();
        config.sync = SyncPolicy::Never;
        let stored = Rc::new(RefCell::new(Vec::new()));
        let known = Rc::clone(&stored);
        let writing = host.spawn(async move {
            let (log, _) = open::<Sim>(&dir, config).await;
            for number in 0..8 {
                append(&log, number).await.unwrap();
            }
            let lasts = Duration::from_millis(10);
            World::current().apply(Fault::SyncErrors { host: there, lasts });
            assert_eq!(log.flush().await.expect_err("it fails").kind(), ErrorKind::Failed);
            let _ = log.close().await;
            Sim::sleep(lasts).await;
            let (log, _) = open::<Sim>(&dir, config).await;
            append(&log, 8).await.unwrap();
            log.flush().await.unwrap();
            append(&log, 9).await.unwrap(); // says that what is before it was synced
            log.flush().await.unwrap();
            *known.borrow_mut() = read_all(&log, 0, 1000).await.unwrap();
            std::mem::forget(log);
        });
        writing.await.expect("no panic");
        world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
        Sim::sleep(Duration::from_secs(2)).await;
        let found = host.spawn(async move {
            let (log, _) = open::<Sim>(&again, config).await;
            read_all(&log, 0, 1000).await.unwrap()
        });
        assert_eq!(found.await.expect("no panic"), *stored.borrow());
        Ok(())
    });
}

/// "In order, without a gap": what is missing before the last segment is an error of the read that comes to it.
#[test]
fn a_gap_between_segments_is_an_error_of_the_read() {
    run(seeds(10), async |world| {
        let dir = scratch::<Sim>();
        let mut config = small();
        config.cache_bytes_max = 0;
        let (log, _) = open::<Sim>(&dir, config).await;
        let first = fill_segment(&log, 500).await;
        fill_segment(&log, 500).await;
        log.close().await.unwrap();
        let paths = segments::<Sim>(&dir).await;
        if world.random(2) == 0 {
            // It ends one batch earlier.
            edit::<Sim>(&paths[1], |bytes| bytes.truncate(bytes.len() - 548)).await;
        } else {
            Sim::remove_file(&paths[1]).await.unwrap();
        }
        let (log, _) = open::<Sim>(&dir, config).await;
        assert_eq!(read_all(&log, 0, 400).await.unwrap_err().kind(), ErrorKind::Corrupt);
        // What comes after it can be read.
        let last = log.offsets().next - 1;
        assert_eq!(log.read(ReadFrom::Offset(last), 1).await.unwrap()[0].base_offset, last);
        assert!(log.read(ReadFrom::Offset(first - 2), 1).await.is_ok());
        Ok(())
    });
}

/// "What is before it can be read, and the segments after it."
#[test]
fn damage_hides_nothing_before_it() {
    run(seeds(5), async |_| {
        let dir = scratch::<Sim>();
        let mut config = small();
        config.cache_bytes_max = 0;
        let (log, _) = open::<Sim>(&dir, config).await;
        fill_segment(&log, 500).await;
        log.close().await.unwrap();
        let paths = segments::<Sim>(&dir).await;
        edit::<Sim>(&paths[0], |bytes| bytes[40 + 3 * 548] ^= 1).await; // the header of batch 3
        let (log, _) = open::<Sim>(&dir, config).await;
        for offset in 0..log.offsets().next {
            let read = log.read(ReadFrom::Offset(offset), 1).await;
            match offset {
                0..3 | 7.. => assert_eq!(read.unwrap()[0].base_offset, offset),
                _ => assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt),
            }
        }
        Ok(())
    });
}

/// A queue of no bytes takes one batch at a time.
#[test]
fn a_queue_of_no_bytes_takes_one_batch() {
    run(seeds(3), async |_| {
        let mut config = small();
        config.queue_bytes_max = 0;
        let (log, _) = open::<Sim>(&scratch::<Sim>(), config).await;
        let append = std::pin::pin!(append(&log, 0));
        let appended = select(append, Sim::sleep(Duration::from_secs(5))).await.first;
        assert_eq!(appended.expect("it does not wait for ever").unwrap(), 0);
        Ok(())
    });
}

/// The smallest batches count too: for their headers, and for what the queue keeps for each.
#[test]
fn the_smallest_batches_fill_the_queue() {
    run(seeds(3), async |world| {
        let mut config = PartitionConfig::default();
        config.queue_bytes_max = 10_000;
        let (log, _) = open::<Sim>(&scratch::<Sim>(), config).await;
        world.apply(Fault::SlowDisk { host: world.main_host(), lasts: Duration::from_secs(5) });
        let stamped = Rc::new(Cell::new(0));
        for _ in 0..1_000 {
            let (log, stamped) = (log.clone(), Rc::clone(&stamped));
            drop(Sim::spawn(async move {
                let stamp = |_| {
                    stamped.set(stamped.get() + 1);
                    [Bytes::from_static(b"1")]
                };
                log.append(1, stamp).await.unwrap();
            }));
        }
        Sim::sleep(Duration::ZERO).await;
        assert!((1..=40).contains(&stamped.get()), "{} batches wait", stamped.get());
        Ok(())
    });
}

/// A trim that fails loses no segment from its sight: the next one removes it.
#[test]
fn a_failed_trim_is_repeated_by_the_next() {
    run(seeds(10), async |_| {
        let dir = scratch::<Sim>();
        let (log, _) = open::<Sim>(&dir, small()).await;
        fill_segment(&log, 500).await;
        fill_segment(&log, 500).await;
        let before = log.size();
        // A directory of the same name: removing it as a file fails.
        let first = segments::<Sim>(&dir).await.remove(0);
        let hidden = dir.join("hidden");
        Sim::rename(&first, &hidden).await.unwrap();
        Sim::create_dir_all(&first).await.unwrap();
        let retention = Retention { bytes_max: Some(5_000), age_max: None };
        assert_eq!(log.trim(retention).await.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(log.size(), before, "nothing was removed");
        assert_eq!(log.offsets().first, 0);
        Sim::remove_dir(&first).await.unwrap();
        Sim::rename(&hidden, &first).await.unwrap();
        let trimmed = log.trim(retention).await.unwrap();
        assert!(trimmed.segments >= 1 && log.offsets().first == trimmed.first);
        assert_eq!(segments::<Sim>(&dir).await.len() as u32, log.size().segments);
        Ok(())
    });
}

/// "It is removed all the same", and what is opened meanwhile is refused.
#[test]
fn a_dropped_removal_goes_on() {
    run(seeds(50), async |world| {
        let dir = scratch::<Sim>();
        let (log, _) = open::<Sim>(&dir, small()).await;
        for number in 0..40 {
            append(&log, number).await.unwrap();
        }
        log.close().await.unwrap();
        let limit = Duration::from_micros(200 + world.random(400));
        let removing = remove::<Sim>(dir.clone());
        drop(select(std::pin::pin!(removing), Sim::sleep(limit)).await);
        match Partition::<Sim>::open(&dir, small()).await {
            Ok((log, _)) => {
                assert_eq!(log.offsets(), Offsets { first: 0, next: 0 });
                log.close().await.unwrap();
            }
            // `Io`: the directory was removed after it was found.
            Err(error) => assert!([ErrorKind::Locked, ErrorKind::Io].contains(&error.kind())),
        }
        Sim::sleep(Duration::from_secs(1)).await;
        let (log, _) = open::<Sim>(&dir, small()).await;
        assert_eq!(log.offsets(), Offsets { first: 0, next: 0 });
        Ok(())
    });
}

thread_local! {
    static ASKED: RefCell<Option<Partition<Sim>>> = const { RefCell::new(None) };
    static FREED: Cell<u32> = const { Cell::new(0) };
}

/// A buffer whose destructor asks the log, as code of the caller may.
struct Received(Vec<u8>);

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        ASKED.with_borrow(|log| _ = log.as_ref().map(Partition::offsets));
        FREED.set(FREED.get() + 1);
    }
}

/// What the cache keeps of a small batch is a copy: the buffer that the batch is a slice of is freed. That may run code
/// of the caller.
#[test]
fn the_cache_keeps_no_larger_buffer() {
    run(seeds(3), async |world| {
        let (log, _) = open::<Sim>(&scratch::<Sim>(), PartitionConfig::default()).await;
        FREED.set(0);
        ASKED.set(Some(log.clone()));
        for _ in 0..10 {
            let received = Bytes::from_owner(Received(vec![7; 64 * 1024]));
            log.append(1, |_| [received.slice(100..300)]).await.unwrap();
            drop(received);
        }
        log.flush().await.unwrap();
        assert_eq!(FREED.get(), 10);
        // A batch of several parts is in the cache too. So reads need no disk.
        log.append(1, |_| ["head", "body"].map(Bytes::from)).await.unwrap();
        let lasts = Duration::from_secs(1);
        world.apply(Fault::ReadErrors { host: world.main_host(), lasts });
        assert_eq!(read_all(&log, 0, 1 << 20).await.unwrap().len(), 11);
        // Nor is the state borrowed while batches are refused or purged.
        world.main_host().limit_disk(0);
        let received = Bytes::from_owner(Received(vec![7; 64 * 1024]));
        log.append(1, |_| [received]).await.expect_err("the disk is full");
        world.main_host().limit_disk(u64::MAX);
        let received = Bytes::from_owner(Received(vec![7; 64 * 1024]));
        log.append(1, |_| [received]).await.unwrap();
        log.purge().await.unwrap();
        assert_eq!(FREED.get(), 12);
        ASKED.set(None);
        Ok(())
    });
}

/// Wherever it is among the segments: only the last one is opened for writing, which a directory refuses.
#[test]
fn a_directory_with_the_name_of_a_segment_is_named() {
    run(seeds(1), async |_| {
        let dir = scratch::<Sim>();
        let (log, _) = open::<Sim>(&dir, small()).await;
        let count = fill_segment(&log, 500).await;
        log.close().await.unwrap();
        for base_offset in [1, count + 10] {
            let path = dir.join(format!("{base_offset:020}.log"));
            Sim::create_dir_all(&path).await?;
            let error = Partition::<Sim>::open(&dir, small()).await.expect_err("it is no file");
            assert_eq!(error.path(), Some(&*path));
            let cause = std::io::Error::from(error).kind();
            assert_eq!(cause, std::io::ErrorKind::IsADirectory);
            Sim::remove_dir(&path).await?;
        }
        let (log, _) = open::<Sim>(&dir, small()).await;
        expect_each_offset(&log, count).await;
        Ok(())
    });
}
