//! [`Name`]: names of streams, topics and consumer groups.

use std::fmt;
use std::rc::Rc;

/// The longest name, in bytes: the protocol has one byte for the length.
pub const NAME_BYTES_MAX: usize = 255;

/// A name: 1 to [`NAME_BYTES_MAX`] bytes of UTF-8, without control characters, NUL among them, and without `/` and
/// `\`. So a name can stand in a URL, a log line and a path. Cloning does not copy it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Rc<str>);

impl Name {
    /// The name, if it is one.
    pub fn new(name: &str) -> Option<Self> {
        let is_allowed = |c: char| !c.is_control() && c != '/' && c != '\\';
        let has_length = (1..=NAME_BYTES_MAX).contains(&name.len());
        (has_length && name.chars().all(is_allowed)).then(|| Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_paths_or_break_lines_are_refused() {
        for name in ["a", "orders.2026", "straße 7", "..", "日本", &"n".repeat(255)] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
        for name in ["", "a/b", "/", "a\\b", "a\0b", "\0", "a\nb", "\u{7f}", &"n".repeat(256)] {
            assert_eq!(Name::new(name), None, "{name:?}");
        }
    }
}
