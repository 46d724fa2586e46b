//! [`Link`]: reads that leave time for everything else.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use owned_io::{BufResult, IoBufMut, OwnedRead, Pool, PoolBuf};

use super::Error;
use super::shared::{Shared, Sleep};
use super::writer::Half;
use crate::State;

/// The read half of a connection, and what has to be done while it waits.
pub(super) struct Link<H> {
    half: H,
    pool: Pool,
    pub(super) shared: Rc<Shared>,
    alarm: Alarm,
    phase: Phase,
    /// Whether a read is under way; or was, if nobody waits for it.
    is_reading: bool,
}

/// The timer that runs for a connection: late, rather than set anew with every message.
#[derive(Default)]
struct Alarm {
    set: Option<(Instant, Sleep)>,
    /// Whether that is all there is to it, as far as is known.
    is_set: bool,
    /// Whether the last one has rung, which ended the connection.
    is_over: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    Open,
    /// Nothing is read any more, for this reason: none after a closing handshake.
    Over(Option<crate::Error>),
}

impl<H: OwnedRead> Link<H> {
    pub(super) fn new(half: H, pool: Pool, shared: Rc<Shared>) -> Self {
        Self { half, pool, shared, alarm: Alarm::default(), phase: Phase::Open, is_reading: false }
    }

    /// None while there may be something to read; otherwise what the last call of `receive` said.
    pub(super) fn over(&self) -> Option<Result<(), Error>> {
        match self.phase {
            _ if self.is_reading => Some(Err(Error::Interrupted)),
            Phase::Open => None,
            Phase::Over(failure) => Some(failure.map_or(Ok(()), |failure| Err(failure.into()))),
        }
    }

    /// See [`OwnedRead::read_pooled`].
    pub(super) async fn read_pooled(&mut self) -> io::Result<PoolBuf> {
        self.is_reading = true;
        let reading = self.half.read_pooled(&self.pool);
        let result = beside_duties(&self.shared, &mut self.alarm, reading).await;
        self.is_reading = false;
        result
    }

    /// See [`OwnedRead::read`].
    pub(super) async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.is_reading = true;
        let reading = self.half.read(buf);
        let result = beside_duties(&self.shared, &mut self.alarm, reading).await;
        self.is_reading = false;
        result
    }

    /// To be called after each read: it may have failed, or the peer ended it.
    pub(super) fn handle_read(&mut self, read: io::Result<usize>) -> Result<(), Error> {
        let Shared { control, clock, .. } = &*self.shared;
        match read {
            _ if control.failure().is_some() => {} // meanwhile, as who decodes next is told
            Ok(0) => {
                let ended = control.handle_end();
                self.phase = Phase::Over(ended.err());
                ended?;
            }
            Ok(_) => {
                self.alarm.is_set &= !control.awaits_pong();
                control.handle_received((clock.now)());
            }
            // Nothing has happened yet: there was no buffer to read into.
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => return Err(error.into()),
            Err(error) => {
                self.phase = Phase::Over(control.handle_end().err());
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The connection has failed, in the engine too: the peer is told.
    pub(super) async fn fail(&mut self, failure: crate::Error) -> Error {
        self.phase = Phase::Over(Some(failure));
        match failure.close_code() {
            Some(_) => self.linger().await,
            None => self.shared.abort(),
        }
        failure.into()
    }

    /// The peer has closed, and its close frame is answered or about to be.
    pub(super) async fn close(&mut self) {
        self.phase = Phase::Over(None);
        self.linger().await;
    }

    /// Writes what is left, the close frame last, and waits for the peer to end the stream, or for
    /// the time to be up. If the connection were closed before, with bytes that nobody has read, the
    /// peer might never see what it was sent last.
    async fn linger(&mut self) {
        while self.read_pooled().await.is_ok_and(|buf| !buf.is_empty()) {}
        let Self { shared, alarm, .. } = self;
        let flush = poll_fn(|cx| shared.poll_flush(Half::Incoming, cx));
        let _ = beside_duties(shared, alarm, flush).await;
        self.shared.abort();
    }
}

/// Waits for `operation`; meanwhile sends answers that are due, and does what it is time for.
async fn beside_duties<F: Future>(shared: &Shared, alarm: &mut Alarm, operation: F) -> F::Output {
    let mut operation = pin!(operation);
    poll_fn(|cx| {
        loop {
            shared.poll_replies(Half::Incoming, cx);
            if let Poll::Ready(output) = operation.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            shared.writer.borrow_mut().register(Half::Incoming, cx);
            ready!(alarm.poll(shared));
        }
    })
    .await
}

impl Alarm {
    /// Waits until something is due, and does it: the engine may have a ping to send then, or a close
    /// frame. The half that receives has to be registered with the writer.
    #[inline]
    fn poll(&mut self, shared: &Shared) -> Poll<()> {
        // While a connection is open, what is due only moves away, or both halves are woken, or
        // `is_set` says otherwise.
        let is_new = shared.writer.borrow().was_woken() || shared.control.state() != State::Open;
        if self.is_set && !is_new {
            return Poll::Pending;
        }
        self.poll_anew(shared)
    }

    fn poll_anew(&mut self, shared: &Shared) -> Poll<()> {
        let Shared { control, clock, .. } = shared;
        self.is_set = true;
        while !self.is_over {
            let Some(due) = control.poll_timeout() else { break };
            match &mut self.set {
                Some((at, sleep)) if *at <= due => {
                    let writer = shared.writer.borrow();
                    ready!(sleep.as_mut().poll(&mut Context::from_waker(writer.waker())));
                    drop(writer);
                    (self.set, self.is_set) = (None, false);
                    shared.alarm_at.set(None);
                    let now = (clock.now)();
                    if now < due {
                        continue;
                    }
                    if let Err(failure) = control.handle_timeout(now)
                        && failure.close_code().is_none()
                    {
                        self.is_over = true;
                        shared.abort();
                    }
                    return Poll::Ready(());
                }
                _ => {
                    let left = due.saturating_duration_since((clock.now)());
                    self.set = Some((due, (clock.sleep)(left)));
                    shared.alarm_at.set(Some(due));
                }
            }
        }
        Poll::Pending
    }
}
