//! [`Objects`]: the cache that all workers share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_lock::Semaphore;

use super::ledger::{Charge, Ledger};
use super::recency::RecencyMap;
use super::stored::block_bytes;
use super::{Fetch, ObjectName, ObjectsConfig, Stored, Transfer};

/// How many objects are kept. With the least overhead of each they take 40 MB.
pub const ENTRIES_MAX: usize = 65_536;

/// How many names are known to be missing. They have a bound of their own, so that requests for names that do not exist
/// remove no object. With the longest names they take 2 MB.
pub const MISSING_MAX: usize = 4_096;

/// How many objects are fetched at once, those included that wait for a [connection](Objects::connections) to the
/// origin. Each takes some 2 KB until its body arrives.
pub const FETCHES_MAX: usize = 4_096;

/// How many connections to the origin, or open files, there are at once. Many servers accept as many from one client.
pub const CONNECTIONS_MAX: usize = 256;

/// How many entries are examined for one that nobody reads, when there is no room. It takes some 0.1 ms.
const EXAMINED_MAX: usize = 1_024;

/// The cache. All workers have a handle to the same one.
pub struct Objects {
    config: ObjectsConfig,
    block_bytes: usize,
    ledger: Arc<Ledger>,
    /// Never held across an await.
    cache: Mutex<Cache>,
    connections: Arc<Semaphore>,
}

#[derive(Default)]
struct Cache {
    entries: RecencyMap<Entry>,
    missing: RecencyMap<Missing>,
    /// How many [`Fetch`]es there are.
    fetches: usize,
}

/// What there is for a name. One of the first two is there.
#[derive(Default)]
struct Entry {
    stored: Option<Arc<Stored>>,
    transfer: Option<Arc<Transfer>>,
    /// When a stale object may be fetched again.
    retry_at: Option<Instant>,
}

struct Missing {
    status: u16,
    until: Instant,
}

/// What a request for a name gets.
#[derive(Debug)]
pub enum Lookup {
    /// The object.
    Stored(Arc<Stored>),
    /// An object that is not fresh any more. If there is a fetch, the caller starts it.
    Stale(Arc<Stored>, Option<Fetch>),
    /// An object that arrives. If there is a fetch, the caller starts it.
    Transfer(Arc<Transfer>, Option<Fetch>),
    /// The origin has said a moment ago that there is no such object, with this status.
    Missing(u16),
    /// Too many objects are being fetched.
    Busy,
}

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Objects that are kept or arrive.
    pub objects: usize,
    /// The bytes that objects take, those included that only readers still have.
    pub held_bytes: usize,
    /// Objects that are being fetched.
    pub fetches: usize,
}

impl Objects {
    /// An empty cache.
    pub fn new(config: ObjectsConfig) -> Self {
        Self {
            block_bytes: block_bytes(config.chunk_bytes),
            ledger: Arc::new(Ledger::new(config.memory_max)),
            cache: Mutex::default(),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            config,
        }
    }

    /// The options.
    pub const fn config(&self) -> &ObjectsConfig {
        &self.config
    }

    /// Permits for connections to the origin.
    pub const fn connections(&self) -> &Arc<Semaphore> {
        &self.connections
    }

    /// How much there is.
    pub fn totals(&self) -> Totals {
        let cache = self.lock();
        let (objects, fetches) = (cache.entries.len(), cache.fetches);
        Totals { objects, held_bytes: self.ledger.held_bytes(), fetches }
    }

