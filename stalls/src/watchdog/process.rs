//! The process: what does not stop a heart. The looks alone show it.

use std::time::Duration;

use super::{Subject, Watchdog};
use crate::evidence::{Evidence, ProbeOutcome};
use crate::verdict::{Class, Confidence, judge};

/// An incident of the process is over when so many looks in a row do not show it.
const ABSENT_LOOKS: u32 = 2;

impl Watchdog<'_> {
    /// Judges the looks alone: they show what does not stop a heart.
    pub(super) fn check_process(&mut self) {
        let is_heart_late = self.open.keys().any(|subject| matches!(subject, Subject::Heart(_)));
        if is_heart_late {
            self.looker.forget_connections();
        }
        let evidence = self.evidence(None, false);
        let mut found = judge(&evidence).findings;
        found.retain(|finding| {
            finding.class != Class::Unknown
                && finding.confidence >= Confidence::Likely
                && !(is_heart_late && follows_from_late_heart(finding.class))
        });
        let failed_probe_ms = failed_probe_ms(&evidence);
        let known: Vec<Subject> = self.open.keys().copied().collect();
        for subject in known {
            let Subject::Process(class) = subject else { continue };
            let is_there = found.iter().any(|finding| finding.class == class);
            if !is_there && is_hidden(class, is_heart_late, &evidence) {
                continue; // it may last or be over
            }
            let Some(open) = self.open.get_mut(&subject) else { continue };
            if is_there {
                open.failed_probe_ms = failed_probe_ms;
            } else if is_probed(class) && lasts_until_next(open.failed_probe_ms, failed_probe_ms) {
                continue; // the next probe tells
            }
            open.absent_looks = if is_there { 0 } else { open.absent_looks + 1 };
            if open.absent_looks >= ABSENT_LOOKS {
                self.close(subject, None);
            }
        }
        for finding in found {
            let subject = Subject::Process(finding.class);
            let lasted =
                self.open.get(&subject).map_or(Duration::ZERO, |open| open.began.elapsed());
            if self.is_report_due(subject, lasted) {
                self.report(subject, "", lasted, 0, evidence.clone());
                if let Some(open) = self.open.get_mut(&subject) {
                    open.failed_probe_ms = failed_probe_ms;
                }
            }
        }
    }
}

/// Whether a loop that stalls looks like this from outside, too. Then the looks are evidence of its stall alone.
fn follows_from_late_heart(class: Class) -> bool {
    matches!(
        class,
        Class::AcceptStarvation
            | Class::CompletionQueueOverflow
            | Class::ConnectionNeverCloses
            | Class::LostAccept
            | Class::UnsubmittedEntries
    )
}

/// When the last probe began, if it was not answered. It stays evidence until there is another one, although the looks
/// from its time are forgotten.
fn failed_probe_ms(evidence: &Evidence) -> Option<u64> {
    let probe = evidence.looks.last()?.probe.as_ref()?;
    let is_failed = matches!(probe.outcome, ProbeOutcome::NoByte | ProbeOutcome::NoConnection);
    is_failed.then_some(probe.at_ms)
}

/// Whether a probe may be the only evidence.
fn is_probed(class: Class) -> bool {
    matches!(class, Class::AcceptStarvation | Class::LostAccept)
}

/// Whether the probe that failed `before` is still the last one.
fn lasts_until_next(before: Option<u64>, now: Option<u64>) -> bool {
    before.is_some() && before == now
}

