//! [`Trace`]: what happened, as a number that tells two runs apart, and the last of it to be read.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::time::Duration;

use crate::core::Time;
use crate::errno;
use crate::host::{HostId, Hosts};

/// Records that are kept to be read, unless the configuration says otherwise: enough for the last few
/// exchanges of some connections, little enough to stay in the cache.
pub(crate) const RECORDS_KEPT: usize = 1024;

/// Texts that are kept to be read.
const NOTES_KEPT: usize = 256;

/// Every event, hashed as it happens; the last ones, kept.
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    /// A ring; the next record's place is `count` modulo its length.
    kept: Vec<Record>,
    kept_max: usize,
    notes: VecDeque<String>,
    notes_made: u32,
    is_over: bool,
}

#[derive(Clone, Copy)]
struct Record {
    at: Time,
    subject: u32,
    amount: u32,
    host: HostId,
    what: What,
}

/// What happened to `subject`, the number of a connection unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
    /// A task, by its number.
    Polled,
    Wrote,
    Read,
    ReadEnd,
    /// The amount is the error's number; without a subject, there was to be a connection.
    Failed,
    Arrived,
    EndArrived,
    ResetArrived,
    Lost,
    Retransmitted,
    /// The subject is a port.
    SynSent,
    /// The subject is a port.
    SynDropped,
    /// The subject is a port.
    Refused,
    Connected,
    Queued,
    Accepted,
    ShutDown,
    /// A handle reset the connection.
    Aborted,
    Closed,
    /// A dropped operation has happened nevertheless.
    HappenedUnseen,
    /// The subject is a place in the plan.
    Fault,
    Down,
    Started,
    /// The subject is the number of a text.
    Note,
}

impl Trace {
    pub(crate) fn new(kept_max: usize) -> Self {
        Self {
            hash: 0,
            count: 0,
            kept: Vec::with_capacity(kept_max),
            kept_max,
            notes: VecDeque::new(),
            notes_made: 0,
            is_over: false,
        }
    }

    pub(crate) fn record(&mut self, at: Time, host: HostId, what: What, subject: u32, amount: u32) {
        if self.is_over {
            return;
        }
        let record = Record { at, subject, amount, host, what };
        self.hash = mix(mix(mix(self.hash, at), record.kind()), record.numbers());
        if self.kept.len() < self.kept_max {
            self.kept.push(record);
        } else if self.kept_max > 0 {
            let place = (self.count % self.kept_max as u64) as usize;
            self.kept[place] = record;
        }
        self.count += 1;
    }

    pub(crate) fn note(&mut self, at: Time, host: HostId, text: String) {
        if self.is_over {
            return;
        }
        for byte in text.bytes() {
            self.hash = mix(self.hash, byte.into());
        }
        if self.notes.len() == NOTES_KEPT {
            self.notes.pop_front();
        }
        self.notes.push_back(text);
        self.record(at, host, What::Note, self.notes_made, 0);
        self.notes_made += 1;
    }

    /// What happens from now on, when tasks and connections are dropped, is no part of it.
    pub(crate) const fn end(&mut self) {
        self.is_over = true;
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The last records, at most `most`, a line each; without the turns in which nothing happened.
    pub(crate) fn to_text(&self, hosts: &Hosts, most: usize) -> String {
        let first = self.count - self.kept.len() as u64;
        let kept = |place| &self.kept[(place % self.kept_max as u64) as usize];
        let is_turn = |place| kept(place).what == What::Polled;
        let has_happened = |place| place + 1 == self.count || !is_turn(place + 1);
        let shown: Vec<_> =
            (first..self.count).filter(|place| !is_turn(*place) || has_happened(*place)).collect();
        let mut text = String::new();
        for place in &shown[shown.len().saturating_sub(most)..] {
            let record = kept(*place);
            let Record { at, host, .. } = record;
            let time = Duration::from_nanos(*at).as_secs_f64();
            let name = hosts.get(*host).name();
            let line = Line { record, trace: self };
            writeln!(text, "{time:>14.6} s  {name:<10} {line}").expect("memory takes it");
        }
        text
    }

    fn note_text(&self, number: u32) -> &str {
        let back = (self.notes_made - number) as usize;
        let place = self.notes.len().checked_sub(back);
        place.and_then(|place| self.notes.get(place)).map_or("(forgotten)", String::as_str)
    }
}

impl Record {
    fn kind(&self) -> u64 {
        u64::from(self.host.number()) << 8 | self.what as u64
    }

    fn numbers(&self) -> u64 {
        u64::from(self.subject) << 32 | u64::from(self.amount)
    }
}

/// A multiplication and a rotation: enough to tell runs apart, cheap enough for each event.
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A record in words.
struct Line<'a> {
    record: &'a Record,
    trace: &'a Trace,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { subject, amount, what, .. } = *self.record;
        match what {
            What::Polled => write!(f, "task {subject} has its turn"),
            What::Wrote => write!(f, "#{subject} takes {amount} bytes to send"),
            What::Read => write!(f, "#{subject} reads {amount} bytes"),
            What::ReadEnd => write!(f, "#{subject} reads the end"),
            What::Failed if subject == 0 => {
                write!(f, "has no more: {}", errno::name(amount as i32))
            }
            What::Failed => write!(f, "#{subject} fails: {}", errno::name(amount as i32)),
            What::Arrived => write!(f, "#{subject} receives {amount} bytes"),
            What::EndArrived => write!(f, "#{subject} receives the end"),
            What::ResetArrived => write!(f, "#{subject} is reset"),
            What::Lost => write!(f, "#{subject} would have received {amount} bytes: lost"),
            What::Retransmitted => write!(f, "#{subject} is sent {amount} bytes again"),
            What::SynSent => write!(f, "connects to port {subject}, attempt {amount}"),
            What::SynDropped => write!(f, "port {subject} has a full accept queue: SYN dropped"),
            What::Refused => write!(f, "port {subject} refuses"),
            What::Connected => write!(f, "#{subject} is connected"),
            What::Queued => write!(f, "#{subject} waits to be accepted, behind {amount}"),
            What::Accepted => write!(f, "#{subject} is accepted"),
            What::ShutDown => write!(f, "#{subject} ends its writing"),
            What::Aborted => write!(f, "#{subject} is aborted"),
            What::Closed => write!(f, "#{subject} is closed"),
            What::HappenedUnseen => {
                write!(f, "#{subject}: a dropped operation takes {amount} bytes")
            }
            What::Fault => write!(f, "fault {subject} of the plan"),
            What::Down => write!(f, "goes down"),
            What::Started => write!(f, "starts"),
            What::Note => write!(f, "\"{}\"", self.trace.note_text(subject)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_records_are_kept_and_all_are_hashed() {
        let mut hashes = std::collections::BTreeSet::new();
        for first in 0..20 {
            let mut trace = Trace::new(3);
            trace.note(0, HostId::MAIN, "said".into());
            for number in [first, 7, 8, 9] {
                trace.record(5_000, HostId::MAIN, What::Read, number, 1);
            }
            assert_eq!(trace.count(), 5);
            assert!(hashes.insert(trace.hash()), "what is not kept counts too");
            let text = trace.to_text(&Hosts::new(), 10);
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines[0].trim_start(), "0.000005 s  main       #7 reads 1 bytes");
            assert_eq!(lines.len(), 3);
        }
    }
}
