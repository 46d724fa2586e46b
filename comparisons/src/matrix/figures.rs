//! The figures that a plan can name: what each is called, which loads have it, and where it stands in a
//! sample.

use std::fmt::{self, Debug, Formatter};

use serde::{Deserialize, Serialize};

use super::results::Sample;
use super::servers::list;
use crate::load::report::{Arrivals, Burst, Churn, FanOut, Hold, Limit, Messages};
use crate::load::{Load, Percentiles};

/// One figure of a sample.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub(crate) struct Figure(&'static Definition);

struct Definition {
    /// In a plan.
    name: &'static str,
    /// In a report, if the workload has no other title for it.
    title: &'static str,
    /// The commands of `load` that have it.
    loads: &'static [&'static str],
    /// Whether it counts connections that were not served.
    is_unserved: bool,
    of: fn(&Sample) -> Option<f64>,
}

/// The figures of which more is better. Of all others less is.
const HIGHER_IS_BETTER: [&str; 8] = [
    "messages-per-second",
    "client-ceiling",
    "connections-per-second",
    "resumed-percent",
    "still-open",
    "limit-speed-ratio",
    "limit-resumed",
    "slow-caught-up",
];

/// The commands of `load`, by what they report.
const ALL: &[&str] = &[
    "arrivals",
    "burst",
    "churn",
    "consume",
    "deflate",
    "echo",
    "fetch",
    "hold",
    "limit",
    "object",
    "produce",
    "sink",
    "source",
    "subscribe",
];
const MESSAGES: &[&str] = &[
    "arrivals",
    "consume",
    "deflate",
    "echo",
    "fetch",
    "object",
    "produce",
    "sink",
    "source",
    "subscribe",
];
const LATENCY: &[&str] =
    &["arrivals", "consume", "deflate", "echo", "fetch", "object", "produce", "sink", "subscribe"];
const STEADY: &[&str] = &["deflate", "echo", "fetch", "object", "sink"];
const SCHEDULED: &[&str] =
    &["arrivals", "churn", "deflate", "echo", "fetch", "object", "sink", "subscribe"];
const ARRIVALS: &[&str] = &["arrivals"];
const BURST: &[&str] = &["burst"];
const CHURN: &[&str] = &["churn"];
const HOLD: &[&str] = &["hold"];
const LIMIT: &[&str] = &["limit"];
const SUBSCRIBE: &[&str] = &["subscribe"];

