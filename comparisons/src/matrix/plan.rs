//! What is measured: a TOML file.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use toml::{Table, Value};

use super::Failure;
use super::program::Server;
use super::workload::{Against, Workload};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) workloads: Vec<Workload>,
}

/// Which part of a plan is measured; all where nothing is said.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Part {
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

/// As it is written.
#[derive(Deserialize)]
struct File {
    workload: Vec<Table>,
    /// What holds for all workloads that do not say otherwise.
    #[serde(flatten)]
    common: Table,
}

impl Plan {
    /// Reads files as one plan. With several of them the name of each workload begins with its file's.
    ///
    /// # Errors
    /// A sentence that names the file and what is wrong with it.
    pub fn read(files: &[PathBuf]) -> Result<Self, Failure> {
        let mut workloads = Vec::new();
        for file in files {
            let named = |why: String| Failure::new(format!("cannot use {}: {why}", file.display()));
            let text = fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
            let mut plan = Self::parse(&text).map_err(named)?;
            if let Some(name) = file.file_stem().filter(|_| files.len() > 1) {
                let name = name.to_string_lossy();
                plan.workloads.iter_mut().for_each(|workload| workload.be_of(&name));
            }
            workloads.append(&mut plan.workloads);
        }
        Ok(Self { workloads })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let File { workload, common } = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut workloads = Vec::new();
        for said in workload {
            let name = said.get("name").map_or_else(|| "a workload".to_owned(), Value::to_string);
            // Of two with the same key the last is kept.
            let all: Table = common.clone().into_iter().chain(said).collect();
            let workload: Result<Workload, _> = all.try_into();
            let workload = workload.map_err(|error| error.to_string());
            let workload = workload.and_then(|it| it.check().map(|()| it));
            let workload = workload.map_err(|why| format!("{name}: {}", why.trim_end()))?;
            workloads.append(&mut workload.at_its_rates());
        }
        Ok(Self { workloads })
    }

    /// Leaves only the workloads and rows that `part` names, and what those rows are compared with.
    ///
    /// # Errors
    /// What of it names none.
    pub(crate) fn narrow(&mut self, part: &Part) -> Result<(), Failure> {
        let all = self.workloads.iter();
        let rows = || all.clone().flat_map(|workload| &workload.servers);
        let unknown = [
            (
                "workload",
                part.workload.iter().find(|it| all.clone().all(|w| !w.name.contains(*it))),
            ),
            ("runtime", part.runtime.iter().find(|it| rows().all(|row| row.runtime() != **it))),
            ("row", part.only.iter().find(|it| rows().all(|row| !row.name().contains(*it)))),
        ];
        for (what, name) in unknown {
            if let Some(name) = name {
                return Err(Failure::new(format!("the plan has no {what} {name:?}")));
            }
        }
        self.workloads.retain(|workload| part.has_workload(&workload.name));
        for workload in &mut self.workloads {
            let against = workload.against.clone();
            let is_baseline =
                |server: &Server| against == Against::Server(server.name().to_owned());
            workload.servers.retain(|server| part.has_row(server) || is_baseline(server));
            if workload.servers.iter().all(|server| is_baseline(server) && !part.has_row(server)) {
                workload.servers.clear();
            }
        }
        self.workloads.retain(|workload| !workload.servers.is_empty());
        Ok(())
    }
}

impl Part {
    fn has_workload(&self, name: &str) -> bool {
        self.workload.is_empty() || self.workload.iter().any(|part| name.contains(part))
    }

