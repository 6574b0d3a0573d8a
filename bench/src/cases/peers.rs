//! The same work on forebay, on a plain directory and on its peers, everything on the disk.
//!
//! Each peer keeps its cache in one directory and its data in another, as forebay does, and like
//! forebay is told not to upload during a measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::load::{self, Caching, Finish, Forget, MIB, Random, Verb};
use crate::mounts::{Daemon, Place};
use crate::report::{Finding, Report};
use crate::run::{On, Rounds, Run, Subject, data, names, remove};

const SMALL: usize = 4 << 10;

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let mut places = Vec::new();
    if run.subject != Subject::Forebay || run.has_forebay() {
        places.push(run.subject(On::Disk, &["--preset", "hold"])?);
    }
    places.push(run.native(On::Disk)?);
    for (peer, start) in
        [("rclone", rclone as fn(&Run) -> Result<Option<Place>>), ("juicefs", juicefs)]
    {
        match start(run) {
            Ok(Some(place)) => places.push(place),
            Ok(None) => report.skip(&format!("peers/{peer}"), "not installed")?,
            Err(error) => report.fail(&format!("peers/{peer}"), &format!("{error:#}"))?,
        }
    }
    data_rows(run, report, &places)?;
    small_rows(run, report, &places)
}

fn data_rows(run: &Run, report: &mut Report, places: &[Place]) -> Result<()> {
    let len = run.pick(512, 256) * MIB;
    let size = len / MIB;
    let [samples] = run.alternate(places.len(), Rounds::Many, |who, _| {
        let path = places[who].path("new");
        let time = load::write_seq(&path, len, Caching::Buffered, Finish::Close)?;
        remove(&path)?;
        Ok([load::mb_per_sec(len, time)])
    })?;
    let state = format!("new file of {size} MiB, closed");
    report.add(Finding::new("peers/seq-write", &state, "MB/s", &names(places), &samples))?;

    for place in places {
        load::write_seq(&data(place), len, Caching::Buffered, Finish::SyncAndClose)?;
    }
    let mut reread = |what: &str, state: &str, forget: &dyn Fn()| {
        let [samples] = run.alternate(places.len(), Rounds::Many, |who, _| {
            forget();
            let time = load::read_seq(&data(&places[who]), len, Caching::Buffered)?;
            Ok([load::mb_per_sec(len, time)])
        })?;
        let case = format!("peers/seq-reread{what}");
        let state = format!("{size} MiB written before; {state}");
        report.add(Finding::new(&case, &state, "MB/s", &names(places), &samples))
    };
    reread("", "nothing dropped", &|| ())?;
    let forget = || {
        load::drop_caches(Forget::Pages);
    };
    if load::drop_caches(Forget::Pages) {
        reread("-cold", "drop_caches before each read", &forget)?;
    }

    // Otherwise only the last measured contestant would have its pages in memory.
    for place in places {
        load::read_seq(&data(place), len, Caching::Buffered)?;
    }
    let [samples] = run.alternate(places.len(), Rounds::Many, |who, seed| {
        let file = load::open(&data(&places[who]), Caching::Buffered)?;
        let work = Random { verb: Verb::Read, threads: 1, time: run.slice(), seed };
        Ok([load::random(std::slice::from_ref(&file), len, work)?])
    })?;
    let state = format!("{size} MiB, 4 KiB, one thread; read once before, nothing dropped");
    report.add(Finding::new("peers/random-read", &state, "op/s", &names(places), &samples))
}

fn small_rows(run: &Run, report: &mut Report, places: &[Place]) -> Result<()> {
    let count = run.pick(10_000, 1_000);
    let samples = run.alternate(places.len(), Rounds::Few, |who, round| {
        let dir = places[who].path(&format!("small-{round}"));
        fs::create_dir(&dir)?;
        let create = load::write_small(&dir, count, SMALL, 1)?;
        let reread = load::read_small(&dir, count, 1)?;
        Ok([create, reread])
    })?;
    let rows = [("small-create", "created and written"), ("small-reread", "read again")];
    for ((what, state), samples) in rows.into_iter().zip(&samples) {
        let case = format!("peers/{what}");
        let state = format!("{count} files of 4 KiB, one thread, {state}");
        report.add(Finding::new(&case, &state, "us/file", &names(places), samples))?;
    }
    Ok(())
}

fn installed(program: &str) -> bool {
    Command::new(program)
        .arg("version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Store, cache and mount point of a peer.
fn directories(run: &Run, name: &str) -> Result<[PathBuf; 3]> {
    Ok([
        run.fresh(On::Disk, &format!("{name}-store"))?,
        run.fresh(On::Disk, &format!("{name}-cache"))?,
        run.fresh(On::Disk, &format!("{name}-mount"))?,
    ])
}

fn serve(
    run: &Run,
    name: &str,
    command: &mut Command,
    dirs: [PathBuf; 3],
) -> Result<Option<Place>> {
    let log = run.disk.path().join(format!("{name}.log"));
    let daemon = Daemon::start(command, &dirs[2], &log).with_context(|| name.to_owned())?;
    Ok(Some(Place::daemon(name, daemon, dirs.to_vec())))
}

fn rclone(run: &Run) -> Result<Option<Place>> {
    if !installed("rclone") {
        return Ok(None);
    }
    let dirs = directories(run, "rclone")?;
    let mut command = Command::new("rclone");
    command
        .arg("mount")
        .args([&dirs[0], &dirs[2]])
        .args(["--vfs-cache-mode", "full", "--vfs-write-back", "1h", "--config", "/dev/null"])
        .arg("--cache-dir")
        .arg(&dirs[1]);
    serve(run, "rclone", &mut command, dirs)
}

fn juicefs(run: &Run) -> Result<Option<Place>> {
    if !installed("juicefs") {
        return Ok(None);
    }
    let dirs = directories(run, "juicefs")?;
    let meta = format!("sqlite3://{}", dirs[1].join("meta.db").display());
    format_juicefs(&meta, &dirs[0])?;
    let mut command = Command::new("juicefs");
    command
        .args(["mount", "--writeback", "--upload-delay", "1h", "--no-usage-report", "--cache-dir"])
        .arg(dirs[1].join("cache"))
        .arg(&meta)
        .arg(&dirs[2]);
    serve(run, "juicefs", &mut command, dirs)
}

fn format_juicefs(meta: &str, store: &Path) -> Result<()> {
    let status = Command::new("juicefs")
        .args(["format", "--storage", "file", "--bucket"])
        .arg(format!("{}/", store.display()))
        .args([meta, "bench"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "`juicefs format` ended with {status}");
    Ok(())
}
