//! Opens a journal whose files somebody has changed, as an input of bytes says. The fuzz target `journal` uses it,
//! and a test with inputs drawn from a seed. Both have `change.rs` beside it.

use std::path::Path;

use bytes::Bytes;
use owned_io::{Executor, Files};
use owned_io_log::{ErrorKind, Journal, PartitionConfig, Replay};
use owned_io_sim::{Config, Sim};

use super::change::{change, files, write};

const DIR: &str = "/journal";

/// The most changes, so that an input takes no time to speak of.
const CHANGES_MAX: usize = 64;

/// Checks that opening neither panics nor hangs, that it finds no state that the journal did not have, and that the
/// journal goes on with what was found.
///
/// The input is a seed, a number of records, after how many of them each snapshot is made, and changes of four bytes
/// each: see [`change_one`].
///
/// # Panics
/// If that does not hold.
pub(crate) fn check(input: &[u8]) {
    let [seed, records, every, changes @ ..] = input else { return };
    let changes: Vec<[u8; 4]> =
        changes.chunks_exact(4).take(CHANGES_MAX).map(|it| it.try_into().unwrap()).collect();
    let run = change_and_open(u64::from(*records % 32), u64::from(*every % 16), changes);
    Sim::block_on(Config::with_seed((*seed).into()), run).unwrap();
}

async fn change_and_open(records: u64, every: u64, changes: Vec<[u8; 4]>) {
    let mut config = PartitionConfig::default();
    config.segment_bytes = 700;
    config.cache_bytes_max = 0;
    let (journal, _) = open(config).await.expect("a new journal opens");
    let (mut last, mut before) = (None, None);
    for number in 0..records {
        journal.append(record(number)).await.expect("it is appended");
        if every > 0 && number % every == every - 1 {
            before = last.replace(number + 1);
            journal.snapshot(state(number + 1)).await.expect("a snapshot is made");
        }
    }
    journal.close().await.expect("it is closed");

    let mut is_forged = false;
    for bytes in &changes {
        is_forged |= change_one(*bytes, before).await;
    }

    let (journal, replay) = match open(config).await {
        Ok(opened) => opened,
        Err(error) => {
            let kinds = [ErrorKind::Corrupt, ErrorKind::Version];
            assert!(kinds.contains(&error.kind()) && !changes.is_empty(), "{error}");
            return;
        }
    };
    if !is_forged {
        let found = found(&replay, records);
        assert!(!changes.is_empty() || found == (last, records), "{found:?}, unchanged");
        assert!([None, last, before].contains(&found.0), "{found:?}: there was no such snapshot");
    }

    // It goes on, unless something was forged so that no offset is left.
    if let Err(error) = journal.append(record(records)).await {
        return assert!(is_forged, "{error}");
    }
    journal.close().await.expect("it is closed");
    let again = open(config).await;
    if is_forged {
        return; // what was trusted may not fit what was appended
    }
    let (journal, again) = again.expect("it opens again");
    assert_eq!(again.snapshot, replay.snapshot);
    let expected = replay.records.into_iter().chain([record(records)]);
    assert!(again.records.into_iter().eq(expected), "a record is lost or invented");
    journal.snapshot(state(1)).await.expect("a snapshot is made");
    journal.close().await.expect("it is closed");
    let (journal, replay) = open(config).await.expect("it opens with the snapshot");
    assert_eq!((replay.snapshot, replay.records), (Some(state(1)), vec![]));
    journal.close().await.expect("it is closed");
    assert!(!files(Path::new(DIR)).await.iter().any(|path| path.ends_with("snapshot.new")));
}

async fn open(config: PartitionConfig) -> Result<(Journal<Sim>, Replay), owned_io_log::Error> {
    Journal::<Sim>::open(DIR, config).await
}

/// Removes the snapshot, puts an older one in its place, leaves an unfinished one beside it, or [changes](change) a
/// file. Returns whether something was forged that is trusted.
async fn change_one(bytes: [u8; 4], before: Option<u64>) -> bool {
    let snapshot = Path::new(DIR).join("snapshot");
    match (bytes[0], before) {
        (255, _) => drop(Sim::remove_file(&snapshot).await), // an error: there is none
        (254, Some(before)) => write(&snapshot, encoded(before)).await,
        (253, _) => write(&Path::new(DIR).join("snapshot.new"), bytes.to_vec()).await,
        _ => return change(&files(Path::new(DIR)).await, bytes).await,
    }
    false
}

/// How many records the snapshot has, and how many it has with those after it. Panics if the state is none that the
/// journal had: the snapshot is another, a record is missing before the last, or there are more than `records`.
fn found(replay: &Replay, records: u64) -> (Option<u64>, u64) {
    let of_snapshot = replay.snapshot.as_ref().map(|found| {
        let count = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
        assert_eq!(*found, state(count), "a snapshot was invented");
        count
    });
    let first = of_snapshot.unwrap_or(0);
    let end = first + replay.records.len() as u64;
    assert!(replay.records.iter().cloned().eq((first..end).map(record)), "a record was invented");
    assert!(end <= records, "there are {end} records, and {records} were appended");
    (of_snapshot, end)
}

/// The bytes of a snapshot of that many records: see `journal.rs`.
fn encoded(records: u64) -> Vec<u8> {
    let checked = [&records.to_le_bytes()[..], &state(records)[..]].concat();
    let (version, crc) = (1_u32.to_le_bytes(), crc32c::crc32c(&checked).to_le_bytes());
    [&b"OIOSNAP\0"[..], &version[..], &crc[..], &checked[..]].concat()
}

/// The state after that many records.
fn state(records: u64) -> Bytes {
    let filler = vec![records as u8; records as usize * 5 % 100];
    [&records.to_le_bytes()[..], &filler[..]].concat().into()
}

fn record(number: u64) -> Bytes {
    format!("<{number}>").repeat(number as usize * 7 % 40 + 1).into()
}
