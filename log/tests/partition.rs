//! What a partition does without faults, and with files that somebody has changed. In the simulation, and on tokio.

mod common;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use common::{
    append, count, edit, expect_batches, open, payload, read_all, scratch, segments, small,
};
use owned_io::{Files, Runtime};
use owned_io_log::{
    ErrorKind, Offsets, Partition, PartitionConfig, READ_BATCHES_MAX, ReadFrom, Retention,
    SyncPolicy, remove,
};

macro_rules! cases {
    ($($case:ident)*) => {
        mod sim {
            $(#[test]
            fn $case() {
                owned_io_sim::run(owned_io_sim::seeds(5), async |_| {
                    super::$case::<owned_io_sim::Sim>().await;
                    Ok(())
                });
            })*
        }

        #[cfg(target_os = "linux")]
        mod tokio {
            use owned_io::Executor;

            $(#[test]
            fn $case() {
                let case = super::$case::<owned_io_tokio::Tokio>();
                owned_io_tokio::Tokio::block_on(Default::default(), case).unwrap();
            })*
        }
    };
}

cases! {
    batches_are_read_back_as_they_were_appended
    a_read_begins_at_the_batch_with_the_offset
    an_opened_partition_has_all_batches
    reads_go_from_segment_to_segment
    a_read_by_time_begins_at_the_first_batch_of_that_time
    a_batch_larger_than_everything_is_stored_and_read
    a_small_batch_does_not_hold_what_was_read_behind_it
    a_read_returns_a_limited_number_of_batches
    what_cannot_be_appended_changes_nothing
    a_torn_tail_is_cut_wherever_it_is_torn
    damage_to_synced_batches_is_an_error_and_cuts_nothing
    damage_to_a_closed_segment_is_an_error_of_the_read
    a_file_of_a_newer_version_is_refused
    an_older_file_of_a_newer_version_is_an_error_of_the_read
    a_segment_without_a_header_is_created_again
    a_second_segment_without_a_header_is_damage
    a_second_opener_is_refused
    a_closed_partition_refuses
    purge_begins_again_at_zero
    trim_by_size_keeps_the_last_segments
    trim_by_age_removes_old_segments
    removed_partitions_are_gone
    wait_past_ends_when_a_batch_is_acknowledged
    readers_and_writers_run_at_once
    every_policy_stores_everything_at_close
}

/// Appends the batches `numbers`.
async fn fill<R: Runtime + Files>(log: &Partition<R>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        append(log, number).await.expect("the batch is appended");
    }
}

async fn close<R: Runtime + Files>(log: Partition<R>) {
    log.close().await.expect("the partition is closed");
}

async fn end<R: Runtime + Files>(log: Partition<R>, dir: std::path::PathBuf) {
    close(log).await;
    remove::<R>(dir).await.expect("the partition is removed");
}

async fn batches_are_read_back_as_they_were_appended<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, recovered) = open::<R>(&dir, PartitionConfig::default()).await;
    assert_eq!(recovered.offsets, Offsets { first: 0, next: 0 });
    assert_eq!(recovered.cut_bytes, 0);
    assert_eq!(log.read(ReadFrom::Offset(0), 100).await.unwrap(), []);
    assert_eq!(log.read(ReadFrom::Timestamp(0), 100).await.unwrap(), []);
    fill(&log, 0..50).await;
    expect_batches(&log, 0..50).await;
    let next = log.offsets().next;
    assert_eq!(log.read(ReadFrom::Offset(next), 100).await.unwrap(), []);
    assert_eq!(log.read(ReadFrom::Offset(u64::MAX), 100).await.unwrap(), []);
    end(log, dir).await;
}

async fn a_read_begins_at_the_batch_with_the_offset<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..40).await;
    let mut base = 0;
    for number in 0..40 {
        for offset in base..base + u64::from(count(number)) {
            let batches = log.read(ReadFrom::Offset(offset), 1).await.unwrap();
            assert_eq!(batches.len(), 1, "one batch, although it is larger");
            assert_eq!(batches[0].base_offset, base, "the batch with offset {offset}");
            assert_eq!(batches[0].bytes, payload(number));
        }
        base += u64::from(count(number));
    }
    end(log, dir).await;
}

