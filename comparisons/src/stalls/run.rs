//! A run of the lab, from the command line to the report.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::Path;
use std::{env, fs};

use clap::Args;

use super::measure::{EVENTS, Lab};
use super::plan::{Filter, Program, Scenario};
use super::results::Results;
use super::{Failure, html, markdown, terminal};
use crate::matrix::credentials::Credentials;
use crate::matrix::host::Host;
use crate::matrix::interrupt::Interrupt;
use crate::matrix::program::{self, SERVER_STDERR};
use crate::matrix::results::write;
use crate::matrix::run::{command_line, create};
use crate::matrix::servers::{Server, Servers};

/// How long `--quick` may take, in seconds: five minutes, less a margin for runs that take longer than planned.
const QUICK_SECONDS: f64 = 260.0;

/// More runs of each cell would take days.
const RUNS_MAX: u32 = 1_000;

/// The options of a run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    filter: Filter,
    /// A first answer in under five minutes: each class on the runtimes that it says most of.
    #[arg(long)]
    quick: bool,
    /// How often to run each scenario with each server; at most 1,000.
    #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN)]
    runs: NonZeroU32,
    /// Do not build: run the programs that are beside this one.
    #[arg(long)]
    no_build: bool,
    /// The core for the servers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    server_core: usize,
    /// The core for the load.
    #[arg(long, value_name = "N", default_value_t = 1)]
    load_core: usize,
}

impl Options {
    /// Builds, runs, writes the report beside the results, and prints what is in it.
    ///
    /// # Errors
    /// When there is no such scenario, something cannot be built, the results cannot be written, or SIGHUP, SIGINT or
    /// SIGTERM came: what was run until then is kept. A server that does not start makes its run void.
    pub fn run(&self) -> Result<(), Failure> {
        let servers = Servers::read()?;
        let scenarios = self.chosen(Scenario::read_all(&servers)?)?;
        let built = all_servers(&scenarios, self.filter.programs(), &servers)?;
        let built: Vec<_> = built.iter().collect();
        if !self.no_build {
            program::build(&built)?;
        }
        let command = command_line("cargo stalls", env::args().skip(1));
        let cores = [self.server_core, self.load_core];
        let mut results =
            Results::of(command, Host::of(&built), cores, scenarios, self.filter.programs());
        let folder = program::programs()?.with_file_name("stalls").join(&results.host.date);
        create(&folder)?;
        let whole = self.run_all(&mut results, &servers, &folder);
        results.save(&folder)?;
        let report = folder.join("report.html");
        write(&report, html::page(&results).as_bytes())?;
        write(&folder.join("table.md"), markdown::text(&results).as_bytes())?;
        // The reader may have closed the pipe.
        let _ =
            write!(io::stdout(), "{}\nReport: {}\n", terminal::text(&results), report.display());
        whole
    }

    /// The scenarios that the options select, with the runtimes that they select.
    fn chosen(&self, scenarios: Vec<Scenario>) -> Result<Vec<Scenario>, Failure> {
        if self.runs.get() > RUNS_MAX {
            return Err(Failure::new(format!("--runs: at most {RUNS_MAX}, found {}", self.runs)));
        }
        let chosen = self.filter.apply(scenarios, self.quick)?;
        let seconds = seconds(&chosen, self.filter.programs()) * f64::from(self.runs.get());
        if !self.quick || seconds > QUICK_SECONDS {
            eprintln!("this takes about {:.0} s", seconds);
        }
        Ok(chosen)
    }

