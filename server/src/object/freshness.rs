//! [`CacheControl`] and [`Lifetime`]: how long an object may be used (RFC 9111 section 4.2, RFC 5861 section 3).

use std::time::Duration;

/// The longest time that an origin can ask for: a year, as RFC 9111 section 1.2.2 allows a recipient to assume.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What the `Cache-Control` headers of an answer say. Unknown directives are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// `no-store`, `private` or `no-cache`: nobody else may get it, or not without asking the origin again.
    is_forbidden: bool,
    /// `must-revalidate` or `proxy-revalidate`: it may not be used once it is not fresh.
    must_be_fresh: bool,
    max_age: Option<u64>,
    /// `s-maxage`, which is for caches that serve several users.
    shared_max_age: Option<u64>,
    stale_while_revalidate: Option<u64>,
}

/// How long an object may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// How long it is fresh.
    pub fresh: Duration,
    /// How long it is used after that, while a new one is fetched.
    pub stale: Duration,
}

impl CacheControl {
    /// Adds the value of a header. There may be several, which are one list.
    pub fn add(&mut self, value: &[u8]) {
        for directive in value.split(|byte| *byte == b',') {
            let directive = directive.trim_ascii();
            let at = directive.iter().position(|byte| *byte == b'=').unwrap_or(directive.len());
            let (name, argument) = directive.split_at(at);
            let is = |other: &str| name.trim_ascii().eq_ignore_ascii_case(other.as_bytes());
            let seconds = || seconds(argument.strip_prefix(b"=").unwrap_or_default());
            if is("no-store") || is("private") || is("no-cache") {
                self.is_forbidden = true;
            } else if is("must-revalidate") || is("proxy-revalidate") {
                self.must_be_fresh = true;
            } else if is("max-age") {
                self.max_age = least(self.max_age, seconds());
            } else if is("s-maxage") {
                self.shared_max_age = least(self.shared_max_age, seconds());
            } else if is("stale-while-revalidate") {
                self.stale_while_revalidate = least(self.stale_while_revalidate, seconds());
            }
        }
    }

    /// Nobody else may get the answer, whatever its headers say.
    pub const fn forbid(&mut self) {
        self.is_forbidden = true;
    }

    /// How long what is missing counts as missing: `time_max` at most.
    pub fn missing_time(&self, time_max: Duration) -> Duration {
        match self.shared_max_age.or(self.max_age) {
            _ if self.is_forbidden => Duration::ZERO,
            Some(seconds) => Duration::from_secs(seconds).min(time_max),
            None => time_max,
        }
    }
}

impl Lifetime {
    /// How long an object may be used whose answer has these headers, and was `age` seconds old when it arrived.
    /// `default` is for what the origin does not say. `None`: it may not be kept.
    pub fn of(control: &CacheControl, age: u64, default: Self) -> Option<Self> {
        if control.is_forbidden {
            return None;
        }
        let age = Duration::from_secs(age);
        let said = control.shared_max_age.or(control.max_age).map(Duration::from_secs);
        let fresh = said.unwrap_or(default.fresh).min(TIME_MAX).saturating_sub(age);
        let stale = match control.stale_while_revalidate {
            // `s-maxage` forbids it too (RFC 9111 section 5.2.2.10).
            _ if control.must_be_fresh || control.shared_max_age.is_some() => Duration::ZERO,
            Some(seconds) => Duration::from_secs(seconds).min(TIME_MAX),
            None => default.stale,
        };
        let lifetime = Self { fresh, stale };
        (lifetime.fresh + lifetime.stale > Duration::ZERO).then_some(lifetime)
    }
}

/// The number of seconds of a directive, which may be in quotes. What is no number is 0: such an answer counts as stale
/// (RFC 9111 section 4.2.1). One beyond 64 bits is the largest.
fn seconds(argument: &[u8]) -> u64 {
    let argument = argument.trim_ascii();
    let unquoted = argument.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let digits = unquoted.unwrap_or(argument);
    let add = |sum: u64, byte: &u8| {
        byte.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
    };
    digits.iter().try_fold(0, add).unwrap_or(0)
}

/// Of a directive that is given twice, the least counts.
fn least(one: Option<u64>, other: u64) -> Option<u64> {
    Some(one.map_or(other, |one| one.min(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Lifetime =
        Lifetime { fresh: Duration::from_secs(60), stale: Duration::from_secs(30) };

    fn control(values: &[&str]) -> CacheControl {
        let mut control = CacheControl::default();
        values.iter().for_each(|value| control.add(value.as_bytes()));
        control
    }

    #[test]
    fn a_lifetime_is_what_the_origin_says_or_the_default() {
        for (values, age, expected) in [
            (&[][..], 0, Some((60, 30))),
            (&[], 20, Some((40, 30))),
            (&[], 100, Some((0, 30))),
            (&["max-age=5"], 0, Some((5, 30))),
            (&["Max-Age = \"5\""], 0, Some((5, 30))),
            (&["public, max-age=5, stale-while-revalidate=7"], 1, Some((4, 7))),
            (&["max-age=5", "max-age=3"], 0, Some((3, 30))),
            (&["max-age=5, s-maxage=9"], 0, Some((9, 0))),
            (&["max-age=5, must-revalidate"], 0, Some((5, 0))),
            (&["max-age=5, proxy-revalidate, stale-while-revalidate=7"], 0, Some((5, 0))),
            (&["max-age=99999999999999999999999"], 0, Some((31_536_000, 30))),
            (&["max-age=x"], 0, Some((0, 30))),
            (&["max-age=-1, stale-while-revalidate=0"], 0, None),
            (&["max-age"], 0, Some((0, 30))),
            (&["max-age=0, must-revalidate"], 0, None),
            (&["no-store"], 0, None),
            (&["max-age=5,NO-CACHE"], 0, None),
            (&["private=\"x\""], 0, None),
            (&["immutable, x-private, =, ,"], 0, Some((60, 30))),
        ] {
            let seconds = |it: Lifetime| (it.fresh.as_secs(), it.stale.as_secs());
            let lifetime = Lifetime::of(&control(values), age, DEFAULT).map(seconds);
            assert_eq!(lifetime, expected, "{values:?}, {age} s old");
        }
    }

    #[test]
    fn what_is_missing_is_believed_no_longer_than_the_origin_says() {
        let time = |value| control(&[value]).missing_time(Duration::from_secs(5)).as_secs();
        assert_eq!(
            [time(""), time("max-age=3"), time("max-age=9"), time("no-store")],
            [5, 3, 5, 0]
        );
    }
}