async fn an_opened_partition_has_all_batches<R: Runtime + Files>() {
    let dir = scratch::<R>();
    for round in 0..4 {
        let (log, recovered) = open::<R>(&dir, small()).await;
        assert_eq!(recovered.cut_bytes, 0);
        assert_eq!(recovered.offsets, log.offsets());
        expect_batches(&log, 0..round * 15).await;
        fill(&log, round * 15..(round + 1) * 15).await;
        close(log).await;
    }
    remove::<R>(dir).await.unwrap();
}

async fn reads_go_from_segment_to_segment<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..200).await;
    let size = log.size();
    assert!(size.segments >= 15, "{size:?}");
    assert_eq!(segments::<R>(&dir).await.len(), size.segments as usize);
    close(log).await;
    let (log, _) = open::<R>(&dir, small()).await;
    assert_eq!(log.size(), size);
    for bytes_max in [1, 500, 5_000, usize::MAX] {
        assert_eq!(read_all(&log, 0, bytes_max).await.unwrap().len(), 200);
    }
    expect_batches(&log, 0..200).await;
    end(log, dir).await;
}

async fn a_read_by_time_begins_at_the_first_batch_of_that_time<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    for number in 0..60 {
        fill(&log, number..number + 1).await;
        R::sleep(Duration::from_micros(500 * (number % 3))).await;
    }
    for reopened in [false, true] {
        let log = if reopened { open::<R>(&dir, small()).await.0 } else { log.clone() };
        let all = read_all(&log, 0, usize::MAX).await.unwrap();
        assert!(all.is_sorted_by_key(|batch| batch.timestamp), "time goes forward");
        let times: Vec<_> = all.iter().map(|batch| batch.timestamp).collect();
        for time in times.iter().flat_map(|time| [time - 1, *time, time + 1]).chain([0, u64::MAX]) {
            let expected = all.iter().find(|batch| batch.timestamp >= time);
            let found = log.read(ReadFrom::Timestamp(time), 1).await.unwrap();
            assert_eq!(found.first(), expected, "at {time}");
        }
        close(log).await;
    }
    drop(log);
    remove::<R>(dir).await.unwrap();
}

async fn a_batch_larger_than_everything_is_stored_and_read<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    let large: Bytes = (0..300_000).map(|at| (at / 7) as u8).collect::<Vec<_>>().into();
    fill(&log, 0..1).await;
    for base_offset in [1, 2] {
        let appended = log.append(1, |_| [large.clone()]).await.unwrap();
        assert_eq!(appended.base_offset, base_offset);
    }
    close(log).await;
    let (log, _) = open::<R>(&dir, small()).await;
    for offset in [1, 2] {
        let batches = log.read(ReadFrom::Offset(offset), 10).await.unwrap();
        assert_eq!(batches[0].base_offset, offset);
        assert!(batches[0].bytes == large, "{} bytes", batches[0].bytes.len());
        let within = async |max| log.read_within(ReadFrom::Offset(offset), max, max).await;
        let refused = within(299_999).await.unwrap_err();
        assert_eq!((refused.kind(), refused.batch_bytes()), (ErrorKind::TooLarge, Some(300_000)));
        assert_eq!(within(300_000).await.unwrap(), batches[..1]);
    }
    end(log, dir).await;
}

async fn a_small_batch_does_not_hold_what_was_read_behind_it<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, PartitionConfig::default()).await;
    for len in [100, 1 << 20] {
        log.append(1, |_| [Bytes::from(vec![7; len])]).await.unwrap();
    }
    close(log).await;
    let (log, _) = open::<R>(&dir, PartitionConfig::default()).await; // nothing is in memory
    let mut batches = log.read(ReadFrom::Offset(0), 1 << 20).await.unwrap();
    assert_eq!(batches.len(), 1, "there is no room for the second");
    let batch = batches.remove(0).bytes.try_into_mut().expect("nobody shares it");
    assert_eq!(batch.len(), 100);
    assert!(batch.capacity() <= 200, "{} bytes are held", batch.capacity());
    end(log, dir).await;
}

async fn a_read_returns_a_limited_number_of_batches<R: Runtime + Files>() {
    const BATCHES: usize = 2 * READ_BATCHES_MAX + 100;
    for cache_bytes_max in [0, 1 << 20] {
        let dir = scratch::<R>();
        let mut config = PartitionConfig::default();
        (config.cache_bytes_max, config.sync) = (cache_bytes_max, SyncPolicy::Never);
        let (log, _) = open::<R>(&dir, config).await;
        for _ in 0..BATCHES {
            log.append(1, |_| [Bytes::from_static(b"short")]).await.unwrap();
        }
        let mut counts = Vec::new();
        for offset in [0, READ_BATCHES_MAX, 2 * READ_BATCHES_MAX] {
            let from = ReadFrom::Offset(offset as u64);
            let found = log.read(from, usize::MAX).await.unwrap();
            assert_eq!(found[0].base_offset, offset as u64);
            counts.push(found.len());
        }
        assert_eq!(counts, [READ_BATCHES_MAX, READ_BATCHES_MAX, 100]);
        end(log, dir).await;
    }
}

