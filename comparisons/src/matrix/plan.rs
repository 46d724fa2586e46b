//! Plans: the TOML files that say what is measured.

use std::collections::BTreeMap;
use std::fs;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use toml::{Table, Value};

use super::Failure;
use super::axis::grouped;
use super::figures::Figure;
use super::pairs::{Pairing, ROUND_MS};
use super::servers::{Baseline, Server, Servers, list};
use super::workload::{PlannedRow, Workload, service};
use crate::load::{Load, WINDOW_MS_MAX};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) workloads: Vec<Workload>,
}

/// Selects a part of a plan; all of it by default.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only workloads with this in their name; can be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) workload: Vec<String>,
    /// Only rows of this runtime, and what they are compared with; can be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) runtime: Vec<String>,
    /// Only rows with this in their name, and what they are compared with; can be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
}

/// A plan as it is written.
#[derive(Deserialize)]
struct File {
    workload: Vec<Table>,
    /// Defaults for all workloads.
    #[serde(flatten)]
    common: Table,
}

/// A workload as it is written, with the plan's defaults.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    name: String,
    load: Load,
    /// Whether TLS sessions are resumed.
    #[serde(default)]
    tls_resume: bool,
    /// Names of rows.
    servers: Vec<String>,
    /// What each row is compared with: `peer`, `tcp`, `native` or one of the rows.
    baseline: Baseline,
    /// Names of figures; reports begin with the first.
    figures: Vec<String>,
    /// Of some figures, by their names, what a report calls them here.
    #[serde(default)]
    titles: BTreeMap<String, String>,
    /// The servers' limit of open files, if it is to be other than that of this process.
    open_files: Option<u32>,
    /// How often each row is measured.
    #[serde(default = "once")]
    rounds: NonZeroUsize,
    /// Whether closed loops are measured in pairs.
    #[serde(default = "yes")]
    pairs: bool,
    /// The length of a window, in ms.
    #[serde(default = "window_ms")]
    window_ms: NonZeroU32,
    /// How far an interval reaches from its median at most when a row is finished, in per cent.
    #[serde(default = "width")]
    width: f64,
    /// After so many seconds a row is finished.
    #[serde(default = "row_seconds")]
    row_seconds: f64,
    /// Measured at each of these rates, a second, instead: as many workloads.
    #[serde(default)]
    rates: Vec<NonZeroU64>,
}

impl Plan {
    /// Reads files as one plan. With several of them the name of each workload begins with its file's.
    ///
    /// # Errors
    /// A sentence that names the file, the workload and what is wrong with it.
    pub fn read(files: &[PathBuf]) -> Result<Self, Failure> {
        let servers = Servers::read()?;
        let mut workloads = Vec::new();
        for file in files {
            let named = |why: String| Failure::new(format!("cannot use {}: {why}", file.display()));
            let text = fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
            let mut plan = Self::parse(&text, &servers).map_err(named)?;
            if let Some(name) = file.file_stem().filter(|_| files.len() > 1) {
                let name = name.to_string_lossy();
                plan.workloads.iter_mut().for_each(|workload| prefix_names(workload, &name));
            }
            workloads.append(&mut plan.workloads);
        }
        Ok(Self { workloads })
    }

    fn parse(text: &str, servers: &Servers) -> Result<Self, String> {
        let File { workload, common } = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut workloads = Vec::new();
        for own in workload {
            let name = own.get("name").map_or_else(|| "a workload".to_owned(), Value::to_string);
            let named = |why: String| format!("{name}: {}", why.trim_end().replace('\n', ", "));
            // The workload's own keys replace the defaults.
            let all: Table = common.clone().into_iter().chain(own).collect();
            let entry: Result<Entry, _> = all.try_into();
            let entry = entry.map_err(|error| named(error.to_string()))?;
            for (entry, sweep) in entry.at_each_rate().map_err(named)? {
                workloads.push(entry.resolve(servers, sweep).map_err(named)?);
            }
        }
        Ok(Self { workloads })
    }

