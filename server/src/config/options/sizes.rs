//! Numbers that must be mistakes.

use std::num::{NonZeroU32, NonZeroUsize};

use super::Options;

impl Options {
    /// Refuses numbers that must be mistakes, with which threads, descriptors or clocks would run out.
    pub(super) fn check_sizes(&self) -> Result<(), String> {
        for (option, given, max) in [
            ("workers", self.workers.map(NonZeroUsize::get), WORKERS_MAX),
            ("connections-max", self.connections_max.map(NonZeroUsize::get), CONNECTIONS_MAX),
            ("message-seconds-max", self.message_seconds_max.map(as_usize), SECONDS_MAX),
            (
                "idle-seconds-max",
                self.idle_seconds_max.map(|seconds| seconds as usize),
                SECONDS_MAX,
            ),
            ("iggy-memory-max", self.iggy_memory_max.map(NonZeroUsize::get), IGGY_MEMORY_BYTES_MAX),
            #[cfg(feature = "kafka")]
            ("kafka-seconds", self.kafka_seconds.map(as_usize), KAFKA_SECONDS_MAX),
            ("object-seconds", self.object_seconds.map(|seconds| seconds as usize), SECONDS_MAX),
            (
                "object-stale-seconds",
                self.object_stale_seconds.map(|seconds| seconds as usize),
                SECONDS_MAX,
            ),
            (
                "object-memory-max",
                self.object_memory_max.map(NonZeroUsize::get),
                OBJECT_MEMORY_BYTES_MAX,
            ),
            ("chunk", self.chunk.map(|bytes| bytes as usize), CHUNK_BYTES_MAX),
            ("linger-seconds", self.linger_seconds.map(as_usize), SECONDS_MAX),
            (
                "drain-notice-seconds",
                self.drain_notice_seconds.map(|seconds| seconds as usize),
                SECONDS_MAX,
            ),
            ("drain-seconds", self.drain_seconds.map(|seconds| seconds as usize), SECONDS_MAX),
            (
                "stall-milliseconds-min",
                self.stall_milliseconds_min.map(as_usize),
                STALL_MILLISECONDS_MAX,
            ),
            (
                "stall-probe-seconds",
                self.stall_probe_seconds.map(|seconds| seconds as usize),
                STALL_PROBE_SECONDS_MAX,
            ),
        ] {
            if let Some(given) = given.filter(|given| *given > max) {
                return Err(format!("--{option} is {given}, and may be at most {max}"));
            }
        }
        Ok(())
    }
}

const fn as_usize(number: NonZeroU32) -> usize {
    number.get() as usize
}

/// Each worker is a thread with a ring and buffers of its own; more than this exceeds the cores of any machine.
const WORKERS_MAX: usize = 1024;

/// Well above the descriptors that the kernel gives a process (`fs.nr_open`, a million by default).
const CONNECTIONS_MAX: usize = 1 << 24;

/// A year. A longer time must be a mistake, and the timers of some runtimes do not reach much further.
pub(in crate::config) const SECONDS_MAX: usize = 365 * 24 * 60 * 60;

/// An hour. librdkafka allows three weeks.
#[cfg(feature = "kafka")]
const KAFKA_SECONDS_MAX: usize = 60 * 60;

/// No machine has more.
const IGGY_MEMORY_BYTES_MAX: usize = 1 << 46;

/// The same for `--object-memory-max`.
const OBJECT_MEMORY_BYTES_MAX: usize = IGGY_MEMORY_BYTES_MAX;

/// A block of an object in memory is as long as a chunk, and is copied as a whole.
const CHUNK_BYTES_MAX: usize = 16 << 20;

/// An hour: more is never found.
const STALL_MILLISECONDS_MAX: usize = 60 * 60 * 1_000;

/// An hour: the detector probes no less often.
const STALL_PROBE_SECONDS_MAX: usize = 60 * 60;
