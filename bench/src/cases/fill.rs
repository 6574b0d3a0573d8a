//! Reading what is not cached, from a throttled store.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::load::{self, Caching, Finish, MIB, Random, Verb};
use crate::mounts::Forebay;
use crate::report::{Finding, Report, Target};
use crate::run::{On, Run};

/// The throttled store: bytes per second and time per call.
const THROTTLE: &str = "100MB,5ms";
const STORE_MB_PER_SEC: f64 = 100.0;
const STORE_LATENCY: Duration = Duration::from_millis(5);
const READERS: usize = 16;

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let options = ["--throttle", THROTTLE, "--max-age", "1h"];
    let (mut forebay, dirs) = run.forebay_parts(On::Tmpfs, On::Tmpfs, &options)?;
    let seq_len = run.pick(256, 128) * MIB;
    let random_len = run.pick(1024, 512) * MIB;
    for (name, len) in [("seq", seq_len), ("random", random_len)] {
        load::write_seq(&forebay.backing.join(name), len, Caching::Buffered, Finish::Close)?;
    }
    forebay.mount()?;
    sequential(run, report, &forebay, seq_len)?;
    random(run, report, &forebay, random_len)?;
    drop(forebay);
    dirs.iter().try_for_each(|dir| Ok(std::fs::remove_dir_all(dir)?))
}

fn sequential(run: &Run, report: &mut Report, forebay: &Forebay, len: u64) -> Result<()> {
    let path = forebay.mountpoint.join("seq");
    let mut rates = Vec::new();
    for _ in 0..run.rounds {
        forget(forebay, "seq")?;
        let rate = load::mb_per_sec(len, load::read_seq(&path, len, Caching::Buffered)?);
        ensure!(rate < STORE_MB_PER_SEC * 1.5, "{rate:.0} MB/s: the file was not absent");
        rates.push(rate);
    }
    ensure!(load::same_bytes(&path, &forebay.backing.join("seq"))?, "the bytes differ");
    let state = format!("{} MiB uncached file, store {THROTTLE}, 1 MiB reads", len / MIB);
    let finding = Finding::alone("fill/seq-read", &state, "MB/s", "forebay", &rates);
    let target = Some(Target::AtLeast(0.9));
    report.add(finding.against("store", STORE_MB_PER_SEC, target))
}

fn random(run: &Run, report: &mut Report, forebay: &Forebay, len: u64) -> Result<()> {
    let path = forebay.mountpoint.join("random");
    let time = Duration::from_millis(run.pick(2000, 1000));
    let (mut rates, mut fetched) = (Vec::new(), Vec::new());
    for round in 0..run.rounds as u64 {
        forget(forebay, "random")?;
        let before = read_bytes(forebay);
        let file = load::open(&path, Caching::Buffered)?;
        let work = Random { verb: Verb::Read, threads: READERS, time, seed: round };
        rates.push(load::random(std::slice::from_ref(&file), len, work)?);
        if let (Some(before), Some(after)) = (before, read_bytes(forebay)) {
            fetched.push((after - before) as f64 / 1e6 / time.as_secs_f64());
        }
    }
    let bound = READERS as f64 / STORE_LATENCY.as_secs_f64();
    let state = format!("{} MiB uncached file, store {THROTTLE}, {READERS} readers", len / MIB);
    let finding = Finding::alone("fill/random-read-16t", &state, "op/s", "forebay", &rates);
    report.add(finding.against("16 per latency", bound, Some(Target::AtLeast(0.9))))?;
    if !fetched.is_empty() {
        let case = "fill/random-read-16t-fetched";
        let state = "bytes the daemon read from the store meanwhile";
        let finding = Finding::alone(case, state, "MB/s", "forebay", &fetched);
        report.add(finding.against("store", STORE_MB_PER_SEC, None))?;
    }
    Ok(())
}

/// Makes a file absent: out of the tier and out of the kernel's cache.
fn forget(forebay: &Forebay, name: &str) -> Result<()> {
    let path = forebay.mountpoint.join(name);
    load::drop_pages(&path)?;
    forebay.evict(&path)
}

/// Bytes read from the backing store so far, if the statistics tell.
fn read_bytes(forebay: &Forebay) -> Option<u64> {
    let stats = forebay.stats().ok()?;
    stats.get("backing")?.get("read")?.get("bytes")?.as_u64()
}
