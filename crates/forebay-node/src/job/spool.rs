//! Files for a scheduler's hooks that run inside the scheduler and may not wait: small files, which the daemon
//! writes whenever they change. They are caches: all of it is in the registry. They tell of the jobs and
//! instances of all users, and therefore only the hooks' user can read them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_base::lock::{Mutex, Rank};
use forebay_base::{Error, Result};
use serde_json::{Value, json};

use super::record::{Job, Places};
use crate::closed;
use crate::records::{Instance, Life, Owner, PoolRecord};

/// The file of the pools, as Slurm reads it.
pub const POOLS_FILE: &str = "pools.json";

const PERSISTENT_FILE: &str = "persistent.json";
const JOBS: &str = "jobs";

/// The file of a job's variables, one `NAME=value` a line.
pub fn variables_file(spool: &Path, job: &str) -> PathBuf {
    spool.join(JOBS).join(job)
}

pub struct Spool {
    dir: PathBuf,
    writing: Mutex<()>,
}

/// The contents from which the files are made.
pub struct Listed {
    pub jobs: Vec<Job>,
    /// Pools with the bytes that each has granted.
    pub pools: Vec<(String, PoolRecord, u64)>,
    pub instances: Vec<Instance>,
}

impl Spool {
    pub fn open(dir: &Path, reader: Owner) -> Result<Spool> {
        closed::make(dir, reader)?;
        let jobs = dir.join(JOBS);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&jobs);
        made.map_err(|e| Error::io(e, format!("spool {}", dir.display())))?;
        Ok(Spool { dir: dir.into(), writing: Mutex::new(Rank::Spool, ()) })
    }

    /// Brings the files in line with the registry. `list` is called under the lock: a list from before a setup
    /// must not undo what that setup wrote.
    pub fn refresh(
        &self,
        mount_root: &Path,
        list: impl FnOnce() -> Result<Listed>,
    ) -> Result<Listed> {
        // The lock guards only the turn: files that a panic left behind are written anew.
        let _alone = self.writing.lock_anyway();
        let listed = list()?;
        let Listed { jobs, pools, instances } = &listed;
        self.put(&self.dir.join(POOLS_FILE), &pools_json(pools).to_string())?;
        self.put(&self.dir.join(PERSISTENT_FILE), &persistent_json(instances).to_string())?;
        // Hooks read the file of the last incarnation.
        let mut last: BTreeMap<&str, &Job> = BTreeMap::new();
        for job in jobs {
            let held = last.entry(&job.key.id).or_insert(job);
            if held.key.incarnation < job.key.incarnation {
                *held = job;
            }
        }
        let places = Places { mount_root, instances };
        last.values().try_for_each(|job| self.put_job(job, &places))?;
        self.forget_all_but(|name| last.contains_key(name))?;
        Ok(listed)
    }

    /// Writes the variables of a job, for its environment.
    fn put_job(&self, job: &Job, places: &Places<'_>) -> Result<()> {
        let lines = job.variables(places).into_iter().map(|(name, value)| {
            debug_assert!(!value.contains('\n'), "mount points have no newlines");
            format!("{name}={value}\n")
        });
        self.put(&variables_file(&self.dir, &job.key.id), &lines.collect::<String>())
    }

    fn forget_all_but(&self, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let dir = self.dir.join(JOBS);
        let failed = |e| Error::io(e, dir.display().to_string());
        for entry in std::fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !entry.file_name().to_str().is_some_and(&wanted) {
                std::fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Writes a file completely or not at all, and only if its text has changed.
    fn put(&self, path: &Path, text: &str) -> Result<()> {
        if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        let put = || -> io::Result<()> {
            let new = self.dir.join("new");
            let mut options = File::options();
            options.create(true).truncate(true).write(true).mode(0o644);
            options.open(&new)?.write_all(text.as_bytes())?;
            std::fs::rename(&new, path)
        };
        put().map_err(|e| Error::io(e, path.display().to_string()))
    }
}

/// Pools of the same name on all nodes are one pool of Slurm's. The grain is that of the first node; the
/// capacity of other nodes is counted in that grain, rounded down.
fn pools_json(pools: &[(String, PoolRecord, u64)]) -> Value {
    let mut sums: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for (key, record, granted) in pools {
        let name = key.split_once('/').map_or(key.as_str(), |(_, name)| name);
        let (grain, quantity, free) = sums.entry(name).or_insert((record.grain, 0, 0));
        *quantity += record.capacity / *grain;
        *free += record.capacity.saturating_sub(*granted) / *grain;
    }
    let all = sums.into_iter().map(|(id, (granularity, quantity, free))| {
        json!({ "id": id, "units": "bytes", "granularity": granularity, "quantity": quantity, "free": free })
    });
    json!({ "pools": all.collect::<Vec<_>>() })
}

fn persistent_json(instances: &[Instance]) -> Value {
    let named = instances.iter().filter(|instance| matches!(instance.life, Life::Named { .. }));
    let view = |instance: &Instance| {
        json!({
            "name": instance.id,
            "mode": instance.mode.name(),
            "nodes": instance.nodes,
            "uid": instance.owner.uid,
            "bytes": instance.capacity,
            "created": instance.created,
            "expires": match instance.life {
                Life::Named { expires } => expires,
                Life::Job(_) => None,
            },
        })
    };
    Value::Array(named.map(view).collect())
}

#[cfg(test)]
mod tests {

    use super::super::record::tests::job;
    use super::*;

    fn pool(capacity: u64, grain: u64) -> PoolRecord {
        PoolRecord {
            capacity,
            grain,
            means: Vec::new(),
            systems: Vec::new(),
            lacks: Vec::new(),
            swap: false,
            leftover_bytes: 0,
            fault: None,
        }
    }

    #[test]
    fn pools_are_summed_over_nodes_in_whole_grains() {
        let pools = [
            ("n1/flash".to_string(), pool(10 << 30, 1 << 30), 3 << 30),
            ("n2/flash".to_string(), pool(4 << 30, 1 << 30), (1 << 30) + 1),
            ("n2/slow".to_string(), pool(1 << 20, 1 << 20), 0),
        ];
        let told = pools_json(&pools);
        let flash = json!({
            "id": "flash", "units": "bytes", "granularity": 1u64 << 30, "quantity": 14, "free": 9,
        });
        assert_eq!(told["pools"][0], flash);
        assert_eq!(told["pools"][1]["id"], "slow");
        assert_eq!(pools_json(&[]), json!({ "pools": [] }));
    }

    const READER: Owner = Owner { uid: 4711, gid: 4711 };

    #[test]
    fn only_the_user_of_the_hooks_gets_into_the_spool() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("spool");
        std::fs::DirBuilder::new().mode(0o755).create(&at).unwrap();
        Spool::open(&at, READER).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&at.metadata().unwrap());
        assert_eq!(mode & 0o7, 0, "{mode:o}");
        let mut list = [0; 64];
        let len = rustix::fs::getxattr(&at, "system.posix_acl_access", &mut list).unwrap();
        let passes =
            [&2u16.to_le_bytes()[..], &5u16.to_le_bytes(), &4711u32.to_le_bytes()].concat();
        assert!(list[..len].windows(8).any(|entry| entry == passes), "{:?}", &list[..len]);
    }

    #[test]
    fn the_file_of_a_job_is_of_its_last_run_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path(), READER).unwrap();
        let file = variables_file(dir.path(), "17");
        let refresh = |jobs: Vec<Job>| {
            let listed = Listed { jobs, pools: Vec::new(), instances: Vec::new() };
            spool.refresh(Path::new("/m"), || Ok(listed)).unwrap();
        };
        refresh(vec![job(2), job(1)]);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("DW_JOB_STRIPED=/m/job-17-r2-striped/\n"), "{text}");
        refresh(vec![job(1)]);
        assert!(std::fs::read_to_string(&file).unwrap().contains("=/m/job-17-striped/"));
        refresh(Vec::new());
        assert!(!file.exists());
    }

    /// A list that was made while a setup writes would undo what the setup wrote.
    #[test]
    fn nobody_lists_while_another_writes() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path(), READER).unwrap();
        let listed = |jobs| Listed { jobs, pools: Vec::new(), instances: Vec::new() };
        let known = std::sync::Mutex::new(Vec::new());
        let root = Path::new("/m");
        std::thread::scope(|scope| {
            let tidy = || {
                let seen = known.lock().unwrap().clone();
                // Meanwhile a setup commits and writes.
                known.lock().unwrap().push(job(1));
                let setup = scope.spawn(|| {
                    spool.refresh(root, || Ok(listed(known.lock().unwrap().clone()))).unwrap();
                });
                std::thread::sleep(std::time::Duration::from_millis(100));
                assert!(!setup.is_finished(), "it waits");
                Ok(listed(seen))
            };
            spool.refresh(root, tidy).unwrap();
        });
        assert!(variables_file(dir.path(), "17").exists());
    }
}
