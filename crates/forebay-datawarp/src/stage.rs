//! Orders for stages: starting, deferring, revoking, ending.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use forebay_base::{Error, Result};
use rustix::fs::{Access, access, fsync};
use serde_json::{Value, json};

use crate::concurrency;
use crate::place::{Place, Site, invalid};
use crate::query::{self, ended};
use crate::records::{Direction, Mode, NewTransfer, Options, State, Transfer, Want, What, When};
use crate::standing::{Scope, Standing, counting, is_above, is_below, is_of};

/// The time that a stage gets to end: it ends at the next piece of a file.
const ENDING: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// `enum dw_stage_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Immediate,
    AtJobEnd,
    Revoke,
    Activate,
}

impl Type {
    pub fn of(number: i32) -> Result<Type> {
        match number {
            0 => Ok(Type::Immediate),
            1 => Ok(Type::AtJobEnd),
            2 => Ok(Type::Revoke),
            3 => Ok(Type::Activate),
            _ => Err(invalid("no such type of a stage")),
        }
    }
}

/// An order for one stage.
#[derive(Debug, Clone)]
pub struct Stage {
    pub direction: Direction,
    pub what: What,
    pub inside: PathBuf,
    pub outside: PathBuf,
    pub when: When,
}

impl Stage {
    /// Orders the stage, now or deferred; returns the new transfer, or `None` if it was ordered before.
    fn order(&self, site: &Site, all: &[Transfer]) -> Result<Option<Transfer>> {
        self.check()?;
        let place = site.place(&self.inside)?;
        let outside = absolute(&self.outside)?;
        let known = place.only(all);
        if self.when == When::AtEnd
            && let Some(put_off) = known.iter().find(|one| {
                is_of(one, &place.path) && Standing::of(one) == Some(Standing::Deferred)
            })
        {
            let same = put_off.outside().components().eq(outside.components());
            return if same { Ok(None) } else { Err(busy(&place.path)) };
        }
        require_idle(&place, &known)?;
        let (source, destination) = match self.direction {
            Direction::In => (outside.as_path(), place.path.as_path()),
            Direction::Out => (place.path.as_path(), outside.as_path()),
        };
        let threads = match place.instance.mode {
            Mode::Private => concurrency::of(&place.instance.id),
            // The mount decides how it flushes.
            _ => None,
        };
        let made = site.daemon.post(
            "/v1/transfers",
            &NewTransfer {
                instance: &place.instance.id,
                node: &site.node,
                direction: self.direction,
                what: self.what,
                source,
                destination,
                when: self.when,
                options: Options { threads },
            },
        )?;
        Ok(Some(made))
    }

    /// Refuses now a stage that would certainly fail later.
    fn check(&self) -> Result<()> {
        let (source, destination) = match self.direction {
            Direction::In => (&self.outside, &self.inside),
            Direction::Out => (&self.inside, &self.outside),
        };
        readable(source, self.what)?;
        match self.what {
            What::Directory => writable_dir(destination),
            _ => {
                if destination.is_dir() {
                    return Err(Error::os(libc::EISDIR, destination.display().to_string()));
                }
                let dir = destination.parent().unwrap_or(Path::new("/"));
                writable_dir(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })
            }
        }
    }
}

/// Begins several stages, or none: if one is refused, those that were begun are ended.
pub fn begin(stages: &[Stage]) -> Result<()> {
    let site = Site::here()?;
    let all = site.transfers()?;
    let mut begun = Vec::new();
    for stage in stages {
        match stage.order(&site, &all) {
            Ok(made) => begun.extend(made),
            Err(error) => {
                // The first error is the one to return.
                let _ = begun.iter().try_for_each(|transfer| end(&site, transfer));
                return Err(error);
            }
        }
    }
    // A failed stage that cannot be revoked still holds its instance, but the new stages have begun.
    let _ = stages.iter().try_for_each(|stage| give_up_failed(&site, &all, stage));
    Ok(())
}

/// The stages of a list: each file keeps its name in the directory.
pub fn listed(
    direction: Direction,
    files: &[PathBuf],
    dir: &Path,
    when: When,
) -> Result<Vec<Stage>> {
    let mut names: HashSet<OsString> = HashSet::new();
    let stage = |file: &PathBuf| {
        let name = file.file_name().ok_or_else(|| invalid("a name of no file"))?;
        if !names.insert(name.into()) {
            return Err(invalid(format!("{} is there twice", Path::new(name).display())));
        }
        let (inside, outside) = match direction {
            Direction::In => (dir.join(name), file.clone()),
            Direction::Out => (file.clone(), dir.join(name)),
        };
        Ok(Stage { direction, what: What::File, inside, outside, when })
    };
    files.iter().map(stage).collect()
}

/// Gives the order `verb` for all deferred stages of exactly these paths.
pub fn alter_deferred(paths: &[PathBuf], verb: &str) -> Result<()> {
    let site = Site::here()?;
    let all = site.transfers()?;
    let mut found = Vec::new();
    for path in paths {
        let place = site.place(path)?;
        let known = place.only(&all);
        let put_off = known
            .into_iter()
            .filter(|one| is_of(one, &place.path) && Standing::of(one) == Some(Standing::Deferred));
        let before = found.len();
        found.extend(put_off);
        if found.len() == before {
            // This error says whether the stage or the file is missing.
            query::newest(&place, &[])?;
        }
    }
    for transfer in found {
        order(&site, &transfer.id, verb)?;
    }
    Ok(())
}

