//! The functions of [`owned_io::Files`]: plain calls on a blocking thread.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use owned_io::{DirEntry, OpenMode, Panicked};

use super::{File, FileIo};
use crate::spawn_blocking;

/// The permissions of new files, less the umask: their owner may read and write them. What a service stores is not for
/// every user of the machine.
const FILE_MODE: u32 = 0o600;

/// The permissions of new directories, less the umask: for their owner too.
const DIR_MODE: u32 = 0o700;

/// Opens a file. A new one has the permissions 0600, less the umask.
///
/// # Errors
/// Those of open(2).
pub async fn open<I: FileIo>(path: &Path, mode: OpenMode) -> io::Result<File<I>> {
    let mut options = OpenOptions::new();
    options.read(true).mode(FILE_MODE);
    match mode {
        OpenMode::Read => {}
        OpenMode::Write => _ = options.write(true),
        OpenMode::Create => _ = options.write(true).create(true).truncate(false),
        OpenMode::CreateNew => _ = options.write(true).create_new(true),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    }
    let fd: OwnedFd = call(path, move |path| options.open(path)).await?.into();
    File::new(fd)
}

/// The entries of a directory, in order of their names.
///
/// # Errors
/// Those of opendir(3) and readdir(3).
pub async fn list_dir(path: &Path) -> io::Result<Vec<DirEntry>> {
    let list = |path: &Path| {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            io::Result::Ok(DirEntry::new(entry.file_name(), entry.file_type()?.is_dir()))
        };
        let mut entries = fs::read_dir(path)?.map(entry).collect::<io::Result<Vec<_>>>()?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    };
    call(path, list).await
}

/// Creates a directory and those above it. New ones have the permissions 0700, less the umask.
///
/// # Errors
/// Those of mkdir(2).
pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    call(path, |path| DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)).await
}

/// Renames a file.
///
/// # Errors
/// Those of rename(2).
pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let to = to.to_owned();
    call(from, move |from| fs::rename(from, to)).await
}

/// Removes a file.
///
/// # Errors
/// Those of unlink(2).
pub async fn remove_file(path: &Path) -> io::Result<()> {
    call(path, |path| fs::remove_file(path)).await
}

/// Removes an empty directory.
///
/// # Errors
/// Those of rmdir(2).
pub async fn remove_dir(path: &Path) -> io::Result<()> {
    call(path, |path| fs::remove_dir(path)).await
}

/// Makes the names in a directory durable.
///
/// # Errors
/// Those of open(2) and fsync(2).
pub async fn sync_dir(path: &Path) -> io::Result<()> {
    call(path, |path| fs::File::open(path)?.sync_all()).await
}

/// Calls `f` on a blocking thread.
async fn call<T: Send + 'static>(
    path: &Path,
    f: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = path.to_owned();
    finished(spawn_blocking(move || f(&path))).await
}

/// The output of a call on a blocking thread.
pub(super) async fn finished<T>(
    call: impl Future<Output = Result<io::Result<T>, Panicked>>,
) -> io::Result<T> {
    call.await.unwrap_or_else(|panicked| panicked.resume())
}
