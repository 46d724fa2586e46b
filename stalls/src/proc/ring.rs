//! `fdinfo` of an io_uring descriptor.

use serde::{Deserialize, Serialize};

use super::field;

/// How many kinds of pending operations are listed.
const OPCODES_MAX: usize = 16;

/// The state of a ring.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Ring {
    /// Its descriptor.
    pub descriptor: u32,
    /// Entries that the program has written since the ring began. The counters wrap around.
    pub sq_tail: u32,
    /// Entries that the kernel has taken.
    pub sq_head: u32,
    /// Completions that the kernel has written.
    pub cq_tail: u32,
    /// Completions that the program has read.
    pub cq_head: u32,
    /// The operations of entries that the kernel has not taken, with their number, at most 16 kinds.
    pub unsubmitted: Vec<(String, u32)>,
    /// Completions that found no room and wait in the kernel.
    pub overflowed: u32,
    /// The completion queue is full, and the kernel's list of those without room was not read: it is at the end of a
    /// text that was too long.
    pub is_full: bool,
    /// Operations that wait for readiness.
    pub polls: u32,
}

impl Ring {
    /// How many entries the kernel has not taken.
    pub fn unsubmitted_count(&self) -> u32 {
        self.sq_tail.wrapping_sub(self.sq_head)
    }

    /// How many completions the program has not read.
    pub fn unread_count(&self) -> u32 {
        self.cq_tail.wrapping_sub(self.cq_head)
    }
}

/// Parses `fdinfo`. `None` if it is not that of a ring.
pub fn parse(descriptor: u32, text: &str) -> Option<Ring> {
    let number = |name| field(text, name).map(|number| number as u32);
    let mut ring = Ring {
        descriptor,
        sq_tail: number("SqTail")?,
        sq_head: number("SqHead")?,
        cq_tail: number("CqTail").unwrap_or(0),
        cq_head: number("CqHead").unwrap_or(0),
        ..Ring::default()
    };
    let mut section = "";
    let mut has_overflow_list = false;
    for line in text.lines() {
        if line.starts_with(|first: char| first.is_ascii_alphabetic()) {
            section = line.split(':').next().unwrap_or_default();
            has_overflow_list |= section == "CqOverflowList";
        } else if let Some((_, rest)) = line.split_once("opcode:")
            && section == "SQEs"
        {
            let opcode = rest.split([',', ' ']).next().unwrap_or_default();
            if let Some((_, count)) = ring.unsubmitted.iter_mut().find(|(known, _)| known == opcode)
            {
                *count += 1;
            } else if ring.unsubmitted.len() < OPCODES_MAX {
                ring.unsubmitted.push((opcode.to_owned(), 1));
            }
        } else if section == "PollList" && line.trim_start().starts_with("op=") {
            ring.polls = ring.polls.saturating_add(1);
        } else if section == "CqOverflowList" && line.contains("user_data=") {
            ring.overflowed = ring.overflowed.saturating_add(1);
        }
    }
    let room = mask(text, "CqMask").map(|mask| mask.saturating_add(1));
    ring.is_full = !has_overflow_list && room.is_some_and(|room| ring.unread_count() >= room);
    Some(ring)
}

/// A mask, which the kernel writes in hexadecimal digits.
fn mask(text: &str, name: &str) -> Option<u32> {
    let digits = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t0x"))?;
    u32::from_str_radix(digits.trim_end(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FDINFO: &str = "\
pos:\t0\nflags:\t02000002\nSqMask:\t0x7f\nSqHead:\t4294967295\nSqTail:\t2\nCqMask:\t0xff\nCqHead:\t4\nCqTail:\t7
SQEs:\t3
    1: opcode:ACCEPT, fd:9, flags:0, off:0, addr:0x0, rw_flags:0x0, buf_index:0 user_data:0
    2: opcode:RECV, fd:9, flags:0, off:0, addr:0x0, rw_flags:0x0, buf_index:0 user_data:1
12345: opcode:RECV, fd:9, flags:0, off:0, addr:0x0, rw_flags:0x0, buf_index:0 user_data:2
CQEs:\t1
    4: user_data:0, res:4096, flag:0
PollList:
  op=13, task_works=0
CqOverflowList:
  user_data=5, res=1, flags=0
";

    #[test]
    fn entries_by_opcode_and_the_overflow_list() {
        let ring = parse(7, FDINFO).unwrap();
        assert_eq!((ring.descriptor, ring.unsubmitted_count(), ring.unread_count()), (7, 3, 3));
        assert_eq!(ring.unsubmitted, [("ACCEPT".to_owned(), 1), ("RECV".to_owned(), 2)]);
        assert_eq!((ring.polls, ring.overflowed), (1, 1));
    }

    /// 8,192 completions that were not read are 400 KB, and the list of further ones comes behind them.
    #[test]
    fn a_full_queue_stands_for_a_list_that_was_cut_off() {
        let full = FDINFO.replace("CqTail:\t7", "CqTail:\t260");
        let (before_list, _) = full.split_once("CqOverflowList").unwrap();
        let found = |text: &str| parse(7, text).map(|ring| (ring.is_full, ring.overflowed));
        assert_eq!(found(before_list), Some((true, 0)));
        assert_eq!(found(&full), Some((false, 1)), "the list says it");
        let (before_list, _) = FDINFO.split_once("CqOverflowList").unwrap();
        assert_eq!(found(before_list), Some((false, 0)), "3 of 256");
        assert_eq!(found(&before_list.replace("0xff", "0xz")), Some((false, 0)));
        assert_eq!(found(&full.replace("0xff", "0xffffffff")), Some((false, 1)));
    }

    #[test]
    fn another_descriptor_and_cut_text() {
        assert_eq!(parse(1, "pos:\t0\nflags:\t02\n"), None);
        assert_eq!(parse(1, ""), None);
        for cut in 0..FDINFO.len() {
            let _ = parse(1, &FDINFO[..cut]); // no panic
        }
    }
}
