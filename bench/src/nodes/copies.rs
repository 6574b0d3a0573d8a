//! The cost of copies on another node, and their benefit when a node dies.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::{Cluster, HOLD};
use crate::guard::go_on;
use crate::load::{self, Block, Caching, Finish, MIB, RANDOM_BLOCK};
use crate::report::{Finding, Report, Target};
use crate::run::{On, Rounds, Run};

const COPIED: &[&str] = &["--preset", "hold", "--copies", "1"];

fn has_partner(cluster: &Cluster, node: usize) -> Result<()> {
    let so =
        |told: &serde_json::Value| told["in_sync"].as_array().is_some_and(|all| all.len() == 1);
    cluster.until((node, node), "it has a partner", so)
}

pub fn write(run: &Run, report: &mut Report) -> Result<()> {
    // The last node may be the partner: it has nothing of its own to write.
    let cluster = Cluster::start_each(run, On::Disk, &[COPIED, HOLD, HOLD])?;
    has_partner(&cluster, 0)?;
    let len = run.pick(256, 64) * MIB;
    let [stream, single] = run.alternate(2, Rounds::Few, |who, _| {
        let (large, log) =
            (cluster.at(who, &format!("l{who}")), cluster.at(who, &format!("s{who}")));
        let time = load::write_seq(&large, len, Caching::Buffered, Finish::SyncAndClose)?;
        let rates = [load::mb_per_sec(len, time), synced(&log, run.slice() * 3)?];
        has_partner(&cluster, 0)?;
        [large, log].iter().try_for_each(fs::remove_file)?;
        Ok(rates)
    })?;
    let names = ["copies 1", "none"].map(str::to_owned);
    let state = format!("{} MiB, 1 MiB at a time, then fsync; all tiers on one disk", len / MIB);
    let finding = Finding::new("nodes-copies/write-fsync", &state, "MB/s", &names, &stream);
    report.add(finding.ratio_target("none", Target::AtLeast(0.45)))?;
    let state = "4 KiB appended, fsync after each; all tiers on one disk";
    report.add(Finding::new("nodes-copies/append-fsync", state, "op/s", &names, &single))
}

/// The number of 4 KiB writes per second, each with a sync.
fn synced(path: &Path, time: Duration) -> Result<f64> {
    let (file, block) = (File::create(path)?, Block::new(RANDOM_BLOCK));
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        go_on()?;
        file.write_all_at(block.bytes(), count * RANDOM_BLOCK as u64)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

pub fn take_over(run: &Run, report: &mut Report) -> Result<()> {
    let files = run.pick(10_000, 1000);
    let mut seconds = Vec::new();
    for _ in 0..run.few_rounds().min(3) {
        seconds.push(one_death(run, files)?);
    }
    let state = format!("{files} files of 4 KiB, each synced, until all are with the partner");
    let finding = Finding::alone("nodes-take-over", &state, "s", "partner", &seconds);
    report.add(finding.target(Target::AtMost(2.0)))
}

/// Seconds from the moment when a node counts as dead until its files are taken over.
fn one_death(run: &Run, files: usize) -> Result<f64> {
    let mut cluster = Cluster::start(run, 3, COPIED)?;
    has_partner(&cluster, 0)?;
    fs::create_dir(cluster.at(0, "d"))?;
    for number in 0..files {
        go_on()?;
        let file = File::create(cluster.at(0, &name(number)))?;
        file.write_all_at(&bytes(number), 0)?;
        file.sync_all()?;
    }
    ensure!(cluster.dirty(0)? >= (files * RANDOM_BLOCK) as u64, "it came to the store by itself");
    cluster.nodes[0].kill()?;
    cluster.until((1, 0), "it is told to be dead", |told| told["alive"] == false)?;
    let dead = Instant::now();
    cluster.until((1, 0), "it is taken over", |told| told["taken"]["done"] == true)?;
    let seconds = dead.elapsed().as_secs_f64();
    for number in 0..files {
        go_on()?;
        let at = cluster.at(1 + number % 2, &name(number));
        let found = fs::read(&at).with_context(|| at.display().to_string())?;
        ensure!(found == bytes(number), "{}: other bytes than were synced", at.display());
    }
    Ok(seconds)
}

fn name(number: usize) -> String {
    format!("d/file-{number}")
}

fn bytes(number: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(RANDOM_BLOCK / size_of::<usize>())
}
