//! [`GlommioFile`]: a file whose operations are system calls on a blocking thread, except reads of
//! what is in the page cache.

use owned_io_os::file;

use crate::Glommio;

/// A file on glommio.
pub type GlommioFile = file::File<file::Blocking<Glommio>>;
