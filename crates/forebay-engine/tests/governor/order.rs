//! The order of flushing, on a disk that seeks: the savings by a batch's order, by neighbors and by
//! settling, and that no byte is left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_engine::governor::pick::{Hot, Kind, Piece, Rule, pick};

use crate::rng::Rng;

const PAGE: u64 = 16 << 10;
const PAGES: u64 = 20_000;
const MAX_AGE: f64 = 30.0;

/// Dirty pages of one file: (first dirtied, last written).
type Dirty = BTreeMap<u64, (f64, f64)>;

/// Returns the seconds to write these runs: a seek that grows with the distance, and 100 MB/s.
fn cost(runs: &[(u64, u64)]) -> f64 {
    let mut head = 0;
    runs.iter()
        .map(|&(start, end)| {
            let far = start.abs_diff(head) as f64 / (PAGES * PAGE) as f64;
            head = end;
            let seek = if far == 0.0 { 0.0 } else { 0.001 + 0.009 * far.sqrt() };
            seek + (end - start) as f64 / 100e6
        })
        .sum()
}

fn pieces(dirty: &Dirty, now: f64) -> Vec<Piece> {
    let secs = |t: f64| Duration::from_secs_f64(t.max(0.0));
    dirty
        .iter()
        .map(|(page, (first, last))| Piece {
            file: 1,
            start: page * PAGE,
            end: (page + 1) * PAGE,
            bytes: PAGE,
            age: secs(now - first),
            untouched: secs(now - last),
            kind: Kind::Random,
        })
        .collect()
}

/// Picks a page, mostly from a tenth of them.
fn skewed(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => rng.below(PAGES),
        _ => rng.below(PAGES / 10) * 10,
    }
}

/// Writes 200 pages per second for `secs` and flushes those that `choose` picks; returns the number
/// of pages flushed, the seconds that took, and the age of the oldest page ever.
fn run(secs: u32, mut choose: impl FnMut(&[Piece]) -> Vec<(u64, u64)>) -> (u64, f64, f64) {
    let (mut rng, mut dirty) = (Rng::new(7).fork(), Dirty::new());
    let (mut pages, mut took, mut oldest) = (0, 0.0, 0.0f64);
    for second in 0..secs {
        let now = f64::from(second);
        for n in 0..200 {
            let now = now - 1.0 + f64::from(n) / 200.0;
            let page = skewed(&mut rng);
            dirty.entry(page).and_modify(|times| times.1 = now).or_insert((now, now));
        }
        let runs = choose(&pieces(&dirty, now));
        took += cost(&runs);
        for (start, end) in runs {
            for page in start / PAGE..end / PAGE {
                oldest = oldest.max(now - dirty.remove(&page).expect("only what is dirty").0);
                pages += 1;
            }
        }
        oldest = dirty.values().map(|(first, _)| now - first).fold(oldest, f64::max);
    }
    (pages, took, oldest)
}

fn rule(budget_pages: u64) -> Rule {
    Rule {
        budget: budget_pages * PAGE,
        from_age: Duration::from_secs_f64(MAX_AGE * 0.75),
        settle: Duration::from_secs(5),
        no_wait_age: Duration::from_secs_f64(MAX_AGE * 0.875),
        hot: Hot::Stay,
    }
}

fn runs(picked: Vec<Piece>) -> Vec<(u64, u64)> {
    picked.iter().map(|piece| (piece.start, piece.end)).collect()
}

#[test]
fn sorting_and_neighbors_save_seeks() {
    let sorted = run(200, |pieces| runs(pick(pieces, &rule(200))));
    let by_age = run(200, |pieces| {
        let mut due: Vec<&Piece> =
            pieces.iter().filter(|p| p.age.as_secs_f64() >= MAX_AGE * 0.75).collect();
        due.sort_by_key(|piece| std::cmp::Reverse(piece.age));
        due.iter().take(200).map(|piece| (piece.start, piece.end)).collect()
    });
    let (per_page, unsorted) = (sorted.1 / sorted.0 as f64, by_age.1 / by_age.0 as f64);
    assert!(per_page < unsorted * 0.6, "{per_page} {unsorted}");
    assert!(sorted.2 <= MAX_AGE + 1.0, "nothing is left behind: {} s", sorted.2);
}

#[test]
fn a_hot_set_rewritten_ten_times_within_max_age_is_flushed_less_than_one_and_a_half_times() {
    const HOT: u64 = 500;
    let mut dirty = Dirty::new();
    let (mut written, mut flushed) = (0u64, 0u64);
    for tick in 0..900 {
        let now = f64::from(tick) / 10.0;
        // Every page every three seconds, spread evenly.
        for page in (0..HOT).filter(|page| page % 30 == (tick % 30) as u64) {
            dirty.entry(page * 7).and_modify(|times| times.1 = now).or_insert((now, now));
            written += 1;
        }
        for piece in pick(&pieces(&dirty, now), &rule(HOT)) {
            for page in piece.start / PAGE..piece.end / PAGE {
                dirty.remove(&page).expect("only what is dirty");
                flushed += 1;
            }
        }
    }
    let per_max_age = flushed as f64 / HOT as f64 / (90.0 / MAX_AGE);
    assert!(written / flushed.max(1) >= 6, "{written} written, {flushed} flushed");
    assert!(per_max_age <= 1.5, "{per_max_age}");
}
