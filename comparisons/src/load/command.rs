//! A load as data: what a plan says, what a report shows, and the command line that runs it.

use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bounds::{Bounded, NonZeroSeconds, Seconds};
use super::iggy::{consume, produce};
use super::options::{Steady, Target};
use super::{
    Failure, Report, arrivals, burst, churn, deflate, echo, fetch, hold, limit, object, post, sink,
    source, subscribe,
};

/// How many times in a run `load` may wait as long as its patience.
const PATIENCES: f64 = 4.0;

/// How much longer than all its times a run may take, in seconds.
const LATE_SECONDS_MAX: f64 = 60.0;

/// How long a run may take that a number of messages ends, in seconds.
const MESSAGES_SECONDS_MAX: f64 = 3600.0;

/// A command of `load` with its options, without the server's address and the core that `load` runs on.
///
/// In a plan: `load = { command = "echo", connections = 64, payload = 200, seconds = 1 }`, with the options as
/// they are named on the command line. What is left out has the same default as there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Load {
    /// Sends messages and expects each of them back.
    Echo(Steady),
    /// Opens connections at a rate while others are busy: how long until the first echo.
    Arrivals(arrivals::Options),
    /// Opens connections all at once: how long until each is connected, and until its first echo.
    Burst(burst::Options),
    /// Opens connections, each of which closes after an echo: how fast they come and go.
    Churn(churn::Options),
    /// Appends batches of messages to a topic of Iggy, polls them and checks them.
    Consume(consume::Options),
    /// Sends a compressed message over WebSocket and expects it back, compressed.
    Deflate(Steady),
    /// Asks for messages, one at a time, and checks what comes.
    Fetch(Steady),
    /// Opens connections and leaves them idle: what they cost the server.
    Hold(hold::Options),
    /// Opens more connections than the server has descriptors for: what it does then.
    Limit(limit::Options),
    /// Asks for an object over HTTP, and checks each answer.
    Object(Steady),
    /// Posts events over HTTP, each on its own or on connections that stay, and checks each answer.
    Post(post::Options),
    /// Sends batches of messages to a topic of Iggy, and waits for the answer to each.
    Produce(produce::Options),
    /// Sends messages and expects the length of each.
    Sink(Steady),
    /// Asks for messages and checks what comes.
    Source(source::Options),
    /// Publishes messages, and checks that each subscriber is pushed all of them.
    Subscribe(subscribe::Options),
}

/// A load generator on one thread: it drives a server, checks every byte that comes back, and says
/// how long it took. It exits with 2 when an answer was wrong, with 1 when there was no run.
#[derive(Debug, Parser)]
#[command(name = "load", version)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// The same commands as [`Load`], each with its target.
#[derive(Debug, Subcommand)]
enum Command {
    /// Sends messages and expects each of them back.
    Echo(WithTarget<Steady>),
    /// Opens connections at a rate while others are busy: how long until the first echo.
    Arrivals(WithTarget<arrivals::Options>),
    /// Opens connections all at once: how long until each is connected, and until its first echo.
    Burst(WithTarget<burst::Options>),
    /// Opens connections, each of which closes after an echo: how fast they come and go.
    Churn(WithTarget<churn::Options>),
    /// Appends batches of messages to a topic of Iggy, polls them and checks them.
    Consume(WithTarget<consume::Options>),
    /// Sends a compressed message over WebSocket and expects it back, compressed.
    Deflate(WithTarget<Steady>),
    /// Asks for messages, one at a time, and checks what comes.
    Fetch(WithTarget<Steady>),
    /// Opens connections and leaves them idle: what they cost the server.
    Hold(WithTarget<hold::Options>),
    /// Opens more connections than the server has descriptors for: what it does then.
    Limit(WithTarget<limit::Options>),
    /// Asks for an object over HTTP, and checks each answer.
    Object(WithTarget<Steady>),
    /// Posts events over HTTP, each on its own or on connections that stay, and checks each answer.
    Post(WithTarget<post::Options>),
    /// Sends batches of messages to a topic of Iggy, and waits for the answer to each.
    Produce(WithTarget<produce::Options>),
    /// Sends messages and expects the length of each.
    Sink(WithTarget<Steady>),
    /// Asks for messages and checks what comes.
    Source(WithTarget<source::Options>),
    /// Publishes messages, and checks that each subscriber is pushed all of them.
    Subscribe(WithTarget<subscribe::Options>),
}

