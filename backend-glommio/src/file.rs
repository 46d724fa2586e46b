//! [`GlommioFile`]: a file whose operations are system calls on a blocking thread.

use owned_io_os::file;

/// A file on glommio.
pub type GlommioFile = file::File<file::Blocking>;
