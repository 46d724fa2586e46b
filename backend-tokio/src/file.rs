//! [`TokioFile`]: a file whose operations are system calls on a blocking thread, except reads of
//! what is in the page cache.

use owned_io_os::file;

use crate::Tokio;

/// A file on tokio.
pub type TokioFile = file::File<file::Blocking<Tokio>>;
