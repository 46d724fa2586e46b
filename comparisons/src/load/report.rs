//! The report of a run, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::Failure;
use super::histogram::Percentiles;
use super::options::Target;
use super::series::{Series, Stalls};
use super::session::Tally;
use super::usage::{PerMessage, ResourceUsage};

/// If the client uses more of its core, it may be what was measured.
pub(crate) const CLIENT_CPU_PERCENT_MAX: f64 = 90.0;

/// The report of a run. Fields without a meaning for the command are none.
///
/// `load` writes it and the matrix reads it as one type. An unknown field is an error, so that a report of another
/// shape is not read as this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    command: Vec<String>,
    pub(crate) seconds: f64,
    pub(crate) connections: Connections,
    pub(crate) messages: Option<Messages>,
    pub(crate) batches: Option<Batches>,
    pub(crate) fan_out: Option<FanOut>,
    pub(crate) arrivals: Option<Arrivals>,
    pub(crate) burst: Option<Burst>,
    pub(crate) churn: Option<Churn>,
    pub(crate) hold: Option<Hold>,
    pub(crate) limit: Option<Limit>,
    pub(crate) posts: Option<Posts>,
    pub(crate) latency_us: Option<Percentiles>,
    /// Latency as points (share, microseconds): that share of the messages took at most so long.
    pub(crate) curve: Option<Vec<[f64; 2]>>,
    pub(crate) series: Option<Series>,
    pub(crate) stalls: Option<Stalls>,
    /// How late the client was.
    pub(crate) lateness_us: Option<Percentiles>,
    pub(crate) client: ResourceUsage,
    pub(crate) server: Option<ResourceUsage>,
    wrong: u64,
    wrong_answer: Option<String>,
    pub(crate) warnings: Vec<String>,
}

/// The connections that were opened before the window; in `arrivals` these are the busy ones. In `burst` and `churn`,
/// all connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Connections {
    pub(crate) wanted: u64,
    pub(crate) opened: u64,
    /// Those that took over 1 s: up to their first answer, or in `hold` until the handshake. Results of an older version
    /// have none. Not of `burst`, which has counts of its own.
    #[serde(default)]
    pub(crate) opened_over_1_s: u64,
    pub(crate) errors: BTreeMap<String, u64>,
}

/// Sent and received within the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Messages {
    pub(crate) offered_per_s: Option<u64>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) received_per_s: f64,
    pub(crate) received_mib_per_s: f64,
    pub(crate) sent_mib_per_s: f64,
    /// Over the whole run: sent and never answered.
    pub(crate) unanswered: u64,
    /// Over the whole run: scheduled and never sent.
    pub(crate) unsent: u64,
    /// Open loop: messages that waited for room.
    pub(crate) held_back: Option<u64>,
    /// What the client could have done with a whole core, computed from what it used. None in an open loop, which spins
    /// on the clock.
    pub(crate) ceiling_per_s: Option<f64>,
}

/// Batches of messages of a log: of `produce` and `consume`, where each message of [`Messages`] is a batch. Windows on
/// command have none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batches {
    /// Messages of a batch.
    pub(crate) messages: u64,
    /// The length of a message, without its header.
    pub(crate) bytes: u64,
    pub(crate) messages_per_s: f64,
    /// Without the headers of the messages.
    pub(crate) payload_mib_per_s: f64,
}

/// Messages that were pushed to many subscribers. [`Messages`] has how many were published and delivered; the latency is
/// that of each delivery. Slow subscribers count here alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FanOut {
    /// From the moment a message was to be published until the first subscriber had it.
    pub(crate) first_us: Option<Percentiles>,
    /// The same until the last one had it.
    pub(crate) last_us: Option<Percentiles>,
    /// From the first delivery of a message to the last.
    pub(crate) spread_us: Option<Percentiles>,
    /// The growth of the server's memory for each subscriber, while all are idle.
    pub(crate) server_rss_bytes_each: Option<f64>,
    pub(crate) slow: Option<SlowReaders>,
}

/// Subscribers that read slowly.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlowReaders {
    pub(crate) subscribers: u64,
    /// Messages that they got.
    pub(crate) received: u64,
    /// Messages that were left out.
    pub(crate) lost: u64,
    /// Those whose connection the server ended.
    pub(crate) ended: u64,
    /// Those that had the last message once they read as fast as the others.
    pub(crate) caught_up: u64,
}

