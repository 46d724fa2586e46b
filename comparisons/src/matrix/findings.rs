//! What a run found, in ten sentences at the most.

use std::cmp::Ordering;

use super::axis::grouped;
use super::overview::{Column, Entry, Outcome, Overview, OverviewRow};
use super::self_check::SelfCheck;
use super::statistics::Summary;
use super::table::{self, ReportRow, Verdict};

/// How many sentences there are at the most.
pub(crate) const FINDINGS_MAX: usize = 10;

/// How many rows a sentence names.
const NAMES_MAX: usize = 4;

/// How the sentences are chosen.
pub(crate) const RULE: &str = "How many ratios differ from 1; the same program compared with itself, where a plan does \
    that; rows that are void or did not serve all; then the largest difference of each plan, the largest first, and \
    with room left the next largest of each. The largest of many is too large on average: its own \
    error is among what made it the largest.";

/// A sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The workload that it is about.
    pub(crate) workload: Option<usize>,
    pub(crate) text: String,
}

/// The sentences that [`RULE`] chooses.
pub(crate) fn findings(overview: &Overview<'_>, tables: &[Vec<ReportRow<'_>>]) -> Vec<Finding> {
    let mut findings = vec![counts(overview)];
    findings.extend(same_program(overview));
    findings.extend(voids(overview));
    findings.extend(unserved(overview, tables));
    let room = FINDINGS_MAX - findings.len();
    findings.extend(differences(overview).into_iter().take(room));
    findings
}

fn counts(overview: &Overview<'_>) -> Finding {
    let verdicts: Vec<_> =
        overview.entries().filter_map(|(_, _, entry)| entry.ratio()).map(|it| it.1).collect();
    let all = verdicts.len();
    let different = verdicts.iter().filter(|it| it.is_difference()).count();
    let equal = verdicts.iter().filter(|it| **it == Verdict::Equal).count();
    let undecided = all - different - equal;
    let text = format!(
        "{all} ratios: {different} different from 1, {equal} equal, {undecided} undecided."
    );
    Finding { workload: None, text }
}

/// Rows that are compared with the same program.
fn same_program(overview: &Overview<'_>) -> Option<Finding> {
    let same = overview.entries().filter(|(_, _, entry)| entry.is_same_program);
    let same: Vec<_> = same.filter_map(|(_, column, it)| Some((column, it.ratio()?))).collect();
    let mut differing = same.iter().filter(|(_, (_, verdict))| verdict.is_difference());
    let (workload, _) = differing.next().or_else(|| same.first())?;
    let text = format!("The same program compared with itself: {}.", SelfCheck::of(overview)?);
    Some(Finding { workload: Some(*workload), text })
}

fn voids(overview: &Overview<'_>) -> Option<Finding> {
    let is_void = |entry: &Entry<'_>| matches!(entry.outcome, Outcome::Void(_));
    let void: Vec<_> = overview.entries().filter(|(_, _, entry)| is_void(entry)).collect();
    let (_, first, _) = *void.first()?;
    let text = format!("void in every round: {}.", named(&void));
    Some(Finding { workload: Some(first), text })
}

/// Rows in which a connection failed or was never served.
fn unserved(overview: &Overview<'_>, tables: &[Vec<ReportRow<'_>>]) -> Option<Finding> {
    let is_one = |column: usize, entry: &Entry<'_>| {
        table::has_unserved(overview.columns[column].measured, &tables[column][entry.line])
    };
    let rows: Vec<_> = overview.entries().filter(|(_, column, it)| is_one(*column, it)).collect();
    let (_, first, _) = *rows.first()?;
    let text = format!("some connections were not served: {}.", named(&rows));
    Some(Finding { workload: Some(first), text })
}

/// The rows of these entries in the workload of the first, and the number of the others.
fn named(entries: &[(&OverviewRow<'_>, usize, &Entry<'_>)]) -> String {
    let here = entries.iter().filter(|it| it.1 == entries[0].1);
    let names: Vec<_> = here.map(|(row, _, _)| row.name).collect();
    let elsewhere = match entries.len() - names.len() {
        0 => String::new(),
        1 => "; and one row in another workload".to_owned(),
        more => format!("; and {more} rows in other workloads"),
    };
    let shown = names.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown + &elsewhere,
        more => format!("{shown} and {more} more{elsewhere}"),
    }
}

