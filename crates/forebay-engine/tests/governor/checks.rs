//! The conditions that every run must meet. Each check returns its findings, so that other tests
//! can see it fail.

use std::time::Duration;

use crate::world::{DT, Tick};

pub type Found = Result<(), String>;

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut n) = (0.0, 0.0);
    for value in values {
        sum += value;
        n += 1.0;
    }
    if n > 0.0 { sum / n } else { 0.0 }
}

/// Returns means over `secs` seconds each.
pub fn by_seconds(ticks: &[Tick], secs: f64, get: impl Fn(&Tick) -> f64) -> Vec<f64> {
    ticks.chunks_exact((secs / DT) as usize).map(|part| mean(part.iter().map(&get))).collect()
}

/// Returns the coefficient of variation.
pub fn variation(values: &[f64]) -> f64 {
    let m = mean(values.iter().copied());
    if m <= 0.0 {
        return 0.0;
    }
    mean(values.iter().map(|v| (v - m).powi(2))).sqrt() / m
}

/// Under a constant load, the drain and the level come to rest.
pub fn comes_to_rest(ticks: &[Tick], tier: f64) -> Found {
    let late = &ticks[ticks.len() * 2 / 3..];
    let drain = by_seconds(late, 10.0, |tick| tick.copied);
    let swing = variation(&drain);
    // A brake that searches for its target goes up and down.
    let braked = late.iter().any(|tick| tick.decision.depth < 16);
    if swing > if braked { 0.20 } else { 0.10 } {
        return Err(format!("the drain swings by {:.0} %", swing * 100.0));
    }
    let (low, high) = late
        .iter()
        .fold((f64::MAX, 0.0f64), |(low, high), tick| (low.min(tick.dirty), high.max(tick.dirty)));
    match high - low > tier * 0.15 {
        true => Err(format!("the level swings by {:.0} %", (high - low) / tier * 100.0)),
        false => Ok(()),
    }
}

/// No byte gets older than `max_age`, apart from half a second and three percent, where a drain
/// that never rests would stay well below.
pub fn keeps_max_age(ticks: &[Tick], max_age: Duration) -> Found {
    let max_age = max_age.as_secs_f64();
    let eager = ticks.iter().map(|tick| tick.oldest_eager).fold(0.0, f64::max);
    if eager > max_age * 0.5 {
        return Ok(());
    }
    match ticks.iter().find(|tick| tick.oldest > max_age * 1.03 + 0.5) {
        Some(late) => Err(format!("{:.1} s old at {:.1} s", late.oldest, late.t)),
        None => Ok(()),
    }
}

/// Old bytes are flushed even where their deadline cannot be kept: once writers are slowed down or
/// stop, the oldest byte gets younger.
pub fn starves_nothing(ticks: &[Tick], tier: f64, slowest: f64, max_age: Duration) -> Found {
    // The longest wait is for a tier full of bytes in front, and the byte's own age.
    let most = max_age.as_secs_f64() + tier / slowest * 1.2 + 10.0;
    match ticks.iter().find(|tick| tick.oldest > most) {
        Some(late) => Err(format!("{:.0} s old, {most:.0} s at most", late.oldest)),
        None => Ok(()),
    }
}

/// After trouble the drain does not go on as if the trouble lasted: nothing is flushed by level
/// below the low mark, and the integral stays within the store's abilities.
pub fn winds_not_up(ticks: &[Tick], low: f64, service: f64) -> Found {
    use forebay_engine::governor::Term;
    if let Some(wound) =
        ticks.iter().find(|tick| tick.integral > service.max(tick.decision.outlook.service_rate))
    {
        return Err(format!("an integral of {:.1} of the service rate", wound.integral / service));
    }
    match ticks.iter().find(|tick| tick.dirty < low * 0.9 && tick.decision.term == Term::Level) {
        Some(below) => Err(format!("flushed by level at {:.2} of the low mark", below.dirty / low)),
        None => Ok(()),
    }
}

/// Writers come down to the drain's speed without a step and without falling below it.
pub fn settles_without_a_step(ticks: &[Tick]) -> Found {
    let Some(slowed) = ticks.iter().position(|tick| tick.accepted < tick.wanted * 0.99) else {
        return Err("never slowed down".into());
    };
    let offered = ticks[slowed].wanted;
    for pair in ticks[slowed.saturating_sub(1)..].windows(2) {
        let step = pair[0].accepted - pair[1].accepted;
        if step > offered * 0.15 {
            return Err(format!("a step of {:.0} % at {:.1} s", step / offered * 100.0, pair[1].t));
        }
    }
    let late = &ticks[(ticks.len() + slowed) / 2..];
    let (accepted, drained) =
        (mean(late.iter().map(|t| t.accepted)), mean(late.iter().map(|t| t.copied)));
    if (accepted / drained - 1.0).abs() > 0.05 {
        return Err(format!("accepts {:.2} of what is drained", accepted / drained));
    }
    let seconds = by_seconds(late, 1.0, |tick| tick.accepted);
    match seconds.iter().find(|second| **second < drained * 0.5) {
        Some(second) => Err(format!("a second at {:.2} of the drain's rate", second / drained)),
        None => Ok(()),
    }
}

/// Returns the value that `percent` percent of the values do not exceed.
pub fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * percent / 100.0) as usize]
}
