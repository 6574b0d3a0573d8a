//! The statistics of the workloads: means, spread, medians and their intervals, steady parts and
//! knees. Pure functions of numbers.

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Standard deviation of the values themselves, not of a population they might stand for.
pub fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    mean(&values.iter().map(|value| (value - middle).powi(2)).collect::<Vec<_>>()).sqrt()
}

/// Coefficient of variation: deviation over mean; 0 for a series that is flat or zero.
pub fn variation(values: &[f64]) -> f64 {
    let middle = mean(values);
    if middle > 0.0 { deviation(values) / middle } else { 0.0 }
}

/// The least value over the mean: 1 for a flat series, 0 for one with a standstill.
pub fn minimum_over_mean(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let middle = mean(values);
    if middle > 0.0 { least / middle } else { 0.0 }
}

pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The interval of the median of the values' distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// The confidence of the interval, 0 to 1.
    pub confidence: f64,
}

/// The least confidence wanted, which five values just reach (1 - 2 / 2^5).
const CONFIDENCE: f64 = 0.93;

/// The narrowest pair of values, as far from either end, that encloses the median with at least
/// [`CONFIDENCE`]: each value is below the median with a chance of one half, whatever the
/// distribution, so the number of them below it is binomial. `None` for fewer than five values.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let sorted = sorted(values);
    let n = sorted.len();
    let mut best = None;
    let (mut tail, mut term) = (0.0, 0.5f64.powi(n as i32));
    for k in 0..n.div_ceil(2) {
        tail += term;
        let confidence = 1.0 - 2.0 * tail;
        if confidence < CONFIDENCE {
            break;
        }
        best = Some(Interval { low: sorted[k], high: sorted[n - 1 - k], confidence });
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    best
}

/// The difference of one quantity from one measurement to the next, as a factor less one: the median
/// over neighbors, so that drift counts little.
pub fn own_noise(values: &[f64]) -> f64 {
    let usable = values.windows(2).filter(|pair| pair[0] > 0.0 && pair[1] > 0.0);
    let steps: Vec<f64> = usable.map(|pair| (pair[1] / pair[0]).ln().abs()).collect();
    median(&steps).exp_m1()
}

/// The part of a series that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SteadyPart {
    /// Values before this one are discarded.
    pub from: usize,
    /// False when the series was still moving at its end.
    pub steady: bool,
}

/// How far a line fitted through the steady part may rise or fall over its length, of its mean.
const DRIFT: f64 = 0.10;

/// The longest end of a series that does not drift. At least a third of the series is kept, drifting
/// or not, since there must be something to report.
pub fn steady_part(values: &[f64]) -> SteadyPart {
    let latest = values.len() - values.len().div_ceil(3).max(values.len().min(3));
    let found = (0..=latest).find(|&from| drift(&values[from..]).abs() <= DRIFT);
    SteadyPart { from: found.unwrap_or(latest), steady: found.is_some() && values.len() >= 3 }
}

/// Rise of the least-squares line over the series, as a share of its mean.
fn drift(values: &[f64]) -> f64 {
    let (count, middle) = (values.len() as f64, mean(values));
    if values.len() < 2 || middle <= 0.0 {
        return 0.0;
    }
    let center = (count - 1.0) / 2.0;
    let (mut product, mut square) = (0.0, 0.0);
    for (index, value) in values.iter().enumerate() {
        let x = index as f64 - center;
        product += x * (value - middle);
        square += x * x;
    }
    product / square * (count - 1.0) / middle
}

/// The part of the best throughput that counts as reached at the knee.
const KNEE: f64 = 0.95;

/// Index of the first point that reaches nearly the best throughput: more clients than at that point
/// add waiting, not work.
pub fn knee(throughput: &[f64]) -> Option<usize> {
    let best = throughput.iter().copied().fold(0.0, f64::max);
    throughput.iter().position(|&value| best > 0.0 && value >= KNEE * best)
}

/// A step must beat the best before it by this to count as growth.
const GROWTH: f64 = 1.02;
/// This many steps without growth end the search.
const PATIENCE: usize = 3;

