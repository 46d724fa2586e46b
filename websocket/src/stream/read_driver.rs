//! [`ReadDriver`]: reads, and the upkeep of a connection while a read waits.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use owned_io::backend::Direction;
use owned_io::{BufResult, OwnedRead, Pool, PoolBuf, coop};

use super::Error;
use super::shared::Shared;
use crate::engine::State;

/// Awaits a read of the half of a driver, and does the upkeep meanwhile. This is a macro because a function would keep the
/// buffer that is passed to it, next to the future that has it, in each idle connection.
macro_rules! read_with_upkeep {
    ($driver:expr, $method:ident($($argument:expr),*)) => {{
        $driver.is_reading = true;
        let mut reading = std::pin::pin!(
            $driver.half.as_mut().expect("reads end before it is dropped").$method($($argument),*)
        );
        let shared = &*$driver.shared;
        let result =
            std::future::poll_fn(|cx| poll_with_upkeep(shared, reading.as_mut(), cx)).await;
        $driver.is_reading = false;
        result
    }};
}
pub(super) use read_with_upkeep;

/// The read half of a connection. While a read waits, the driver sends control frames and watches
/// the timers.
pub(super) struct ReadDriver<H> {
    /// None once the connection was dropped, after the closing handshake.
    pub(super) half: Option<H>,
    pool: Pool,
    pub(super) shared: Rc<Shared>,
    phase: Phase,
    /// Whether a read is in progress. If it is set when a call begins, a read was dropped before it
    /// ended.
    pub(super) is_reading: bool,
}

/// Whether reads may bring more.
#[derive(Clone, Copy)]
enum Phase {
    Open,
    /// A closing handshake has ended them.
    Closed,
    /// The [failure](crate::engine::Control::failure) of the connection has ended them.
    Failed,
}

impl<H: OwnedRead> ReadDriver<H> {
    pub(super) fn new(half: H, pool: Pool, shared: Rc<Shared>) -> Self {
        Self { half: Some(half), pool, shared, phase: Phase::Open, is_reading: false }
    }

    /// Returns `None` while reads may bring more, and otherwise the result of the last `receive`.
    pub(super) fn ended(&self) -> Option<Result<(), Error>> {
        match self.phase {
            _ if self.is_reading => Some(Err(Error::Interrupted)),
            Phase::Open => None,
            Phase::Closed => Some(Ok(())),
            Phase::Failed => {
                Some(self.shared.control.failure().map_or(Ok(()), |failure| Err(failure.into())))
            }
        }
    }

    /// Whether reads have ended; [`ended`](Self::ended) says why.
    #[inline]
    pub(super) const fn is_ended(&self) -> bool {
        self.is_reading || !matches!(self.phase, Phase::Open)
    }

    /// See [`OwnedRead::read_pooled`].
    pub(super) async fn read_pooled(&mut self) -> io::Result<PoolBuf> {
        read_with_upkeep!(self, read_pooled(&self.pool))
    }

    /// Yields to other tasks and then refills the task's work budget, which is used up.
    pub(super) async fn yield_now(&self) {
        let mut pause = pin!((self.shared.clock.sleep)(Duration::ZERO));
        poll_fn(|cx| poll_with_upkeep(&self.shared, pause.as_mut(), cx)).await;
        coop::refill();
    }

    /// Waits until memory may have been released.
    pub(super) async fn wait_for_memory(&self) {
        let mut waiting = pin!(self.shared.wait_to_receive());
        poll_fn(|cx| poll_with_upkeep(&self.shared, waiting.as_mut(), cx)).await;
        self.shared.control.handle_read_pause((self.shared.clock.now)());
    }

    /// Call it before each read that continues a message. The message may be due before every other
    /// deadline. Time in which nobody read does not count.
    #[inline]
    pub(super) fn watch_message(&self) {
        let Shared { control, clock, timer, .. } = &*self.shared;
        if control.message_deadline().is_some() {
            control.handle_read_start((clock.now)());
            let due = control.message_deadline();
            due.map(|due| timer.borrow_mut().recheck_by(due));
        }
    }

