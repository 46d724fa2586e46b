//! `load subscribe`: publishes messages at a rate, and checks that every subscriber gets each of them, in order.

mod feed;
mod run;
mod subscriber;
mod tracker;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::Failure;
use super::bounds::{Bounded, Connections, MessageRate, NonZeroSeconds, Seconds};
use super::iggy::access::Access;
use super::iggy::topic::Topic;
use super::options::{self, PATIENCE, Target, WARM_UP};
use super::report::Report;
use super::upgrade::Upgrade;
use feed::Feed;
use run::Run;

/// The length of a payload. It begins with a number of 16 digits.
type PayloadBytes = Bounded<16, 65_536>;

/// How many subscribers are slow.
type SlowSubscribers = Bounded<0, 1_000_000>;

/// The most messages that a run publishes: the times of each are kept.
const MESSAGES_MAX: f64 = 10_000_000.0;

/// Where subscribers and the producer of a server without Iggy connect.
const SUBSCRIBE: &str = "/subscribe";
const PUBLISH: &str = "/publish";

/// The options of `load subscribe`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many subscribers, each with a connection of its own.
    #[arg(long, value_name = "N")]
    subscribers: Connections,
    /// How many of them read slowly: 4 KiB every 50 ms, in the window and before.
    #[arg(long, value_name = "N", default_value_t = NONE)]
    #[serde(default = "none")]
    slow: SlowSubscribers,
    /// The length of a message, before it is framed or put into JSON.
    #[arg(long, value_name = "BYTES")]
    bytes: PayloadBytes,
    /// So many messages are published a second.
    #[arg(long, value_name = "MSG_PER_S")]
    pub(crate) rate: MessageRate,
    /// The measured window.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// How long messages are published before that.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// How long to wait for a connection, and after the window while nothing arrives.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "options::patience")]
    pub(crate) patience: NonZeroSeconds,
    #[command(flatten)]
    #[serde(skip)]
    access: Access,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(&self, target: &Target) -> Result<Report, Failure> {
        self.check().map_err(Failure::new)?;
        if target.windows {
            return Err(Failure::new("`load subscribe` is an open loop, without --windows"));
        }
        if target.websocket.as_deref() != Some("/") {
            return Err(Failure::new("`load subscribe` needs --websocket /"));
        }
        target.prepare(self.subscribers.count() + 1)?;
        if !self.access.is_named() {
            let at = |path: &str| Target { websocket: Some(path.to_owned()), ..target.clone() };
            let upgrade = Upgrade::new(target.addr, SUBSCRIBE, false);
            return Run::open(self, &at(PUBLISH), &Feed::Plain, upgrade)?.report()?.finish(target);
        }
        let login = self.access.login()?;
        let mut topic = Topic::create(target, &login, self.patience.get(), 1)?;
        let path = topic.tail_path();
        let upgrade = Upgrade::new(target.addr, &path, false)
            .with_basic_auth(self.access.user(), &self.access.password()?);
        let feed = Feed::Tail { login: login.to_vec(), topic: topic.id() };
        let report = Run::open(self, target, &feed, upgrade)?.report()?;
        topic.delete()?;
        report.finish(target)
    }

    /// Whether the options fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.slow.get() >= self.subscribers.get() {
            return Err("--slow must be less than --subscribers".to_owned());
        }
        let seconds = f64::from(self.seconds) + f64::from(self.warm_up);
        let messages = seconds * self.rate.get() as f64;
        if messages > MESSAGES_MAX {
            return Err(format!(
                "{messages:.0} messages would be published: {MESSAGES_MAX} is the most"
            ));
        }
        Ok(())
    }
}

/// No slow subscribers, by default.
const NONE: SlowSubscribers = SlowSubscribers::of::<0>();

const fn none() -> SlowSubscribers {
    NONE
}
