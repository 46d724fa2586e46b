use super::*;
use crate::load::report::{Arrivals, Messages};
use crate::load::{ResourceUsage, Series, Stalls};
use crate::matrix::calls::SystemCalls;
use crate::matrix::host::Host;
use crate::matrix::overview;
use crate::matrix::plan::Plan;
use crate::matrix::results::{Row, Sample, tests};
use crate::matrix::statistics::Summary;
use crate::matrix::table::Cell;

/// A round in which a message took the server so long.
fn round(cpu_ns: u64) -> Result<Sample, String> {
    let mut sample = tests::sample();
    let report = &mut sample.report;
    report.server = report
        .server
        .take()
        .map(|server| ResourceUsage { user_ns: cpu_ns, system_ns: 0, ..server }.over_messages(1));
    report.arrivals = Some(Arrivals::default());
    Ok(sample)
}

fn results() -> Results {
    let plan = r#"
        name = "a <workload>"
        load = { command = "arrivals", busy = 1, payload = 1, rate = 50, seconds = 1 }
        servers = ["tokio", "compio"]
        baseline = "tokio"
        figures = ["cpu-per-message", "arrivals-never"]
        titles = { cpu-per-message = "CPU, ns" }
    "#;
    let mut measured = MeasuredWorkload::of(Plan::of_one(plan).unwrap(), 5);
    measured.rows[0].rounds = [1000, 1010, 1020, 1030, 1040].map(round).into();
    measured.rows[1].rounds = [2000, 2020, 2040, 2060].map(round).into();
    measured.rows[1].rounds.push(Err("load: 1 < 2 & \"3\"".to_owned()));
    let command = "cargo matrix plan.toml".to_owned();
    Results::of(command, Host::of(&[]), [0, 1], None, vec![measured])
}

fn page(results: &Results) -> String {
    let tables: Vec<_> = results.workloads.iter().map(table::rows).collect();
    page_of(results, &tables)
}

fn page_of(results: &Results, tables: &[Vec<ReportRow<'_>>]) -> String {
    let overview = Overview::of(results, tables);
    super::page(results, tables, &overview, &findings::findings(&overview, tables))
}

/// The elements that are not closed.
fn unclosed(page: &str) -> Vec<&str> {
    let mut open = Vec::new();
    // A script has other uses for the sign.
    let (elements, script) = page.split_once("<script>").unwrap();
    let elements =
        [elements, script.split_once("</script>").unwrap().1].map(|it| it.split('<').skip(1));
    for tag in elements.into_iter().flatten().filter_map(|text| text.split('>').next()) {
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') || matches!(name, "!doctype" | "meta" | "br" | "input") => {}
            None => open.push(name),
        }
    }
    open
}

#[test]
fn a_page_is_whole_and_needs_nothing_else() {
    let page = page(&results());
    assert_eq!(unclosed(&page), [""; 0]);
    for outside in ["http", "src=", "<script ", "<link", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("a &lt;workload&gt;"));
    assert!(page.contains("compio, round 5: load: 1 &lt; 2 &amp; &quot;3&quot;"));
}

/// The same, with what `load` says of a steady load, at two rates.
fn with_plots() -> Results {
    let mut results = results();
    let round = |rate: f64, longest: f64| {
        let mut sample = round(300).unwrap();
        let report = &mut sample.report;
        report.messages = Some(Messages { received_per_s: rate, ..Messages::default() });
        report.latency_us = Some(Percentiles { p50: 50.0, p99: 99.0, ..Percentiles::default() });
        report.curve = Some(vec![[0.0, 10.0], [0.9, 90.0], [0.99, 99.0], [1.0, longest]]);
        let longest_us = vec![90.0, 0.0, longest];
        report.series = Some(Series { slot_ms: 10.0, received: vec![5, 0, 5], longest_us });
        let (at_ms, lasted_ms) = (vec![10.0], vec![15.0]);
        report.stalls = Some(Stalls { at_ms, lasted_ms, ..Stalls::default() });
        report.warnings = vec![format!("the client used {rate} % of a core")];
        let server = report.server.as_mut().unwrap();
        server.rss_peak_kib = 2048;
        Ok(sample)
    };
    let measured = &mut results.workloads[0];
    measured.workload.sweep = Some("sweep".to_owned());
    measured.rows[0].rounds = vec![round(900.0, 200.0), round(1100.0, 400.0)];
    measured.rows[0].calls = Some(Ok(SystemCalls { all: 2.5, io_uring_enter: 0.5 }));
    measured.rows[1].rounds = vec![round(500.0, 250.0)];
    measured.rows[1].calls = Some(Err("may <not>".to_owned()));
    let mut faster = MeasuredWorkload::of(measured.workload.clone(), 5);
    faster.rows[0].rounds = vec![round(3000.0, 500.0)];
    faster.rows[1].rounds = vec![round(500.0, 250.0)];
    results.workloads.push(faster);
    results
}

