//! [`shutdown_after`]: a time limit that ends an operation by a shutdown of its connection.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::{BufResult, Clock, ShutdownHandle, select};

/// Runs `operation`. After `limit` it shuts down `connection` in both directions, and waits for the operation
/// to end.
///
/// The operation is never dropped, so its buffer always comes back. It may take longer than `limit` to end. The
/// connection is unusable after the shutdown. An operation that waits for something else does not end by it: a
/// [`copy`](crate::copy) to another connection also needs a limit for that connection.
///
/// # Errors
/// Those of the operation. [`TimedOut`](io::ErrorKind::TimedOut) if the limit came first, whatever the result of
/// the operation is: a time limit never looks like a clean end of the stream.
///
/// # Cancellation
/// As for the operation.
///
/// ```
/// # use owned_io_sim::Sim;
/// # owned_io_sim::block_on(async {
/// use std::{io, time::Duration};
/// use owned_io::{BufResult, ByteStream, OwnedRead, shutdown_after};
///
/// let (_silent, mut stream) = owned_io_sim::pipe();
/// let connection = stream.shutdown_handle();
/// let read = stream.read(Vec::with_capacity(512));
/// let BufResult(result, buf) = shutdown_after::<Sim, _>(Duration::from_secs(5), &connection, read).await;
/// assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
/// assert_eq!(buf.capacity(), 512);
/// # });
/// ```
pub async fn shutdown_after<C: Clock, T: WithError>(
    limit: Duration,
    connection: &ShutdownHandle,
    operation: impl Future<Output = T>,
) -> T {
    let mut operation = pin!(operation);
    // Most operations do not wait, and then need no timer.
    if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(operation.as_mut().poll(cx))).await {
        return output;
    }
    let selected = select(operation.as_mut(), C::sleep(limit)).await;
    if let Some(output) = selected.first {
        return output;
    }
    connection.shutdown(Shutdown::Both);
    operation.await.with_error(io::ErrorKind::TimedOut.into())
}

/// The results that [`shutdown_after`] can replace by an error: [`BufResult`], and every [`Result`] whose error
/// implements `From<io::Error>`.
///
/// # Implementing it
///
/// ```
/// use std::io;
/// use owned_io::WithError;
///
/// /// The number of bytes before the end, and the result of the end.
/// struct Transfer { bytes: u64, end: io::Result<()> }
///
/// impl WithError for Transfer {
///     fn with_error(self, error: io::Error) -> Self {
///         Self { end: Err(error), ..self }
///     }
/// }
/// # let late = Transfer { bytes: 7, end: Ok(()) }.with_error(io::ErrorKind::TimedOut.into());
/// # assert!(late.bytes == 7 && late.end.is_err());
/// ```
pub trait WithError {
    /// Replaces the result by `error`. A buffer is kept.
    #[must_use]
    fn with_error(self, error: io::Error) -> Self;
}

impl<T, E: From<io::Error>> WithError for Result<T, E> {
    fn with_error(self, error: io::Error) -> Self {
        Err(error.into())
    }
}

impl<T, B> WithError for BufResult<T, B> {
    fn with_error(self, error: io::Error) -> Self {
        Self(Err(error), self.1)
    }
}
