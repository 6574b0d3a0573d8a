//! The means that a pool has, and why it lacks the others.

use std::os::fd::AsFd;

use forebay_base::units::{human_size, parse_size};
use forebay_base::{Error, Result};
use rustix::fs;

use super::pool::{Enforce, Pool};
use super::{Choice, Fs, Id, Means, SpaceSpec, failed, image, loopdev, quota, usage_error};

/// linux/magic.h
const TMPFS_MAGIC: i64 = 0x0102_1994;
const EXT4_MAGIC: i64 = 0xEF53;
const XFS_MAGIC: i64 = 0x5846_5342;

/// One of the means, and why it is not available, if it is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub means: Means,
    /// For an image: the file systems that it may hold, the best first.
    pub systems: Vec<Fs>,
    pub missing: Option<String>,
}

/// The file system below a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    Ext4,
    Xfs,
    Memory,
    Other,
}

impl Pool {
    /// All means, each with the reason if it is not available here.
    pub fn probe(&self) -> Vec<Offer> {
        let offer = |means| {
            let systems = match means {
                Means::Image => systems(),
                _ => Vec::new(),
            };
            Offer { means, systems, missing: self.missing(means) }
        };
        Means::ALL.map(offer).to_vec()
    }

    pub(crate) fn ground(&self) -> Result<Ground> {
        let at = self.path().display();
        let found = fs::fstatfs(self.inner.root.as_fd()).map_err(failed(at))?;
        Ok(match found.f_type {
            TMPFS_MAGIC => Ground::Memory,
            EXT4_MAGIC => Ground::Ext4,
            XFS_MAGIC => Ground::Xfs,
            _ => Ground::Other,
        })
    }

    pub(super) fn missing(&self, means: Means) -> Option<String> {
        let ground = match self.ground() {
            Ok(ground) => ground,
            Err(e) => return Some(e.to_string()),
        };
        match means {
            Means::ProjectQuota => quota::missing(self.inner.spaces.as_fd()),
            Means::Image => missing_for_images(ground),
            Means::Tmpfs => None,
            Means::Directory => match self.inner.settings.enforce {
                Enforce::No => None,
                Enforce::Yes => {
                    Some("nothing would hold its capacity: only with enforce = false".into())
                }
            },
        }
    }
}

/// XFS comes first: files that are synced piece by piece are written twice as fast there
/// (docs/PERFORMANCE.md).
fn systems() -> Vec<Fs> {
    let is_there =
        |fs: &Fs| image::program(*fs).is_some() && (*fs == Fs::Ext4 || kernel_knows(fs.name()));
    [Fs::Xfs, Fs::Ext4].into_iter().filter(is_there).collect()
}

/// Whether the kernel has a file system, or a module of it that the first mount loads.
fn kernel_knows(name: &str) -> bool {
    let list = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if list.lines().any(|line| line.split_whitespace().last() == Some(name)) {
        return true;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let modules = std::fs::read_to_string(format!("/lib/modules/{release}/modules.dep"));
    modules.is_ok_and(|list| list.lines().any(|line| line.contains(&format!("/{name}.ko"))))
}

fn missing_for_images(ground: Ground) -> Option<String> {
    match ground {
        Ground::Memory => Some("a pool in memory: an image there would be cached twice".into()),
        Ground::Other => Some("the pool is on neither ext4 nor XFS: direct-io is not sure".into()),
        Ground::Ext4 | Ground::Xfs if systems().is_empty() => {
            Some("neither mkfs.ext4 nor mkfs.xfs: install e2fsprogs".into())
        }
        Ground::Ext4 | Ground::Xfs => loopdev::missing(),
    }
}

/// Resolves a choice of means.
pub(super) fn resolve(pool: &Pool, spec: &SpaceSpec) -> Result<Means> {
    let means = match spec.means {
        Choice::Exactly(means) => means,
        Choice::Auto => best(pool)?,
    };
    if let Some(why) = pool.missing(means) {
        let (id, at) = (&spec.id, pool.path().display());
        return Err(usage_error(format!("{id}: pool {at} has no {means}: {why}")));
    }
    if means == Means::Image {
        spec.check_image()?;
        require_program(&spec.id, spec.fs)?;
    }
    Ok(means)
}

fn require_program(id: &Id, fs: Fs) -> Result<()> {
    let (name, package) = (fs.name(), image::package(fs));
    match image::program(fs) {
        Some(_) => Ok(()),
        None => Err(usage_error(format!("{id}: mkfs.{name} is missing: install {package}"))),
    }
}

fn best(pool: &Pool) -> Result<Means> {
    if pool.ground()? == Ground::Memory {
        return Ok(Means::Tmpfs);
    }
    let wanted = [Means::ProjectQuota, Means::Image, Means::Directory];
    let found = wanted.into_iter().find(|means| pool.missing(*means).is_none());
    // The refusal of an image is the most helpful one.
    Ok(found.unwrap_or(Means::Image))
}

/// Memory is not reserved for a tmpfs: memory that is not free now is not promised.
pub(super) fn require_memory(id: &Id, bytes: u64) -> Result<()> {
    let at = "/proc/meminfo";
    let table = std::fs::read_to_string(at).map_err(failed(at))?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.trim().split(' ').next());
    let free = number.and_then(|number| parse_size(&format!("{number}KiB")).ok());
    match free {
        Some(free) if free < bytes => Err(Error::os(
            libc::ENOSPC,
            format!(
                "{id}: no room for {} in memory ({} available): ask for less, or for another means",
                human_size(bytes),
                human_size(free)
            ),
        )),
        _ => Ok(()),
    }
}
