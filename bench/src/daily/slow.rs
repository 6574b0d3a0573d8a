//! Work on a store that answers late.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{seconds, tell, there};
use crate::load::{self, Forget};
use crate::mounts::{Daemon, Place};
use crate::report::{Finding, Report, Target};
use crate::run::{On, Rounds, Run, SlowStore};
use crate::stat::Samples;

/// The delay of each request to the store.
const FAR: Duration = Duration::from_millis(5);

/// By default a mount and the kernel cache names and attributes for a second.
const TIME_TO_LIVE: Duration = Duration::from_millis(1200);

/// A contestant and its store.
struct Far {
    /// Dropped before the store below it.
    place: Place,
    /// The store below the place.
    _store: SlowStore,
}

/// forebay with its defaults, forebay with a trust of a minute, rclone where it is installed, a store itself.
///
/// Files are made before anything is mounted: a contestant that caches names for a minute does not see later ones.
fn contestants(run: &Run, delay: Duration, fill: impl Fn(&Path) -> Result<()>) -> Result<Vec<Far>> {
    let filled = || -> Result<SlowStore> {
        let store = run.slow_store(On::Tmpfs, delay)?;
        fill(store.source())?;
        Ok(store)
    };
    let mut all = Vec::new();
    for (name, options) in [("forebay", &[][..]), ("forebay --trust 60s", &["--trust", "60s"])] {
        let store = filled()?;
        let mut forebay = run.forebay_at(On::Tmpfs, store.dir().to_owned(), options)?;
        forebay.mount()?;
        let mut place = Place::forebay(forebay);
        name.clone_into(&mut place.name);
        all.push(Far { place, _store: store });
    }
    if there("rclone") {
        let store = filled()?;
        all.push(Far { place: rclone(run, store.dir())?, _store: store });
    }
    let store = filled()?;
    let place = Place::at("store", store.dir());
    all.push(Far { place, _store: store });
    Ok(all)
}

fn rclone(run: &Run, store: &Path) -> Result<Place> {
    let dirs = ["rclone-mount", "rclone-cache"].map(|name| run.fresh(On::Tmpfs, name));
    let [mountpoint, cache] = dirs;
    let (mountpoint, cache) = (mountpoint?, cache?);
    let mut command = Command::new("rclone");
    command.args(["mount", "--vfs-cache-mode", "full", "--cache-dir"]).arg(&cache);
    command.args(["--config", "/dev/null"]).arg(store).arg(&mountpoint);
    let log = run.disk.path().join("rclone.log");
    let daemon = Daemon::start(&mut command, &mountpoint, &log).context("rclone")?;
    Ok(Place::daemon("rclone", daemon, vec![mountpoint, cache]))
}

/// Each of the contestants with each of the rounds.
fn each<const N: usize>(run: &Run, these: [usize; N]) -> impl Iterator<Item = (usize, u64)> {
    let rounds = run.few_rounds() as u64;
    these.into_iter().flat_map(move |this| (1..=rounds).map(move |round| (this, round)))
}

fn names_of(all: &[Far]) -> Vec<String> {
    all.iter().map(|far| far.place.name.clone()).collect()
}

/// A row in seconds, beside the store itself.
fn row(
    report: &mut Report,
    all: &[Far],
    (case, state): (&str, &str),
    aim: Option<Target>,
    samples: &Samples,
) -> Result<()> {
    let state = format!("{state}; {} ms a request", FAR.as_millis());
    let finding = Finding::new(case, &state, "s", &names_of(all), samples);
    report.add(match aim {
        Some(aim) => finding.target(aim),
        None => finding.ratio_target("store", Target::AtMost(1.0)),
    })
}

/// Each round reads files that were never looked at before.
pub fn cold(run: &Run, report: &mut Report) -> Result<()> {
    for delay in [0, 1, 5] {
        let count = run.pick(if delay == 0 { 10_000 } else { 2_000 }, 400);
        let name = |readers, round| format!("cold-{readers}-{round}");
        let all = contestants(run, Duration::from_millis(delay), |source| {
            for (readers, round) in each(run, [1, 16]) {
                let dir = source.join(name(readers, round));
                fs::create_dir(&dir)?;
                load::write_small(&dir, count, 8 << 10, 1)?;
            }
            Ok(())
        })?;
        for readers in [1, 16] {
            let [samples] = run.alternate(all.len(), Rounds::Few, |who, round| {
                let dir = name(readers, round);
                load::drop_caches(Forget::NamesAndInodes);
                let begun = Instant::now();
                load::read_small(&all[who].place.path(&dir), count, readers)?;
                Ok([begun.elapsed().as_secs_f64()])
            })?;
            let state =
                format!("{count} files of 8 KiB, read first by {readers}; {delay} ms a request");
            let case = format!("daily-slow/cold-{delay}ms-{readers}t");
            let finding = Finding::new(&case, &state, "s", &names_of(&all), &samples);
            report.add(finding.ratio_target("store", Target::AtMost(1.3)))?;
        }
    }
    Ok(())
}

