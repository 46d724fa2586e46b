//! The results as one self-contained HTML file: a grid of all cells, and a timeline behind each.

use std::fmt::{self, Write};

use super::judge::Outcome;
use super::plan::{Program, Scenario};
use super::results::{Cell, OUR_STALL_MS_MAX, Results, Run};
use super::{terminal, timeline};
use crate::matrix::escape::Escaped;
use crate::matrix::page::{self, STYLE};

const OWN_STYLE: &str = include_str!("stalls.css");

const LEGEND: &str = "\
<p class=\"key\"><span class=\"b2\">no stall</span><span class=\"eq\">stalls, told right</span>\
<span class=\"w1\">stalls, not asked</span><span class=\"w2\">not told, or late</span>\
<span class=\"w4\">told wrong</span><span class=\"void\">void</span></p>
<details><summary>How to read it</summary>
<p>A cell has the longest stall that a client saw (a new one that waited for its first echo, or the busy ones that \
were not answered), the connections that waited over 1 s, the recovery (from the end of the fault until the last \
client that had waited over 100 ms was answered; both are left out where they are zero), and the verdict of the stall \
detector in the server. With several runs these are the largest figures, and how often each verdict was given. A \
verdict is <em>right</em> if it names the class first while the fault lasts and nothing false is said in the whole \
run; also if nothing is said and nothing had to be. Of two faults, the one that began first has to be named so, or \
both have to be named. It is <em>among others</em> if a consequence of the fault is named before it. <em>Waiting for a \
CPU</em> is true where a worker waited for one for at least a fifth of the stall, by the scheduler's figures, which \
the lab reads itself; of a healthy server it is false, too. No stall: 100 ms at most. \
<em>Client busy</em>: the clients used over 90 % of the core that they share, so that they may have waited for \
themselves.</p>
<p>In a timeline the fault is shaded. From above: how long new clients waited, and how many failed, by when they \
came; silences of the busy clients; how late the heartbeat of the event loop was (of our server what its detector \
calls a stall, over 100 ms); connections in the accept queue; open descriptors; and the stalls that the detector \
found. Times are since the server listened.</p>
</details>
";

/// The page.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::new();
    write_page(&mut text, results).expect("a string takes everything");
    text
}

fn write_page(text: &mut String, results: &Results) -> fmt::Result {
    let style = STYLE.concat() + OWN_STYLE;
    page::begin(text, "Stalls, and what the detector says", &style, &results.host)?;
    grid(text, results)?;
    writeln!(text, "<section>\n<h2>What was right</h2>\n<ul class=\"found\">")?;
    for sentence in results.summary() {
        writeln!(text, "<li>{}</li>", Escaped(&sentence))?;
    }
    writeln!(text, "</ul>\n</section>")?;
    let Results { host, command, server_core, load_core, .. } = results;
    writeln!(text, "<details>\n<summary>Machine, versions and command</summary>\n<dl>")?;
    page::facts(text, host, command, [*server_core, *load_core])?;
    writeln!(text, "</dl>\n</details>")?;
    for (number, scenario) in results.scenarios.iter().enumerate() {
        writeln!(text, "<section aria-labelledby=\"scenario-{number}\">")?;
        writeln!(text, "<h2 id=\"scenario-{number}\">{}</h2>", Escaped(&scenario.name))?;
        writeln!(text, "<p>{}</p>", Escaped(&scenario.about))?;
        let cells = results.cells.iter().enumerate();
        for (index, cell) in cells.filter(|(_, cell)| cell.scenario == number) {
            behind(text, results, index, cell)?;
        }
        writeln!(text, "</section>")?;
    }
    writeln!(text, "</body>\n</html>")
}

fn grid(text: &mut String, results: &Results) -> fmt::Result {
    let runtimes = results.runtimes();
    writeln!(text, "<section aria-label=\"all cells\">\n{LEGEND}")?;
    writeln!(text, "<div class=\"cells\" role=\"region\" aria-label=\"grid\" tabindex=\"0\">")?;
    write!(text, "<table>\n<thead>\n<tr><td></td>")?;
    for runtime in &runtimes {
        write!(text, "<th scope=\"colgroup\" colspan=\"2\">{}</th>", Escaped(runtime))?;
    }
    write!(text, "</tr>\n<tr><th scope=\"col\">scenario</th>")?;
    for program in runtimes.iter().flat_map(|_| Program::ALL) {
        write!(text, "<th scope=\"col\">{}</th>", program.name())?;
    }
    writeln!(text, "</tr>\n</thead>\n<tbody>")?;
    for (number, scenario) in results.scenarios.iter().enumerate() {
        let class = scenario.truth();
        let name = Escaped(&scenario.name);
        write!(text, "<tr><th scope=\"row\"><a href=\"#scenario-{number}\">{name}</a>")?;
        write!(text, "<small>{}</small></th>", Escaped(&class))?;
        for runtime in &runtimes {
            for program in Program::ALL {
                let is_meant = |cell: &&Cell| {
                    cell.scenario == number && cell.runtime == *runtime && cell.program == *program
                };
                match results.cells.iter().position(|cell| is_meant(&cell)) {
                    Some(index) => cell(text, index, scenario, &results.cells[index])?,
                    None => write!(text, "<td></td>")?,
                }
            }
        }
        writeln!(text, "</tr>")?;
    }
    writeln!(text, "</tbody>\n</table>\n</div>\n</section>")
}

