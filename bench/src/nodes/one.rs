//! The cost of a registry for a node that works on its own files.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::Pair;
use crate::flat::rig;
use crate::guard::go_on;
use crate::load::{self, Caching, Finish, MIB, Random, Verb};
use crate::report::{Finding, Report, Target};
use crate::run::{Rounds, Run};
use crate::stat::Samples;

const WHO: [&str; 2] = ["registry", "without"];

const SMALL: usize = 4096;

/// After this long the kernel looks each name up anew, with the default of `trust`.
const NAMES_LAST: Duration = Duration::from_millis(1100);

fn finding(case: &str, state: &str, unit: &'static str, samples: &Samples) -> Finding {
    Finding::new(case, state, unit, &WHO.map(str::to_owned), samples)
}

pub fn resident(run: &Run, report: &mut Report) -> Result<()> {
    let pair = Pair::start(run, 1)?;
    let len = run.pick(512, 128) * MIB;
    let [write, read, random_read, random_write] =
        run.alternate(2, Rounds::Many, |who, round| {
            let path = pair.dirs()[who].join("data");
            if path.exists() {
                fs::remove_file(&path)?;
            }
            let written = load::write_seq(&path, len, Caching::Buffered, Finish::Close)?;
            let read = load::read_seq(&path, len, Caching::Buffered)?;
            let file = [File::options().read(true).write(true).open(&path)?];
            let random = |verb| {
                let work = Random { verb, threads: 1, time: run.slice(), seed: round };
                load::random(&file, len, work)
            };
            let random = [random(Verb::Read)?, random(Verb::Write)?];
            Ok([load::mb_per_sec(len, written), load::mb_per_sec(len, read), random[0], random[1]])
        })?;
    let state = format!("{} MiB, warm, tier on tmpfs", len / MIB);
    for (name, unit, samples) in [
        ("write-seq", "MB/s", write),
        ("read-seq", "MB/s", read),
        ("read-random", "op/s", random_read),
        ("write-random", "op/s", random_write),
    ] {
        let case = format!("nodes-resident/{name}");
        let finding = finding(&case, &state, unit, &samples);
        report.add(finding.ratio_target("without", Target::AtLeast(0.95)))?;
    }
    Ok(())
}

pub fn create(run: &Run, report: &mut Report) -> Result<()> {
    let pair = Pair::start(run, 1)?;
    let count = run.pick(2000, 500);
    let [create, unlink] = run.alternate(2, Rounds::Many, |who, round| {
        let dir = pair.dirs()[who].join(format!("dir-{round}"));
        fs::create_dir(&dir)?;
        File::create_new(dir.join("first"))?;
        let created = load::create_empty(&dir, count)?;
        let unlinked = load::unlink_all(&dir, count)?;
        Ok([1e6 / created, 1e6 / unlinked])
    })?;
    let state = format!("{count} empty files, one thread, after the directory's first");
    let finding_of =
        |name: &str, samples| finding(&format!("nodes-create/{name}"), &state, "files/s", samples);
    report.add(finding_of("create", &create).ratio_target("without", Target::AtLeast(0.8)))?;
    report.add(finding_of("unlink", &unlink))
}

pub fn open(run: &Run, report: &mut Report) -> Result<()> {
    let pair = Pair::start(run, 1)?;
    let count = run.pick(500, 200);
    let resting = lay(&pair, "home", count)?;
    let each = lay_each(&pair, run.pick(1000, 500))?;
    pair.cluster.nodes[0].flush()?;
    pair.alone.flush()?;
    pair.cluster.until((0, 0), "all is given back", |told| told["claims"] == 0)?;
    let claimed = lay(&pair, "own", count)?;
    ensure!(pair.cluster.dirty(0)? > 0, "what is written waits in the tier");
    let time = run.slice();
    let [own, anew, asked] = run.alternate(2, Rounds::Many, |who, _| {
        let own = opens(&claimed[who], 1, time)?;
        std::thread::sleep(NAMES_LAST);
        Ok([own, opens_once(&each[who])?, opens_once(&each[who])?])
    })?;
    get_grant(&pair, &resting[0], time)?;
    let [granted, four] = run.alternate(2, Rounds::Many, |who, _| {
        Ok([opens(&resting[who], 1, time)?, opens(&resting[who], 4, time)?])
    })?;
    // Answers that may be this old are asked for once.
    rig::set(&pair.cluster.nodes[0], "revalidate", "1h")?;
    rig::set(&pair.alone, "revalidate", "1h")?;
    let [believed] =
        run.alternate(2, Rounds::Many, |who, _| Ok([opens(&resting[who], 1, time)?]))?;
    let half = Target::AtLeast(0.5);
    let state = |what: &str| format!("{count} files of 4 KiB that {what}, cached");
    let places = "each in a directory of its own";
    let flushed = format!(
        "{} cached files of 4 KiB that are claimed by nobody, {places}, one thread",
        each[0].len()
    );
    let one = finding("nodes-open/asked", &flushed, "op/s", &asked);
    report.add(one.ratio_target("without", half))?;
    let flushed = format!("{flushed}, names looked up anew");
    report.add(finding("nodes-open/asked-anew", &flushed, "op/s", &anew))?;
    let flushed = state("are claimed by nobody, under a read grant, one thread");
    let one = finding("nodes-open/granted", &flushed, "op/s", &granted);
    report.add(one.ratio_target("without", Target::AtLeast(0.95)))?;
    let flushed = state("are claimed by nobody, under a read grant, four threads");
    report.add(finding("nodes-open/granted-4", &flushed, "op/s", &four))?;
    let flushed = state("are on the store and claimed by nobody, one thread, revalidate 1h");
    report.add(finding("nodes-open/at-rest-believed", &flushed, "op/s", &believed))?;
    let mine = state("this node has claimed, one thread");
    let one = finding("nodes-open/own", &mine, "op/s", &own);
    report.add(one.ratio_target("without", half))?;
    drop(pair);
    open_with_locks_of_the_node(run, report)
}

