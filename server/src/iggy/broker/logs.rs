//! [`Logs`]: the logs of all partitions, and whether what was read from one of them is still there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use event_listener::Event;

use super::super::catalogue::LogId;
use super::super::storage::MessageLog;
use crate::iggy::Status;

/// The log of each partition.
#[derive(Default)]
pub(super) struct Logs {
    /// Their order is never used.
    entries: RefCell<HashMap<LogId, Entry>>,
}

struct Entry {
    log: Rc<dyn MessageLog>,
    /// Notified when messages were appended, and when a purge begins or the log is removed.
    changed: Rc<Event>,
    /// How many purges have begun.
    purges: u64,
    /// How many [restarts](MessageLog::restarts) the broker knows.
    restarts: u64,
    /// Whether offsets are refused.
    is_held: bool,
}

impl Entry {
    fn new(log: Rc<dyn MessageLog>) -> Self {
        let restarts = log.restarts();
        Self { log, changed: Rc::default(), purges: 0, restarts, is_held: false }
    }

    /// How many purges have begun. A restart is one too, as soon as the log has noticed it.
    fn purges(&self) -> u64 {
        self.purges + self.log.restarts()
    }
}

/// The messages of a log between two purges. An offset is stored in the epoch whose messages were read, and a
/// [tail](super::tail) ends with its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    log: LogId,
    purges: u64,
}

impl Logs {
    pub(super) fn insert(&self, logs: impl Iterator<Item = (LogId, Rc<dyn MessageLog>)>) {
        let entries = logs.map(|(id, log)| (id, Entry::new(log)));
        self.entries.borrow_mut().extend(entries);
    }

    /// Removes logs, and returns those that there were.
    pub(super) fn remove(&self, logs: &[LogId]) -> Vec<Rc<dyn MessageLog>> {
        let mut entries = self.entries.borrow_mut();
        let removed = logs.iter().filter_map(|log| entries.remove(log));
        removed
            .map(|removed| {
                removed.changed.notify(usize::MAX);
                removed.log
            })
            .collect()
    }

    /// A log.
    ///
    /// # Errors
    /// Its partition was deleted.
    pub(super) fn get(&self, log: LogId) -> Result<Rc<dyn MessageLog>, Status> {
        let entries = self.entries.borrow();
        let entry = entries.get(&log).ok_or(Status::PartitionNotFound)?;
        Ok(Rc::clone(&entry.log))
    }

    /// The epoch in which offsets can be stored. `None`: the messages are about to be removed.
    pub(super) fn epoch(&self, log: LogId) -> Option<Epoch> {
        let entries = self.entries.borrow();
        let entry = entries.get(&log).filter(|entry| !entry.is_held)?;
        Some(Epoch { log, purges: entry.purges() })
    }

    /// Whether no purge has begun since the epoch did.
    pub(super) fn is_current(&self, epoch: Epoch) -> bool {
        let entries = self.entries.borrow();
        entries.get(&epoch.log).is_some_and(|entry| entry.purges() == epoch.purges)
    }

    /// The log of an epoch, and the event to [wait](Entry::changed) for.
    ///
    /// # Errors
    /// The epoch is over.
    pub(super) fn current(
        &self,
        epoch: Epoch,
    ) -> Result<(Rc<dyn MessageLog>, Rc<Event>), EpochOver> {
        let entries = self.entries.borrow();
        let entry = entries.get(&epoch.log).ok_or(EpochOver::Deleted)?;
        if entry.purges() != epoch.purges {
            return Err(EpochOver::Purged);
        }
        Ok((Rc::clone(&entry.log), Rc::clone(&entry.changed)))
    }

    /// Wakes who waits for messages, because some were appended.
    pub(super) fn notify_appended(&self, log: LogId) {
        if let Some(entry) = self.entries.borrow().get(&log) {
            entry.changed.notify(usize::MAX);
        }
    }

    /// Whether some of these logs have restarted since this was asked last. Who waits for their messages is woken.
    pub(super) fn take_restarted(&self, logs: impl Iterator<Item = LogId>) -> bool {
        let mut entries = self.entries.borrow_mut();
        let mut have_restarted = false;
        for log in logs {
            let Some(entry) = entries.get_mut(&log) else { continue };
            let restarts = entry.log.restarts();
            if std::mem::replace(&mut entry.restarts, restarts) != restarts {
                have_restarted = true;
                entry.changed.notify(usize::MAX);
            }
        }
        have_restarted
    }

    /// Refuses offsets for these logs until the hold is dropped. Their messages are about to be removed. One hold at a
    /// time.
    pub(super) fn hold(&self, logs: Vec<LogId>) -> Hold<'_> {
        self.set_held(&logs, true);
        Hold { all: self, logs }
    }

    /// Begins a new epoch of each log, because its messages are removed now.
    pub(super) fn begin_epoch(&self, logs: &[LogId]) {
        self.for_each(logs, |entry| {
            entry.purges += 1;
            entry.changed.notify(usize::MAX);
        });
    }

    fn set_held(&self, logs: &[LogId], is_held: bool) {
        self.for_each(logs, |entry| entry.is_held = is_held);
    }

    fn for_each(&self, logs: &[LogId], change: impl Fn(&mut Entry)) {
        let mut entries = self.entries.borrow_mut();
        for log in logs {
            if let Some(entry) = entries.get_mut(log) {
                change(entry);
            }
        }
    }
}

/// Why an epoch is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EpochOver {
    /// The log was removed.
    Deleted,
    /// A purge has begun.
    Purged,
}

/// See [`Logs::hold`].
pub(super) struct Hold<'a> {
    all: &'a Logs,
    logs: Vec<LogId>,
}

impl Hold<'_> {
    /// The logs that are held.
    pub(super) fn logs(&self) -> &[LogId] {
        &self.logs
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.all.set_held(&self.logs, false);
    }
}
