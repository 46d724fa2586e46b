//! The mark of a clean end: a restart trusts it and reads no batch, and everything else is recovered without it. In the
//! simulator.

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use common::{append, edit, expect_batches, open, payload, scratch, segments, small};
use owned_io::{Clock, Files};
use owned_io_log::{ErrorKind, Partition, PartitionConfig, ReadFrom, Recovered, SyncPolicy};
use owned_io_sim::{Fault, FaultPlan, Sim, World, block_on, run, seeds};

const SEGMENT_HEADER: u64 = 40;

fn mark(dir: &Path) -> PathBuf {
    dir.join("clean")
}

async fn has_mark(dir: &Path) -> bool {
    let entries = Sim::list_dir(dir).await.unwrap();
    entries.iter().any(|entry| entry.name == Path::new("clean"))
}

/// The bytes that were read from files since the note, by the trace.
fn bytes_read(world: &World, note: &str) -> u64 {
    let trace = world.trace();
    let (_, since) = trace.rsplit_once(note).expect("few events since then");
    let bytes = |line: &str| -> Option<u64> {
        line.split_once(": reads ")?.1.strip_suffix(" bytes")?.parse().ok()
    };
    since.lines().filter_map(bytes).sum()
}

/// A closed partition with the batches `0..count`.
async fn closed(dir: &Path, config: PartitionConfig, count: u64) -> Recovered {
    let (log, recovered) = open::<Sim>(dir, config).await;
    for number in 0..count {
        append(&log, number).await.unwrap();
    }
    log.close().await.unwrap();
    recovered
}

#[test]
fn a_clean_restart_does_not_read_the_last_segment() {
    run(seeds(3), async |world| {
        let dir = scratch::<Sim>();
        let mut config = PartitionConfig::default();
        (config.segment_bytes, config.cache_bytes_max) = (256 * 1024, 0);
        assert!(!closed(&dir, config, 500).await.was_closed, "a new one was not");
        let mark_bytes = {
            let mut bytes = 0;
            edit::<Sim>(&mark(&dir), |mark| bytes = mark.len() as u64).await;
            bytes
        };
        world.note("it opens");
        let (log, recovered) = open::<Sim>(&dir, config).await;
        // The headers of the last batches confirm it: from the last entry of the index on, of which there is one for
        // 512 bytes and the rest of a batch.
        let tail = bytes_read(&world, "it opens") - SEGMENT_HEADER - mark_bytes;
        assert!(0 < tail && tail < 512 + 800, "{tail} bytes of batches");
        assert!(recovered.was_closed && recovered.cut_file.is_none(), "{recovered:?}");
        assert!(mark_bytes <= 56 + 512 * 24, "{mark_bytes}");

        // Its index finds each batch, without a scan before it.
        let mut numbers = 0..500;
        for offset in (0..log.offsets().next).step_by(97) {
            world.note("it reads");
            let batches = log.read(ReadFrom::Offset(offset), 1).await.unwrap();
            assert!((batches[0].base_offset..batches[0].next_offset()).contains(&offset));
            assert!(bytes_read(&world, "it reads") <= 16 * 1024);
        }
        expect_batches(&log, numbers.clone()).await;
        // And it goes on, also in the index.
        for _ in 0..300 {
            append(&log, numbers.end).await.unwrap();
            numbers.end += 1;
        }
        expect_batches(&log, numbers.clone()).await;
        log.close().await.unwrap();
        let (log, recovered) = open::<Sim>(&dir, config).await;
        assert!(recovered.was_closed);
        expect_batches(&log, numbers).await;
        Ok(())
    });
}

#[test]
fn the_time_goes_on_after_a_clean_restart() {
    run(seeds(1), async |_| {
        let dir = scratch::<Sim>();
        let (log, _) = open::<Sim>(&dir, small()).await;
        Sim::sleep(Duration::from_secs(5)).await;
        let last = log.append(1, |_| [Bytes::from_static(b"x")]).await.unwrap();
        log.close().await.unwrap();
        let (log, recovered) = open::<Sim>(&dir, small()).await;
        assert!(recovered.was_closed);
        let batches = log.read(ReadFrom::Timestamp(last.timestamp), 100).await.unwrap();
        assert_eq!(batches[0].base_offset, last.base_offset);
        let next = log.append(1, |_| [Bytes::from_static(b"y")]).await.unwrap();
        assert!(next.timestamp >= last.timestamp && next.base_offset == 1);
        Ok(())
    });
}