/// New connections while others were busy. None of them counts in [`Connections`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arrivals {
    pub(crate) offered_per_s: u64,
    pub(crate) came: u64,
    pub(crate) within_1_s: u64,
    pub(crate) over_1_s: u64,
    /// No echo within patience.
    pub(crate) never: u64,
    pub(crate) failed: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) first_echo_us: Option<Percentiles>,
    pub(crate) timeline: Option<Timeline>,
}

/// What happened when, in the window of `arrivals`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Timeline {
    /// The beginning of the window, in milliseconds since 1970.
    pub(crate) began_unix_ms: f64,
    /// The answers to busy connections, by when they arrived.
    pub(crate) busy: Series,
    /// The silences of the busy connections.
    pub(crate) stalls: Stalls,
    /// New connections by when they were to come, with their first echo. One that waits in vain counts here as if its
    /// echo had come when patience was over, and not in `received`.
    pub(crate) newcomers: Series,
    /// In the same slots, those that failed.
    pub(crate) failed: Vec<u64>,
}

/// Connections that were opened at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Burst {
    pub(crate) issued_us: f64,
    pub(crate) connected: u64,
    pub(crate) connected_over_1_s: u64,
    pub(crate) echoed: u64,
    pub(crate) echoed_over_1_s: u64,
    /// Still open, without an echo within patience.
    pub(crate) never: u64,
    /// Ended before their echo. `echoed`, `never` and `failed` add up to all connections.
    pub(crate) failed: u64,
    pub(crate) connect_us: Option<Percentiles>,
    pub(crate) first_echo_us: Option<Percentiles>,
}

/// Connections that opened, had an echo, and closed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Churn {
    /// Closed in the window.
    pub(crate) done: u64,
    pub(crate) done_per_s: f64,
    /// The share of connections with an echo that resumed a TLS session, in per cent; none without TLS.
    pub(crate) resumed_percent: Option<f64>,
    /// From the scheduled moment of a connection.
    pub(crate) first_echo_us: Option<Percentiles>,
    /// From the same moment until it had closed.
    pub(crate) whole_us: Option<Percentiles>,
}

/// Idle connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hold {
    pub(crate) opening_us: f64,
    /// After the window.
    pub(crate) still_open: u64,
    /// The growth of the server's memory for each.
    pub(crate) server_rss_bytes_each: Option<f64>,
}

/// More connections than the server had descriptors for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    /// Connections whose first message was answered.
    pub(crate) served: u64,
    /// Connections that the server had not accepted.
    pub(crate) waiting: u64,
    /// Connections of both kinds that ended at the limit.
    pub(crate) lost: u64,
    /// The server's CPU while all were idle, in per cent of a core.
    pub(crate) idle_cpu_percent: Option<f64>,
    pub(crate) before: Throughput,
    pub(crate) at_limit: Throughput,
    /// Messages a second at the limit divided by those before; none if there were none before.
    pub(crate) speed_ratio: Option<f64>,
    /// Closed at the end, to make room.
    pub(crate) released: u64,
    /// Waiting connections that were answered then.
    pub(crate) resumed: u64,
    /// Waiting connections without an answer within patience, though there was room.
    pub(crate) never: u64,
    /// From the first close.
    pub(crate) resume_us: Option<Percentiles>,
}

/// Events that were posted over the whole run. [`Messages`] has those that were sent and acknowledged in the window; the
/// latency is that of acknowledged ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Posts {
    pub(crate) acknowledged: u64,
    /// Answered 503: they are not stored.
    pub(crate) refused: u64,
    /// Answered 500: they may be stored. So may those that were sent and not answered ([`Messages::unanswered`]).
    pub(crate) failed: u64,
    /// From the beginning of each connect.
    pub(crate) connect_us: Option<Percentiles>,
    pub(crate) partitions: Vec<PartitionPosts>,
}

/// What was acknowledged of a partition, each event with an offset of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartitionPosts {
    pub(crate) partition: u32,
    pub(crate) acknowledged: u64,
    pub(crate) first_offset: u64,
    pub(crate) last_offset: u64,
}

/// A closed loop over some of the connections, in a window of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Throughput {
    pub(crate) received: u64,
    pub(crate) received_per_s: f64,
    /// The server's CPU for each message.
    pub(crate) cpu_ns: Option<f64>,
    pub(crate) latency_us: Option<Percentiles>,
    pub(crate) client_cpu_percent: f64,
}