    /// A workload by itself.
    #[cfg(test)]
    pub(crate) fn of_one(text: &str) -> Result<Workload, String> {
        let mut plan = Self::parse(&format!("[[workload]]\n{text}"), &Servers::read().unwrap())?;
        Ok(plan.workloads.remove(0))
    }

    /// Adds a row to each workload that is measured in pairs: one of its rows, another in each workload, once more.
    pub(crate) fn check_itself(&mut self) {
        let paired = self.workloads.iter_mut().filter(|workload| workload.pairing.is_some());
        for (index, workload) in paired.enumerate() {
            // A program that may be missing would check nothing.
            let rows = workload.rows.iter().map(|row| &row.server);
            let rows: Vec<_> = rows.filter(|server| !server.optional).collect();
            let Some(server) = rows.get(index % rows.len().max(1)) else { continue };
            let row = PlannedRow { server: server.again(), baseline: Some(server.name.clone()) };
            if !workload.rows.contains(&row) {
                workload.rows.push(row);
            }
        }
    }

    /// Keeps the workloads and rows that `filter` selects, and the baselines of those rows. A baseline that is kept is not
    /// compared with anything that is not.
    ///
    /// # Errors
    /// A part of the filter that selects nothing.
    pub(crate) fn narrow(&mut self, filter: &Filter) -> Result<(), Failure> {
        filter.check(&self.workloads).map_err(Failure::new)?;
        self.workloads.retain(|workload| filter.has_workload(&workload.name));
        for workload in &mut self.workloads {
            let named: Vec<_> =
                workload.rows.iter().filter(|row| filter.has_row(&row.server)).cloned().collect();
            workload.rows.retain(|row| {
                let is_baseline = |it: &PlannedRow| it.baseline.as_ref() == Some(&row.server.name);
                named.contains(row) || named.iter().any(is_baseline)
            });
            let kept: Vec<_> = workload.rows.iter().map(|row| row.server.name.clone()).collect();
            for row in &mut workload.rows {
                row.baseline = row.baseline.take().filter(|name| kept.contains(name));
            }
        }
        for workload in &mut self.workloads {
            if workload.rows.iter().all(|row| row.baseline.is_none()) {
                workload.pairing = None;
            }
        }
        self.workloads.retain(|workload| !workload.rows.is_empty());
        Ok(())
    }
}

impl Entry {
    /// One entry for each rate, each with the name of the sweep; the entry itself if it has no rates.
    fn at_each_rate(self) -> Result<Vec<(Self, Option<String>)>, String> {
        if self.rates.is_empty() {
            return Ok(vec![(self, None)]);
        }
        let at = |rate: &NonZeroU64| {
            let name = format!("{}, {} messages a second", self.name, grouped(rate.get() as f64));
            let load = self.load.at_rate(rate.get())?;
            Ok((Self { name, load, ..self.clone() }, Some(self.name.clone())))
        };
        self.rates.iter().map(at).collect()
    }