/// The mark is there between `close` and the next opening only.
#[test]
fn an_open_partition_has_no_mark() {
    block_on(async {
        let dir = scratch::<Sim>();
        closed(&dir, small(), 3).await;
        assert!(has_mark(&dir).await);
        let (log, _) = open::<Sim>(&dir, small()).await;
        assert!(!has_mark(&dir).await);
        drop(log);
        Sim::sleep(Duration::from_millis(100)).await;
        assert!(!has_mark(&dir).await, "it was not closed");
        let (log, recovered) = open::<Sim>(&dir, small()).await;
        assert!(!recovered.was_closed);
        expect_batches(&log, 0..3).await;
    });
}

#[test]
fn a_mark_that_is_damaged_or_of_another_version_is_ignored() {
    block_on(async {
        for (what, change) in [
            ("a changed byte", (|mark: &mut Vec<u8>| mark[33] ^= 1) as fn(&mut Vec<u8>)),
            ("another version", |mark| mark[8] = 2),
            ("cut", |mark| mark.truncate(50)),
            ("empty", Vec::clear),
            ("longer", |mark| mark.push(0)),
            ("far too long", |mark| mark.resize(1 << 20, 0)),
        ] {
            let dir = scratch::<Sim>();
            closed(&dir, small(), 20).await;
            edit::<Sim>(&mark(&dir), change).await;
            let (log, recovered) = open::<Sim>(&dir, small()).await;
            assert!(!recovered.was_closed, "{what}");
            expect_batches(&log, 0..20).await;
            assert!(!has_mark(&dir).await, "{what}: it is removed");
        }
    });
}

#[test]
fn a_mark_of_another_length_is_ignored() {
    block_on(async {
        // A torn tail, and a segment that lost its last byte.
        for (is_longer, left) in [(true, 20), (false, 19)] {
            let dir = scratch::<Sim>();
            closed(&dir, small(), 20).await;
            let last = segments::<Sim>(&dir).await.pop().unwrap();
            edit::<Sim>(&last, |bytes| match is_longer {
                true => bytes.extend([7; 30]),
                false => _ = bytes.pop(),
            })
            .await;
            let (log, recovered) = open::<Sim>(&dir, small()).await;
            assert!(!recovered.was_closed && recovered.cut_file == Some(last), "{recovered:?}");
            expect_batches(&log, 0..left).await;
        }
    });
}

/// A mark that is older than the segment, or that another segment has followed, or that is of a log before a purge.
#[test]
fn a_stale_mark_is_ignored() {
    block_on(async {
        for (more, is_purged) in [(1, false), (30, false), (3, true)] {
            let dir = scratch::<Sim>();
            closed(&dir, small(), 3).await;
            let mut stale = Vec::new();
            edit::<Sim>(&mark(&dir), |mark| stale.clone_from(mark)).await;
            let (log, _) = open::<Sim>(&dir, small()).await;
            let mut numbers = 0..3;
            if is_purged {
                log.purge().await.unwrap();
                numbers.end = 0;
            }
            for _ in 0..more {
                append(&log, numbers.end).await.unwrap();
                numbers.end += 1;
            }
            log.close().await.unwrap();
            edit::<Sim>(&mark(&dir), |mark| *mark = stale).await;
            let (log, recovered) = open::<Sim>(&dir, small()).await;
            assert!(!recovered.was_closed, "{more} more");
            expect_batches(&log, numbers).await;
        }
    });
}

