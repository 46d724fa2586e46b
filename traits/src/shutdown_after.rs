//! [`shutdown_after`]: a deadline that ends an operation by shutting its connection down.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::{BufResult, Clock, ShutdownHandle, select};

/// Gives `operation` at most `limit`; then shuts `connection` down, both ways, and waits for the
/// operation to end.
///
/// The operation is never dropped, so its buffer comes back in every case. The connection is of no
/// more use after a timeout. What waits for anything else than this connection does not end by it: a
/// [`copy`](crate::copy) to another one needs that one's deadline too.
///
/// # Errors
/// Those of the operation; [`TimedOut`](io::ErrorKind::TimedOut) when the limit came first, however
/// the operation ended then: a deadline never reads as a clean end of the stream.
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
    // Most need not wait, and need no timer then.
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

/// The outcomes that [`shutdown_after`] can turn into an error: [`BufResult`], and any [`Result`] whose error
/// an [`io::Error`] can be turned into.
///
/// # Implementing it
///
/// ```
/// use std::io;
/// use owned_io::WithError;
///
/// /// How many bytes came before the end, and how it ended.
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
    /// The same with `error` in place of what it was; a buffer stays.
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
