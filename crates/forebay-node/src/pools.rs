//! A pool of this node as instances see it: what it offers, and what is made in it for an instance.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use crate::swap::SwapState;
use forebay_base::lock::{Mutex, Rank};
use forebay_base::units::human_size;
use forebay_base::{Error, Kind, Result};

use crate::book::Book;
use crate::config::PoolConfig;
use crate::ledger::Ledger;
use crate::records::{Instance, PoolRecord, keys};
use crate::space::{
    Choice, Door, Enforce, Fs, Id, Means, Owner, Pool, Removal, Settings, SpaceSpec, State,
};

/// The directory of a pool's cache tiers.
pub const TIERS: &str = "tiers";

pub struct PoolHere {
    config: PoolConfig,
    pool: Pool,
    /// The capacity, as first found: free space comes and goes, a promised capacity does not.
    capacity: Mutex<Option<u64>>,
}

impl PoolHere {
    pub fn open(config: &PoolConfig) -> Result<PoolHere> {
        let enforce = if config.enforce { Enforce::Yes } else { Enforce::No };
        let settings = Settings { enforce, ..Settings::default() };
        let pool = Pool::open(&config.dir, settings)
            .map_err(|e| e.context(format_args!("pool {}", config.name)))?;
        Ok(PoolHere { config: config.clone(), pool, capacity: Mutex::new(Rank::Capacity, None) })
    }

    /// The id in the pool's mark.
    pub fn id(&self) -> &str {
        self.pool.id()
    }

    /// The record that the node writes of the pool.
    pub fn record(&self, book: &Book, node: &str) -> Result<PoolRecord> {
        let offers = self.pool.probe();
        let has = offers.iter().filter(|offer| offer.missing.is_none());
        let lack = |means: &Means, why: &Option<String>| {
            why.as_ref().map(|why| format!("no {means}: {why}"))
        };
        let mut lacks: Vec<String> =
            offers.iter().filter_map(|offer| lack(&offer.means, &offer.missing)).collect();
        let missing = if self.config.swap { self.pool.swap_missing()? } else { None };
        lacks.extend(missing.map(|why| format!("no swap: {why}")));
        Ok(PoolRecord {
            capacity: self.capacity(book, node)?,
            grain: self.config.grain,
            means: has.clone().map(|offer| offer.means.to_string()).collect(),
            systems: has.flat_map(|offer| &offer.systems).map(|fs| fs.name().into()).collect(),
            lacks,
            swap: self.config.swap && missing.is_none(),
            leftover_bytes: self.pool.leftovers()?.iter().map(|left| left.room).sum(),
            fault: None,
        })
    }

