//! What is open and in memory of old segments, and what the partition counts of them: in the simulator.

mod common;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use common::{append, open, read_all, scratch, segments, small};
use owned_io::{Clock, Executor, File, Files, OpenMode};
use owned_io_log::{PartitionConfig, ReadFrom, Retention, Size};
use owned_io_sim::{Sim, World, run, seeds};

/// The bytes that were read from files since the note, by the trace.
fn bytes_read(world: &World, note: &str) -> u64 {
    let trace = world.trace();
    let (_, since) = trace.rsplit_once(note).expect("few events since then");
    let bytes = |line: &str| -> Option<u64> {
        line.split_once(": reads ")?.1.strip_suffix(" bytes")?.parse().ok()
    };
    since.lines().filter_map(bytes).sum()
}

async fn size_on_disk(dir: &Path) -> Size {
    let paths = segments::<Sim>(dir).await;
    let mut bytes = 0;
    for path in &paths {
        let file = Sim::open(path, OpenMode::Read).await.expect("it opens");
        bytes += file.size().await.expect("it has a length");
    }
    Size { bytes, segments: paths.len() as u32 }
}

/// A read in a segment without an index first reads the headers of all its batches. If there are as many indexes as
/// readers in different segments, each segment is read once, although fewer files stay open.
#[test]
fn readers_of_old_segments_read_all_headers_once() {
    const BATCH: usize = 10_000;
    for (readers, open_segments_max, indexes_max) in [(1, 1, 0), (2, 1, 2), (2, 0, 2), (3, 1, 3)] {
        run(seeds(3), async move |world| {
            let dir = scratch::<Sim>();
            let mut config = PartitionConfig::default();
            (config.segment_bytes, config.cache_bytes_max) = (256 * 1024, 0);
            (config.open_segments_max, config.indexes_max) = (open_segments_max, indexes_max);
            let (log, _) = open::<Sim>(&dir, config).await;
            // The first offset of each segment.
            let mut bases = vec![0];
            while bases.len() < 5 {
                let appended = log.append(1, |_| [Bytes::from(vec![7; BATCH])]).await.unwrap();
                if log.size().segments as usize > bases.len() {
                    bases.push(appended.base_offset);
                }
            }
            log.close().await.unwrap();
            let (log, _) = open::<Sim>(&dir, config).await;
            let read = async |offset| {
                let batches = log.read(ReadFrom::Offset(offset), BATCH).await.unwrap();
                assert_eq!(batches[0].base_offset, offset);
            };
            // The indexes of those that are read last are kept.
            for offset in bases[..4].iter().rev() {
                read(*offset).await;
            }
            world.note("each was read");
            for _ in 0..3 {
                for offset in &bases[..readers] {
                    read(*offset).await;
                }
            }
            let reads = 3 * readers as u64;
            let bytes = bytes_read(&world, "each was read");
            // A read takes at least one batch, and at most 16 KiB.
            assert!(bytes >= reads * BATCH as u64, "{bytes} bytes by {reads} reads");
            assert!(bytes <= reads * 16 * 1024, "{bytes} bytes by {reads} reads");
            Ok(())
        });
    }
}

/// The batches of a segment are mostly alike: after the first one that is longer than a read, each is read once.
#[test]
fn batches_that_are_longer_than_a_read_are_read_once() {
    const BATCH: usize = 50_000;
    run(seeds(1), async |world| {
        let dir = scratch::<Sim>();
        let mut config = PartitionConfig::default();
        // So that the index has each batch.
        (config.segment_bytes, config.cache_bytes_max) = (1 << 20, 0);
        let (log, _) = open::<Sim>(&dir, config).await;
        for number in 0..6 {
            let len = if number == 4 { 100 } else { BATCH };
            log.append(1, |_| [Bytes::from(vec![number; len])]).await.unwrap();
        }
        let read = async |offset: u64, bytes_max| {
            world.note("a read");
            let batches = log.read(ReadFrom::Offset(offset), bytes_max).await.unwrap();
            assert_eq!(batches[0].base_offset, offset);
            assert!(batches[0].bytes.iter().all(|byte| u64::from(*byte) == offset));
            bytes_read(&world, "a read")
        };
        let stored = 48 + BATCH as u64;
        assert_eq!(read(0, 20_000).await, 20_000 + stored, "nothing is known of its length");
        for offset in 1..4 {
            assert_eq!(read(offset, 20_000).await, stored);
        }
        // A short one: what was expected is read, and forgotten.
        assert_eq!(read(4, 20_000).await, stored);
        assert_eq!(read(4, 20_000).await, 20_000);
        // A caller that takes no long batches reads no more than that.
        assert_eq!(read(1, 20_000).await, 20_000 + stored);
        world.note("a small reader");
        log.read_within(ReadFrom::Offset(2), 20_000, 30_000).await.unwrap_err();
        assert_eq!(bytes_read(&world, "a small reader"), 30_048);
        Ok(())
    });
}

/// The bytes are counted with each change, and not with each question.
#[test]
fn the_size_is_that_of_the_files() {
    run(seeds(20), async |world| {
        let dir = scratch::<Sim>();
        let host = world.main_host();
        let (mut log, _) = open::<Sim>(&dir, small()).await;
        for _ in 0..20 {
            for number in 0..world.random(30) {
                append(&log, number).await.unwrap();
            }
            match world.random(4) {
                0 => log.purge().await.unwrap(),
                1 => {
                    let retention = Retention { bytes_max: Some(6_000), age_max: None };
                    log.trim(retention).await.unwrap();
                }
                2 => {
                    log.close().await.unwrap();
                    log = open::<Sim>(&dir, small()).await.0;
                }
                _ => {
                    host.limit_disk(log.size().bytes + world.random(1_500));
                    while append(&log, 3).await.is_ok() {}
                    host.limit_disk(u64::MAX);
                    append(&log, 4).await.unwrap();
                }
            }
            assert_eq!(log.size(), size_on_disk(&dir).await);
        }
        Ok(())
    });
}

/// The search for a time goes on although segments are removed meanwhile.
#[test]
fn a_read_by_time_finds_its_batch_during_a_trim_or_a_purge() {
    run(seeds(100), async |world| {
        let mut config = small();
        config.cache_bytes_max = 0;
        let (log, _) = open::<Sim>(&scratch::<Sim>(), config).await;
        for number in 0..100 {
            append(&log, number).await.unwrap();
        }
        let all = read_all(&log, 0, usize::MAX).await.unwrap();
        let time = all[90].timestamp;
        let expected = all.iter().find(|batch| batch.timestamp >= time);
        let is_purge = world.random(2) == 0;
        let (removing, after) = (log.clone(), Duration::from_micros(world.random(1_000)));
        let removed = Sim::spawn(async move {
            Sim::sleep(after).await;
            if is_purge {
                removing.purge().await.unwrap();
                append(&removing, 100).await.unwrap();
            } else {
                let retention = Retention { bytes_max: Some(12_000), age_max: None };
                assert!(removing.trim(retention).await.unwrap().segments > 0);
            }
        });
        for _ in 0..10 {
            let found = log.read(ReadFrom::Timestamp(time), 1).await.unwrap();
            let is_new = found.first().is_none_or(|batch| batch.timestamp > all[99].timestamp);
            assert!(found.first() == expected || is_purge && is_new, "{found:?}");
        }
        removed.await.unwrap();
        Ok(())
    });
}
