//! [`Error`]: why an operation of the log has failed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::VERSION;

/// Why an operation of the log has failed. A clone is the same error: all who waited for a sync get it.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

/// The kinds of [`Error`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The operating system reported an error, which is the source. Nothing has changed, and the log goes on.
    Io,
    /// The disk is full. What was to be appended is not, and the log goes on.
    NoSpace,
    /// Another process, or another [`Partition`](crate::Partition) of this one, has the directory open.
    Locked,
    /// A newer version of this crate wrote the files.
    Version,
    /// Bytes that were on the disk have changed.
    Corrupt,
    /// A write or a sync has failed, with the source, now or earlier. The batch may be stored or not. The log takes no
    /// more writes until it is opened again.
    Failed,
    /// A batch is larger than its [`PartitionConfig`](crate::PartitionConfig), or the caller of a read, permits.
    TooLarge,
    /// A batch without messages or without bytes.
    Empty,
    /// The log was closed.
    Closed,
}

#[derive(Debug)]
struct Inner {
    detail: Detail,
    path: Option<PathBuf>,
    source: Option<io::Error>,
}

#[derive(Debug)]
enum Detail {
    Io { action: &'static str },
    NoSpace,
    Locked,
    Version { found: u32 },
    Corrupt { position: u64 },
    Failed { action: &'static str },
    TooLarge { bytes: usize, limit: usize },
    Empty,
    Closed,
}

impl Error {
    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        match self.0.detail {
            Detail::Io { .. } => ErrorKind::Io,
            Detail::NoSpace => ErrorKind::NoSpace,
            Detail::Locked => ErrorKind::Locked,
            Detail::Version { .. } => ErrorKind::Version,
            Detail::Corrupt { .. } => ErrorKind::Corrupt,
            Detail::Failed { .. } => ErrorKind::Failed,
            Detail::TooLarge { .. } => ErrorKind::TooLarge,
            Detail::Empty => ErrorKind::Empty,
            Detail::Closed => ErrorKind::Closed,
        }
    }

    /// The file or directory that it is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The bytes of the batch that is [too large](ErrorKind::TooLarge).
    pub fn batch_bytes(&self) -> Option<usize> {
        match self.0.detail {
            Detail::TooLarge { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// The operating system could not do `action` (a verb).
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        if is_full(&source) {
            return Self::new(Detail::NoSpace, Some(path), Some(source));
        }
        Self::new(Detail::Io { action }, Some(path), Some(source))
    }

    pub(crate) fn failed(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::new(Detail::Failed { action }, Some(path), Some(source))
    }

    /// The same error, after which the log takes no more writes.
    pub(crate) fn into_failed(self) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { detail: Detail::Io { action }, path, source }) => {
                Self(Arc::new(Inner { detail: Detail::Failed { action }, path, source }))
            }
            Ok(Inner { detail: Detail::NoSpace, path, source }) => {
                let detail = Detail::Failed { action: "write" };
                Self(Arc::new(Inner { detail, path, source }))
            }
            Ok(inner) => Self(Arc::new(inner)),
            Err(shared) => Self(shared),
        }
    }

    pub(crate) fn locked(path: &Path) -> Self {
        Self::new(Detail::Locked, Some(path), None)
    }

    pub(crate) fn version(path: &Path, found: u32) -> Self {
        Self::new(Detail::Version { found }, Some(path), None)
    }

    pub(crate) fn corrupt(path: &Path, position: u64) -> Self {
        Self::new(Detail::Corrupt { position }, Some(path), None)
    }

    pub(crate) fn too_large(bytes: usize, limit: usize) -> Self {
        Self::new(Detail::TooLarge { bytes, limit }, None, None)
    }

    pub(crate) fn empty() -> Self {
        Self::new(Detail::Empty, None, None)
    }

    pub(crate) fn closed() -> Self {
        Self::new(Detail::Closed, None, None)
    }

    fn new(detail: Detail, path: Option<&Path>, source: Option<io::Error>) -> Self {
        Self(Arc::new(Inner { detail, path: path.map(Path::to_owned), source }))
    }
}

/// Whether the error says that there is no space.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.path.as_deref().unwrap_or_else(|| Path::new("the log")).display();
        match self.0.detail {
            Detail::Io { action } => write!(f, "cannot {action} {path}"),
            Detail::NoSpace => write!(f, "the disk is full, at {path}"),
            Detail::Locked => write!(f, "{path} is in use by another process or log"),
            Detail::Version { found } => {
                write!(f, "{path} has format version {found}, this program knows {VERSION}")
            }
            Detail::Corrupt { position } => {
                write!(f, "{path} is damaged at byte {position}: stored bytes have changed")
            }
            Detail::Failed { action } => {
                write!(f, "cannot {action} {path}: the log takes no more writes")
            }
            Detail::TooLarge { bytes, limit } => {
                write!(f, "a batch of {bytes} bytes is larger than the limit of {limit}")
            }
            Detail::Empty => write!(f, "a batch without messages or bytes"),
            Detail::Closed => write!(f, "the log is closed"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match (error.kind(), &error.0.source) {
            (ErrorKind::Io | ErrorKind::Failed, Some(source)) => source.kind(),
            (ErrorKind::NoSpace, _) => io::ErrorKind::StorageFull,
            (ErrorKind::Locked, _) => io::ErrorKind::ResourceBusy,
            (ErrorKind::Version, _) => io::ErrorKind::Unsupported,
            (ErrorKind::Corrupt, _) => io::ErrorKind::InvalidData,
            (ErrorKind::TooLarge | ErrorKind::Empty, _) => io::ErrorKind::InvalidInput,
            (ErrorKind::Closed, _) => io::ErrorKind::BrokenPipe,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
