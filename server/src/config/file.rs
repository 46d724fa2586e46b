//! [`read`]: small regular files, of options and of a password.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The longest file that is read, in bytes. Some hundred options and their comments fit many times.
const BYTES_MAX: u64 = 1 << 20;

/// Reads a regular file of at most [`BYTES_MAX`]. Any other file may have no end, or block the thread that opens it.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !fs::metadata(path)?.is_file() {
        return invalid("it is not a regular file".to_owned());
    }
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return invalid(format!("it is longer than {BYTES_MAX} bytes"));
    }
    Ok(text)
}
