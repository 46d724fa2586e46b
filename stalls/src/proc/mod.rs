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

/// Reads a file of /proc. A thread may have a name that is not UTF-8, for example one cut after 15 bytes, and a file
/// any path, so whatever is not UTF-8 is replaced.
pub(crate) fn read(path: impl AsRef<std::path::Path>) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
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