impl Report {
    pub(crate) fn new(seconds: f64, wanted: u64, tally: &Tally) -> Self {
        Self {
            command: std::env::args().collect(),
            seconds,
            connections: Connections {
                wanted,
                opened: tally.opened,
                opened_over_1_s: tally.opened_over_1_s,
                errors: tally.errors.clone(),
            },
            messages: None,
            batches: None,
            fan_out: None,
            arrivals: None,
            burst: None,
            churn: None,
            hold: None,
            limit: None,
            posts: None,
            latency_us: None,
            curve: None,
            series: None,
            stalls: None,
            lateness_us: None,
            client: ResourceUsage::default(),
            server: None,
            wrong: tally.wrong,
            wrong_answer: tally.wrong_answer.clone(),
            warnings: Vec::new(),
        }
    }

    /// Adds the wrong answers of other connections.
    pub(crate) fn add_wrong(&mut self, tally: &Tally) {
        self.wrong += tally.wrong;
        if self.wrong_answer.is_none() {
            self.wrong_answer.clone_from(&tally.wrong_answer);
        }
    }

    /// Adds the failures of other connections.
    pub(crate) fn add_errors(&mut self, tally: &Tally) {
        for (kind, count) in &tally.errors {
            *self.connections.errors.entry(kind.clone()).or_insert(0) += count;
        }
    }

    /// A sentence with the number of connections with wrong answers, and the first of these; none if all were right.
    pub fn wrong_answer(&self) -> Option<String> {
        let first = self.wrong_answer.as_ref()?;
        Some(format!("wrong answers on {} connections; the first: {first}", self.wrong))
    }

    /// Prints it, and writes it where `--json` says.
    pub(crate) fn finish(self, target: &Target) -> Result<Self, Failure> {
        let this = self.warned(target);
        // The reader may have closed the pipe.
        let _ = write!(io::stdout(), "{this}");
        if let Some(file) = &target.json {
            let json = serde_json::to_vec_pretty(&this).map_err(io::Error::from);
            json.and_then(|json| fs::write(file, json)).map_err(|error| {
                Failure::new(format!("cannot write {}: {error}", file.display()))
            })?;
        }
        Ok(this)
    }

    /// With the reasons to doubt it.
    pub(crate) fn warned(mut self, target: &Target) -> Self {
        self.warn(target);
        self
    }

    fn warn(&mut self, target: &Target) {
        // An open loop spins on the clock: a busy core is no sign of being late. Most of a fan-out is deliveries.
        let has_rate = self.messages.as_ref().is_some_and(|m| m.offered_per_s.is_some());
        let open_loop = has_rate && self.fan_out.is_none();
        let speeds = self.limit.iter().flat_map(|limit| [&limit.before, &limit.at_limit]);
        let client_cpu_percent =
            speeds.map(|speed| speed.client_cpu_percent).fold(self.client.cpu_percent, f64::max);
        if !open_loop && client_cpu_percent > CLIENT_CPU_PERCENT_MAX {
            self.warnings.push(format!(
                "the client used {client_cpu_percent:.0} % of a core: this may have measured the \
                 client"
            ));
        }
        let arrivals = self.arrivals.as_ref().and_then(|a| a.first_echo_us.as_ref());
        let first_echo =
            arrivals.or_else(|| self.churn.as_ref().and_then(|c| c.first_echo_us.as_ref()));
        if let (Some(late), Some(latency)) =
            (&self.lateness_us, first_echo.or(self.latency_us.as_ref()))
            && late.p99 > latency.p99 / 2.0
        {
            self.warnings.push("the client was late: see lateness against latency".to_owned());
        }
        if target.server_pid.is_some() && self.server.is_none() {
            self.warnings.push("the server's process ended during the run".to_owned());
        }
        if let Some(server) = &self.server
            && server.threads_ended > 0
        {
            self.warnings.push(format!(
                "{} of the server's threads ended during the run: their switches are not counted",
                server.threads_ended
            ));
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "command", self.command.join(" "))?;
        row(f, "window", format_args!("{:.3} s", self.seconds))?;
        let Connections { wanted, opened, opened_over_1_s, errors } = &self.connections;
        row(f, "connections", format_args!("{opened} of {wanted}"))?;
        if *opened_over_1_s > 0 {
            row(f, "  slow", format_args!("{opened_over_1_s} took over 1 s"))?;
        }
        for (kind, count) in errors {
            row(f, "  error", format_args!("{count} x {kind}"))?;
        }
        self.messages.iter().try_for_each(|messages| messages.fmt(f))?;
        self.batches.iter().try_for_each(|batches| batches.fmt(f))?;
        self.fan_out.iter().try_for_each(|fan_out| fan_out.fmt(f))?;
        percentiles(f, "latency", &self.latency_us)?;
        self.stalls.iter().try_for_each(|stalls| stalls.fmt(f))?;
        self.arrivals.iter().try_for_each(|arrivals| arrivals.fmt(f))?;
        self.burst.iter().try_for_each(|burst| burst.fmt(f))?;
        self.churn.iter().try_for_each(|churn| churn.fmt(f))?;
        self.hold.iter().try_for_each(|hold| hold.fmt(f))?;
        self.limit.iter().try_for_each(|limit| limit.fmt(f))?;
        self.posts.iter().try_for_each(|posts| posts.fmt(f))?;
        percentiles(f, "lateness", &self.lateness_us)?;
        used(f, "client", &self.client)?;
        self.server.iter().try_for_each(|server| server_use(f, server))?;
        if let Some(sentence) = self.wrong_answer() {
            row(f, "WRONG", sentence)?;
        }
        self.warnings.iter().try_for_each(|warning| row(f, "warning", warning))
    }
}

