//! The results of a run, and their file.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

use super::Failure;
use super::calls::SystemCalls;
use super::figures::Figure;
use super::host::Host;
use super::pairs::Pairs;
use super::servers::{Server, list};
use super::workload::Workload;
use crate::load::{PerMessage, Report};

/// The format of the file, which is read before anything else: another format has other fields.
const FORMAT: u32 = 2;

/// At most this much is read of a compressed file. A run of a day has a tenth of that.
const PLAIN_BYTES_MAX: u64 = 1 << 30;

/// All that was measured, and all that is still missing.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    /// [`FORMAT`].
    format: u32,
    /// The command line.
    pub(crate) command: String,
    pub(crate) host: Host,
    pub(crate) server_core: usize,
    pub(crate) load_core: usize,
    /// Why system calls are not counted; none if they are.
    #[serde(default)]
    pub(crate) no_calls: Option<String>,
    pub(crate) workloads: Vec<MeasuredWorkload>,
}

/// A workload with its samples.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeasuredWorkload {
    pub(crate) workload: Workload,
    /// How many rounds each row is to have.
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<Row>,
}

/// One server with its samples: one for each round, or why the round is void.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) server: Server,
    /// The row that it is compared with; none if that is itself.
    pub(crate) baseline: Option<String>,
    pub(crate) rounds: Vec<Result<Sample, String>>,
    /// What was measured in turns with the baseline; none for a baseline, and in a workload without pairs.
    #[serde(default)]
    pub(crate) pairs: Option<Pairs>,
    /// The CPU that the server used while it had nothing to do, in per cent of a core: the median of each round, and the
    /// largest of these; none where it was not measured.
    #[serde(default)]
    pub(crate) idle_cpu_percent: Option<f64>,
    /// In how many rounds the server was stopped (SIGSTOP) while others were measured, because it used more than
    /// [`IDLE_PERCENT_MAX`](super::pairs::IDLE_PERCENT_MAX) while it had nothing to do.
    #[serde(default)]
    pub(crate) paused_rounds: usize,
    /// Its system calls, or why they could not be counted; none before that was tried.
    #[serde(default)]
    pub(crate) calls: Option<Result<SystemCalls, String>>,
}

/// What one run of `load` on one server measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    pub(crate) report: Report,
    /// The time from the server's start to its start-up line.
    pub(crate) startup_ms: f64,
    /// How many bytes of its program are loaded when it starts; none for a script.
    pub(crate) program_bytes: Option<u64>,
}

/// The next measurement of a workload, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) round: usize,
    pub(crate) row: usize,
}

impl Sample {
    /// What the server used for each message.
    pub(crate) fn per_message(&self) -> Option<&PerMessage> {
        self.report.server.as_ref()?.per_message.as_ref()
    }

    /// Whether the sample is sound.
    ///
    /// # Errors
    /// Why it is void: answers were wrong, connections failed, or one of `figures` was not measured.
    pub(crate) fn check(&self, figures: &[Figure]) -> Result<(), String> {
        let Report { connections, burst, .. } = &self.report;
        if let Some(sentence) = self.report.wrong_answer() {
            return Err(sentence);
        }
        // In a burst, failures are a result. In arrivals these are the busy connections; failures of new ones are
        // counted elsewhere, as a result.
        if burst.is_none() && !connections.errors.is_empty() {
            let errors = connections.errors.iter();
            let kinds = errors.map(|(kind, count)| format!("{count} x {kind}"));
            return Err(format!("connections failed: {}", list(kinds)));
        }
        match figures.iter().find(|figure| figure.of(self).is_none()) {
            Some(figure) => Err(format!("{:?} was not measured", figure.name())),
            None => Ok(()),
        }
    }
}

impl Row {
    /// Whether it was measured in pairs, and no more are to come.
    pub(crate) fn is_finished(&self) -> bool {
        self.pairs.as_ref().is_some_and(|pairs| pairs.stopped.is_some())
    }
}

impl MeasuredWorkload {
    /// A workload without samples.
    pub(crate) fn of(workload: Workload, rounds: usize) -> Self {
        let rounds = if workload.pairing.is_some() { 0 } else { rounds };
        let rows = workload.rows.iter().map(|row| Row {
            server: row.server.clone(),
            baseline: row.baseline.clone(),
            rounds: Vec::new(),
            pairs: None,
            idle_cpu_percent: None,
            paused_rounds: 0,
            calls: None,
        });
        Self { rows: rows.collect(), workload, rounds }
    }

    /// How many rounds are complete.
    pub(crate) fn rounds_done(&self) -> usize {
        let rounds = self.rows.iter().map(|row| row.rounds.len());
        // In pairs, rows are finished after different numbers of rounds.
        let done = if self.workload.pairing.is_some() { rounds.max() } else { rounds.min() };
        done.unwrap_or(0)
    }