/// Whether the looks cannot show that a fault is over: it would look the same while a heart is late, or connections have
/// not been inspected twice since one was.
fn is_hidden(class: Class, is_heart_late: bool, evidence: &Evidence) -> bool {
    let is_inspected = || evidence.looks.last().is_some_and(|look| look.close_wait_old.is_some());
    is_heart_late && follows_from_late_heart(class)
        || class == Class::ConnectionNeverCloses && !is_inspected()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::Config;
    use crate::detector::Shared;
    use crate::evidence::{Listener, Look, ProbeResult};
    use crate::fork::Process;

    const HEART: Subject = Subject::Heart(1);
    const LATE: Duration = Duration::from_millis(60);

    /// Has `test` use a watchdog with the looks `seen`. It returns the class of each incident, and whether that lasts.
    fn watch(
        seen: Vec<Look>,
        test: impl FnOnce(&mut Watchdog<'_>, &dyn Fn() -> Vec<(Class, bool)>),
    ) {
        let shared = Arc::new(Shared::new(Config::default(), Process::current().unwrap()));
        let (sender, _messages) = sync_channel(64);
        let mut watchdog = Watchdog::new(&shared, &sender);
        watchdog.looks = seen.into();
        let incidents = || {
            let all = shared.incidents.all();
            let processes = all.iter().filter(|incident| incident.worker.is_empty());
            processes.map(|incident| (incident.verdict.class(), incident.is_ongoing)).collect()
        };
        test(&mut watchdog, &incidents);
    }

    fn has_no_descriptor() -> Look {
        Look { descriptors: Some(64), descriptors_max: Some(64), ..Look::default() }
    }

    /// A queue that grows from look to look.
    fn queues() -> Vec<Look> {
        let look = |number: u64| {
            let (addr, queue) = (([127, 0, 0, 1], 80).into(), 600 + number as u32);
            let listener = Listener { addr, inode: 1, queue, backlog: 1_024, dropped: None };
            Look { at_ms: 500 * number, listeners: vec![listener], ..Look::default() }
        };
        (0..8).map(look).collect()
    }

    #[test]
    fn a_second_fault_is_found_while_a_heart_is_late() {
        watch(vec![has_no_descriptor()], |watchdog, incidents| {
            watchdog.report(HEART, "w", LATE, 0, Evidence::default());
            watchdog.check_process();
            assert_eq!(incidents(), [(Class::OutOfDescriptors, true)]);
        });
    }

    /// Otherwise it would begin again when the heart beats, and be counted twice.
    #[test]
    fn a_fault_of_the_process_does_not_end_because_a_heart_is_late() {
        let starved = [(Class::AcceptStarvation, true)];
        watch(queues(), |watchdog, incidents| {
            watchdog.check_process();
            assert_eq!(incidents(), starved);
            watchdog.report(HEART, "w", LATE, 0, Evidence::default());
            watchdog.looks.clear();
            (0..2 * ABSENT_LOOKS).for_each(|_| watchdog.check_process());
            assert_eq!(incidents(), starved, "the looks cannot show that it is over");
            watchdog.close(HEART, None);
            (0..ABSENT_LOOKS).for_each(|_| watchdog.check_process());
            assert_eq!(incidents(), [(Class::AcceptStarvation, false)]);
        });
    }

    /// A probe is made now and then, and the looks of its time are forgotten before the next one.
    #[test]
    fn what_a_probe_has_shown_lasts_until_the_next_probe() {
        let addr = ([127, 0, 0, 1], 80).into();
        let look = |at_ms: u64, probe_ms: u64, outcome| {
            let listener = Listener { addr, inode: 1, queue: 0, backlog: 1_024, dropped: None };
            let (took_ms, limit_ms, silent) = (1_000, 1_000, 3);
            let probe = ProbeResult { addr, at_ms: probe_ms, took_ms, limit_ms, outcome, silent };
            Look { at_ms, listeners: vec![listener], probe: Some(probe), ..Look::default() }
        };
        let looks = |from: u64, probe_ms, outcome| -> VecDeque<Look> {
            (0..8).map(|number| look(from + 500 * number, probe_ms, outcome)).collect()
        };
        let seen = looks(8_000, 10_000, ProbeOutcome::NoByte);
        watch(seen.into(), |watchdog, incidents| {
            watchdog.check_process();
            assert_eq!(incidents(), [(Class::LostAccept, true)]);
            watchdog.looks = looks(14_000, 10_000, ProbeOutcome::NoByte);
            (0..2 * ABSENT_LOOKS).for_each(|_| watchdog.check_process());
            assert_eq!(incidents(), [(Class::LostAccept, true)], "there was no other probe");
            watchdog.looks = looks(21_000, 20_000, ProbeOutcome::Answered);
            (0..ABSENT_LOOKS).for_each(|_| watchdog.check_process());
            assert_eq!(incidents(), [(Class::LostAccept, false)]);
        });
    }

    /// A loop that stalls accepts nobody either.
    #[test]
    fn what_follows_from_a_late_heart_is_no_fault_of_its_own() {
        watch(queues(), |watchdog, incidents| {
            watchdog.report(HEART, "w", LATE, 0, Evidence::default());
            watchdog.check_process();
            assert!(incidents().is_empty());
            watchdog.close(HEART, None);
            watchdog.check_process();
            assert_eq!(incidents(), [(Class::AcceptStarvation, true)]);
        });
    }

    /// Connections are forgotten while a heart is late. Two inspections tell again.
    #[test]
    fn connections_that_never_close_are_not_over_before_the_next_inspections() {
        let look = |close_wait_old| Look { close_wait_old, ..Look::default() };
        watch(vec![look(Some(20))], |watchdog, incidents| {
            watchdog.check_process();
            watchdog.looks = vec![look(None)].into();
            (0..2 * ABSENT_LOOKS).for_each(|_| watchdog.check_process());
            assert_eq!(incidents(), [(Class::ConnectionNeverCloses, true)]);
            watchdog.looks = vec![look(Some(0))].into();
            (0..ABSENT_LOOKS).for_each(|_| watchdog.check_process());
            assert_eq!(incidents(), [(Class::ConnectionNeverCloses, false)]);
        });
    }
}