/// The options of a command, and its target.
#[derive(Args, Debug)]
struct WithTarget<T: Args> {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    options: T,
}

impl CommandLine {
    /// Runs the load and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    pub fn run(self) -> Result<Report, Failure> {
        let (load, target) = self.parts();
        load.run(&target)
    }

    fn parts(self) -> (Load, Target) {
        match self.command {
            Command::Echo(it) => (Load::Echo(it.options), it.target),
            Command::Arrivals(it) => (Load::Arrivals(it.options), it.target),
            Command::Burst(it) => (Load::Burst(it.options), it.target),
            Command::Churn(it) => (Load::Churn(it.options), it.target),
            Command::Consume(it) => (Load::Consume(it.options), it.target),
            Command::Deflate(it) => (Load::Deflate(it.options), it.target),
            Command::Fetch(it) => (Load::Fetch(it.options), it.target),
            Command::Hold(it) => (Load::Hold(it.options), it.target),
            Command::Limit(it) => (Load::Limit(it.options), it.target),
            Command::Object(it) => (Load::Object(it.options), it.target),
            Command::Post(it) => (Load::Post(it.options), it.target),
            Command::Produce(it) => (Load::Produce(it.options), it.target),
            Command::Sink(it) => (Load::Sink(it.options), it.target),
            Command::Source(it) => (Load::Source(it.options), it.target),
            Command::Subscribe(it) => (Load::Subscribe(it.options), it.target),
        }
    }
}

impl Load {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run; what happens to connections in a run is in the report.
    fn run(&self, target: &Target) -> Result<Report, Failure> {
        match self {
            Self::Echo(options) => echo::run(options, target),
            Self::Arrivals(options) => options.run(target),
            Self::Burst(options) => options.run(target),
            Self::Churn(options) => options.run(target),
            Self::Consume(options) => options.run(target),
            Self::Deflate(options) => deflate::run(options, target),
            Self::Fetch(options) => fetch::run(options, target),
            Self::Hold(options) => options.run(target),
            Self::Limit(options) => options.run(target),
            Self::Object(options) => object::run(options, target),
            Self::Post(options) => options.run(target),
            Self::Produce(options) => options.run(target),
            Self::Sink(options) => sink::run(options, target),
            Self::Source(options) => options.run(target),
            Self::Subscribe(options) => options.run(target),
        }
    }

