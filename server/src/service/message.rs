//! Messages on TCP: a length, and that many bytes.

use std::io;

use owned_io::{BufResult, ShutdownHandle};

/// What was written in time. What was not is thrown away, also by the kernel: it would keep it for a peer that
/// takes nothing.
pub(super) fn or_abort<T, B>(
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
pub(super) fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message is announced that is longer than message-bytes-max",
    )
}
