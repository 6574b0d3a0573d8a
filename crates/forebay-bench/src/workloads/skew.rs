//! The choice of the next block (uniform, Zipf or Pareto) and of its time (Poisson).
//!
//! Invariants:
//! - K1: a pick is below the number of blocks.
//! - K2: the hot blocks of a skew are spread over the file, not at its beginning, so that locality
//!   does not help; the spreading is a permutation.

use crate::rng::Rng;
use crate::{Error, Result};

/// The inequality of the blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Skew {
    Uniform,
    /// The block of rank `k` is picked in proportion to `k^-theta`.
    Zipf(f64),
    /// A share `h` of the blocks gets a share `1 - h` of the picks, and so on within it.
    Pareto(f64),
}

impl Skew {
    /// Reads `uniform`, `zipf`, `zipf:1.2`, `pareto`, `pareto:0.1`.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, number) = text.split_once(':').unwrap_or((text, ""));
        let value = |default: f64| match number {
            "" => Some(default),
            number => number.parse::<f64>().ok(),
        };
        let wrong = || {
            Error::usage(format!(
                "--skew {text}: use uniform, zipf:T with 0 < T <= 5, or pareto:H with 0 < H < 0.5"
            ))
        };
        match (name, value(if name == "zipf" { 1.1 } else { 0.2 })) {
            ("uniform", _) if number.is_empty() => Ok(Skew::Uniform),
            ("zipf", Some(theta)) if theta > 0.0 && theta <= 5.0 => Ok(Skew::Zipf(theta)),
            ("pareto", Some(h)) if h > 0.0 && h < 0.5 => Ok(Skew::Pareto(h)),
            _ => Err(wrong()),
        }
    }
}

/// Picks blocks of a file.
#[derive(Debug, Clone)]
pub struct Picker {
    blocks: u64,
    shape: Shape,
    /// Coprime to `blocks`, so that multiplying permutes them (K2).
    stride: u64,
}

#[derive(Debug, Clone)]
enum Shape {
    Uniform,
    Zipf(Zipf),
    /// The exponent that turns an even number into the skewed one.
    Pareto(f64),
}

impl Picker {
    /// # Panics
    ///
    /// If there are no blocks.
    pub fn new(skew: Skew, blocks: u64) -> Self {
        assert!(blocks > 0, "K1: a file of no blocks has none to pick");
        let shape = match skew {
            Skew::Uniform => Shape::Uniform,
            Skew::Zipf(theta) => Shape::Zipf(Zipf::new(theta, blocks)),
            Skew::Pareto(h) => Shape::Pareto(h.ln() / (1.0 - h).ln()),
        };
        Self { blocks, shape, stride: coprime(blocks) }
    }

    /// Picks a block (K1).
    #[inline]
    pub fn pick(&self, rng: &mut Rng) -> u64 {
        match &self.shape {
            Shape::Uniform => rng.below(self.blocks),
            _ => self.spread(self.rank(rng)),
        }
    }

    /// The rank of a picked block; 0 is the hottest.
    fn rank(&self, rng: &mut Rng) -> u64 {
        match &self.shape {
            Shape::Uniform => rng.below(self.blocks),
            Shape::Zipf(zipf) => zipf.rank(rng),
            Shape::Pareto(exponent) => {
                let share = rng.unit().powf(*exponent);
                ((share * self.blocks as f64) as u64).min(self.blocks - 1)
            }
        }
    }

    fn spread(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.stride) % u128::from(self.blocks)) as u64
    }
}

/// About 0.618 of `n`, whose multiples lie far apart, and without a common divisor.
fn coprime(n: u64) -> u64 {
    let start = (n as f64 * 0.618_033_988_75) as u64;
    (start.max(1)..).find(|&stride| divisor(stride, n) == 1).expect("n * k + 1 is coprime to n")
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Zipf by rejection-inversion (Hoermann and Derflinger): a pick costs the same for any number of
/// ranks, and no table is needed.
#[derive(Debug, Clone)]
struct Zipf {
    theta: f64,
    ranks: f64,
    /// The integral of the hat at its two ends.
    first: f64,
    last: f64,
}

impl Zipf {
    fn new(theta: f64, ranks: u64) -> Self {
        let mut zipf = Self { theta, ranks: ranks as f64, first: 0.0, last: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.ranks + 0.5);
        zipf
    }

    /// Antiderivative of `x^-theta`, in a form that has no hole at `theta == 1`.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let part = (1.0 - self.theta) * log;
        let growth = if part.abs() > 1e-8 { part.exp_m1() / part } else { 1.0 + part / 2.0 };
        growth * log
    }

    fn inverse(&self, area: f64) -> f64 {
        let part = (area * (1.0 - self.theta)).max(-1.0);
        let growth = if part.abs() > 1e-8 { part.ln_1p() / part } else { 1.0 - part / 2.0 };
        (growth * area).exp()
    }

    fn rank(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.last + rng.unit() * (self.first - self.last);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.ranks);
            // Below the curve of the ranks' own weights: taken.
            if area >= self.integral(rank + 0.5) - rank.powf(-self.theta) {
                return rank as u64 - 1;
            }
        }
    }
}