async fn what_cannot_be_appended_changes_nothing<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let mut config = small();
    config.batch_bytes_max = 100;
    let (log, _) = open::<R>(&dir, config).await;
    let refused = [
        (0, Bytes::from_static(b"no messages"), ErrorKind::Empty),
        (1, Bytes::new(), ErrorKind::Empty),
        (1, Bytes::from(vec![0; 101]), ErrorKind::TooLarge),
    ];
    for (count, bytes, kind) in refused {
        let error = log.append(count, |_| [bytes]).await.expect_err("it is refused");
        assert_eq!(error.kind(), kind, "{error}");
    }
    let appended = log.append(1, |_| [Bytes::from(vec![0; 100])]).await.unwrap();
    assert_eq!(appended.base_offset, 0);
    end(log, dir).await;
}

/// A write that a crash has torn: the segment ends in the middle of a batch, or its last bytes are others.
async fn a_torn_tail_is_cut_wherever_it_is_torn<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, PartitionConfig::default()).await;
    fill(&log, 0..3).await;
    let whole = log.size().bytes as usize;
    fill(&log, 3..4).await;
    close(log).await;
    let path = segments::<R>(&dir).await.remove(0);
    let mut torn = Vec::new();
    edit::<R>(&path, |bytes| torn.clone_from(bytes)).await;
    for cut in (whole..torn.len()).step_by(7).chain([whole + 1, torn.len() - 1]) {
        for zeros in [0, 100] {
            edit::<R>(&path, |bytes| {
                bytes.clear();
                bytes.extend_from_slice(&torn[..cut]);
                bytes.resize(cut + zeros, 0);
            })
            .await;
            let (log, recovered) = open::<R>(&dir, PartitionConfig::default()).await;
            assert_eq!(recovered.cut_bytes, (cut + zeros - whole) as u64, "torn at {cut}");
            assert_eq!(recovered.cut_file, (recovered.cut_bytes > 0).then(|| path.clone()));
            expect_batches(&log, 0..3).await;
            fill(&log, 3..4).await;
            expect_batches(&log, 0..4).await;
            close(log).await;
        }
    }
    remove::<R>(dir).await.unwrap();
}

async fn damage_to_synced_batches_is_an_error_and_cuts_nothing<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, PartitionConfig::default()).await;
    fill(&log, 0..1).await;
    let first = log.size().bytes as usize;
    fill(&log, 1..5).await;
    close(log).await;
    let path = segments::<R>(&dir).await.remove(0);
    for at in [45, 90, first + 3, first + 60] {
        edit::<R>(&path, |bytes| bytes[at] ^= 1).await;
        let error = Partition::<R>::open(&dir, small()).await.expect_err("it is damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.path(), Some(&*path));
        edit::<R>(&path, |bytes| bytes[at] ^= 1).await;
    }
    let (log, _) = open::<R>(&dir, PartitionConfig::default()).await;
    expect_batches(&log, 0..5).await;
    end(log, dir).await;
}

async fn damage_to_a_closed_segment_is_an_error_of_the_read<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..60).await;
    close(log).await;
    let paths = segments::<R>(&dir).await;
    edit::<R>(&paths[1], |bytes| *bytes.last_mut().unwrap() ^= 1).await;
    edit::<R>(&paths[2], |bytes| bytes[45] ^= 1).await;
    let (log, _) = open::<R>(&dir, small()).await;
    let error = read_all(&log, 0, 100).await.expect_err("it is damaged");
    assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&*paths[1])), "{error}");
    let base = |path: &std::path::Path| -> u64 {
        path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
    };
    let error = read_all(&log, base(&paths[2]), 100).await.expect_err("it is damaged");
    assert_eq!(error.path(), Some(&*paths[2]));
    assert!(!read_all(&log, base(&paths[3]), 100).await.unwrap().is_empty());
    fill(&log, 60..61).await;
    end(log, dir).await;
}

