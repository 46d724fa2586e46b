//! Opens a partition whose files somebody has changed, as an input of bytes says. The fuzz target `log` uses it, and a
//! test with inputs drawn from a seed. Both have `change.rs` beside it.

use std::path::Path;

use bytes::Bytes;
use owned_io::Executor;
use owned_io_log::{ErrorKind, Partition, PartitionConfig, ReadFrom};
use owned_io_sim::{Config, Sim};

use super::change::{change, files};

/// The errors of files that were changed.
const DAMAGED: [ErrorKind; 2] = [ErrorKind::Corrupt, ErrorKind::Version];

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
    let paths = files(dir).await;
    for change_bytes in &changes {
        is_forged |= change(&paths, *change_bytes).await;
    }

    let (log, recovered) = match Partition::<Sim>::open(dir, config).await {
        Ok(opened) => opened,
        Err(error) => {
            assert!(DAMAGED.contains(&error.kind()) && !changes.is_empty(), "{error}");
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
                    assert!(batch.base_offset == next || is_forged, "a batch is left out");
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
                assert!(DAMAGED.contains(&error.kind()), "{error}");
                break;
            }
        }
    }
    assert!(!changes.is_empty() || found == batches, "{found} of {batches} batches");
    // What is behind the damage, too. There are not as many messages, unless an offset was forged.
    for offset in 0..recovered.offsets.next.min(64) {
        if let Ok(read) = log.read(ReadFrom::Offset(offset), 1).await {
            let is_asked_for = read
                .first()
                .is_some_and(|batch| (batch.base_offset..batch.next_offset()).contains(&offset));
            assert!(is_asked_for || is_forged, "{read:?} is not the batch of {offset}");
        }
    }
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

fn count(number: u64) -> u32 {
    (number % 3) as u32 + 1
}

fn payload(number: u64) -> Bytes {
    format!("<{number}>").repeat(number as usize * 7 % 40 + 1).into()
}
