//! [`BufResult`]: what an operation that owned a buffer returns.

use std::io;

/// The outcome of an operation and, always, the buffer it owned: on success, on error and on a
/// short transfer alike.
///
/// ```
/// # use owned_io::BufResult;
/// # fn done() -> BufResult<usize, Vec<u8>> { BufResult(Ok(3), vec![1, 2, 3]) }
/// // Either look at both ...
/// let BufResult(result, buf) = done();
/// # let _ = (result, buf);
/// // ... or let an error drop the buffer.
/// let (n, buf) = done().into_result()?;
/// assert_eq!(n, buf.len());
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "the outcome may be an error, and dropping the buffer frees it"]
#[derive(Debug)]
pub struct BufResult<T, B>(pub io::Result<T>, pub B);

impl<T, B> BufResult<T, B> {
    /// Value and buffer, or the error alone: for `?`, where an error ends the buffer's use too.
    ///
    /// # Errors
    /// The operation's.
    pub fn into_result(self) -> io::Result<(T, B)> {
        let Self(result, buf) = self;
        result.map(|value| (value, buf))
    }

    /// Changes the buffer: takes it out of a view, say.
    pub fn map_buf<C>(self, f: impl FnOnce(B) -> C) -> BufResult<T, C> {
        let Self(result, buf) = self;
        BufResult(result, f(buf))
    }

    /// Changes the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> BufResult<U, B> {
        let Self(result, buf) = self;
        BufResult(result.map(f), buf)
    }
}