async fn a_file_of_a_newer_version_is_refused<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..1).await;
    close(log).await;
    let path = segments::<R>(&dir).await.remove(0);
    edit::<R>(&path, |bytes| bytes[8] = 2).await;
    let error = Partition::<R>::open(&dir, small()).await.expect_err("it is newer");
    assert_eq!((error.kind(), error.path()), (ErrorKind::Version, Some(&*path)), "{error}");
    edit::<R>(&path, |bytes| bytes[..8].fill(0)).await;
    let error = Partition::<R>::open(&dir, small()).await.expect_err("it is something else");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    remove::<R>(dir).await.unwrap();
}

async fn an_older_file_of_a_newer_version_is_an_error_of_the_read<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..40).await;
    close(log).await;
    let paths = segments::<R>(&dir).await;
    edit::<R>(&paths[0], |bytes| bytes[8] = 2).await;
    let (log, _) = open::<R>(&dir, small()).await;
    let error = log.read(ReadFrom::Offset(0), 100).await.expect_err("it is newer");
    assert_eq!((error.kind(), error.path()), (ErrorKind::Version, Some(&*paths[0])), "{error}");
    let last = log.offsets().next - 1;
    assert!(!log.read(ReadFrom::Offset(last), 100).await.unwrap().is_empty());
    end(log, dir).await;
}

/// A crash while a segment was created.
async fn a_segment_without_a_header_is_created_again<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..40).await;
    let next = log.offsets().next;
    close(log).await;
    for len in [0, 17, 40] {
        let path = dir.join(format!("{next:020}.log"));
        let file = R::open(&path, owned_io::OpenMode::CreateNew).await.unwrap();
        owned_io::File::set_len(&file, len).await.unwrap();
        drop(file);
        let (log, recovered) = open::<R>(&dir, small()).await;
        assert_eq!(recovered.offsets.next, next, "a header of {len} bytes");
        expect_batches(&log, 0..40).await;
        close(log).await;
    }
    // The first of all.
    let (log, _) = open::<R>(&dir, small()).await;
    log.purge().await.unwrap();
    close(log).await;
    edit::<R>(&segments::<R>(&dir).await[0], |bytes| bytes.truncate(3)).await;
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..3).await;
    expect_batches(&log, 0..3).await;
    end(log, dir).await;
}

/// Batches of the first of the two were acknowledged before the other was created. Nothing is removed, so that the next
/// attempt finds the same.
async fn a_second_segment_without_a_header_is_damage<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..60).await;
    close(log).await;
    let paths = segments::<R>(&dir).await;
    let [.., damaged, last] = &paths[..] else { panic!("there are several segments") };
    edit::<R>(damaged, |bytes| bytes.truncate(0)).await;
    edit::<R>(last, |bytes| bytes.truncate(17)).await;
    for _ in 0..2 {
        let error = Partition::<R>::open(&dir, small()).await.expect_err("it is damaged");
        assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&**damaged)), "{error}");
        assert_eq!(segments::<R>(&dir).await, paths);
        R::sleep(Duration::from_millis(20)).await; // a file that is dropped may be closed a moment later
    }
    remove::<R>(dir).await.unwrap();
}

async fn a_second_opener_is_refused<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..5).await;
    let error = Partition::<R>::open(&dir, small()).await.expect_err("it is open");
    assert_eq!((error.kind(), error.path()), (ErrorKind::Locked, Some(&*dir)), "{error}");
    assert_eq!(remove::<R>(&dir).await.expect_err("it is open").kind(), ErrorKind::Locked);
    fill(&log, 5..6).await;
    expect_batches(&log, 0..6).await;
    close(log).await;
    let (log, _) = open::<R>(&dir, small()).await;
    expect_batches(&log, 0..6).await;
    end(log, dir).await;
}

async fn a_closed_partition_refuses<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    let other = log.clone();
    let waiting = R::spawn({
        let log = log.clone();
        async move { log.wait_past(1_000).await }
    });
    fill(&log, 0..5).await;
    close(log).await;
    assert_eq!(append(&other, 5).await.expect_err("it is closed").kind(), ErrorKind::Closed);
    assert_eq!(other.flush().await.expect_err("it is closed").kind(), ErrorKind::Closed);
    assert_eq!(other.purge().await.expect_err("it is closed").kind(), ErrorKind::Closed);
    let error = waiting.await.unwrap().expect_err("it is closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(other.close().await.expect_err("it is closed").kind(), ErrorKind::Closed);
    remove::<R>(dir).await.unwrap();
}

