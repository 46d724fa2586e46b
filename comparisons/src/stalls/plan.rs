//! The scenarios of the lab: `comparisons/stalls.toml`, which says how a scenario is written.

use std::num::NonZeroU32;
use std::time::Duration;
use std::{fs, slice};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::Failure;
use super::judge::{CLASSES, Expectation};
use crate::load::{Connections, Load};
use crate::matrix::servers::{FOLDER, Server, Servers, Service, list};

const FILE: &str = "stalls.toml";

/// A fault lasts at most so long, and begins at most so late, in ms.
const PART_MS_MAX: u32 = 600_000;

/// More MiB are not written to a server that does not read.
const DEAF_MIB_MAX: u32 = 1_024;

/// More processes do not use the server's core.
const NEIGHBOURS_MAX: u32 = 64;

/// How long it takes until a run's load is through, besides the times of the plan, in seconds.
const AROUND_SECONDS: f64 = 1.0;

/// How long the loads of a healthy server run again before it is told to end under them: 12,000 connections take a
/// second or two to open.
pub(crate) const BEFORE_END: Duration = Duration::from_secs(3);

/// What happens to a server, and what the detector has to make of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// A sentence.
    pub(crate) about: String,
    /// The truth; none where nothing is wrong.
    pub(crate) class: Option<String>,
    /// The class of a second fault, which begins while the first lasts.
    #[serde(default)]
    pub(crate) then: Option<String>,
    /// Classes that follow from it.
    #[serde(default)]
    also: Vec<String>,
    /// What the naive server does wrong.
    #[serde(default)]
    pub(crate) fault: Option<String>,
    /// The runtimes on which the naive server stalls so.
    #[serde(default)]
    stalls: Vec<String>,
    /// Whether something other than its load and its code makes each server's clients wait.
    #[serde(default)]
    pub(crate) environment: bool,
    /// The server that it runs with. None: both.
    only: Option<Program>,
    /// From the listening server to the fault, its length, and the time after it, in ms.
    pub(crate) after_ms: u32,
    /// From the loads to the naive server's fault, which ends when it would without that.
    #[serde(default)]
    fault_delay_ms: u32,
    pub(crate) lasts_ms: u32,
    rest_ms: u32,
    /// Options of `load arrivals` but for `seconds`.
    observer: Table,
    /// Commands of `load` that begin with the fault.
    #[serde(default)]
    pub(crate) loads: Vec<Load>,
    #[serde(default)]
    pub(crate) deaf: Option<Deaf>,
    /// Processes that use the server's core during the fault.
    #[serde(default)]
    pub(crate) neighbours: u32,
    #[serde(default)]
    pub(crate) open_files: Option<u32>,
    /// Of the naive server.
    #[serde(default)]
    accept: Option<String>,
    #[serde(default)]
    backlog: Option<u32>,
    #[serde(default)]
    entries: Option<u32>,
    /// Whether nobody reads standard error until the fault is over.
    #[serde(default)]
    pub(crate) unread_log: bool,
    #[serde(default)]
    pub(crate) network: Option<Network>,
    pub(crate) runtimes: Vec<String>,
    quick: Vec<String>,
}

/// Clients that send and never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deaf {
    pub(crate) connections: Connections,
    /// The most that each sends.
    pub(crate) mib: u32,
}

/// A network namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Network {
    /// Its local ports.
    pub(crate) first_port: u16,
    pub(crate) last_port: u16,
    /// How many Mbit all of its connections may carry in a second, both directions together. None: there is no limit.
    #[serde(default)]
    pub(crate) mbit_per_s: Option<NonZeroU32>,
}

/// Which server a scenario runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Program {
    /// A plain accept loop with a fault: `peers/stalling`.
    Naive,
    /// The server of this repository.
    Ours,
}

/// Selects a part of the lab; all of it by default.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only scenarios with this in their name; can be given several times.
    #[arg(long, value_name = "TEXT")]
    scenario: Vec<String>,
    /// Only on this runtime; can be given several times.
    #[arg(long, value_name = "NAME")]
    runtime: Vec<String>,
    /// Only with this server: the naive one, or ours.
    #[arg(long, value_name = "WHICH")]
    pub(crate) server: Option<Program>,
    /// Only scenarios in which nothing is wrong: no verdict is right.
    #[arg(long)]
    healthy: bool,
}

#[derive(Deserialize)]
struct File {
    scenario: Vec<Table>,
    /// Defaults of all scenarios.
    #[serde(flatten)]
    common: Table,
}

