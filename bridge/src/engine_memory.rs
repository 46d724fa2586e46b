//! [`EngineMemory`]: reserves the memory that tungstenite is going to hold.

use std::time::{Duration, Instant};

use owned_io::{MemoryAccount, MemoryReleased, MemoryWait, Reservation};
use owned_io_websocket::{EngineConfig, Limit, ProtocolError};

use crate::frame_tracker::FrameTracker;
use crate::shared::Sleep;

/// The size that each buffer has in any case, in bytes. It is not counted, so a connection with
/// short messages reserves nothing.
const UNCOUNTED_BYTES: usize = 4 * 1024;

/// The memory of a connection that depends on its peer. tungstenite does not report it, but it
/// follows from lengths that are known in advance.
pub(crate) struct EngineMemory {
    reservation: Reservation,
    config: EngineConfig,
    /// The receive buffer: as long as the longest frame so far, for the life of the connection.
    frame_bytes_longest: usize,
    /// The buffer for fragmented messages, which grows by doubling.
    fragments_bytes: usize,
    /// The message that was handed out last.
    message_bytes: usize,
    /// The write buffer of tungstenite: as long as the longest queue so far, for the life of the
    /// connection.
    queued_bytes_longest: usize,
    /// The write buffer of the bridge.
    queued_bytes: usize,
    waited: MemoryWait,
}

impl EngineMemory {
    pub(crate) fn new(account: &MemoryAccount, config: EngineConfig, waited: MemoryWait) -> Self {
        Self {
            reservation: account.reservation(),
            config,
            frame_bytes_longest: 0,
            fragments_bytes: 0,
            message_bytes: 0,
            queued_bytes_longest: 0,
            queued_bytes: 0,
            waited,
        }
    }

    pub(crate) const fn account(&self) -> &MemoryAccount {
        self.reservation.account()
    }

    /// Reserves memory for the frames that have begun. Call it before tungstenite sees them.
    /// tungstenite itself refuses what exceeds the limits.
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

    /// A message is handed out and replaces the previous one.
    pub(crate) const fn handle_message(&mut self, bytes: usize) {
        self.message_bytes = bytes;
    }

    /// Reserves memory for a queue of `bytes` bytes.
    pub(crate) fn reserve_queued(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        let before = (self.queued_bytes_longest, self.queued_bytes);
        self.queued_bytes_longest = self.queued_bytes_longest.max(bytes);
        self.queued_bytes = bytes;
        self.reserve().inspect_err(|_| (self.queued_bytes_longest, self.queued_bytes) = before)
    }

    /// Everything that was queued is written.
    pub(crate) fn handle_flushed(&mut self) {
        if self.queued_bytes > 0 {
            self.queued_bytes = 0;
            self.reservation.force(self.needed().min(self.reservation.bytes()));
        }
    }

    /// Whether the account can never have enough.
    pub(crate) fn exceeds_account(&self) -> bool {
        self.needed() > self.account().bytes_max()
    }

    /// Waits until memory may have been released. Returns `None` if that was tried for too long.
    pub(crate) fn wait(
        &self,
        now: Instant,
        sleep: fn(Duration) -> Sleep,
    ) -> Option<MemoryReleased<Sleep>> {
        self.waited.begin(self.account(), now, sleep)
    }

    /// Nothing is reserved any more.
    pub(crate) fn end_wait(&self) {
        self.waited.end();
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
