//! What the features `metrics` and `owned-io` add.

mod common;

#[cfg(feature = "metrics")]
mod metrics_feature {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Acquire;
    use std::sync::{Arc, Mutex, OnceLock};
    use std::time::{Duration, Instant};

    use metrics::{
        Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString,
        Unit,
    };
    use owned_io_stalls::{Config, Detector, Incident};

    use super::common::{LIMIT, wait_for, wait_for_end};

    /// The figures by name and labels. Counters and gauges keep them in an atomic, histograms the last value.
    #[derive(Default, Clone)]
    struct Figures(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

    impl Figures {
        fn of(&self, key: &Key) -> Arc<AtomicU64> {
            let mut name = key.name().to_owned();
            for label in key.labels() {
                name += &format!(" {}={}", label.key(), label.value());
            }
            Arc::clone(self.0.lock().unwrap().entry(name).or_default())
        }

        fn get(&self, name: &str) -> Option<u64> {
            self.0.lock().unwrap().get(name).map(|figure| figure.load(Acquire))
        }

        fn wait_for(&self, name: &str, is_meant: impl Fn(u64) -> bool) {
            let until = Instant::now() + LIMIT;
            while !self.get(name).is_some_and(&is_meant) {
                assert!(Instant::now() < until, "{name}: {:?}", self.0.lock().unwrap());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    struct Last(Arc<AtomicU64>);

    impl HistogramFn for Last {
        fn record(&self, value: f64) {
            self.0.store(value.to_bits(), std::sync::atomic::Ordering::Release);
        }
    }

    impl Recorder for Figures {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.of(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.of(key))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Last(self.of(key))))
        }
    }

    /// The recorder of all tests here.
    fn figures() -> Figures {
        static FIGURES: OnceLock<Figures> = OnceLock::new();
        let install = || {
            let figures = Figures::default();
            metrics::set_global_recorder(figures.clone()).map_err(|_| "there is one").unwrap();
            figures
        };
        FIGURES.get_or_init(install).clone()
    }

    /// The log has a limit, and metrics have none.
    #[test]
    fn a_stall_that_is_not_written_is_counted() {
        let figures = figures();
        let mut config = Config::default();
        config.reports_per_minute = 0;
        let detector = Detector::start(config).unwrap();
        let heart = detector.watch_current_thread("unwritten");
        wait_for(&detector, "unwritten", |it| it.worker == "unwritten");
        heart.beat();
        drop(heart);
        let is_over = |it: &&Arc<Incident>| !it.is_ongoing;
        let until = Instant::now() + LIMIT;
        let class = loop {
            if let Some(incident) = detector.incidents().iter().find(is_over) {
                break incident.verdict.class();
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        figures.wait_for(&format!("stalls_total worker=unwritten class={}", class.name()), |it| {
            it == 1
        });
    }

    /// A stall is counted when it is over, and meanwhile a gauge has its length.
    #[test]
    fn a_stall_in_metrics() {
        let figures = figures();
        let detector = Detector::start(Config::default()).unwrap();
        let heart = detector.watch_current_thread("silent");
        let incident = wait_for(&detector, "metrics", |it| it.worker == "silent" && it.reports > 2);
        let class = incident.verdict.class();
        let labels = format!("worker=silent class={}", class.name());
        let seconds = |bits: u64| f64::from_bits(bits);
        figures.wait_for(&format!("stalls_ongoing_seconds {labels}"), |it| seconds(it) >= 0.05);
        assert_eq!(figures.get(&format!("stalls_total {labels}")).unwrap_or(0), 0);
        heart.beat();
        drop(heart);
        let over = wait_for_end(&detector, class);
        // The last evidence may have been of another class.
        let labels = format!("worker=silent class={}", over.verdict.class().name());
        figures.wait_for(&format!("stalls_total {labels}"), |it| it == 1);
        figures.wait_for(&format!("stalls_seconds {labels}"), |it| seconds(it) >= 0.05);
        figures.wait_for(&format!("stalls_ongoing_seconds {labels}"), |it| seconds(it) == 0.0);

        let beating = detector.watch_current_thread("beats");
        let until = Instant::now() + LIMIT;
        let name = "stalls_heartbeat_late_max_seconds worker=beats";
        while figures.get(name).is_none() {
            assert!(Instant::now() < until);
            beating.beat();
            std::thread::sleep(beating.interval());
        }
    }
}

#[cfg(feature = "owned-io")]
mod owned_io_feature {
    use std::time::Duration;

    use owned_io::{Clock, Executor};
    use owned_io_sim::Sim;
    use owned_io_stalls::{Config, Detector, heartbeat};

    /// The time of the simulation passes faster than that of the detector: what counts is that the heart beats.
    #[test]
    fn a_heart_on_a_runtime_of_owned_io() {
        let detector = Detector::start(Config::default()).unwrap();
        Sim::block_on(owned_io_sim::Config::with_seed(1), async move {
            let heart = detector.watch_current_thread("simulated");
            drop(Sim::spawn(heartbeat::<Sim>(heart)));
            Sim::sleep(Duration::from_secs(10)).await;
            let workers = detector.snapshot().workers;
            assert_eq!(workers[0].name, "simulated");
            assert!(workers[0].lateness.beats >= 100, "{workers:?}");
        })
        .unwrap();
    }
}
