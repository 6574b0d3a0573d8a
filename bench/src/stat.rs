//! Medians and ratios.

use serde::Serialize;

/// Minimum, median and maximum of the rounds of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub min: f64,
    pub median: f64,
    pub max: f64,
    pub rounds: usize,
}

impl Summary {
    /// # Panics
    ///
    /// If there is no value: a measurement without rounds is a mistake in its case.
    pub fn of(values: &[f64]) -> Summary {
        assert!(!values.is_empty(), "a summary needs at least one round");
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Summary { min: sorted[0], median, max: sorted[sorted.len() - 1], rounds: sorted.len() }
    }
}

/// The results of every contestant in every round.
pub struct Samples {
    values: Vec<Vec<f64>>,
}

impl Samples {
    pub fn new(contestants: usize) -> Samples {
        Samples { values: vec![Vec::new(); contestants] }
    }

    pub fn add(&mut self, contestant: usize, value: f64) {
        self.values[contestant].push(value);
    }

    /// The samples of some contestants, in this order.
    pub fn only(&self, contestants: &[usize]) -> Samples {
        let values = contestants.iter().map(|contestant| self.values[*contestant].clone());
        Samples { values: values.collect() }
    }

    pub fn summary(&self, contestant: usize) -> Summary {
        Summary::of(&self.values[contestant])
    }

    /// The ratio of two contestants, formed within each round, so that slow drift cancels.
    pub fn ratio(&self, above: usize, below: usize) -> Summary {
        let pairs = self.values[above].iter().zip(&self.values[below]);
        Summary::of(&pairs.map(|(a, b)| a / b).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!(summary, Summary { min: 1.0, median: 2.5, max: 4.0, rounds: 4 });
    }

    #[test]
    fn ratios_are_formed_per_round() {
        let mut samples = Samples::new(2);
        for (a, b) in [(1.0, 1.0), (10.0, 20.0), (3.0, 1.0)] {
            samples.add(0, a);
            samples.add(1, b);
        }
        assert_eq!(samples.ratio(0, 1).median, 1.0);
        assert_eq!(samples.ratio(0, 1).max, 3.0);
    }
}
