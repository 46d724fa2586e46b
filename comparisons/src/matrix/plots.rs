//! Small plots, one for each row: its own line over the grey lines of all rows.

use std::fmt::{self, Write};

use super::axis::Axis;
use super::escape::Escaped;

/// The plot itself, within a picture of [`WIDTH`] × [`HEIGHT`]. A unit is a quarter of a pixel, so that whole
/// numbers will do.
const LEFT: f64 = 160.0;
const RIGHT: f64 = 936.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 448.0;
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 520.0;

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
    write!(text, "<g id=\"{id}\"><path class=\"grid\" d=\"")?;
    for tick in &up.ticks {
        write!(text, "M{LEFT} {:.0}h{}", y(*tick), RIGHT - LEFT)?;
    }
    write!(text, "\"/>")?;
    for (tick, label) in up.labels() {
        let (x, y) = (LEFT - 16.0, y(tick) + 14.0);
        write!(
            text,
            "<text class=\"tick\" x=\"{x}\" y=\"{y:.0}\" text-anchor=\"end\">{label}</text>"
        )?;
    }
    for (tick, label) in &across.ticks {
        let (x, y) = (across.x(*tick), HEIGHT - 16.0);
        write!(
            text,
            "<text class=\"tick\" x=\"{x:.0}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"
        )?;
    }
    writeln!(text, "<g class=\"others\">")?;
    for (index, curve) in curves.iter().enumerate() {
        let points = curve.points.iter().map(|(figure, height)| (across.x(*figure), y(*height)));
        write!(text, "<path id=\"{id}-{index}\" class=\"line\" d=\"")?;
        line(text, points)?;
        writeln!(text, "\"/>")?;
    }
    write!(text, "</g>")?;
    if let Some(baseline) = curves.iter().position(|curve| curve.is_baseline) {
        write!(text, "<use class=\"base\" href=\"#{id}-{baseline}\"/>")?;
    }
    writeln!(text, "</g>\n</defs></svg>\n<div class=\"plots\">")?;
    for (index, curve) in curves.iter().enumerate() {
        writeln!(text, "<figure><figcaption>{}</figcaption>", Escaped(curve.name))?;
        write!(text, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"")?;
        write!(text, " aria-label=\"{}\">", Escaped(&curve.description))?;
        for (from, to) in &curve.marks {
            // A pixel at least.
            let (x, width) = (across.x(*from), (across.x(*to) - across.x(*from)).max(4.0));
            let height = BOTTOM - TOP;
            write!(
                text,
                "<rect class=\"mark\" x=\"{x:.0}\" y=\"{TOP}\" width=\"{width:.0}\" height=\"{height}\"/>"
            )?;
        }
        write!(text, "<use href=\"#{id}\"/>")?;
        let own = if curve.is_baseline { "own baseline" } else { "own" };
        writeln!(text, "<use class=\"{own}\" href=\"#{id}-{index}\"/></svg></figure>")?;
    }
    writeln!(text, "</div>")
}

/// A line through points, as the data of an SVG path: whole numbers, each from the one before.
fn line(text: &mut String, points: impl Iterator<Item = (f64, f64)>) -> fmt::Result {
    let (mut from, mut command) = ((0, 0), "M");
    for (x, y) in points {
        let (x, y) = (x.round() as i64, y.round() as i64);
        write!(text, "{command}{}", x - from.0)?;
        let down = y - from.1;
        // A minus sign separates, too.
        write!(text, "{}{down}", if down < 0 { "" } else { " " })?;
        (from, command) = ((x, y), "l");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_from_point_to_point() {
        let mut text = String::new();
        line(&mut text, [(10.0, 20.4), (13.0, 15.6), (13.0, 20.0)].into_iter()).unwrap();
        assert_eq!(text, "M10 20l3-4l0 4");
    }
}
