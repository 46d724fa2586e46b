//! The results as Markdown.

use std::fmt::Write;

use super::results::{Measured, Results, Row};
use super::statistics::Summary;

/// Tables: a row for each server, a column for each figure and its ratio.
pub(crate) fn markdown(results: &Results) -> String {
    let mut text = format!("Measured {}.\n", results.host.sentence());
    for measured in &results.workloads {
        workload(&mut text, measured).expect("a string takes everything");
    }
    text
}

fn workload(text: &mut String, measured: &Measured) -> std::fmt::Result {
    let workload = &measured.workload;
    writeln!(text, "\n### {}\n\n`load {}`", workload.name, workload.load)?;
    if measured.rows.iter().any(|row| row.server.speaks_websocket()) {
        let path = workload.service.path();
        writeln!(text, "Rows that speak WebSocket add `--websocket {path}`.")?;
    }
    if let Some(files) = workload.open_files {
        writeln!(text, "The servers may open {files} files.")?;
    }
    write!(text, "\n| server | rounds |")?;
    for (name, _) in &workload.figures {
        write!(text, " {name} | ratio |")?;
    }
    write!(text, "\n|---|---|")?;
    writeln!(text, "{}", "---|---|".repeat(workload.figures.len()))?;
    for row in &measured.rows {
        let sound = row.rounds.iter().filter(|round| round.is_ok()).count();
        write!(text, "| {} | {sound} of {} |", row.server.name(), row.rounds.len())?;
        let baseline = workload.baseline(&row.server);
        let baseline = measured.rows.iter().find(|r| baseline.as_deref() == Some(r.server.name()));
        for (_, pointer) in &workload.figures {
            let figures = figures(row, pointer);
            write!(text, " {}{} |", shown(Summary::range(&figures), amount), zeros(&figures))?;
            let ratios = baseline.map(|baseline| ratios(row, baseline, pointer));
            let ratio = ratios.and_then(|ratios| Summary::confidence(&ratios));
            write!(text, " {} |", shown(ratio, |ratio| format!("{ratio:.3}")))?;
        }
        writeln!(text)?;
    }
    for row in &measured.rows {
        for (round, why) in row.rounds.iter().enumerate() {
            if let Err(why) = why {
                writeln!(text, "\nVoid: {}, round {}: {why}", row.server.name(), round + 1)?;
            }
        }
    }
    Ok(())
}

/// In the rounds that are not void.
fn figures(row: &Row, pointer: &str) -> Vec<f64> {
    let rounds = row.rounds.iter().flatten();
    rounds.filter_map(|report| report.pointer(pointer)?.as_f64()).collect()
}

/// Of each round in which both are there and the baseline is not zero.
fn ratios(row: &Row, baseline: &Row, pointer: &str) -> Vec<f64> {
    let figure =
        |row: &Row, round: usize| row.rounds.get(round)?.as_ref().ok()?.pointer(pointer)?.as_f64();
    (0..row.rounds.len())
        .filter_map(|round| {
            let below = figure(baseline, round).filter(|below| *below != 0.0)?;
            Some(figure(row, round)? / below)
        })
        .collect()
}

/// In how many rounds a count was zero, if it was in some.
fn zeros(figures: &[f64]) -> String {
    let zeros = figures.iter().filter(|figure| **figure == 0.0).count();
    if zeros == 0 || zeros == figures.len() {
        return String::new();
    }
    format!(", 0 in {zeros}")
}

fn shown(summary: Option<Summary>, format: impl Fn(f64) -> String) -> String {
    let Some(Summary { median, low, high, .. }) = summary else { return "–".to_owned() };
    format!("{} ({}–{})", format(median), format(low), format(high))
}

fn amount(figure: f64) -> String {
    if figure.fract() == 0.0 || figure >= 100.0 {
        format!("{figure:.0}")
    } else {
        format!("{figure:.2}")
    }
}
