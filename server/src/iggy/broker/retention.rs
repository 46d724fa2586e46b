//! Removal of messages that their topic is not to keep any longer.

use std::rc::Rc;
use std::time::Duration;

use super::super::catalogue::{Topic, TopicSettings};
use super::super::storage::{MessageLog, Retention};
use super::Broker;

impl Broker {
    /// Removes the messages of each topic that are older, or more, than its settings say. An error was logged, and what
    /// could not be removed is tried again the next time.
    pub async fn enforce_retention(&self) {
        let limited: Vec<_> = {
            let catalogue = self.catalogue.borrow();
            let topics = catalogue.streams().flat_map(|(_, stream)| stream.topics());
            let limited = topics.filter(|(_, topic)| is_limited(&topic.settings));
            limited.map(|(_, topic)| (topic.settings, self.logs_of(topic))).collect()
        };
        for (settings, logs) in limited {
            trim(settings, logs).await;
        }
    }

    fn logs_of(&self, topic: &Topic) -> Vec<Rc<dyn MessageLog>> {
        topic.logs().filter_map(|log| self.logs.get(log).ok()).collect()
    }
}

/// 0 leaves it to the server, which keeps everything. The greatest number says so.
const fn limit(setting: u64) -> Option<u64> {
    match setting {
        0 | u64::MAX => None,
        limit => Some(limit),
    }
}

fn is_limited(settings: &TopicSettings) -> bool {
    limit(settings.message_expiry).is_some() || limit(settings.size_max).is_some()
}

/// Trims the logs of a topic. Of those that are too large together, the largest is trimmed first.
async fn trim(settings: TopicSettings, mut logs: Vec<Rc<dyn MessageLog>>) {
    if let Some(expiry) = limit(settings.message_expiry) {
        let age_max = Some(Duration::from_micros(expiry));
        for log in &logs {
            let _ = log.trim(Retention { bytes_max: None, age_max }).await;
        }
    }
    let Some(size_max) = limit(settings.size_max) else { return };
    logs.sort_by_key(|log| std::cmp::Reverse(log.size().bytes));
    let size: u64 = logs.iter().map(|log| log.size().bytes).sum();
    let mut excess = size.saturating_sub(size_max);
    for log in logs {
        if excess == 0 {
            return;
        }
        let bytes_max = Some(log.size().bytes.saturating_sub(excess));
        let trimmed = log.trim(Retention { bytes_max, age_max: None }).await.unwrap_or(0);
        excess = excess.saturating_sub(trimmed);
    }
}
