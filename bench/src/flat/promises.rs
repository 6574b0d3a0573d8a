//! The promises of the operator's controls: the cap, absorption, and the time estimate of a flush.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::rig::{self, MIB};
use super::series::Book;
use super::tables::Sheet;
use crate::load::{self, Caching, Finish};
use crate::mounts::Forebay;
use crate::report::{Finding, Report, Target};
use crate::run::Run;

const CAP: f64 = 10e6;
const WINDOW: f64 = 10.0;

/// `rate-max` over every window of ten seconds, seen at the backing directory.
pub fn cap(run: &Run, out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    let secs: u64 = run.pick(40, 16);
    let forebay = rig::mount(
        run,
        &rig::disk(1 << 30),
        &["--preset", "hold", "--rate-max", "10MB/s"],
        |_| Ok(()),
    )?;
    let len = (secs + 15) * 10 * MIB;
    load::write_seq(&forebay.mountpoint.join("data"), len, Caching::Buffered, Finish::Close)?;
    rig::set(&forebay, "preset", "governor")?;
    rig::set(&forebay, "dirty-low", "8MiB")?;
    rig::set(&forebay, "dirty-high", "40MiB")?;
    rig::set(&forebay, "dirty-hard", "60MiB")?;
    let (_, looks) = rig::watched(&forebay, Duration::from_millis(50), || {
        std::thread::sleep(Duration::from_secs(secs + 2));
        Ok(())
    })?;
    // The first second is part of the start.
    let windows: Vec<f64> = (0..)
        .map(|n| 1.0 + f64::from(n) * 0.1)
        .take_while(|from| from + WINDOW <= secs as f64 + 1.0)
        .map(|from| rig::landed_between(&looks, from, from + WINDOW) / WINDOW)
        .collect();
    let off = windows.iter().map(|rate| (rate / CAP - 1.0).abs() * 100.0).fold(0.0, f64::max);
    let course: Vec<(f64, u64)> = (0..secs)
        .map(|s| (s as f64, rig::landed_between(&looks, s as f64, s as f64 + 1.0).max(0.0) as u64))
        .collect();
    let mut book = Book::open(out, "cap", &[("rate-max", "10MB/s".into())])?;
    book.bytes("drained", &course, secs as f64)?;
    sheet.record(book.close()?);
    let state = "rate-max 10MB/s, one big dirty file, every window of 10 s in steps of 0.1 s";
    let finding = Finding::alone("flat/rate-max", state, "% off at most", "governor", &[off]);
    report.add(finding.target(Target::AtMost(3.0)))?;
    sheet.fact(format!(
        "Rate cap: at most {off:.1} % off over {} windows of ten seconds",
        windows.len()
    ));
    Ok(())
}

/// A hot set written ten times within `max-age`.
pub fn absorption(run: &Run, _out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    const TIMES: u64 = 10;
    let (len, age) = (32 * MIB, run.pick(15, 10));
    let age_text = format!("{age}s");
    let options = ["--max-age", &age_text, "--settle", "3s", "--preset", "governor"];
    let forebay = rig::mount(run, &rig::disk(1 << 30), &options, |backing| {
        rig::full_file(&backing.join("data"), len)
    })?;
    let path = forebay.mountpoint.join("data");
    let file = OpenOptions::new().write(true).open(&path)?;
    let block = vec![0x33; 64 << 10];
    let pause = Duration::from_secs(age) / (TIMES as u32 + 1);
    let began = Instant::now();
    for lap in 0..TIMES as u32 {
        for at in (0..len).step_by(block.len()) {
            file.write_all_at(&block, at)?;
        }
        std::thread::sleep((pause * (lap + 1)).saturating_sub(began.elapsed()));
    }
    forebay.flush()?;
    let flushed = rig::counter(&forebay, "flushed_bytes")?;
    let times = flushed as f64 / len as f64;
    let state = "32 MiB overwritten 10 times within max-age, then flushed";
    let finding = Finding::alone("flat/absorption", state, "times", "governor", &[times]);
    report.add(finding.target(Target::AtMost(1.5)))?;
    sheet.fact(format!(
        "Absorption: a hot set overwritten 10 times within max-age reached the store {times:.2} times"
    ));
    Ok(())
}

/// The error of the remaining time that `flush --wait` reports, from the second quarter on.
pub fn eta(run: &Run, _out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    let forebay = rig::mount(run, &rig::disk(1 << 30), &["--preset", "hold"], |_| Ok(()))?;
    let len = run.pick(1200, 600) * MIB;
    load::write_seq(
        &forebay.mountpoint.join("big"),
        len * 2 / 3,
        Caching::Buffered,
        Finish::Close,
    )?;
    for n in 0..len / 3 / MIB {
        fs::write(forebay.mountpoint.join(format!("small{n}")), vec![7; MIB as usize])?;
    }
    let began = Instant::now();
    let (took, told) = std::thread::scope(|scope| {
        let flush = scope.spawn(|| forebay.flush());
        let mut told = Vec::new();
        while !flush.is_finished() {
            if let Some(left) = seconds_left(&forebay) {
                told.push((began.elapsed().as_secs_f64(), left));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        flush.join().expect("the flush panicked").map(|_| (began.elapsed().as_secs_f64(), told))
    })?;
    let off = worst(&told, took).context("no time was told after the first quarter")?;
    let state = "flush --wait of one big file and many of 1 MiB; every 0.2 s until 95 %";
    let finding = Finding::alone("flat/eta", state, "% off at most", "forebay", &[off]);
    report.add(finding.target(Target::AtMost(20.0)))?;
    sheet.fact(format!(
        "`flush --wait` of {} MiB took {took:.1} s; the total it told was at most {off:.0} % off from \
         the second quarter on",
        len / MIB
    ));
    Ok(())
}

/// The largest error of passed plus reported remaining time against the real time: at the very end a
/// small rest would make any rounding a large share.
fn worst(told: &[(f64, f64)], took: f64) -> Option<f64> {
    told.iter()
        .filter(|(at, _)| (0.25..0.95).contains(&(at / took)))
        .map(|(at, left)| ((at + left) / took - 1.0).abs() * 100.0)
        .reduce(f64::max)
}

fn seconds_left(forebay: &Forebay) -> Option<f64> {
    let jobs = forebay.jobs()?;
    let list = jobs.as_array().or_else(|| jobs.get("jobs").and_then(Value::as_array))?;
    list.iter().find_map(|job| {
        ["eta_secs", "seconds_left", "eta_seconds"].iter().find_map(|key| job.get(key)?.as_f64())
    })
}