    /// Replaces the names of servers and figures by what they name.
    fn resolve(self, servers: &Servers, sweep: Option<String>) -> Result<Workload, String> {
        self.load.check()?;
        let figures: Result<Vec<_>, _> =
            self.figures.iter().map(|name| Figure::named(name, &self.load)).collect();
        if let Some(name) = self.titles.keys().find(|name| !self.figures.contains(name)) {
            return Err(format!("titles: {name:?} is not one of its figures"));
        }
        let rows = self.rows(servers)?;
        let has_ratio = rows.iter().any(|row| row.baseline.is_some());
        for (name, value) in [("width", self.width), ("row-seconds", self.row_seconds)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("{name}: expected a number over 0, found {value}"));
            }
        }
        if u64::from(self.window_ms.get()) > WINDOW_MS_MAX {
            return Err(format!("window-ms: at most {WINDOW_MS_MAX}, found {}", self.window_ms));
        }
        let pairing = Pairing {
            window_ms: self.window_ms.get(),
            round_ms: ROUND_MS,
            width_percent: self.width,
            row_seconds: self.row_seconds,
        };
        let is_paired = self.pairs && self.load.has_windows() && has_ratio;
        let pairing = is_paired.then_some(pairing);
        Ok(Workload {
            figures: figures?,
            rows,
            name: self.name,
            load: self.load,
            tls_resume: self.tls_resume,
            baseline: self.baseline,
            titles: self.titles,
            open_files: self.open_files,
            rounds: self.rounds.get(),
            pairing,
            sweep,
        })
    }

    /// The rows. A baseline that the plan does not list comes right after its row.
    fn rows(&self, servers: &Servers) -> Result<Vec<PlannedRow>, String> {
        if let Baseline::Row(name) = &self.baseline
            && !self.servers.contains(name)
        {
            return Err(format!(
                "it has no row {name:?} to compare with: it has {}",
                list(&self.servers)
            ));
        }
        let service = service(&self.load);
        let mut rows: Vec<PlannedRow> = Vec::new();
        for name in &self.servers {
            let server = servers.resolve(name, service)?;
            let baseline = servers.baseline(name, &self.baseline)?;
            let twin = baseline.clone().filter(|it| !self.servers.contains(it));
            if rows.iter().all(|row| row.server != server) {
                rows.push(PlannedRow { server, baseline });
            }
            if let Some(twin) = twin {
                let server = servers.resolve(&twin, service)?;
                if rows.iter().all(|row| row.server != server) {
                    rows.push(PlannedRow { server, baseline: None });
                }
            }
        }
        Ok(rows)
    }
}

impl Filter {
    /// Whether each part of the filter selects something.
    fn check(&self, workloads: &[Workload]) -> Result<(), String> {
        let rows = || workloads.iter().flat_map(|workload| &workload.rows).map(|row| &row.server);
        let unknown = [
            (
                "workload",
                self.workload.iter().find(|it| workloads.iter().all(|w| !w.name.contains(*it))),
                names(workloads.iter().map(|workload| &*workload.name)),
            ),
            (
                "runtime",
                self.runtime.iter().find(|it| rows().all(|row| row.runtime != **it)),
                names(rows().map(|row| &*row.runtime)),
            ),
            (
                "row",
                self.only.iter().find(|it| rows().all(|row| !row.name.contains(*it))),
                names(rows().map(|row| &*row.name)),
            ),
        ];
        for (what, name, known) in unknown {
            if let Some(name) = name {
                return Err(format!("the plan has no {what} {name:?}: it has {known}"));
            }
        }
        Ok(())
    }

    fn has_workload(&self, name: &str) -> bool {
        self.workload.is_empty() || self.workload.iter().any(|filter| name.contains(filter))
    }

    fn has_row(&self, server: &Server) -> bool {
        (self.runtime.is_empty() || self.runtime.contains(&server.runtime))
            && (self.only.is_empty() || self.only.iter().any(|filter| server.name.contains(filter)))
    }
}

