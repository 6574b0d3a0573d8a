//! The presets side by side, on one disk and under the same loads; run with `--nocapture` to see
//! the table. The governor must be the steadiest without letting less in.

use forebay_engine::Tunables;
use forebay_engine::governor::law::Preset;

use crate::checks::{by_seconds, percentile, variation};
use crate::disk::Disk;
use crate::load::{Load, Shape};
use crate::world::{Tick, World};

struct Row {
    preset: Preset,
    accepted_mb: f64,
    worst_second: f64,
    variation: f64,
    latency_p99_ms: f64,
    drain_variation: f64,
    oldest: f64,
    drained_mb: f64,
}

fn row(preset: Preset, load: Load) -> Row {
    let tunables = Tunables { preset, ..Tunables::default() };
    let ticks = World::new(Disk::plain(), load, 4e9, tunables).run(600.0);
    let late: &[Tick] = &ticks[ticks.len() / 4..];
    // The share of their wanted bytes that programs could write.
    let got = by_seconds(late, 1.0, |t| if t.wanted > 0.0 { t.accepted / t.wanted } else { 1.0 });
    Row {
        preset,
        accepted_mb: by_seconds(late, 450.0, |t| t.accepted)[0] / 1e6,
        worst_second: got.iter().copied().fold(1.0, f64::min),
        variation: variation(&got),
        latency_p99_ms: percentile(late.iter().map(|t| t.latency).collect(), 99.0) * 1e3,
        drain_variation: variation(&by_seconds(late, 5.0, |t| t.copied)),
        oldest: late.iter().map(|t| t.oldest).fold(0.0, f64::max),
        drained_mb: by_seconds(late, 450.0, |t| t.copied)[0] / 1e6,
    }
}

fn table(title: &str, load: Load) -> Vec<Row> {
    let rows: Vec<Row> = Preset::ALL.into_iter().map(|preset| row(preset, load)).collect();
    println!("\n{title}");
    println!("preset     accepted  worst s  CV      read p99  drain CV  oldest  drained");
    for r in &rows {
        println!(
            "{:<10} {:>5.1} MB/s  {:>5.2}  {:>5.3}  {:>5.0} ms  {:>7.2}  {:>5.0} s  {:>5.1} MB/s",
            r.preset.name(),
            r.accepted_mb,
            r.worst_second,
            r.variation,
            r.latency_p99_ms,
            r.drain_variation,
            r.oldest,
            r.drained_mb,
        );
    }
    rows
}

fn load(shape: Shape, rate: f64, hot_bytes: f64) -> Load {
    Load { shape, rate, writers: 8, hot_bytes, reads: 20.0 }
}

fn governor_leads(rows: &[Row]) {
    let (governor, others) = rows.split_first().expect("five of them");
    for other in others {
        let name = other.preset.name();
        assert!(governor.accepted_mb >= other.accepted_mb * 0.98, "{name} lets more in");
        assert!(governor.variation <= other.variation + 0.01, "{name} is steadier");
        assert!(governor.worst_second >= other.worst_second - 0.02, "{name} has no worse second");
    }
}

#[test]
fn the_governor_is_the_steadiest_and_lets_most_in() {
    let steady = table("Steady, 70 % of the store", load(Shape::Steady, 70e6, 0.0));
    let bursts = Shape::Bursts { period: 60.0, on: 0.2 };
    let bursts = table("Bursts of 300 MB/s, 60 % in the mean", load(bursts, 60e6, 0.0));
    let hot = table("Overwriting 1 GB at 120 MB/s", load(Shape::Steady, 120e6, 1e9));
    let over = table("140 % of the store", load(Shape::Steady, 140e6, 0.0));
    for rows in [&steady, &bursts, &hot, &over] {
        governor_leads(rows);
    }
    assert!(steady[0].latency_p99_ms < steady[1].latency_p99_ms * 0.75, "reads wait less");
    assert!(steady[0].drain_variation < 0.15, "and the store works evenly");
    assert!(steady[1].drain_variation > 0.5, "which a threshold does not");
}
