//! The timeline of a run: what clients, the event loop, the queue and the detector saw, above each other.

use std::fmt::{self, Write};

use super::results::{Details, Run};
use super::watch::Sample;
use crate::matrix::axis::{Axis, grouped};
use crate::matrix::escape::Escaped;
use crate::matrix::plots::XAxis;

/// The plot, in units of its view box.
const WIDTH: f64 = 1_080.0;
const LEFT: f64 = 168.0;
const RIGHT: f64 = 1_060.0;
const TOP: f64 = 8.0;

/// The height of a strip, and of the space below it.
const STRIP: f64 = 40.0;
const GAP: f64 = 14.0;

/// The height of a line of the verdicts.
const VERDICT: f64 = 20.0;

/// More verdicts are not drawn; all are in the list below the plot.
const VERDICTS_MAX: usize = 12;

/// The space for the labels of the x axis.
const AXIS: f64 = 24.0;

/// A scale of times goes up to so many ms at least, and one of counts to so many.
const MS_MIN: f64 = 100.0;
const COUNT_MIN: f64 = 10.0;

/// A figure over time: bars, each from one moment to another.
struct Strip {
    name: &'static str,
    /// From, to (seconds since the server listened) and the figure.
    bars: Vec<[f64; 3]>,
    /// Whether it is drawn as a line of steps.
    is_line: bool,
    /// The scale goes up to this at least, so that what is small looks small.
    high_min: f64,
    /// What it means that there are no bars.
    without: &'static str,
}

/// The plot. `name` is that of the cell.
pub(crate) fn plot(text: &mut String, name: &str, run: &Run, details: &Details) -> fmt::Result {
    let strips = strips(run, details);
    let verdicts = verdicts(run);
    let ends = strips.iter().flat_map(|strip| &strip.bars).map(|bar| bar[1]);
    let across = XAxis::linear(ends.chain(verdicts.iter().map(|(bar, _)| bar[1])));
    let x = |seconds: f64| {
        let share = (seconds / across.high).clamp(0.0, 1.0);
        LEFT + share * (RIGHT - LEFT)
    };
    let bottom = TOP + strips.len() as f64 * (STRIP + GAP) + verdicts.len().max(1) as f64 * VERDICT;
    let height = bottom + AXIS;
    writeln!(text, "<div class=\"wide\" role=\"region\" aria-label=\"timeline\" tabindex=\"0\">")?;
    write!(text, "<svg class=\"timeline\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\"")?;
    writeln!(text, " aria-label=\"{}\">", Escaped(&description(name, run)))?;
    let [began, ended] = run.fault_unix_ms.map(|ms| x(seconds(run, ms)));
    let width = (ended - began).max(1.0);
    write!(text, "<rect class=\"fault\" x=\"{began:.0}\" y=\"{TOP}\" width=\"{width:.0}\"")?;
    writeln!(text, " height=\"{:.0}\"/>", bottom - TOP)?;
    let mut top = TOP;
    for strip in &strips {
        draw(text, strip, top, x)?;
        top += STRIP + GAP;
    }
    writeln!(text, "<text x=\"0\" y=\"{:.0}\">verdict</text>", top + VERDICT - 6.0)?;
    for ([from, to, _], class) in &verdicts {
        let (from, to, y) = (x(*from), x(*to), top + VERDICT - 6.0);
        let width = (to - from).max(2.0);
        write!(text, "<rect class=\"verdict\" x=\"{from:.0}\" y=\"{:.0}\"", top + 2.0)?;
        write!(text, " width=\"{width:.0}\" height=\"{:.0}\"/>", VERDICT - 4.0)?;
        // Left of the bar's beginning where there is more room.
        let (at, anchor) =
            if from > (LEFT + RIGHT) / 2.0 { (from - 4.0, "end") } else { (from + 4.0, "start") };
        write!(text, "<text class=\"name\" x=\"{at:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\">")?;
        writeln!(text, "{}</text>", Escaped(&class.replace('_', " ")))?;
        top += VERDICT;
    }
    for (tick, label) in &across.ticks {
        let (x, y) = (x(*tick), height - 6.0);
        writeln!(text, "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"middle\">{label} s</text>")?;
    }
    writeln!(text, "</svg>\n</div>")
}

