//! Parsers of what the kernel says in /proc and over netlink: plain functions over text or bytes.
//!
//! A field that is missing or odd is `None` or left out; other kernels write other fields. No input panics (fuzz
//! target `proc`).

pub mod machine;
pub mod maps;
pub mod net;
pub mod ring;
pub mod socket;
pub mod thread;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longer files are cut off: 16 MiB of `maps` are 100,000 mappings.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads a file of /proc. A thread may have a name that is not UTF-8, for example one cut after 15 bytes, and a file
/// any path, so whatever is not UTF-8 is replaced.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    // `fs::read` would ask for the size, which is 0, and then begin with 32 bytes.
    let mut bytes = Vec::with_capacity(4096);
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A file of /proc that stays open, because it is read often: each time takes one system call.
///
/// Only for files that the kernel writes in one piece. Most are, but for lists such as `maps`.
#[derive(Debug)]
pub(crate) struct OpenFile {
    path: String,
    file: Option<File>,
}

/// The longest of these files, `netstat`, has some 8 KiB.
const OPEN_FILE_BYTES_MAX: usize = 64 << 10;

impl OpenFile {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), file: None }
    }

    /// What it says now, through a buffer that is used again. Nothing if it cannot be read.
    pub(crate) fn read<'b>(&mut self, buf: &'b mut Vec<u8>) -> Cow<'b, str> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        buf.resize(OPEN_FILE_BYTES_MAX, 0);
        let read = self.file.as_ref().map(|file| file.read_at(buf, 0));
        let Some(Ok(read)) = read else {
            self.file = None;
            return Cow::Borrowed("");
        };
        String::from_utf8_lossy(&buf[..read])
    }
}

/// The number after `name` and a colon, or after `name` and a space, in the first line that begins so.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([':', ' ', '\t']))
    })?;
    line[name.len()..]
        .trim_start_matches([':', ' ', '\t'])
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "SqHeadMask:\t1\nSqHead:\t7\nnr_throttled 5\nbad: x\n";
        assert_eq!(super::field(text, "SqHead"), Some(7));
        assert_eq!(super::field(text, "nr_throttled"), Some(5));
        assert_eq!(super::field(text, "bad"), None);
        assert_eq!(super::field(text, "Sq"), None);
        assert_eq!(super::field("", ""), None);
    }
}
