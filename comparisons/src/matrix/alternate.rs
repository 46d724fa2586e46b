//! A round of pairs: all servers alive, windows in turns.

use std::thread;
use std::time::{Duration, Instant};

use super::Failure;
use super::credentials::Credentials;
use super::figures::Figure;
use super::interrupt::Interrupt;
use super::load_process::{Measurement, WindowLoad};
use super::pairs::{IDLE_PERCENT_MAX, Pair, PairedRatio, Pairing, Pairs};
use super::program::Running;
use super::results::{MeasuredWorkload, Results, Row, Sample};
use super::statistics::Summary;
use super::stopping;
use crate::load::UsageSnapshot;

/// How long the server runs before each window, in ms: its data are then in the caches, not the other server's.
const LEAD_MS: u32 = 5;

/// How long a server is left alone to see whether it spins. It does if it uses a core in two such times.
const IDLE: Duration = Duration::from_millis(50);

/// A round of pairs of one workload.
pub(crate) struct Round<'a> {
    pub(crate) results: &'a Results,
    pub(crate) measured: &'a MeasuredWorkload,
    pub(crate) pairing: Pairing,
    pub(crate) credentials: &'a Credentials,
    pub(crate) folder: &'a std::path::Path,
    pub(crate) interrupt: &'a Interrupt,
}

/// What a round measured of one row.
pub(crate) struct RowRound {
    sample: Result<Sample, String>,
    /// None of a baseline.
    pairs: Vec<Pair>,
    /// Whether the row is sound and has no pairs, because its baseline is void.
    is_unpaired: bool,
    seconds: f64,
    /// The median of what it used while it had nothing to do.
    idle_percent: Option<f64>,
    /// Whether it was stopped (SIGSTOP) while others were measured.
    was_paused: bool,
}

impl RowRound {
    /// Why it is void.
    pub(crate) fn void(&self) -> Option<&str> {
        self.sample.as_ref().err().map(String::as_str)
    }
}

/// A server and its load.
struct Side {
    running: Running,
    load: WindowLoad,
    program_bytes: Option<u64>,
    spins: bool,
    idle_percent: Vec<f64>,
    seconds: f64,
}

impl MeasuredWorkload {
    /// The rows that are measured in pairs and not finished.
    pub(crate) fn unfinished(&self) -> Vec<usize> {
        let is_unfinished = |row: &Row| {
            self.workload.pairing.is_some() && row.baseline.is_some() && !row.is_finished()
        };
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, row)| is_unfinished(row)).map(|(index, _)| index).collect()
    }

    /// The index of the row that `row` is compared with.
    fn baseline_of(&self, row: usize) -> Option<usize> {
        let name = self.rows[row].baseline.as_ref()?;
        self.rows.iter().position(|other| other.server.name == *name)
    }

    /// Gives each row the pairs that were measured of it, if it and its baseline are sound.
    fn assign(&self, rounds: &mut [Option<RowRound>], mut pairs: Vec<Vec<Pair>>) {
        for row in self.unfinished() {
            let baseline = self.baseline_of(row).and_then(|baseline| rounds[baseline].as_ref());
            let has_baseline = baseline.is_some_and(|baseline| baseline.sample.is_ok());
            let peaks = self.peaks(rounds[row].as_ref(), baseline);
            let sound = rounds[row].as_mut().filter(|it| it.sample.is_ok());
            let Some(of_row) = sound else { continue };
            if has_baseline {
                of_row.pairs = std::mem::take(&mut pairs[row]);
                of_row.pairs.iter_mut().for_each(|pair| {
                    for (figure, [of_row, of_baseline]) in &peaks {
                        pair.row[*figure] = *of_row;
                        pair.baseline[*figure] = *of_baseline;
                    }
                });
            }
            of_row.is_unpaired = of_row.pairs.is_empty();
        }
    }

    /// The figures that only grow while a process lives, of a row and its baseline at the end of a round. Those of a window
    /// depend on the windows before it.
    fn peaks(&self, row: Option<&RowRound>, baseline: Option<&RowRound>) -> Vec<(usize, [f64; 2])> {
        let sound = |of: Option<&RowRound>, figure: &Figure| {
            of.and_then(|round| figure.of(round.sample.as_ref().ok()?))
        };
        let figures = self.workload.figures.iter().enumerate();
        let peaks = figures.filter(|(_, figure)| figure.is_peak());
        peaks.filter_map(|(at, it)| Some((at, [sound(row, it)?, sound(baseline, it)?]))).collect()
    }

    /// Adds a round, and decides which rows are finished. A row that is finished and still measured, as the baseline of
    /// another, stays as it is.
    pub(crate) fn add_round(&mut self, round: Vec<Option<RowRound>>, pairing: Pairing) {
        for (row, of_row) in self.rows.iter_mut().zip(round).filter(|(row, _)| !row.is_finished()) {
            let Some(of_row) = of_row else { continue };
            let RowRound { sample, pairs, is_unpaired, seconds, idle_percent, was_paused } = of_row;
            row.rounds.push(sample);
            row.paused_rounds += usize::from(was_paused);
            row.idle_cpu_percent = match (row.idle_cpu_percent, idle_percent) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
            if row.baseline.is_none() {
                continue;
            }
            let measured = row.pairs.get_or_insert_with(Pairs::default);
            measured.pairs.extend(pairs);
            measured.seconds += seconds;
            measured.unpaired_rounds += usize::from(is_unpaired);
            let voids = row.rounds.iter().filter(|round| round.is_err()).count();
            let ratio = PairedRatio::of_pairs(measured, 0);
            measured.stopped = stopping::stop_reason(measured, ratio.as_ref(), voids, pairing);
        }
        self.rounds = self.rows.iter().map(|row| row.rounds.len()).max().unwrap_or(0);
    }
}

