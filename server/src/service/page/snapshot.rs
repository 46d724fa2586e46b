//! [`Last`]: the snapshot of the server that viewers get.

use std::cmp::Reverse;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use owned_io::Clock;
use owned_io_stalls as stalls;
use serde::Serialize;

use crate::context::Context;
use crate::metrics::{GATHER_TIME_MAX, Metrics, Totals};

/// A snapshot is made once in this time, whoever asks.
const MADE_EVERY: Duration = Duration::from_millis(500);

/// How many stalls it has, the last ones. A stall takes 2.5 KB at most.
const STALLS_MAX: usize = 8;

/// The most bytes of the text of a stall, before JSON escapes it. `/stalls` has all of it.
const STALL_TEXT_BYTES_MAX: usize = 384;

/// How many workers it has, those that are the latest. A worker takes 210 bytes at most.
const WORKERS_MAX: usize = 32;

/// The snapshot that was made last, for all workers.
#[derive(Debug, Default)]
pub(super) struct Last(Mutex<Option<(Instant, Bytes)>>);

#[derive(Debug, Serialize)]
struct Snapshot {
    /// In milliseconds since 1970.
    now_ms: u64,
    is_draining: bool,
    /// How long it took until all workers had replied. `None`: longer than the maximum.
    reply_us: Option<u64>,
    reply_us_max: u64,
    #[serde(flatten)]
    totals: Totals,
    /// `None`: nobody watches.
    lateness: Option<Vec<Lateness>>,
    stalls: Option<Stalls>,
}

/// How late a worker comes to its tasks, since it began.
#[derive(Debug, Serialize)]
struct Lateness {
    worker: String,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

#[derive(Debug, Serialize)]
struct Stalls {
    /// The oldest first.
    recent: Vec<Stall>,
}

#[derive(Debug, Serialize)]
struct Stall {
    id: u64,
    /// Empty: the whole process.
    worker: String,
    class: &'static str,
    began_ms: u64,
    lasted_ms: u64,
    is_ongoing: bool,
    text: String,
}

impl Last {
    /// The last snapshot, or one that is made now if that is old. It is JSON.
    pub(super) async fn get<R: Clock>(&self, metrics: &Metrics, ctx: &Context) -> Bytes {
        if let Some(json) = self.recent(R::now()) {
            return json;
        }
        let began = R::now();
        let have_replied = metrics.gather::<R>().await;
        let took = R::now() - began;
        let now = R::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
        let detected = ctx.worker.stalls.detector().map(stalls::Detector::snapshot);
        let snapshot = Snapshot {
            now_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            is_draining: ctx.connection.is_draining(),
            reply_us: have_replied.then(|| micros(took)),
            reply_us_max: micros(GATHER_TIME_MAX),
            totals: metrics.totals(),
            lateness: detected.as_ref().map(|detected| lateness(&detected.workers)),
            stalls: detected.as_ref().map(|detected| Stalls::of(&detected.incidents)),
        };
        // It has texts and numbers, so that it never fails.
        let json = Bytes::from(serde_json::to_vec(&snapshot).unwrap_or_default());
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((R::now(), json.clone()));
        json
    }

