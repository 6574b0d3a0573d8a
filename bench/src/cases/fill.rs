//! Reading uncached files, from a throttled store.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::load::{self, Caching, Finish, MIB, Random, Verb};
use crate::mounts::Forebay;
use crate::report::{Finding, Report, Target};
use crate::run::{On, Rounds, Run};

/// The throttled store: bytes per second and time per call.
const THROTTLE: &str = "100MB,5ms";
const STORE_MB_PER_SEC: f64 = 100.0;
const STORE_LATENCY: Duration = Duration::from_millis(5);
const READERS: usize = 16;

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let options = ["--throttle", THROTTLE, "--preset", "hold"];
    let mut forebay = run.forebay_parts(On::Tmpfs, On::Tmpfs, &options)?;
    let seq_len = run.pick(256, 128) * MIB;
    let random_len = run.pick(1024, 512) * MIB;
    for (name, len) in [("seq", seq_len), ("random", random_len)] {
        load::write_seq(&forebay.backing.join(name), len, Caching::Buffered, Finish::Close)?;
    }
    forebay.mount()?;
    sequential(run, report, &forebay, seq_len)?;
    random(run, report, &forebay, random_len)?;
    drop(forebay);
    from_memory(run, report)
}

/// Reads from a store that is as fast as memory, beside a reader of the store itself.
fn from_memory(run: &Run, report: &mut Report) -> Result<()> {
    let mut forebay = run.forebay_parts(On::Tmpfs, On::Tmpfs, &["--preset", "hold"])?;
    let len = run.pick(1024, 256) * MIB;
    let store = forebay.backing.join("memory");
    load::write_seq(&store, len, Caching::Buffered, Finish::Close)?;
    forebay.mount()?;
    let path = forebay.mountpoint.join("memory");
    let [rates] = run.alternate(2, Rounds::Few, |who, _| {
        if who == 0 {
            forget(&forebay, "memory")?;
        }
        let path = if who == 0 { &path } else { &store };
        Ok([load::mb_per_sec(len, load::read_seq(path, len, Caching::Buffered)?)])
    })?;
    ensure!(load::same_bytes(&path, &store)?, "the bytes differ");
    let state = format!("{} MiB uncached file, store in memory, 1 MiB reads", len / MIB);
    let who = ["forebay", "store"].map(str::to_owned);
    report.add(Finding::new("fill/seq-read-memory", &state, "MB/s", &who, &rates))
}

fn sequential(run: &Run, report: &mut Report, forebay: &Forebay, len: u64) -> Result<()> {
    let path = forebay.mountpoint.join("seq");
    let mut rates = Vec::new();
    for _ in 0..run.few_rounds() {
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
    let (mut rates, mut fetched, mut in_flight) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..run.few_rounds() as u64 {
        forget(forebay, "random")?;
        let file = load::open(&path, Caching::Buffered)?;
        let (before, start) = (StoreReads::of(forebay), Instant::now());
        let work = Random { verb: Verb::Read, threads: READERS, time, seed: round };
        rates.push(load::random(std::slice::from_ref(&file), len, work)?);
        let wall = start.elapsed().as_secs_f64();
        if let (Some(before), Some(after)) = (before, StoreReads::of(forebay)) {
            fetched.push((after.bytes - before.bytes) / 1e6 / wall);
            in_flight.push((after.busy_secs - before.busy_secs) / wall);
        }
    }
    let bound = READERS as f64 / STORE_LATENCY.as_secs_f64();
    let state = format!("{} MiB uncached file, store {THROTTLE}, {READERS} readers", len / MIB);
    let finding = Finding::alone("fill/random-read-16t", &state, "op/s", "forebay", &rates);
    report.add(finding.against("16 per latency", bound, None))?;
    if in_flight.is_empty() {
        return report
            .skip("fill/random-read-16t-in-flight", "stats tell nothing about store reads");
    }
    let case = "fill/random-read-16t-fetched";
    let state = "what the daemon read from the store meanwhile";
    let finding = Finding::alone(case, state, "MB/s", "forebay", &fetched);
    report.add(finding.against("store", STORE_MB_PER_SEC, None))?;
    let case = "fill/random-read-16t-in-flight";
    let state = "mean reads in flight at the store: their summed time over the wall's";
    let finding = Finding::alone(case, state, "reads", "forebay", &in_flight);
    report.add(finding.against("readers", READERS as f64, Some(Target::AtLeast(0.9))))
}

/// The daemon's reads from its backing store so far.
struct StoreReads {
    bytes: f64,
    busy_secs: f64,
}

impl StoreReads {
    fn of(forebay: &Forebay) -> Option<StoreReads> {
        let stats = forebay.stats().ok()?;
        let reads = stats.get("backing")?.get("read_at")?;
        let number = |key: &str| reads.get(key).and_then(Value::as_f64);
        let busy_secs = number("count")? * number("mean_us")? / 1e6;
        Some(StoreReads { bytes: number("bytes")?, busy_secs })
    }
}

/// Makes a file absent: out of the tier and out of the kernel's cache.
fn forget(forebay: &Forebay, name: &str) -> Result<()> {
    let path = forebay.mountpoint.join(name);
    load::drop_pages(&path)?;
    forebay.evict(&path)
}
