//! Small plots, one for each row: its own line over the grey lines of all rows.

use std::fmt::{self, Write};

use super::axis::Axis;

/// The plot itself, within a picture of [`WIDTH`] × [`HEIGHT`].
const LEFT: f64 = 40.0;
const RIGHT: f64 = 234.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 112.0;
const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 130.0;

/// A row's line.
pub(crate) struct Curve<'a> {
    pub(crate) name: &'a str,
    /// Whether others are compared with it.
    pub(crate) is_baseline: bool,
    /// Points as (x, y), in the units of the axes.
    pub(crate) points: Vec<(f64, f64)>,
    /// Marked ranges on the x axis.
    pub(crate) marks: Vec<(f64, f64)>,
    /// The plot in words, for screen readers.
    pub(crate) description: String,
}

/// The x axis: its ends, its ticks and their labels.
pub(crate) struct XAxis {
    /// Both ends.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl XAxis {
    /// From zero to a round number that is not below any of `figures`.
    pub(crate) fn linear(figures: impl Iterator<Item = f64>) -> Self {
        let largest = figures.fold(0.0, f64::max);
        // With zero among the figures the axis is linear.
        let axis = Axis::of([0.0, largest].into_iter());
        let high = axis.ticks.last().copied().unwrap_or(1.0);
        // More would not fit.
        let every = axis.ticks.len().div_ceil(4).max(1);
        let ticks = axis.labels().step_by(every).collect();
        Self { low: 0.0, high, ticks }
    }

    fn x(&self, figure: f64) -> f64 {
        LEFT + (figure - self.low) / (self.high - self.low) * (RIGHT - LEFT)
    }
}

/// One plot for each of `curves`. `id` is unique in the page; `title` is HTML.
pub(crate) fn multiples(
    text: &mut String,
    id: &str,
    title: &str,
    across: &XAxis,
    curves: &[Curve<'_>],
) -> fmt::Result {
    let up = Axis::of(curves.iter().flat_map(|curve| &curve.points).map(|point| point.1));
    let y = |figure: f64| BOTTOM - up.share(figure) * (BOTTOM - TOP);
    let scale = if up.logarithmic { " <span class=\"muted\">(logarithmic)</span>" } else { "" };
    writeln!(text, "<h3>{title}{scale}</h3>")?;
    // Axes and lines are drawn once, and referred to by each plot.
    writeln!(text, "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>")?;
    writeln!(text, "<g id=\"{id}-axes\">")?;
    for (tick, label) in up.labels() {
        let y = y(tick);
        write!(
            text,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        )?;
        let (x, y) = (LEFT - 4.0, y + 3.5);
        write!(
            text,
            "<text class=\"tick\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>"
        )?;
    }
    for (tick, label) in &across.ticks {
        let (x, y) = (across.x(*tick), HEIGHT - 4.0);
        write!(
            text,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"
        )?;
    }
    writeln!(text, "</g>\n<g id=\"{id}-all\">")?;
    for (index, curve) in curves.iter().enumerate() {
        write!(text, "<polyline id=\"{id}-{index}\" points=\"")?;
        for (figure, height) in &curve.points {
            write!(text, "{:.1},{:.1} ", across.x(*figure), y(*height))?;
        }
        writeln!(text, "\"/>")?;
    }
    writeln!(text, "</g>\n</defs></svg>\n<div class=\"plots\">")?;
    let baseline = curves.iter().position(|curve| curve.is_baseline);
    for (index, curve) in curves.iter().enumerate() {
        let name = curve.name;
        writeln!(text, "<figure><figcaption>{name}</figcaption>")?;
        write!(text, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{name}</title>")?;
        write!(text, "<desc>{}</desc>", curve.description)?;
        for (from, to) in &curve.marks {
            // A pixel at least.
            let (x, width) = (across.x(*from), (across.x(*to) - across.x(*from)).max(1.0));
            let height = BOTTOM - TOP;
            write!(
                text,
                "<rect class=\"mark\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"/>"
            )?;
        }
        write!(text, "<use href=\"#{id}-axes\"/><use class=\"others\" href=\"#{id}-all\"/>")?;
        if let Some(baseline) = baseline.filter(|baseline| *baseline != index) {
            write!(text, "<use class=\"base\" href=\"#{id}-{baseline}\"/>")?;
        }
        let own = if curve.is_baseline { "own baseline" } else { "own" };
        writeln!(text, "<use class=\"{own}\" href=\"#{id}-{index}\"/></svg></figure>")?;
    }
    writeln!(text, "</div>")
}
