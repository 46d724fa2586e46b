//! When a snapshot of the catalogue is made.

use std::cell::Cell;

use super::Broker;

/// How long an owed snapshot waits after one that has failed, in µs. The disk may be full for hours, and each attempt
/// writes the whole catalogue.
const RETRY_AFTER_MICROS: u64 = 10_000_000;

/// Which snapshots were made, and whether one is owed.
#[derive(Default)]
pub(super) struct Snapshots {
    /// How many were begun.
    begun: Cell<u64>,
    /// How often one was owed: the journal or the last snapshot has an offset that the catalogue has forgotten. The
    /// length of the journal does not matter then.
    owed: Cell<u64>,
    /// What `owed` was when the last successful snapshot began.
    paid: Cell<u64>,
    /// When the last one began, in µs since 1970. `None`: it was successful.
    unfinished_at: Cell<Option<u64>>,
}

impl Snapshots {
    /// A snapshot is due until one is successful that begins after this call.
    pub(super) fn owe(&self) {
        self.owed.set(self.owed.get() + 1);
    }

    /// How many snapshots were begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.get()
    }

    fn is_owed(&self, now: fn() -> u64) -> bool {
        // The clock may be set back.
        let has_waited = |at: u64| now().abs_diff(at) >= RETRY_AFTER_MICROS;
        self.owed.get() != self.paid.get() && self.unfinished_at.get().is_none_or(has_waited)
    }
}

impl Broker {
    /// Makes a snapshot of the catalogue if one is due. The caller holds `changing`, so that all records are applied.
    pub(super) async fn make_snapshot(&self) {
        if !self.is_snapshot_due() {
            return;
        }
        let Snapshots { begun, owed, paid, unfinished_at } = &self.snapshots;
        begun.set(begun.get() + 1);
        unfinished_at.set(Some((self.environment.now)()));
        let owed_then = owed.get();
        let state = self.catalogue.borrow().to_bytes();
        // An error was logged. The records stay, and a later change tries again.
        if self.storage.snapshot(state).await.is_ok() {
            paid.set(owed_then);
            unfinished_at.set(None);
        }
    }

    /// Makes a snapshot of the catalogue if one is due, and nobody changes it.
    pub(super) async fn try_snapshot(&self) {
        if self.is_snapshot_due()
            && let Some(_turn) = self.changing.try_lock()
        {
            self.make_snapshot().await;
        }
    }

    fn is_snapshot_due(&self) -> bool {
        self.snapshots.is_owed(self.environment.now) || self.storage.is_snapshot_due()
    }
}
