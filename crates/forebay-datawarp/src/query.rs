//! Reading the state of stages, and waiting for them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use forebay_base::{Error, Result};

use crate::daemon::{Daemon, is_away};
use crate::failed::files_of;
use crate::place::{Place, Site, invalid};
use crate::records::{Transfer, What};
use crate::standing::{Counts, Scope, Standing, counting, is_above, is_of};

/// The pauses between two looks at a transfer during a wait: they grow from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How long a wait goes on without an answer: the node daemon may be replaced meanwhile.
const OUTAGE: Duration = Duration::from_secs(300);

pub fn file(site: &Site, all: &[Transfer], path: &Path) -> Result<Counts> {
    let place = site.place(path)?;
    let transfer = newest(&place, all)?;
    let mut counts = Counts::default();
    counts.add(file_of(&place, transfer, &place.path)?.ok_or_else(|| none(&place.path))?, 1);
    Ok(counts)
}

pub fn tree(path: &Path) -> Result<Counts> {
    let site = Site::here()?;
    let (place, all) = (site.place(path)?, site.transfers()?);
    let stages = stages_of(&place, &all)?;
    let mut counts = Counts::default();
    for transfer in &stages {
        counts = counts.and(match is_above(transfer, &place.path) {
            true => part_of(&place, transfer, &stages)?,
            false => whole(&place, transfer, &stages)?,
        });
    }
    Ok(counts)
}

/// The newest stage of one file.
pub fn newest<'t>(place: &Place<'_>, all: &'t [Transfer]) -> Result<&'t Transfer> {
    let found = counting(&place.only(all), &place.path, Scope::File);
    found.first().copied().ok_or_else(|| none(&place.path))
}

/// The stages that count for a directory.
fn stages_of<'t>(place: &Place<'_>, all: &'t [Transfer]) -> Result<Vec<&'t Transfer>> {
    let found = counting(&place.only(all), &place.path, Scope::Tree);
    if found.is_empty() { Err(none(&place.path)) } else { Ok(found) }
}

/// The error of a path without a stage.
fn none(path: &Path) -> Error {
    match path.symlink_metadata() {
        Ok(_) => invalid(format!("{}: no stage of it was started", path.display())),
        Err(e) => Error::io(e, path.display().to_string()),
    }
}

/// The state of one file in a stage of it, or of a directory above it. `None`: that stage does not have the file.
fn file_of(place: &Place<'_>, transfer: &Transfer, path: &Path) -> Result<Option<Standing>> {
    let standing = Standing::of(transfer);
    let ended = matches!(standing, Some(Standing::Complete | Standing::Failed));
    if is_of(transfer, path) || !ended {
        return Ok(standing);
    }
    let failed = standing == Some(Standing::Failed);
    if failed && files_of(place, transfer)?.iter().any(|one| path.starts_with(&one.path)) {
        return Ok(Some(Standing::Failed));
    }
    Ok(is_there(transfer, path).then_some(Standing::Complete))
}

/// Whether a file below a staged directory is the one that the stage brought: a file that was made or
/// changed later must not pass for staged.
fn is_there(transfer: &Transfer, path: &Path) -> bool {
    let Ok(here) = path.metadata() else { return false };
    let below = path.strip_prefix(transfer.inside()).unwrap_or(path);
    let there = transfer.outside().join(below).metadata();
    let version = |file: &std::fs::Metadata| (file.len(), file.mtime(), file.mtime_nsec());
    there.is_ok_and(|there| there.is_file() && version(&there) == version(&here))
}

/// The counts of all files of a stage.
fn whole(place: &Place<'_>, transfer: &Transfer, stages: &[&Transfer]) -> Result<Counts> {
    let mut counts = Counts::default();
    let Some(standing) = Standing::of(transfer) else { return Ok(counts) };
    if transfer.what == What::File {
        counts.add(standing, 1);
        return Ok(counts);
    }
    let actual = transfer.current();
    match standing {
        Standing::Complete => counts.complete = actual.map_or(0, |actual| actual.files),
        Standing::Failed => {
            counts.complete = actual.map_or(0, |actual| actual.files);
            let failures = actual.map_or(0, |actual| actual.failures).max(1);
            let renewed = renewed_of(place, transfer, stages)?;
            counts.failed = failures.saturating_sub(renewed);
        }
        // Until the transfer has counted its files, one file stands for all.
        Standing::Pending => {
            let progress = transfer.progress.clone().unwrap_or_default();
            counts.failed = progress.failures;
            counts.pending = progress.files_total.saturating_sub(progress.failures).max(1);
        }
        Standing::Deferred => counts.deferred = files_below(transfer.inside()).len().max(1) as u64,
    }
    Ok(counts)
}

