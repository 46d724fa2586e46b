//! [`Figures`]: what the facade `metrics` gets.

use std::collections::HashMap;
use std::time::Instant;

use crate::detector::Shared;
use crate::incident::Incident;

/// More stalls do not last at once: some 1,000 hearts, as many threads of pools, and each class of the process. Only ends
/// that were lost could make it more.
const ONGOING_MAX: usize = 4_096;

/// What metrics were told. Belongs to the thread of the reporter.
#[derive(Default)]
pub(super) struct Figures {
    /// When the figures of the workers were set last.
    workers_set: Option<Instant>,
    /// Each stall that lasts, by its number.
    ongoing: HashMap<u64, Ongoing>,
}

struct Ongoing {
    worker: String,
    class: &'static str,
    lasted_ms: u64,
}

impl Figures {
    /// Counts a stall that is over, or sets how long one has lasted.
    pub(super) fn count(&mut self, incident: &Incident) {
        let Incident { id, lasted_ms, .. } = *incident;
        let (worker, class) = (&incident.worker, incident.verdict.class().name());
        // More may be known of a stall later: then its class is another one.
        let before = self.ongoing.remove(&id);
        if incident.is_ongoing {
            if self.ongoing.len() == ONGOING_MAX {
                self.ongoing.clear();
            }
            self.ongoing.insert(id, Ongoing { worker: worker.clone(), class, lasted_ms });
        } else {
            let labels = labels(worker, class);
            metrics::counter!("stalls_total", &labels).increment(1);
            metrics::histogram!("stalls_seconds", &labels).record(lasted_ms as f64 / 1e3);
        }
        if let Some(before) = before.filter(|before| before.class != class) {
            self.set_ongoing(&before.worker, before.class);
        }
        self.set_ongoing(worker, class);
    }

    /// Sets how long a stall has lasted: of several with these labels, such as of threads with one name, the longest.
    fn set_ongoing(&self, worker: &str, class: &str) {
        let same = self.ongoing.values().filter(|it| it.worker == worker && it.class == class);
        let ms = same.map(|it| it.lasted_ms).max().unwrap_or(0);
        metrics::gauge!("stalls_ongoing_seconds", &labels(worker, class)).set(ms as f64 / 1e3);
    }

    /// Sets how late each worker beats, unless that was done within the interval of looks.
    pub(super) fn set_workers(&mut self, shared: &Shared) {
        let interval = shared.config.look_interval;
        if self.workers_set.is_some_and(|set| set.elapsed() < interval) {
            return;
        }
        self.workers_set = Some(Instant::now());
        for worker in shared.workers() {
            let labels = [("worker", worker.name)];
            for (name, us) in [
                ("stalls_heartbeat_late_p50_seconds", worker.lateness.p50_us),
                ("stalls_heartbeat_late_p99_seconds", worker.lateness.p99_us),
                ("stalls_heartbeat_late_max_seconds", worker.lateness.max_us),
            ] {
                metrics::gauge!(name, &labels).set(us as f64 / 1e6);
            }
        }
    }
}

fn labels(worker: &str, class: &str) -> [(&'static str, String); 2] {
    [("worker", worker.to_owned()), ("class", class.to_owned())]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::*;
    use crate::evidence::Evidence;
    use crate::verdict::{Class, judge};

    /// The gauges by the class of their labels.
    #[derive(Default)]
    struct Gauges(RefCell<BTreeMap<String, Arc<AtomicU64>>>);

    impl Recorder for Gauges {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            let class = key.labels().find(|label| label.key() == "class").unwrap();
            let mut gauges = self.0.borrow_mut();
            Gauge::from_arc(Arc::clone(gauges.entry(class.value().to_owned()).or_default()))
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn a_stall_whose_class_changes_lasts_in_one_class() {
        let (gauges, mut figures) = (Gauges::default(), Figures::default());
        let evidence = Evidence::default();
        let mut incident = Incident::new(1, "w", 60, evidence.clone(), judge(&evidence));
        let mut count_of = |id, class, lasted_ms, is_ongoing| {
            incident.id = id;
            incident.verdict.findings[0].class = class;
            (incident.lasted_ms, incident.is_ongoing) = (lasted_ms, is_ongoing);
            metrics::with_local_recorder(&gauges, || figures.count(&incident));
            let gauges = gauges.0.borrow();
            let seconds = |class: Class| {
                gauges.get(class.name()).map_or(0.0, |bits| f64::from_bits(bits.load(Relaxed)))
            };
            (seconds(Class::Unknown), seconds(Class::BlockedLoop))
        };
        let mut count = |class, lasted_ms, is_ongoing| count_of(1, class, lasted_ms, is_ongoing);
        assert_eq!(count(Class::Unknown, 60, true), (0.06, 0.0));
        assert_eq!(count(Class::BlockedLoop, 120, true), (0.0, 0.12));
        assert_eq!(count(Class::BlockedLoop, 240, true), (0.0, 0.24));
        assert_eq!(count(Class::Unknown, 300, false), (0.0, 0.0));
        // Threads of a pool have one name.
        assert_eq!(count_of(1, Class::BlockedLoop, 500, true), (0.0, 0.5));
        assert_eq!(count_of(2, Class::BlockedLoop, 60, true), (0.0, 0.5));
        assert_eq!(count_of(1, Class::BlockedLoop, 600, false), (0.0, 0.06));
        assert_eq!(count_of(2, Class::BlockedLoop, 90, false), (0.0, 0.0));
        assert!(figures.ongoing.is_empty());
    }
}
