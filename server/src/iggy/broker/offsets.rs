//! Storing the offsets of consumers.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::super::catalogue::{Consumer, Record, TopicId};
use super::Broker;
use super::logs::Epoch;
use crate::iggy::Status;

/// Offsets whose records are being stored.
pub(super) type Unstored = RefCell<BTreeMap<(Epoch, Consumer), Storing>>;

/// The offset of a consumer while records of it are being stored.
pub(super) struct Storing {
    /// The last one whose record was stored.
    stored: Option<u64>,
    /// How many records are being stored: one for each connection that waits at most.
    records: usize,
}

impl Broker {
    /// The epoch of a partition in which offsets can be stored. `None`: its messages are about to be removed.
    pub(super) fn epoch(&self, at: TopicId, partition: u32) -> Option<Epoch> {
        let log = self.catalogue.borrow().partition(at, partition).ok()?.log;
        self.logs.epoch(log)
    }

    /// Stores an offset. `epoch` is the [present one](Self::epoch) of the partition.
    pub(super) async fn record_offset(
        &self,
        epoch: Epoch,
        at: TopicId,
        partition: u32,
        consumer: Consumer,
        offset: u64,
    ) -> Result<(), Status> {
        let record = self.catalogue.borrow().store_offset(at, partition, consumer, offset)?;
        self.change_offset(epoch, at, partition, consumer, &record).await
    }

    /// Forgets an offset. `epoch` is the [present one](Self::epoch) of the partition.
    pub(super) async fn forget_offset(
        &self,
        epoch: Epoch,
        at: TopicId,
        partition: u32,
        consumer: Consumer,
    ) -> Result<(), Status> {
        let record = self.catalogue.borrow().delete_offset(at, partition, consumer)?;
        self.change_offset(epoch, at, partition, consumer, &record).await
    }

    /// Offsets are changed at once and stored then, without waiting for other changes: they are many. So their records
    /// may come behind the one that removes their partition or their group
    /// ([`Catalogue::replay`](crate::iggy::catalogue::Catalogue)).
    async fn change_offset(
        &self,
        epoch: Epoch,
        at: TopicId,
        partition: u32,
        consumer: Consumer,
        record: &Record,
    ) -> Result<(), Status> {
        let present = || self.catalogue.borrow().partition(at, partition).ok()?.offset(consumer);
        let storing = StoringGuard::new(&self.unstored, (epoch, consumer), present());
        self.catalogue.borrow_mut().apply(record).map_err(|_| Status::Error)?;
        let changed = present();
        let snapshots_begun = self.snapshots.begun();
        let stored = self.storage.record(record.to_bytes()).await;
        if stored.is_err() && self.snapshots.begun() != snapshots_begun {
            self.snapshots.owe(); // the last one may have the offset that is refused
        }
        match stored {
            Ok(()) => storing.set_stored(changed),
            // A consumer that got no messages, because its offset could not be stored, gets them the next time. The
            // last of several changes at once is undone to what is stored, and not to one of the others.
            Err(_) if present() == changed && self.logs.is_current(epoch) => {
                let undone = match storing.stored() {
                    Some(offset) => Record::OffsetStored { at, partition, consumer, offset },
                    None => Record::OffsetDeleted { at, partition, consumer },
                };
                let _ = self.catalogue.borrow_mut().apply(&undone); // an error: there is none
            }
            Err(_) => {}
        }
        stored?;
        drop(storing);
        self.try_snapshot().await;
        Ok(())
    }
}

/// Counts a record that is being stored, also if its task is dropped.
struct StoringGuard<'a> {
    all: &'a Unstored,
    key: (Epoch, Consumer),
}

impl<'a> StoringGuard<'a> {
    /// `present` is the offset before the change.
    fn new(all: &'a Unstored, key: (Epoch, Consumer), present: Option<u64>) -> Self {
        let mut entries = all.borrow_mut();
        // Without an entry, all records of this offset are stored.
        let storing = entries.entry(key).or_insert(Storing { stored: present, records: 0 });
        storing.records += 1;
        Self { all, key }
    }

    fn stored(&self) -> Option<u64> {
        self.all.borrow().get(&self.key).and_then(|storing| storing.stored)
    }

    fn set_stored(&self, offset: Option<u64>) {
        if let Some(storing) = self.all.borrow_mut().get_mut(&self.key) {
            storing.stored = offset;
        }
    }
}

impl Drop for StoringGuard<'_> {
    fn drop(&mut self) {
        let mut entries = self.all.borrow_mut();
        if let Some(storing) = entries.get_mut(&self.key) {
            storing.records -= 1;
            if storing.records == 0 {
                entries.remove(&self.key);
            }
        }
    }
}