async fn purge_begins_again_at_zero<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    for round in 0..3 {
        fill(&log, 0..30 + round).await;
        log.purge().await.unwrap();
        assert_eq!(log.offsets(), Offsets { first: 0, next: 0 });
        assert_eq!(log.size().segments, 1);
        assert_eq!(read_all(&log, 0, 1000).await.unwrap(), []);
    }
    fill(&log, 0..10).await;
    close(log).await;
    let (log, _) = open::<R>(&dir, small()).await;
    expect_batches(&log, 0..10).await;
    end(log, dir).await;
}

async fn trim_by_size_keeps_the_last_segments<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..100).await;
    let (before, next) = (log.size(), log.offsets().next);
    let nothing = log.trim(Retention::default()).await.unwrap();
    assert_eq!((nothing.segments, nothing.bytes), (0, 0));
    let mut retention = Retention { bytes_max: Some(10_000), age_max: None };
    let trimmed = log.trim(retention).await.unwrap();
    let after = log.size();
    assert!(after.bytes <= 10_000 && after.segments >= 2, "{after:?}");
    assert_eq!(before.bytes - after.bytes, trimmed.bytes);
    assert_eq!(before.segments - after.segments, trimmed.segments);
    assert_eq!(log.offsets(), Offsets { first: trimmed.first, next });
    let batches = log.read(ReadFrom::Offset(0), 1).await.unwrap();
    assert_eq!(batches[0].base_offset, trimmed.first, "a lower offset is the first");
    retention.bytes_max = Some(0);
    log.trim(retention).await.unwrap();
    assert_eq!(log.size().segments, 1, "the last one stays");
    close(log).await;
    let (log, _) = open::<R>(&dir, small()).await;
    assert_eq!(log.offsets().next, next);
    end(log, dir).await;
}

async fn trim_by_age_removes_old_segments<R: Runtime + Files>() {
    let now = || R::wall_clock().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    fill(&log, 0..50).await;
    close(log).await;
    let (log, _) = open::<R>(&dir, small()).await;
    R::sleep(Duration::from_millis(50)).await;
    fill(&log, 50..100).await;
    let mut retention = Retention { bytes_max: None, age_max: Some(Duration::from_secs(3600)) };
    assert_eq!(log.trim(retention).await.unwrap().segments, 0);
    // The first batches are older than this.
    let all = read_all(&log, 0, usize::MAX).await.unwrap();
    let age_max = now() - Duration::from_micros(all[49].timestamp) - Duration::from_millis(20);
    retention.age_max = Some(age_max);
    let trimmed = log.trim(retention).await.unwrap();
    let youngest_removed = now() - age_max;
    assert!(trimmed.segments >= 1, "{trimmed:?}");
    let removed = all.iter().filter(|batch| batch.base_offset < trimmed.first);
    for batch in removed {
        assert!(Duration::from_micros(batch.timestamp) <= youngest_removed, "{batch:?}");
    }
    let kept = read_all(&log, 0, usize::MAX).await.unwrap();
    assert!(all.ends_with(&kept) && !kept.is_empty());
    end(log, dir).await;
}

async fn removed_partitions_are_gone<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir.join("partition"), small()).await;
    fill(&log, 0..30).await;
    close(log).await;
    remove::<R>(dir.join("partition")).await.unwrap();
    assert_eq!(R::list_dir(&dir).await.unwrap(), []);
    remove::<R>(dir.join("partition")).await.unwrap();
    R::remove_dir(&dir).await.unwrap();
}

async fn wait_past_ends_when_a_batch_is_acknowledged<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    let waiting = R::spawn({
        let log = log.clone();
        async move {
            for offset in 0..20 {
                log.wait_past(offset).await.unwrap();
                assert!(log.offsets().next > offset);
            }
        }
    });
    fill(&log, 0..20).await;
    waiting.await.unwrap();
    end(log, dir).await;
}