    /// The command's name.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Echo(_) => "echo",
            Self::Arrivals(_) => "arrivals",
            Self::Burst(_) => "burst",
            Self::Churn(_) => "churn",
            Self::Consume(_) => "consume",
            Self::Deflate(_) => "deflate",
            Self::Fetch(_) => "fetch",
            Self::Hold(_) => "hold",
            Self::Limit(_) => "limit",
            Self::Object(_) => "object",
            Self::Post(_) => "post",
            Self::Produce(_) => "produce",
            Self::Sink(_) => "sink",
            Self::Source(_) => "source",
            Self::Subscribe(_) => "subscribe",
        }
    }

    /// Its options as the command line has them; the address comes before them, after the name.
    pub(crate) fn args(&self) -> Vec<String> {
        let Ok(Value::Object(options)) = serde_json::to_value(self) else { return Vec::new() };
        let options = options.into_iter().filter(|(name, _)| name != "command");
        let words = options.flat_map(|(name, value)| match value {
            Value::Null | Value::Bool(false) => Vec::new(),
            Value::Bool(true) => vec![format!("--{name}")],
            // Seconds: 2 rather than 2.0.
            Value::Number(number) if number.is_f64() => {
                vec![format!("--{name}"), number.as_f64().unwrap_or_default().to_string()]
            }
            Value::String(text) => vec![format!("--{name}"), text],
            value => vec![format!("--{name}"), value.to_string()],
        });
        words.collect()
    }

    /// The length of the object that it asks for.
    pub(crate) const fn object_bytes(&self) -> Option<u64> {
        match self {
            Self::Object(options) => Some(options.payload.get()),
            _ => None,
        }
    }

    /// Whether the options fit together; each by itself is within its bounds.
    ///
    /// # Errors
    /// What does not.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Consume(options) => options.check(),
            Self::Limit(options) => options.check(),
            Self::Post(options) => options.check(),
            Self::Produce(options) => options.check(),
            Self::Source(options) => options.check(),
            Self::Subscribe(options) => options.check(),
            _ => Ok(()),
        }
    }

    /// The measured window, if time ends it.
    pub(crate) const fn seconds_mut(&mut self) -> Option<&mut NonZeroSeconds> {
        match self {
            Self::Echo(it)
            | Self::Deflate(it)
            | Self::Fetch(it)
            | Self::Object(it)
            | Self::Sink(it) => Some(&mut it.seconds),
            Self::Arrivals(it) => Some(&mut it.seconds),
            Self::Churn(it) => Some(&mut it.seconds),
            Self::Consume(it) => it.seconds.as_mut(),
            Self::Produce(it) => it.seconds.as_mut(),
            Self::Hold(it) => Some(&mut it.seconds),
            Self::Limit(it) => Some(&mut it.seconds),
            Self::Post(it) => Some(&mut it.seconds),
            Self::Source(it) => it.seconds.as_mut(),
            Self::Subscribe(it) => Some(&mut it.seconds),
            Self::Burst(_) => None,
        }
    }

    /// Whether it is a closed loop, which can be measured in windows on command.
    pub(crate) const fn has_windows(&self) -> bool {
        match self {
            Self::Echo(it)
            | Self::Deflate(it)
            | Self::Fetch(it)
            | Self::Object(it)
            | Self::Sink(it) => it.rate.is_none(),
            Self::Consume(it) => it.seconds.is_some(),
            Self::Produce(it) => it.seconds.is_some(),
            Self::Source(it) => it.seconds.is_some(),
            Self::Arrivals(_)
            | Self::Burst(_)
            | Self::Churn(_)
            | Self::Hold(_)
            | Self::Limit(_)
            | Self::Post(_)
            | Self::Subscribe(_) => false,
        }
    }

    /// The warm-up in milliseconds, of loads that have windows.
    pub(crate) fn warm_up_ms(&self) -> u32 {
        let warm_up = match self {
            Self::Echo(it)
            | Self::Deflate(it)
            | Self::Fetch(it)
            | Self::Object(it)
            | Self::Sink(it) => it.warm_up,
            Self::Consume(it) => it.warm_up,
            Self::Produce(it) => it.warm_up,
            Self::Source(it) => it.warm_up,
            _ => Seconds::of(0),
        };
        warm_up.get().as_millis() as u32
    }

    /// How long one run takes, about: its window, its warm-up, and what comes before and after.
    pub(crate) fn run_seconds(&self) -> f64 {
        let (seconds, warm_up, rest) = match self {
            Self::Echo(it)
            | Self::Deflate(it)
            | Self::Fetch(it)
            | Self::Object(it)
            | Self::Sink(it) => (Some(it.seconds), it.warm_up, 0.3),
            Self::Churn(it) => (Some(it.seconds), it.warm_up, 0.3),
            Self::Post(it) => (Some(it.seconds), it.warm_up, 0.3),
            Self::Source(it) => (it.seconds, it.warm_up, 0.3),
            Self::Produce(it) => (it.seconds, it.warm_up, 0.3),
            // What it reads is appended before.
            Self::Consume(it) => (it.seconds, it.warm_up, 2.0),
            Self::Arrivals(it) => (Some(it.seconds), it.warm_up, 1.0),
            Self::Subscribe(it) => (Some(it.seconds), it.warm_up, 2.0),
            Self::Hold(it) => (Some(it.seconds), Seconds::of(0), 1.0),
            Self::Burst(_) => (None, Seconds::of(0), 1.0),
            // It echoes before and after its window.
            Self::Limit(it) => (Some(it.seconds), it.warm_up, 6.5),
        };
        seconds.map_or(0.0, f64::from) + f64::from(warm_up) + rest
    }

    /// How long an answer may take before it counts as never.
    pub(crate) fn patience_seconds(&self) -> f64 {
        f64::from(match self {
            Self::Echo(it)
            | Self::Deflate(it)
            | Self::Fetch(it)
            | Self::Object(it)
            | Self::Sink(it) => it.patience,
            Self::Arrivals(it) => it.patience,
            Self::Burst(it) => it.patience,
            Self::Churn(it) => it.patience,
            Self::Hold(it) => it.patience,
            Self::Limit(it) => it.patience,
            Self::Post(it) => it.patience,
            Self::Consume(it) => it.patience,
            Self::Produce(it) => it.patience,
            Self::Source(it) => it.patience,
            Self::Subscribe(it) => it.patience,
        })
    }

    /// A run that takes longer has failed: it opens connections, warms up, measures and waits for answers.
    pub(crate) fn longest_seconds(&self) -> f64 {
        let rest = match self {
            Self::Echo(it)
            | Self::Deflate(it)
            | Self::Fetch(it)
            | Self::Object(it)
            | Self::Sink(it) => f64::from(it.ramp),
            Self::Hold(it) => f64::from(it.ramp),
            Self::Limit(it) => 2.0 * f64::from(it.speed_seconds),
            Self::Source(it) if it.seconds.is_none() => MESSAGES_SECONDS_MAX,
            Self::Produce(it) if it.seconds.is_none() => MESSAGES_SECONDS_MAX,
            Self::Consume(_) => MESSAGES_SECONDS_MAX,
            Self::Arrivals(_)
            | Self::Burst(_)
            | Self::Churn(_)
            | Self::Post(_)
            | Self::Produce(_)
            | Self::Source(_)
            | Self::Subscribe(_) => 0.0,
        };
        // Opening and each end of what is measured take up to the patience.
        self.run_seconds() + PATIENCES * self.patience_seconds() + rest + LATE_SECONDS_MAX
    }

    /// The same at another rate.
    ///
    /// # Errors
    /// When the command has no rate, or not that one.
    pub(crate) fn at_rate(&self, per_s: u64) -> Result<Self, String> {
        fn rate<const MIN: u64, const MAX: u64>(per_s: u64) -> Result<Bounded<MIN, MAX>, String> {
            per_s.try_into().map_err(|why| format!("a rate of {per_s}: {why}"))
        }
        let mut load = self.clone();
        match &mut load {
            Self::Echo(it)
            | Self::Deflate(it)
            | Self::Fetch(it)
            | Self::Object(it)
            | Self::Sink(it) => {
                it.rate = Some(rate(per_s)?);
            }
            Self::Arrivals(it) => it.rate = rate(per_s)?,
            Self::Churn(it) => it.rate = Some(rate(per_s)?),
            Self::Post(it) => it.rate = Some(rate(per_s)?),
            Self::Subscribe(it) => it.rate = rate(per_s)?,
            Self::Burst(_)
            | Self::Consume(_)
            | Self::Hold(_)
            | Self::Limit(_)
            | Self::Produce(_)
            | Self::Source(_) => {
                return Err(format!("`load {}` has no rate", self.name()));
            }
        }
        Ok(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: [&str; 16] = [
        "echo --connections 64 --payload 200 --in-flight 4 --rate 10000 --ramp 1 --seconds 0.5",
        "arrivals --busy 0 --payload 200 --rate 50 --seconds 4 --warm-up 0.5",
        "burst --connections 3000",
        "churn --connections 8 --payload 64 --seconds 1 --rate 1000",
        "deflate --connections 1 --payload 1024 --seconds 2",
        "fetch --connections 1 --payload 1000000 --seconds 1",
        "hold --connections 10000 --seconds 2",
        "limit --connections 900 --payload 200 --seconds 600 --release 3",
        "sink --connections 4 --payload 1000000 --seconds 1 --patience 3.25",
        "source --bytes 16 --batch 1000 --messages 4294967295",
        "produce --producers 4 --messages 1000 --bytes 1000 --batches 2000",
        "produce --producers 1 --messages 1 --bytes 200 --seconds 2 --warm-up 0.5",
        "consume --consumers 4 --messages 1000 --bytes 1000 --batches 100 --seconds 1",
        "subscribe --subscribers 1000 --slow 10 --bytes 200 --rate 1000 --seconds 2",
        "object --connections 16 --payload 1345292 --in-flight 2 --rate 500 --seconds 1",
        "post --path /events/s/t?key=a --payload 200 --connections 8 --per-connection --seconds 1",
    ];

    fn parse(words: &[&str]) -> Load {
        CommandLine::try_parse_from(words).unwrap().parts().0
    }

    /// Of a command line without its address.
    fn load(text: &str) -> Load {
        let (name, options) = text.split_once(' ').unwrap();
        let words = ["load", name, "127.0.0.1:7"].into_iter().chain(options.split(' '));
        parse(&words.collect::<Vec<_>>())
    }

    #[test]
    fn a_load_is_the_same_as_data_and_as_a_command_line() {
        for text in LOADS {
            let load = load(text);
            assert_eq!(load.name(), text.split(' ').next().unwrap());
            let args = load.args();
            let words = ["load", load.name(), "127.0.0.1:7"];
            let words: Vec<_> = words.into_iter().chain(args.iter().map(String::as_str)).collect();
            assert_eq!(parse(&words), load);
            let data = toml::to_string(&load).unwrap();
            assert_eq!(toml::from_str::<Load>(&data).unwrap(), load, "{data}");
        }
    }

    #[test]
    fn defaults_are_the_same_in_a_plan() {
        for text in [
            "echo --connections 64 --payload 200 --seconds 1",
            "arrivals --busy 1 --payload 200 --rate 50 --seconds 4",
            "burst --connections 3000",
            "churn --connections 8 --seconds 1",
            "hold --connections 10000 --seconds 2",
            "limit --connections 900 --payload 200 --seconds 600",
            "object --connections 64 --payload 1024 --seconds 1",
            "post --path /events/s/t --payload 200 --connections 8 --seconds 1",
            "source --bytes 16 --batch 1000 --seconds 1",
            "produce --producers 1 --messages 10 --bytes 200 --batches 9",
            "consume --consumers 1 --messages 10 --bytes 200 --batches 9",
            "subscribe --subscribers 10 --bytes 200 --rate 10 --seconds 2",
        ] {
            let options: Vec<_> = text.split(' ').collect();
            let mut data = format!("command = \"{}\"\n", options[0]);
            for option in options[1..].chunks(2) {
                let (name, value) = (option[0].trim_start_matches("--"), option[1]);
                let value = if value.starts_with('/') { &format!("{value:?}") } else { value };
                data += &format!("{name} = {value}\n");
            }
            assert_eq!(toml::from_str::<Load>(&data).unwrap(), load(text), "{data}");
        }
    }

    #[test]
    fn bad_loads_in_a_plan_are_refused() {
        let echo = "command = \"echo\"\nconnections = 1\npayload = 1\nseconds = 1\n";
        assert!(toml::from_str::<Load>(echo).is_ok());
        for (text, why) in [
            (echo.replace("echo", "ecco"), "unknown variant `ecco`, expected one of `echo`"),
            (echo.replace("payload", "paylode"), "unknown field `paylode`, expected one of"),
            (echo.replace("connections = 1", "connections = 0"), "from 1 to 1000000"),
            (echo.replace("seconds = 1", "seconds = 0"), "more than 0"),
            (echo.replace("seconds = 1", ""), "missing field `seconds`"),
        ] {
            let error = toml::from_str::<Load>(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let source = "command = \"source\"\nbytes = 1\nbatch = 1\n";
        let source: Load = toml::from_str(source).unwrap();
        assert!(source.check().unwrap_err().contains("--messages"));
        let produce = "command = \"produce\"\nproducers = 1\nmessages = 1\nbytes = 200\n";
        let error = toml::from_str::<Load>(produce).unwrap().check().unwrap_err();
        assert!(error.contains("--batches"), "{error}");
        let access = format!("{produce}batches = 1\naccess = {{}}\n");
        assert!(toml::from_str::<Load>(&access).unwrap_err().to_string().contains("`access`"));
        let large = toml::from_str::<Load>(&format!("{produce}batches = 4_000_000_000\n")).unwrap();
        assert!(large.check().unwrap_err().contains("the topic would have"));
    }

    #[test]
    fn only_loads_with_a_rate_take_one() {
        let at = |text| load(text).at_rate(500);
        assert!(at(LOADS[0]).unwrap().args().windows(2).any(|it| it == ["--rate", "500"]));
        assert_eq!(at(LOADS[2]).unwrap_err(), "`load burst` has no rate");
        assert!(load(LOADS[3]).at_rate(2_000_000).unwrap_err().contains("a rate of 2000000"));
    }

    #[test]
    fn the_duration_of_a_run_is_estimated() {
        assert_eq!(load(LOADS[0]).run_seconds(), 1.8);
        assert_eq!(load(LOADS[2]).run_seconds(), 1.0);
        let mut hold = load(LOADS[6]);
        *hold.seconds_mut().unwrap() = NonZeroSeconds::of::<5>();
        assert_eq!(hold.run_seconds(), 6.0);
        // With a ramp of 1 s, and patience of 10 s.
        assert_eq!(load(LOADS[0]).longest_seconds(), 1.8 + 40.0 + 1.0 + 60.0);
        assert!(load(LOADS[9]).longest_seconds() > 3600.0);
    }
}
