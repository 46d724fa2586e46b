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

/// How much is read at once. Nearly all of these files are shorter: `netstat` has some 8 KiB.
const OPEN_FILE_STEP_BYTES: usize = 64 << 10;

/// Longer files are cut off. `fdinfo` of a ring has a line for each completion that was not read, and for each
/// operation that waits for readiness: 1 MiB are some 20,000 completions.
const OPEN_FILE_BYTES_MAX: usize = 1 << 20;

impl OpenFile {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), file: None }
    }

    /// What it says now, through a buffer that is used again. Nothing if it cannot be read. What is longer than a step
    /// is the rest of the same text: the kernel keeps it until it is read from the beginning.
    pub(crate) fn read<'b>(&mut self, buf: &'b mut Vec<u8>) -> Cow<'b, str> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let mut end = 0;
        loop {
            let until = end + OPEN_FILE_STEP_BYTES;
            buf.resize(until, 0);
            let read = self.file.as_ref().map(|file| file.read_at(&mut buf[end..], end as u64));
            let Some(Ok(read)) = read else {
                self.file = None;
                return Cow::Borrowed("");
            };
            end += read;
            if end < until || end >= OPEN_FILE_BYTES_MAX {
                return String::from_utf8_lossy(&buf[..end]);
            }
        }
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
    use super::*;

    #[test]
    fn a_long_file_is_read_to_its_end_within_the_bound() {
        let path = std::env::temp_dir().join(format!("stalls-{}", std::process::id()));
        let mut file = OpenFile::new(path.to_str().unwrap());
        let mut buf = Vec::new();
        for (bytes, expected) in [
            (10, 10),
            (OPEN_FILE_STEP_BYTES, OPEN_FILE_STEP_BYTES),
            (3 * OPEN_FILE_STEP_BYTES + 1, 3 * OPEN_FILE_STEP_BYTES + 1),
            (2 * OPEN_FILE_BYTES_MAX, OPEN_FILE_BYTES_MAX),
            (7, 7),
        ] {
            let text: String = ('a'..='z').cycle().take(bytes).collect();
            std::fs::write(&path, &text).unwrap();
            assert_eq!(file.read(&mut buf), text[..expected], "{bytes}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "SqHeadMask:\t1\nSqHead:\t7\nnr_throttled 5\nbad: x\n";
        assert_eq!(field(text, "SqHead"), Some(7));
        assert_eq!(field(text, "nr_throttled"), Some(5));
        assert_eq!(field(text, "bad"), None);
        assert_eq!(field(text, "Sq"), None);
        assert_eq!(field("", ""), None);
    }
}