impl Display for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(offered) = self.offered_per_s {
            row(f, "offered", format_args!("{offered} msg/s"))?;
        }
        row(f, "rate", format_args!("{:.0} msg/s", self.received_per_s))?;
        let (sent, received) = (self.sent_mib_per_s, self.received_mib_per_s);
        row(f, "  bytes", format_args!("{sent:.1} MiB/s sent, {received:.1} MiB/s received"))?;
        row(f, "messages", format_args!("{} sent, {} received", self.sent, self.received))?;
        row(f, "missing", format_args!("{} unanswered, {} unsent", self.unanswered, self.unsent))?;
        self.held_back.iter().try_for_each(|held| row(f, "held back", held))
    }
}

impl Display for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, bytes, messages_per_s, payload_mib_per_s } = self;
        row(f, "batches", format_args!("of {messages} messages of {bytes} B"))?;
        row(
            f,
            "  messages",
            format_args!("{messages_per_s:.0} msg/s, {payload_mib_per_s:.1} MiB/s"),
        )
    }
}

impl Display for FanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        percentiles(f, "first delivery", &self.first_us)?;
        percentiles(f, "last delivery", &self.last_us)?;
        percentiles(f, "first to last", &self.spread_us)?;
        let each = self.server_rss_bytes_each;
        each.iter().try_for_each(|each| row(f, "memory each", format_args!("{each:.0} B")))?;
        let Some(slow) = &self.slow else { return Ok(()) };
        let SlowReaders { subscribers, received, lost, ended, caught_up } = slow;
        row(f, "slow", format_args!("{subscribers}; {caught_up} caught up, {ended} ended"))?;
        row(f, "  messages", format_args!("{received} received, {lost} left out"))
    }
}

impl Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, total_ms, longest_ms, .. } = self;
        let summary = format_args!(
            "{count} of 25 ms or more; {total_ms:.0} ms in all, longest {longest_ms:.0}"
        );
        row(f, "stalls", summary)
    }
}

impl Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(
            f,
            "arrivals",
            format_args!("{} came, {} offered a second", self.came, self.offered_per_s),
        )?;
        let Self { within_1_s, over_1_s, never, failed, .. } = self;
        let split = format_args!(
            "{within_1_s} within 1 s, {over_1_s} over 1 s, {never} never, {failed} failed"
        );
        row(f, "  first echo", split)?;
        for (kind, count) in &self.errors {
            row(f, "  error", format_args!("{count} x {kind}"))?;
        }
        percentiles(f, "first echo", &self.first_echo_us)
    }
}

impl Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "issued in", format_args!("{:.0} us", self.issued_us))?;
        let Self { connected, connected_over_1_s, echoed, echoed_over_1_s, never, failed, .. } =
            self;
        row(f, "connected", format_args!("{connected}, {connected_over_1_s} over 1 s"))?;
        let split =
            format_args!("{echoed}, {echoed_over_1_s} over 1 s, {never} never, {failed} failed");
        row(f, "echoed", split)?;
        percentiles(f, "connect", &self.connect_us)?;
        percentiles(f, "first echo", &self.first_echo_us)
    }
}

impl Display for Churn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, done_per_s, .. } = self;
        row(f, "came and went", format_args!("{done}, {done_per_s:.0} a second"))?;
        let resumed = self.resumed_percent;
        resumed.iter().try_for_each(|it| row(f, "  resumed", format_args!("{it:.1} %")))?;
        percentiles(f, "first echo", &self.first_echo_us)?;
        percentiles(f, "until closed", &self.whole_us)
    }
}