    /// Handles the result of a read: data, end of stream or an error.
    pub(super) fn handle_read(&mut self, read: io::Result<usize>) -> Result<(), Error> {
        let Shared { control, clock, timer, .. } = &*self.shared;
        match read {
            _ if control.failure().is_some() => {} // the next decode reports it
            Ok(0) => self.end()?,
            Ok(_) => {
                if control.awaits_pong() {
                    timer.borrow_mut().recheck();
                }
                let now = (clock.now)();
                control.handle_received(now);
                if control.state() != State::Open {
                    // The peer may send without end. As long as no read waits, no timer is polled.
                    let _ = control.handle_timeout(now);
                }
            }
            // Nothing was read: there was no buffer to read into.
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => return Err(error.into()),
            Err(error) => {
                let _ = self.end(); // the error of the connection says more
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The stream has ended: no more reads.
    fn end(&mut self) -> Result<(), crate::ProtocolError> {
        let ended = self.shared.control.handle_end();
        self.phase = if ended.is_ok() { Phase::Closed } else { Phase::Failed };
        ended
    }

    /// Ends a connection that has failed in the engine. The peer is told why.
    pub(super) async fn fail(&mut self, failure: crate::ProtocolError) -> Error {
        self.phase = Phase::Failed;
        match failure.close_code() {
            Some(_) => self.linger().await,
            None => self.shared.shut_down(),
        }
        failure.into()
    }

    /// Ends a connection that the peer has closed. The answer to its close frame is sent or queued.
    /// `has_unread`: something came with the peer's close frame, behind it.
    ///
    /// A client waits for its server, which ends the stream first (RFC 6455 section 7.1.1). A server
    /// waits only for a peer that may send more: one that has sent something behind its close frame,
    /// or owes a pong.
    ///
    /// Otherwise a server drops the connection if nothing is unread and the transport needs no more
    /// to end. That sends the end of the stream behind the close frame. If something is unread, the
    /// peer has sent it behind its close frame, which it must not (section 5.5.1). A drop would
    /// reset the connection then, so it is read first.
    ///
    /// What such a peer sends later is answered by a reset, as it would be after a shutdown of both
    /// directions (RFC 1122 section 4.2.2.13; `tcp_rcv_state_process` in net/ipv4/tcp_input.c). The
    /// close frame was sent before. A peer on Linux still reads it: a reset leaves what has arrived
    /// in its queue, and the error comes behind that (`tcp_recvmsg_locked` in net/ipv4/tcp.c).
    /// Others may lose it (RFC 9112 section 9.6).
    pub(super) async fn close(&mut self, has_unread: bool) {
        self.phase = Phase::Closed;
        let may_send = has_unread || self.shared.control.has_unanswered_ping();
        if self.shared.is_server() && !may_send {
            let shared = Rc::clone(&self.shared);
            let held = shared.hold_end();
            let is_flushed = self.flush().await.is_ok();
            if is_flushed && shared.connection.drops_cleanly() {
                self.half = None;
                shared.drop_write_half();
                return;
            }
            drop(held);
            if self.flush().await.is_ok() {
                self.shared.shut_down(); // reads return what has arrived, and then the end
            }
        }
        self.linger().await;
    }

    /// Waits until the peer ends the stream or the time is up, and writes what is left meanwhile,
    /// the close frame last.
    ///
    /// Closing a socket with unread bytes sends a reset, and the peer might never see what was sent
    /// last.
    async fn linger(&mut self) {
        let shared = Rc::clone(&self.shared);
        let is_late = || shared.control.handle_timeout((shared.clock.now)()).is_err();
        while !is_late() && self.discard().await.is_ok_and(|bytes| bytes > 0) {}
        let _ = self.flush().await;
        self.shared.shut_down();
    }

    /// Writes what is left, the close frame last, and ends our side of the stream if it is ours to
    /// end first.
    async fn flush(&self) -> io::Result<()> {
        let mut flush = pin!(poll_fn(|cx| self.shared.poll_flush(Direction::Read, cx)));
        poll_fn(|cx| poll_with_upkeep(&self.shared, flush.as_mut(), cx)).await
    }

    /// Reads and discards; returns the number of bytes. An exhausted pool is no reason to close
    /// with bytes unread, so the read then uses a buffer of its own.
    async fn discard(&mut self) -> io::Result<usize> {
        const DISCARDED_BYTES_MAX: usize = 4 * 1024; // one read; held for some milliseconds
        match self.read_pooled().await {
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                let buf = Vec::with_capacity(DISCARDED_BYTES_MAX);
                let BufResult(read, _) = read_with_upkeep!(self, read(buf));
                read
            }
            read => read.map(|buf| buf.len()),
        }
    }
}

/// Polls `operation`. Before and after, sends control frames that are due and handles timers.
///
/// Inlined, as are its callers: each future around another adds its part to every poll.
#[inline(always)]
pub(super) fn poll_with_upkeep<F: Future>(
    shared: &Shared,
    mut operation: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    loop {
        shared.poll_replies(Direction::Read, cx);
        if let Poll::Ready(output) = operation.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        shared.register_task(Direction::Read, cx);
        ready!(shared.timer.borrow_mut().poll(shared));
    }
}
