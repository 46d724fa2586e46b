//! One load on several servers, and what is shown of it.

use std::num::{NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

use super::axis::grouped;
use super::program::Server;

/// Commands of `load` that have one window and count messages in it.
const COUNTED: [&str; 6] = ["churn", "deflate", "echo", "fetch", "sink", "source"];

/// In so many seconds there are enough messages to say how many system calls each takes.
const COUNTED_SECONDS: f64 = 1.0;

/// One load on several servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Workload {
    pub(crate) name: String,
    /// A command of `load` with its options, but for the address and where it runs.
    pub(crate) load: String,
    /// What the servers serve, over TCP or WebSocket: `load` is told which by the row.
    #[serde(default)]
    pub(crate) service: Service,
    /// The rows.
    pub(crate) servers: Vec<Server>,
    /// What each row is compared with.
    pub(crate) against: Against,
    /// What is shown of a report of `load`: a name, and where it stands (a JSON pointer).
    pub(crate) figures: Vec<(String, String)>,
    /// The servers' limit of open files, if it is to be other than that of this process.
    pub(crate) open_files: Option<u32>,
    /// How often each row is measured.
    #[serde(default = "once")]
    pub(crate) rounds: NonZeroUsize,
    /// Measured at each of these rates instead, in messages a second: as many workloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rates: Vec<NonZeroU64>,
    /// The name of the workload that has this as one of its rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sweep: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Service {
    #[default]
    Echo,
    /// Echo over WebSocket, each message compressed for itself.
    Deflate,
    Sink,
    Source,
}

/// What a row is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) enum Against {
    /// The hand-written echo server on the same runtime, which is measured beside it.
    Peer,
    /// The same service over TCP, which is measured beside it.
    Tcp,
    /// The same service over WebSocket on our own engine, which is measured beside it.
    Native,
    /// Another row.
    Server(String),
}

impl From<String> for Against {
    fn from(text: String) -> Self {
        match text.as_str() {
            "peer" => Self::Peer,
            "tcp" => Self::Tcp,
            "native" => Self::Native,
            _ => Self::Server(text),
        }
    }
}

impl From<Against> for String {
    fn from(against: Against) -> Self {
        match against {
            Against::Peer => "peer".to_owned(),
            Against::Tcp => "tcp".to_owned(),
            Against::Native => "native".to_owned(),
            Against::Server(name) => name,
        }
    }
}

impl Against {
    /// In a sentence.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Peer => "the echo server written by hand",
            Self::Tcp => "the same over TCP",
            Self::Native => "the same on our own engine",
            Self::Server(name) => name,
        }
    }
}

impl Service {
    /// Where it is among those over HTTP.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Echo | Self::Deflate => "/echo",
            Self::Sink => "/sink",
            Self::Source => "/source",
        }
    }

    /// The server's option, for TCP.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Echo | Self::Deflate => "--echo",
            Self::Sink => "--sink",
            Self::Source => "--source",
        }
    }

    /// The same for TLS.
    pub(crate) const fn tls_flag(self) -> &'static str {
        match self {
            Self::Echo | Self::Deflate => "--echo-tls",
            Self::Sink => "--sink-tls",
            Self::Source => "--source-tls",
        }
    }
}