    /// Each void round: its server, its number from 1, and the reason.
    pub(crate) fn voids(&self) -> impl Iterator<Item = (&Server, usize, &str)> {
        self.rows.iter().flat_map(|row| {
            let rounds = (1..).zip(&row.rounds);
            rounds.filter_map(move |(round, it)| {
                Some((&row.server, round, it.as_ref().err()?.as_str()))
            })
        })
    }

    /// The next measurement. Rounds run back and forth, so that no row always follows the same other row.
    pub(crate) fn next(&self) -> Option<Position> {
        if self.workload.pairing.is_some() {
            return None;
        }
        let count = self.rows.len();
        (0..self.rounds).find_map(|round| {
            let turns = (0..count).map(|turn| if round % 2 == 0 { turn } else { count - 1 - turn });
            let mut missing = turns.filter(|row| self.rows[*row].rounds.len() <= round);
            Some(Position { round, row: missing.next()? })
        })
    }

    /// The rows whose system calls are still to be counted.
    pub(crate) fn uncounted(&self) -> Vec<usize> {
        let is_sound = |row: &Row| row.rounds.iter().any(Result::is_ok);
        let rows = self.rows.iter().enumerate();
        let uncounted = rows.filter(|(_, row)| row.calls.is_none() && is_sound(row));
        uncounted
            .filter(|_| self.workload.load_for_counting().is_some())
            .map(|(index, _)| index)
            .collect()
    }

    /// An estimate of the time that the missing rounds take, in seconds.
    pub(crate) fn seconds_left(&self) -> f64 {
        if let Some(pairing) = self.workload.pairing {
            let spent = |row: usize| self.rows[row].pairs.as_ref().map_or(0.0, |it| it.seconds);
            let left = |row: usize| (pairing.row_seconds - spent(row)).max(0.0);
            return self.unfinished().into_iter().map(left).sum();
        }
        let left = |row: &Row| self.rounds.saturating_sub(row.rounds.len());
        self.rows.iter().map(left).sum::<usize>() as f64 * self.workload.load.run_seconds()
    }
}

impl Results {
    /// The results of a run that begins now.
    pub(crate) fn of(
        command: String,
        host: Host,
        [server_core, load_core]: [usize; 2],
        no_calls: Option<String>,
        workloads: Vec<MeasuredWorkload>,
    ) -> Self {
        Self { format: FORMAT, command, host, server_core, load_core, no_calls, workloads }
    }

    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// A sentence that names the file and what is wrong with it.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        Self::read_file(&folder.join("results.json"))
    }

    /// Reads any such file, which may be compressed by gzip.
    pub(crate) fn read_file(file: &Path) -> Result<Self, Failure> {
        let named = |why: String| Failure::new(format!("cannot use {}: {why}", file.display()));
        let mut text = fs::read(file).map_err(|error| named(error.to_string()))?;
        if file.extension().is_some_and(|extension| extension == "gz") {
            let mut plain = Vec::new();
            let read = GzDecoder::new(&*text).take(PLAIN_BYTES_MAX).read_to_end(&mut plain);
            read.map_err(|error| named(error.to_string()))?;
            text = plain;
        }
        let Header { format } =
            serde_json::from_slice(&text).map_err(|error| named(error.to_string()))?;
        if format != FORMAT {
            return Err(named(format!("it is of format {format}, this matrix reads {FORMAT}")));
        }
        serde_json::from_slice(&text).map_err(|error| named(error.to_string()))
    }

    /// Whether system calls were counted for some row.
    pub(crate) fn has_calls(&self) -> bool {
        let mut rows = self.workloads.iter().flat_map(|measured| &measured.rows);
        rows.any(|row| matches!(row.calls, Some(Ok(_))))
    }

    /// Whether nothing is missing.
    pub(crate) fn is_complete(&self) -> bool {
        let is_complete = |it: &MeasuredWorkload| {
            it.unfinished().is_empty()
                && it.next().is_none()
                && (self.no_calls.is_some() || it.uncounted().is_empty())
        };
        self.workloads.iter().all(is_complete)
    }

    /// Writes `results.json`. An interruption leaves a complete file, the old or the new one.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), Failure> {
        let json = serde_json::to_vec(self);
        let json = json.map_err(|error| Failure::new(error.to_string()))?;
        let (file, new) = (folder.join("results.json"), folder.join("results.json.new"));
        write(&new, &json)?;
        fs::rename(&new, &file)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))
    }
}

/// A file without a format is of the first.
#[derive(Deserialize)]
struct Header {
    #[serde(default = "first")]
    format: u32,
}

const fn first() -> u32 {
    1
}

