//! [`RecencyMap`]: a map that knows which entry was used longest ago.
//!
//! No crate is used for it. A cache of a crate decides itself what to evict, by a weight that it is told when an entry
//! is inserted. Here the bytes of an entry grow while it arrives, an entry that is being read must stay because its
//! eviction would free nothing, and bytes count until the last reader has dropped them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Entries by name. Nothing depends on the order of the hash map.
pub(super) struct RecencyMap<V> {
    entries: HashMap<Arc<str>, Used<V>>,
    /// The names by when they were used last.
    order: BTreeMap<u64, Arc<str>>,
    last_tick: u64,
}

struct Used<V> {
    tick: u64,
    value: V,
}

impl<V> Default for RecencyMap<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), last_tick: 0 }
    }
}

impl<V> RecencyMap<V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry, without using it.
    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        self.entries.get_mut(name).map(|used| &mut used.value)
    }

    /// Uses an entry. One that is among the quarter that was used last keeps its place, so that a busy entry costs a
    /// comparison.
    pub(super) fn use_entry(&mut self, name: &str) -> Option<&mut V> {
        let count = self.entries.len() as u64;
        let used = self.entries.get_mut(name)?;
        if self.last_tick - used.tick > count / 4 {
            self.last_tick += 1;
            let name = self.order.remove(&used.tick)?;
            used.tick = self.last_tick;
            self.order.insert(used.tick, name);
        }
        Some(&mut used.value)
    }

    /// Inserts an entry that is not there.
    pub(super) fn insert(&mut self, name: Arc<str>, value: V) {
        drop(self.remove(&name));
        self.last_tick += 1;
        self.order.insert(self.last_tick, Arc::clone(&name));
        self.entries.insert(name, Used { tick: self.last_tick, value });
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<V> {
        let used = self.entries.remove(name)?;
        self.order.remove(&used.tick);
        Some(used.value)
    }

    /// Removes the entry that was used longest ago of those that `may_remove`. Those that it finds before count as used.
    /// It examines at most `count` entries.
    pub(super) fn remove_oldest(
        &mut self,
        count: usize,
        may_remove: impl Fn(&V) -> bool,
    ) -> Option<V> {
        for _ in 0..count.min(self.order.len()) {
            let (_, name) = self.order.pop_first()?;
            let used = self.entries.get_mut(&*name)?;
            if may_remove(&used.value) {
                return self.entries.remove(&*name).map(|used| used.value);
            }
            self.last_tick += 1;
            used.tick = self.last_tick;
            self.order.insert(used.tick, name);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(names: &[&str]) -> RecencyMap<usize> {
        let mut map = RecencyMap::default();
        names.iter().enumerate().for_each(|(n, name)| map.insert((*name).into(), n));
        map
    }

    fn oldest_first(mut map: RecencyMap<usize>) -> Vec<usize> {
        std::iter::from_fn(|| map.remove_oldest(1, |_| true)).collect()
    }

    #[test]
    fn what_was_used_longest_ago_is_removed_first() {
        let mut names = map(&["a", "b", "c", "d"]);
        assert_eq!(names.use_entry("b"), Some(&mut 1));
        assert_eq!(names.use_entry("b"), Some(&mut 1));
        assert_eq!(names.use_entry("a"), Some(&mut 0));
        assert_eq!(names.use_entry("x"), None);
        *names.get_mut("c").unwrap() = 7; // this does not use it
        assert_eq!(oldest_first(names), [7, 3, 1, 0]);
    }

    #[test]
    fn an_entry_that_must_stay_is_passed_over() {
        let mut names = map(&["a", "b", "c"]);
        assert_eq!(names.remove_oldest(2, |n| *n == 2), None, "two were examined");
        assert_eq!(names.remove_oldest(3, |n| *n == 1), Some(1));
        assert_eq!((names.len(), names.order.len()), (2, 2));
        assert_eq!(names.remove("c"), Some(2));
        assert_eq!(names.remove("c"), None);
        assert_eq!(oldest_first(names), [0]);
    }

    #[test]
    fn an_entry_that_is_inserted_again_is_there_once() {
        let mut names = map(&["a", "b", "a"]);
        assert_eq!((names.len(), names.order.len()), (2, 2));
        assert_eq!(names.get_mut("a"), Some(&mut 2));
        assert_eq!(oldest_first(names), [1, 2]);
    }
}
