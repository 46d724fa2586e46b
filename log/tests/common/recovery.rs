//! Opens a partition whose files somebody has changed, as an input of bytes says. The fuzz target `log` uses it, and a
//! test with inputs drawn from a seed.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use owned_io::{Executor, File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt};
use owned_io_log::{ErrorKind, Partition, PartitionConfig, ReadFrom};
use owned_io_sim::{Config, Sim};

/// The bytes of a segment header and of a batch header.
const SEGMENT_HEADER: usize = 40;
const BATCH_HEADER: usize = 48;

/// Checks that opening and reading neither panic nor hang, and that no batch is read that was not appended.
///
/// The input is a seed, a number of batches, and changes of four bytes each: see [`change`].
///
/// # Panics
/// If that does not hold.
pub(crate) fn check(input: &[u8]) {
    let [seed, batches, changes @ ..] = input else { return };
    let changes: Vec<[u8; 4]> =
        changes.chunks_exact(4).take(64).map(|it| it.try_into().unwrap()).collect();
    let run = change_and_open(u64::from(*batches % 16), changes);
    Sim::block_on(Config::with_seed((*seed).into()), run).unwrap();
}

async fn change_and_open(batches: u64, changes: Vec<[u8; 4]>) {
    let dir = Path::new("/log");
    let mut config = PartitionConfig::default();
    config.segment_bytes = 700;
    config.cache_bytes_max = 0;
    let (log, _) = Partition::<Sim>::open(dir, config).await.expect("a new partition opens");
    for number in 0..batches {
        log.append(count(number), |_| [payload(number)]).await.expect("it is appended");
    }
    log.close().await.expect("it is closed");

    let mut is_forged = false;
    let paths = segments(dir).await;
    for change_bytes in &changes {
        is_forged |= change(&paths, *change_bytes).await;
    }

    let (log, recovered) = match Partition::<Sim>::open(dir, config).await {
        Ok(opened) => opened,
        Err(error) => {
            let kinds = [ErrorKind::Corrupt, ErrorKind::Version];
            assert!(kinds.contains(&error.kind()) && !changes.is_empty(), "{error}");
            return;
        }
    };
    assert_eq!(recovered.offsets, log.offsets());
    let mut next = 0;
    let mut found = 0;
    // Each round reads later offsets.
    loop {
        match log.read(ReadFrom::Offset(next), 1000).await {
            Ok(read) if read.is_empty() => break,
            Ok(read) => {
                for batch in read {
                    assert!(batch.next_offset() > next, "a read goes back");
                    next = batch.next_offset();
                    found += 1;
                    let is_known = (0..batches).any(|number| {
                        let base_offset: u64 =
                            (0..number).map(|before| u64::from(count(before))).sum();
                        (batch.base_offset, batch.count) == (base_offset, count(number))
                            && batch.bytes == payload(number)
                    });
                    assert!(is_known || is_forged, "{batch:?} was never appended");
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                break;
            }
        }
    }
    assert!(!changes.is_empty() || found == batches, "{found} of {batches} batches");
    let _ = log.read(ReadFrom::Timestamp(recovered.offsets.next), 1000).await;

    // It goes on, unless a header was forged so that no offset is left.
    let appended = match log.append(1, |_| [Bytes::from_static(b"after")]).await {
        Ok(appended) => appended,
        Err(error) => return assert!(is_forged, "{error}"),
    };
    let last = log.read(ReadFrom::Offset(appended.base_offset), 1000).await.expect("it is read");
    assert_eq!(last[0].bytes, "after");
    log.close().await.expect("it is closed");
    let (log, recovered) = Partition::<Sim>::open(dir, config).await.expect("it opens again");
    assert_eq!(recovered.offsets.next, appended.base_offset + 1);
    log.close().await.expect("it is closed");
}

/// Changes a segment. The bytes are: which segment; what to do (the two high bits) and the high bits of a position; the
/// low bits of the position; a value. Returns whether the header of a batch was forged with the right CRC. A mark may be
/// forged, too: that hides no batch.
async fn change(paths: &[PathBuf], [which, what, position, value]: [u8; 4]) -> bool {
    let path = &paths[which as usize % paths.len()];
    let Ok(file) = Sim::open(path, OpenMode::Write).await else { return false };
    let len = file.size().await.expect("the length") as usize;
    let read = file.read_exact_at(Vec::with_capacity(len), len, 0).await;
    let mut bytes = read.into_result().expect("it is read").1;
    let position = usize::from(what & 0x3f) << 8 | usize::from(position);
    let mut is_forged = false;
    match what >> 6 {
        0 => {
            if let Some(byte) = bytes.get_mut(position) {
                *byte ^= value | 1;
            }
        }
        1 => bytes.truncate(position),
        2 => bytes.extend(std::iter::repeat_n(position as u8, value.into())),
        _ if path.ends_with("clean") => forge_mark(&mut bytes, position, value),
        _ => is_forged = forge(&mut bytes, position, value),
    }
    file.set_len(bytes.len() as u64).await.expect("it is cut");
    file.write_all_at(bytes, 0).await.into_result().expect("it is written");
    is_forged
}

/// Changes a field of one of the first batches, and makes the CRC right.
fn forge(bytes: &mut [u8], position: usize, value: u8) -> bool {
    let mut at = SEGMENT_HEADER;
    for _ in 0..position >> 8 {
        let Some(len) = bytes.get(at + 12..at + 16) else { return false };
        let len = u32::from_le_bytes(len.try_into().expect("four bytes"));
        at = at.saturating_add(BATCH_HEADER + len as usize);
    }
    let Some(header) = bytes.get_mut(at..at.saturating_add(BATCH_HEADER)) else { return false };
    header[8 + (position & 0xff) % 40] = value;
    let crc = crc32c::crc32c(&header[8..]);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    true
}

/// Changes a byte of a mark, and makes the CRC right.
fn forge_mark(mark: &mut [u8], position: usize, value: u8) {
    if mark.len() <= 16 {
        return;
    }
    mark[16 + position % (mark.len() - 16)] = value;
    let crc = crc32c::crc32c(&mark[16..]);
    mark[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn count(number: u64) -> u32 {
    (number % 3) as u32 + 1
}

fn payload(number: u64) -> Bytes {
    format!("<{number}>").repeat(number as usize * 7 % 40 + 1).into()
}

async fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = Sim::list_dir(dir).await.expect("the directory is listed");
    let paths = entries.into_iter().map(|entry| dir.join(entry.name));
    // With the mark of the clean end.
    paths.filter(|path| !path.ends_with("lock")).collect()
}