pub(crate) fn write(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(file, bytes)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::super::plan::Plan;
    use super::*;
    use crate::load::{ResourceUsage, Tally};

    fn workload(name: &str) -> Workload {
        let plan = format!(
            r#"name = "{name}"
            load = {{ command = "echo", connections = 1, payload = 1, seconds = 1, warm-up = 0.7 }}
            servers = ["tokio", "compio"]
            baseline = "tokio"
            pairs = false
            figures = ["cpu-per-message"]"#
        );
        Plan::of_one(&plan).unwrap()
    }

    fn results() -> Results {
        let workloads =
            ["first", "second"].map(|name| MeasuredWorkload::of(workload(name), 2)).into();
        let no_calls = None;
        Results::of("cargo matrix plan.toml".to_owned(), Host::of(&[]), [0, 1], no_calls, workloads)
    }

    /// What `load` writes after a run in which all went well.
    pub(crate) fn sample() -> Sample {
        let mut report = Report::new(1.0, 1, &Tally { opened: 1, ..Tally::default() });
        report.server =
            Some(ResourceUsage { user_ns: 5000, ..ResourceUsage::default() }.over_messages(10));
        Sample { report, startup_ms: 2.5, program_bytes: Some(1024) }
    }

    #[test]
    fn a_void_sample_says_why() {
        let cpu = [Figure::named("cpu-per-message", &workload("it").load).unwrap()];
        assert_eq!(sample().check(&cpu), Ok(()));
        let mut failed = sample();
        failed.report.connections.errors.insert("connect: refused".to_owned(), 3);
        assert_eq!(failed.check(&cpu).unwrap_err(), "connections failed: 3 x connect: refused");
        let mut wrong = sample();
        let wrong_answer = Some("the answer to message 7".to_owned());
        wrong.report.add_wrong(&Tally { wrong: 1, wrong_answer, ..Tally::default() });
        assert!(wrong.check(&cpu).unwrap_err().contains("message 7"));
        let mut unmeasured = sample();
        unmeasured.report.server = None;
        let why = "\"cpu-per-message\" was not measured";
        assert_eq!(unmeasured.check(&cpu).unwrap_err(), why);
    }

    /// All paths of keys in `value`, but for those of errors, which are named by what happened.
    fn keys(value: &Value, path: &str) -> Vec<String> {
        let Value::Object(fields) = value else { return Vec::new() };
        let fields = fields.iter().filter(|_| !path.ends_with("/errors"));
        let of = |(key, value): (&String, &Value)| {
            let path = format!("{path}/{key}");
            let inner = keys(value, &path);
            [path].into_iter().chain(inner).collect::<Vec<_>>()
        };
        fields.flat_map(of).collect()
    }

    #[test]
    fn a_report_with_a_field_renamed_or_missing_is_no_report() {
        let mut failed = sample();
        failed.report.connections.errors.insert("connect: refused".to_owned(), 3);
        let json = serde_json::to_value(&failed).unwrap();
        assert_eq!(serde_json::from_value::<Sample>(json.clone()).unwrap(), failed);
        let keys = keys(&json, "");
        assert!(keys.iter().any(|key| key == "/report/connections/errors"), "{keys:?}");
        assert!(keys.iter().any(|key| key == "/report/server/per_message/cpu_ns"), "{keys:?}");
        for path in keys {
            let (parent, key) = path.rsplit_once('/').unwrap();
            let mut renamed = json.clone();
            let fields = renamed.pointer_mut(parent).and_then(Value::as_object_mut).unwrap();
            let value = fields.remove(key).unwrap();
            fields.insert(format!("{key}_renamed"), value);
            let error = serde_json::from_value::<Sample>(renamed);
            assert!(error.is_err(), "{path} can be renamed");
        }
    }

    #[test]
    fn results_of_another_format_are_refused() {
        let file = std::env::temp_dir().join(format!("results-{}.json", std::process::id()));
        fs::write(&file, r#"{ "command": "cargo matrix", "workloads": [] }"#).unwrap();
        let error = Results::read_file(&file).unwrap_err().to_string();
        fs::remove_file(&file).unwrap();
        assert!(error.contains("it is of format 1, this matrix reads 2"), "{error}");
    }

    #[test]
    fn rounds_go_back_and_forth_and_go_on_where_they_were() {
        let folder = std::env::temp_dir().join(format!("results-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut results = results();
        assert_eq!(results.workloads[0].seconds_left(), 8.0);
        let mut order = Vec::new();
        while let Some(next @ Position { round, row }) = results.workloads[0].next() {
            let rounds = &mut results.workloads[0].rows[row].rounds;
            rounds.push(if row == 0 { Ok(sample()) } else { Err("void".to_owned()) });
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
        // A resumed run still counts the system calls of this row; a row that is void in every round is not counted.
        assert_eq!((results.workloads[0].uncounted(), results.is_complete()), (vec![0], false));
        results.no_calls = Some("not permitted".to_owned());
        assert!(results.is_complete());
        results.no_calls = None;
        results.workloads[0].rows[0].calls = Some(Err("void".to_owned()));
        assert!(results.is_complete());
        fs::write(folder.join("results.json"), r#"{ "format": 2 }"#).unwrap();
        let error = Results::read(&folder).unwrap_err().to_string();
        assert!(error.contains("results.json: missing field"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