/// Opens under a read grant, where no close asks the daemon for locks.
fn open_with_locks_of_the_node(run: &Run, report: &mut Report) -> Result<()> {
    let pair = Pair::start_with(run, 1, &["--locks", "node"])?;
    let (count, time) = (run.pick(500, 200), run.slice());
    let resting = lay(&pair, "home", count)?;
    pair.cluster.nodes[0].flush()?;
    pair.alone.flush()?;
    pair.cluster.until((0, 0), "all is given back", |told| told["claims"] == 0)?;
    get_grant(&pair, &resting[0], time)?;
    let [granted] =
        run.alternate(2, Rounds::Many, |who, _| Ok([opens(&resting[who], 1, time)?]))?;
    let state =
        format!("{count} files of 4 KiB, cached, under a read grant, one thread, --locks node");
    let one = finding("nodes-open/granted-node-locks", &state, "op/s", &granted);
    report.add(one.ratio_target("without", Target::AtLeast(0.95)))
}

/// Gets a read grant: a node that opens again and again gets it within the first three opens.
fn get_grant(pair: &Pair, paths: &[PathBuf], time: Duration) -> Result<()> {
    opens(paths, 1, time)?;
    let is_granted = |told: &Value| told["grants"].as_u64() > Some(0);
    pair.cluster.until((0, 0), "it has a read grant", is_granted)
}

/// Writes files of one directory in both mounts.
fn lay(pair: &Pair, dir: &str, count: usize) -> Result<[Vec<PathBuf>; 2]> {
    let lay = |mount: &Path| -> Result<Vec<PathBuf>> {
        let dir = mount.join(dir);
        fs::create_dir(&dir)?;
        let paths: Vec<PathBuf> = (0..count).map(|n| dir.join(format!("file-{n}"))).collect();
        for (number, path) in paths.iter().enumerate() {
            fs::write(path, [number as u8; SMALL])?;
        }
        Ok(paths)
    };
    let [with, without] = pair.dirs();
    Ok([lay(with)?, lay(without)?])
}

/// Writes files in both mounts, each in a directory of its own.
fn lay_each(pair: &Pair, count: usize) -> Result<[Vec<PathBuf>; 2]> {
    let lay = |mount: &Path| -> Result<Vec<PathBuf>> {
        let paths: Vec<PathBuf> =
            (0..count).map(|n| mount.join(format!("each/{n}/file"))).collect();
        for (number, path) in paths.iter().enumerate() {
            fs::create_dir_all(path.parent().unwrap_or(mount))?;
            fs::write(path, [number as u8; SMALL])?;
        }
        Ok(paths)
    };
    let [with, without] = pair.dirs();
    Ok([lay(with)?, lay(without)?])
}

/// The number of files per second that are opened, read and closed, each once.
fn opens_once(paths: &[PathBuf]) -> Result<f64> {
    let start = Instant::now();
    let mut bytes = [0; SMALL];
    for path in paths {
        go_on()?;
        File::open(path)?.read_exact(&mut bytes)?;
        black_box(&bytes);
    }
    Ok(paths.len() as f64 / start.elapsed().as_secs_f64())
}

/// The number of files per second that are opened, read and closed. The kernel knows the names: otherwise it would
/// look them up anew where another contestant's turn was in between, and not where this one has two turns in a row.
fn opens(paths: &[PathBuf], threads: usize, time: Duration) -> Result<f64> {
    opens_once(paths)?;
    let start = Instant::now();
    let one = |first: usize| -> Result<u64> {
        let mut bytes = [0; SMALL];
        let mut count = 0;
        while start.elapsed() < time {
            let path = &paths[(first + count as usize * threads) % paths.len()];
            go_on()?;
            let mut file = File::open(path).with_context(|| path.display().to_string())?;
            file.read_exact(&mut bytes)?;
            black_box(&bytes);
            count += 1;
        }
        Ok(count)
    };
    let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|first| scope.spawn(move || one(first))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic inside")).collect()
    });
    let total: u64 = counts.into_iter().sum::<Result<u64>>()?;
    Ok(total as f64 / start.elapsed().as_secs_f64())
}