impl Scenario {
    /// All of `comparisons/stalls.toml`.
    ///
    /// # Errors
    /// A sentence that names the scenario and what is wrong with it.
    pub(crate) fn read_all(servers: &Servers) -> Result<Vec<Self>, Failure> {
        let file = format!("{FOLDER}/{FILE}");
        let text = fs::read_to_string(&file).map_err(|error| error.to_string());
        text.and_then(|text| Self::parse_all(&text, servers))
            .map_err(|why| Failure::new(format!("cannot use {file}: {why}")))
    }

    pub(crate) fn parse_all(text: &str, servers: &Servers) -> Result<Vec<Self>, String> {
        let File { scenario, common } = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut all: Vec<Self> = Vec::new();
        for own in scenario {
            let name = own.get("name").map_or_else(|| "a scenario".to_owned(), Value::to_string);
            let named = |why: String| format!("{name}: {}", why.trim_end().replace('\n', ", "));
            // The scenario's own keys replace the defaults.
            let table: Table = common.clone().into_iter().chain(own).collect();
            let scenario: Self =
                table.try_into().map_err(|error: toml::de::Error| named(error.to_string()))?;
            scenario.check(servers).map_err(named)?;
            if all.iter().any(|other| other.name == scenario.name) {
                return Err(named("there are two of that name".to_owned()));
            }
            all.push(scenario);
        }
        Ok(all)
    }

    fn check(&self, servers: &Servers) -> Result<(), String> {
        let mut classes = self.class.iter().chain(&self.then).chain(&self.also);
        if let Some(class) = classes.find(|class| !CLASSES.contains(&class.as_str())) {
            return Err(format!("there is no class {class:?}: there are {}", list(CLASSES)));
        }
        if self.then.is_some() && self.class.is_none() {
            return Err("then: it needs a class before it".to_owned());
        }
        for (key, runtimes) in [("stalls", &self.stalls), ("quick", &self.quick)] {
            if let Some(runtime) = runtimes.iter().find(|name| !self.runtimes.contains(name)) {
                let own = list(&self.runtimes);
                return Err(format!("{key}: it does not run on {runtime:?}: it runs on {own}"));
            }
        }
        for (key, ms) in
            [("after-ms", self.after_ms), ("lasts-ms", self.lasts_ms), ("rest-ms", self.rest_ms)]
        {
            if ms > PART_MS_MAX {
                return Err(format!("{key}: at most {PART_MS_MAX}, found {ms}"));
            }
        }
        if self.fault_delay_ms > self.lasts_ms {
            let Self { fault_delay_ms, lasts_ms, .. } = self;
            return Err(format!("fault-delay-ms: {fault_delay_ms} is over lasts-ms, {lasts_ms}"));
        }
        if let Some(Deaf { mib, .. }) = self.deaf.filter(|deaf| deaf.mib > DEAF_MIB_MAX) {
            return Err(format!("deaf: at most {DEAF_MIB_MAX} MiB, found {mib}"));
        }
        if self.neighbours > NEIGHBOURS_MAX {
            return Err(format!("neighbours: at most {NEIGHBOURS_MAX}, found {}", self.neighbours));
        }
        if self.network.is_some() && self.deaf.is_some() {
            return Err("deaf clients are not in a network namespace".to_owned());
        }
        self.observer().map_err(|why| format!("observer: {why}"))?;
        self.loads.iter().try_for_each(Load::check)?;
        for runtime in &self.runtimes {
            for &program in Program::ALL.iter().filter(|program| self.runs_with(**program)) {
                self.server(program, runtime, servers)?;
            }
        }
        Ok(())
    }

    pub(crate) fn runs_with(&self, program: Program) -> bool {
        self.only.is_none_or(|only| only == program)
    }

    /// What is wrong, in words.
    pub(crate) fn truth(&self) -> String {
        match (&self.class, &self.then) {
            (None, _) => "nothing is wrong".to_owned(),
            (Some(class), None) => class.replace('_', " "),
            (Some(class), Some(then)) => format!("{class}, then {then}").replace('_', " "),
        }
    }

    /// When a second fault begins, in ms after the first.
    pub(crate) fn then_ms(&self) -> f64 {
        self.fault_delay_ms.into()
    }

    /// What watches the server: new clients, before the fault, during it and after it.
    ///
    /// # Errors
    /// An option that `load arrivals` does not have, or a value out of its bounds.
    pub(crate) fn observer(&self) -> Result<Load, String> {
        let mut options = self.observer.clone();
        options.insert("command".to_owned(), "arrivals".into());
        // The opening of the connections and the warm-up come before it.
        let seconds = (self.planned_seconds() - AROUND_SECONDS).max(0.5);
        options.insert("seconds".to_owned(), seconds.into());
        let load: Load = options.try_into().map_err(|error: toml::de::Error| error.to_string())?;
        load.check().map(|()| load)
    }