impl Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "opened in", format_args!("{:.0} us", self.opening_us))?;
        row(f, "still open", self.still_open)?;
        let each = self.server_rss_bytes_each;
        each.iter().try_for_each(|each| row(f, "memory each", format_args!("{each:.0} B")))
    }
}

impl Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { served, waiting, lost, released, resumed, never, .. } = self;
        row(f, "at the limit", format_args!("{served} served, {waiting} waiting, {lost} lost"))?;
        let idle = self.idle_cpu_percent;
        idle.iter().try_for_each(|cpu| row(f, "  idle", format_args!("{cpu:.2} % of a core")))?;
        row(f, "speed before", &self.before)?;
        percentiles(f, "  latency", &self.before.latency_us)?;
        row(f, "speed at limit", &self.at_limit)?;
        let ratio = self.speed_ratio;
        ratio.iter().try_for_each(|ratio| row(f, "  to before", format_args!("{ratio:.3}")))?;
        percentiles(f, "  latency", &self.at_limit.latency_us)?;
        let split = format_args!("{released}; {resumed} answered then, {never} never");
        row(f, "released", split)?;
        percentiles(f, "resume", &self.resume_us)
    }
}

impl Display for Posts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, refused, failed, .. } = self;
        let split = format_args!("{acknowledged} acknowledged, {refused} refused, {failed} failed");
        row(f, "events", split)?;
        for each in &self.partitions {
            let PartitionPosts { partition, acknowledged, first_offset, last_offset } = each;
            let offsets = format_args!(
                "{partition}: {acknowledged}, at offsets {first_offset} to {last_offset}"
            );
            row(f, "  partition", offsets)?;
        }
        percentiles(f, "connect", &self.connect_us)
    }
}

impl Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} msg/s", self.received_per_s)?;
        self.cpu_ns.iter().try_for_each(|ns| write!(f, ", {ns:.0} ns CPU each"))?;
        write!(f, "; client {:.1} % of a core", self.client_cpu_percent)
    }
}

fn server_use(f: &mut fmt::Formatter<'_>, server: &ResourceUsage) -> fmt::Result {
    used(f, "server", server)?;
    let ResourceUsage { rss_kib, rss_peak_kib, threads, .. } = server;
    let memory = format_args!("{rss_kib} KiB, peak {rss_peak_kib} KiB, {threads} threads");
    row(f, "  memory", memory)?;
    let Some(each) = &server.per_message else { return Ok(()) };
    let PerMessage { cpu_ns, user_ns, system_ns, tick_ns, switches } = each;
    let cpu = format_args!(
        "{cpu_ns:.0} ns CPU; user {user_ns:.0}, system {system_ns:.0} (in steps of {tick_ns:.1})"
    );
    row(f, "  per message", cpu)?;
    row(f, "  per message", format_args!("{switches:.4} context switches"))
}

fn used(f: &mut fmt::Formatter<'_>, whose: &str, used: &ResourceUsage) -> fmt::Result {
    let ms = |ns: u64| ns / 1_000_000;
    let ResourceUsage { cpu_percent, switches_voluntary, switches_involuntary, .. } = used;
    let (user, system) = (ms(used.user_ns), ms(used.system_ns));
    let cpu = format_args!("{cpu_percent:.1} % of a core; user {user} ms, system {system} ms");
    row(f, whose, cpu)?;
    let switches = format_args!("{switches_voluntary} voluntary, {switches_involuntary} not");
    row(f, "  switches", switches)
}

fn percentiles(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    percentiles: &Option<Percentiles>,
) -> fmt::Result {
    percentiles.iter().try_for_each(|percentiles| row(f, name, percentiles))
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    writeln!(f, "{name:<14} {value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_first_wrong_answer_and_counts_them() {
        let tally = Tally { wrong: 2, wrong_answer: Some("here".to_owned()), ..Tally::default() };
        let mut report = Report::new(1.0, 3, &Tally::default());
        assert_eq!(report.wrong_answer(), None);
        report.add_wrong(&tally);
        report.add_wrong(&tally);
        let sentence = report.wrong_answer().expect("wrong");
        assert_eq!(sentence, "wrong answers on 4 connections; the first: here");
    }

    #[test]
    fn a_report_is_json_and_text() {
        let mut report = Report::new(2.0, 3, &Tally::default());
        report.server = Some(ResourceUsage::default().over_messages(10));
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["connections"]["wanted"], 3);
        assert_eq!(json["server"]["per_message"]["cpu_ns"], 0.0);
        assert!(report.to_string().contains("connections    0 of 3\n"));
    }
}
