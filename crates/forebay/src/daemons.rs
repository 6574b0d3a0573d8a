//! The daemons of this machine, also those whose mount is gone: how a command finds the one that it is to ask.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_engine::Tier;
use serde_json::Value;

use crate::config::ConfigFlags;
use crate::http::Client;
use crate::mounts::{Mounts, Place};
use crate::units::human_size;
use crate::wire::Phase;

/// The kernel's table of Unix sockets. A tier whose path is too long for a socket's address is not in it.
const SOCKETS: &str = "/proc/net/unix";

/// The flag of a socket in the table that takes connections.
const LISTENS: &[u8] = b"00010000";

/// The time that all daemons have to say whether they are the one.
const LOOK: Duration = Duration::from_secs(3);

/// A daemon whose mount is gone and which still drains.
pub struct Drainer {
    /// The mount point is the former one.
    pub place: Place,
    pub status: Value,
}

impl Drainer {
    /// The daemon of a tier, if its status says that its mount is gone.
    pub fn of(tier: &Path, status: Value) -> Option<Drainer> {
        let mountpoint = status["mountpoint"].as_str()?.into();
        let place = Place { mountpoint, tier: tier.into(), path: PathBuf::new() };
        (Phase::of(&status) == Phase::Unmounted).then_some(Drainer { place, status })
    }

    /// The daemon of a tier that is not mounted, if it answers.
    pub fn at(tier: &Path) -> Option<Drainer> {
        Drainer::of(tier, Client::new(tier).within(LOOK).get("/v1/status").ok()?)
    }

    /// All that this user may ask. Each is asked at the same time.
    pub fn all(mounts: &Mounts) -> Vec<Drainer> {
        let table = std::fs::read(SOCKETS).unwrap_or_default();
        let mut tiers = listening(&table);
        tiers.retain(|tier| mounts.ours().all(|(_, mounted)| mounted != tier));
        let answers = statuses(&tiers, LOOK);
        let until = Instant::now() + LOOK;
        let next = || answers.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        let said = std::iter::from_fn(next).filter_map(|(n, status)| Some((n, status.ok()?)));
        let mut found: Vec<_> =
            said.filter_map(|(n, status)| Some((n, Drainer::of(&tiers[n], status)?))).collect();
        found.sort_by_key(|(n, _)| *n);
        found.into_iter().map(|(_, drainer)| drainer).collect()
    }

    /// Who drains what, and how much of it is left.
    pub fn told(&self) -> String {
        let Place { mountpoint, tier, .. } = &self.place;
        format!(
            "the tier {} is still drained by the daemon of the former mount {} (pid {}, {} left)",
            tier.display(),
            mountpoint.display(),
            self.status["pid"],
            human_size(self.status["dirty_bytes"].as_u64().unwrap_or(0))
        )
    }

    /// Whether the tier is this user's. Root asks other users' daemons, and believes them nothing about paths.
    fn is_own(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        std::fs::metadata(&self.place.tier).is_ok_and(|tier| tier.uid() == own)
    }
}

/// Asks the daemons of these tiers for their status, all at the same time. Each answer comes with the place of its
/// tier in the list; a daemon that hangs keeps no other waiting.
pub fn statuses(tiers: &[PathBuf], patience: Duration) -> Receiver<(usize, Result<Value>)> {
    let (sender, answers) = mpsc::channel();
    for (n, tier) in tiers.iter().cloned().enumerate() {
        let sender = sender.clone();
        let ask = move || Client::new(&tier).within(patience).get("/v1/status");
        // The receiver may have stopped listening.
        thread::spawn(move || drop(sender.send((n, ask()))));
    }
    answers
}

/// The tiers on whose control socket a process listens, in the order of their paths.
fn listening(table: &[u8]) -> Vec<PathBuf> {
    let mut tiers: Vec<PathBuf> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let (facts, path) = line.split_at(line.iter().position(|byte| *byte == b'/')?);
            let mut facts = facts.split(|byte| *byte == b' ').filter(|fact| !fact.is_empty());
            let socket = Path::new(OsStr::from_bytes(path));
            let tier = socket.parent()?.parent()?;
            let is_control = facts.nth(3) == Some(LISTENS) && Tier::socket_path(tier) == socket;
            is_control.then(|| tier.into())
        })
        .collect();
    tiers.sort();
    tiers.dedup();
    tiers
}

/// The mount point of a mount that the configuration file describes under this name.
pub fn at_of(name: &Path, config: ConfigFlags) -> Result<Option<PathBuf>> {
    let Some(name) = name.to_str().filter(|name| !name.contains('/')) else { return Ok(None) };
    let sections = config.read_file()?.sections.into_iter();
    Ok(sections.filter(|section| section.name == name).map(|section| section.at).next())
}

impl Mounts {
    /// The mount that a path is in; the daemon of the tier whose directory the path is; or the daemon that still
    /// drains what was written to the mount that the path was in.
    pub fn daemon_at(&self, typed: &Path) -> Result<Place> {
        self.find(typed).or_else(|error| {
            let path = self.absolute(typed)?;
            match Tier::socket_path(&path).exists() {
                true => Ok(self.of_tier(path)),
                false => self.formerly(&path).ok_or(error),
            }
        })
    }

    /// Like [`Mounts::daemon_at`], also for the name of a mount that the configuration file describes.
    pub fn daemon_of(&self, typed: &Path) -> Result<Place> {
        self.daemon_at(typed).or_else(|error| match at_of(typed, ConfigFlags::default()) {
            Ok(Some(at)) => self.daemon_at(&at),
            _ => Err(error),
        })
    }

