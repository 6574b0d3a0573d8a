//! A file at another node's home, beside bare TCP between the same two hosts.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::{Cluster, HOLD};
use super::tcp::Tcp;
use crate::guard::go_on;
use crate::load::{self, Caching, Finish, MIB, RANDOM_BLOCK, Random, Verb};
use crate::report::{Finding, Report, Target};
use crate::run::{Rounds, Run};

const NAMES: [&str; 2] = ["elsewhere", "bare TCP"];

/// The node that has the file, and the node that asks for it.
pub const HOME: usize = 0;
pub const ASKER: usize = 1;

/// Bytes of a short answer.
const ROUND_TRIP: u64 = 64;

/// Two nodes, the first of which is the home of a file of this length, none of it on the store.
pub fn two(run: &Run, len: u64) -> Result<Cluster> {
    let cluster = Cluster::start(run, 2, HOLD)?;
    let (here, there) = (cluster.at(HOME, "data"), cluster.at(ASKER, "data"));
    load::write_seq(&here, len, Caching::Buffered, Finish::Close)?;
    ensure!(load::same_bytes(&here, &there)?, "another node reads other bytes");
    ensure!(cluster.dirty(HOME)? >= len, "the file was on the store before it was measured");
    Ok(cluster)
}

pub fn bytes(run: &Run, report: &mut Report) -> Result<()> {
    let len = run.pick(512, 128) * MIB;
    let cluster = two(run, len)?;
    let mut tcp = Tcp::between(cluster.host(HOME), cluster.host(ASKER))?;
    let path = cluster.at(ASKER, "data");
    let time = run.slice();
    let block = RANDOM_BLOCK as u64;
    let [read, write, random_read, random_write] =
        run.alternate(2, Rounds::Many, |who, round| match who {
            0 => there(&path, len, time, round),
            _ => {
                let (read, written) = (tcp.read(len)?, tcp.write(len)?);
                let random = [tcp.ping_pong(block, time)?, tcp.pong_ping(block, time)?];
                let rates = [read, written].map(|time| load::mb_per_sec(len, time));
                Ok([rates[0], rates[1], random[0], random[1]])
            }
        })?;
    ensure!(cluster.dirty(HOME)? >= len, "the file came to the store while it was measured");
    let sequential = format!("{} MiB, 1 MiB at a time, one stream", len / MIB);
    let one = "4 KiB at a time, one asker";
    for (name, state, unit, samples, target) in [
        ("read-seq", sequential.as_str(), "MB/s", read, Some(0.8)),
        ("read-random", one, "op/s", random_read, Some(0.5)),
        ("write-seq", sequential.as_str(), "MB/s", write, None),
        ("write-random", one, "op/s", random_write, None),
    ] {
        let case = format!("nodes-elsewhere/{name}");
        let finding = Finding::new(&case, state, unit, &NAMES.map(str::to_owned), &samples);
        report.add(match target {
            Some(least) => finding.ratio_target("bare TCP", Target::AtLeast(least)),
            None => finding,
        })?;
    }
    Ok(())
}

/// Reads and writes the file, in order, then at random places.
fn there(path: &Path, len: u64, time: Duration, seed: u64) -> Result<[f64; 4]> {
    let random =
        |file: &[File], verb| load::random(file, len, Random { verb, threads: 1, time, seed });
    // The file is not open for writing while it is read.
    let read = load::read_seq(path, len, Caching::Buffered)?;
    let file = [File::open(path)?];
    let random_read = random(&file, Verb::Read)?;
    drop(file);
    let file = [File::options().write(true).open(path)?];
    let start = Instant::now();
    load::fill(&file[0], len)?;
    let rates = [read, start.elapsed()].map(|time| load::mb_per_sec(len, time));
    Ok([rates[0], rates[1], random_read, random(&file, Verb::Write)?])
}

pub fn stat(run: &Run, report: &mut Report) -> Result<()> {
    let cluster = Cluster::start(run, 2, HOLD)?;
    let mut tcp = Tcp::between(cluster.host(HOME), cluster.host(ASKER))?;
    let mut written = File::create(cluster.at(HOME, "log"))?;
    written.write_all(&[0; RANDOM_BLOCK])?;
    let path = cluster.at(ASKER, "log");
    // Attributes may be as old as `attr-ttl`, and a new file's claim follows its creation.
    let begun = Instant::now();
    while size_now(&path)? == 0 {
        ensure!(begun.elapsed() < Duration::from_secs(5), "what was written does not show");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (over, size) = (AtomicBool::new(false), AtomicU64::new(RANDOM_BLOCK as u64));
    let samples = std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            while !over.load(Relaxed) {
                written.write_all(&[1; RANDOM_BLOCK])?;
                size.fetch_add(RANDOM_BLOCK as u64, Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let samples = run.alternate(2, Rounds::Many, |who, _| {
            let rate = match who {
                0 => stats(&path, &size, run.slice())?,
                _ => tcp.ping_pong(ROUND_TRIP, run.slice())?,
            };
            Ok([1e6 / rate])
        });
        over.store(true, Relaxed);
        writer.join().expect("no panic inside").context("the home's writer")?;
        samples
    });
    let [samples] = samples?;
    let state = "asked anew each time (AT_STATX_FORCE_SYNC), 4 KiB appended every millisecond";
    let names = NAMES.map(str::to_owned);
    let finding = Finding::new("nodes-stat", state, "us", &names, &samples);
    report.add(finding.ratio_target("bare TCP", Target::AtMost(3.0)))
}

/// The number of size queries per second; each result must be at least the bytes written before.
fn stats(path: &Path, written: &AtomicU64, time: Duration) -> Result<f64> {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        go_on()?;
        let before = written.load(Relaxed);
        let size = size_now(path)?;
        ensure!(size >= before, "stat tells {size} bytes, {before} had been written before");
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// The size of a file, without the kernel's cache.
fn size_now(path: &Path) -> Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a zero, and the kernel writes one statx, which is zeroed before.
    let (done, stat) = unsafe {
        let (flags, mask) = (libc::AT_STATX_FORCE_SYNC, libc::STATX_BASIC_STATS);
        let done = libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, stat.as_mut_ptr());
        (done, stat.assume_init())
    };
    ensure!(done == 0, "statx: {}", std::io::Error::last_os_error());
    Ok(stat.stx_size)
}