    /// The server, with the arguments of this scenario but for those that a run adds.
    ///
    /// # Errors
    /// When there is none for this runtime.
    pub(crate) fn server(
        &self,
        program: Program,
        runtime: &str,
        servers: &Servers,
    ) -> Result<Server, String> {
        if program == Program::Ours {
            let mut server = servers.resolve(runtime, Service::Echo)?;
            server.run.extend(["--admin", "127.0.0.1:0", "--log", "json"].map(str::to_owned));
            return Ok(server);
        }
        let mut server = servers.resolve(&format!("stalling-{runtime}"), Service::Echo)?;
        let mut option = |name: &str, value: Option<String>| {
            server.run.extend(value.into_iter().flat_map(|value| [format!("--{name}"), value]));
        };
        option("fault", self.fault.clone());
        option("after-ms", Some((self.after_ms + self.fault_delay_ms).to_string()));
        option("lasts-ms", Some((self.lasts_ms - self.fault_delay_ms).to_string()));
        option("accept", self.accept.clone());
        option("backlog", self.backlog.map(|backlog| backlog.to_string()));
        option("entries", self.entries.map(|entries| entries.to_string()));
        Ok(server)
    }

    /// What the detector has to say.
    pub(crate) fn expectation(&self, program: Program, runtime: &str) -> Expectation<'_> {
        let is_naive = program == Program::Naive;
        // A load without a fault is the same for each server.
        let is_done_to_it = self.environment || self.fault.is_none();
        let truth = self.class.as_deref().filter(|_| is_naive || is_done_to_it);
        let also = if truth.is_some() { &*self.also } else { &[] };
        let stalls = self.stalls.iter().any(|name| name == runtime);
        Expectation {
            truth,
            then: self.then.as_deref().filter(|_| is_naive),
            also,
            is_required: is_naive && stalls,
            may_overflow: true,
            is_healthy: self.class.is_none(),
        }
    }

    /// The times of the plan, in seconds.
    fn planned_seconds(&self) -> f64 {
        f64::from(self.after_ms + self.lasts_ms + self.rest_ms) / 1e3
    }

    /// An estimate of how long a run takes, in seconds.
    pub(crate) fn run_seconds(&self) -> f64 {
        let end = if self.class.is_none() { BEFORE_END } else { Duration::ZERO };
        self.planned_seconds() + AROUND_SECONDS + end.as_secs_f64()
    }
}

impl Filter {
    /// The servers that it selects, where a scenario runs with them.
    pub(crate) fn programs(&self) -> &[Program] {
        self.server.as_ref().map_or(Program::ALL, slice::from_ref)
    }

    /// The scenarios that it selects, each with the runtimes that it selects.
    ///
    /// # Errors
    /// A part of the filter that selects nothing.
    pub(crate) fn apply(
        &self,
        scenarios: Vec<Scenario>,
        is_quick: bool,
    ) -> Result<Vec<Scenario>, Failure> {
        let no = |what: &str, name: &str, known: String| {
            Err(Failure::new(format!("the lab has no {what} {name:?}: it has {known}")))
        };
        if let Some(text) =
            self.scenario.iter().find(|text| scenarios.iter().all(|it| !it.name.contains(*text)))
        {
            return no("scenario", text, list(scenarios.iter().map(|it| &it.name)));
        }
        let runtimes = scenarios.iter().flat_map(|scenario| &scenario.runtimes);
        let mut runtimes: Vec<_> = runtimes.cloned().collect();
        runtimes.sort();
        runtimes.dedup();
        if let Some(name) = self.runtime.iter().find(|name| !runtimes.contains(name)) {
            return no("runtime", name, list(runtimes));
        }
        let mut kept = scenarios;
        kept.retain(|scenario| {
            (self.scenario.is_empty() || self.scenario.iter().any(|it| scenario.name.contains(it)))
                && (!self.healthy || scenario.class.is_none())
        });
        for scenario in &mut kept {
            let Scenario { runtimes, quick, .. } = scenario;
            runtimes.retain(|name| {
                (self.runtime.is_empty() || self.runtime.contains(name))
                    && (!is_quick || quick.contains(name))
            });
        }
        kept.retain(|scenario| {
            let mut programs = self.programs().iter();
            !scenario.runtimes.is_empty() && programs.any(|program| scenario.runs_with(*program))
        });
        if kept.is_empty() {
            return Err(Failure::new("nothing of the lab is left to be run"));
        }
        Ok(kept)
    }
}

impl Program {
    pub(crate) const ALL: &'static [Self] = &[Self::Naive, Self::Ours];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Ours => "ours",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stalls::results::tests::PLAN;