/// Sets a field of a mark, and makes its CRC right.
fn forge(mark: &mut [u8], at: usize, value: u64) {
    mark[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let crc = crc32c::crc32c(&mark[16..]);
    mark[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn field(mark: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(mark[at..at + 8].try_into().unwrap())
}

/// No batch is passed over, and none is refused, whatever a mark says that is whole: about its end, or in its index.
#[test]
fn a_mark_that_lies_hides_no_batch() {
    /// Where the fields are: the next offset and the timestamp of the end, and the entry with this number.
    const NEXT: usize = 40;
    const TIMESTAMP: usize = 48;
    const fn entry(number: usize) -> usize {
        56 + number * 24
    }

    block_on(async {
        let mut config = small();
        (config.segment_bytes, config.cache_bytes_max) = (1 << 20, 0);
        let dir = scratch::<Sim>();
        closed(&dir, config, 60).await;
        let mut honest = Vec::new();
        edit::<Sim>(&mark(&dir), |mark| honest.clone_from(mark)).await;
        let entries = (honest.len() - 56) / 24;
        assert!(entries >= 8, "{entries} entries");
        log_of(&dir, config, true, 60).await;

        // The end: it is found by the headers of the last batches.
        for (at, change) in [(NEXT, 1), (NEXT, u64::MAX), (TIMESTAMP, 1), (TIMESTAMP, 1 << 40)] {
            let mut lying = honest.clone();
            forge(&mut lying, at, field(&honest, at).wrapping_add(change));
            put(&mark(&dir), lying).await;
            log_of(&dir, config, false, 60).await;
        }
        // An entry: its position is that of another batch, or within one; or it has another offset or time than the batch.
        let last = entries - 1;
        for number in [0, 3, last - 1] {
            let at = entry(number);
            let (here, next) = (field(&honest, at), field(&honest, at + 24));
            for position in [here + 1, next - 1] {
                let mut lying = honest.clone();
                forge(&mut lying, at, position);
                put(&mark(&dir), lying).await;
                log_of(&dir, config, true, 60).await;
            }
            let mut lying = honest.clone();
            forge(&mut lying, at + 8, field(&honest, at + 8) + 1);
            put(&mark(&dir), lying).await;
            log_of(&dir, config, true, 60).await;
            // Times go forward, or the mark is refused.
            let mut lying = honest.clone();
            forge(&mut lying, at + 16, 0);
            put(&mark(&dir), lying).await;
            log_of(&dir, config, number == 0, 60).await;
        }
        // A later batch under the offset of an earlier one, so that those between would be passed over.
        let (mut lying, later) = (honest.clone(), field(&honest, entry(4)));
        forge(&mut lying, entry(3), later);
        forge(&mut lying, entry(4), later + 1);
        put(&mark(&dir), lying).await;
        log_of(&dir, config, true, 60).await;
    });
}

/// A log with the batches `0..count`, which are found from each offset and each time on. Leaves it closed, with the mark that
/// it had.
async fn log_of(dir: &Path, config: PartitionConfig, was_closed: bool, count: u64) {
    let (log, recovered) = open::<Sim>(dir, config).await;
    assert_eq!((recovered.was_closed, recovered.cut_file.clone()), (was_closed, None));
    for offset in 0..log.offsets().next {
        let batches = log.read(ReadFrom::Offset(offset), 1).await.unwrap();
        assert!((batches[0].base_offset..batches[0].next_offset()).contains(&offset), "{offset}");
        let timestamp = batches[0].timestamp;
        let later = log.read(ReadFrom::Timestamp(timestamp), 1).await.unwrap();
        assert!(later[0].timestamp == timestamp && later[0].base_offset <= offset, "{offset}");
    }
    expect_batches(&log, 0..count).await;
    log.close().await.unwrap();
}

async fn put(path: &Path, bytes: Vec<u8>) {
    edit::<Sim>(path, |file| *file = bytes).await;
}

/// A whole mark says that the segment was on the disk up to its length.
#[test]
fn damage_at_the_end_that_a_mark_vouches_for_is_not_cut() {
    block_on(async {
        let dir = scratch::<Sim>();
        let mut config = small();
        config.sync = SyncPolicy::Never;
        closed(&dir, config, 4).await;
        let last = segments::<Sim>(&dir).await.pop().unwrap();
        edit::<Sim>(&last, |bytes| {
            let header = bytes.len() - payload(3).len() - 48;
            bytes[header + 24] ^= 1;
        })
        .await;
        let error = Partition::<Sim>::open(&dir, config).await.unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&*last)));
        assert!(has_mark(&dir).await, "nothing was changed");
    });
}

