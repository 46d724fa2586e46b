//! Processor time of this thread, for criterion.

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use owned_io_comparisons_codec::cpu_time;

pub(crate) struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        cpu_time()
    }
    fn end(&self, start: Duration) -> Duration {
        cpu_time() - start
    }
    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }
    fn zero(&self) -> Duration {
        Duration::ZERO
    }
    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}
