//! The backing store as the engine gets it: the directory, or the one file or device, inside the
//! wrappers that were asked for.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_backing::wrap::{
    DISK_BYTES, Fault, Limits, Meter, Retry, RetryPolicy, Seeks, Throttle,
};
use forebay_backing::{Access, BackingStore, DirStore, Error, Result, SingleStore};
use forebay_engine::Tier;
use rustix::fs::{Mode, OFlags};

use super::anchor::Anchor;
use crate::units;

/// Wrappers for trials and tests.
#[derive(Debug, Clone, Default)]
pub struct Trial {
    pub throttle: Option<Pace>,
    pub fault: Option<PathBuf>,
}

/// The pace of a throttled store; a bandwidth of 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub bytes_per_sec: u64,
    pub latency: Duration,
    pub seeks: Seeks,
}

impl std::str::FromStr for Pace {
    type Err = String;

    /// Reads `100MB,5ms` or, for a disk, `100MB,5ms,seek` or `100MB,5ms,seek=1GiB` with its size.
    fn from_str(text: &str) -> std::result::Result<Pace, String> {
        let (rate, latency) =
            text.split_once(',').ok_or("write BANDWIDTH,LATENCY, for example 100MB,5ms")?;
        let bytes_per_sec = units::parse_rate(rate)?;
        let (latency, seeks) = match latency.split_once(',') {
            None => (latency, Seeks::None),
            Some((latency, "seek")) => (latency, Seeks::Head { disk_bytes: DISK_BYTES }),
            Some((latency, seek)) => match seek.strip_prefix("seek=") {
                Some(size) => (latency, Seeks::Head { disk_bytes: units::parse_size(size)? }),
                None => return Err("write seek or seek=SIZE behind the second comma".into()),
            },
        };
        let latency = units::parse_duration(latency)?;
        Ok(Pace { bytes_per_sec, latency, seeks })
    }
}

/// A store with its meter, which measures the latencies of everything below the engine.
pub struct Stack {
    pub store: Arc<dyn BackingStore>,
    pub meter: Arc<Meter>,
    /// The opened directory of the store, or the directory of its only file.
    pub dir: OwnedFd,
    pub anchor: Anchor,
}

/// Opens the backing store of the tier at `tier`, which may not exist yet.
pub fn open(backing: &Path, tier: &Path, access: Access, trial: &Trial) -> Result<Stack> {
    open_as(backing, tier, access, trial, Users::Alone)
}

/// Whether other machines change names in the store, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    Alone,
    Members,
}

/// Like [`open`]; also for members of a shared store.
pub fn open_as(
    backing: &Path,
    tier: &Path,
    access: Access,
    trial: &Trial,
    users: Users,
) -> Result<Stack> {
    let anchor = Anchor::drop_at(backing)?;
    let of_dir = |store: DirStore| Ok::<_, Error>((store.dir()?, Arc::new(store) as _));
    let (dir, mut store): (OwnedFd, Arc<dyn BackingStore>) = match SingleStore::serves(backing) {
        true => (dir_of(backing)?, Arc::new(open_single(backing, tier, access)?)),
        false if users == Users::Members => of_dir(DirStore::open_shared(backing)?)?,
        false => of_dir(DirStore::open(backing)?)?,
    };
    if let Some(rules) = &trial.fault {
        store = Fault::with_file(store, rules)?.0;
    }
    if let Some(pace) = trial.throttle {
        let bytes_per_sec = (pace.bytes_per_sec > 0).then_some(pace.bytes_per_sec);
        let limits = Limits { bytes_per_sec, latency: pace.latency, seeks: pace.seeks };
        store = Throttle::wrap(store, limits);
    }
    let metered = Meter::wrap(Retry::wrap(store, RetryPolicy::default()));
    let meter = metered.layer().clone();
    Ok(Stack { store: metered, meter, dir, anchor })
}

fn dir_of(file: &Path) -> Result<OwnedFd> {
    let failed = |e: std::io::Error| Error::io(e, file.display().to_string());
    let whole = file.canonicalize().map_err(failed)?;
    let dir = whole.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).map_err(|e| failed(e.into()))
}

/// Opens a store of one file. The tier knows its files by name, and names of devices change: the file
/// keeps the name that it had when the tier was made.
fn open_single(backing: &Path, tier: &Path, access: Access) -> Result<SingleStore> {
    let store = SingleStore::open(backing, access)?;
    let identity = store.identity()?;
    let owner = Tier::owner(tier).ok().filter(|owner| owner.identity == identity);
    Ok(match owner.as_ref().and_then(|owner| owner.path.file_name()) {
        Some(name) => store.named(name),
        None => store,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_a_bandwidth_and_a_latency() {
        let pace: Pace = "100MB,5ms".parse().unwrap();
        assert_eq!((pace.bytes_per_sec, pace.latency.as_millis()), (100_000_000, 5));
        assert_eq!(pace.seeks, Seeks::None);
        let disk = |text: &str| text.parse::<Pace>().unwrap().seeks;
        assert_eq!(disk("100MB,5ms,seek"), Seeks::Head { disk_bytes: DISK_BYTES });
        assert_eq!(disk("100MB,5ms,seek=1GiB"), Seeks::Head { disk_bytes: 1 << 30 });
        assert!("100MB,5ms,disk".parse::<Pace>().unwrap_err().contains("seek"));
        assert!("100MB".parse::<Pace>().unwrap_err().contains("100MB,5ms"));
        assert!("100,5ms".parse::<Pace>().unwrap_err().contains("add a unit"));
    }
}
