//! Scales: from quantities to positions in a picture, with ticks at round numbers.

use crate::units::{NANOS, OPS, RATES, SECONDS, Unit, fitting};

/// The quantity of an axis, which determines its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    Seconds,
    BytesPerSecond,
    OpsPerSecond,
    Nanoseconds,
    Share,
    Count,
    Ratio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// From zero, so that heights are in proportion.
    FromZero,
    /// Between the extremes.
    Between,
    Log,
}

/// An axis over the values it has to show.
#[derive(Debug, Clone)]
pub struct Axis {
    pub label: String,
    scaling: Scaling,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    unit: Unit,
}

const SHARE: [Unit; 1] = [Unit { name: "%", size: 0.01 }];
const PLAIN: [Unit; 1] = [Unit { name: "", size: 1.0 }];

/// From large to small; the last serves all smaller values.
fn units(quantity: Quantity) -> &'static [Unit] {
    match quantity {
        Quantity::Seconds => &SECONDS,
        Quantity::BytesPerSecond => &RATES,
        Quantity::OpsPerSecond => &OPS,
        Quantity::Nanoseconds => &NANOS,
        Quantity::Share => &SHARE,
        Quantity::Count | Quantity::Ratio => &PLAIN,
    }
}

fn unit_for(quantity: Quantity, value: f64) -> Unit {
    // An axis of some minutes reads better in seconds.
    let least = if quantity == Quantity::Seconds { 20.0 } else { 1.0 };
    fitting(units(quantity), value, least)
}

/// A value with its unit, three digits: `12.3 ms`.
pub fn text(quantity: Quantity, value: f64) -> String {
    let unit = unit_for(quantity, value);
    let number = short(value / unit.size);
    if unit.name.is_empty() { number } else { format!("{number} {}", unit.name) }
}

/// Three significant digits and no zeros without need.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    trimmed(format!("{value:.digits$}"))
}

fn trimmed(text: String) -> String {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Axis {
    /// An axis named `name` that shows all `values`; those that are not finite do not count.
    pub fn new(
        name: &str,
        quantity: Quantity,
        scaling: Scaling,
        values: impl Iterator<Item = f64>,
    ) -> Self {
        let usable = |v: &f64| v.is_finite() && (scaling != Scaling::Log || *v > 0.0);
        let (least, most) = values
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (l.min(v), m.max(v)));
        let (least, most) = if least > most { (1.0, 10.0) } else { (least, most) };
        let unit = unit_for(quantity, most);
        let (low, high, ticks) = match scaling {
            Scaling::Log => decades(least, most),
            Scaling::FromZero => linear(0.0, most, unit.size),
            Scaling::Between => linear(least, most, unit.size),
        };
        // Ticks of a log axis span units, so each carries its own.
        let label = match (scaling, unit.name) {
            (Scaling::Log, _) | (_, "") => name.to_owned(),
            (_, unit) => format!("{name} ({unit})"),
        };
        let unit = if scaling == Scaling::Log { Unit { name: "log", size: 1.0 } } else { unit };
        Self { label, scaling, low, high, ticks, unit }
    }

    /// The place of a value, 0 to 1 along the axis; a value outside goes to the edge.
    pub fn place(&self, value: f64) -> f64 {
        let part = match self.scaling {
            Scaling::Log => {
                (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
            }
            _ => (value - self.low) / (self.high - self.low),
        };
        part.clamp(0.0, 1.0)
    }

    /// Places and texts of the ticks.
    pub fn ticks(&self, quantity: Quantity) -> Vec<(f64, String)> {
        let step = self.ticks.get(1).map_or(1.0, |second| (second - self.ticks[0]).abs());
        let digits = (-(step / self.unit.size).log10().floor()).clamp(0.0, 9.0) as usize;
        self.ticks
            .iter()
            .map(|&tick| {
                let text = match self.scaling {
                    Scaling::Log => text(quantity, tick),
                    _ => trimmed(format!("{:.digits$}", tick / self.unit.size)),
                };
                (self.place(tick), text)
            })
            .collect()
    }
}

/// About five steps of 1, 2 or 5 times a power of ten, counted in `unit`.
fn linear(low: f64, high: f64, unit: f64) -> (f64, f64, Vec<f64>) {
    let (low, high) = (low / unit, high / unit);
    let span = if high > low { high - low } else { high.abs().max(1.0) };
    let step = round_step(span / 5.0);
    let first = (low / step).floor();
    let last = (high / step).ceil().max(first + 1.0);
    let ticks = (0..=(last - first) as usize).map(|i| (first + i as f64) * step * unit).collect();
    (first * step * unit, last * step * unit, ticks)
}

fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let part = rough / power;
    power
        * if part > 5.0 {
            10.0
        } else if part > 2.0 {
            5.0
        } else if part > 1.0 {
            2.0
        } else {
            1.0
        }
}

/// Powers of ten around the values; with few of them also their doubles and fives.
fn decades(low: f64, high: f64) -> (f64, f64, Vec<f64>) {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let last = last.max(first + 1);
    let parts: &[f64] = if last - first <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = (first..=last).flat_map(|power| parts.iter().map(move |p| p * 10f64.powi(power)));
    let (low, high) = (10f64.powi(first), 10f64.powi(last));
    (low, high, all.filter(|tick| *tick <= high * 1.001).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scaling: Scaling, quantity: Quantity, values: &[f64]) -> Axis {
        Axis::new("it", quantity, scaling, values.iter().copied())
    }

    fn texts(axis: &Axis, quantity: Quantity) -> Vec<String> {
        axis.ticks(quantity).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn linear_axes_start_at_zero_and_end_at_a_round_number_above() {
        let mib = 1024.0 * 1024.0;
        let axis = axis(Scaling::FromZero, Quantity::BytesPerSecond, &[300.0 * mib, 959.0 * mib]);
        assert_eq!(axis.label, "it (MiB/s)");
        assert_eq!(
            texts(&axis, Quantity::BytesPerSecond),
            ["0", "200", "400", "600", "800", "1000"]
        );
        assert!((axis.place(500.0 * mib) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn log_axes_have_a_tick_per_decade_with_its_unit() {
        let axis = axis(Scaling::Log, Quantity::Nanoseconds, &[0.0, 1_500.0, 40e6]);
        assert_eq!(
            texts(&axis, Quantity::Nanoseconds),
            ["1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms"]
        );
        assert!((axis.place(1e5) - 0.4).abs() < 1e-9);
        assert_eq!(axis.place(0.0), 0.0);
    }

    #[test]
    fn small_steps_keep_their_digits() {
        let axis = axis(Scaling::FromZero, Quantity::Ratio, &[0.9]);
        assert_eq!(texts(&axis, Quantity::Ratio), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(text(Quantity::Nanoseconds, 12_345.0), "12.3 us");
        assert_eq!(text(Quantity::Share, 0.645), "64.5 %");
        assert_eq!(text(Quantity::OpsPerSecond, 42_000.0), "42 k ops/s");
    }

    /// No input, however odd, leads to endless or missing ticks.
    #[test]
    fn odd_values_still_give_an_axis() {
        let odd: [&[f64]; 6] =
            [&[], &[0.0], &[5.0, 5.0], &[f64::NAN, f64::INFINITY], &[1e-12], &[1e18]];
        for values in odd {
            for scaling in [Scaling::FromZero, Scaling::Between, Scaling::Log] {
                let axis = axis(scaling, Quantity::Nanoseconds, values);
                let count = axis.ticks(Quantity::Nanoseconds).len();
                assert!((2..=20).contains(&count), "{values:?} {scaling:?}: {count}");
            }
        }
    }
}
