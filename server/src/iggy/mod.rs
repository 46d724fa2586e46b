//! The Iggy protocol, version 0.10: what its commands mean. Without I/O, but for [`storage::DurableStorage`], Kafka, and
//! [statistics](#statistics).
//!
//! | module | subject |
//! |---|---|
//! | [`catalogue`] | the streams, topics, partitions, consumer groups and stored offsets, and each change as a record |
//! | [`frame`], [`command`] | requests in the bytes that arrive, and their fields, by `iggy_binary_protocol` |
//! | [`messages`] | a batch of messages: checked, stamped in place, cut |
//! | [`storage`] | where messages and records are kept: in memory, in a directory, or in Kafka |
//! | [`broker`] | executes commands, appends [events](crate::service::events), and reads for [tails](crate::service::tail) |
//! | [`clients`], [`members`] | who is connected, and who is in which consumer group |
//! | [`session`] | one connection: its login, and its requests |
//! | [`workers`] | how all workers use the broker of one of them |
//! | [`answer`] | answers and their bytes |
//!
//! [`service::iggy`](crate::service::iggy) joins it to a connection.
//!
//! # Statistics
//!
//! The command `stats` is answered by what the server counts: streams, topics, partitions, segments, messages and their
//! bytes, clients, consumer groups; `threads_count` is the number of workers. The program [measures](crate::usage) the rest
//! at most once a second:
//!
//! | field | is |
//! |---|---|
//! | `cpu_usage` | the processor time of this process since the answer before, in percent: 200 are two processors |
//! | `memory_usage` | the resident memory of this process |
//! | `total_memory`, `available_memory` | the memory of the machine, whatever a cgroup allows |
//! | `read_bytes`, `written_bytes` | what this process has read from disks and written for them |
//! | `total_disk_space`, `free_disk_space` | of the file system with the directory of `--data`; without one 0 |
//! | `hostname`, `kernel_version` | of the machine |
//! | `total_cpu_usage`, `os_version`, `iggy_server_semver`, `cache_metrics` | 0 or empty: nobody measures them |

pub mod answer;
pub mod broker;
pub mod catalogue;
pub mod clients;
pub mod command;
pub mod frame;
mod join;
pub mod members;
pub mod messages;
mod name;
pub mod session;
mod status;
pub mod storage;
pub mod workers;

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

pub use name::{NAME_BYTES_MAX, Name};
use owned_io::{Clock, Random};
pub use status::Status;
use storage::LocalFuture;

/// The time and chance of a runtime.
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    /// The time of day, in µs since 1970.
    pub now: fn() -> u64,
    /// A random number.
    pub random: fn() -> u128,
    /// Lets other tasks and I/O run.
    pub pause: fn() -> LocalFuture<'static, ()>,
}

impl Environment {
    /// Of runtime `R`.
    pub fn of<R: Clock + Random>() -> Self {
        Self {
            now: || {
                let since = R::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
            },
            random: || {
                let mut bytes = [0; 16];
                R::fill_random(&mut bytes);
                u128::from_le_bytes(bytes)
            },
            pause: || Box::pin(R::sleep(Duration::ZERO)),
        }
    }
}

/// What clients are told of this server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    /// Where it listens for TCP.
    pub tcp: Option<SocketAddr>,
    /// Where it listens for WebSockets.
    pub websocket: Option<SocketAddr>,
    /// The number of its workers.
    pub workers: u32,
}

/// The one user that there is. Its `Debug` does not print the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

/// The longest user and the longest password, in bytes: their length fields have one byte.
pub const CREDENTIAL_BYTES_MAX: usize = 255;

impl Credentials {
    /// A user and its password. None if either is empty or longer than [`CREDENTIAL_BYTES_MAX`].
    pub fn new(user: String, password: String) -> Option<Self> {
        let fits = |text: &str| (1..=CREDENTIAL_BYTES_MAX).contains(&text.len());
        (fits(&user) && fits(&password)).then_some(Self { user, password })
    }

    /// Whether these are the right ones. The time that it takes tells nothing but their lengths.
    pub fn admit(&self, user: &str, password: &str) -> bool {
        are_equal(&self.user, user) & are_equal(&self.password, password)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

fn are_equal(one: &str, other: &str) -> bool {
    let differing = one.bytes().zip(other.bytes()).fold(0, |all, (one, other)| all | (one ^ other));
    std::hint::black_box(differing) == 0 && one.len() == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_credentials_are_admitted_and_no_password_is_printed() {
        let new = |user: &str, password: &str| Credentials::new(user.into(), password.into());
        let credentials = new("iggy", "secret").unwrap();
        assert!(credentials.admit("iggy", "secret"));
        for (user, password) in [
            ("iggy", ""),
            ("", "secret"),
            ("iggy", "secre"),
            ("iggy", "secrets"),
            ("iggz", "secret"),
            ("Iggy", "secret"),
        ] {
            assert!(!credentials.admit(user, password), "{user} {password}");
        }
        assert!(!format!("{credentials:?}").contains("secret"));
        assert_eq!((new("", "x"), new("x", ""), new("x", &"x".repeat(256))), (None, None, None));
    }
}
