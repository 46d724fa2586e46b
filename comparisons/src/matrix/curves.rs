//! The curves of the small plots: latency by percentile, throughput against latency, and latency over time.

use super::axis::grouped;
use super::plots::{Curve, XAxis};
use super::results::{MeasuredWorkload, Row};
use super::statistics::Summary;
use super::table::ReportRow;
use crate::load::{Percentiles, Report, Series};

/// The share at the end of the axis of percentiles: the longest latency.
const ALL: f64 = 1.0;

/// Latency by percentile: the medians of the rounds. None if no round has it.
pub(crate) fn percentiles<'a>(lines: &[ReportRow<'a>]) -> Option<(XAxis, Vec<Curve<'a>>)> {
    let curves: Vec<_> = lines.iter().filter_map(percentile_curve).collect();
    let nines =
        curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).fold(0.0, f64::max);
    // 0, 90, 99, 99.9 and on.
    let label = |nines: u32| {
        let digits = nines.saturating_sub(2) as usize;
        format!("{:.digits$}", 100.0 * (1.0 - 10_f64.powi(-nines.cast_signed())))
    };
    let tick = |nines: u32| (f64::from(nines), label(nines));
    // More would not fit.
    let every = (nines.floor() / 3.0).ceil().max(1.0) as usize;
    let ticks = (0..=nines.floor() as u32).step_by(every).map(tick).collect();
    (!curves.is_empty()).then(|| (XAxis { low: 0.0, high: nines.max(1.0), ticks }, curves))
}

fn percentile_curve<'a>(line: &ReportRow<'a>) -> Option<Curve<'a>> {
    let rounds: Vec<_> = sound(line.row).filter_map(|report| report.curve.as_deref()).collect();
    let shortest = rounds.iter().map(|curve| curve.len()).min()?;
    let median = |point: usize| {
        let figures: Vec<_> = rounds.iter().map(|curve| curve[point][1]).collect();
        Some((rounds[0][point][0], Summary::range(&figures)?.median))
    };
    // The last point of each round is its longest; rounds may have different numbers of points.
    let longest: Vec<_> = rounds.iter().filter_map(|curve| Some(curve.last()?[1])).collect();
    let longest = Summary::range(&longest)?.median;
    let mut points: Vec<_> = (0..shortest.saturating_sub(1)).filter_map(median).collect();
    points.push((ALL, longest));
    let nines = |share: f64| -(1.0 - share).log10();
    let last = points.len().checked_sub(2).map_or(0.0, |before| nines(points[before].0));
    let across = |share: f64| if share < ALL { nines(share) } else { last + 0.125 };
    let at = |wanted: f64| points.iter().find(|(share, _)| *share >= wanted - 1e-9).map(|it| it.1);
    let description = format!(
        "half within {} us, 99 % within {} us, all within {} us",
        grouped(at(0.5)?),
        grouped(at(0.99)?),
        grouped(longest)
    );
    let points = points.iter().map(|(share, us)| (across(*share), *us)).collect();
    Some(Curve {
        name: &line.row.server.name,
        is_baseline: line.is_baseline,
        points,
        marks: Vec::new(),
        description,
    })
}

/// The longest latency in each slot, in the round with the longest latency of all, with its stalls.
pub(crate) fn series<'a>(lines: &[ReportRow<'a>]) -> Option<(XAxis, Vec<Curve<'a>>)> {
    let curves: Vec<_> = lines.iter().filter_map(series_curve).collect();
    let across = XAxis::linear(curves.iter().flat_map(|curve| &curve.points).map(|point| point.0));
    (!curves.is_empty()).then_some((across, curves))
}

fn series_curve<'a>(line: &ReportRow<'a>) -> Option<Curve<'a>> {
    let rounds = sound(line.row).filter_map(|report| Some((report.series.as_ref()?, report)));
    let longest =
        |(series, _): &(&Series, &Report)| series.longest_us.iter().copied().fold(0.0, f64::max);
    let worst = rounds.max_by(|a, b| longest(a).total_cmp(&longest(b)))?;
    let (Series { slot_ms, longest_us: slots, .. }, report) = worst;
    let slot_s = slot_ms / 1e3;
    // A slot without an answer has no point.
    let points = (0..).zip(slots).filter(|(_, us)| **us > 0.0);
    let points: Vec<_> = points.map(|(slot, us)| (slot_s * (f64::from(slot) + 0.5), *us)).collect();
    let stalls = report.stalls.iter().flat_map(|it| it.at_ms.iter().zip(&it.lasted_ms));
    let end = slot_s * slots.len() as f64;
    let marks: Vec<_> =
        stalls.map(|(at, lasted)| (at / 1e3, ((at + lasted) / 1e3).min(end))).collect();
    let description = format!("longest {} us, stalls: {}", grouped(longest(&worst)), marks.len());
    (!points.is_empty()).then(|| Curve {
        name: &line.row.server.name,
        is_baseline: line.is_baseline,
        points,
        marks,
        description,
    })
}

/// For the workloads of one sweep, of which `first` are the rows of the first: the rate that each row achieved, and the
/// latency at that rate.
pub(crate) fn rates<'a>(
    first: &[ReportRow<'a>],
    measured: &[&MeasuredWorkload],
    latency: fn(&Percentiles) -> f64,
) -> Option<(XAxis, Vec<Curve<'a>>)> {
    let curves: Vec<_> = first
        .iter()
        .filter_map(|line| {
            let name = &*line.row.server.name;
            let rows = measured.iter().filter_map(|measured| {
                measured.rows.iter().find(|row| row.server.name == line.row.server.name)
            });
            let points: Vec<_> = rows
                .filter_map(|row| {
                    let median = |of: &dyn Fn(&Report) -> Option<f64>| {
                        let figures: Vec<_> = sound(row).filter_map(of).collect();
                        Summary::range(&figures).map(|range| range.median)
                    };
                    let achieved = median(&|it| Some(it.messages.as_ref()?.received_per_s));
                    Some((achieved?, median(&|it| it.latency_us.as_ref().map(latency))?))
                })
                .collect();
            let most = points.iter().map(|point| point.0).fold(0.0, f64::max);
            let description = format!("at most {} messages a second", grouped(most.round()));
            let is_baseline = line.is_baseline;
            (!points.is_empty()).then_some(Curve {
                name,
                is_baseline,
                points,
                marks: Vec::new(),
                description,
            })
        })
        .collect();
    let across = XAxis::linear(curves.iter().flat_map(|curve| &curve.points).map(|point| point.0));
    (!curves.is_empty()).then_some((across, curves))
}

/// The reports of the rounds that are not void.
fn sound(row: &Row) -> impl Iterator<Item = &Report> {
    row.rounds.iter().flatten().map(|sample| &sample.report)
}