    fn has_row(&self, server: &Server) -> bool {
        (self.runtime.is_empty() || self.runtime.iter().any(|it| it == server.runtime()))
            && (self.only.is_empty() || self.only.iter().any(|part| server.name().contains(part)))
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    const PLAN: &str = r#"
        rounds = 3
        [[workload]]
        name = "small"
        load = "echo --connections 1 --payload 1"
        servers = ["tokio", "traits-tokio", "compio/tuned"]
        against = "peer"
        figures = [["CPU", "/server/per_message/cpu_ns"]]
    "#;

    fn names(workload: &Workload) -> Vec<String> {
        workload.rows().iter().map(|row| row.name().to_owned()).collect()
    }

    #[test]
    fn some_of_it_can_be_left() {
        let text = PLAN.to_owned() + &PLAN.replace("rounds = 3", "").replace("small", "large");
        let left = |workload: &[&str], runtime: &[&str]| {
            let mut plan = Plan::parse(&text).unwrap();
            plan.narrow(&part(workload, runtime)).map(|()| plan.workloads)
        };
        assert_eq!(left(&[], &[]).unwrap().len(), 2);
        let small = left(&["mal"], &["compio"]).unwrap();
        assert_eq!(small.len(), 1);
        assert_eq!(names(&small[0]), ["compio/tuned", "echo-compio/tuned"]);
        assert!(left(&["middle"], &[]).unwrap_err().to_string().contains("no workload \"middle\""));
    }

    fn part(workload: &[&str], runtime: &[&str]) -> Part {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Part { workload: named(workload), runtime: named(runtime), only: Vec::new() }
    }

    #[test]
    fn what_a_workload_does_not_say_is_what_the_plan_says() {
        let text = PLAN.to_owned()
            + r#"
            [[workload]]
            name = "large"
            rounds = 1
            load = "echo --connections 1 --payload 1000000"
            against = "tokio"
        "#;
        let error = Plan::parse(&text).unwrap_err();
        assert!(error.contains("\"large\": ") && error.contains("servers"), "{error}");
        let common = "servers = [\"tokio\", \"compio\"]\nfigures = []\n";
        let plan = Plan::parse(&format!("{common}{text}")).unwrap();
        assert_eq!(names(&plan.workloads[1]), ["tokio", "compio"]);
        assert_eq!(plan.workloads.iter().map(|it| it.rounds.get()).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(plan.workloads[0].figures.len(), 1);
    }

    #[test]
    fn several_plans_are_one() {
        let folder = std::env::temp_dir().join(format!("plans-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let files = ["one.toml", "two.toml"].map(|name| folder.join(name));
        fs::write(&files[0], PLAN).unwrap();
        let rates =
            PLAN.replace("rounds = 3", "rounds = 4").replace("against", "rates = [5]\nagainst");
        fs::write(&files[1], rates).unwrap();
        let plan = Plan::read(&files).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let said = plan.workloads.iter().map(|it| (it.name.as_str(), it.rounds.get()));
        assert!(said.eq([("one: small", 3), ("two: small, 5 messages a second", 4)]));
        assert_eq!(plan.workloads[1].sweep.as_deref(), Some("two: small"));
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
    fn what_is_wrong_is_named() {
        for (right, wrong, why) in [
            ("\"peer\"", "\"glommio\"", "no row \"glommio\""),
            ("\"tokio\"", "\"turbo\"", "there is no server turbo"),
            ("\"tokio\"", "\"echo-epoll\"", "echo-epoll has no peer"),
            ("\"tokio\"", "\"tokio/websocket\"", "tokio/websocket has no peer"),
            ("\"peer\"", "\"tcp\"", "tokio has no twin"),
            ("\"peer\"", "\"native\"", "tokio has no twin on our engine"),
            ("\"tokio\"", "\"tokio/tls\"", "tokio/tls has no peer"),
            ("\"tokio\"", "\"echo-tokio/websocket\"", "echo-tokio has no /websocket"),
            ("\"tokio\"", "\"tokio/tungstenite\"", "there is no server tokio/tungstenite"),
            ("rounds = 3", "rounds = 0", "nonzero"),
            ("rounds = 3", "round = 3", "unknown field `round`"),
        ] {
            let file = std::env::temp_dir().join(format!("plan-{}.toml", std::process::id()));
            fs::write(&file, PLAN.replace(right, wrong)).unwrap();
            let error = Plan::read(slice::from_ref(&file)).unwrap_err().to_string();
            fs::remove_file(&file).unwrap();
            assert!(error.contains(why) && error.contains("plan-"), "{error}");
            assert!(error.contains("\"small\": "), "{error}");
        }
    }
}
