//! Helpers: a directory for each case, and batches that can be told apart.

#![allow(dead_code, reason = "no test uses all of them")]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use owned_io::{File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt, Runtime};
use owned_io_log::{Batch, Error, Partition, PartitionConfig, Position, ReadFrom, Recovered};

/// A directory that does not exist.
pub(crate) fn scratch<R: Runtime>() -> PathBuf {
    let mut number = [0; 8];
    R::fill_random(&mut number);
    std::env::temp_dir().join(format!("owned-io-log-{:016x}", u64::from_le_bytes(number)))
}

/// Small segments, so that a few batches fill one.
pub(crate) fn small() -> PartitionConfig {
    let mut config = PartitionConfig::default();
    config.segment_bytes = 4096;
    config.cache_bytes_max = 1000;
    config
}

pub(crate) async fn open<R: Runtime + Files>(
    dir: &Path,
    config: PartitionConfig,
) -> (Partition<R>, Recovered) {
    Partition::<R>::open(dir, config).await.expect("the partition opens")
}

/// The bytes of batch `number`: from 1 byte to 700.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    let len = 1 + (number * 271) % 700;
    let mut bytes: Vec<u8> = (0..len).map(|at| (number * 31 + at) as u8).collect();
    let tag = format!("<{number}>").into_bytes();
    bytes.splice(0..0, tag);
    bytes
}

/// Appends batch `number`, with `number % 5 + 1` messages, in one to three parts.
pub(crate) async fn append<R: Runtime + Files>(
    log: &Partition<R>,
    number: u64,
) -> Result<u64, Error> {
    let stamp = |_: Position| {
        let bytes = Bytes::from(payload(number));
        let third = bytes.len() / 3;
        match number % 3 {
            0 => vec![bytes],
            1 => vec![bytes.slice(..third), bytes.slice(third..)],
            _ => vec![
                bytes.slice(..third),
                Bytes::new(),
                bytes.slice(third..2 * third),
                bytes.slice(2 * third..),
            ],
        }
    };
    let appended = log.append(count(number), stamp).await?;
    assert_eq!(appended.count, count(number));
    Ok(appended.base_offset)
}

pub(crate) fn count(number: u64) -> u32 {
    (number % 5) as u32 + 1
}

/// All batches from `from` on, by reads of `bytes_max`.
pub(crate) async fn read_all<R: Runtime + Files>(
    log: &Partition<R>,
    mut from: u64,
    bytes_max: usize,
) -> Result<Vec<Batch>, Error> {
    let mut all = Vec::new();
    loop {
        let batches = log.read(ReadFrom::Offset(from), bytes_max).await?;
        let Some(last) = batches.last() else { return Ok(all) };
        let bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        assert!(bytes <= bytes_max || batches.len() == 1, "{bytes} of {bytes_max} bytes");
        from = last.next_offset();
        all.extend(batches);
    }
}

/// Panics unless the log has exactly the batches `first..`, without a gap, up to its end.
pub(crate) async fn expect_batches<R: Runtime + Files>(
    log: &Partition<R>,
    numbers: std::ops::Range<u64>,
) {
    let all = read_all(log, 0, 3000).await.expect("the batches are read");
    assert_eq!(all.len() as u64, numbers.end - numbers.start, "the number of batches");
    let mut next = log.offsets().first;
    for (batch, number) in all.iter().zip(numbers) {
        assert_eq!((batch.base_offset, batch.count), (next, count(number)), "batch {number}");
        assert_eq!(batch.bytes, payload(number), "batch {number}");
        next = batch.next_offset();
    }
    assert_eq!(next, log.offsets().next);
}

/// The files of segments, in order.
pub(crate) async fn segments<R: Files>(dir: &Path) -> Vec<PathBuf> {
    let entries = R::list_dir(dir).await.expect("the directory is listed");
    let names = entries.into_iter().map(|entry| dir.join(entry.name));
    names.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

/// Changes a file by `f`.
pub(crate) async fn edit<R: Files>(path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
    let file = R::open(path, OpenMode::Write).await.expect("the file opens");
    let len = file.size().await.unwrap() as usize;
    let read = file.read_exact_at(Vec::with_capacity(len), len, 0).await;
    let mut bytes = read.into_result().unwrap().1;
    f(&mut bytes);
    file.set_len(bytes.len() as u64).await.unwrap();
    file.write_all_at(bytes, 0).await.into_result().unwrap();
}