/// The number of failed files that have been staged anew.
fn renewed_of(place: &Place<'_>, transfer: &Transfer, stages: &[&Transfer]) -> Result<u64> {
    let newer: Vec<_> = stages.iter().filter(|stage| stage.id > transfer.id).collect();
    if newer.is_empty() {
        return Ok(0);
    }
    let failed = files_of(place, transfer)?;
    let renewed = failed.iter().filter(|one| newer.iter().any(|stage| is_of(stage, &one.path)));
    Ok(renewed.count() as u64)
}

/// The counts of the files below the place, for a stage of a directory above it.
fn part_of(place: &Place<'_>, transfer: &Transfer, stages: &[&Transfer]) -> Result<Counts> {
    let mut counts = Counts::default();
    let own = |path: &Path| stages.iter().any(|stage| is_of(stage, path));
    for path in files_below(&place.path).iter().filter(|path| !own(path)) {
        if let Some(standing) = file_of(place, transfer, path)? {
            counts.add(standing, 1);
        }
    }
    Ok(counts)
}

/// Regular files below a directory, as far as the caller may read it.
fn files_below(top: &Path) -> Vec<std::path::PathBuf> {
    let (mut files, mut dirs) = (Vec::new(), vec![top.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

/// # Errors
///
/// The errno of a stage that failed, ECANCELED if it was cancelled, EDEADLK for a stage that begins only
/// when the caller's job ends.
pub fn wait_file(site: &Site, all: &[Transfer], path: &Path) -> Result<()> {
    let place = site.place(path)?;
    let transfer = ended(&site.daemon, newest(&place, all)?)?;
    let standing = file_of(&place, &transfer, &place.path)?;
    verdict(&place, &transfer, standing)
}

pub fn wait_tree(path: &Path) -> Result<()> {
    let site = Site::here()?;
    let (place, all) = (site.place(path)?, site.transfers()?);
    let mut verdicts = Vec::new();
    for transfer in stages_of(&place, &all)? {
        let transfer = ended(&site.daemon, transfer)?;
        let mut standing = Standing::of(&transfer);
        if standing == Some(Standing::Failed) && is_above(&transfer, &place.path) {
            let failed = files_of(&place, &transfer)?;
            let ours = failed
                .iter()
                .any(|one| one.path.starts_with(&place.path) || place.path.starts_with(&one.path));
            standing = Some(if ours { Standing::Failed } else { Standing::Complete });
        }
        verdicts.push(verdict(&place, &transfer, standing));
    }
    verdicts.into_iter().collect()
}

pub fn verdict(place: &Place<'_>, transfer: &Transfer, standing: Option<Standing>) -> Result<()> {
    let shown = || transfer.inside().display().to_string();
    match standing {
        Some(Standing::Complete) => Ok(()),
        Some(Standing::Failed) => {
            let failed = files_of(place, transfer)?;
            let its = failed.iter().find(|one| one.path.starts_with(&place.path));
            let errno = its.or(failed.first()).map_or(libc::EIO, |one| one.errno);
            Err(Error::os(errno, shown()))
        }
        Some(Standing::Deferred | Standing::Pending) => Err(Error::os(libc::EDEADLK, shown())),
        None => Err(Error::os(libc::ECANCELED, shown())),
    }
}

/// Waits until a transfer is no longer pending.
pub fn ended(daemon: &Daemon, transfer: &Transfer) -> Result<Transfer> {
    let mut transfer = transfer.clone();
    let mut pause = FIRST_PAUSE;
    let mut answered = Instant::now();
    while Standing::of(&transfer) == Some(Standing::Pending) {
        sleep(pause);
        pause = (2 * pause).min(LAST_PAUSE);
        match daemon.get(&format!("/v1/transfers/{}", transfer.id)) {
            Ok(now) => (transfer, answered) = (now, Instant::now()),
            Err(error) if is_away(&error) && answered.elapsed() < OUTAGE => {}
            Err(error) => return Err(error),
        }
    }
    Ok(transfer)
}
