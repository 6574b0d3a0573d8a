//! `forebay-perf stage`: transfers beside `cp -a`, `rsync -a` and `dd`.
//!
//! Contestants take turns; each copies the same files to a place of its own (many small files on a file system of its
//! own), and its time ends when the destination is synced. The slow side is a mount of forebay in write-through whose
//! backing store answers every call after 1 ms, many at a time, as a remote file server does.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_stage::{Control, Outcome, Spec, What};

use crate::ground::Ground;
use crate::load::MIB;
use crate::mounts::Forebay;
use crate::parts::{Options, Part, Plain};
use crate::report::{Finding, Report, Target};
use crate::run::{Rounds, Run};

const PARTS: [Part<Plain>; 4] = [
    Part { name: "large", about: "one large file, on one disk", work: large },
    Part { name: "small-local", about: "many small files, on one disk", work: small_local },
    Part {
        name: "small-out",
        about: "many small files, to a side with 1 ms of latency",
        work: small_out,
    },
    Part {
        name: "small-in",
        about: "many small files, from a side with 1 ms of latency",
        work: small_in,
    },
];

const BOUND: Duration = Duration::from_secs(3600);

const SMALL: usize = 4096;

/// The number of files in a directory.
const FAN: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Stage,
    Cp,
    Rsync,
    Dd,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::Stage => "stage",
            Who::Cp => "cp -a",
            Who::Rsync => "rsync -a",
            Who::Dd => "dd",
        }
    }
}

/// Returns whether every target was reached.
pub fn measure(options: &Options) -> Result<bool> {
    crate::parts::measure(options, &PARTS, BOUND, || {
        let rsync = Command::new("rsync").arg("--version").stdout(Stdio::null()).status();
        rsync.context("rsync is missing: install it to compare with it").map(drop)
    })
}

fn large(run: &Run, report: &mut Report) -> Result<()> {
    let dir = run.disk.fresh("large")?;
    let size = run.pick(2048, 512) * MIB;
    let from = dir.join("from");
    fill(&from, size)?;
    let who = [Who::Stage, Who::Cp, Who::Dd];
    let [samples] = run.alternate(who.len(), Rounds::Few, |index, _| {
        let to = dir.join("to");
        let seconds = copy(who[index], &from, &to, What::File)?;
        fs::remove_file(&to)?;
        Ok([size as f64 / MIB as f64 / seconds])
    })?;
    let state = format!("{} MiB, warm page cache at the source, synced", size / MIB);
    let names = who.map(|who| who.name().to_owned());
    for other in ["cp -a", "dd"] {
        let finding = Finding::new("stage/large", &state, "MB/s", &names, &samples);
        report.add(finding.ratio_target(other, Target::AtLeast(0.9)))?;
    }
    fs::remove_dir_all(&dir)?;
    Ok(())
}

fn small_local(run: &Run, report: &mut Report) -> Result<()> {
    let dir = run.disk.fresh("small")?;
    let files = tree_size(run);
    let who = [Who::Stage, Who::Cp, Who::Rsync];
    let [samples] = run.alternate(who.len(), Rounds::Few, |index, _| {
        let ground = ground(run, &dir)?;
        let from = ground.dir.join("from");
        tree(run, &from)?;
        let seconds = copy(who[index], &from, &ground.dir.join("to"), What::Directory)?;
        Ok([files as f64 / seconds])
    })?;
    let state =
        format!("{files} files of 4 KiB on a new ext4, warm page cache at the source, synced");
    let names = who.map(|who| who.name().to_owned());
    for other in ["cp -a", "rsync -a"] {
        let finding = Finding::new("stage/small-local", &state, "files/s", &names, &samples);
        report.add(finding.ratio_target(other, Target::AtLeast(1.0)))?;
    }
    Ok(())
}

fn small_out(run: &Run, report: &mut Report) -> Result<()> {
    let dir = run.disk.fresh("small-out")?;
    slow(run, report, tree_size(run), ("stage/small-out", "to"), |who| {
        let ground = ground(run, &dir)?;
        let (from, far) = (ground.dir.join("from"), ground.dir.join("far"));
        tree(run, &from)?;
        fs::create_dir_all(&far)?;
        let mount = slow_mount(run, &far)?;
        copy(who, &from, &mount.mountpoint.join("to"), What::Directory)
    })
}

fn small_in(run: &Run, report: &mut Report) -> Result<()> {
    let dir = run.disk.fresh("small-in")?;
    slow(run, report, tree_size(run), ("stage/small-in", "from"), |who| {
        let ground = ground(run, &dir)?;
        let far = ground.dir.join("far");
        tree(run, &far.join("from"))?;
        let mount = slow_mount(run, &far)?;
        copy(who, &mount.mountpoint.join("from"), &ground.dir.join("to"), What::Directory)
    })
}

