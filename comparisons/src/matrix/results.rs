//! What was measured, and where it is kept.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::calls::Calls;
use super::host::Host;
use super::program::Server;
use super::workload::Workload;
use super::{Failure, html, report};

/// The most that is read of a compressed file: a run of a day has a tenth of that.
const PLAIN_BYTES_MAX: u64 = 1 << 30;

/// All that was measured, and what is still to be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// How it was asked for.
    pub(crate) command: String,
    pub(crate) host: Host,
    pub(crate) server_core: usize,
    pub(crate) load_core: usize,
    /// Why system calls are not counted; none if they are.
    #[serde(default)]
    pub(crate) no_calls: Option<String>,
    pub(crate) workloads: Vec<Measured>,
}

/// One workload.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) workload: Workload,
    /// How often each row is to be measured.
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<Row>,
}

/// One server: for each round what `load` reported, or why that is void.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) server: Server,
    pub(crate) rounds: Vec<Result<Value, String>>,
    /// Its system calls, or why they are not known; none if nobody has looked.
    #[serde(default)]
    pub(crate) calls: Option<Result<Calls, String>>,
}

/// What of a workload is to be measured: where it stands, all from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) round: usize,
    pub(crate) row: usize,
}

impl Measured {
    /// Nothing yet.
    pub(crate) fn of(workload: Workload, rounds: usize) -> Self {
        let rows = workload.rows().into_iter().map(|server| Row {
            server,
            rounds: Vec::new(),
            calls: None,
        });
        Self { rows: rows.collect(), workload, rounds }
    }

    /// How many rounds every row has.
    pub(crate) fn rounds_done(&self) -> usize {
        self.rows.iter().map(|row| row.rounds.len()).min().unwrap_or(0)
    }

    /// Each void round: whose it is, its number from 1, and why.
    pub(crate) fn voids(&self) -> impl Iterator<Item = (&Server, usize, &str)> {
        self.rows.iter().flat_map(|row| {
            let rounds = (1..).zip(&row.rounds);
            rounds.filter_map(move |(round, it)| {
                Some((&row.server, round, it.as_ref().err()?.as_str()))
            })
        })
    }

    /// Round for round back and forth, so that no row always comes after the same other one.
    pub(crate) fn next(&self) -> Option<Next> {
        let count = self.rows.len();
        (0..self.rounds).find_map(|round| {
            let turns = (0..count).map(|turn| if round % 2 == 0 { turn } else { count - 1 - turn });
            let mut missing = turns.filter(|row| self.rows[*row].rounds.len() <= round);
            Some(Next { round, row: missing.next()? })
        })
    }

    /// The rows whose system calls are not known, nobody having looked.
    pub(crate) fn uncounted(&self) -> Vec<usize> {
        let is_sound = |row: &Row| row.rounds.iter().any(Result::is_ok);
        let rows = self.rows.iter().enumerate();
        let uncounted = rows.filter(|(_, row)| row.calls.is_none() && is_sound(row));
        uncounted
            .filter(|_| self.workload.for_counting().is_some())
            .map(|(index, _)| index)
            .collect()
    }

    /// How long what is not there yet will take, about, in seconds.
    pub(crate) fn seconds_left(&self) -> f64 {
        let left = |row: &Row| self.rounds.saturating_sub(row.rounds.len());
        self.rows.iter().map(left).sum::<usize>() as f64 * self.workload.seconds()
    }
}

impl Results {
    /// Those that [`save`](Self::save) left.
    ///
    /// # Errors
    /// A sentence that names the file and what is wrong with it.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        Self::read_file(&folder.join("results.json"))
    }

    /// The same of any file, which may be compressed by gzip.
    pub(crate) fn read_file(file: &Path) -> Result<Self, Failure> {
        let named = |why: String| Failure::new(format!("cannot use {}: {why}", file.display()));
        let mut text = fs::read(file).map_err(|error| named(error.to_string()))?;
        if file.extension().is_some_and(|extension| extension == "gz") {
            let mut plain = Vec::new();
            let read = GzDecoder::new(&*text).take(PLAIN_BYTES_MAX).read_to_end(&mut plain);
            read.map_err(|error| named(error.to_string()))?;
            text = plain;
        }
        serde_json::from_slice(&text).map_err(|error| named(error.to_string()))
    }

    /// Whether the system calls of some row are known.
    pub(crate) fn has_calls(&self) -> bool {
        let mut rows = self.workloads.iter().flat_map(|measured| &measured.rows);
        rows.any(|row| matches!(row.calls, Some(Ok(_))))
    }

    /// Whether nothing is left to be measured.
    pub(crate) fn is_complete(&self) -> bool {
        let is_complete = |it: &Measured| {
            it.next().is_none() && (self.no_calls.is_some() || it.uncounted().is_empty())
        };
        self.workloads.iter().all(is_complete)
    }

    /// Writes `results.json`; whenever this is interrupted, there is a whole one.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), Failure> {
        let json = serde_json::to_vec(self);
        let json = json.map_err(|error| Failure::new(error.to_string()))?;
        let (file, new) = (folder.join("results.json"), folder.join("results.json.new"));
        write(&new, &json)?;
        fs::rename(&new, &file)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))
    }

    /// Writes `report.md` and `report.html`.
    pub(crate) fn report(&self, folder: &Path) -> Result<(), Failure> {
        write(&folder.join("report.md"), report::markdown(self).as_bytes())?;
        write(&folder.join("report.html"), html::page(self).as_bytes())
    }
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(file, bytes)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results() -> Results {
        let workload = |name: &str| {
            let workload = json!({
                "name": name, "load": "echo --seconds 1 --warm-up 0.7", "against": "tokio",
                "servers": ["tokio", "compio"], "figures": [],
            });
            Measured::of(serde_json::from_value(workload).unwrap(), 2)
        };
        Results {
            command: "cargo matrix plan.toml".to_owned(),
            host: Host::here(),
            server_core: 0,
            load_core: 1,
            no_calls: None,
            workloads: vec![workload("first"), workload("second")],
        }
    }

    #[test]
    fn rounds_go_back_and_forth_and_go_on_where_they_were() {
        let folder = std::env::temp_dir().join(format!("results-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut results = results();
        assert_eq!(results.workloads[0].seconds_left(), 8.0);
        let mut order = Vec::new();
        while let Some(next @ Next { round, row }) = results.workloads[0].next() {
            let rounds = &mut results.workloads[0].rows[row].rounds;
            rounds.push(if row == 0 { Ok(json!({})) } else { Err("void".to_owned()) });
            order.push((round, row));
            results.save(&folder).unwrap();
            results = Results::read(&folder).unwrap();
            assert_ne!(
                results.workloads[0].next(),
                Some(next),
                "a void round is not measured again"
            );
        }
        assert_eq!(order, [(0, 0), (0, 1), (1, 1), (1, 0)]);
        assert_eq!(results.workloads[0].seconds_left(), 0.0);
        results.workloads.truncate(1);
        // A run that was interrupted while it counted goes on with that; nobody counts what was always void.
        assert_eq!((results.workloads[0].uncounted(), results.is_complete()), (vec![0], false));
        results.no_calls = Some("not permitted".to_owned());
        assert!(results.is_complete());
        results.no_calls = None;
        results.workloads[0].rows[0].calls = Some(Err("void".to_owned()));
        assert!(results.is_complete());
        fs::write(folder.join("results.json"), "{}").unwrap();
        let error = Results::read(&folder).unwrap_err().to_string();
        assert!(error.contains("results.json: missing field"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