    /// What a request for `name` gets. At most one fetch for each name exists at a time.
    pub fn find(self: &Arc<Self>, name: &ObjectName<'_>, now: Instant) -> Lookup {
        let name = name.as_str();
        let mut cache = self.lock();
        if let Some(missing) = cache.missing.get_mut(name) {
            if now < missing.until {
                return Lookup::Missing(missing.status);
            }
            cache.missing.remove(name);
        }
        let has_room = cache.fetches < FETCHES_MAX;
        let transfer = || Arc::new(Transfer::new(self.block_bytes));
        let Some(entry) = cache.entries.use_entry(name) else {
            if !has_room {
                return Lookup::Busy;
            }
            let (name, transfer) = (Arc::<str>::from(name), transfer());
            let entry = Entry { transfer: Some(Arc::clone(&transfer)), ..Entry::default() };
            cache.entries.insert(Arc::clone(&name), entry);
            return Lookup::Transfer(
                Arc::clone(&transfer),
                Some(self.fetch(cache, name, transfer)),
            );
        };
        match &entry.stored {
            Some(stored) if stored.is_fresh(now) => return Lookup::Stored(Arc::clone(stored)),
            Some(stored) if stored.is_usable(now) => {
                let stored = Arc::clone(stored);
                let may_retry = entry.retry_at.is_none_or(|at| now >= at);
                if entry.transfer.is_some() || !may_retry || !has_room {
                    return Lookup::Stale(stored, None);
                }
                let transfer = transfer();
                entry.transfer = Some(Arc::clone(&transfer));
                return Lookup::Stale(stored, Some(self.fetch(cache, name.into(), transfer)));
            }
            Some(_) | None => {}
        }
        if let Some(transfer) = &entry.transfer {
            return Lookup::Transfer(Arc::clone(transfer), None);
        }
        if !has_room {
            return Lookup::Busy;
        }
        let (expired, transfer) = (entry.stored.take(), transfer());
        entry.transfer = Some(Arc::clone(&transfer));
        let fetch = self.fetch(cache, name.into(), Arc::clone(&transfer));
        drop(expired); // outside of the lock
        Lookup::Transfer(transfer, Some(fetch))
    }

    pub(super) const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Charges bytes. Makes room by removing the objects that nobody reads and that were used longest ago.
    pub(super) fn charge(&self, bytes: usize) -> Option<Charge> {
        // Each round removes an object, or ends.
        loop {
            if let Some(charge) = self.ledger.charge(bytes) {
                return Some(charge);
            }
            let removed = self.lock().remove_unused();
            removed?;
        }
    }

    /// A transfer has brought an object. `None`: it is not kept.
    pub(super) fn store(&self, name: &Arc<str>, by: &Arc<Transfer>, stored: Option<Arc<Stored>>) {
        let mut cache = self.lock();
        let replaced = cache.take_transfer(name, by);
        if let Some(stored) = stored {
            let entry = Entry { stored: Some(stored), ..Entry::default() };
            cache.entries.insert(Arc::clone(name), entry);
        }
        let removed = if cache.entries.len() > ENTRIES_MAX { cache.remove_unused() } else { None };
        drop(cache);
        drop((replaced, removed));
    }

    /// The origin has said that there is no such object.
    pub(super) fn store_missing(
        &self,
        name: &Arc<str>,
        by: &Arc<Transfer>,
        status: u16,
        until: Instant,
    ) {
        let mut cache = self.lock();
        let replaced = cache.take_transfer(name, by);
        if cache.missing.len() >= MISSING_MAX {
            cache.missing.remove_oldest(1, |_| true);
        }
        cache.missing.insert(Arc::clone(name), Missing { status, until });
        drop(cache);
        drop(replaced);
    }

    /// A transfer has failed. A stale object stays.
    pub(super) fn give_up(&self, name: &Arc<str>, by: &Arc<Transfer>, retry_at: Option<Instant>) {
        let mut cache = self.lock();
        let Some(mut entry) = cache.take_transfer(name, by) else { return };
        if entry.stored.is_some() {
            (entry.transfer, entry.retry_at) = (None, retry_at);
            cache.entries.insert(Arc::clone(name), entry);
        }
    }

    pub(super) fn end_fetch(&self) {
        self.lock().fetches -= 1;
    }

    /// Counts a fetch, whose transfer is in the cache, and unlocks the cache.
    fn fetch(
        self: &Arc<Self>,
        mut cache: MutexGuard<'_, Cache>,
        name: Arc<str>,
        transfer: Arc<Transfer>,
    ) -> Fetch {
        cache.fetches += 1;
        drop(cache);
        Fetch::new(Arc::clone(self), name, transfer)
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

impl Cache {
    /// Removes the entry whose object arrives by `transfer`.
    fn take_transfer(&mut self, name: &str, transfer: &Arc<Transfer>) -> Option<Entry> {
        let entry = self.entries.get_mut(name)?;
        let is_same = entry.transfer.as_ref().is_some_and(|it| Arc::ptr_eq(it, transfer));
        if is_same { self.entries.remove(name) } else { None }
    }

    /// Removes the object that was used longest ago of those that neither arrive nor are read.
    fn remove_unused(&mut self) -> Option<Entry> {
        self.entries.remove_oldest(EXAMINED_MAX, |entry| {
            let is_read = entry.stored.as_ref().is_some_and(|it| Arc::strong_count(it) > 1);
            entry.transfer.is_none() && !is_read
        })
    }
}

#[cfg(test)]
mod tests;
