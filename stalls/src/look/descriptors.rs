//! Descriptors of the process: how many there are, and which are sockets and rings.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use super::Looker;
use crate::evidence::Look;
use crate::proc::{OpenFile, ring};

/// More descriptors are not inspected one by one. Listeners and rings are opened early and have low numbers.
const INSPECTED_MAX: usize = 4_096;
/// Descriptors are counted up to this number.
const COUNTED_MAX: usize = 65_536;
/// Before Linux 6.2 each is an entry that has to be read: more are counted only as often as they are inspected.
const COUNTED_ALWAYS_MAX: u64 = 1_024;
const RINGS_MAX: usize = 64;
/// The kernel shows a ring's state only if nobody holds its lock, as a busy event loop often does. So many times in a
/// look it is asked again, for all rings together.
const RING_RETRIES: u32 = 8;
const RING_PAUSE: Duration = Duration::from_micros(200);

impl Looker {
    /// `is_inspecting`: descriptors were just inspected, so counting them one by one costs little more.
    pub(super) fn look_at_descriptors(&mut self, look: &mut Look, is_inspecting: bool) {
        self.descriptors = match size_of_table() {
            None if may_count(self.descriptors, is_inspecting) => count_descriptors(),
            None => self.descriptors,
            size => size,
        };
        look.descriptors = self.descriptors;
    }

    /// Finds the sockets and rings of this process.
    pub(super) fn inspect_descriptors(&mut self) {
        self.own_inodes.clear();
        let mut rings = HashMap::new();
        let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        for (number, entry) in entries.enumerate() {
            if number == INSPECTED_MAX {
                self.note_left_out("listeners and rings among the descriptors", INSPECTED_MAX);
                break;
            }
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy();
            if let Some(inode) =
                target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'))
            {
                self.own_inodes.extend(inode.parse::<u32>());
            } else if target == "anon_inode:[io_uring]"
                && let Ok(descriptor) = entry.file_name().to_string_lossy().parse()
            {
                if rings.len() == RINGS_MAX {
                    self.note_left_out("rings", RINGS_MAX);
                    continue;
                }
                let known = self.rings.remove(&descriptor);
                let file = || OpenFile::new(format!("/proc/self/fdinfo/{descriptor}"));
                rings.insert(descriptor, known.unwrap_or_else(file));
            }
        }
        self.rings = rings;
    }

    pub(super) fn look_at_rings(&mut self, look: &mut Look) {
        let mut retries = RING_RETRIES;
        for (descriptor, file) in &mut self.rings {
            let mut state = ring::parse(*descriptor, &file.read(&mut self.buf));
            while state.is_none() && retries > 0 {
                retries -= 1;
                std::thread::sleep(RING_PAUSE);
                state = ring::parse(*descriptor, &file.read(&mut self.buf));
            }
            look.rings.extend(state);
        }
        look.rings.sort_by_key(|ring| ring.descriptor);
    }
}

/// The number of descriptors: since Linux 6.2 it is the size of their directory.
fn size_of_table() -> Option<u64> {
    Some(fs::metadata("/proc/self/fd").ok()?.len()).filter(|size| *size > 0)
}

/// Whether descriptors are counted one by one now, if their number was `known` before.
fn may_count(known: Option<u64>, is_inspecting: bool) -> bool {
    is_inspecting || known.is_none_or(|known| known <= COUNTED_ALWAYS_MAX)
}

fn count_descriptors() -> Option<u64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.take(COUNTED_MAX).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::looker;
    use super::*;

    /// Before Linux 6.2 it takes as many entries of a directory.
    #[test]
    fn thousands_of_descriptors_are_counted_as_often_as_they_are_inspected() {
        assert!(may_count(None, false) && may_count(Some(COUNTED_ALWAYS_MAX), false));
        assert!(!may_count(Some(COUNTED_ALWAYS_MAX + 1), false));
        assert!(may_count(Some(COUNTED_ALWAYS_MAX + 1), true));
        assert!(looker().look(false).descriptors.is_some_and(|count| count > 0));
        assert!(count_descriptors().is_some_and(|count| count > 0));
    }
}
