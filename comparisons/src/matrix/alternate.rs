//! A round of pairs: all servers alive, windows in turns.

use std::thread;
use std::time::{Duration, Instant};

use super::Failure;
use super::certificate::Certificate;
use super::figures::Figure;
use super::interrupt::Interrupt;
use super::load_process::{self, WindowLoad};
use super::pairs::{IDLE_PERCENT_MAX, Pair, PairedRatio, Pairing, Pairs};
use super::program::{Placement, Running};
use super::results::{MeasuredWorkload, Results, Row, Sample};
use super::statistics::Summary;
use super::stopping;
use crate::load::UsageSnapshot;

/// How long the server runs before each window, in ms: its data are then in the caches, not the other server's.
const LEAD_MS: u32 = 5;

/// How long all servers are left alone to see which of them spin.
const IDLE: Duration = Duration::from_millis(100);

/// A round of pairs of one workload.
pub(crate) struct Round<'a> {
    pub(crate) results: &'a Results,
    pub(crate) measured: &'a MeasuredWorkload,
    pub(crate) pairing: Pairing,
    pub(crate) certificate: &'a Certificate,
    pub(crate) folder: &'a std::path::Path,
    pub(crate) interrupt: &'a Interrupt,
}

/// What a round measured of one row.
pub(crate) struct RowRound {
    sample: Result<Sample, String>,
    /// None of a baseline.
    pairs: Vec<Pair>,
    seconds: f64,
    idle_percent: Option<f64>,
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
            let stopped = row.pairs.as_ref().and_then(|pairs| pairs.stopped);
            self.workload.pairing.is_some() && row.baseline.is_some() && stopped.is_none()
        };
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, row)| is_unfinished(row)).map(|(index, _)| index).collect()
    }

    /// The index of the row that `row` is compared with.
    fn baseline_of(&self, row: usize) -> Option<usize> {
        let name = self.rows[row].baseline.as_ref()?;
        self.rows.iter().position(|other| other.server.name == *name)
    }

    /// Adds a round, and decides which rows are finished.
    pub(crate) fn add(&mut self, round: Vec<Option<RowRound>>, pairing: Pairing) {
        for (row, of_row) in self.rows.iter_mut().zip(round) {
            let Some(RowRound { sample, pairs, seconds, idle_percent }) = of_row else { continue };
            row.rounds.push(sample);
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
            let voids = row.rounds.iter().filter(|round| round.is_err()).count();
            let ratio = PairedRatio::of_pairs(measured, 0);
            measured.stopped = stopping::look(measured, ratio.as_ref(), voids, pairing);
        }
        self.rounds = self.rows.iter().map(|row| row.rounds.len()).max().unwrap_or(0);
    }
}