async fn readers_and_writers_run_at_once<R: Runtime + Files>() {
    let dir = scratch::<R>();
    let (log, _) = open::<R>(&dir, small()).await;
    let done = Rc::new(std::cell::Cell::new(0));
    let mut tasks = Vec::new();
    for writer in 0..4 {
        let (log, done) = (log.clone(), Rc::clone(&done));
        tasks.push(R::spawn(async move {
            for number in 0..30 {
                append(&log, writer * 30 + number).await.unwrap();
            }
            done.set(done.get() + 1);
        }));
    }
    for from in [0, 50] {
        let (log, done) = (log.clone(), Rc::clone(&done));
        tasks.push(R::spawn(async move {
            let mut next = from;
            while done.get() < 4 || next < log.offsets().next {
                for batch in log.read(ReadFrom::Offset(next), 2000).await.unwrap() {
                    assert!(batch.base_offset <= next && batch.next_offset() > next);
                    next = batch.next_offset();
                }
                R::sleep(Duration::from_micros(300)).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let all = read_all(&log, 0, 2000).await.unwrap();
    let mut expected: Vec<_> = (0..120).map(payload).collect();
    let mut seen: Vec<_> = all.iter().map(|batch| batch.bytes.to_vec()).collect();
    expected.sort();
    seen.sort();
    assert!(seen == expected, "{} batches", seen.len());
    end(log, dir).await;
}

async fn every_policy_stores_everything_at_close<R: Runtime + Files>() {
    let interval = SyncPolicy::Interval(Duration::from_millis(5));
    for policy in [SyncPolicy::Never, SyncPolicy::Batch, interval] {
        let dir = scratch::<R>();
        let mut config = small();
        config.sync = policy;
        let (log, _) = open::<R>(&dir, config).await;
        fill(&log, 0..20).await;
        R::sleep(Duration::from_millis(20)).await;
        fill(&log, 20..40).await;
        log.flush().await.unwrap();
        close(log).await;
        let (log, recovered) = open::<R>(&dir, config).await;
        assert_eq!(recovered.cut_bytes, 0, "{policy}");
        expect_batches(&log, 0..40).await;
        end(log, dir).await;
    }
}

/// "A partition has this many descriptors, two for the lock and the last segment", however many segments were read.
#[cfg(target_os = "linux")]
#[test]
fn few_segments_stay_open() {
    use owned_io::{Clock, Executor};
    use owned_io_tokio::Tokio;

    let run = async {
        let dir = scratch::<Tokio>();
        for open_segments_max in [0, 3] {
            let mut config = small();
            (config.cache_bytes_max, config.open_segments_max) = (0, open_segments_max);
            let (log, _) = open::<Tokio>(&dir, config).await;
            fill(&log, 0..80).await;
            assert!(log.size().segments > 6);
            read_all(&log, 0, 1000).await.unwrap();
            // A file that is dropped may be closed a moment later.
            let mut files = 0;
            for _ in 0..1_000 {
                files = open_files(&dir);
                if files <= 2 + open_segments_max {
                    break;
                }
                Tokio::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(files, 2 + open_segments_max);
            close(log).await;
        }
        remove::<Tokio>(dir).await.unwrap();
    };
    Tokio::block_on(Default::default(), run).unwrap();
}

/// How many descriptors of this process are files in the directory.
#[cfg(target_os = "linux")]
fn open_files(dir: &std::path::Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    paths.filter(|path| path.starts_with(dir)).count()
}

/// The end of a runtime drops the writer, and with it the lock. What was acknowledged is there in the next one.
#[cfg(target_os = "linux")]
#[test]
fn the_end_of_the_runtime_releases_the_lock() {
    use owned_io::{Clock, Executor};
    use owned_io_tokio::Tokio;

    let mut found = None;
    for round in 0..5_u64 {
        let known = found.take();
        let run = async move {
            let (dir, acknowledged) = known.unwrap_or_else(|| (scratch::<Tokio>(), 0));
            // A write that was running holds the lock until it has ended. Bounded by the time that a disk takes.
            let log = loop {
                match Partition::<Tokio>::open(&dir, small()).await {
                    Ok((log, _)) => break log,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Locked, "{error}"),
                }
                Tokio::sleep(Duration::from_millis(5)).await;
            };
            let before = log.offsets().next;
            assert!(before >= acknowledged, "{before} of {acknowledged}");
            for number in 0..10 {
                append(&log, number).await.unwrap();
            }
            let acknowledged = log.offsets().next;
            let other = log.clone();
            drop(Tokio::spawn(async move { append(&other, 10).await }));
            Tokio::sleep(Duration::from_micros(100 * round)).await;
            std::mem::forget(log); // a handle that is never dropped
            (dir, acknowledged)
        };
        found = Some(Tokio::block_on(Default::default(), run).unwrap());
    }
    std::fs::remove_dir_all(found.unwrap().0).unwrap();
}
