//! [`EngineMemory`]: what tungstenite holds for a connection, reserved before it takes it.

use std::time::{Duration, Instant};

use owned_io::{MemoryAccount, MemoryReleased, MemoryWait, Reservation};
use owned_io_websocket::{EngineConfig, Limit, ProtocolError};

use crate::frame_tracker::FrameTracker;
use crate::shared::Sleep;

/// What each of the buffers has anyway, and is not counted, in bytes: a connection with short messages
/// reserves nothing.
const UNCOUNTED_BYTES: usize = 4 * 1024;

/// What a connection holds, as far as it depends on what its peer sends and takes. tungstenite does not
/// tell, but all of it follows from lengths that are known before.
pub(crate) struct EngineMemory {
    reservation: Reservation,
    config: EngineConfig,
    /// Of what tungstenite receives into: as long as the longest frame, for the life of the connection.
    frame_bytes_longest: usize,
    /// Of what it puts a message together in that comes in several frames, and grows by doubling.
    fragments_bytes: usize,
    /// Of the message that was handed out last.
    message_bytes: usize,
    /// Of what it queues frames in: as long as the longest queue, for the life of the connection.
    queued_bytes_longest: usize,
    /// Of what is written from.
    queued_bytes: usize,
    waited: MemoryWait,
}

impl EngineMemory {
    pub(crate) fn new(account: &MemoryAccount, config: EngineConfig) -> Self {
        Self {
            reservation: account.reservation(),
            config,
            frame_bytes_longest: 0,
            fragments_bytes: 0,
            message_bytes: 0,
            queued_bytes_longest: 0,
            queued_bytes: 0,
            waited: MemoryWait::default(),
        }
    }

    pub(crate) const fn account(&self) -> &MemoryAccount {
        self.reservation.account()
    }

    /// Reserves what the frames may take that have begun: to be called before tungstenite sees them. What
    /// exceeds the limits it refuses by itself.
    pub(crate) fn reserve_received(
        &mut self,
        frame_tracker: &FrameTracker,
    ) -> Result<(), ProtocolError> {
        let within = |bytes: u64, max: usize| usize::try_from(bytes).ok().filter(|n| *n <= max);
        let frame = within(frame_tracker.frame_bytes_longest(), self.config.frame_bytes_max);
        self.frame_bytes_longest = self.frame_bytes_longest.max(frame.unwrap_or(0));
        let fragments =
            within(frame_tracker.fragments_bytes_longest(), self.config.message_bytes_max);
        self.fragments_bytes = 2 * fragments.unwrap_or(0);
        self.reserve()
    }

    /// A message is handed out, in place of the one before.
    pub(crate) const fn handle_message(&mut self, bytes: usize) {
        self.message_bytes = bytes;
    }

    /// Reserves what it takes to have so many bytes queued.
    pub(crate) fn reserve_queued(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        let before = (self.queued_bytes_longest, self.queued_bytes);
        self.queued_bytes_longest = self.queued_bytes_longest.max(bytes);
        self.queued_bytes = bytes;
        self.reserve().inspect_err(|_| (self.queued_bytes_longest, self.queued_bytes) = before)
    }

    /// All that was queued is written.
    pub(crate) fn handle_flushed(&mut self) {
        if self.queued_bytes > 0 {
            self.queued_bytes = 0;
            self.reservation.force(self.needed().min(self.reservation.bytes()));
        }
    }

    /// Whether as much can never be had.
    pub(crate) fn exceeds_account(&self) -> bool {
        self.needed() > self.account().bytes_max()
    }

    /// Waits until memory may have been given back; none, if that was tried for too long.
    pub(crate) fn wait(
        &self,
        now: Instant,
        sleep: fn(Duration) -> Sleep,
    ) -> Option<MemoryReleased<Sleep>> {
        self.waited.begin(self.account(), now, sleep)
    }

    pub(crate) fn out_of_memory(&self) -> ProtocolError {
        let (max, got) = (self.account().bytes_max() as u64, self.needed() as u64);
        ProtocolError::Limit { limit: Limit::Memory, max, got }
    }

    fn needed(&self) -> usize {
        [
            self.frame_bytes_longest,
            self.fragments_bytes,
            self.message_bytes,
            self.queued_bytes_longest,
            self.queued_bytes,
        ]
        .map(|bytes| bytes.saturating_sub(UNCOUNTED_BYTES))
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    fn reserve(&mut self) -> Result<(), ProtocolError> {
        let needed = self.needed();
        if needed != self.reservation.bytes() {
            self.reservation.resize(needed).map_err(|_| self.out_of_memory())?;
        }
        self.waited.end();
        Ok(())
    }
}
