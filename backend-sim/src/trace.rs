//! [`Trace`]: the events of a run, as a hash that tells runs from each other, and the last ones as text.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::time::Duration;

use crate::core::Time;
use crate::errno;
use crate::host::{HostId, Hosts};

/// How many records are kept by default: enough for the last few exchanges of some connections, few enough to
/// stay in the cache.
pub(crate) const RECORDS_KEPT: usize = 1024;

/// How many notes are kept.
const NOTES_KEPT: usize = 256;

/// Hashes every event, and keeps the last ones.
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    /// A ring; the index of the next record is `count` modulo its length.
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
    kind: TraceKind,
}

/// What happened to `subject`: the number of a connection, unless a variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TraceKind {
    /// The subject is the number of a task.
    Polled,
    Wrote,
    Read,
    ReadEnd,
    /// The amount is the error number. Without a subject, no connection could be made.
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
    /// A dropped operation has completed all the same.
    DroppedOperation,
    /// The subject is an index in the plan.
    Fault,
    Down,
    Started,
    /// The subject is the number of a note.
    Note,
    /// The subject is the number of an open file.
    FileRead,
    /// The subject is the number of an open file.
    FileWrote,
    /// The subject is the number of an open file.
    FileSynced,
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

    pub(crate) fn record(
        &mut self,
        at: Time,
        host: HostId,
        kind: TraceKind,
        subject: u32,
        amount: u32,
    ) {
        if self.is_over {
            return;
        }
        let record = Record { at, subject, amount, host, kind };
        self.hash = mix(mix(mix(self.hash, at), record.host_and_kind()), record.numbers());
        if self.kept.len() < self.kept_max {
            self.kept.push(record);
        } else if self.kept_max > 0 {
            let index = (self.count % self.kept_max as u64) as usize;
            self.kept[index] = record;
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
        self.record(at, host, TraceKind::Note, self.notes_made, 0);
        self.notes_made += 1;
    }

    /// Ends the trace: tasks and connections that are dropped from now on are no part of it.
    pub(crate) const fn end(&mut self) {
        self.is_over = true;
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The last records, at most `most`, one line each, without polls in which nothing happened.
    pub(crate) fn to_text(&self, hosts: &Hosts, most: usize) -> String {
        let first = self.count - self.kept.len() as u64;
        let kept = |number| &self.kept[(number % self.kept_max as u64) as usize];
        let is_poll = |number| kept(number).kind == TraceKind::Polled;
        let is_followed = |number| number + 1 == self.count || !is_poll(number + 1);
        let shown: Vec<_> = (first..self.count)
            .filter(|number| !is_poll(*number) || is_followed(*number))
            .collect();
        let mut text = String::new();
        for number in &shown[shown.len().saturating_sub(most)..] {
            let record = kept(*number);
            let Record { at, host, .. } = record;
            let time = Duration::from_nanos(*at).as_secs_f64();
            let name = hosts.get(*host).name();
            let line = Line { record, trace: self };
            writeln!(text, "{time:>14.6} s  {name:<10} {line}")
                .expect("a `String` takes every write");
        }
        text
    }

    fn note_text(&self, number: u32) -> &str {
        let back = (self.notes_made - number) as usize;
        let index = self.notes.len().checked_sub(back);
        index.and_then(|index| self.notes.get(index)).map_or("(forgotten)", String::as_str)
    }
}

impl Record {
    fn host_and_kind(&self) -> u64 {
        u64::from(self.host.number()) << 8 | self.kind as u64
    }

    fn numbers(&self) -> u64 {
        u64::from(self.subject) << 32 | u64::from(self.amount)
    }
}

/// A multiplication and a rotation: enough to tell runs from each other, cheap enough for each event.
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A record as text.
struct Line<'a> {
    record: &'a Record,
    trace: &'a Trace,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { subject, amount, kind, .. } = *self.record;
        match kind {
            TraceKind::Polled => write!(f, "task {subject} is polled"),
            TraceKind::Wrote => write!(f, "#{subject} takes {amount} bytes to send"),
            TraceKind::Read => write!(f, "#{subject} reads {amount} bytes"),
            TraceKind::ReadEnd => write!(f, "#{subject} reads the end"),
            TraceKind::Failed if subject == 0 => {
                write!(f, "cannot open a connection: {}", errno::name(amount as i32))
            }
            TraceKind::Failed => write!(f, "#{subject} fails: {}", errno::name(amount as i32)),
            TraceKind::Arrived => write!(f, "#{subject} receives {amount} bytes"),
            TraceKind::EndArrived => write!(f, "#{subject} receives the end"),
            TraceKind::ResetArrived => write!(f, "#{subject} is reset"),
            TraceKind::Lost => write!(f, "#{subject} would have received {amount} bytes: lost"),
            TraceKind::Retransmitted => write!(f, "#{subject} is sent {amount} bytes again"),
            TraceKind::SynSent => write!(f, "connects to port {subject}, attempt {amount}"),
            TraceKind::SynDropped => {
                write!(f, "port {subject} has a full accept queue: SYN dropped")
            }
            TraceKind::Refused => write!(f, "port {subject} refuses"),
            TraceKind::Connected => write!(f, "#{subject} is connected"),
            TraceKind::Queued => write!(f, "#{subject} waits to be accepted, behind {amount}"),
            TraceKind::Accepted => write!(f, "#{subject} is accepted"),
            TraceKind::ShutDown => write!(f, "#{subject} ends its writing"),
            TraceKind::Aborted => write!(f, "#{subject} is aborted"),
            TraceKind::Closed => write!(f, "#{subject} is closed"),
            TraceKind::DroppedOperation => {
                write!(f, "#{subject}: a dropped operation takes {amount} bytes")
            }
            TraceKind::Fault => write!(f, "fault {subject} of the plan"),
            TraceKind::Down => write!(f, "goes down"),
            TraceKind::Started => write!(f, "starts"),
            TraceKind::FileRead => write!(f, "file {subject}: reads {amount} bytes"),
            TraceKind::FileWrote => write!(f, "file {subject}: writes {amount} bytes"),
            TraceKind::FileSynced => write!(f, "file {subject}: is synced"),
            TraceKind::Note => write!(f, "\"{}\"", self.trace.note_text(subject)),
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
                trace.record(5_000, HostId::MAIN, TraceKind::Read, number, 1);
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
