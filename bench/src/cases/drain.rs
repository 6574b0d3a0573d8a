//! Flushing to a throttled store: its speed, and its effect on readers of cached files.
//!
//! The bound of a drain is the store's bandwidth, whatever its latency.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::load::{self, Caching, Finish, MIB, Random, Verb};
use crate::mounts::Forebay;
use crate::report::{Finding, Report, Target};
use crate::run::{On, Run, Subject};
use crate::stat::Samples;

const BANDWIDTH: f64 = 100e6;
const LATENCY: Duration = Duration::from_millis(5);
/// Enough that creating through a store with latency does not take for ever.
const WRITERS: usize = 16;

#[derive(Clone, Copy)]
struct Small {
    count: usize,
    size: usize,
    latency: Duration,
}

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    big_file(run, report)?;
    let count = run.pick(10_000, 2_000);
    for latency in [Duration::ZERO, LATENCY] {
        small_files(run, report, Small { count, size: 64 << 10, latency })?;
    }
    Ok(())
}

/// A mount that flushes only when asked, over a fresh tier and a fresh store, both on tmpfs.
fn mount(run: &Run, latency: Duration) -> Result<Forebay> {
    let throttle = format!("100MB,{}ms", latency.as_millis());
    let options = ["--throttle", &throttle, "--preset", "hold", "--passthrough", "always"];
    let mut forebay = run.forebay_parts(On::Tmpfs, On::Tmpfs, &options)?;
    forebay.mount()?;
    Ok(forebay)
}

fn big_file(run: &Run, report: &mut Report) -> Result<()> {
    let len = run.pick(512, 256) * MIB;
    let mut rates = Vec::new();
    for _ in 0..run.few_rounds() {
        let forebay = mount(run, LATENCY)?;
        let path = forebay.mountpoint.join("big");
        load::write_seq(&path, len, Caching::Buffered, Finish::Close)?;
        rates.push(load::mb_per_sec(len, forebay.flush()?));
        ensure!(load::same_bytes(&path, &forebay.backing.join("big"))?, "the bytes differ");
    }
    let state = format!("one file of {} MiB, store 100MB,5ms, flush --wait", len / MIB);
    let finding = Finding::alone("drain/big-file", &state, "MB/s", "forebay", &rates);
    report.add(finding.against("store", BANDWIDTH / 1e6, Some(Target::AtLeast(0.9))))
}

fn small_files(run: &Run, report: &mut Report, small: Small) -> Result<()> {
    let bytes = (small.count * small.size) as u64;
    let mut rates = Vec::new();
    for _ in 0..run.few_rounds() {
        let forebay = mount(run, small.latency)?;
        load::write_small(&forebay.mountpoint, small.count, small.size, WRITERS)?;
        rates.push(load::mb_per_sec(bytes, forebay.flush()?));
        check_small(&forebay.backing, small)?;
    }
    let latency = small.latency.as_millis();
    let case = if latency == 0 { "drain/small-files" } else { "drain/small-files-latency" };
    let state = format!(
        "{} files of {} KiB, store 100MB,{latency}ms, flush --wait",
        small.count,
        small.size >> 10
    );
    let finding = Finding::alone(case, &state, "MB/s", "forebay", &rates);
    report.add(finding.against("store", BANDWIDTH / 1e6, Some(Target::AtLeast(0.9))))
}

/// Checks that the drain left no file behind: such a drain would only seem fast.
fn check_small(backing: &Path, small: Small) -> Result<()> {
    let mut full = 0;
    for entry in fs::read_dir(backing)? {
        full += usize::from(entry?.metadata()?.len() == small.size as u64);
    }
    ensure!(full == small.count, "the store holds {full} of {} files", small.count);
    Ok(())
}

pub fn foreground(run: &Run, report: &mut Report) -> Result<()> {
    debug_assert!(run.subject == Subject::Forebay);
    let (cached, dirty) = (256 * MIB, run.pick(512, 256) * MIB);
    let forebay = mount(run, LATENCY)?;
    let path = forebay.mountpoint.join("cached");
    load::write_seq(&path, cached, Caching::Buffered, Finish::Close)?;
    forebay.flush()?;
    let file = load::open(&path, Caching::Buffered)?;
    let time = Duration::from_millis(run.pick(1500, 800));
    let random = |seed| {
        load::random(
            std::slice::from_ref(&file),
            cached,
            Random { verb: Verb::Read, threads: 1, time, seed },
        )
    };
    let (mut randoms, mut seqs) = (Samples::new(2), Samples::new(2));
    for round in 0..=run.few_rounds() as u64 {
        let idle = [random(round)?, seq_rate(&path, cached)?];
        // Bytes that the store has already would not be sent there.
        let big = forebay.mountpoint.join(format!("dirty-{round}"));
        load::write_seq(&big, dirty, Caching::Buffered, Finish::Close)?;
        let draining = std::thread::scope(|scope| {
            let drain = scope.spawn(|| forebay.flush());
            std::thread::sleep(Duration::from_millis(300));
            let rates = random(round).and_then(|rate| Ok([rate, seq_rate(&path, cached)?]));
            let still = !drain.is_finished();
            drain.join().expect("the drain thread panicked")?;
            ensure!(still, "the drain ended before the reads did");
            rates
        })?;
        fs::remove_file(&big)?;
        // Round 0 warms up.
        if round > 0 {
            for (samples, metric) in [(&mut randoms, 0), (&mut seqs, 1)] {
                samples.add(0, draining[metric]);
                samples.add(1, idle[metric]);
            }
        }
    }
    let names = ["draining".to_owned(), "idle".to_owned()];
    let state = "cached file, warm, while flush --wait runs at 100 MB/s";
    for (case, unit, samples) in
        [("foreground/random-read-1t", "op/s", &randoms), ("foreground/seq-read", "MB/s", &seqs)]
    {
        let finding = Finding::new(case, state, unit, &names, samples);
        report.add(finding.ratio_target("idle", Target::AtLeast(0.9)))?;
    }
    Ok(())
}

/// The rate over four passes: one pass is too short to compare.
fn seq_rate(path: &Path, len: u64) -> Result<f64> {
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        total += load::read_seq(path, len, Caching::Buffered)?;
    }
    Ok(load::mb_per_sec(4 * len, total))
}
