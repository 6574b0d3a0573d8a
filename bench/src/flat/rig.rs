//! The mount under test: forebay in front of a store that behaves like a disk, everything on tmpfs,
//! so that the throttle alone decides the store's speed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::mounts::Forebay;
use crate::run::{On, Run};

pub const MIB: u64 = 1 << 20;

pub const PRESETS: [&str; 5] = ["governor", "threshold", "age", "idle", "hold"];

/// `--throttle` for a disk of this size: 100 MB/s, 5 ms a seek, some 200 random writes a second.
pub fn disk(bytes: u64) -> String {
    format!("100MB,5ms,seek={}MiB", bytes / MIB)
}

/// Mounts over fresh directories; `prepare` fills the backing store before.
pub fn mount(
    run: &Run,
    throttle: &str,
    options: &[&str],
    prepare: impl FnOnce(&Path) -> Result<()>,
) -> Result<Forebay> {
    let mut all = vec!["--throttle", throttle, "--passthrough", "read"];
    all.extend(options);
    let mut forebay = run.forebay_parts(On::Tmpfs, On::Tmpfs, &all)?;
    prepare(&forebay.backing)?;
    forebay.mount()?;
    Ok(forebay)
}

/// Makes a file full of non-zero bytes.
pub fn full_file(path: &Path, len: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let block = vec![0x5a; MIB as usize];
    for _ in 0..len / MIB {
        file.write_all(&block)?;
    }
    Ok(())
}

/// Makes a file of holes: blocks that appear in it were written by the drain.
pub fn hollow_file(path: &Path, len: u64) -> Result<()> {
    Ok(File::create(path)?.set_len(len)?)
}

/// Reads a whole file, so that the tier holds it.
pub fn warm(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; MIB as usize];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

pub fn set(forebay: &Forebay, key: &str, value: &str) -> Result<()> {
    let path = forebay.mountpoint.join(".forebay/config").join(key);
    fs::write(&path, value).with_context(|| format!("cannot set {key} to {value}"))
}

/// One of the daemon's counters.
pub fn counter(forebay: &Forebay, name: &str) -> Result<u64> {
    let text = fs::read_to_string(forebay.mountpoint.join(".forebay/stats.json"))?;
    let stats: Value = serde_json::from_str(&text)?;
    find(&stats, name).with_context(|| format!("stats.json has no {name}"))
}

fn find(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(map) => map
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| map.values().find_map(|inner| find(inner, name))),
        _ => None,
    }
}

pub fn dirty_bytes(forebay: &Forebay) -> Result<u64> {
    let text = fs::read_to_string(forebay.mountpoint.join(".forebay/status.json"))?;
    let status: Value = serde_json::from_str(&text)?;
    find(&status, "dirty_bytes").context("status.json has no dirty_bytes")
}

/// Bytes that files below `dir` occupy.
pub fn occupied(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let meta = entry?.metadata()?;
        bytes += if meta.is_file() { meta.blocks() * 512 } else { 0 };
    }
    Ok(bytes)
}

/// The result of a look, and its time.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub at: f64,
    /// Bytes in the backing directory.
    pub landed: u64,
    pub dirty: u64,
}

/// Looks at the backing directory and the level until told to stop.
pub fn watch(forebay: &Forebay, every: Duration, stop: &AtomicBool) -> Vec<Look> {
    let began = Instant::now();
    let mut looks = Vec::new();
    let mut next = began;
    while !stop.load(Ordering::Relaxed) {
        let at = began.elapsed().as_secs_f64();
        if let (Ok(landed), Ok(dirty)) = (occupied(&forebay.backing), dirty_bytes(forebay)) {
            looks.push(Look { at, landed, dirty });
        }
        next += every;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    looks
}

/// Runs `work` with a watcher; returns the results of both.
pub fn watched<T>(
    forebay: &Forebay,
    every: Duration,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Look>)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(forebay, every, &stop));
        let result = work();
        stop.store(true, Ordering::Relaxed);
        let looks = watcher.join().expect("the watcher panicked");
        Ok((result?, looks))
    })
}

/// The bytes that landed between two moments, interpolated between looks.
pub fn landed_between(looks: &[Look], from: f64, to: f64) -> f64 {
    at(looks, to) - at(looks, from)
}

fn at(looks: &[Look], time: f64) -> f64 {
    let after = looks.partition_point(|look| look.at < time);
    match (after.checked_sub(1).map(|n| looks[n]), looks.get(after)) {
        (Some(a), Some(b)) => {
            let share = (time - a.at) / (b.at - a.at).max(1e-9);
            a.landed as f64 + (b.landed as f64 - a.landed as f64) * share
        }
        (Some(one), None) => one.landed as f64,
        (None, Some(one)) => one.landed as f64,
        (None, None) => 0.0,
    }
}

/// A directory for a load generator's files.
pub fn scratch(run: &Run, name: &str) -> Result<PathBuf> {
    run.fresh(On::Disk, name)
}
