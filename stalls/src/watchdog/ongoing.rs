//! Stalls that last: their reports, and their ends.

use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use super::{Subject, Watchdog};
use crate::evidence::Evidence;
use crate::incident::Incident;
use crate::report::Message;
use crate::verdict::judge;

/// How many stacks of a thread are kept over the reports of one stall.
const STACKS_MAX: usize = 16;
/// How many ends of stalls wait for a reporter that has fallen behind. Each takes about 1 KB. Further ones are counted and
/// lost.
const ENDS_MAX: usize = 1_024;

/// A stall that lasts.
pub(super) struct OngoingStall {
    pub(super) incident: Incident,
    pub(super) next_report_ms: u64,
    /// The heart's count of late beats when the stall began. When the count rises, the stall is over.
    pub(super) late_beats: u64,
    pub(super) absent_looks: u32,
    /// When the failed probe began that was there when the looks last showed it.
    pub(super) failed_probe_ms: Option<u64>,
    pub(super) began: Instant,
    /// Whether a report of it was written: then its end is, too.
    pub(super) is_reported: bool,
}

impl Watchdog<'_> {
    /// Whether it is time to examine a stall: when it begins, and whenever it has doubled.
    pub(super) fn is_report_due(&self, subject: Subject, lasted: Duration) -> bool {
        self.open.get(&subject).is_none_or(|open| lasted.as_millis() as u64 >= open.next_report_ms)
    }

    pub(super) fn report(
        &mut self,
        subject: Subject,
        worker: &str,
        lasted: Duration,
        late_beats: u64,
        mut evidence: Evidence,
    ) {
        let lasted_ms = lasted.as_millis() as u64;
        let now = Instant::now();
        let known = self.open.remove(&subject);
        if let Some(known) = &known {
            keep_stacks(&known.incident.evidence, &mut evidence);
        }
        let mut verdict = judge(&evidence);
        if let Subject::Process(class) = subject {
            verdict.findings.retain(|finding| finding.class == class);
        }
        let mut open = known.unwrap_or_else(|| {
            self.ids += 1;
            let incident =
                Incident::new(self.ids, worker, lasted_ms, evidence.clone(), verdict.clone());
            let began = now.checked_sub(lasted).unwrap_or(now);
            let is_reported = false;
            OngoingStall {
                incident,
                next_report_ms: 0,
                late_beats,
                absent_looks: 0,
                failed_probe_ms: None,
                began,
                is_reported,
            }
        });
        open.incident.reports += u32::from(open.next_report_ms > 0);
        open.incident.update(lasted_ms, evidence, verdict);
        open.next_report_ms = (lasted_ms * 2).max(self.shared.config.threshold.as_millis() as u64);
        open.is_reported |= self.publish(&open.incident, false);
        self.open.insert(subject, open);
    }

    /// Ends a stall. `lasted`: its length, if that is known exactly.
    pub(super) fn close(&mut self, subject: Subject, lasted: Option<Duration>) {
        let Some(mut open) = self.open.remove(&subject) else { return };
        let lasted = lasted.unwrap_or_else(|| open.began.elapsed());
        open.incident.lasted_ms = lasted.as_millis() as u64;
        open.incident.is_ongoing = false;
        self.publish(&open.incident, open.is_reported);
    }

    pub(super) fn close_all(&mut self) {
        let known: Vec<Subject> = self.open.keys().copied().collect();
        for subject in known {
            self.close(subject, None);
        }
        self.send_again();
    }

    /// Keeps an incident, and sends it to the reporter: as an event if the budget has something left, or in any case if
    /// `is_free`. Whether it is an event.
    fn publish(&mut self, incident: &Incident, is_free: bool) -> bool {
        let incident = Arc::new(incident.clone());
        self.shared.incidents.update(Arc::clone(&incident));
        let is_event = is_free || self.budget.take();
        let event = is_event.then_some(self.budget.suppressed);
        let is_reported = self.send(Message { incident, event }) && is_event;
        self.budget.suppressed = if is_reported { 0 } else { self.budget.suppressed + 1 };
        is_reported
    }

    /// Whether the reporter has the message, or will have it. If it has fallen behind, because a subscriber blocks, an
    /// end waits here: a stall that was reported must not last for ever in the log and in metrics.
    fn send(&mut self, message: Message) -> bool {
        self.send_again(); // an end that waits comes before the next beginning
        match self.reports.try_send(message) {
            Ok(()) => true,
            Err(TrySendError::Full(Message { incident, event }))
                if !incident.is_ongoing && self.ends.len() < ENDS_MAX =>
            {
                let evidence = Evidence::default(); // an end says nothing of it
                let incident = Arc::new(Incident { evidence, ..Incident::clone(&incident) });
                self.ends.push_back(Message { incident, event });
                true
            }
            Err(_) => false,
        }
    }

    /// Sends the ends that wait, as far as the reporter takes them.
    pub(super) fn send_again(&mut self) {
        while let Some(message) = self.ends.pop_front() {
            if let Err(TrySendError::Full(message)) = self.reports.try_send(message) {
                return self.ends.push_front(message);
            }
        }
    }
}