fn cell(text: &mut String, index: usize, scenario: &Scenario, cell: &Cell) -> fmt::Result {
    write!(text, "<td class=\"{}\"><a href=\"#c{index}\">", class(cell))?;
    if let Some((longest, delayed, recovery)) = terminal::worst(cell) {
        write!(text, "{}", terminal::time(longest))?;
        match recovery {
            None => write!(text, "<small>{delayed} over 1 s, no recovery</small>")?,
            Some(0.0) if delayed == 0 => {}
            Some(ms) => {
                let recovery = terminal::time(ms);
                write!(text, "<small>{delayed} over 1 s, recovery {recovery}</small>")?;
            }
        }
    }
    let verdicts = terminal::verdicts(scenario, cell) + &terminal::client(cell);
    write!(text, "<small>{}</small></a></td>", Escaped(&verdicts))
}

/// The colour of a cell: by its worst verdict, then by its longest stall.
fn class(cell: &Cell) -> &'static str {
    let Some((longest, ..)) = terminal::worst(cell) else { return "void" };
    let has = |is_meant: fn(&Outcome) -> bool| cell.done().any(|run| is_meant(&run.outcome));
    if has(|outcome| matches!(outcome, Outcome::Wrong(_))) {
        "w4"
    } else if has(|outcome| {
        matches!(outcome, Outcome::Silent | Outcome::Late | Outcome::Among | Outcome::Unknown)
    }) {
        "w2"
    } else if longest <= OUR_STALL_MS_MAX {
        "b2"
    } else if has(|outcome| *outcome == Outcome::NotAsked) {
        "w1"
    } else {
        "eq"
    }
}

/// What is behind a cell: a timeline of one of its runs, what the detector said, and why runs are void.
fn behind(text: &mut String, results: &Results, index: usize, cell: &Cell) -> fmt::Result {
    let scenario = results.scenario(cell);
    let name = terminal::name(scenario, &cell.runtime, cell.program);
    write!(text, "<h3 id=\"c{index}\">{}, {}: ", Escaped(&cell.runtime), cell.program.name())?;
    writeln!(text, "{}</h3>", Escaped(&terminal::verdicts(scenario, cell)))?;
    if let Some(run) = cell.shown()
        && let Some(details) = &run.details
    {
        timeline::plot(text, &name, run, details)?;
        said(text, run)?;
    }
    for why in cell.runs.iter().filter_map(|run| run.as_ref().err()) {
        writeln!(text, "<p>Void: {}</p>", Escaped(why))?;
    }
    Ok(())
}

/// The verdicts in full.
fn said(text: &mut String, run: &Run) -> fmt::Result {
    if run.incidents.is_empty() {
        return Ok(());
    }
    writeln!(text, "<details>\n<summary>What the detector said</summary>\n<ul class=\"said\">")?;
    for incident in &run.incidents {
        let worker = if incident.worker.is_empty() { "the process" } else { &incident.worker };
        write!(text, "<li>{}, {}: ", Escaped(worker), terminal::time(incident.lasted_ms))?;
        for finding in &incident.verdict.findings {
            let class = finding.class.replace('_', " ");
            write!(
                text,
                "<strong>{}</strong> ({}). ",
                Escaped(&class),
                Escaped(&finding.confidence)
            )?;
            let sentences = finding.evidence.join(" ");
            write!(text, "{} Cure: {} ", Escaped(&sentences), Escaped(&finding.cure))?;
        }
        writeln!(text, "</li>")?;
    }
    writeln!(text, "</ul>\n</details>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stalls::results::tests::results;

    #[test]
    fn each_cell_links_to_its_timeline_and_all_is_escaped() {
        let results = results();
        let page = page(&results);
        for index in 0..results.cells.len() {
            assert!(page.contains(&format!("href=\"#c{index}\"")), "{index}");
            assert!(page.contains(&format!("<h3 id=\"c{index}\">")), "{index}");
        }
        assert_eq!(page.matches("<svg class=\"timeline\"").count(), results.cells.len());
        assert!(page.contains("a &lt;blocked&gt; loop") && !page.contains("<blocked"));
        assert!(page.contains("It is &lt;blocked_loop&gt;."));
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn a_colour_is_of_the_worst_verdict() {
        let mut results = results();
        let classes: Vec<_> = results.cells.iter().map(class).collect();
        assert_eq!(classes, ["eq", "b2", "w4", "b2", "b2", "b2", "b2", "b2"]);
        let cell = &mut results.cells[0];
        for (outcome, expected) in [
            (Outcome::Late, "w2"),
            (Outcome::Unknown, "w2"),
            (Outcome::NotAsked, "w1"),
            (Outcome::Wrong("lost_accept".to_owned()), "w4"),
        ] {
            if let Ok(run) = &mut cell.runs[0] {
                run.outcome = outcome;
            }
            assert_eq!(class(cell), expected);
        }
        drop(cell.runs.remove(0));
        assert_eq!(class(cell), "void");
    }
}
