//! [`ObjectName`]: the name of an object.

use std::borrow::Cow;
use std::fmt;

/// The longest name, in bytes: as long as file systems allow.
pub const NAME_BYTES_MAX: usize = 255;

/// The name of an object: one segment of a path, decoded. It has no slash, no backslash and no control character, and
/// does not begin with a dot. So no origin can take it for a path that leads elsewhere, nor for a hidden file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName<'a>(Cow<'a, str>);

/// Why a text is not the name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// It is empty.
    Empty,
    /// It is longer than [`NAME_BYTES_MAX`].
    TooLong,
    /// It begins with a dot.
    Dot,
    /// It has a slash, a backslash or a control character.
    Character,
}

impl<'a> ObjectName<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// It cannot be the name of an object.
    pub fn new(name: impl Into<Cow<'a, str>>) -> Result<Self, NameError> {
        let name = name.into();
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        if name.starts_with('.') {
            return Err(NameError::Dot);
        }
        if name.contains(|c: char| c.is_control() || c == '/' || c == '\\') {
            return Err(NameError::Character);
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Appends a name to a target, with each byte encoded that is not unreserved (RFC 3986 section 2.3).
pub(crate) fn append_encoded(name: &str, target: &mut String) {
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            target.push(char::from(byte));
        } else {
            target.push('%');
            for digit in [byte >> 4, byte & 15] {
                target.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the name of the object is missing"),
            Self::TooLong => write!(f, "the name has more than {NAME_BYTES_MAX} bytes"),
            Self::Dot => f.write_str("the name begins with a dot"),
            Self::Character => {
                f.write_str("the name has a slash, a backslash or a control character")
            }
        }
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_harmless_segment() {
        for name in ["a", "a.txt", "a..b", "straße 7", "~", "-", "%2e%2e", &"n".repeat(255)] {
            assert_eq!(ObjectName::new(name).unwrap().as_str(), name);
        }
        for (name, why) in [
            ("", NameError::Empty),
            (".", NameError::Dot),
            ("..", NameError::Dot),
            (".env", NameError::Dot),
            ("/etc/passwd", NameError::Character),
            ("a/../b", NameError::Character),
            ("a\\..\\b", NameError::Character),
            ("a\0", NameError::Character),
            ("a\r\nb", NameError::Character),
            ("a\u{85}", NameError::Character),
            (&"n".repeat(256), NameError::TooLong),
        ] {
            assert_eq!(ObjectName::new(name), Err(why), "{name:?}");
        }
    }

    #[test]
    fn each_reserved_byte_is_encoded() {
        let mut target = String::from("/p/");
        append_encoded("a-Z_0.~ %ß?#", &mut target);
        assert_eq!(target, "/p/a-Z_0.~%20%25%C3%9F%3F%23");
    }
}