/// A strip, with its name and its largest figure on the left.
fn draw(text: &mut String, strip: &Strip, top: f64, x: impl Fn(f64) -> f64) -> fmt::Result {
    let largest = strip.bars.iter().map(|bar| bar[2]).fold(0.0, f64::max);
    let axis = Axis::of([0.0, largest.max(strip.high_min)].into_iter());
    let (bottom, middle) = (top + STRIP, top + STRIP / 2.0);
    let y = |figure: f64| bottom - axis.share(figure) * STRIP;
    write!(text, "<text x=\"0\" y=\"{middle:.0}\">{}</text>", strip.name)?;
    let shown = if strip.bars.is_empty() {
        strip.without.to_owned()
    } else {
        format!("at most {}", grouped(largest.round()))
    };
    write!(text, "<text x=\"0\" y=\"{:.0}\">{shown}</text>", middle + 15.0)?;
    write!(text, "<path class=\"grid\" d=\"M{LEFT} {bottom}H{RIGHT}\"/>")?;
    let mut path = String::new();
    for [from, to, figure] in &strip.bars {
        let (from, to, y) = (x(*from), x(*to).max(x(*from) + 1.0), y(*figure));
        if strip.is_line {
            let command = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{command}{from:.0} {y:.0}H{to:.0}")?;
        } else if *figure > 0.0 {
            write!(path, "M{from:.0} {bottom:.0}V{y:.1}H{to:.0}V{bottom:.0}z")?;
        }
    }
    let class = if strip.is_line { "steps" } else { "bars" };
    writeln!(text, "<path class=\"{class}\" d=\"{path}\"/>")
}

fn strips(run: &Run, details: &Details) -> Vec<Strip> {
    let Details { clients, late_ms, has_stalls_alone, samples } = details;
    // What is longer than `--stall-milliseconds-min` and 50 ms is found in any case.
    let not_late = if *has_stalls_alone { "none over 150" } else { "not told" };
    let slot = clients.newcomers.slot_ms;
    let in_slot = |number: u32, figure: f64| {
        let from = seconds(run, clients.began_unix_ms + f64::from(number) * slot);
        [from, from + slot / 1e3, figure]
    };
    let waits = (0..).zip(&clients.newcomers.longest_us);
    let waits = waits.map(|(number, us)| in_slot(number, us / 1e3));
    let failed = (0..).zip(&clients.failed).filter(|(_, failed)| **failed > 0);
    let failed: Vec<_> = failed.map(|(number, it)| in_slot(number, *it as f64)).collect();
    let silences =
        clients.stalls.at_ms.iter().zip(&clients.stalls.lasted_ms).map(|(at, lasted)| {
            let from = seconds(run, clients.began_unix_ms + at);
            [from, from + lasted / 1e3, *lasted]
        });
    // A heart was late before it was looked at.
    let late = late_ms.iter().map(|[at, late]| {
        let to = seconds(run, *at);
        [(to - late / 1e3).max(0.0).min(to), to, *late]
    });
    let sampled = |figure: fn(&Sample) -> u32| {
        let from = |sample: &Sample| seconds(run, sample.unix_ms).max(0.0);
        let ends = samples.iter().skip(1).map(from);
        let ends = ends.chain(samples.last().map(from));
        samples.iter().zip(ends).map(|(it, to)| [from(it), to, f64::from(figure(it))]).collect()
    };
    let times =
        |name, bars, without| Strip { name, bars, is_line: false, high_min: MS_MIN, without };
    let counts =
        |name, bars, is_line, without| Strip { name, bars, is_line, high_min: COUNT_MIN, without };
    vec![
        times("new clients wait, ms", waits.collect(), "none came"),
        counts("new clients failed", failed, false, "none"),
        times("silence, ms", silences.collect(), "none"),
        times("heart late, ms", late.collect(), not_late),
        counts("accept queue", sampled(|sample| sample.queue), true, "not seen"),
        counts("descriptors", sampled(|sample| sample.descriptors), true, "not seen"),
    ]
}

/// When each incident was, and its first class.
fn verdicts(run: &Run) -> Vec<([f64; 3], &str)> {
    let incidents = run.incidents.iter().take(VERDICTS_MAX).map(|incident| {
        let from = seconds(run, incident.began_unix_ms).max(0.0);
        ([from, from + incident.lasted_ms / 1e3, 1.0], incident.class())
    });
    incidents.collect()
}

/// Seconds since the server listened.
fn seconds(run: &Run, unix_ms: f64) -> f64 {
    (unix_ms - run.listening_unix_ms) / 1e3
}

/// The plot in words, for screen readers.
fn description(name: &str, run: &Run) -> String {
    let [began, ended] = run.fault_unix_ms.map(|ms| seconds(run, ms));
    let mut text = format!("{name}: the fault is from {began:.1} s to {ended:.1} s.");
    for incident in run.incidents.iter().take(VERDICTS_MAX) {
        let from = seconds(run, incident.began_unix_ms);
        let (class, lasted) = (incident.class().replace('_', " "), incident.lasted_ms / 1e3);
        text += &format!(" {class} from {from:.1} s for {lasted:.1} s.");
    }
    text
}
