//! What a start finds in the directory of the data, compared with the catalogue.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;

use owned_io::{Files, Runtime};
use owned_io_log::Partition;
use tracing::info;

use super::{DurableStorage, damaged, explained, once_unlocked};
use crate::iggy::catalogue::{Catalogue, LogId};

impl<R: Runtime + Files> DurableStorage<R> {
    /// Removes partitions that the catalogue does not have. Fails if one is missing that it has, and if it has lost the
    /// record of one.
    pub(super) async fn compare_with_directory(
        &self,
        catalogue: &Catalogue,
        is_new: bool,
    ) -> io::Result<()> {
        let partitions_dir = self.dir.join("partitions");
        let entries = match R::list_dir(&partitions_dir).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            result => result.map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot list {}: {error}", partitions_dir.display()),
                )
            })?,
        };
        let mut present = BTreeSet::new();
        for entry in entries {
            let Some(log) = log_of(&entry.name) else { continue };
            if !entry.is_dir {
                return Err(damaged(
                    &self.partition_dir(log),
                    "it has the name of a partition, and is no directory",
                ));
            }
            present.insert(log);
        }
        let expected: BTreeSet<_> = catalogue.logs().collect();
        if is_new && !present.is_empty() {
            return Err(damaged(
                &partitions_dir,
                "it has partitions, and there is no catalogue of them",
            ));
        }
        if let Some(&missing) = expected.difference(&present).next() {
            return Err(damaged(
                &self.partition_dir(missing),
                "the catalogue has this partition, and it is missing",
            ));
        }
        let mut removed = Vec::new();
        for &unused in present.difference(&expected) {
            let dir = self.partition_dir(unused);
            // A partition is created before its record, and filled after it.
            if unused >= catalogue.next_log() && self.has_messages(unused).await? {
                return Err(damaged(
                    &dir,
                    "it has messages, and the catalogue has lost its record",
                ));
            }
            let remove = async || owned_io_log::remove::<R>(&dir).await;
            once_unlocked::<R, _>(remove).await.map_err(explained)?;
            removed.push(dir);
        }
        if !removed.is_empty() {
            let dirs = first_few(removed.iter().map(|dir| dir.display().to_string()));
            info!(%dirs, "removed partitions that the catalogue does not have");
        }
        Ok(())
    }

    async fn has_messages(&self, log: LogId) -> io::Result<bool> {
        let mut config = self.config;
        config.cache_bytes_max = 0;
        let open = async || Partition::<R>::open(self.partition_dir(log), config).await;
        let (partition, recovered) = once_unlocked::<R, _>(open).await.map_err(explained)?;
        partition.close().await.map_err(explained)?;
        Ok(recovered.offsets.next > 0)
    }
}

/// How many things a line of log names: there may be as many as partitions.
const NAMED_MAX: usize = 8;

/// The first few names, and how many there are besides.
pub(super) fn first_few(mut names: impl ExactSizeIterator<Item = String>) -> String {
    let mut named: Vec<_> = names.by_ref().take(NAMED_MAX).collect();
    let left = names.len();
    if left > 0 {
        named.push(format!("{left} more"));
    }
    named.join(", ")
}

/// The log whose directory has this name.
fn log_of(dir_name: &OsStr) -> Option<LogId> {
    let name = dir_name.to_str()?;
    let number: u64 = name.parse().ok()?;
    (number.to_string() == name).then_some(LogId(number))
}
