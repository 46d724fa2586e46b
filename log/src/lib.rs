#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batch;
mod config;
mod error;
mod format;
mod journal;
mod mark;
mod observer;
mod partition;
mod reader;
mod recovery;
mod removal;
mod segment;
mod shared;
mod signal;
mod writer;

use std::path::PathBuf;

use owned_io::{Files, OpenMode, Runtime};

pub use batch::{Appended, Batch, Offsets, Position, ReadFrom, Recovered, Size, Trimmed};
pub use config::{ParseSyncPolicyError, PartitionConfig, Retention, SyncPolicy};
pub use error::{Error, ErrorKind};
pub use journal::{Journal, Replay};
pub use observer::{Group, Observer};
pub use partition::Partition;
pub use reader::READ_BATCHES_MAX;

/// Removes the directory of a closed partition or journal, durably. A missing directory is no error.
///
/// # Errors
/// [`Locked`](ErrorKind::Locked) if it is open, [`Io`](ErrorKind::Io): also if the directory has other files, which
/// stay.
///
/// A crash may leave the last segments. [`Journal::open`] refuses them as [`Corrupt`](ErrorKind::Corrupt) if the first
/// ones had been removed before: remove the directory again.
///
/// # Cancellation
/// It is removed all the same.
pub async fn remove<R: Runtime + Files>(dir: impl Into<PathBuf>) -> Result<(), Error> {
    // In a task of its own, which holds the lock until the last call has returned: what a dropped call does late would
    // damage what another opener finds.
    let task = R::spawn(remove_locked::<R>(dir.into()));
    task.await.unwrap_or_else(|_| Err(Error::closed()))
}

async fn remove_locked<R: Files>(dir: PathBuf) -> Result<(), Error> {
    let failed = |error| Error::io("remove", &dir, error);
    let lock_path = dir.join("lock");
    let lock = match R::open(&lock_path, OpenMode::Create).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        result => result.map_err(failed)?,
    };
    recovery::try_lock::<R>(&lock, &dir).await?;
    mark::remove::<R>(&dir).await.map_err(failed)?;
    // In order, so that a crash leaves the last segments. The snapshot goes before the records that it needs.
    for name in ["snapshot", "snapshot.new"] {
        match R::remove_file(&dir.join(name)).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            result => result.map_err(failed)?,
        }
    }
    for base_offset in recovery::list::<R>(&dir).await? {
        let segment = segment::Segment::<R>::new(&dir, base_offset, 0);
        R::remove_file(&segment.path).await.map_err(failed)?;
    }
    R::remove_file(&lock_path).await.map_err(failed)?;
    R::remove_dir(&dir).await.map_err(failed)?;
    recovery::sync_above::<R>(&dir).await
}
