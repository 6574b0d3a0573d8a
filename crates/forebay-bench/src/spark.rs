//! Sparklines: a series as a row of block characters, for the terminal.

/// Eighths of a character cell, from one to eight.
const LEVELS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];

/// Draws `values` from zero to their maximum, at most `width` characters; longer series are
/// averaged. Zero is the floor, so that a flat series looks flat; a missing value is a blank.
pub fn spark(values: &[f64], width: usize) -> String {
    let cells = averaged(values, width);
    let top = cells.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    cells.iter().map(|&value| level(value, top)).collect()
}

fn level(value: f64, top: f64) -> char {
    if !value.is_finite() {
        return ' ';
    }
    if top <= 0.0 {
        return LEVELS[0];
    }
    let step = (value / top * LEVELS.len() as f64).ceil() as usize;
    LEVELS[step.clamp(1, LEVELS.len()) - 1]
}

/// Means of `width` runs that differ in length by one at most.
fn averaged(values: &[f64], width: usize) -> Vec<f64> {
    if values.len() <= width {
        return values.to_vec();
    }
    (0..width)
        .map(|cell| {
            let run = &values[cell * values.len() / width..(cell + 1) * values.len() / width];
            run.iter().sum::<f64>() / run.len() as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_in_proportion_from_zero() {
        let drawn: Vec<char> = spark(&[0.0, 1.0, 4.0, 8.0, f64::NAN], 9).chars().collect();
        assert_eq!(drawn, [LEVELS[0], LEVELS[0], LEVELS[3], LEVELS[7], ' ']);
        assert_eq!(spark(&[5.0; 3], 9).chars().collect::<Vec<_>>(), [LEVELS[7]; 3]);
        assert_eq!(spark(&[0.0, 0.0], 9).chars().collect::<Vec<_>>(), [LEVELS[0]; 2]);
    }

    #[test]
    fn a_long_series_is_averaged_into_the_width() {
        let values: Vec<f64> = (0..1000).map(|i| if i < 500 { 1.0 } else { 8.0 }).collect();
        let drawn: Vec<char> = spark(&values, 10).chars().collect();
        assert_eq!(drawn.len(), 10);
        assert!(drawn[..5].iter().all(|c| *c == LEVELS[0]));
        assert!(drawn[5..].iter().all(|c| *c == LEVELS[7]));
        assert!(spark(&[], 10).is_empty());
    }
}