    /// The mount of `path`, or the implied one.
    pub fn daemon_or_implied(&self, path: Option<&Path>) -> Result<Place> {
        path.map_or_else(|| self.implied(), |path| self.daemon_of(path))
    }

    /// The daemon of a place, if its mount is gone.
    pub fn drainer(&self, place: &Place) -> Option<Drainer> {
        let is_mounted = self.ours().any(|(_, tier)| tier == place.tier);
        (!is_mounted).then(|| Drainer::at(&place.tier)).flatten()
    }

    fn of_tier(&self, tier: PathBuf) -> Place {
        let mounted = self.ours().find(|(_, of)| *of == tier).map(|(at, _)| at.to_path_buf());
        let former = || Drainer::at(&tier).map(|drainer| drainer.place.mountpoint);
        // A daemon that does not answer is named by its tier.
        let mountpoint = mounted.or_else(former).unwrap_or_else(|| tier.clone());
        Place { mountpoint, tier, path: PathBuf::new() }
    }

    fn formerly(&self, path: &Path) -> Option<Place> {
        let own = Drainer::all(self).into_iter().filter(Drainer::is_own);
        own.map(|drainer| drainer.place).find_map(|place| {
            let below = path.strip_prefix(&place.mountpoint).ok()?.into();
            Some(Place { path: below, ..place })
        })
    }
}

/// The purpose for which a command opens a tier that turns out to be in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Mount,
    Check,
    Recover,
}

impl Wish {
    /// The advice about a tier of another store.
    fn of_stranger(self, tier: &Path) -> String {
        let tier = tier.display();
        match self {
            Wish::Mount => format!(
                "mount its own store, or give --tier another directory; `forebay recover {tier} --to DIR` saves what \
                 is dirty in it"
            ),
            Wish::Check | Wish::Recover => format!(
                "if its store has moved, name it with --backing; `forebay recover {tier} --to DIR` saves what is \
                 dirty in it elsewhere"
            ),
        }
    }

    /// The advice; `at` is the mount that uses the tier, if this process sees that mount.
    fn instead(self, at: Option<&str>) -> String {
        let place = at.unwrap_or("MOUNTPOINT");
        match (self, at) {
            (Wish::Mount, Some(at)) => {
                format!("end that with `forebay umount {at}`, or give --tier another directory")
            }
            (Wish::Mount, None) => {
                "`forebay status` of the tier's directory tells what its daemon does; wait for its end, or give \
                 --tier another directory"
                    .into()
            }
            (Wish::Check, _) => format!(
                "`forebay status {place}` tells what is dirty in it, `forebay umount {place}` frees \
                 it for a check"
            ),
            (Wish::Recover, _) => format!(
                "`forebay flush --wait {place}` brings home what is dirty in it, and so does \
                 `forebay umount {place}`"
            ),
        }
    }
}

/// Adds to an error about a tier that is in use, or is another store's, who uses the tier, as far as this process
/// sees it, and what to do.
pub fn advised(tier: &Path, error: Error, wish: Wish) -> Error {
    match error.kind() {
        Kind::OtherStore => {
            let text = format!("{error}: {}", wish.of_stranger(tier));
            Error::new(Kind::OtherStore, text)
        }
        Kind::InUse => Error::new(Kind::InUse, in_use(tier, &error, wish)),
        _ => error,
    }
}

fn in_use(tier: &Path, error: &Error, wish: Wish) -> String {
    let mounts = Mounts::read().unwrap_or_default();
    let tier = tier.canonicalize().unwrap_or_else(|_| tier.into());
    let Some((at, _)) = mounts.ours().find(|(_, of)| *of == tier) else {
        let told = Drainer::at(&tier).map(|drainer| {
            let tier = tier.display();
            let told = drainer.told();
            format!("{told}: `forebay umount {tier}` waits for its end, `forebay status {tier}` tells how far it is")
        });
        return told.unwrap_or_else(|| format!("{error}: {}", wish.instead(None)));
    };
    let pid = Client::new(&tier).daemon_pid();
    let pid = pid.map_or(String::new(), |pid| format!(" (pid {})", pid.as_raw_nonzero()));
    let (tier, at) = (tier.display(), at.display().to_string());
    let instead = wish.instead(Some(&at));
    format!("the tier {tier} is in use by the mount at {at}{pid}: {instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_sockets_names_the_tiers_that_are_served() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 28825 /nvme/my tier/run/control.sock\n\
            0: 00000003 00000000 00000000 0001 03 28826 /nvme/connected/run/control.sock\n\
            0: 00000002 00000000 00010000 0001 01    27 /run/other.sock\n\
            0: 00000002 00000000 00010000 0001 01    28 /control.sock\n\
            0: 00000002 00000000 00010000 0001 01    29 /nvme/b/run/control.sock\n\
            0: 00000003 00000000 00000000 0001 03 16711\n";
        assert_eq!(listening(table), [Path::new("/nvme/b"), Path::new("/nvme/my tier")]);
    }

    #[test]
    fn a_daemon_is_a_drainer_once_its_mount_is_gone() {
        let said = |phase: &str| {
            let status = serde_json::json!({ "mountpoint": "/mnt/fast", "phase": phase });
            Drainer::of(Path::new("/nvme/tier"), status).map(|drainer| drainer.place.mountpoint)
        };
        assert_eq!(said("unmounted"), Some("/mnt/fast".into()));
        assert_eq!((said("serving"), said("leaving"), said("")), (None, None, None));
    }
}