/// Independent arrivals: gaps are exponential.
#[derive(Debug, Clone)]
pub struct Arrivals {
    mean_ns: f64,
    next_ns: f64,
}

impl Arrivals {
    pub fn new(per_second: f64) -> Self {
        Self { mean_ns: 1e9 / per_second, next_ns: 0.0 }
    }

    /// Nanoseconds from the beginning to the next arrival.
    #[inline]
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        // 1 - unit is never zero.
        self.next_ns += -(1.0 - rng.unit()).ln() * self.mean_ns;
        self.next_ns as u64
    }

    /// The expected number of arrivals in so many nanoseconds.
    pub fn expected(&self, nanos: u64) -> u64 {
        (nanos as f64 / self.mean_ns) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(skew: Skew, blocks: u64, picks: u64) -> Vec<u64> {
        let (picker, mut rng) = (Picker::new(skew, blocks), Rng::new(3));
        let mut counts = vec![0; blocks as usize];
        (0..picks).for_each(|_| counts[picker.pick(&mut rng) as usize] += 1);
        counts
    }

    fn hottest(mut counts: Vec<u64>, share: f64) -> f64 {
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let total: u64 = counts.iter().sum();
        let hot = (counts.len() as f64 * share).round() as usize;
        counts[..hot].iter().sum::<u64>() as f64 / total as f64
    }

    #[test]
    fn uniform_picks_every_block_alike() {
        let counts = counts(Skew::Uniform, 100, 100_000);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    /// Against the weights of the definition, for exponents below, at and above 1.
    #[test]
    fn zipf_ranks_have_the_defined_frequencies() {
        for theta in [0.5, 1.0, 1.2, 2.0] {
            let (ranks, picks) = (50u64, 200_000);
            let (zipf, mut rng) = (Zipf::new(theta, ranks), Rng::new(9));
            let mut counts = vec![0u64; ranks as usize];
            (0..picks).for_each(|_| counts[zipf.rank(&mut rng) as usize] += 1);
            let total: f64 = (1..=ranks).map(|k| (k as f64).powf(-theta)).sum();
            for (index, count) in counts.iter().enumerate() {
                let expected = ((index + 1) as f64).powf(-theta) / total * f64::from(picks);
                let far = (*count as f64 - expected).abs();
                assert!(far < 5.0 * expected.sqrt() + 3.0, "{theta} {index}: {count} {expected}");
            }
        }
    }

    #[test]
    fn pareto_gives_the_hot_share_what_it_promises() {
        for h in [0.1, 0.2, 0.4] {
            let share = hottest(counts(Skew::Pareto(h), 1000, 200_000), h);
            assert!((share - (1.0 - h)).abs() < 0.02, "{h}: {share}");
        }
    }

    /// K2 for awkward numbers of blocks, and no clump of hot blocks.
    #[test]
    fn spreading_is_a_permutation_that_separates_the_hot_blocks() {
        for blocks in [1, 2, 3, 4, 12, 100, 1021, 4096] {
            let picker = Picker::new(Skew::Pareto(0.2), blocks);
            let mut seen: Vec<u64> = (0..blocks).map(|rank| picker.spread(rank)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..blocks).collect::<Vec<_>>(), "{blocks}");
        }
        let picker = Picker::new(Skew::Zipf(1.1), 1 << 20);
        assert!(picker.spread(1).abs_diff(picker.spread(0)) > 1 << 17);
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let (mut arrivals, mut rng) = (Arrivals::new(1000.0), Rng::new(4));
        let times: Vec<u64> = (0..100_000).map(|_| arrivals.next(&mut rng)).collect();
        let seconds = *times.last().unwrap() as f64 / 1e9;
        assert!((seconds - 100.0).abs() < 1.5, "{seconds}");
        assert!(times.is_sorted());
        let mut each_second = vec![0.0f64; 90];
        for time in &times {
            if let Some(count) = each_second.get_mut((time / 1_000_000_000) as usize) {
                *count += 1.0;
            }
        }
        // The variance of a Poisson count is its mean.
        let ratio = crate::stats::deviation(&each_second).powi(2) / 1000.0;
        assert!((0.6..1.5).contains(&ratio), "{ratio}");
    }

    #[test]
    fn skews_are_read_and_nonsense_is_refused() {
        assert_eq!(Skew::parse("zipf:1.2").unwrap(), Skew::Zipf(1.2));
        assert_eq!(Skew::parse("pareto").unwrap(), Skew::Pareto(0.2));
        assert_eq!(Skew::parse("uniform").unwrap(), Skew::Uniform);
        for text in ["zip", "zipf:0", "zipf:x", "pareto:0.5", "uniform:2", "zipf:NaN", ""] {
            let error = Skew::parse(text).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("--skew"), "{text}");
        }
    }
}
