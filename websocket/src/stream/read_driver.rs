//! [`ReadDriver`]: reads that leave time for everything else.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use owned_io::backend::Half;
use owned_io::{BufResult, IoBufMut, OwnedRead, Pool, PoolBuf, coop};

use super::Error;
use super::shared::Shared;
use crate::engine::State;

/// The read half of a connection, and what has to be done while it waits.
pub(super) struct ReadDriver<H> {
    half: H,
    pool: Pool,
    pub(super) shared: Rc<Shared>,
    phase: Phase,
    /// Whether a read is under way; or was, if nobody waits for it.
    is_reading: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    Open,
    /// Nothing is read any more, for this reason: none after a closing handshake.
    Ended(Option<crate::ProtocolError>),
}

impl<H: OwnedRead> ReadDriver<H> {
    pub(super) fn new(half: H, pool: Pool, shared: Rc<Shared>) -> Self {
        Self { half, pool, shared, phase: Phase::Open, is_reading: false }
    }

    /// None while there may be something to read; otherwise what the last call of `receive` said.
    pub(super) fn ended(&self) -> Option<Result<(), Error>> {
        match self.phase {
            _ if self.is_reading => Some(Err(Error::Interrupted)),
            Phase::Open => None,
            Phase::Ended(failure) => Some(failure.map_or(Ok(()), |failure| Err(failure.into()))),
        }
    }

    /// Whether there is nothing more to read, for a reason of [`ended`](Self::ended).
    #[inline]
    pub(super) const fn is_ended(&self) -> bool {
        self.is_reading || matches!(self.phase, Phase::Ended(_))
    }

    /// See [`OwnedRead::read_pooled`].
    pub(super) async fn read_pooled(&mut self) -> io::Result<PoolBuf> {
        self.is_reading = true;
        let mut reading = pin!(self.half.read_pooled(&self.pool));
        let result = poll_fn(|cx| poll_with_upkeep(&self.shared, reading.as_mut(), cx)).await;
        self.is_reading = false;
        result
    }

    /// See [`OwnedRead::read`].
    pub(super) async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.is_reading = true;
        let mut reading = pin!(self.half.read(buf));
        let result = poll_fn(|cx| poll_with_upkeep(&self.shared, reading.as_mut(), cx)).await;
        self.is_reading = false;
        result
    }

    /// Lets others have their turn: the task's budget of work is used up.
    pub(super) async fn yield_now(&self) {
        let mut pause = pin!((self.shared.clock.sleep)(Duration::ZERO));
        poll_fn(|cx| poll_with_upkeep(&self.shared, pause.as_mut(), cx)).await;
        coop::refill();
    }

    /// Waits until memory may have been given back.
    pub(super) async fn wait_for_memory(&self) {
        let mut waiting = pin!(self.shared.wait_for_memory());
        poll_fn(|cx| poll_with_upkeep(&self.shared, waiting.as_mut(), cx)).await;
        self.shared.control.handle_read_pause((self.shared.clock.now)());
    }

    /// To be called before more is read of a message: that may be due earlier than all else, but not by
    /// the time in which nobody read.
    #[inline]
    pub(super) fn watch_message(&self) {
        let Shared { control, clock, timer, .. } = &*self.shared;
        if control.message_deadline().is_some() {
            control.handle_read_start((clock.now)());
            let due = control.message_deadline();
            due.map(|due| timer.borrow_mut().recheck_by(due));
        }
    }

    /// To be called after each read: it may have failed, or the peer ended it.
    pub(super) fn handle_read(&mut self, read: io::Result<usize>) -> Result<(), Error> {
        let Shared { control, clock, timer, .. } = &*self.shared;
        match read {
            _ if control.failure().is_some() => {} // meanwhile, as who decodes next is told
            Ok(0) => {
                let ended = control.handle_end();
                self.phase = Phase::Ended(ended.err());
                ended?;
            }
            Ok(_) => {
                if control.awaits_pong() {
                    timer.borrow_mut().recheck();
                }
                let now = (clock.now)();
                control.handle_received(now);
                if control.state() != State::Open {
                    // The peer may send without end; and as long as reads do not wait, no alarm is looked at.
                    let _ = control.handle_timeout(now);
                }
            }
            // Nothing has happened yet: there was no buffer to read into.
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => return Err(error.into()),
            Err(error) => {
                self.phase = Phase::Ended(control.handle_end().err());
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The connection has failed, in the engine too: the peer is told.
    pub(super) async fn fail(&mut self, failure: crate::ProtocolError) -> Error {
        self.phase = Phase::Ended(Some(failure));
        match failure.close_code() {
            Some(_) => self.linger().await,
            None => self.shared.abort(),
        }
        failure.into()
    }

    /// The peer has closed, and its close frame is answered or about to be.
    pub(super) async fn close(&mut self) {
        self.phase = Phase::Ended(None);
        self.linger().await;
    }

    /// Writes what is left, the close frame last, and waits for the peer to end the stream, or for
    /// the time to be up. If the connection were closed before, with bytes that nobody has read, the
    /// peer might never see what it was sent last.
    async fn linger(&mut self) {
        let shared = Rc::clone(&self.shared);
        let is_late = || shared.control.handle_timeout((shared.clock.now)()).is_err();
        while !is_late() && self.discard().await.is_ok_and(|bytes| bytes > 0) {}
        let mut flush = pin!(poll_fn(|cx| self.shared.poll_flush(Half::Read, cx)));
        let _ = poll_fn(|cx| poll_with_upkeep(&self.shared, flush.as_mut(), cx)).await;
        self.shared.abort();
    }

    /// Reads what nobody wants; says how many bytes. All buffers of the pool may be in use, which is no
    /// reason to close with bytes unread.
    async fn discard(&mut self) -> io::Result<usize> {
        const DISCARDED_BYTES_MAX: usize = 4 * 1024; // a read; for some milliseconds, as a rule
        match self.read_pooled().await {
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                self.read(Vec::with_capacity(DISCARDED_BYTES_MAX)).await.0
            }
            read => read.map(|buf| buf.len()),
        }
    }
}

/// Waits for `operation`; meanwhile sends answers that are due, and does what it is time for.
///
/// Inlined, as are those who call it: each future around another takes its part in every poll.
#[inline(always)]
fn poll_with_upkeep<F: Future>(
    shared: &Shared,
    mut operation: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    loop {
        shared.poll_replies(Half::Read, cx);
        if let Poll::Ready(output) = operation.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        shared.writer.borrow_mut().register(Half::Read, cx);
        ready!(shared.timer.borrow_mut().poll(shared));
    }
}
