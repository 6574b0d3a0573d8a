//! The instances that a node has begun, kept beside its flash: a copy of each instance's record,
//! written before the first step of making it and removed after the last step of removing it. The copy
//! tells what a leftover is when the registry no longer knows it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use forebay_base::folder::{Durable, Folder};
use forebay_base::lock::{Mutex, Rank};
use forebay_base::way::{self, Demand};
use forebay_base::{Error, Kind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Seen;
use crate::records::{Instance, read, written};

const INSTANCES: &str = "instances";
const TRANSFERS: &str = "transfers";
const CLOCK: &str = "clock.json";

pub struct Local {
    dir: Folder,
    instances: Folder,
    /// The registry, as recorded.
    noted: Mutex<Option<Known>>,
    /// Unreadable copies that were reported.
    unread: Mutex<BTreeSet<String>>,
    /// The lock by which one state directory has one node daemon.
    _lock: std::fs::File,
}

/// The registry that the state belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    pub cluster: String,
    pub revision: u64,
}

impl Local {
    pub fn open(path: &Path) -> Result<Local> {
        let dir = own_dir(path)?;
        let at = |what: &str| format!("{}/{what}", path.display());
        for name in [INSTANCES, TRANSFERS] {
            dir.make_dir(name).map_err(|e| Error::io(e, at(name)))?;
        }
        let instances = dir.below(INSTANCES).map_err(|e| Error::io(e, at(INSTANCES)))?;
        let lock = dir.append("lock").map_err(|e| Error::io(e, at("lock")))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let why = format!("{}: another node daemon uses this state", path.display());
            Error::new(Kind::Usage, format!("{why}; give each one its own `state` and `socket`"))
        })?;
        let noted = Mutex::new(Rank::NodeNotes, None);
        let unread = Mutex::new(Rank::NodeNotes, BTreeSet::new());
        Ok(Local { dir, instances, noted, unread, _lock: lock })
    }

    /// Refuses a registry that is another one, or an older state of the same: on its word, wanted
    /// instances would be removed.
    pub fn admit(&self, now: &Known) -> Result<()> {
        if let Some(seen) = self.read::<Known>("registry.json")? {
            if seen.cluster != now.cluster {
                return Err(Error::new(
                    Kind::WrongTier,
                    format!(
                        "this node belongs to registry {}, and this is {}: give the right address, or \
                     remove {}/registry.json if nothing of the old one is wanted",
                        seen.cluster,
                        now.cluster,
                        self.dir.path().display()
                    ),
                ));
            }
            if seen.revision > now.revision {
                return Err(Error::new(
                    Kind::WrongTier,
                    format!(
                        "the registry is at revision {}, and this node has seen {}: it was restored from \
                     an older copy; bring the newer one back, or remove {}/registry.json to go on \
                     with the older one",
                        now.revision,
                        seen.revision,
                        self.dir.path().display()
                    ),
                ));
            }
        }
        self.write("registry.json", now)
    }

    /// Refuses as [`Local::admit`] does, also a registry that was exchanged while this daemon runs.
    pub fn note_revision(&self, now: &Known) -> Result<()> {
        // The value is set once it is written.
        let mut noted = self.noted.lock_anyway();
        if noted.as_ref() != Some(now) {
            self.admit(now)?;
            *noted = Some(now.clone());
        }
        Ok(())
    }

    /// Refuses a pool that is another one than before: where the flash is not mounted, its mount point
    /// would become an empty pool, and instances would count as gone since they are not in it.
    pub fn admit_pool(&self, name: &str, id: &str, dir: &Path) -> Result<()> {
        let file = format!("pool-{name}.json");
        match self.read::<String>(&file)? {
            None => self.write(&file, &id),
            Some(known) if known == id => Ok(()),
            Some(known) => Err(Error::new(
                Kind::WrongTier,
                format!(
                    "pool {name}: {} is pool {id}, and this node had {known} there: mount its flash, or \
                     remove {}/{file} if nothing of it is wanted",
                    dir.display(),
                    self.dir.path().display()
                ),
            )),
        }
    }

    /// The time that earlier daemons have seen pass.
    pub fn time_seen(&self) -> Result<Option<Seen>> {
        self.read(CLOCK)
    }

    pub fn note_time(&self, seen: &Seen) -> Result<()> {
        self.write(CLOCK, seen)
    }

    pub fn keep(&self, instance: &Instance) -> Result<()> {
        let name = file_name(&instance.id);
        match self.read_in::<Instance>(&self.instances, &name)? {
            Some(kept) if kept == *instance => Ok(()),
            _ => self.write_in(&self.instances, &name, instance),
        }
    }

    pub fn forget(&self, id: &str) -> Result<()> {
        let name = file_name(id);
        self.instances.remove_if_there(&name).map_err(|e| failed(e, &self.instances, &name))
    }

    pub fn instances(&self) -> Result<Vec<Instance>> {
        let names = self.instances.list("").map_err(|e| failed(e, &self.instances, ""))?;
        let names = names.iter().filter_map(|name| name.to_str());
        let found = names.filter(|name| name.ends_with(".json"));
        let read = |name: &str| match self.read_in(&self.instances, name) {
            // A newer daemon has begun the instance, and knows what it is.
            Err(error) if error.kind() == Kind::Corrupt => {
                self.tell_once(name, &error);
                None
            }
            read => read.transpose(),
        };
        found.filter_map(read).collect()
    }

    fn tell_once(&self, name: &str, error: &Error) {
        let mut told = self.unread.lock();
        if told.insert(name.into()) {
            tracing::warn!("{error}: it is left alone");
        }
    }

    /// Removes what a transfer's processes have written.
    pub fn forget_transfer(&self, id: &str) -> Result<()> {
        let (dir, name) = (self.transfers()?, format!("{id}.jsonl"));
        dir.remove_if_there(&name).map_err(|e| failed(e, &dir, &name))
    }

    /// The directory for the state of running transfers.
    pub fn transfers(&self) -> Result<Folder> {
        self.dir.below(TRANSFERS).map_err(|e| failed(e, &self.dir, TRANSFERS))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.read_in(&self.dir, name)
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.write_in(&self.dir, name, value)
    }

    fn read_in<T: DeserializeOwned>(&self, dir: &Folder, name: &str) -> Result<Option<T>> {
        match dir.read(name) {
            Ok(bytes) => read(name, &bytes).map(Some),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(e, dir, name)),
        }
    }

    fn write_in(&self, dir: &Folder, name: &str, value: &impl Serialize) -> Result<()> {
        dir.replace(name, &written(value), Durable::Yes).map_err(|e| failed(e, dir, name))
    }
}

