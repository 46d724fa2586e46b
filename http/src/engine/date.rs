//! [`Date`]: the value of the `Date` header.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

/// The last second that the format can express: the end of the year 9999.
const SECONDS_MAX: u64 = 253_402_300_799;

/// A time in the format of the `Date` header (RFC 9110 section 5.6.7). It is formatted again once a second.
#[derive(Clone, Copy, Debug)]
pub struct Date {
    seconds: u64,
    text: [u8; 29],
}

impl Date {
    /// Sets it to `now`. Times outside the years 1970 to 9999 become the nearest ones.
    pub fn update(&mut self, now: SystemTime) {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs().min(SECONDS_MAX);
        if seconds != self.seconds {
            *self = Self::at(seconds);
        }
    }

    /// The text, for example `Sun, 06 Nov 1994 08:49:37 GMT`.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    fn at(seconds: u64) -> Self {
        let mut text = [b' '; 29];
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        let written = write!(&mut text[..], "{}", HttpDate::from(time));
        debug_assert!(written.is_ok(), "the format has 29 bytes");
        Self { seconds, text }
    }
}

impl Default for Date {
    /// The beginning of 1970.
    fn default() -> Self {
        Self::at(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_a_date_and_never_panics() {
        let mut date = Date::default();
        assert_eq!(date.as_bytes(), b"Thu, 01 Jan 1970 00:00:00 GMT");
        date.update(UNIX_EPOCH + Duration::from_secs(784_111_777));
        assert_eq!(date.as_bytes(), b"Sun, 06 Nov 1994 08:49:37 GMT");
        date.update(UNIX_EPOCH + Duration::from_secs(SECONDS_MAX + 1));
        assert_eq!(date.as_bytes(), b"Fri, 31 Dec 9999 23:59:59 GMT");
        date.update(UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(date.as_bytes(), b"Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
