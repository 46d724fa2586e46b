//! [`BufResult`]: the result of an operation that owned a buffer.

use std::{fmt, io};

/// The result of an operation together with the buffer that it owned. The buffer comes back on success, on
/// error and on a short transfer alike.
///
/// ```
/// # use owned_io::BufResult;
/// # fn done() -> BufResult<usize, Vec<u8>> { BufResult(Ok(3), vec![1, 2, 3]) }
/// // Either use both ...
/// let BufResult(result, buf) = done();
/// # let _ = (result, buf);
/// // ... or let an error drop the buffer.
/// let (n, buf) = done().into_result()?;
/// assert_eq!(n, buf.len());
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "the outcome may be an error, and dropping the buffer frees it"]
pub struct BufResult<T, B>(pub io::Result<T>, pub B);

impl<T, B> BufResult<T, B> {
    /// The value and the buffer, or the error alone. It is for `?`, when an error also ends the use of the
    /// buffer.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn into_result(self) -> io::Result<(T, B)> {
        let Self(result, buf) = self;
        result.map(|value| (value, buf))
    }

    /// Maps the buffer, for example to take it out of a view.
    pub fn map_buf<C>(self, f: impl FnOnce(B) -> C) -> BufResult<T, C> {
        let Self(result, buf) = self;
        BufResult(result, f(buf))
    }

    /// Maps the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> BufResult<U, B> {
        let Self(result, buf) = self;
        BufResult(result.map(f), buf)
    }
}

impl<T: fmt::Debug, B> fmt::Debug for BufResult<T, B> {
    /// Prints the result, not the buffer: its bytes may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufResult").field(&self.0).finish_non_exhaustive()
    }
}