    fn capacity(&self, book: &Book, node: &str) -> Result<u64> {
        // The value is set once the registry has answered: a panic before that leaves nothing half
        // done.
        let mut known = self.capacity.lock_anyway();
        if let Some(capacity) = *known {
            return Ok(capacity);
        }
        let key = keys::ledger(node, &self.config.name);
        let ledger: Ledger = book.read(&key)?.unwrap_or_default();
        let told: Option<PoolRecord> = book.read(&keys::pool(node, &self.config.name))?;
        let capacity = match (self.config.capacity, told) {
            // The capacity that an earlier daemon found stands, since room was granted from it.
            (None, Some(told)) => told.capacity,
            _ => self.config.capacity_of(self.pool.free()?, ledger.granted()),
        };
        let size = self.pool.size()?;
        if capacity > size {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "pool {}: capacity {} is more than its file system has ({})",
                    self.config.name,
                    human_size(capacity),
                    human_size(size)
                ),
            ));
        }
        *known = Some(capacity);
        Ok(capacity)
    }

    /// Makes a private space, or confirms an existing one; returns the means by which its capacity
    /// holds.
    pub fn make_space(&self, instance: &Instance) -> Result<String> {
        let spec = space_of(instance)?;
        if let Some(parent) = spec.mount_at.parent() {
            make_mount_point(parent)?;
        }
        Ok(self.pool.make(&spec)?.means.to_string())
    }

    /// Mounts an existing space again, as after a restart of the machine.
    pub fn bring_back(&self, instance: &Instance) -> Result<()> {
        match self.pool.adopt(&instance.id.parse()?)? {
            State::Ready(_) => Ok(()),
            State::Absent | State::HalfMade(_) | State::Lost | State::Removing => {
                let why = format!("instance {}: its files are not there any more", instance.id);
                Err(Error::new(Kind::Unavailable, why))
            }
        }
    }

    /// Whether the contents of a space are gone for good.
    pub fn is_lost(&self, instance: &Instance) -> Result<bool> {
        self.pool.is_lost(&instance.id.parse()?)
    }

    /// Admits the owner of a space, or only root.
    pub fn set_door(&self, instance: &Instance, door: Door) -> Result<()> {
        self.pool.set_door(&instance.id.parse()?, door)
    }

    pub fn make_tier(&self, id: &str, bytes: u64) -> Result<()> {
        self.pool.tier_dir(&id.parse()?, Owner::ROOT, bytes).map(|_| ())
    }

    pub fn tier(&self, id: &str) -> std::path::PathBuf {
        self.pool.path().join(TIERS).join(id)
    }

    pub fn make_swap(&self, instance: &Instance) -> Result<()> {
        self.pool.swap_on(&instance.id.parse()?, instance.capacity, None).map(|_| ())
    }

    pub fn swap_state(&self, instance: &Instance) -> Result<SwapState> {
        self.pool.swap_state(&instance.id.parse()?)
    }

    /// Turns a swap file off, if that succeeds within this time.
    pub fn swap_off(&self, instance: &Instance, within: Duration) -> Result<()> {
        self.pool.swap_off(&instance.id.parse()?, within)
    }

    /// Removes everything of an instance. A tier has no dirty bytes any more by then (T2).
    pub fn remove(&self, id: &str) -> Result<()> {
        let id: Id = id.parse()?;
        let removal: Removal = self.pool.remove(&id)?;
        if !removal.holders.is_empty() {
            let holders: Vec<String> = removal.holders.iter().map(ToString::to_string).collect();
            tracing::warn!("instance {id}: taken away from {}", holders.join(", "));
        }
        Ok(())
    }

    /// The parts of a removed instance that still hold room.
    pub fn left_of(&self, id: &str) -> Result<Option<String>> {
        let left = self.pool.leftovers()?;
        let of_it = left.iter().filter(|left| left.id.as_str() == id);
        let what: Vec<String> = of_it.map(ToString::to_string).collect();
        Ok((!what.is_empty()).then(|| what.join("; ")))
    }

    /// Goes on with deleting.
    pub fn sweep(&self) {
        if let Err(error) = self.pool.sweep() {
            tracing::warn!("pool {}: {error}", self.config.name);
        }
    }
}

/// The space of an instance, as the pool makes it.
pub fn space_of(instance: &Instance) -> Result<SpaceSpec> {
    let wish = instance.space.clone().unwrap_or_default();
    let at = instance.mountpoint.clone().unwrap_or_default();
    let owner = Owner { uid: instance.owner.uid, gid: instance.owner.gid };
    let mut spec = SpaceSpec::new(instance.id.parse()?, instance.capacity, owner, at);
    spec.inodes = wish.inodes;
    spec.mode = wish.mode.unwrap_or(spec.mode);
    if let Some(means) = &wish.means {
        spec.means = Choice::Exactly(means_named(means)?);
    }
    if let Some(name) = &wish.fs {
        let known = Fs::named(name);
        spec.fs = known.ok_or_else(|| {
            Error::new(Kind::Usage, format!("file system {name}: there are ext4 and xfs"))
        })?;
    }
    Ok(spec)
}

pub fn means_named(name: &str) -> Result<Means> {
    let found = Means::ALL.into_iter().find(|means| means.to_string() == name);
    found.ok_or_else(|| {
        let names = Means::ALL.map(|means| means.to_string()).join(", ");
        Error::new(Kind::Usage, format!("means {name}: there are {names}"))
    })
}

/// Makes the directory for a mount, which only root can exchange.
pub(crate) fn make_mount_point(at: &Path) -> Result<()> {
    let failed = |e| Error::io(e, format!("mount point {}", at.display()));
    match std::fs::DirBuilder::new().recursive(true).mode(0o755).create(at) {
        // A dead mount is there; the step that mounts reports it.
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        done => done.map_err(failed),
    }
}
