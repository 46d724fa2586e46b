//! [`Registry`]: what the program registers and the watchdog reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A number for a heart or a thread that none had before: unlike an address or a tid it is not used again.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// A shared list. It is locked for as long as it takes to copy it, never while anything is measured.
#[derive(Debug)]
pub(crate) struct Registry<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Registry<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Registry<T> {
    /// Adds `item` unless `max` are there. Whether it did.
    pub(crate) fn add(&self, item: T, max: usize) -> bool {
        let mut items = self.lock();
        let has_room = items.len() < max;
        if has_room {
            items.push(item);
        }
        has_room
    }

    /// The item that `is_it`, or else a new one, unless `max` are there.
    pub(crate) fn get_or_add(
        &self,
        is_it: impl Fn(&T) -> bool,
        new: impl FnOnce() -> T,
        max: usize,
    ) -> Option<T> {
        let mut items = self.lock();
        if let Some(item) = items.iter().find(|item| is_it(item)) {
            return Some(item.clone());
        }
        let item = (items.len() < max).then(new)?;
        items.push(item.clone());
        Some(item)
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.lock().clone()
    }

    /// Copies the list into a buffer that is used again.
    pub(crate) fn copy_to(&self, items: &mut Vec<T>) {
        items.clone_from(&self.lock());
    }

    /// The smallest of what `f` makes of the items, and of `most`.
    pub(crate) fn min_of<U: Ord>(&self, most: U, f: impl FnMut(&T) -> U) -> U {
        self.lock().iter().map(f).fold(most, Ord::min)
    }

    pub(crate) fn map<U>(&self, f: impl FnMut(&T) -> U) -> Vec<U> {
        self.lock().iter().map(f).collect()
    }

    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        self.lock().retain(keep);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