#[test]
fn a_row_has_its_own_plot_of_each_kind() {
    let page = page(&with_plots());
    assert_eq!(unclosed(&page), [""; 0]);
    // Two rows, in two workloads; and two of throughput against latency.
    assert_eq!(page.matches("<figure>").count(), 2 * 2 * 2 + 2 * 2);
    assert_eq!(page.matches("<section>\n<h2>sweep</h2>").count(), 1);
    assert!(page.contains("at most 3,000 messages a second"));
    // The median of two rounds at each percentile, and of the longest.
    assert!(page.contains("99 % within 99 us, all within 300 us"));
    // The round with the longest of all, and its stall.
    assert!(page.contains("longest 400 us, stalls: 1"));
    assert_eq!(page.matches("<rect class=\"mark\"").count(), 4);
    for id in page.split("href=\"#").skip(1).filter_map(|text| text.split('"').next()) {
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
}

#[test]
fn the_costs_of_a_row_are_shown_where_known() {
    let page = page(&with_plots());
    let columns = [
        "CPU user, ns each",
        "CPU system, ns each",
        "switches each",
        "system calls each",
        "io_uring_enter each",
        "messages/s",
        "CPU, %",
        "peak memory, MiB",
        "program, MiB",
        "client CPU, %",
        "stalls, ms",
    ];
    let head = columns.map(|name| format!("<th scope=\"col\">{name}</th>")).concat();
    assert!(page.contains(&head), "{head}");
    for costs in [
        ["300", "0", "0", "2.50", "0.50", "1,000", "0", "2", "0.0010", "0", "0"],
        ["300", "0", "0", "–", "–", "500", "0", "2", "0.0010", "0", "0"],
    ] {
        let costs = costs.map(|cost| format!("<td>{cost}</td>")).concat();
        assert!(page.contains(&costs), "{costs}");
    }
    assert!(page.contains("System calls not counted: may &lt;not&gt;"));
    assert!(page.contains("Warned, the client used … % of a core: tokio, compio.</p>"));
}

#[test]
fn the_findings_come_first() {
    let mut results = results();
    let four = "CPU, ns, against tokio: too few rounds to say: compio (2.000); \
                void in some rounds: compio (1 of 5).";
    assert!(page(&results).contains(four));
    let Row { rounds, .. } = &mut results.workloads[0].rows[1];
    rounds[4] = round(2080);
    assert!(page(&results).contains("CPU, ns, against tokio: more: compio (2.000)."));
    let Row { rounds, .. } = &mut results.workloads[0].rows[0];
    let never = |sample: &mut Sample| sample.report.arrivals.as_mut().unwrap().never = 1;
    rounds[0].iter_mut().for_each(never);
    assert!(page(&results).contains("; some were not served: tokio."));
}

#[test]
fn a_row_shows_its_rounds_and_what_it_is_compared_with() {
    let page = page(&results());
    assert!(page.contains("<title>4 rounds; compared with 1,020</title>"));
    let figures = "<td>2,030</td><td>2,000–2,060</td>";
    assert!(page.contains(figures));
    assert!(page.contains("<td>2.000 (2.000–2.000)</td>"));
    assert_eq!(page.matches("<td><span class=\"muted\">baseline").count(), 2);
    // Two rows, in both tables.
    assert_eq!(page.matches("<path class=\"round\"").count(), 4);
}

/// A full run: 60 workloads of 12 rows with three figures, 40 measurements of each, and both kinds of curves.
#[test]
fn the_page_of_a_full_run_is_under_3_mb() {
    let names: Vec<_> = (0..60).map(|it| format!("plan-{}: workload {it}", it / 6)).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut full = overview::tests::results(&names, 1);
    for measured in &mut full.workloads {
        let row = measured.rows.remove(0);
        measured.workload.figures = vec![measured.workload.figures[0]; 3];
        measured.rows = (0..12).map(|number| full_row(&row, number)).collect();
    }
    let tables: Vec<_> = full.workloads.iter().map(full_table).collect();
    let page = page_of(&full, &tables);
    assert_eq!(page.matches("<td class=\"plot\">").count(), 60 * 12 * 3);
    assert_eq!(page.matches("<figure>").count(), 60 * 12 * 2);
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
}

fn full_table(measured: &MeasuredWorkload) -> Vec<ReportRow<'_>> {
    let line = |(number, row)| ReportRow {
        row,
        is_baseline: number == 0,
        cells: (0..3).map(|figure| full_cell(number, figure)).collect(),
    };
    measured.rows.iter().enumerate().map(line).collect()
}

/// A row with a latency by percentile and over time.
fn full_row(row: &Row, number: usize) -> Row {
    let Ok(mut sample) = row.rounds[0].clone() else { unreachable!("it is sound") };
    let spread = |point: usize| 100.0 + ((point * 7919 + number * 104_729) % 9973) as f64;
    let share = |point: usize| 1.0 - 10_f64.powf(-(point as f64) / 8.0);
    let mut curve: Vec<_> = (0..40).map(|point| [share(point), spread(point)]).collect();
    curve.push([1.0, 20_000.0]);
    sample.report.curve = Some(curve);
    let longest_us = (0..50).map(spread).collect();
    sample.report.series = Some(Series { slot_ms: 10.0, received: vec![5; 50], longest_us });
    let mut server = row.server.clone();
    server.name = format!("runtime-{number}/websocket-engine");
    let baseline = (number > 0).then(|| "runtime-0/websocket-engine".to_owned());
    Row {
        server,
        baseline,
        rounds: vec![Ok(sample)],
        pairs: None,
        idle_cpu_percent: None,
        paused_rounds: 0,
        calls: None,
    }
}

fn full_cell(number: usize, figure: usize) -> Cell {
    let spread = |round: usize| ((round * 7919 + number * 31 + figure * 17) % 401) as f64;
    let rounds: Vec<_> = (1..=40).map(|round| (round, 1000.0 + spread(round))).collect();
    let summary = |median, low, high| Summary { median, low, high, rounds: 40 };
    let ratio = (number > 0).then(|| summary(1.23, 1.21, 1.25));
    Cell {
        rounds,
        range: Some(summary(1200.0, 1000.0, 1400.0)),
        ratio,
        paired: None,
        baseline: Some(1100.0),
    }
}