/// Puts the stacks of earlier reports before the new ones: together they say more.
fn keep_stacks(earlier: &Evidence, evidence: &mut Evidence) {
    for thread in &mut evidence.threads {
        let Some(before) = earlier.threads.iter().find(|before| before.tid == thread.tid) else {
            continue;
        };
        // Stacks of another state do not explain this one.
        if before.state == thread.state {
            let room = STACKS_MAX.saturating_sub(thread.stacks.len());
            let kept = &before.stacks[before.stacks.len().saturating_sub(room)..];
            thread.stacks.splice(0..0, kept.iter().cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;
    use crate::Config;
    use crate::detector::Shared;
    use crate::fork::Process;
    use crate::verdict::Class;

    /// The number of each stall that is an event, whether it lasts, and how many events were left out before.
    fn reported(messages: &Receiver<Message>) -> Vec<(u64, bool, u64)> {
        let report = |Message { incident, event }| Some((incident.id, incident.is_ongoing, event?));
        messages.try_iter().filter_map(report).collect()
    }

    #[test]
    fn a_stall_is_reported_again_when_it_has_lasted_twice_as_long() {
        let shared = Arc::new(Shared::new(Config::default(), Process::current().unwrap()));
        let (sender, messages) = sync_channel(8);
        let mut watchdog = Watchdog::new(&shared, &sender);
        let subject = Subject::Process(Class::LostAccept);
        for ms in 60..1_000 {
            let lasted = Duration::from_millis(ms);
            if watchdog.is_report_due(subject, lasted) {
                watchdog.report(subject, "", lasted, 0, Evidence::default());
            }
        }
        let lasted: Vec<u64> = messages.try_iter().map(|it| it.incident.lasted_ms).collect();
        assert_eq!(lasted, [60, 120, 240, 480, 960]);
    }

    /// A stall that the log tells of does not last for ever there.
    #[test]
    fn the_end_of_a_reported_stall_is_reported() {
        let config = Config { reports_per_minute: 1, ..Config::default() };
        let shared = Arc::new(Shared::new(config, Process::current().unwrap()));
        let (sender, messages) = sync_channel(8);
        let mut watchdog = Watchdog::new(&shared, &sender);
        let [first, second] = [Class::LostAccept, Class::AcceptStarvation].map(Subject::Process);
        for subject in [first, second, first] {
            watchdog.report(subject, "", Duration::ZERO, 0, Evidence::default());
        }
        assert_eq!(reported(&messages), [(1, true, 0)]);
        watchdog.close(second, None);
        watchdog.close(first, None);
        assert_eq!(reported(&messages), [(1, false, 3)]);
    }

    /// Metrics have no limit for a minute.
    #[test]
    fn what_is_no_event_is_sent_for_metrics() {
        let config = Config { reports_per_minute: 0, ..Config::default() };
        let shared = Arc::new(Shared::new(config, Process::current().unwrap()));
        let (sender, messages) = sync_channel(8);
        let mut watchdog = Watchdog::new(&shared, &sender);
        let subject = Subject::Process(Class::LostAccept);
        watchdog.report(subject, "", Duration::ZERO, 0, Evidence::default());
        watchdog.close(subject, None);
        let sent = messages.try_iter().map(|it| (it.incident.is_ongoing, it.event));
        assert_eq!(sent.collect::<Vec<_>>(), [(true, None), (false, None)]);
    }

    /// A subscriber that blocks for long does not make a stall last for ever.
    #[test]
    fn an_end_waits_for_a_reporter_that_has_fallen_behind() {
        let shared = Arc::new(Shared::new(Config::default(), Process::current().unwrap()));
        let (sender, messages) = sync_channel(1);
        let mut watchdog = Watchdog::new(&shared, &sender);
        let [first, second] = [Class::LostAccept, Class::AcceptStarvation].map(Subject::Process);
        for subject in [first, second] {
            watchdog.report(subject, "", Duration::ZERO, 0, Evidence::default());
            watchdog.close(subject, None);
        }
        let mut ends = Vec::new();
        for _ in 0..3 {
            ends.extend(
                reported(&messages).into_iter().map(|(id, is_ongoing, _)| (id, is_ongoing)),
            );
            watchdog.send_again();
        }
        assert_eq!(ends, [(1, true), (1, false), (2, false)]);
    }
}
