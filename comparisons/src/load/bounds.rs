//! Bounded numbers. The type refuses a value out of bounds, on the command line and in a plan alike.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest time that can be asked for, in seconds: a week.
const SECONDS_MAX: f64 = 604_800.0;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Bounded<const MIN: u64, const MAX: u64>(u64);

/// How many connections one run may ask for.
pub type Connections = Bounded<1, 1_000_000>;

/// The length of a message in bytes, at most a gigabyte: it is held in memory.
pub type Payload = Bounded<1, 0x4000_0000>;

/// Messages in flight on one connection.
pub type InFlight = Bounded<1, 1_048_576>;

/// Messages a second.
pub type MessageRate = Bounded<1, 1_000_000_000>;

/// Connections a second.
pub type ConnectionRate = Bounded<1, 1_000_000>;

impl<const MIN: u64, const MAX: u64> Bounded<MIN, MAX> {
    /// `N`. The compiler checks that it is within the bounds.
    pub(crate) const fn of<const N: u64>() -> Self {
        const { assert!(MIN <= N && N <= MAX) };
        Self(N)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// As a count of things in memory.
    pub(crate) const fn count(self) -> usize {
        self.0 as usize
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<u64> for Bounded<MIN, MAX> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        if (MIN..=MAX).contains(&number) {
            Ok(Self(number))
        } else {
            Err(format!("expected a whole number from {MIN} to {MAX}"))
        }
    }
}

impl<const MIN: u64, const MAX: u64> From<Bounded<MIN, MAX>> for u64 {
    fn from(Bounded(number): Bounded<MIN, MAX>) -> Self {
        number
    }
}

impl<const MIN: u64, const MAX: u64> FromStr for Bounded<MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("expected a whole number from {MIN} to {MAX}"))
            .and_then(|number: u64| number.try_into())
    }
}

impl<const MIN: u64, const MAX: u64> Display for Bounded<MIN, MAX> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A length of time, from none to a week; written as a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Seconds(Duration);

/// The same, but not none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct NonZeroSeconds(Duration);

impl Seconds {
    pub(crate) const fn of(seconds: u8) -> Self {
        Self(Duration::from_secs(seconds as u64))
    }

    pub(crate) const fn get(self) -> Duration {
        self.0
    }
}

impl NonZeroSeconds {
    /// At least one.
    pub(crate) const fn of<const N: u64>() -> Self {
        const { assert!(N > 0) };
        Self(Duration::from_secs(N))
    }

    pub(crate) const fn get(self) -> Duration {
        self.0
    }
}

impl TryFrom<f64> for Seconds {
    type Error = String;

    fn try_from(seconds: f64) -> Result<Self, String> {
        if (0.0..=SECONDS_MAX).contains(&seconds) {
            Ok(Self(Duration::from_secs_f64(seconds)))
        } else {
            Err("expected seconds from 0 to 604800, such as 2 or 0.5".to_owned())
        }
    }
}

impl TryFrom<f64> for NonZeroSeconds {
    type Error = String;

    fn try_from(seconds: f64) -> Result<Self, String> {
        match Seconds::try_from(seconds)? {
            Seconds(Duration::ZERO) => Err("expected seconds, more than 0".to_owned()),
            Seconds(time) => Ok(Self(time)),
        }
    }
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().unwrap_or(f64::NAN).try_into()
    }
}

impl FromStr for NonZeroSeconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().unwrap_or(f64::NAN).try_into()
    }
}

impl From<Seconds> for f64 {
    fn from(Seconds(time): Seconds) -> Self {
        time.as_secs_f64()
    }
}

impl From<NonZeroSeconds> for f64 {
    fn from(NonZeroSeconds(time): NonZeroSeconds) -> Self {
        time.as_secs_f64()
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.as_secs_f64().fmt(f)
    }
}

impl Display for NonZeroSeconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.as_secs_f64().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_finite_and_not_negative() {
        let half = Duration::from_millis(500);
        assert_eq!("0.5".parse().map(NonZeroSeconds::get), Ok(half));
        for text in ["0", "-1", "NaN", "inf", "1e9", "", "1s"] {
            assert!(text.parse::<NonZeroSeconds>().is_err(), "{text}");
        }
        assert_eq!("0".parse().map(Seconds::get), Ok(Duration::ZERO));
    }

    #[test]
    fn a_bound_holds_on_the_command_line_and_in_a_plan() {
        for (text, is_within) in [("1", true), ("5", true), ("0", false), ("6", false)] {
            let parsed: Result<Bounded<1, 5>, _> = text.parse();
            assert_eq!(parsed.is_ok(), is_within, "{text}");
            let read: Result<Bounded<1, 5>, _> = serde_json::from_str(text);
            assert_eq!(read.is_ok(), is_within, "{text}");
        }
        assert!("-1".parse::<Bounded<0, 5>>().is_err());
        assert_eq!(Bounded::<1, 5>::of::<3>().get(), 3);
    }
}