    fn parse(text: &str) -> Result<Vec<Scenario>, String> {
        Scenario::parse_all(text, &Servers::read().unwrap())
    }

    #[test]
    fn the_servers_have_the_arguments_of_the_scenario() {
        let servers = Servers::read().unwrap();
        let [blocked, _] = &*parse(PLAN).unwrap() else { panic!() };
        let run = |program| blocked.server(program, "tokio", &servers).unwrap().run.join(" ");
        let naive = "stalling --runtime tokio {addr} --fault block --after-ms 1000 --lasts-ms 1000";
        assert_eq!(run(Program::Naive), naive);
        assert!(run(Program::Ours).ends_with("--echo {addr} --admin 127.0.0.1:0 --log json"));
        let observer = blocked.observer().unwrap();
        assert_eq!((observer.name(), observer.run_seconds()), ("arrivals", 4.0));
    }

    #[test]
    fn the_truth_is_of_the_naive_server_where_it_stalls() {
        let text = PLAN.replace("stalls = [\"tokio\", \"monoio\"]", "stalls = [\"tokio\"]");
        let [blocked, healthy] = &*parse(&text).unwrap() else { panic!() };
        let truth = |scenario: &Scenario, program, runtime| {
            let Expectation { truth, is_required, .. } = scenario.expectation(program, runtime);
            (truth.map(str::to_owned), is_required)
        };
        let class = || Some("blocked_loop".to_owned());
        assert_eq!(truth(blocked, Program::Naive, "tokio"), (class(), true));
        assert_eq!(truth(blocked, Program::Naive, "monoio"), (class(), false));
        assert_eq!(truth(blocked, Program::Ours, "tokio"), (None, false));
        assert_eq!(truth(healthy, Program::Naive, "tokio"), (None, false));
        let environment = text.replacen("fault =", "environment = true\nfault =", 1);
        let [blocked, _] = &*parse(&environment).unwrap() else { panic!() };
        assert_eq!(truth(blocked, Program::Ours, "tokio"), (class(), false));
    }

    #[test]
    fn a_second_fault_begins_later_and_ends_with_the_first() {
        let text = PLAN.replace(
            "fault =",
            "then = \"blocked_log\"\nfault-delay-ms = 400\naccept = \"many\"\nonly = \"naive\"\nfault =",
        );
        let [blocked, healthy] = &*parse(&text).unwrap() else { panic!() };
        let then = |program| blocked.expectation(program, "tokio").then;
        assert_eq!((then(Program::Naive), then(Program::Ours)), (Some("blocked_log"), None));
        let server = blocked.server(Program::Naive, "tokio", &Servers::read().unwrap()).unwrap();
        assert!(server.run.join(" ").ends_with("--after-ms 1400 --lasts-ms 600 --accept many"));
        assert!(!blocked.runs_with(Program::Ours) && healthy.runs_with(Program::Ours));
        let ours = Filter { server: Some(Program::Ours), ..Filter::default() };
        let kept = ours.apply(parse(&text).unwrap(), false).unwrap();
        assert!(kept.iter().map(|scenario| &scenario.name).eq(["healthy"]));
    }

    #[test]
    fn what_is_wrong_with_a_scenario_is_named() {
        for (right, wrong, why) in [
            ("\"blocked_loop\"", "\"blocked\"", "there is no class \"blocked\": there are accept_"),
            ("fault =", "fautl =", "unknown field `fautl`"),
            (
                "stalls = [\"tokio\"",
                "stalls = [\"compio\"",
                "stalls: it does not run on \"compio\"",
            ),
            ("rate = 10", "rate = 0", "observer: "),
            ("rate = 10", "rat = 10", "observer: "),
            ("fault =", "loads = [{ command = \"ecco\" }]\nfault =", "unknown variant `ecco`"),
            ("lasts-ms = 1000", "lasts-ms = 700000", "lasts-ms: at most 600000, found 700000"),
            (
                "fault =",
                "fault-delay-ms = 1001\nfault =",
                "fault-delay-ms: 1001 is over lasts-ms, 1000",
            ),
            ("fault =", "then = \"it\"\nfault =", "there is no class \"it\""),
            ("fault =", "neighbours = 65\nfault =", "neighbours: at most 64, found 65"),
            ("\"healthy\"", "\"a <blocked> loop\"", "there are two of that name"),
        ] {
            assert!(PLAN.contains(right), "{right}");
            let error = parse(&PLAN.replacen(right, wrong, 1)).unwrap_err();
            assert!(error.contains(why) && error.contains("\"a <blocked> loop\": "), "{error}");
        }
    }
}