static FIGURES: [Definition; 54] = [
    figure("cpu-per-message", "CPU ns/message", MESSAGES, |it| Some(it.per_message()?.cpu_ns)),
    figure("cpu-per-connection", "CPU ns/connection", CHURN, |it| Some(it.per_message()?.cpu_ns)),
    figure("cpu-user-per-message", "CPU user ns/message", MESSAGES, |it| {
        Some(it.per_message()?.user_ns)
    }),
    figure("cpu-system-per-message", "CPU system ns/message", MESSAGES, |it| {
        Some(it.per_message()?.system_ns)
    }),
    figure("switches-per-message", "switches/message", MESSAGES, |it| {
        Some(it.per_message()?.switches)
    }),
    figure("messages-per-second", "messages/s", MESSAGES, |it| Some(messages(it)?.received_per_s)),
    figure("client-ceiling", "most load could do, messages/s", MESSAGES, |it| {
        messages(it)?.ceiling_per_s
    }),
    figure("latency-mean", "latency mean, us", LATENCY, |it| Some(latency(it)?.mean)),
    figure("latency-p50", "latency p50, us", LATENCY, |it| Some(latency(it)?.p50)),
    figure("latency-p90", "latency p90, us", LATENCY, |it| Some(latency(it)?.p90)),
    figure("latency-p99", "latency p99, us", LATENCY, |it| Some(latency(it)?.p99)),
    figure("latency-p99.9", "latency p99.9, us", LATENCY, |it| Some(latency(it)?.p99_9)),
    figure("latency-max", "latency max, us", LATENCY, |it| Some(latency(it)?.max)),
    figure("stalls-ms", "stalls, ms", STEADY, |it| Some(it.report.stalls.as_ref()?.total_ms)),
    figure("client-late-p99", "client late p99, us", SCHEDULED, |it| {
        Some(it.report.lateness_us.as_ref()?.p99)
    }),
    figure("client-cpu-percent", "client CPU, %", ALL, |it| Some(it.report.client.cpu_percent)),
    figure("server-cpu-percent", "server CPU, %", ALL, |it| {
        Some(it.report.server.as_ref()?.cpu_percent)
    }),
    figure("memory-peak", "peak memory, KiB", ALL, |it| {
        Some(it.report.server.as_ref()?.rss_peak_kib as f64)
    }),
    figure("startup-ms", "start-up, ms", ALL, |it| Some(it.startup_ms)),
    figure("program-bytes", "program, B", ALL, |it| it.program_bytes.map(|bytes| bytes as f64)),
    figure("arrivals-first-echo-p50", "first echo p50, us", ARRIVALS, |it| {
        Some(arrivals(it)?.first_echo_us.as_ref()?.p50)
    }),
    figure("arrivals-first-echo-p99", "first echo p99, us", ARRIVALS, |it| {
        Some(arrivals(it)?.first_echo_us.as_ref()?.p99)
    }),
    // A turn serves each busy connection once.
    figure("arrivals-turns", "first echo p50, turns", ARRIVALS, |it| {
        let turn_us = 1e6 * it.report.connections.opened as f64 / messages(it)?.received_per_s;
        Some(arrivals(it)?.first_echo_us.as_ref()?.p50 / turn_us)
    }),
    figure("arrivals-over-1-s", "over 1 s", ARRIVALS, |it| Some(arrivals(it)?.over_1_s as f64)),
    figure("burst-connected-over-1-s", "connected over 1 s", BURST, |it| {
        Some(burst(it)?.connected_over_1_s as f64)
    }),
    figure("burst-echoed-over-1-s", "echoed over 1 s", BURST, |it| {
        Some(burst(it)?.echoed_over_1_s as f64)
    }),
    figure("burst-first-echo-p99", "first echo p99, us", BURST, |it| {
        Some(burst(it)?.first_echo_us.as_ref()?.p99)
    }),
    figure("connections-per-second", "connections/s", CHURN, |it| Some(churn(it)?.done_per_s)),
    figure("churn-first-echo-p50", "first echo p50, us", CHURN, |it| {
        Some(churn(it)?.first_echo_us.as_ref()?.p50)
    }),
    figure("churn-first-echo-p99", "first echo p99, us", CHURN, |it| {
        Some(churn(it)?.first_echo_us.as_ref()?.p99)
    }),
    figure("resumed-percent", "resumed, %", CHURN, |it| churn(it)?.resumed_percent),
    figure("memory-per-connection", "server memory each, B", HOLD, |it| {
        hold(it)?.server_rss_bytes_each
    }),
    figure("still-open", "open", HOLD, |it| Some(hold(it)?.still_open as f64)),
    figure("limit-waiting", "waiting", LIMIT, |it| Some(limit(it)?.waiting as f64)),
    figure("limit-lost", "lost", LIMIT, |it| Some(limit(it)?.lost as f64)),
    figure("limit-idle-cpu-percent", "idle CPU, %", LIMIT, |it| limit(it)?.idle_cpu_percent),
    figure("limit-speed-ratio", "speed, to before", LIMIT, |it| limit(it)?.speed_ratio),
    figure("limit-resumed", "resumed", LIMIT, |it| Some(limit(it)?.resumed as f64)),
    figure("limit-resume-max", "resume max, us", LIMIT, |it| {
        Some(limit(it)?.resume_us.as_ref()?.max)
    }),
    figure("limit-resume-p99", "resume p99, us", LIMIT, |it| {
        Some(limit(it)?.resume_us.as_ref()?.p99)
    }),
    figure("cpu-per-delivery", "CPU ns/delivery", SUBSCRIBE, |it| Some(it.per_message()?.cpu_ns)),
    figure("first-delivery-p50", "first delivery p50, us", SUBSCRIBE, |it| {
        Some(fan_out(it)?.first_us.as_ref()?.p50)
    }),
    figure("last-delivery-p50", "last delivery p50, us", SUBSCRIBE, |it| {
        Some(fan_out(it)?.last_us.as_ref()?.p50)
    }),
    figure("last-delivery-p99", "last delivery p99, us", SUBSCRIBE, |it| {
        Some(fan_out(it)?.last_us.as_ref()?.p99)
    }),
    figure("first-to-last-p50", "first to last p50, us", SUBSCRIBE, |it| {
        Some(fan_out(it)?.spread_us.as_ref()?.p50)
    }),
    figure("first-to-last-p99", "first to last p99, us", SUBSCRIBE, |it| {
        Some(fan_out(it)?.spread_us.as_ref()?.p99)
    }),
    figure("memory-per-subscriber", "server memory each, B", SUBSCRIBE, |it| {
        fan_out(it)?.server_rss_bytes_each
    }),
    figure("slow-caught-up", "slow that caught up", SUBSCRIBE, |it| {
        Some(fan_out(it)?.slow.as_ref()?.caught_up as f64)
    }),
    figure("slow-lost", "lost by slow ones", SUBSCRIBE, |it| {
        Some(fan_out(it)?.slow.as_ref()?.lost as f64)
    }),
    unserved("arrivals-never", "never", ARRIVALS, |it| Some(arrivals(it)?.never as f64)),
    unserved("arrivals-failed", "failed", ARRIVALS, |it| Some(arrivals(it)?.failed as f64)),
    unserved("burst-never", "never", BURST, |it| Some(burst(it)?.never as f64)),
    unserved("burst-failed", "failed", BURST, |it| Some(burst(it)?.failed as f64)),
    unserved("limit-never", "never", LIMIT, |it| Some(limit(it)?.never as f64)),
];

