//! [`MinuteBudget`]: a limit for each minute.

use std::time::{Duration, Instant};

/// What the current minute still allows.
pub(super) struct MinuteBudget {
    per_minute: u32,
    left: u32,
    since: Instant,
    /// Reports that found nothing left, since the last one.
    pub(super) suppressed: u64,
}

impl MinuteBudget {
    pub(super) fn new(per_minute: u32) -> Self {
        Self { per_minute, left: per_minute, since: Instant::now(), suppressed: 0 }
    }

    pub(super) fn take(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(60) {
            (self.since, self.left) = (Instant::now(), self.per_minute);
        }
        let has_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_left
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::super::{Subject, Watchdog};
    use super::*;
    use crate::Config;
    use crate::detector::Shared;
    use crate::evidence::Evidence;
    use crate::fork::Process;
    use crate::report::Message;
    use crate::stack::ThreadRef;
    use crate::verdict::Class;

    /// The number of each stall that is an event, whether it lasts, and how many events were left out before.
    fn reported(messages: &Receiver<Message>) -> Vec<(u64, bool, u64)> {
        let report = |Message { incident, event }| Some((incident.id, incident.is_ongoing, event?));
        messages.try_iter().filter_map(report).collect()
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
    /// Under overload each short stall would take one.
    #[test]
    fn a_stall_that_is_not_examined_has_no_look_of_its_own() {
        let shared = Arc::new(Shared::new(Config::default(), Process::current().unwrap()));
        let heart = shared.add_heart("silent", Some(ThreadRef::current()));
        std::thread::sleep(shared.config.interval + shared.config.threshold);
        let (sender, _messages) = sync_channel(8);
        let mut watchdog = Watchdog::new(&shared, &sender);
        watchdog.examinations = MinuteBudget::new(0);
        watchdog.check_heart(&heart.state);
        assert!(watchdog.looks.is_empty());
        let incidents = shared.incidents.all();
        let unseen = &incidents[0].evidence.unseen;
        assert!(unseen.iter().any(|it| it.contains("examined in this minute")), "{unseen:?}");
    }
}