/// The differences: the largest of each plan by size, then the next of each, and on.
fn differences(overview: &Overview<'_>) -> Vec<Finding> {
    let size = |ratio: Summary| ratio.median.ln().abs();
    let mut ranked: Vec<(usize, f64, Finding)> = Vec::new();
    for (_, columns) in overview.plans() {
        let of_plan = overview.entries().filter(|(_, column, _)| columns.contains(column));
        let mut found: Vec<_> = of_plan
            .filter(|(_, _, entry)| !entry.is_same_program)
            .filter_map(|(row, column, entry)| {
                let (ratio, verdict) = entry.ratio()?;
                verdict.is_difference().then_some((row, column, entry, ratio))
            })
            .collect();
        found.sort_by(|a, b| size(b.3).total_cmp(&size(a.3)));
        let sentences = found.iter().enumerate().map(|(rank, (row, column, entry, ratio))| {
            let text = difference(&overview.columns[*column], row, entry, *ratio);
            (rank, size(*ratio), Finding { workload: Some(*column), text })
        });
        ranked.extend(sentences.take(FINDINGS_MAX));
    }
    let largest_first = |a: &f64, b: &f64| b.total_cmp(a);
    ranked.sort_by(|a, b| match a.0.cmp(&b.0) {
        Ordering::Equal => largest_first(&a.1, &b.1),
        rank => rank,
    });
    ranked.into_iter().map(|(_, _, finding)| finding).collect()
}

fn difference(
    column: &Column<'_>,
    row: &OverviewRow<'_>,
    entry: &Entry<'_>,
    ratio: Summary,
) -> String {
    let Summary { median, low, high, .. } = ratio;
    let (quantity, baseline) = (column.quantity(), entry.baseline.unwrap_or_default());
    let better = if column.cost(median) > 1.0 { "worse" } else { "better" };
    let [median, low, high] = [median, low, high].map(grouped);
    format!(
        "{quantity} of {} is {median} times that of {baseline} ({low} to {high}): {better}.",
        row.name
    )
}

#[cfg(test)]
mod tests {
    use super::super::overview::tests::{results, tables};
    use super::*;

    fn found(names: &[&str], ratios: &[[f64; 3]]) -> Vec<String> {
        let results = results(names, 6);
        let tables = tables(&results, ratios);
        let findings = findings(&Overview::of(&results, &tables), &tables);
        findings.into_iter().map(|it| it.text).collect()
    }

    #[test]
    fn each_plan_has_its_largest_difference_before_any_has_two() {
        let found = found(
            &["a: x", "a: y", "a: z", "b: x", "b: y"],
            &[
                [1.9, 2.0, 2.1],
                [3.0, 4.0, 5.0],
                [0.9, 1.0, 1.1],
                [0.4, 0.5, 0.6],
                [0.99, 1.0, 1.01],
            ],
        );
        let of =
            |ratio: &str, which: &str| format!("CPU ns/message of monoio is {ratio}: {which}.");
        let expected = [
            "5 ratios: 3 different from 1, 1 equal, 1 undecided.".to_owned(),
            "void in every round: compio; and 4 rows in other workloads.".to_owned(),
            of("4 times that of tokio (3 to 5)", "worse"),
            of("0.50 times that of tokio (0.40 to 0.60)", "better"),
            of("2 times that of tokio (1.90 to 2.10)", "worse"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn there_are_at_most_ten() {
        let names: Vec<_> = (0..20).map(|number| format!("plan {number}: x")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(found(&names, &[[2.0, 3.0, 4.0]; 20]).len(), FINDINGS_MAX);
    }

    #[test]
    fn a_program_compared_with_itself_is_one_finding() {
        let mut results = results(&["x", "y"], 6);
        for measured in &mut results.workloads {
            let run = measured.rows[0].server.run.clone();
            let build = measured.rows[0].server.build.clone();
            (measured.rows[2].server.run, measured.rows[2].server.build) = (run, build);
        }
        let tables = tables(&results, &[[0.96, 1.0, 1.01], [1.01, 1.02, 1.03]]);
        let findings = findings(&Overview::of(&results, &tables), &tables);
        let itself = "The same program compared with itself: 1 of 2 intervals hold 1; 1 of 2 are narrower than ±3 %.";
        assert_eq!(findings[1], Finding { workload: Some(1), text: itself.to_owned() });
        assert_eq!(findings.len(), 3, "its difference is no finding about the program");
    }
}