impl Round<'_> {
    /// Measures each unfinished row once against its baseline. One for each row of the workload, none where the row
    /// was not needed. After a signal, whatever is missing is void, and the caller drops it all.
    pub(crate) fn measure(&self) -> Vec<Option<RowRound>> {
        let rows = self.measured.unfinished();
        let is_odd = rows.first().is_some_and(|row| self.round_number(*row) % 2 == 1);
        let mut sides = self.start(&rows, is_odd);
        let mut pairs: Vec<Vec<Pair>> = self.measured.rows.iter().map(|_| Vec::new()).collect();
        for row in forth_or_back(rows, is_odd) {
            let Some(baseline) = self.measured.baseline_of(row) else { continue };
            pairs[row] = self.measure_pairs(&mut sides, row, baseline);
        }
        self.finish(sides, pairs)
    }

    /// From 1.
    fn round_number(&self, row: usize) -> usize {
        self.measured.rows[row].rounds.len() + 1
    }

    /// Starts and warms up the rows and what they are compared with, in turns from the first and from the last: of two
    /// processes of one program, the one that started earlier may be cheaper for as long as both live. One that spins is
    /// stopped before the next starts.
    fn start(&self, rows: &[usize], from_first: bool) -> Vec<Option<Result<Side, String>>> {
        let is_needed = |index: &usize| {
            rows.contains(index)
                || rows.iter().any(|row| self.measured.baseline_of(*row) == Some(*index))
        };
        let all: Vec<_> = (0..self.measured.rows.len()).collect();
        let mut sides: Vec<_> = all.iter().map(|_| None).collect();
        for index in forth_or_back(all, from_first).into_iter().filter(is_needed) {
            sides[index] = Some(self.start_one(index).map_err(|why| why.to_string()));
        }
        sides
    }

    fn start_one(&self, index: usize) -> Result<Side, Failure> {
        let Self { results, measured, credentials, folder, interrupt, .. } = *self;
        let (workload, server) = (&measured.workload, &measured.rows[index].server);
        let load = &workload.load;
        let measurement = Measurement { workload, load, server, results, credentials, folder };
        let began = Instant::now();
        let running = measurement.start(interrupt)?;
        let mut load = WindowLoad::start(measurement.command(&running)?)?;
        load.warm_up(workload.load.warm_up_ms().max(1), interrupt)?;
        let seconds = began.elapsed().as_secs_f64();
        let program_bytes = server.program_bytes();
        let idle_percent = idle(&running)?;
        let spins = idle_percent.iter().all(|percent| *percent > IDLE_PERCENT_MAX);
        if spins {
            running.pause();
        }
        Ok(Side { running, load, program_bytes, spins, idle_percent, seconds })
    }

    /// Applies `act` to a side that has not failed. None after a failure, whose reason then replaces the side.
    fn attempt<T>(
        &self,
        side: &mut Option<Result<Side, String>>,
        act: impl FnOnce(&mut Side) -> Result<T, Failure>,
    ) -> Option<T> {
        let Some(Ok(alive)) = side else { return None };
        match act(alive) {
            Ok(done) => Some(done),
            Err(why) => {
                *side = Some(Err(why.to_string()));
                None
            }
        }
    }

    /// The windows of a row and its baseline. If one of the two fails, which is then in its side, the other is
    /// measured all the same, and there are no pairs.
    fn measure_pairs(
        &self,
        sides: &mut [Option<Result<Side, String>>],
        row: usize,
        baseline: usize,
    ) -> Vec<Pair> {
        let began = Instant::now();
        let round = self.round_number(row);
        let mut figures = Vec::new();
        // Four windows at least: row, baseline, baseline, row.
        let quads = (self.pairing.round_ms / (4 * self.pairing.window_ms)).max(1) as usize;
        for quad in 0..quads {
            let [first, second] =
                if (round + quad) % 2 == 1 { [row, baseline] } else { [baseline, row] };
            for index in [first, second, second, first] {
                let is_first = figures.is_empty();
                let window = self.attempt(&mut sides[index], |side| self.window(side, is_first));
                figures.push((index == row, window));
            }
        }
        let pair = |pair: &[(bool, Option<Vec<f64>>)]| {
            let of = |is_row: bool| pair.iter().find(|it| it.0 == is_row)?.1.clone();
            Some(Pair { round, row: of(true)?, baseline: of(false)? })
        };
        if let Some(Ok(side)) = &mut sides[row] {
            side.seconds += began.elapsed().as_secs_f64();
        }
        figures.chunks(2).map(pair).collect::<Option<_>>().unwrap_or_default()
    }

    /// One window: the figures of the workload.
    fn window(&self, side: &mut Side, is_first: bool) -> Result<Vec<f64>, Failure> {
        if side.spins {
            side.running.resume();
        }
        let lead = side.load.warm_up(LEAD_MS, self.interrupt)?;
        let line = side.load.window(self.pairing.window_ms, self.interrupt)?;
        if side.spins {
            side.running.pause();
        } else if is_first {
            // Since others were measured.
            side.idle_percent.extend(lead.idle_percent);
        }
        let report = line.report.ok_or_else(|| Failure::new("load reported no window"))?;
        let sample = side.sample(report);
        let figures = &self.measured.workload.figures;
        sample.check(figures).map_err(Failure::new)?;
        let value = |figure: &Figure| figure.of(&sample);
        figures.iter().map(value).collect::<Option<_>>().ok_or_else(|| Failure::new("no figure"))
    }

    /// Ends all, and makes the samples of the round.
    fn finish(
        &self,
        mut sides: Vec<Option<Result<Side, String>>>,
        pairs: Vec<Vec<Pair>>,
    ) -> Vec<Option<RowRound>> {
        let figures = &self.measured.workload.figures;
        let mut rounds: Vec<Option<RowRound>> = Vec::new();
        for side in &mut sides {
            rounds.push(side.take().map(|side| {
                let (seconds, idle_percent, was_paused) = match &side {
                    Ok(side) => (side.seconds, Summary::range(&side.idle_percent), side.spins),
                    Err(_) => (0.0, None, false),
                };
                RowRound {
                    sample: side.and_then(|side| side.end(figures, self.interrupt)),
                    pairs: Vec::new(),
                    is_unpaired: false,
                    seconds,
                    idle_percent: idle_percent.map(|range| range.median),
                    was_paused,
                }
            }));
        }
        self.measured.assign(&mut rounds, pairs);
        rounds
    }
}