/// True once the last steps did not grow.
pub fn stopped_growing(throughput: &[f64]) -> bool {
    let Some(split) = throughput.len().checked_sub(PATIENCE).filter(|split| *split > 0) else {
        return false;
    };
    let best = throughput[..split].iter().copied().fold(0.0, f64::max);
    throughput[split..].iter().all(|&value| value < best * GROWTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_and_middle_of_known_values() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!((mean(&values), deviation(&values), variation(&values)), (5.0, 2.0, 0.4));
        assert_eq!((median(&values), minimum_over_mean(&values)), (4.5, 0.4));
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!((variation(&[]), variation(&[0.0, 0.0]), median(&[])), (0.0, 0.0, 0.0));
    }

    /// Confidences from the binomial table: 5 values 93.75 %, 9 values without their ends 96.1 %.
    #[test]
    fn the_interval_narrows_as_values_are_added() {
        let upto = |n: u32| median_interval(&(1..=n).map(f64::from).collect::<Vec<_>>());
        assert_eq!(upto(4), None);
        assert_eq!(upto(5), Some(Interval { low: 1.0, high: 5.0, confidence: 0.9375 }));
        let nine = upto(9).unwrap();
        assert_eq!((nine.low, nine.high), (2.0, 8.0));
        assert!((nine.confidence - 0.9609).abs() < 1e-4);
        let forty = upto(40).unwrap();
        assert!(forty.low > 13.0 && forty.high < 28.0, "{forty:?}");
    }

    #[test]
    fn own_noise_is_the_typical_step_up_or_down() {
        assert!((own_noise(&[10.0, 11.0, 10.0, 11.0]) - 0.1).abs() < 1e-9);
        assert!((own_noise(&[10.0, 11.0, 40.0, 44.0, 40.0]) - 0.1).abs() < 1e-9);
        assert_eq!(
            (own_noise(&[5.0; 4]), own_noise(&[5.0]), own_noise(&[0.0, 1.0])),
            (0.0, 0.0, 0.0)
        );
    }

    /// Over many draws the interval encloses the true median as often as it claims to.
    #[test]
    fn the_interval_keeps_its_promise() {
        let mut rng = crate::rng::Rng::new(5);
        for size in [5, 9, 20] {
            let enclosed = (0..2000)
                .filter(|_| {
                    let draw: Vec<f64> = (0..size).map(|_| rng.unit().powi(3)).collect();
                    let interval = median_interval(&draw).unwrap();
                    (interval.low..=interval.high).contains(&0.125)
                })
                .count();
            assert!(enclosed > 1820, "{size}: {enclosed} of 2000");
        }
    }

    #[test]
    fn the_steady_part_begins_after_the_drop() {
        let mut series: Vec<f64> = (0..20).map(|i| 1000.0 - 40.0 * f64::from(i)).collect();
        series.extend((0..60).map(|i| 200.0 + f64::from(i % 2)));
        let part = steady_part(&series);
        assert!(part.steady && (15..=24).contains(&part.from), "{part:?}");
        assert_eq!(steady_part(&[5.0; 30]), SteadyPart { from: 0, steady: true });
    }

    #[test]
    fn a_series_that_keeps_falling_is_not_called_steady() {
        let series: Vec<f64> = (0..60).map(|i| 1000.0 - 15.0 * f64::from(i)).collect();
        assert_eq!(steady_part(&series), SteadyPart { from: 40, steady: false });
        assert_eq!(steady_part(&[1.0]), SteadyPart { from: 0, steady: false });
        assert_eq!(steady_part(&[]), SteadyPart { from: 0, steady: false });
    }

    #[test]
    fn the_knee_is_the_first_point_near_the_best() {
        assert_eq!(knee(&[10.0, 20.0, 30.0, 38.0, 39.0, 40.0, 37.0]), Some(3));
        assert_eq!(knee(&[10.0]), Some(0));
        assert_eq!((knee(&[]), knee(&[0.0])), (None, None));
    }

    #[test]
    fn growth_has_stopped_after_three_steps_without_it() {
        assert!(!stopped_growing(&[10.0, 20.0, 30.0]));
        assert!(!stopped_growing(&[10.0, 10.0, 10.0, 11.0]));
        assert!(stopped_growing(&[10.0, 40.0, 40.1, 39.0, 40.2]));
        assert!(!stopped_growing(&[40.0, 40.1, 40.2]));
    }
}
