//! [`TokioFile`]: a file whose operations are system calls on a blocking thread.

use owned_io_os::file;

/// A file on tokio.
pub type TokioFile = file::File<file::Blocking>;
