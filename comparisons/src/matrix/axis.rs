//! The axis of a plot: its scale, its ticks and its labels.

use super::table::amount;

/// The axis is logarithmic if the largest figure is more than this many times the least. On a linear axis from
/// zero, the least would be within the width of a dot.
const LINEAR_MAX: f64 = 50.0;

/// How many ticks an axis has room for.
const TICKS_MAX: f64 = 5.0;

/// The margin that keeps dots at both ends within the plot, in per cent of its width.
const MARGIN: f64 = 2.0;

/// Linear from zero, or logarithmic.
pub(crate) struct Axis {
    low: f64,
    high: f64,
    pub(crate) logarithmic: bool,
    pub(crate) ticks: Vec<f64>,
}

impl Axis {
    pub(crate) fn of(figures: impl Iterator<Item = f64>) -> Self {
        let (least, largest) = figures
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), it| (low.min(it), high.max(it)));
        if least > 0.0 && least.is_finite() && largest / least > LINEAR_MAX {
            let (low, high) = (least.log10().floor() as i32, largest.log10().ceil() as i32);
            let every = (f64::from(high - low) / TICKS_MAX).ceil().max(1.0) as usize;
            let ticks = (low..=high).step_by(every).map(|power| 10_f64.powi(power)).collect();
            let (low, high) = (10_f64.powi(low), 10_f64.powi(high));
            return Self { low, high, logarithmic: true, ticks };
        }
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let power = 10_f64.powf((largest / TICKS_MAX).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let step = steps.into_iter().find(|step| largest / step <= TICKS_MAX).unwrap_or(largest);
        // A rounding error above a whole number of steps does not add one.
        let count = (largest / step - 1e-9).ceil() as u32;
        let ticks = (0..=count).map(|tick| f64::from(tick) * step).collect();
        Self { low: 0.0, high: f64::from(count) * step, logarithmic: false, ticks }
    }

    /// The position of a figure, as SVG writes it.
    pub(crate) fn at(&self, figure: f64) -> String {
        format!("{:.2}%", MARGIN + self.share(figure) * (100.0 - 2.0 * MARGIN))
    }

    /// The same of 1000, for a plot that is stretched to its width.
    pub(crate) fn thousandth(&self, figure: f64) -> i64 {
        (10.0 * MARGIN + self.share(figure) * (1000.0 - 20.0 * MARGIN)).round() as i64
    }

    /// The position of a figure from 0 to 1.
    pub(crate) fn share(&self, figure: f64) -> f64 {
        if self.logarithmic {
            (figure / self.low).log10() / (self.high / self.low).log10()
        } else {
            figure / self.high
        }
    }

    /// Each tick with its label, of a few letters.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (f64, String)> {
        let step = self.ticks.get(1).copied().unwrap_or(1.0);
        let of = move |tick: f64| if self.logarithmic { tick } else { step };
        self.ticks.iter().map(move |tick| (*tick, label(*tick, of(*tick))))
    }
}

/// A tick's label, with enough digits to differ from the next tick's.
fn label(tick: f64, step: f64) -> String {
    let (unit, letter) = if tick >= 1e6 {
        (1e6, "M")
    } else if tick >= 1e4 {
        (1e3, "k")
    } else {
        (1.0, "")
    };
    let decimals = (-(step / unit).log10().floor()).max(0.0) as usize;
    let digits = format!("{:.decimals$}", tick / unit);
    let digits = if digits.contains('.') { digits.trim_end_matches('0') } else { &digits };
    format!("{}{letter}", digits.trim_end_matches('.'))
}

/// An amount, with commas between thousands.
pub(crate) fn grouped(figure: f64) -> String {
    let amount = amount(figure);
    let whole = amount.find('.').unwrap_or(amount.len());
    let mut grouped = String::new();
    for (index, digit) in amount.char_indices() {
        if index > 0 && index < whole && (whole - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [&str; 3] = ["2.00%", "50.00%", "98.00%"];

    fn labels(figures: &[f64]) -> Vec<String> {
        Axis::of(figures.iter().copied()).labels().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(&[30.0, 870.0]), ["0", "200", "400", "600", "800", "1000"]);
        assert_eq!(labels(&[0.3]), ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(&[0.02]), ["0", "0.005", "0.01", "0.015", "0.02"]);
        assert_eq!(labels(&[4e4]), ["0", "10k", "20k", "30k", "40k"]);
        assert_eq!(labels(&[0.0, 1.5e6]), ["0", "500k", "1M", "1.5M"]);
        assert_eq!(labels(&[3.0, 870.0]), ["1", "10", "100", "1000"]);
        assert_eq!(labels(&[0.5, 20_000.0]), ["0.1", "10", "1000", "100k"]);
        assert!(labels(&[1.0, 1e9]).len() as f64 <= TICKS_MAX + 1.0);
        assert_eq!(labels(&[]), labels(&[0.0, 0.0]));
    }

    #[test]
    fn figures_lie_within_the_axis() {
        let linear = Axis::of([30.0, 870.0].into_iter());
        assert_eq!([0.0, 500.0, 1000.0].map(|figure| linear.at(figure)), ENDS);
        assert_eq!([0.0, 500.0, 1000.0].map(|figure| linear.thousandth(figure)), [20, 500, 980]);
        let logarithmic = Axis::of([2.0, 5000.0].into_iter());
        assert_eq!([1.0, 100.0, 10_000.0].map(|figure| logarithmic.at(figure)), ENDS);
    }

    #[test]
    fn thousands_are_grouped() {
        let shown = [7.0, 0.25, 999.0, 1000.0, 12_345_678.0].map(grouped);
        assert_eq!(shown, ["7", "0.25", "999", "1,000", "12,345,678"]);
    }
}
