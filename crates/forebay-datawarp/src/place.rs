//! The instance that a path is in, and the path as the node daemon knows it.

use std::path::{Path, PathBuf};

use forebay_base::{Error, Result};
use serde::Deserialize;

use crate::daemon::Daemon;
use crate::records::{Instance, Mode, Transfer, What};

/// This node, as its daemon describes it now.
pub struct Site {
    pub daemon: Daemon,
    pub node: String,
    /// The caller's instances that are mounted here.
    instances: Vec<Instance>,
}

/// A place in an instance on this node.
pub struct Place<'s> {
    pub site: &'s Site,
    pub instance: &'s Instance,
    /// The path below the instance's mount point, without links.
    pub path: PathBuf,
}

#[derive(Deserialize)]
struct Node {
    name: String,
}

pub fn invalid(why: impl Into<String>) -> Error {
    Error::os(libc::EINVAL, why)
}

impl Site {
    pub fn here() -> Result<Site> {
        let daemon = Daemon::here();
        let node = daemon.get::<Node>("/v1/node")?.name;
        let mut instances: Vec<Instance> = daemon.get("/v1/instances")?;
        instances.retain(|instance| instance.nodes.contains(&node));
        Ok(Site { daemon, node, instances })
    }

    /// # Errors
    ///
    /// ENOENT if even the directory of `path` does not exist, EINVAL if `path` is in no instance of the
    /// caller's.
    pub fn place(&self, path: &Path) -> Result<Place<'_>> {
        let real = real(path)?;
        let shown = self.instances.iter().filter_map(|instance| {
            let path = shown_in(instance, &real)?;
            Some(Place { site: self, instance, path })
        });
        // If an instance is mounted within another, the inner one has the path.
        let found = shown.max_by_key(|place| place.root().components().count());
        found.ok_or_else(|| invalid(format!("{} is in no instance", real.display())))
    }

    /// All transfers of the caller, the newest first.
    pub fn transfers(&self) -> Result<Vec<Transfer>> {
        let mut all: Vec<Transfer> = self.daemon.get("/v1/transfers")?;
        all.sort_by(|a, b| b.id.cmp(&a.id));
        Ok(all)
    }
}

impl Place<'_> {
    /// The transfers among `all` that belong to this instance, on this node.
    pub fn only<'t>(&self, all: &'t [Transfer]) -> Vec<&'t Transfer> {
        all.iter().filter(|transfer| self.concerns(transfer)).collect()
    }

    /// Whether a transfer belongs here. A private instance has its own files on each node; any node serves a cache's.
    fn concerns(&self, transfer: &Transfer) -> bool {
        transfer.belongs_to(self.instance)
            && transfer.what != What::Other
            && (self.instance.mode == Mode::Cache || transfer.node == self.site.node)
    }

    pub fn root(&self) -> &Path {
        self.instance.mountpoint.as_deref().unwrap_or(Path::new("/"))
    }

    /// For a cache: the same place on the backing store.
    pub fn twin(&self) -> Option<PathBuf> {
        let backing = self.instance.backing.as_ref()?;
        let below = self.path.strip_prefix(self.root()).ok()?;
        Some(backing.path.join(below))
    }
}

fn shown_in(instance: &Instance, real: &Path) -> Option<PathBuf> {
    let at = instance.mountpoint.as_ref()?;
    let below = |at: &Path| real.strip_prefix(at).map(Path::to_path_buf).ok();
    // The mount root may be reached through a link, such as /var/run.
    let below = below(at).or_else(|| below(&at.canonicalize().ok()?))?;
    // Joining an empty path would add a slash.
    Some(if below.as_os_str().is_empty() { at.clone() } else { at.join(below) })
}

/// The path without links; its last name need not exist.
fn real(path: &Path) -> Result<PathBuf> {
    let failed = |e| Error::io(e, path.display().to_string());
    let whole = std::path::absolute(path).map_err(failed)?;
    match whole.canonicalize() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let (dir, name) = whole.parent().zip(whole.file_name()).ok_or_else(|| failed(e))?;
            Ok(dir.canonicalize().map_err(failed)?.join(name))
        }
        found => found.map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Owner;
    use crate::standing::tests::transfer;

    fn instance(at: &str) -> Instance {
        Instance {
            id: "i".into(),
            owner: Owner { uid: 1, gid: 1 },
            created: 5,
            mode: Mode::Private,
            nodes: vec![],
            mountpoint: Some(at.into()),
            backing: None,
        }
    }

    #[test]
    fn a_path_is_in_the_instance_that_shows_above_it() {
        let shown = |at, path: &str| shown_in(&instance(at), Path::new(path));
        assert_eq!(shown("/m/i", "/m/i/a/b"), Some("/m/i/a/b".into()));
        assert_eq!(shown("/m/i", "/m/i").unwrap().as_os_str(), "/m/i");
        assert_eq!(shown("/m/i", "/m/i2/a"), None);
    }

    /// An earlier instance of the same name may have left transfers, even of another user.
    #[test]
    fn only_transfers_of_this_very_instance_concern_it() {
        let instance = instance("/i");
        let site = Site { daemon: Daemon::here(), node: "n".into(), instances: vec![] };
        let place = Place { site: &site, instance: &instance, path: "/i/a".into() };
        let of = |id, created, uid| Transfer {
            created,
            owner: Owner { uid, gid: 1 },
            ..transfer(id, "/i/a", Some("done"))
        };
        let all = [of("t4", 6, 2), of("t3", 6, 1), of("t2", 5, 1), of("t1", 4, 1)];
        let ids: Vec<&str> = place.only(&all).iter().map(|one| &*one.id).collect();
        assert_eq!(ids, ["t3", "t2"]);
    }

    #[test]
    fn links_and_dots_are_resolved_and_the_last_name_need_not_be_there() {
        let dir = std::env::temp_dir().join(format!("datawarp-place-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("d/e")).unwrap();
        std::os::unix::fs::symlink("d", dir.join("link")).unwrap();
        let base = dir.canonicalize().unwrap();
        assert_eq!(real(&dir.join("link/e/../new")).unwrap(), base.join("d/new"));
        assert_eq!(real(&dir.join("link/")).unwrap(), base.join("d"));
        assert_eq!(real(&dir.join("none/new")).unwrap_err().errno(), libc::ENOENT);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