fn file_name(id: &str) -> String {
    format!("{id}.json")
}

fn failed(error: std::io::Error, dir: &Folder, name: &str) -> Error {
    Error::io(error, dir.path().join(name).display().to_string())
}

/// A directory of the daemon's own in a place that other users cannot exchange; made if it is missing.
pub fn own_dir(path: &Path) -> Result<Folder> {
    let end = way::walk(path, Demand::Fixed)?;
    let shown = || path.display().to_string();
    if end.found.is_none() {
        match rustix::fs::mkdirat(&end.dir, &end.name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(Error::os(e.raw_os_error(), shown())),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&end.dir, &end.name, flags, Mode::empty())
        .map_err(|e| Error::os(e.raw_os_error(), shown()))?;
    drop(fd);
    let dir = Folder::own(&end.path).map_err(|e| Error::io(e, shown()))?;
    dir.close_to_others().map_err(|e| Error::io(e, shown()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Life, Mode as InstanceMode, Owner, Want};

    fn instance(id: &str) -> Instance {
        Instance {
            id: id.into(),
            mode: InstanceMode::Private,
            owner: Owner { uid: 7, gid: 7 },
            life: Life::Named { expires: None },
            nodes: vec!["n".into()],
            pool: "p".into(),
            capacity: 1,
            bytes: 1,
            mountpoint: Some("/m".into()),
            backing: None,
            space: None,
            created: 1,
            want: Want::Here,
        }
    }

    #[test]
    fn what_was_begun_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let local = Local::open(&path).unwrap();
        local.keep(&instance("a")).unwrap();
        local.keep(&instance("b")).unwrap();
        local.forget("a").unwrap();
        assert!(Local::open(&path).err().is_some_and(|e| e.to_string().contains("another node")));
        drop(local);
        // A child process that another test is just starting has the lock until it runs its program.
        let began = std::time::Instant::now();
        let again = loop {
            match Local::open(&path) {
                Err(_) if began.elapsed() < std::time::Duration::from_secs(10) => {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                opened => break opened.unwrap(),
            }
        };
        assert_eq!(again.instances().unwrap(), [instance("b")]);
    }

    #[test]
    fn an_empty_mount_point_is_not_the_pool_that_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(&dir.path().join("state")).unwrap();
        let flash = Path::new("/flash");
        local.admit_pool("flash", "1", flash).unwrap();
        local.admit_pool("flash", "1", flash).unwrap();
        let error = local.admit_pool("flash", "2", flash).unwrap_err().to_string();
        assert!(error.contains("mount its flash"), "{error}");
        local.admit_pool("other", "2", flash).unwrap();
    }

    /// A registry that has forgotten wanted records would break L3.
    #[test]
    fn another_registry_or_an_older_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(&dir.path().join("state")).unwrap();
        let seen = |cluster: &str, revision| Known { cluster: cluster.into(), revision };
        local.admit(&seen("c1", 10)).unwrap();
        local.admit(&seen("c1", 12)).unwrap();
        let error = local.admit(&seen("c2", 99)).unwrap_err().to_string();
        assert!(error.contains("belongs to registry c1"), "{error}");
        let error = local.admit(&seen("c1", 11)).unwrap_err().to_string();
        assert!(error.contains("restored"), "{error}");
        local.admit(&seen("c1", 12)).unwrap();
        local.note_revision(&seen("c1", 13)).unwrap();
        assert!(local.note_revision(&seen("c1", 12)).is_err(), "restored while the daemon runs");
        assert!(local.note_revision(&seen("c2", 99)).is_err(), "exchanged while the daemon runs");
        local.note_revision(&seen("c1", 13)).unwrap();
    }
}