    /// Runs all cells, one run of each after the other.
    fn run_all(
        &self,
        results: &mut Results,
        servers: &Servers,
        folder: &Path,
    ) -> Result<(), Failure> {
        let no_signals =
            |error: io::Error| Failure::new(format!("cannot wait for signals: {error}"));
        let interrupt = Interrupt::listen().map_err(no_signals)?;
        let credentials = Credentials::create(folder)?;
        let Self { server_core, load_core, .. } = *self;
        let lab = Lab {
            servers,
            credentials: &credentials,
            folder,
            server_core,
            load_core,
            interrupt: &interrupt,
        };
        let cells = results.cells.len();
        for round in 1..=self.runs.get() {
            for number in 0..cells {
                let cell = &results.cells[number];
                let scenario = results.scenario(cell);
                let name = terminal::name(scenario, &cell.runtime, cell.program);
                eprintln!("run {round} of {}, {} of {cells}: {name}", self.runs, number + 1);
                let run = lab.run(scenario, cell.program, &cell.runtime);
                if interrupt.is_pending().map_err(no_signals)? {
                    return Err(Failure::new("interrupted; what was run is in the report"));
                }
                if let Err(why) = &run {
                    eprintln!("void: {why}");
                }
                results.cells[number].add(run.map_err(|why| why.to_string()));
            }
            results.save(folder)?;
        }
        for of_last_server in [SERVER_STDERR, EVENTS] {
            let _ = fs::remove_file(folder.join(of_last_server));
        }
        Ok(())
    }
}

/// An estimate of how long all cells take, each run once, in seconds.
fn seconds(scenarios: &[Scenario], programs: &[Program]) -> f64 {
    let of = |scenario: &Scenario| {
        let programs = programs.iter().filter(|program| scenario.runs_with(**program)).count();
        (scenario.runtimes.len() * programs) as f64 * scenario.run_seconds()
    };
    scenarios.iter().map(of).sum()
}

fn all_servers(
    scenarios: &[Scenario],
    programs: &[Program],
    servers: &Servers,
) -> Result<Vec<Server>, Failure> {
    let mut all = Vec::new();
    for scenario in scenarios {
        for runtime in &scenario.runtimes {
            for &program in programs.iter().filter(|program| scenario.runs_with(**program)) {
                all.push(scenario.server(program, runtime, servers).map_err(Failure::new)?);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn chosen(arguments: &str) -> Result<Vec<Scenario>, Failure> {
        let words = ["stalls"].into_iter().chain(arguments.split_whitespace());
        let all = Scenario::read_all(&Servers::read().unwrap()).unwrap();
        Arguments::parse_from(words).options.chosen(all)
    }

    #[test]
    fn a_first_answer_takes_under_five_minutes_and_has_each_class() {
        let quick = chosen("--quick").unwrap();
        let seconds = seconds(&quick, Program::ALL);
        assert!(seconds <= QUICK_SECONDS, "{seconds}");
        let classes = |of: &[Scenario]| {
            // Overload takes 12,000 connections: no first answer.
            let named = of.iter().filter_map(|it| it.class.clone()).filter(|it| it != "overload");
            let mut classes: Vec<_> = named.collect();
            classes.sort();
            classes.dedup();
            classes
        };
        assert_eq!(classes(&quick), classes(&chosen("").unwrap()));
    }

    #[test]
    fn a_part_of_the_lab_can_be_run() {
        let names = |arguments: &str| -> Vec<(String, Vec<String>)> {
            let part = chosen(arguments).unwrap().into_iter();
            part.map(|scenario| (scenario.name, scenario.runtimes)).collect()
        };
        let one = names("--scenario computation --runtime compio --runtime tokio");
        let runtimes = ["tokio", "compio"].map(str::to_owned).to_vec();
        assert_eq!(one, [("a long computation".to_owned(), runtimes)]);
        let healthy = names("--healthy --runs 100");
        let is_healthy = |(name, runtimes): &(String, Vec<String>)| {
            name.contains("healthy") && runtimes.len() == 5
        };
        assert!(healthy.len() == 3 && healthy.iter().all(is_healthy), "{healthy:?}");
        for (unknown, named) in [
            ("--scenario turbo", "no scenario \"turbo\": it has accept starvation, "),
            ("--runtime tokoi", "no runtime \"tokoi\": it has compio, "),
            ("--scenario submitted --runtime tokio", "nothing of the lab is left"),
            ("--runs 1001", "--runs: at most 1000, found 1001"),
        ] {
            let error = chosen(unknown).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
