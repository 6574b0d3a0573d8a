//! Work on files in the tier, beside the same file system used natively.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{seconds, there};
use crate::emptyfs::Mode;
use crate::guard::go_on;
use crate::load::{self, Block, Caching, Finish, MIB, Random, Verb};
use crate::mounts::Place;
use crate::report::{Finding, Report, Target};
use crate::run::{On, Rounds, Run, data, names};

/// Long enough that the flusher does not start by age during a measurement.
const NO_FLUSH: [&str; 2] = ["--preset", "hold"];

/// The share of native speed that all work on the tier should reach.
fn native(on: On) -> Target {
    Target::AtLeast(if on == On::Disk { 0.95 } else { 0.85 })
}

fn contestants(run: &Run, on: On, options: &[&str]) -> Result<Vec<Place>> {
    let options = [&NO_FLUSH[..], options].concat();
    Ok(vec![run.subject(on, &options)?, run.native(on)?, run.empty(on, Mode::Pass)?])
}

/// The number of times per second that `work` is done; its argument counts.
fn rate(time: Duration, mut work: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time {
        if count % 64 == 0 {
            go_on()?;
        }
        work(count)?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

pub fn rewrite(run: &Run, report: &mut Report) -> Result<()> {
    let len = run.pick(256, 64) * MIB;
    let block = Block::new(4096);
    for on in [On::Disk, On::Tmpfs] {
        let places = contestants(run, on, &[])?;
        for place in &places {
            load::write_seq(&data(place), len, Caching::Buffered, Finish::SyncAndClose)?;
        }
        let [commits, appends] = run.alternate(places.len(), Rounds::Many, |who, round| {
            let place = &places[who];
            place.settle()?;
            let file = load::open_to_write(&data(place), Caching::Buffered)?;
            let commits = rate(run.slice() * 2, |count| {
                let at = (count + round * 7919) * 31 % (len / 4096) * 4096;
                file.write_all_at(block.bytes(), at)?;
                Ok(file.sync_data()?)
            })?;
            drop(file);
            place.settle()?;
            let mut log = File::options().append(true).open(data(place))?;
            let appends = rate(run.slice(), |_| Ok(log.write_all(&block.bytes()[..200])?))?;
            // Not measured: no contestant starts with another's dirty pages.
            log.sync_data()?;
            log.set_len(len)?;
            Ok([commits, appends])
        })?;
        let rows = [
            ("commit", "4 KiB written at random, fdatasync each", commits),
            ("append", "200 bytes appended, no sync", appends),
        ];
        for (what, how, samples) in rows {
            let case = format!("daily-{}/{what}", on.label());
            let state = format!("{how}; a complete, clean file of {} MiB", len / MIB);
            let finding = Finding::new(&case, &state, "op/s", &names(&places), &samples);
            report.add(finding.ratio_target("native", native(on)))?;
        }
    }
    Ok(())
}

pub fn partial(run: &Run, report: &mut Report) -> Result<()> {
    let len = 64 * MIB;
    for on in [On::Disk, On::Tmpfs] {
        let places = contestants(run, on, &[])?;
        for place in &places {
            load::write_seq(&data(place), len, Caching::Buffered, Finish::SyncAndClose)?;
        }
        let [samples] = run.alternate(places.len(), Rounds::Few, |who, seed| {
            let place = &places[who];
            place.settle()?;
            place.forget(&data(place))?;
            let files = [load::open_to_write(&data(place), Caching::Buffered)?];
            let work = Random { verb: Verb::Write, threads: 1, time: run.slice(), seed };
            let rate = load::random(&files, len, work)?;
            files[0].sync_data()?;
            Ok([rate])
        })?;
        let case = format!("daily-{}/partial-write", on.label());
        let state = format!("4 KiB at random into {} MiB that are not in the tier", len / MIB);
        report.add(Finding::new(&case, &state, "op/s", &names(&places), &samples))?;
    }
    Ok(())
}

pub fn small_tier(run: &Run, report: &mut Report) -> Result<()> {
    let len = 128 * MIB;
    for (on, gib) in [(On::Disk, 1), (On::Disk, 2), (On::Tmpfs, 1)] {
        let places = contestants(run, on, &["--tier-size", &format!("{gib}GiB")])?;
        let [samples] = run.alternate(places.len(), Rounds::Few, |who, seed| {
            let path = data(&places[who]);
            let files = [load::create(&path, Caching::Buffered)?];
            load::fill(&files[0], len)?;
            files[0].sync_data()?;
            let work = Random { verb: Verb::Write, threads: 1, time: run.slice(), seed };
            let rate = load::random(&files, len, work)?;
            drop(files);
            crate::run::remove(&path)?;
            Ok([rate])
        })?;
        let case = format!("daily-{}/tier-of-{gib}-gib", on.label());
        let state = format!("4 KiB at random into a new file of {} MiB", len / MIB);
        let finding = Finding::new(&case, &state, "op/s", &names(&places), &samples);
        report.add(finding.ratio_target("native", native(on)))?;
    }
    Ok(())
}

pub fn open(run: &Run, report: &mut Report) -> Result<()> {
    let (count, size) = (run.pick(5_000, 1_000), 8 << 10);
    for on in [On::Disk, On::Tmpfs] {
        let places = contestants(run, on, &[])?;
        for place in &places {
            fs::create_dir(place.path("small"))?;
            load::write_small(&place.path("small"), count, size, 1)?;
            place.settle()?;
        }
        let [samples] = run.alternate(places.len(), Rounds::Many, |who, _| {
            Ok([load::read_small(&places[who].path("small"), count, 1)?])
        })?;
        let case = format!("daily-{}/open-read-close", on.label());
        let state = format!("{count} cached files of 8 KiB, one thread, warm");
        let finding = Finding::new(&case, &state, "us/file", &names(&places), &samples);
        report.add(finding.ratio_target("empty-pass", Target::AtMost(1.0)))?;
    }
    Ok(())
}

pub fn sqlite(run: &Run, report: &mut Report) -> Result<()> {
    if !there("sqlite3") {
        return report.skip("daily/sqlite", "not installed (Debian: sqlite3)");
    }
    for on in [On::Disk, On::Tmpfs] {
        let commits = if on == On::Disk { run.pick(500, 200) } else { run.pick(3_000, 1_000) };
        let places = contestants(run, on, &[])?;
        for journal in ["delete", "wal"] {
            for place in &places {
                let fill = "CREATE TABLE t(id INTEGER PRIMARY KEY, word TEXT); WITH RECURSIVE n(i) AS \
                            (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<50000) INSERT INTO t SELECT i, \
                            hex(randomblob(20)) FROM n;";
                sql(&place.path(journal), journal, fill)?;
                place.settle()?;
            }
            let [samples] = run.alternate(places.len(), Rounds::Many, |who, round| {
                let mut script = String::new();
                for commit in 0..commits {
                    let id = (commit * 7919 + round * 31) % 50_000 + 1;
                    script.push_str(&format!(
                        "UPDATE t SET word='{commit}-{round}' WHERE id={id};\n"
                    ));
                }
                let begun = Instant::now();
                sql(&places[who].path(journal), journal, &script)?;
                Ok([commits as f64 / begun.elapsed().as_secs_f64()])
            })?;
            let case = format!("daily-{}/sqlite-{journal}", on.label());
            let state = format!("{commits} commits of one row, synchronous=full, 50,000 rows");
            let finding = Finding::new(&case, &state, "commits/s", &names(&places), &samples);
            report.add(match on {
                On::Disk => finding.ratio_target("native", Target::AtLeast(0.9)),
                On::Tmpfs => finding,
            })?;
        }
    }
    Ok(())
}

fn sql(database: &Path, journal: &str, script: &str) -> Result<()> {
    let mut child = Command::new("sqlite3")
        .arg(database)
        .args(["-cmd", &format!("PRAGMA journal_mode={journal}")])
        .args(["-cmd", "PRAGMA synchronous=full", "-bail"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start sqlite3")?;
    let mut input = child.stdin.take().context("sqlite3 has no input")?;
    let fed = input.write_all(script.as_bytes());
    drop(input);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("sqlite3: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(fed?)
}

pub fn untar(run: &Run, report: &mut Report) -> Result<()> {
    let count = run.pick(10_000, 2_000);
    let from = run.fresh(On::Tmpfs, "tree")?;
    let archive = load::archive(&from, count)?;
    for on in [On::Disk, On::Tmpfs] {
        let places = contestants(run, on, &[])?;
        let [made, gone] = run.alternate(places.len(), Rounds::Few, |who, round| {
            let dir = places[who].path(&format!("tree-{round}"));
            fs::create_dir(&dir)?;
            let made = seconds(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&dir))?;
            let gone = seconds(Command::new("rm").arg("-r").arg(&dir))?;
            Ok([made, gone].map(|secs| count as f64 / secs))
        })?;
        let rows = [("untar", "tar -x of an archive on tmpfs", made), ("remove", "rm -r", gone)];
        for (what, how, samples) in rows {
            let case = format!("daily-{}/{what}", on.label());
            let state = format!("{count} files of 1 to 32 KiB, {how}, no sync");
            report.add(Finding::new(&case, &state, "files/s", &names(&places), &samples))?;
        }
    }
    fs::remove_dir_all(&from)?;
    Ok(())
}

/// The time of the flush over the time to copy the changed blocks.
pub fn changed(run: &Run, report: &mut Report) -> Result<()> {
    ensure!(run.has_forebay(), "no forebay binary (--forebay FILE)");
    let len = run.pick(1024, 256) * MIB;
    let step = 1600 << 10;
    let block = Block::new(16 << 10);
    let place = run.forebay(On::Disk, &NO_FLUSH)?;
    let beside = run.native(On::Disk)?;
    for path in [data(&place), data(&beside)] {
        load::write_seq(&path, len, Caching::Buffered, Finish::SyncAndClose)?;
    }
    place.settle()?;
    let change = |path: &Path, round: u64| -> Result<File> {
        let file = load::open_to_write(path, Caching::Buffered)?;
        let mut bytes = block.bytes().to_vec();
        for at in (0..len).step_by(step) {
            bytes[..8].copy_from_slice(&(at + round).to_le_bytes());
            file.write_all_at(&bytes, at)?;
        }
        Ok(file)
    };
    let (mut more, mut flushes) = (Vec::new(), Vec::new());
    for round in 1..=run.few_rounds() as u64 {
        go_on()?;
        drop(change(&data(&place), round)?);
        let begun = Instant::now();
        place.settle()?;
        let flush = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        change(&data(&beside), round)?.sync_data()?;
        flushes.push(flush);
        more.push(flush - begun.elapsed().as_secs_f64());
    }
    let state =
        format!("1 % of {} MiB changed past the daemon, 16 KiB each, pages cached", len / MIB);
    report.add(Finding::alone("daily/changed-flush", &state, "s", "forebay", &flushes))?;
    let state = format!("{state}; what it takes more than to write and sync these blocks");
    let finding = Finding::alone("daily/changed-flush-more", &state, "s", "forebay", &more);
    report.add(finding.target(Target::AtMost(0.5)))
}
