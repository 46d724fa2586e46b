//! Shared code of sink and source, whose messages on TCP are a length and that many bytes.

use std::io;

use owned_io::{BufResult, ShutdownHandle};

/// How many bytes of answers a connection may keep without reserving them in its account.
pub(super) const UNRESERVED_BYTES: usize = 4 * 1024;

/// Resets the connection if `written` has timed out. Otherwise the kernel would keep the written bytes for a peer that
/// does not read.
pub(super) fn reset_on_timeout<T, B>(
    written: BufResult<T, B>,
    connection: &ShutdownHandle,
) -> io::Result<(T, B)> {
    written.into_result().inspect_err(|error| {
        if error.kind() == io::ErrorKind::TimedOut {
            connection.abort();
        }
    })
}

/// The error for a message that is larger than the limit.
pub(super) fn message_too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the announced message is longer than message-bytes-max",
    )
}