/// Damage in a segment that a mark vouches for is found by the read that comes to it, and by the next recovery.
#[test]
fn damage_behind_a_mark_is_found_by_reads() {
    block_on(async {
        let dir = scratch::<Sim>();
        let mut config = small();
        config.cache_bytes_max = 0;
        closed(&dir, config, 4).await;
        let last = segments::<Sim>(&dir).await.pop().unwrap();
        edit::<Sim>(&last, |bytes| bytes[100] ^= 1).await;
        let (log, recovered) = open::<Sim>(&dir, config).await;
        assert!(recovered.was_closed);
        // Batch 0 has one message and ends at byte 92.
        assert_eq!(log.read(ReadFrom::Offset(0), 5000).await.unwrap().len(), 1);
        let error = log.read(ReadFrom::Offset(1), 5000).await.unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&*last)));
        append(&log, 4).await.unwrap();
        drop(log); // without a mark
        Sim::sleep(Duration::from_millis(100)).await;
        let error = Partition::<Sim>::open(&dir, config).await.unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&*last)));
    });
}

/// A segment that is short beside what a segment takes is read as quickly as a mark.
#[test]
fn a_short_last_segment_gets_no_mark() {
    block_on(async {
        let dir = scratch::<Sim>();
        closed(&dir, PartitionConfig::default(), 20).await;
        assert!(!has_mark(&dir).await);
        let (log, _) = open::<Sim>(&dir, PartitionConfig::default()).await;
        expect_batches(&log, 0..20).await;
    });
}

#[test]
fn a_marked_partition_is_removed() {
    block_on(async {
        let dir = scratch::<Sim>();
        closed(&dir, small(), 3).await;
        assert!(has_mark(&dir).await);
        owned_io_log::remove::<Sim>(&dir).await.unwrap();
        let gone = Sim::list_dir(&dir).await.unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    });
}

/// What the sessions of a log know.
#[derive(Default)]
struct Known {
    /// The acknowledged batches, by their offset.
    acknowledged: std::cell::RefCell<BTreeMap<u64, u64>>,
    submitted: Cell<u64>,
    opened: Cell<u32>,
    clean: Cell<u32>,
}

fn bytes_of(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..(number * 97) % 500).map(|at| (number + at) as u8));
    bytes
}