const fn figure(
    name: &'static str,
    title: &'static str,
    loads: &'static [&'static str],
    of: fn(&Sample) -> Option<f64>,
) -> Definition {
    Definition { name, title, loads, is_unserved: false, of }
}

/// One that counts connections which were not served.
const fn unserved(
    name: &'static str,
    title: &'static str,
    loads: &'static [&'static str],
    of: fn(&Sample) -> Option<f64>,
) -> Definition {
    Definition { name, title, loads, is_unserved: true, of }
}

fn messages(sample: &Sample) -> Option<&Messages> {
    sample.report.messages.as_ref()
}

fn latency(sample: &Sample) -> Option<&Percentiles> {
    sample.report.latency_us.as_ref()
}

fn arrivals(sample: &Sample) -> Option<&Arrivals> {
    sample.report.arrivals.as_ref()
}

fn burst(sample: &Sample) -> Option<&Burst> {
    sample.report.burst.as_ref()
}

fn churn(sample: &Sample) -> Option<&Churn> {
    sample.report.churn.as_ref()
}

fn hold(sample: &Sample) -> Option<&Hold> {
    sample.report.hold.as_ref()
}

fn fan_out(sample: &Sample) -> Option<&FanOut> {
    sample.report.fan_out.as_ref()
}

fn limit(sample: &Sample) -> Option<&Limit> {
    sample.report.limit.as_ref()
}

impl Figure {
    /// The figure of that name.
    ///
    /// # Errors
    /// When there is none, with those that `load` has.
    pub(crate) fn named(name: &str, load: &Load) -> Result<Self, String> {
        let of_load = FIGURES.iter().filter(|it| it.loads.contains(&load.name()));
        let figure = of_load.clone().find(|it| it.name == name);
        figure.map(Self).ok_or_else(|| {
            let names = list(of_load.map(|it| it.name));
            format!("`load {}` has no figure {name:?}: it has {names}", load.name())
        })
    }

    pub(crate) fn name(self) -> &'static str {
        self.0.name
    }

    pub(crate) fn title(self) -> &'static str {
        self.0.title
    }

    /// Whether it only grows while the server lives.
    pub(crate) fn is_peak(self) -> bool {
        self.0.name == "memory-peak"
    }

    pub(crate) fn is_unserved(self) -> bool {
        self.0.is_unserved
    }

    pub(crate) fn is_higher_better(self) -> bool {
        HIGHER_IS_BETTER.contains(&self.name())
    }

    /// None where the run did not measure it.
    pub(crate) fn of(self, sample: &Sample) -> Option<f64> {
        (self.0.of)(sample).filter(|figure| figure.is_finite())
    }
}

impl TryFrom<String> for Figure {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let figure = FIGURES.iter().find(|it| it.name == name).map(Self);
        figure.ok_or_else(|| format!("there is no figure {name:?}"))
    }
}

impl From<Figure> for &'static str {
    fn from(figure: Figure) -> Self {
        figure.name()
    }
}

impl PartialEq for Figure {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Debug for Figure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_figure() {
        let mut names: Vec<_> = FIGURES.iter().map(|it| it.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in HIGHER_IS_BETTER {
            assert!(FIGURES.iter().any(|it| it.name == name), "{name}");
        }
        for load in FIGURES.iter().flat_map(|it| it.loads) {
            assert!(ALL.contains(load), "{load}");
        }
    }

    #[test]
    fn an_unknown_figure_is_shown_with_the_known_ones() {
        let hold = "command = \"hold\"\nconnections = 1\nseconds = 1\n";
        let hold: Load = toml::from_str(hold).unwrap();
        assert_eq!(Figure::named("still-open", &hold).unwrap().title(), "open");
        for name in ["still-opne", "latency-p50"] {
            let error = Figure::named(name, &hold).unwrap_err();
            let has = "it has client-cpu-percent, server-cpu-percent, memory-peak,";
            assert!(error.contains(&format!("{name:?}: {has}")), "{error}");
        }
    }
}