    fn recent(&self, now: Instant) -> Option<Bytes> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, json) = last.as_ref()?;
        (now.saturating_duration_since(*made) < MADE_EVERY).then(|| json.clone())
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The latest workers, in the order of their numbers.
fn lateness(workers: &[stalls::WorkerSnapshot]) -> Vec<Lateness> {
    let mut latest: Vec<_> = workers.iter().collect();
    latest.sort_by_key(|worker| Reverse(worker.lateness.p99_us));
    latest.truncate(WORKERS_MAX);
    latest.sort_by_key(|worker| (worker.name.len(), &worker.name));
    let shown = latest.into_iter().map(|worker| Lateness {
        worker: cut(&worker.name, 16),
        p50_us: worker.lateness.p50_us,
        p99_us: worker.lateness.p99_us,
        max_us: worker.lateness.max_us,
    });
    shown.collect()
}

impl Stalls {
    fn of(incidents: &[std::sync::Arc<stalls::Incident>]) -> Self {
        let mut recent: Vec<_> = incidents.iter().collect();
        recent.sort_by_key(|incident| incident.id);
        let older = recent.len().saturating_sub(STALLS_MAX);
        Self { recent: recent[older..].iter().map(|incident| Stall::of(incident)).collect() }
    }
}

impl Stall {
    fn of(incident: &stalls::Incident) -> Self {
        Self {
            id: incident.id,
            worker: cut(&incident.worker, 16),
            class: incident.verdict.class().name(),
            began_ms: incident.began_unix_ms,
            lasted_ms: incident.lasted_ms,
            is_ongoing: incident.is_ongoing,
            text: cut(&incident.verdict.to_string(), STALL_TEXT_BYTES_MAX),
        }
    }
}

/// At most `bytes_max` bytes of `text`, and dots if it is longer.
fn cut(text: &str, bytes_max: usize) -> String {
    match text.len() > bytes_max {
        true => format!("{}…", &text[..text.floor_char_boundary(bytes_max)]),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::MESSAGE_BYTES_MAX;
    use super::*;

    /// Each byte of such a text takes six in JSON.
    const ODD: &str = "\u{1}";

    fn incident(id: u64, text: &str) -> Arc<stalls::Incident> {
        let finding = json!({
            "class": "blocked_loop", "confidence": "certain", "evidence": [text], "cure": "none",
        });
        let incident = json!({
            "id": id, "worker": text, "began_unix_ms": u64::MAX, "lasted_ms": u64::MAX, "is_ongoing": true,
            "reports": 1, "verdict": { "findings": [finding] }, "evidence": {},
        });
        Arc::new(serde_json::from_value(incident).unwrap())
    }

    fn worker(name: &str, p99_us: u64) -> stalls::WorkerSnapshot {
        let lateness =
            json!({ "beats": 1, "p50_us": u64::MAX, "p99_us": p99_us, "max_us": u64::MAX });
        serde_json::from_value(json!({ "name": name, "lateness": lateness })).unwrap()
    }

    /// Next to them there are some 4 KB of totals.
    #[test]
    fn stalls_and_workers_fit_a_message_whatever_they_contain() {
        let odd = ODD.repeat(10_000);
        let incidents: Vec<_> = (0..100).map(|id| incident(id, &odd)).collect();
        let workers: Vec<_> = (0..1_024).map(|_| worker(&odd, u64::MAX)).collect();
        let stalls = serde_json::to_vec(&Stalls::of(&incidents)).unwrap();
        let lateness = serde_json::to_vec(&lateness(&workers)).unwrap();
        let bytes = stalls.len() + lateness.len();
        assert!(bytes < MESSAGE_BYTES_MAX - 4 * 1024, "{} and {}", stalls.len(), lateness.len());
    }

    #[test]
    fn the_last_stalls_and_the_latest_workers_are_kept() {
        let incidents: Vec<_> = [7, 3, 1, 2, 4, 9, 8, 6, 5].map(|id| incident(id, "é")).into();
        let stalls = Stalls::of(&incidents);
        let ids: Vec<_> = stalls.recent.iter().map(|stall| stall.id).collect();
        assert_eq!(ids, [2, 3, 4, 5, 6, 7, 8, 9]);
        let workers: Vec<_> = (0..100).map(|n| worker(&n.to_string(), 1_000 - n)).collect();
        let names: Vec<_> = lateness(&workers).into_iter().map(|worker| worker.worker).collect();
        assert!(names.iter().map(|name| name.parse::<usize>().unwrap()).eq(0..WORKERS_MAX));
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        for (text, expected) in [("", ""), ("abcd", "abcd"), ("abcde", "abcd…"), ("abcéé", "abc…")]
        {
            assert_eq!(cut(text, 4), expected);
        }
    }

    #[test]
    fn a_snapshot_is_made_again_when_it_is_old() {
        let (last, now) = (Last::default(), Instant::now());
        assert_eq!(last.recent(now), None);
        *last.0.lock().unwrap() = Some((now, Bytes::from_static(b"{}")));
        assert_eq!(last.recent(now).as_deref(), Some(&b"{}"[..]));
        assert_eq!(last.recent(now + MADE_EVERY), None);
    }
}