/// The distinct names, in order of appearance.
fn names(all: impl Iterator<Item = impl AsRef<str>>) -> String {
    let mut names: Vec<String> = Vec::new();
    for name in all {
        let name = name.as_ref().to_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// Puts the plan's name before the workload's.
fn prefix_names(workload: &mut Workload, plan: &str) {
    for name in [Some(&mut workload.name), workload.sweep.as_mut()].into_iter().flatten() {
        *name = format!("{plan}: {name}");
    }
}

const fn yes() -> bool {
    true
}

/// The default length of a window.
const fn window_ms() -> NonZeroU32 {
    NonZeroU32::new(20).unwrap()
}

/// The default width of an interval, in per cent.
const fn width() -> f64 {
    2.0
}

/// The default time of a row, in seconds: enough for eight rounds, one more than an interval needs. With more time
/// intervals narrow slowly, and a full run has two hundred rows.
const fn row_seconds() -> f64 {
    11.0
}

/// The default number of rounds.
const fn once() -> NonZeroUsize {
    NonZeroUsize::MIN
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    const PLAN: &str = r#"
        rounds = 3
        [[workload]]
        name = "small"
        load = { command = "echo", connections = 1, payload = 1, seconds = 1 }
        servers = ["tokio", "traits-tokio", "compio/ring-default"]
        baseline = "peer"
        figures = ["cpu-per-message"]
    "#;

    fn parse(text: &str) -> Result<Plan, String> {
        Plan::parse(text, &Servers::read().unwrap())
    }

    fn names(workload: &Workload) -> Vec<&str> {
        workload.rows.iter().map(|row| &*row.server.name).collect()
    }

    #[test]
    fn workloads_and_rows_can_be_selected() {
        let text = PLAN.to_owned() + &PLAN.replace("rounds = 3", "").replace("small", "large");
        let left = |workload: &[&str], runtime: &[&str]| {
            let mut plan = parse(&text).unwrap();
            plan.narrow(&filter(workload, runtime)).map(|()| plan.workloads)
        };
        assert_eq!(left(&[], &[]).unwrap().len(), 2);
        let small = left(&["mal"], &["compio"]).unwrap();
        assert_eq!(small.len(), 1);
        assert_eq!(names(&small[0]), ["compio/ring-default", "echo-compio/ring-default"]);
        let error = left(&["middle"], &[]).unwrap_err().to_string();
        assert!(error.contains("no workload \"middle\": it has small, large"), "{error}");
    }

    #[test]
    fn a_row_kept_as_a_baseline_has_none_itself() {
        let rows = r#"["tokio", "compio", "compio/again"]"#;
        let text = PLAN.replace(r#"["tokio", "traits-tokio", "compio/ring-default"]"#, rows);
        let mut plan = parse(&text.replace("\"peer\"", "\"tokio\"")).unwrap();
        plan.narrow(&Filter { only: vec!["compio/again".to_owned()], ..Filter::default() })
            .unwrap();
        let rows = plan.workloads[0].rows.iter();
        let rows: Vec<_> = rows.map(|row| (&*row.server.name, row.baseline.as_deref())).collect();
        assert_eq!(rows, [("compio", None), ("compio/again", Some("compio"))]);
    }

    fn filter(workload: &[&str], runtime: &[&str]) -> Filter {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Filter { workload: named(workload), runtime: named(runtime), only: Vec::new() }
    }

    #[test]
    fn a_workload_inherits_from_its_plan() {
        let text = PLAN.to_owned()
            + r#"
            [[workload]]
            name = "large"
            rounds = 1
            load = { command = "echo", connections = 1, payload = 1_000_000, seconds = 1 }
            baseline = "tokio"
        "#;
        let error = parse(&text).unwrap_err();
        assert!(error.contains("\"large\": ") && error.contains("servers"), "{error}");
        let common = "servers = [\"tokio\", \"compio\"]\nfigures = []\n";
        let plan = parse(&format!("{common}{text}")).unwrap();
        assert_eq!(names(&plan.workloads[1]), ["tokio", "compio"]);
        assert_eq!(plan.workloads.iter().map(|it| it.rounds).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(plan.workloads[0].figures.len(), 1);
    }

    #[test]
    fn a_row_brings_its_baseline() {
        let small = parse(PLAN).unwrap().workloads.remove(0);
        let rows = [
            "tokio",
            "echo-tokio",
            "traits-tokio",
            "compio/ring-default",
            "echo-compio/ring-default",
        ];
        assert_eq!(names(&small), rows);
        let baselines: Vec<_> = small.rows.iter().map(|row| row.baseline.as_deref()).collect();
        let peer = Some("echo-tokio");
        assert_eq!(baselines, [peer, None, peer, Some("echo-compio/ring-default"), None]);
        let websocket = PLAN.replace("\"tokio\", \"traits-tokio\"", "\"tokio/websocket\"");
        let websocket = websocket.replace("compio/ring-default", "compio/ring-default/tls");
        let websocket = parse(&websocket.replace("\"peer\"", "\"tcp\"")).unwrap();
        let small = &websocket.workloads[0];
        assert_eq!(
            names(small),
            ["tokio/websocket", "tokio", "compio/ring-default/tls", "compio/ring-default"]
        );
        let args = small.rows.iter().map(|row| small.args_for(&row.server));
        assert!(args.eq([vec!["--websocket", "/echo"], vec![], vec![], vec![]]));
    }

    #[test]
    fn several_plans_are_joined() {
        let folder = std::env::temp_dir().join(format!("plans-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let files = ["one.toml", "two.toml"].map(|name| folder.join(name));
        fs::write(&files[0], PLAN).unwrap();
        let rates =
            PLAN.replace("rounds = 3", "rounds = 4").replace("baseline", "rates = [5]\nbaseline");
        fs::write(&files[1], rates).unwrap();
        let plan = Plan::read(&files).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let workloads = plan.workloads.iter().map(|it| (it.name.as_str(), it.rounds));
        assert!(workloads.eq([("one: small", 3), ("two: small, 5 messages a second", 4)]));
        assert_eq!(plan.workloads[1].sweep.as_deref(), Some("two: small"));
        assert!(plan.workloads[1].load_line().contains("--rate 5"));
    }

    #[test]
    fn the_committed_plans_can_be_read() {
        let mut plans = 0;
        for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/plans")).unwrap() {
            Plan::read(&[file.unwrap().path()]).unwrap();
            plans += 1;
        }
        assert!(plans > 0);
    }

    #[test]
    fn errors_name_the_setting() {
        for (right, wrong, why) in [
            ("\"peer\"", "\"glommio\"", "no row \"glommio\" to compare with: it has tokio, traits"),
            ("\"tokio\"", "\"turbo\"", "there is no server \"turbo\": there are tokio, "),
            ("\"tokio\"", "\"echo-epoll\"", "\"echo-epoll\" has no peer"),
            ("\"tokio\"", "\"tokio/websocket\"", "\"tokio/websocket\" has no peer"),
            ("\"peer\"", "\"tcp\"", "\"tokio\" has no twin over TCP"),
            ("\"peer\"", "\"native\"", "\"tokio\" has no twin on our engine"),
            ("\"tokio\"", "\"echo-tokio/websocket\"", "\"echo-tokio\" has no option \"websocket\""),
            ("\"tokio\"", "\"tokio/tungstenite\"", "no option \"tungstenite\": it has again, "),
            ("rounds = 3", "rounds = 0", "nonzero"),
            ("rounds = 3", "round = 3", "unknown field `round`, expected one of `name`, `load`"),
            ("payload", "paylod", "unknown field `paylod`, expected one of `payload`"),
            ("payload = 1", "payload = 0", "expected a whole number from 1 to"),
            ("\"echo\"", "\"ehco\"", "unknown variant `ehco`, expected one of `echo`"),
            ("\"echo\"", "\"sink\"", "\"echo-tokio\" does not serve sink: it serves echo"),
            (
                "per-message",
                "per-masage",
                "`load echo` has no figure \"cpu-per-masage\": it has cpu",
            ),
            ("cpu-per-message", "still-open", "`load echo` has no figure \"still-open\""),
            ("rounds = 3", "titles.it = \"x\"", "titles: \"it\" is not one of its figures"),
            ("rounds = 3", "width = nan", "width: expected a number over 0, found NaN"),
            ("rounds = 3", "row-seconds = inf", "row-seconds: expected a number over 0, found inf"),
            ("rounds = 3", "window-ms = 3600001", "window-ms: at most 3600000, found 3600001"),
        ] {
            let file = std::env::temp_dir().join(format!("plan-{}.toml", std::process::id()));
            assert!(PLAN.contains(right), "{right}");
            fs::write(&file, PLAN.replace(right, wrong)).unwrap();
            let error = Plan::read(slice::from_ref(&file)).unwrap_err().to_string();
            fs::remove_file(&file).unwrap();
            assert!(error.contains(why) && error.contains("plan-"), "{error}");
            assert!(error.contains("\"small\": "), "{error}");
        }
    }
}
