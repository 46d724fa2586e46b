//! [`judge`]: from evidence to a class, with the reasons and the cure. Plain functions, one file for each subject.

mod accept;
mod blocked;
mod cpu;
mod frames;
mod load;
mod resources;
mod ring;

use std::fmt;

pub(crate) use load::may_be_overload;
use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::proc::thread::is_stopped;

/// What kind of stall it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Class {
    /// The event loop runs, but accepts fewer connections than arrive.
    AcceptStarvation,
    /// An accept queue is full, and the kernel drops connection requests.
    AcceptQueueOverflow,
    /// Entries of a submission queue are not given to the kernel.
    UnsubmittedEntries,
    /// A task that is always ready keeps the event loop from I/O and timers.
    SelfWakingTask,
    /// No descriptor is left.
    OutOfDescriptors,
    /// A connection was accepted, and nobody has it.
    LostAccept,
    /// Connections stay open although their peers, or the program, have dropped them.
    ConnectionNeverCloses,
    /// A blocking call or a long computation on the event loop.
    BlockedLoop,
    /// More is queued than the program said may be: a reader is slower than its writer.
    BackPressureIgnored,
    /// No local port is left for outgoing connections.
    EphemeralPortsUsedUp,
    /// A ring has more completions than its queue holds.
    CompletionQueueOverflow,
    /// One connection keeps the event loop busy with its socket.
    ConnectionOwnsWorker,
    /// The event loop waits for whoever reads its log.
    BlockedLog,
    /// More tasks are ready than the event loop gets through in the threshold, and each is polled in turn.
    Overload,
    /// The thread could run and got no CPU.
    WaitingForCpu,
    /// The thread waits for memory: its pages are read from a disk.
    MemoryPressure,
    /// No class fits.
    Unknown,
}

/// How sure a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// It fits, and something else may, too.
    Possible,
    /// It fits better than anything else.
    Likely,
    /// The evidence shows it.
    Certain,
}

/// One class that fits the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// The class.
    pub class: Class,
    /// How sure.
    pub confidence: Confidence,
    /// What shows it, a sentence each.
    pub evidence: Vec<String>,
    /// What to do.
    pub cure: String,
}

/// What the evidence means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// What fits, the surest first, and of two that are equally sure the one that explains the other. Never empty.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// The class that fits best.
    pub fn class(&self) -> Class {
        self.findings.first().map_or(Class::Unknown, |finding| finding.class)
    }

    /// How sure [`class`](Self::class) is.
    pub fn confidence(&self) -> Confidence {
        self.findings.first().map_or(Confidence::Possible, |finding| finding.confidence)
    }

    /// Whether `class` is among the findings.
    pub fn has(&self, class: Class) -> bool {
        self.findings.iter().any(|finding| finding.class == class)
    }
}

/// Judges the evidence. If a heart is late and no class fits, the verdict is [`Class::Unknown`] with what was seen. So
/// it is if a debugger or a signal has stopped a thread, or one has ended.
///
/// What a running thread does is told by functions of its runtime on its stacks. Without such names, a finding about it
/// is at most [`Confidence::Possible`], and says what is not known.
pub fn judge(evidence: &Evidence) -> Verdict {
    if evidence.threads.iter().any(|thread| thread.state.is_some_and(is_stopped)) {
        return Verdict { findings: vec![unknown(evidence)] };
    }
    // In this order where two are equally sure: a cause before what follows from it.
    let examine: [fn(&Evidence) -> Option<Finding>; 16] = [
        resources::out_of_descriptors,
        cpu::waiting_for_cpu,
        blocked::memory_pressure,
        blocked::blocked_log,
        load::overload,
        cpu::self_waking_task,
        cpu::connection_owns_worker,
        blocked::blocked_loop,
        ring::unsubmitted_entries,
        ring::completion_queue_overflow,
        accept::lost_accept,
        accept::queue_overflow,
        accept::starvation,
        resources::ports_used_up,
        resources::back_pressure_ignored,
        resources::connection_never_closes,
    ];
    let mut findings: Vec<Finding> =
        examine.iter().filter_map(|examine| examine(evidence)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.confidence)); // stable
    if findings.is_empty() {
        findings.push(unknown(evidence));
    }
    Verdict { findings }
}

fn unknown(evidence: &Evidence) -> Finding {
    let mut sentences = Vec::new();
    for thread in &evidence.threads {
        sentences.push(frames::describe(thread));
        if let Some(state) = thread.state.filter(|state| is_stopped(*state)) {
            let (tid, name) = (thread.tid, &thread.name);
            sentences
                .push(format!("Thread {tid} ({name}) is stopped or has ended (state {state})."));
        }
    }
    sentences.extend(ring::unread_completions(evidence));
    if evidence.threads.iter().any(|thread| load::may_be_load(evidence, thread)) {
        sentences.push(
            "That may be load alone: thousands of ready connections make one iteration of the loop that long.".into(),
        );
    }
    sentences.extend(evidence.unseen.iter().map(|reason| format!("Not seen: {reason}.")));
    Finding {
        class: Class::Unknown,
        confidence: Confidence::Possible,
        evidence: sentences,
        cure: "Look at the stack and the looks of this incident.".into(),
    }
}

impl Class {
    /// The name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::AcceptStarvation => "accept_starvation",
            Self::AcceptQueueOverflow => "accept_queue_overflow",
            Self::UnsubmittedEntries => "unsubmitted_entries",
            Self::SelfWakingTask => "self_waking_task",
            Self::OutOfDescriptors => "out_of_descriptors",
            Self::LostAccept => "lost_accept",
            Self::ConnectionNeverCloses => "connection_never_closes",
            Self::BlockedLoop => "blocked_loop",
            Self::BackPressureIgnored => "back_pressure_ignored",
            Self::EphemeralPortsUsedUp => "ephemeral_ports_used_up",
            Self::CompletionQueueOverflow => "completion_queue_overflow",
            Self::ConnectionOwnsWorker => "connection_owns_worker",
            Self::BlockedLog => "blocked_log",
            Self::Overload => "overload",
            Self::WaitingForCpu => "waiting_for_cpu",
            Self::MemoryPressure => "memory_pressure",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AcceptStarvation => "accept starvation",
            Self::AcceptQueueOverflow => "accept queue overflow",
            Self::UnsubmittedEntries => "ring entries never submitted",
            Self::SelfWakingTask => "a task that is always ready",
            Self::OutOfDescriptors => "out of descriptors",
            Self::LostAccept => "a lost accept",
            Self::ConnectionNeverCloses => "connections that never close",
            Self::BlockedLoop => "blocked event loop",
            Self::BackPressureIgnored => "back-pressure ignored",
            Self::EphemeralPortsUsedUp => "local ports used up",
            Self::CompletionQueueOverflow => "completion queue overflow",
            Self::ConnectionOwnsWorker => "one connection keeps the worker",
            Self::BlockedLog => "blocked log",
            Self::Overload => "overload",
            Self::WaitingForCpu => "waiting for a CPU",
            Self::MemoryPressure => "waiting for memory",
            Self::Unknown => "unknown",
        })
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Certain => "certain",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            if index > 0 {
                f.write_str(" Also: ")?;
            }
            write!(f, "{} ({}).", finding.class, finding.confidence)?;
            for sentence in &finding.evidence {
                write!(f, " {sentence}")?;
            }
            write!(f, " Cure: {}", finding.cure)?;
        }
        Ok(())
    }
}