/// The rows from the first, or from the last.
fn forth_or_back(mut rows: Vec<usize>, from_first: bool) -> Vec<usize> {
    if !from_first {
        rows.reverse();
    }
    rows
}

/// What a server uses while it is left alone, in per cent of a core; twice, if the first is much.
fn idle(server: &Running) -> Result<Vec<f64>, Failure> {
    let mut before = UsageSnapshot::of(server.pid())?;
    let mut percents = Vec::new();
    while percents.len() < 2 && percents.iter().all(|percent| *percent > IDLE_PERCENT_MAX) {
        let began = Instant::now();
        thread::sleep(IDLE);
        let after = UsageSnapshot::of(server.pid())?;
        percents.push(after.since(&before, began.elapsed().as_nanos() as u64).cpu_percent);
        before = after;
    }
    Ok(percents)
}

impl Side {
    fn sample(&self, report: crate::load::Report) -> Sample {
        let startup_ms = self.running.startup.as_secs_f64() * 1e3;
        Sample { report, startup_ms, program_bytes: self.program_bytes }
    }

    /// The sample of all windows of the round.
    fn end(self, figures: &[Figure], interrupt: &Interrupt) -> Result<Sample, String> {
        let Self { running, load, program_bytes, .. } = self;
        running.resume();
        let report = load.end(interrupt).map_err(|why| why.to_string())?;
        let startup_ms = running.startup.as_secs_f64() * 1e3;
        let sample = Sample { report, startup_ms, program_bytes };
        sample.check(figures).map(|()| sample)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pairs::StopReason;
    use super::super::plan::Plan;
    use super::super::results::tests::sample;
    use super::*;

    const PAIRING: Pairing =
        Pairing { window_ms: 50, round_ms: 800, width_percent: 2.0, row_seconds: 10.0 };

    /// A baseline and two rows.
    fn measured() -> MeasuredWorkload {
        let plan = r#"
            name = "small"
            load = { command = "echo", connections = 1, payload = 1, seconds = 1 }
            servers = ["tokio", "compio", "monoio"]
            baseline = "tokio"
            figures = ["cpu-per-message"]"#;
        MeasuredWorkload::of(Plan::of_one(plan).unwrap(), 1)
    }

    /// A round of all three rows; those in `void` are void.
    fn round(measured: &MeasuredWorkload, void: &[usize]) -> Vec<Option<RowRound>> {
        let of_row = |row: usize| {
            let sample = if void.contains(&row) { Err("1 < 2".to_owned()) } else { Ok(sample()) };
            Some(RowRound {
                sample,
                pairs: Vec::new(),
                is_unpaired: false,
                seconds: 1.0,
                idle_percent: None,
                was_paused: false,
            })
        };
        let mut rounds: Vec<_> = (0..3).map(of_row).collect();
        let ones = vec![1.0; measured.workload.figures.len()];
        let pair = |round| Pair { round, row: ones.clone(), baseline: ones.clone() };
        let pairs = |row: usize| vec![pair(measured.rows[row].rounds.len() + 1); 2];
        measured.assign(&mut rounds, (0..3).map(pairs).collect());
        rounds
    }

    #[test]
    fn a_void_baseline_costs_its_rows_their_pairs_and_no_more() {
        let mut measured = measured();
        measured.add_round(round(&measured, &[0]), PAIRING);
        measured.add_round(round(&measured, &[2]), PAIRING);
        let [_, compio, monoio] = &*measured.rows else { panic!("three rows") };
        assert!(compio.rounds.iter().all(Result::is_ok));
        let pairs = compio.pairs.as_ref().unwrap();
        assert_eq!((pairs.pairs.len(), pairs.unpaired_rounds), (2, 1));
        assert_eq!(pairs.pairs[0].round, 2);
        // Its own void round is no round without a baseline.
        let pairs = monoio.pairs.as_ref().unwrap();
        assert_eq!((pairs.pairs.len(), pairs.unpaired_rounds), (0, 1));
        assert!(monoio.rounds[0].is_ok() && monoio.rounds[1].is_err());
        for _ in 0..2 {
            measured.add_round(round(&measured, &[0]), PAIRING);
        }
        assert_eq!(measured.rows[1].pairs.as_ref().unwrap().stopped, Some(StopReason::Void));
        assert!(measured.unfinished().is_empty());
    }

    #[test]
    fn a_peak_is_that_of_the_round() {
        let mut measured = measured();
        let peak = Figure::named("memory-peak", &measured.workload.load).unwrap();
        measured.workload.figures.push(peak);
        let mut rounds = round(&measured, &[]);
        let pair = Pair { round: 1, row: vec![1.0, 2.0], baseline: vec![1.0, 3.0] };
        for (kib, of_row) in [20, 10, 30].into_iter().zip(&mut rounds) {
            let sample = of_row.as_mut().unwrap().sample.as_mut().unwrap();
            sample.report.server.as_mut().unwrap().rss_peak_kib = kib;
        }
        measured.assign(&mut rounds, vec![Vec::new(), vec![pair], Vec::new()]);
        let pairs = &rounds[1].as_ref().unwrap().pairs;
        assert_eq!((&*pairs[0].row, &*pairs[0].baseline), (&[1.0, 10.0][..], &[1.0, 20.0][..]));
    }

    #[test]
    fn a_finished_row_stays_as_it_is() {
        let mut measured = measured();
        for _ in 0..7 {
            measured.add_round(round(&measured, &[]), PAIRING);
        }
        let finished = measured.rows[1].pairs.clone().unwrap();
        assert_eq!((finished.stopped, finished.seconds), (Some(StopReason::Narrow), 7.0));
        for _ in 0..3 {
            measured.add_round(round(&measured, &[1]), PAIRING);
        }
        assert_eq!(measured.rows[1].pairs.as_ref(), Some(&finished));
        assert_eq!(measured.rows[1].rounds.len(), 7);
        assert_eq!(measured.rows[0].rounds.len(), 10);
    }
}