/// Makes a file system with room and inodes for the files at three places.
fn ground(run: &Run, below: &Path) -> Result<Ground> {
    Ground::make(below, run.pick(12 << 10, 3 << 10) * MIB)
}

fn slow(
    run: &Run,
    report: &mut Report,
    files: u64,
    (case, way): (&str, &str),
    mut seconds: impl FnMut(Who) -> Result<f64>,
) -> Result<()> {
    let who = [Who::Stage, Who::Cp, Who::Rsync];
    let [samples] = run
        .alternate(who.len(), Rounds::Few, |index, _| Ok([files as f64 / seconds(who[index])?]))?;
    let state =
        format!("{files} files of 4 KiB on a new ext4, {way} a store with 1 ms of latency, synced");
    let names = who.map(|who| who.name().to_owned());
    let finding = Finding::new(case, &state, "files/s", &names, &samples);
    report.add(finding.ratio_target("rsync -a", Target::AtLeast(3.0)))?;
    let finding = Finding::new(case, &state, "files/s", &names, &samples);
    report.add(finding.ratio_target("cp -a", Target::AtLeast(1.0)))
}

/// A mount whose backing store is `far`, with an empty tier, so that nothing is cached beforehand.
fn slow_mount(run: &Run, far: &Path) -> Result<Forebay> {
    let binary = run.binary.as_deref().context("no forebay binary (--forebay FILE)")?;
    let root = far.parent().context("the slow side lies in a directory")?;
    let [tier, mountpoint] = ["tier", "mnt"].map(|name| root.join(name));
    for dir in [&tier, &mountpoint] {
        fs::create_dir_all(dir)?;
    }
    let options = ["--policy", "write-through", "--throttle", "10GB,1ms"];
    let mut mount = Forebay::new(binary, root, [far.into(), tier, mountpoint], &options);
    mount.mount()?;
    Ok(mount)
}

/// Copies, and syncs the destination; returns the seconds of both.
fn copy(who: Who, from: &Path, to: &Path, what: What) -> Result<f64> {
    sync(from.parent().context("a source has a parent")?)?;
    let start = Instant::now();
    match who {
        Who::Stage => stage(from, to, what)?,
        Who::Cp => tool(Command::new("cp").arg("-a").arg(from).arg(to))?,
        Who::Rsync => {
            // With a slash at the end of the source the tree itself gets the name.
            let mut from = from.as_os_str().to_owned();
            from.push("/");
            tool(Command::new("rsync").arg("-a").arg(from).arg(to))?;
        }
        Who::Dd => tool(
            Command::new("dd")
                .arg(format!("if={}", from.display()))
                .arg(format!("of={}", to.display()))
                .args(["bs=4M", "conv=fsync", "status=none"]),
        )?,
    }
    sync(to.parent().context("a destination has a parent")?)?;
    Ok(start.elapsed().as_secs_f64())
}

fn stage(from: &Path, to: &Path, what: What) -> Result<()> {
    let place = |path: &Path| -> Result<forebay_stage::Place> {
        let (root, name) = (path.parent(), path.file_name());
        let (root, name) = (root.context("no parent")?, name.context("no name")?);
        Ok(forebay_stage::Place { root: root.into(), path: Path::new(name).into() })
    };
    let spec = Spec {
        id: "bench".into(),
        source: place(from)?,
        destination: place(to)?,
        what,
        options: forebay_stage::Options::default(),
    };
    let report = forebay_stage::run(&spec, &Control::new(), Duration::from_secs(1), |_| ())
        .map_err(|e| anyhow::anyhow!("{e}"))?;
    ensure!(report.outcome == Outcome::Done, "the transfer ended otherwise: {report:?}");
    Ok(())
}

fn tool(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn tree_size(run: &Run) -> u64 {
    run.pick(100_000, 10_000)
}

/// Directories of 1,000 files each.
fn tree(run: &Run, at: &Path) -> Result<u64> {
    let files = tree_size(run);
    for number in 0..files {
        let dir = at.join(format!("d{}", number / FAN));
        if number % FAN == 0 {
            fs::create_dir_all(&dir)?;
        }
        fs::write(dir.join(format!("file-{number}")), [number as u8; SMALL])?;
    }
    Ok(files)
}

fn fill(path: &Path, size: u64) -> Result<()> {
    use std::io::Write;
    let mut file = fs::File::create(path)?;
    let mut block = vec![0u8; MIB as usize];
    for number in 0..size / MIB {
        block.iter_mut().zip(number..).for_each(|(byte, n)| *byte = (n * 31 + 7) as u8);
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

fn sync(dir: &Path) -> Result<()> {
    let dir = fs::File::open(dir)?;
    // SAFETY: an open descriptor.
    let done = unsafe { libc::syncfs(std::os::fd::AsRawFd::as_raw_fd(&dir)) };
    ensure!(done == 0, "syncfs: {}", std::io::Error::last_os_error());
    Ok(())
}