/// Ends stages and revokes failed ones; complete stages stay complete.
pub fn terminate(paths: &[PathBuf], scope: Scope) -> Result<()> {
    let site = Site::here()?;
    let all = site.transfers()?;
    for path in paths {
        let place = site.place(path)?;
        let known = place.only(&all);
        let its = |one: &&Transfer| {
            is_of(one, &place.path) || (scope == Scope::Tree && is_below(one, &place.path))
        };
        let (its, others): (Vec<&Transfer>, Vec<&Transfer>) = known.iter().copied().partition(its);
        let started: Vec<&Transfer> =
            its.into_iter().filter(|one| Standing::of(one).is_some()).collect();
        if started.is_empty() {
            part_of_another(&place, &others, scope)?;
        }
        for transfer in started {
            end(&site, transfer)?;
        }
    }
    Ok(())
}

/// Refuses to end a part of a directory's stage: it ends as a whole or not at all.
fn part_of_another(place: &Place<'_>, others: &[&Transfer], scope: Scope) -> Result<()> {
    let above = counting(others, &place.path, scope);
    match above.first().and_then(|one| Standing::of(one)) {
        None => query::newest(place, &[]).map(|_| ()),
        Some(Standing::Complete) => Ok(()),
        Some(_) => Err(Error::os(
            libc::ENOTSUP,
            format!("{} is staged with its directory", place.path.display()),
        )),
    }
}

/// Ends a transfer and revokes it: an instance still waits for a transfer that is only cancelled.
fn end(site: &Site, transfer: &Transfer) -> Result<()> {
    let url = format!("/v1/transfers/{}", transfer.id);
    let deadline = Instant::now() + ENDING;
    let mut now = transfer.clone();
    loop {
        let over = now
            .state()
            .is_some_and(|state| matches!(state, State::Done | State::Failed | State::Cancelled));
        match (now.state(), now.want) {
            (Some(State::Done), _) => return Ok(()),
            (_, Want::Revoked) if over => return Ok(()),
            (_, Want::Revoked) => {}
            (Some(State::Running), Want::Cancelled) => {}
            (Some(State::Running), _) => tell(site, &now.id, "cancel")?,
            _ => tell(site, &now.id, "revoke")?,
        }
        if Instant::now() > deadline {
            return Err(Error::os(libc::ETIMEDOUT, transfer.inside().display().to_string()));
        }
        sleep(PAUSE);
        now = site.daemon.get(&url)?;
    }
}

/// Gives an order, and ignores a refusal because the transfer has changed meanwhile: the caller looks again.
fn tell(site: &Site, id: &str, verb: &str) -> Result<()> {
    match order(site, id, verb) {
        Err(error) if error.errno() != libc::EINVAL => Err(error),
        _ => Ok(()),
    }
}

fn order(site: &Site, id: &str, verb: &str) -> Result<()> {
    site.daemon.post::<Value>(&format!("/v1/transfers/{id}/{verb}"), &json!({})).map(|_| ())
}

/// Refuses a file that a stage is active on: only one may be at a time.
fn require_idle(place: &Place<'_>, known: &[&Transfer]) -> Result<()> {
    let active = known.iter().any(|one| {
        let concerned =
            is_of(one, &place.path) || is_above(one, &place.path) || is_below(one, &place.path);
        concerned && Standing::of(one) == Some(Standing::Pending)
    });
    if active { Err(busy(&place.path)) } else { Ok(()) }
}

/// Revokes failed stages of a place for which a new stage has begun.
fn give_up_failed(site: &Site, all: &[Transfer], stage: &Stage) -> Result<()> {
    let place = site.place(&stage.inside)?;
    let failed = place
        .only(all)
        .into_iter()
        .filter(|one| is_of(one, &place.path) && Standing::of(one) == Some(Standing::Failed));
    for transfer in failed {
        tell(site, &transfer.id, "revoke")?;
    }
    Ok(())
}

fn busy(path: &Path) -> Error {
    Error::os(libc::EBUSY, format!("{}: a stage of it is active", path.display()))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io(e, path.display().to_string()))
}

fn readable(path: &Path, what: What) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(e, path.display().to_string());
    let is_dir = path.metadata().map_err(failed)?.is_dir();
    match (what, is_dir) {
        (What::Directory, false) => Err(Error::os(libc::ENOTDIR, path.display().to_string())),
        (What::File, true) => Err(Error::os(libc::EISDIR, path.display().to_string())),
        _ => access(path, Access::READ_OK).map_err(|e| failed(e.into())),
    }
}

fn writable_dir(path: &Path) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(e, path.display().to_string());
    match path.metadata().map_err(failed)?.is_dir() {
        true => access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| failed(e.into())),
        false => Err(Error::os(libc::ENOTDIR, path.display().to_string())),
    }
}

/// Waits until the bytes written to a file of a cache are on its backing store.
///
/// # Errors
///
/// EINVAL for a file that is in no cache instance.
pub fn sync_complete(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    fsync(fd).map_err(|e| Error::io(e.into(), path.display().to_string()))?;
    let site = Site::here()?;
    let place = site.place(path)?;
    let twin = place.twin().ok_or_else(|| invalid("no cache: there is nothing to sync to"))?;
    let flush: Transfer = site.daemon.post(
        "/v1/transfers",
        &NewTransfer {
            instance: &place.instance.id,
            node: &site.node,
            direction: Direction::Out,
            what: if place.path.is_dir() { What::Directory } else { What::File },
            source: &place.path,
            destination: &twin,
            when: When::Now,
            options: Options::default(),
        },
    )?;
    let flush = ended(&site.daemon, &flush)?;
    query::verdict(&place, &flush, Standing::of(&flush))
}