impl Round<'_> {
    /// Measures each unfinished row once against its baseline. One for each row of the workload, none where the row
    /// was not needed. After a signal, whatever is missing is void, and the caller drops it all.
    pub(crate) fn measure(&self) -> Vec<Option<RowRound>> {
        let rows = self.measured.unfinished();
        let mut sides = self.start(&rows);
        self.find_spinning(&mut sides);
        let mut pairs: Vec<Vec<Pair>> = self.measured.rows.iter().map(|_| Vec::new()).collect();
        let is_odd = rows.first().is_some_and(|row| self.round_number(*row) % 2 == 1);
        let forth = rows.iter().copied();
        let order: Vec<_> = if is_odd { forth.collect() } else { forth.rev().collect() };
        for row in order {
            let Some(baseline) = self.measured.baseline_of(row) else { continue };
            if let Some(of_row) = self.turns(&mut sides, row, baseline) {
                pairs[row] = of_row;
            }
        }
        self.finish(sides, pairs)
    }

    /// From 1.
    fn round_number(&self, row: usize) -> usize {
        self.measured.rows[row].rounds.len() + 1
    }

    /// Starts and warms up the rows and what they are compared with.
    fn start(&self, rows: &[usize]) -> Vec<Option<Result<Side, String>>> {
        let is_needed = |index: usize| {
            rows.contains(&index)
                || rows.iter().any(|row| self.measured.baseline_of(*row) == Some(index))
        };
        let start = |index: usize| {
            is_needed(index).then(|| self.start_one(index).map_err(|why| why.to_string()))
        };
        let mut sides: Vec<_> = (0..self.measured.rows.len()).map(start).collect();
        let warm_up_ms = self.measured.workload.load.warm_up_ms().max(1);
        for side in &mut sides {
            self.attempt(side, |side| {
                let began = Instant::now();
                side.load.warm_up(warm_up_ms, self.interrupt)?;
                side.seconds += began.elapsed().as_secs_f64();
                Ok(())
            });
        }
        sides
    }

    fn start_one(&self, index: usize) -> Result<Side, Failure> {
        let Self { results, measured, certificate, folder, interrupt, .. } = *self;
        let (workload, server) = (&measured.workload, &measured.rows[index].server);
        let began = Instant::now();
        let place = Placement { core: results.server_core, folder };
        let running = Running::start(server, certificate, place, workload.open_files, interrupt)?;
        let core = results.load_core;
        let command =
            load_process::command(workload, &workload.load, server, &running, certificate, core)?;
        let load = WindowLoad::start(command)?;
        let program_bytes = server.program_bytes();
        let seconds = began.elapsed().as_secs_f64();
        Ok(Side { running, load, program_bytes, spins: false, idle_percent: Vec::new(), seconds })
    }

    /// Does something with a side that is alive. If it fails, the side is no longer.
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

    /// Leaves all servers alone for a while, and stops those that use a core all the same.
    fn find_spinning(&self, sides: &mut [Option<Result<Side, String>>]) {
        let used = |side: &Option<Result<Side, String>>| match side {
            Some(Ok(side)) => UsageSnapshot::of(side.running.pid()).ok(),
            _ => None,
        };
        let before: Vec<_> = sides.iter().map(used).collect();
        let began = Instant::now();
        thread::sleep(IDLE);
        let after: Vec<_> = sides.iter().map(used).collect();
        let window_ns = began.elapsed().as_nanos() as u64;
        for (side, used) in sides.iter_mut().zip(before.iter().zip(&after)) {
            if let (Some(Ok(side)), (Some(before), Some(after))) = (side, used) {
                let percent = after.since(before, window_ns).cpu_percent;
                side.idle_percent.push(percent);
                side.spins = percent > IDLE_PERCENT_MAX;
                if side.spins {
                    side.running.pause();
                }
            }
        }
    }

    /// The four windows of a row and its baseline. None if something failed, which is then in its side.
    fn turns(
        &self,
        sides: &mut [Option<Result<Side, String>>],
        row: usize,
        baseline: usize,
    ) -> Option<Vec<Pair>> {
        let began = Instant::now();
        let round = self.round_number(row);
        let [first, second] = if round % 2 == 1 { [row, baseline] } else { [baseline, row] };
        let mut figures = Vec::new();
        for (turn, index) in [first, second, second, first].into_iter().enumerate() {
            if !matches!((&sides[row], &sides[baseline]), (Some(Ok(_)), Some(Ok(_)))) {
                return None;
            }
            let window = self.attempt(&mut sides[index], |side| self.window(side, turn))?;
            figures.push((index == row, window));
        }
        let pair = |pair: &[(bool, Vec<f64>)]| {
            let of = |is_row: bool| pair.iter().find(|it| it.0 == is_row).map(|it| it.1.clone());
            Some(Pair { round, row: of(true)?, baseline: of(false)? })
        };
        if let Some(Ok(side)) = &mut sides[row] {
            side.seconds += began.elapsed().as_secs_f64();
        }
        figures.chunks(2).map(pair).collect()
    }

    /// One window: the figures of the workload.
    fn window(&self, side: &mut Side, turn: usize) -> Result<Vec<f64>, Failure> {
        if side.spins {
            side.running.resume();
        }
        let lead = side.load.warm_up(LEAD_MS, self.interrupt)?;
        let line = side.load.window(self.pairing.window_ms, self.interrupt)?;
        if side.spins {
            side.running.pause();
        } else if turn == 0 {
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
        mut pairs: Vec<Vec<Pair>>,
    ) -> Vec<Option<RowRound>> {
        let figures = &self.measured.workload.figures;
        let mut rounds: Vec<Option<RowRound>> = Vec::new();
        for side in &mut sides {
            rounds.push(side.take().map(|side| {
                let (seconds, idle_percent) = match &side {
                    Ok(side) => (side.seconds, Summary::range(&side.idle_percent)),
                    Err(_) => (0.0, None),
                };
                RowRound {
                    sample: side.and_then(|side| side.end(figures, self.interrupt)),
                    pairs: Vec::new(),
                    seconds,
                    idle_percent: idle_percent.map(|range| range.median),
                }
            }));
        }
        for row in self.measured.unfinished() {
            let baseline = self.measured.baseline_of(row);
            let why = baseline.and_then(|baseline| {
                let name = &self.measured.rows[baseline].server.name;
                let void = rounds[baseline].as_ref()?.sample.as_ref().err()?;
                Some(format!("{name}, its baseline, is void: {void}"))
            });
            let Some(of_row) = &mut rounds[row] else { continue };
            if let (Ok(_), Some(why)) = (&of_row.sample, why) {
                of_row.sample = Err(why);
            }
            if of_row.sample.is_ok() {
                of_row.pairs = std::mem::take(&mut pairs[row]);
            }
        }
        rounds
    }
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
