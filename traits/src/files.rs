//! [`Files`]: the part of a runtime that opens files and changes directories.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use crate::File;

/// Files and directories.
///
/// It is not part of [`Runtime`](crate::Runtime). A service that needs files requires `R: Runtime + Files`.
///
/// The functions on paths run on a blocking thread, so the tasks of this thread continue. A future starts when it is
/// first polled. Errors keep their OS error code and do not name the path: the caller does.
///
/// ```
/// use std::path::Path;
/// use owned_io::{Executor, File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt};
/// use owned_io_sim::Sim;
///
/// /// Replaces a file in one step: after a loss of power it has the old contents or the new ones.
/// async fn replace<F: Files>(dir: &Path, name: &str, contents: Vec<u8>) -> std::io::Result<()> {
///     let (new, path) = (dir.join("new"), dir.join(name));
///     let file = F::open(&new, OpenMode::Create).await?;
///     file.set_len(0).await?;
///     file.write_all_at(contents, 0).await.into_result()?;
///     file.sync_data().await?; // before the rename, or the name may refer to an empty file
///     F::rename(&new, &path).await?;
///     F::sync_dir(dir).await
/// }
///
/// # fn main() -> std::io::Result<()> {
/// Sim::block_on(Default::default(), async {
///     let dir = Path::new("/data");
///     Sim::create_dir_all(dir).await?;
///     replace::<Sim>(dir, "greeting", b"hello".to_vec()).await?;
///     let file = Sim::open(&dir.join("greeting"), OpenMode::Read).await?;
///     let ((), hello) = file.read_exact_at(Vec::with_capacity(5), 5, 0).await.into_result()?;
///     assert_eq!(hello, b"hello");
///     Ok(())
/// })?
/// # }
/// ```
///
/// # Implementing it
///
/// `owned_io_os::file` has all of it for a kernel backend, over a type that does positioned reads, writes and syncs. The
/// implementation is complete when it passes the cases of `file_conformance!` (feature
/// `conformance`).
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait Files: Sized + 'static {
    /// The open files of this runtime.
    type File: File;

    /// Opens a file.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), [`AlreadyExists`](io::ErrorKind::AlreadyExists) as `mode` says,
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied), [`IsADirectory`](io::ErrorKind::IsADirectory) for
    /// writing, and the other errors of open(2).
    ///
    /// # Cancellation
    /// The file may be created. It is not left open.
    ///
    /// # Implementer notes
    /// New files are for their owner alone, where there are permissions: mode 0600.
    async fn open(path: &Path, mode: OpenMode) -> io::Result<Self::File>;

    /// The entries of a directory, in order of their names.
    ///
    /// # Errors
    /// Those of opendir(3) and readdir(3).
    ///
    /// # Cancellation
    /// Safe.
    async fn list_dir(path: &Path) -> io::Result<Vec<DirEntry>>;

    /// Creates a directory and those above it. An existing directory is no error.
    ///
    /// It is durable only after a [sync](Self::sync_dir) of the directory above each new one.
    ///
    /// # Errors
    /// Those of mkdir(2).
    ///
    /// # Cancellation
    /// Some of them may be created, even later.
    ///
    /// # Implementer notes
    /// New directories are for their owner alone, where there are permissions: mode 0700.
    async fn create_dir_all(path: &Path) -> io::Result<()>;

    /// Renames a file, in one step. A file that had the new name is removed.
    ///
    /// After a loss of power, the new name refers to one of the two files, whole. Which one, is certain after a
    /// [sync](Self::sync_dir) of the directory. The contents are durable only after a sync of the file.
    ///
    /// # Errors
    /// Those of rename(2).
    ///
    /// # Cancellation
    /// The file may be renamed, even later.
    async fn rename(from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Files that are open stay readable and writable.
    ///
    /// # Errors
    /// Those of unlink(2).
    ///
    /// # Cancellation
    /// The file may be removed, even later.
    async fn remove_file(path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`DirectoryNotEmpty`](io::ErrorKind::DirectoryNotEmpty), and the other errors of rmdir(2).
    ///
    /// # Cancellation
    /// The directory may be removed, even later.
    async fn remove_dir(path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable: those that were created, renamed and removed before the call.
    ///
    /// # Errors
    /// Those of open(2) and fsync(2). As for [`File::sync_data`], it is unknown then which of them are durable.
    ///
    /// # Cancellation
    /// Safe. The names may be durable or not.
    async fn sync_dir(path: &Path) -> io::Result<()>;
}

/// What to open a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenMode {
    /// Reads a file that exists.
    Read,
    /// Reads and writes a file that exists.
    Write,
    /// Reads and writes. Creates an empty file if there is none.
    Create,
    /// Reads and writes. Creates the file. It is an error if there is one.
    CreateNew,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name within the directory.
    pub name: OsString,
    /// Whether it is a directory.
    pub is_dir: bool,
}

impl DirEntry {
    /// For backends.
    pub const fn new(name: OsString, is_dir: bool) -> Self {
        Self { name, is_dir }
    }
}