/// Opens the log, checks it, appends some batches and closes it, again and again, until the host goes down.
async fn sessions(known: Rc<Known>) -> io::Result<()> {
    loop {
        let dir = Path::new("/data/0");
        let (log, recovered) = match Partition::<Sim>::open(dir, small()).await {
            Ok(opened) => opened,
            Err(error) => {
                let is_passing = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Locked];
                assert!(is_passing.contains(&error.kind()), "{error}");
                Sim::sleep(Duration::from_millis(3)).await;
                continue;
            }
        };
        known.opened.set(known.opened.get() + 1);
        known.clean.set(known.clean.get() + u32::from(recovered.was_closed));
        assert!(!has_mark(dir).await, "an open log has no mark");
        check(&log, &known).await;
        for _ in 0..World::current().random(6) {
            let number = known.submitted.replace(known.submitted.get() + 1);
            match log.append(1, |_| [Bytes::from(bytes_of(number))]).await {
                Ok(appended) => {
                    let before =
                        known.acknowledged.borrow_mut().insert(appended.base_offset, number);
                    assert_eq!(before, None, "two batches at {}", appended.base_offset);
                }
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(_) => break,
            }
        }
        // Some sessions end without a close.
        if World::current().random(4) > 0 {
            let _ = log.close().await;
        } else {
            drop(log);
            Sim::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The log has all that was acknowledged, and nothing that was not submitted. What was in doubt is decided.
async fn check(log: &Partition<Sim>, known: &Known) {
    let Ok(batches) = common::read_all(log, 0, 5000).await else { return };
    let mut found = BTreeMap::new();
    for (offset, batch) in batches.iter().enumerate() {
        assert_eq!(batch.base_offset, offset as u64, "a gap");
        let number = u64::from_le_bytes(batch.bytes[..8].try_into().unwrap());
        assert!(number < known.submitted.get(), "batch {number} was never submitted");
        assert_eq!(batch.bytes, bytes_of(number), "batch {number}");
        found.insert(batch.base_offset, number);
    }
    assert_eq!(found.len() as u64, log.offsets().next, "as many as its offsets say");
    for (offset, number) in &*known.acknowledged.borrow() {
        assert_eq!(found.get(offset), Some(number), "batch {number} was acknowledged");
    }
}

/// Crashes, kills and faults of the disk come while a log is opened and closed all the time, so that many come in the
/// middle of a close, or between an opening and its first append.
#[test]
fn nothing_is_lost_in_the_middle_of_a_close() {
    let (opened, clean) = (Cell::new(0), Cell::new(0));
    run(seeds(50), async |world| {
        let host = world.host("disk");
        let known = Rc::<Known>::default();
        host.start({
            let known = Rc::clone(&known);
            move || sessions(Rc::clone(&known))
        });
        let mut plan = FaultPlan::new();
        let mut at = Duration::ZERO;
        for _ in 0..20 {
            at += Duration::from_micros(1_000 + world.random(20_000));
            let (host, lasts) = (host.clone(), Duration::from_micros(1 + world.random(3_000)));
            plan = plan.at(
                at,
                match world.random(10) {
                    0..=4 => Fault::Crash { host, down: lasts },
                    5..=7 => Fault::Kill { host, down: lasts },
                    8 => Fault::SyncErrors { host, lasts },
                    _ => Fault::DiskFull { host, lasts },
                },
            );
        }
        world.inject(plan);
        Sim::sleep(at + Duration::from_millis(20)).await;
        assert!(!known.acknowledged.borrow().is_empty(), "something was acknowledged");
        opened.set(opened.get() + known.opened.get());
        clean.set(clean.get() + known.clean.get());
        Ok(())
    });
    // Both ways of opening were taken often.
    assert!(clean.get() > opened.get() / 4, "{} of {} starts", clean.get(), opened.get());
    assert!(clean.get() < opened.get() * 9 / 10, "{} of {} starts", clean.get(), opened.get());
}

/// A loss of power right after a clean start finds no mark. So does one after the first append.
#[test]
fn a_loss_of_power_after_a_clean_start_finds_no_mark() {
    run(seeds(50), async |world| {
        let host = world.host("disk");
        let starts = Rc::new(Cell::new(0));
        host.start({
            let starts = Rc::clone(&starts);
            move || {
                let starts = Rc::clone(&starts);
                async move {
                    let dir = Path::new("/data/0");
                    let (log, recovered) = open::<Sim>(dir, small()).await;
                    match starts.replace(starts.get() + 1) {
                        0 => {
                            append(&log, 0).await.unwrap();
                            log.close().await.unwrap();
                            let (log, recovered) = open::<Sim>(dir, small()).await;
                            assert!(recovered.was_closed);
                            if World::current().random(2) == 0 {
                                append(&log, 1).await.unwrap();
                            }
                            starts.set(2);
                            std::future::pending::<()>().await;
                        }
                        2 => {
                            assert!(!recovered.was_closed, "a stale mark");
                            let next = log.offsets().next;
                            expect_batches(&log, 0..if next > 1 { 2 } else { 1 }).await;
                            log.close().await.unwrap();
                        }
                        other => panic!("start {other}"),
                    }
                    Ok(())
                }
            }
        });
        while starts.get() < 2 {
            Sim::sleep(Duration::from_millis(1)).await;
        }
        world.apply(Fault::Crash { host: host.clone(), down: Duration::from_millis(5) });
        Sim::sleep(Duration::from_millis(200)).await;
        assert_eq!(starts.get(), 3);
        Ok(())
    });
}