pub fn list(run: &Run, report: &mut Report) -> Result<()> {
    let count = run.pick(10_000, 2_000);
    let all = contestants(run, FAR, |source| {
        for (_, round) in each(run, [0]) {
            let dir = source.join(format!("list-{round}"));
            fs::create_dir(&dir)?;
            load::create_empty(&dir, count)?;
        }
        Ok(())
    })?;
    let [cold, warm] = run.alternate(all.len(), Rounds::Few, |who, round| {
        let dir = format!("list-{round}");
        let look = || seconds(Command::new("ls").arg("-l").arg(all[who].place.path(&dir)));
        Ok([look()?, look()?])
    })?;
    let aim = Target::AtMost(4.0 * count as f64 / 10_000.0);
    let state = format!("ls -l of {count} names, cold");
    row(report, &all, ("daily-slow/ls", &state), Some(aim), &cold)?;
    let state = format!("ls -l of {count} names, again at once");
    row(report, &all, ("daily-slow/ls-again", &state), None, &warm)
}

/// A repository of 475 files in 72 directories.
fn repository(at: &Path) -> Result<()> {
    for number in 0..475 {
        let dir = at.join(format!("d{}/d{}", number % 8, number % 72));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("f{number}.c")), load::Block::new(6000).bytes())?;
    }
    git_in(at, &["init", "-q"])?;
    git_in(at, &["add", "."])?;
    let who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
    git_in(at, &[&who[..], &["commit", "-q", "-m", "files"]].concat())
}

fn git_command(at: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    // Without the user's own settings, and without a refusal of another user's files.
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.args(["-c", "safe.directory=*"]).arg("-C").arg(at).args(arguments);
    command
}

fn git_in(at: &Path, arguments: &[&str]) -> Result<()> {
    tell(&mut git_command(at, arguments)).map(drop)
}

pub fn git(run: &Run, report: &mut Report) -> Result<()> {
    if !there("git") {
        return report.skip("daily-slow/git", "not installed (Debian: git)");
    }
    let origin = run.fresh(On::Tmpfs, "origin")?.join("repository");
    fs::create_dir(&origin)?;
    repository(&origin)?;
    let all = contestants(run, FAR, |source| {
        for (_, round) in each(run, [0]) {
            let copy = source.join(format!("repository-{round}"));
            tell(Command::new("cp").arg("-a").arg(&origin).arg(&copy))?;
        }
        Ok(())
    })?;
    let samples = run.alternate(all.len(), Rounds::Few, |who, round| {
        let place = &all[who].place;
        let at = place.path(&format!("repository-{round}"));
        let status = || -> Result<f64> {
            let begun = Instant::now();
            let said = tell(&mut git_command(&at, &["status", "--porcelain"]))?;
            ensure!(said.is_empty(), "git status: {}", String::from_utf8_lossy(&said));
            Ok(begun.elapsed().as_secs_f64())
        };
        // The first status writes the index anew, since the copy has other inodes.
        status()?;
        std::thread::sleep(TIME_TO_LIVE);
        load::drop_caches(Forget::NamesAndInodes);
        let cold = status()?;
        let warm = status()?;
        let to = place.path(&format!("clone-{round}"));
        let (from, to) = (format!("file://{}", origin.display()), to.display().to_string());
        let clone = seconds(&mut git_command(&origin, &["clone", "-q", &from, &to]))?;
        Ok([cold, warm, clone])
    })?;
    let rows = [
        ("git-status", "git status of 475 files in 72 directories, time to live over", 0.5),
        ("git-status-again", "the same again at once", 0.3),
        ("git-clone", "git clone of 475 files", 8.0),
    ];
    for ((what, state, aim), samples) in rows.into_iter().zip(&samples) {
        let case = format!("daily-slow/{what}");
        row(report, &all, (&case, state), Some(Target::AtMost(aim)), samples)?;
    }
    Ok(())
}

pub fn archive(run: &Run, report: &mut Report) -> Result<()> {
    let count = run.pick(1_000, 200);
    let from = run.fresh(On::Tmpfs, "tree")?;
    let archive = load::archive(&from, count)?;
    let all = contestants(run, FAR, |_| Ok(()))?;
    let [made, gone] = run.alternate(all.len(), Rounds::Few, |who, round| {
        let dir = all[who].place.path(&format!("tree-{round}"));
        fs::create_dir(&dir)?;
        let made = seconds(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&dir))?;
        let gone = seconds(Command::new("rm").arg("-r").arg(&dir))?;
        Ok([made, gone])
    })?;
    let state = format!("tar -x of {count} files of 1 to 32 KiB");
    row(report, &all, ("daily-slow/untar", &state), None, &made)?;
    let state = format!("rm -r of {count} files, at once");
    row(report, &all, ("daily-slow/remove", &state), None, &gone)
}
