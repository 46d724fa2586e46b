//! [`channel`]: passes values between workers, between tasks of one worker, and to and from other threads.

use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;

use crate::{Clock, coop};

/// Creates a bounded channel with room for `capacity` values. Values arrive in the order in which they were sent.
///
/// Workers share no state, so a value that another worker needs is sent there. The ends belong to no runtime: they may
/// be moved to any thread, and used there by tasks of any runtime, or by the thread itself if it has none
/// ([`send_blocking`](Sender::send_blocking), [`receive_blocking`](Receiver::receive_blocking)).
///
/// The channel allocates memory for `capacity` values at once, and none for a value.
///
/// ```
/// # use owned_io_sim::Sim;
/// # owned_io_sim::block_on(async {
/// use owned_io::{Executor, channel};
///
/// let (sender, mut receiver) = channel(16.try_into().unwrap());
/// drop(Sim::spawn(async move {
///     for n in 1..=100 {
///         sender.send::<Sim>(n).await.unwrap(); // waits while 16 values are in the channel
///     }
/// }));
/// let mut sum = 0;
/// while let Some(n) = receiver.receive::<Sim>().await {
///     sum += n;
/// }
/// assert_eq!(sum, 5050);
/// # });
/// ```
pub fn channel<T>(capacity: NonZeroUsize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = async_channel::bounded(capacity.get());
    (Sender(sender), Receiver(receiver))
}

/// The end of a [`channel`] that values are put into. There may be several: clone it.
pub struct Sender<T>(async_channel::Sender<T>);

/// The end of a [`channel`] that values are taken from. Dropping it drops the values that are in the channel.
pub struct Receiver<T>(async_channel::Receiver<T>);

impl<T> Sender<T> {
    /// Puts `value` into the channel, and waits while it is full.
    ///
    /// Consumes the [budget](coop) of the poll: a task that finds room each time lets others run.
    ///
    /// # Errors
    /// The receiver was dropped, before or during the wait. The value comes back.
    ///
    /// # Cancellation
    /// Safe for the channel. The value was not sent, and is dropped.
    pub async fn send<C: Clock>(&self, value: T) -> Result<(), SendError<T>> {
        coop::yield_if_exhausted::<C>().await;
        coop::consume(coop::cost::channel());
        self.0.send(value).await.map_err(|refused| SendError { value: refused.0, is_full: false })
    }

    /// [`send`](Self::send) for a thread that has no runtime: it blocks the thread while the channel is full.
    ///
    /// # Errors
    /// The receiver was dropped, before or during the wait. The value comes back.
    pub fn send_blocking(&self, value: T) -> Result<(), SendError<T>> {
        let sent = self.0.send_blocking(value);
        sent.map_err(|refused| SendError { value: refused.0, is_full: false })
    }

    /// Puts `value` into the channel if there is room.
    ///
    /// # Errors
    /// The channel is [full](SendError::is_full), or the receiver was dropped. The value comes back.
    pub fn try_send(&self, value: T) -> Result<(), SendError<T>> {
        coop::consume(coop::cost::channel());
        self.0.try_send(value).map_err(|refused| SendError {
            is_full: refused.is_full(),
            value: refused.into_inner(),
        })
    }

    /// Waits until the receiver is dropped: until nobody wants what would be sent.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// The values in the channel. Other threads may change the number at any time.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no value is in the channel.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest value, and waits while there is none. `None`: all senders were dropped, and all values were
    /// taken.
    ///
    /// Consumes the [budget](coop) of the poll: a task that finds a value each time lets others run.
    ///
    /// # Cancellation
    /// Safe. No value is lost.
    pub async fn receive<C: Clock>(&mut self) -> Option<T> {
        coop::yield_if_exhausted::<C>().await;
        coop::consume(coop::cost::channel());
        self.0.recv().await.ok()
    }

    /// [`receive`](Self::receive) for a thread that has no runtime: it blocks the thread while there is no value.
    ///
    /// ```
    /// use owned_io::channel;
    ///
    /// let (sender, mut receiver) = channel(1.try_into()?);
    /// let sending = std::thread::spawn(move || {
    ///     (1..=100).all(|n| sender.send_blocking(n).is_ok()) // blocks until the value before was taken
    /// });
    /// let mut sum = 0;
    /// while let Some(n) = receiver.receive_blocking() {
    ///     sum += n;
    /// }
    /// assert!(sending.join().unwrap());
    /// assert_eq!(sum, 5050);
    /// # Ok::<(), std::num::TryFromIntError>(())
    /// ```
    pub fn receive_blocking(&mut self) -> Option<T> {
        self.0.recv_blocking().ok()
    }

    /// Takes the oldest value, if there is one.
    pub fn try_receive(&mut self) -> Option<T> {
        coop::consume(coop::cost::channel());
        self.0.try_recv().ok()
    }

    /// The values in the channel. Other threads may change the number at any time.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no value is in the channel.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.close();
        // Otherwise they would live as long as a sender does. Nothing is put into a closed channel.
        while self.0.try_recv().is_ok() {}
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A value that was not sent.
pub struct SendError<T> {
    value: T,
    is_full: bool,
}

impl<T> SendError<T> {
    /// Whether the channel was full. Otherwise its receiver was dropped.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }

    /// The value.
    pub fn into_value(self) -> T {
        self.value
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("is_full", &self.is_full).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_full {
            true => "the channel is full",
            false => "the receiver of the channel was dropped",
        })
    }
}

impl<T> Error for SendError<T> {}
