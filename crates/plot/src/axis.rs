//! Axes: ticks at round numbers, and their labels.

/// A linear map from a range of values to a range of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Axis {
    pub from: f64,
    pub to: f64,
    pub pixels: [f32; 2],
}

impl Axis {
    /// The pixel of a value.
    pub fn place(&self, value: f64) -> f32 {
        let share = (value - self.from) / (self.to - self.from);
        self.pixels[0] + share as f32 * (self.pixels[1] - self.pixels[0])
    }
}

/// About `count` ticks inside a range, at a distance of 1, 2, 2.5 or 5 times a power of ten.
pub fn ticks(from: f64, to: f64, count: usize) -> Vec<f64> {
    multiples(from, to, step(from, to, count))
}

/// Ticks around a range: the first is not above it, the last not below, so that grid lines enclose the values.
pub fn ticks_around(from: f64, to: f64, count: usize) -> Vec<f64> {
    let (from, to) = if to - from > 1e-9 * (from.abs() + to.abs()) {
        (from, to)
    } else {
        let around = if from == 0.0 { 1.0 } else { from.abs() * 0.1 };
        (from - around, to + around)
    };
    let step = step(from, to, count);
    multiples((from / step + 1e-9).floor() * step, (to / step - 1e-9).ceil() * step, step)
}

fn multiples(from: f64, to: f64, step: f64) -> Vec<f64> {
    if !step.is_finite() || step <= 0.0 {
        return vec![];
    }
    let (first, last) = ((from / step - 1e-9).ceil(), (to / step + 1e-9).floor());
    (0..=(last - first) as usize).map(|index| (first + index as f64) * step).collect()
}

fn step(from: f64, to: f64, count: usize) -> f64 {
    let rough = (to - from) / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Labels for ticks, all with the same number of decimals: `0.25`, `4e-5`, `20k`.
pub fn labels(ticks: &[f64]) -> Vec<String> {
    let largest = ticks.iter().fold(0.0f64, |largest, tick| largest.max(tick.abs()));
    let (unit, ending) = match largest {
        largest if largest >= 1e7 => (1e6, "M"),
        largest if largest >= 1e4 => (1e3, "k"),
        largest if largest > 0.0 && largest < 2e-3 => {
            return ticks
                .iter()
                .map(|tick| scientific(if tick.abs() < 1e-9 * largest { 0.0 } else { *tick }))
                .collect();
        }
        _ => (1.0, ""),
    };
    let decimals = (0..6).find(|&decimals| ticks.iter().all(|tick| is_round(tick / unit, decimals))).unwrap_or(6);
    let label = |&tick: &f64| {
        // Zero is written without sign and unit.
        if tick.abs() < 1e-9 * largest { "0".to_string() } else { format!("{:.decimals$}{ending}", tick / unit) }
    };
    ticks.iter().map(label).collect()
}

fn is_round(value: f64, decimals: usize) -> bool {
    let scaled = value * 10f64.powi(decimals as i32);
    (scaled - scaled.round()).abs() < 1e-6 * scaled.abs().max(1.0)
}

fn scientific(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some(_) if value == 0.0 => "0".into(),
        Some((digits, exponent)) => format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.')),
        None => text,
    }
}

/// A single value with three or four significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e4 => labels(&[(value / 100.0).round() * 100.0])[0].clone(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.3}"),
        size if size >= 2e-3 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(from: f64, to: f64, count: usize) -> Vec<String> {
        labels(&ticks(from, to, count))
    }

    #[test]
    fn ticks_are_round_and_labels_short() {
        assert_eq!(texts(0.0, 1.0, 5), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(0.7, 2.6, 4), ["1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(texts(0.0, 90.0, 5), ["0", "20", "40", "60", "80"]);
        assert_eq!(texts(0.0, 90000.0, 5), ["0", "20k", "40k", "60k", "80k"]);
        assert_eq!(texts(0.0, 1e-3, 4), ["0", "2.5e-4", "5e-4", "7.5e-4", "1e-3"]);
        assert_eq!(texts(0.0, 3e-5, 3), ["0", "1e-5", "2e-5", "3e-5"]);
        assert_eq!(texts(-1.0, 1.0, 4), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
        assert_eq!(texts(0.0, 2.5e7, 5), ["0", "5M", "10M", "15M", "20M", "25M"]);
    }

    #[test]
    fn empty_and_invalid_ranges_have_ticks_or_none() {
        assert_eq!(ticks(1.0, 1.0, 5), Vec::<f64>::new());
        assert_eq!(ticks(f64::NAN, 1.0, 5), Vec::<f64>::new());
        assert_eq!(ticks_around(0.0, 0.0, 4), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        let around = ticks_around(7.0, 7.0, 4);
        assert!(around[0] < 7.0 && around[around.len() - 1] > 7.0);
        assert_eq!(ticks_around(0.9, 4.85, 4), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn figures_have_their_significant_digits() {
        let cases =
            [(0.0, "0"), (6.9077, "6.908"), (81.234, "81.2"), (812.4, "812"), (12345.0, "12.3k"), (3e-4, "3.0e-4")];
        for (value, text) in cases {
            assert_eq!(figure(value), text);
        }
    }
}
