//! Connections on which nothing moves are ended.
//!
//! A timer for each wait would cost each message as much as its bytes do. Here a connection notes that
//! something has moved, which costs a store, and [`watch`] looks at all of them now and then.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use owned_io::{Runtime, ShutdownHandle};

use crate::config::Limits;
use crate::connections::{CloseMethod, Connections};

/// How often within a limit everybody is looked at: a connection ends by a quarter of the limit too late.
const LOOKS: u32 = 4;

/// How many are looked at before others have their turn: some ten microseconds.
const LOOKED_AT_MAX: usize = 512;

/// What a connection does, for [`watch`].
#[derive(Debug, Default)]
pub struct Activity {
    is_writing: Cell<bool>,
    has_moved: Cell<bool>,
    /// Looks in a row that saw nothing move.
    quiet: Cell<u32>,
    was_ended: Cell<bool>,
}

impl Activity {
    /// Bytes have come, and the answer is written: its peer has a [time](Limits::message_time_max) to take
    /// some of it.
    #[inline]
    pub fn write(&self) {
        self.is_writing.set(true);
        self.has_moved.set(true);
    }

    /// It was taken, and the peer has a [time](Limits::idle_time_max) to send something.
    #[inline]
    pub fn read(&self) {
        self.is_writing.set(false);
        self.has_moved.set(true);
    }

    /// How the connection ended: [`TimedOut`](io::ErrorKind::TimedOut) where it was [`watch`] that ended it.
    pub(crate) fn outcome<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        if self.was_ended.get() { Err(io::ErrorKind::TimedOut.into()) } else { outcome }
    }

    fn look(&self, close_method: &CloseMethod, handle: &ShutdownHandle, looks_at: LookAt) {
        if self.is_writing.get() != (looks_at == LookAt::Writing) {
            return;
        }
        if self.has_moved.take() {
            return self.quiet.set(0);
        }
        self.quiet.set(self.quiet.get() + 1);
        if self.quiet.get() < LOOKS {
            return;
        }
        let was_asked = self.was_ended.replace(true);
        match looks_at {
            // The service says the end, which a peer may not take either.
            LookAt::Idle if !was_asked => close_method.close(),
            // What the peer has not taken would stay in the kernel.
            _ => handle.abort(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LookAt {
    Idle,
    Writing,
}

/// Asks the watched of `connections` to end that were idle for too long, and resets those that do not, or
/// whose peers take nothing. For ever.
pub async fn watch<R: Runtime>(connections: Connections, limits: Limits) {
    let writing = watch_one::<R>(&connections, limits.message_time_max, LookAt::Writing);
    let Some(idle) = limits.idle_time_max else { return writing.await };
    let idle = watch_one::<R>(&connections, idle, LookAt::Idle);
    owned_io::beside(std::pin::pin!(idle), writing).await;
}

async fn watch_one<R: Runtime>(connections: &Connections, limit: Duration, looks_at: LookAt) {
    loop {
        R::sleep(limit / LOOKS).await;
        let mut after = None;
        // As often as there are connections for.
        loop {
            after = connections.look(after, LOOKED_AT_MAX, |activity, close_method, handle| {
                activity.look(close_method, handle, looks_at);
            });
            if after.is_none() {
                break;
            }
            R::sleep(Duration::ZERO).await;
        }
    }
}