impl Workload {
    /// The rows, with those that they are compared with.
    pub(crate) fn rows(&self) -> Vec<Server> {
        let beside: fn(&Server) -> Server = match self.against {
            Against::Peer => Server::peer,
            Against::Tcp => Server::over_tcp,
            Against::Native => Server::on_native_engine,
            Against::Server(_) => return self.servers.clone(),
        };
        let mut rows = Vec::new();
        for row in self.servers.iter().flat_map(|server| [server.clone(), beside(server)]) {
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        rows
    }

    /// Whether there is what each row is to be compared with.
    pub(super) fn check(&self) -> Result<(), String> {
        let without = |has_none: fn(&Server) -> bool| {
            self.servers.iter().find(|server| has_none(server)).map_or("", Server::name)
        };
        let (server, what) = match &self.against {
            Against::Peer => (without(|it| it.is_peer() || it.protocol().is_some()), "peer"),
            Against::Tcp => (without(|it| it.over_tcp() == *it), "twin over TCP"),
            Against::Native => (without(|it| it.bridge().is_none()), "twin on our engine"),
            Against::Server(baseline) => {
                let is_there = self.servers.iter().any(|server| server.name() == baseline);
                let why = || format!("it has no row {baseline:?} to compare with");
                return is_there.then_some(()).ok_or_else(why);
            }
        };
        if server.is_empty() { Ok(()) } else { Err(format!("{server} has no {what}")) }
    }

    /// Tells it from that of another plan.
    pub(super) fn be_of(&mut self, plan: &str) {
        for name in [Some(&mut self.name), self.sweep.as_mut()].into_iter().flatten() {
            *name = format!("{plan}: {name}");
        }
    }

    /// One for each of its rates, if it has some.
    pub(super) fn at_its_rates(self) -> Vec<Self> {
        if self.rates.is_empty() {
            return vec![self];
        }
        let at = |rate: &NonZeroU64| Self {
            name: format!("{}, {} messages a second", self.name, grouped(rate.get() as f64)),
            load: format!("{} --rate {rate}", self.load),
            rates: Vec::new(),
            sweep: Some(self.name.clone()),
            ..self.clone()
        };
        self.rates.iter().map(at).collect()
    }

    /// What `load` is told, but for the address and where it runs.
    pub(crate) fn load_for(&self, server: &Server) -> Vec<&str> {
        let mut words: Vec<_> = self.load.split_whitespace().collect();
        if server.speaks_websocket() {
            words.extend(["--websocket", self.service.path()]);
        }
        words
    }

    /// How long one measurement takes, about: its window, its warm-up, and what comes before and after.
    pub(crate) fn seconds(&self) -> f64 {
        let words: Vec<_> = self.load.split_whitespace().collect();
        let number = |name| words.get(option(&words, name)?)?.parse::<f64>().ok();
        // `hold` and `burst` do not warm up; `limit` echoes before and after its window.
        let (warm_up, beside) = match words.first() {
            Some(&("hold" | "burst")) => (0.0, 1.0),
            Some(&"arrivals") => (1.0, 1.0),
            Some(&"limit") => (1.0, 6.5),
            _ => (1.0, 0.3),
        };
        number("--seconds").unwrap_or(0.0) + number("--warm-up").unwrap_or(warm_up) + beside
    }

    /// Measures for another time, where it does so for a time at all.
    pub(crate) fn change_seconds(&mut self, to: impl Fn(f64) -> f64) {
        let mut words: Vec<_> = self.load.split_whitespace().collect();
        let Some(at) = option(&words, "--seconds") else { return };
        let Some(Ok(seconds)) = words.get(at).map(|word| word.parse()) else { return };
        let seconds = to(seconds).to_string();
        words[at] = &seconds;
        self.load = words.join(" ");
    }

    /// The same for as long as it takes to count system calls. None where `load` has not one window with
    /// messages.
    pub(crate) fn for_counting(&self) -> Option<Self> {
        let command = self.load.split_whitespace().next()?;
        let mut shorter = COUNTED.contains(&command).then(|| self.clone())?;
        shorter.change_seconds(|seconds| seconds.min(COUNTED_SECONDS));
        Some(shorter)
    }

    /// The name of the row that `server` is compared with; none if that is itself.
    pub(crate) fn baseline(&self, server: &Server) -> Option<String> {
        let baseline = match &self.against {
            Against::Peer => server.peer().name().to_owned(),
            Against::Tcp => server.over_tcp().name().to_owned(),
            Against::Native => server.on_native_engine().name().to_owned(),
            Against::Server(name) => name.clone(),
        };
        (baseline != server.name()).then_some(baseline)
    }
}

/// Where nothing says how often.
const fn once() -> NonZeroUsize {
    NonZeroUsize::MIN
}

/// Where the value of an option of `load` is.
fn option(words: &[&str], name: &str) -> Option<usize> {
    words.iter().position(|word| *word == name).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        load = "echo --connections 1 --payload 1"
        servers = ["tokio", "traits-tokio", "compio/tuned"]
        against = "peer"
        figures = [["CPU", "/server/per_message/cpu_ns"]]
    "#;

    /// One that `change` has seen.
    fn small(change: impl Fn(String) -> String) -> Workload {
        toml::from_str(&change(SMALL.to_owned())).unwrap()
    }

    fn names(workload: &Workload) -> Vec<String> {
        workload.rows().iter().map(|row| row.name().to_owned()).collect()
    }
    #[test]
    fn peers_are_measured_beside_their_servers() {
        let small = small(|text| text);
        assert_eq!(
            names(&small),
            ["tokio", "echo-tokio", "traits-tokio", "compio/tuned", "echo-compio/tuned"]
        );
        assert_eq!(small.baseline(&small.servers[1]).unwrap(), "echo-tokio");
        assert_eq!(small.baseline(&small.servers[2]).unwrap(), "echo-compio/tuned");
    }

    #[test]
    fn websockets_are_measured_beside_their_twins_over_tcp() {
        let small = small(|text| {
            let text = text.replace("\"peer\"", "\"tcp\"").replace("\"traits-tokio\", ", "");
            let text = text.replace("\"tokio\"", "\"tokio/websocket\"");
            text.replace("compio/tuned", "compio/tuned/websocket")
        });
        let rows = ["tokio/websocket", "tokio", "compio/tuned/websocket", "compio/tuned"];
        assert_eq!(names(&small), rows);
        assert_eq!(small.baseline(&small.servers[1]).unwrap(), "compio/tuned");
        assert_eq!(small.baseline(&small.rows()[3]), None);
        let told = small.load_for(&small.servers[0]);
        assert_eq!(told[told.len() - 2..], ["--websocket", "/echo"]);
        assert!(!small.load_for(&small.rows()[1]).contains(&"--websocket"));
    }

    #[test]
    fn bridges_are_measured_beside_their_twins_on_our_engine() {
        let small = small(|text| {
            let text = text.replace("\"peer\"", "\"native\"").replace("\"traits-tokio\", ", "");
            let text = text.replace("\"tokio\"", "\"tokio/tungstenite-fixed\"");
            text.replace("compio/tuned", "compio/tuned/tungstenite-linear")
        });
        assert_eq!(
            names(&small),
            [
                "tokio/tungstenite-fixed",
                "tokio/websocket",
                "compio/tuned/tungstenite-linear",
                "compio/tuned/websocket"
            ]
        );
        assert_eq!(small.servers[1].runtime(), "compio");
        assert_eq!(small.baseline(&small.servers[1]).unwrap(), "compio/tuned/websocket");
        let told = small.load_for(&small.servers[0]);
        assert_eq!(told[told.len() - 2..], ["--websocket", "/echo"]);
    }

    #[test]
    fn over_tls_servers_are_measured_beside_their_twins_over_tcp() {
        let small = small(|text| {
            let text = text.replace("\"peer\"", "\"tcp\"").replace("\"traits-tokio\", ", "");
            let text = text.replace("\"tokio\"", "\"tokio/tls\"");
            text.replace("compio/tuned", "compio/tuned/tls")
        });
        assert_eq!(names(&small), ["tokio/tls", "tokio", "compio/tuned/tls", "compio/tuned"]);
        let speak = small.rows().iter().map(Server::speaks_tls).collect::<Vec<_>>();
        assert_eq!(speak, [true, false, true, false]);
        assert!(!small.load_for(&small.servers[0]).contains(&"--websocket"));
        assert_eq!((small.servers[0].bridge(), small.servers[0].runtime()), (None, "tokio"));
    }

    #[test]
    fn a_workload_with_rates_is_as_many() {
        let small = small(|text| text + "rates = [500, 20_000]");
        let rates = small.clone().at_its_rates();
        let [slow, fast] = &rates[..] else { panic!("two") };
        assert_eq!(slow.load, "echo --connections 1 --payload 1 --rate 500");
        assert_eq!(fast.name, "small, 20,000 messages a second");
        assert_eq!((slow.sweep.as_deref(), fast.sweep.as_deref()), (Some("small"), Some("small")));
        assert_eq!(fast.rows(), small.rows());
        assert_eq!(fast.clone().at_its_rates().len(), 1);
    }

    #[test]
    fn a_load_can_last_longer_or_shorter() {
        let mut small = small(|text| text);
        small.change_seconds(|_| 3.0);
        assert_eq!(small.load, "echo --connections 1 --payload 1");
        assert_eq!(small.seconds(), 1.3);
        small.load += " --seconds 4 --warm-up 0.5";
        assert_eq!(small.seconds(), 4.8);
        let counted = small.for_counting().unwrap();
        assert_eq!(counted.load, "echo --connections 1 --payload 1 --seconds 1 --warm-up 0.5");
        let burst = Workload { load: "burst --connections 1".to_owned(), ..small.clone() };
        assert!(burst.for_counting().is_none());
        small.change_seconds(|seconds| seconds.min(1.5));
        assert_eq!(small.load, "echo --connections 1 --payload 1 --seconds 1.5 --warm-up 0.5");
    }
}
