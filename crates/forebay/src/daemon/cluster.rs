//! The mount as one of many: which store it is, and how it joins the others that mount it.
//!
//! A store that members share has a mark at its root, `.forebay/id`, which no mount shows: there the mount
//! has a directory of its own. The mark says which store it is, and in which registry its members agree. A
//! mount without that registry could not see what others hold, and is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Kind, Result, Version};
use forebay_cluster::member::{Holder, Joining, Member, SyncStore};
use forebay_cluster::peer::Key;
use forebay_engine::{Config, Near, Neighbours, Owned, Partners};
use forebay_registry::{Address, Registry};
use serde::{Deserialize, Serialize};

use crate::config::{ClusterSettings, Settings};

const DIR: &str = ".forebay";
const NAME: &str = "id";

/// Which store it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub store: String,
    /// The cluster of the registry, as that names itself, and below which prefix of it.
    pub registry: String,
}

fn mark_at(root: &Path) -> PathBuf {
    root.join(DIR).join(NAME)
}

/// The mark that holds for a directory: its own, or that of one above on the same file system.
fn find(root: &Path) -> Result<Option<(PathBuf, Mark)>> {
    let device = |dir: &Path| fs::metadata(dir).map(|found| found.dev());
    let here = device(root).map_err(|e| Error::io(e, root.display().to_string()))?;
    for dir in root.ancestors().take_while(|dir| device(dir).is_ok_and(|found| found == here)) {
        let path = mark_at(dir);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                continue;
            }
            Err(e) => return Err(Error::io(e, path.display().to_string())),
        };
        let mark = serde_json::from_slice(&text).map_err(|e| {
            let what = format!("{}: it says not which store this is ({e})", path.display());
            Error::new(Kind::Usage, what)
        })?;
        return Ok(Some((dir.to_path_buf(), mark)));
    }
    Ok(None)
}

/// Refuses to write to a store whose members agree in a registry that this mount has not.
///
/// # Errors
///
/// [`Kind::Usage`], with what to give.
pub fn refuse_alone(root: &Path) -> Result<()> {
    let Some((at, mark)) = find(root)? else { return Ok(()) };
    Err(Error::new(
        Kind::Usage,
        format!(
            "{}: several nodes share this store ({}): mount it with --registry ADDRESS (of the registry {}) as they do, or with --read-only; if no node mounts it any more, remove {}",
            root.display(),
            at.display(),
            mark.registry,
            mark_at(&at).display()
        ),
    ))
}

/// The mark of the store, made if there is none.
fn mark(root: &Path, registry: &dyn Registry, prefix: &str) -> Result<Mark> {
    let cluster = format!("{}/{prefix}", registry.cluster()?.cluster);
    if let Some((at, mark)) = find(root)? {
        if at != root {
            let what = format!(
                "{}: the store that members share begins at {}: mount that",
                root.display(),
                at.display()
            );
            return Err(Error::new(Kind::Usage, what));
        }
        if mark.registry != cluster {
            let what = format!(
                "{}: the members of this store agree in another registry ({}) than {} ({cluster}): give that one's address",
                root.display(),
                mark.registry,
                registry.address(),
            );
            return Err(Error::new(Kind::Usage, what));
        }
        return Ok(mark);
    }
    let mark = Mark { store: number()?, registry: cluster };
    let failed = |e: std::io::Error| Error::io(e, mark_at(root).display().to_string());
    match fs::DirBuilder::new().mode(0o755).create(root.join(DIR)) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    // Whole or not at all, and never over another's: written aside, then linked.
    let aside = root.join(DIR).join(format!("{NAME}.{}", mark.store));
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(&aside).map_err(failed)?;
    let text = serde_json::to_vec(&mark).expect("plain values");
    let linked = file
        .write_all(&text)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&aside, mark_at(root)));
    let _ = fs::remove_file(&aside);
    match linked {
        Ok(()) => Ok(mark),
        // Another was first.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let found = find(root)?.map(|(_, mark)| mark);
            found.ok_or_else(|| Error::os(libc::EIO, "the store's mark is not there"))
        }
        Err(e) => Err(failed(e)),
    }
}

/// 128 random bits.
fn number() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|e| Error::io(e, "/dev/urandom"))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// The registry that the settings name.
fn registry(settings: &ClusterSettings) -> Result<(Arc<dyn Registry>, String)> {
    let address: Address = settings.registry.parse()?;
    let Address::Etcd(endpoint) = &address else {
        return Err(Error::new(
            Kind::Usage,
            format!(
                "registry {}: members on several nodes agree in etcd only: give an address such as etcd://10.0.0.1:2379/forebay",
                settings.registry
            ),
        ));
    };
    let prefix = endpoint.prefix.trim_matches('/').to_string();
    Ok((forebay_registry::open_at(&address, forebay_registry::PATIENCE)?, prefix))
}

/// Joins the members of the store below `root`. `tier` is the tier's own number; `probe` tells how this
/// mount numbers the file at a path.
///
/// # Errors
///
/// [`Kind::Usage`] for a store, a name or a key that does not fit, with the remedy; what the registry says.
pub fn join(
    root: &Path,
    settings: &ClusterSettings,
    tier: String,
    probe: impl Fn(&Path) -> Result<FileKey>,
) -> Result<Arc<Member>> {
    if !root.is_dir() {
        let what = format!(
            "{}: members on several nodes share a directory, not a file or device",
            root.display()
        );
        return Err(Error::new(Kind::Usage, what));
    }
    let (registry, prefix) = registry(settings)?;
    let mark = mark(root, &*registry, &prefix)?;
    let key = settings.key.as_deref().map(Key::read).transpose()?;
    if key.is_none() && rustix::process::geteuid().is_root() {
        tracing::warn!(
            "no cluster-key: every user of this machine can ask as a member, and has root's rights in {}",
            root.display()
        );
    }
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Member::join(Joining {
        registry,
        store: mark.store,
        probe: probe(&Path::new(DIR).join(NAME))?,
        node: settings.node.clone().unwrap_or_else(host),
        tier,
        boot: boot.trim().into(),
        listen: settings.listen,
        key,
        patience: forebay_registry::PATIENCE,
        domain: settings.domain.clone(),
        copies: settings.copies,
        copies_or_fail: settings.copies_or_fail,
        shares_reads: settings.shares_reads,
        sync_store: sync_store(root),
    })
}

/// Has the kernel write out all that it was given for the file system of the store, whoever gave it.
fn sync_store(root: &Path) -> SyncStore {
    let root = root.to_path_buf();
    Arc::new(move || {
        let failed = |e: std::io::Error| Error::io(e, format!("syncing {}", root.display()));
        let dir = File::open(&root).map_err(failed)?;
        rustix::fs::syncfs(&dir).map_err(|e| failed(e.into()))
    })
}

/// The engine's words to those who keep copies, carried by the member.
pub struct Carrier(pub Arc<Member>);

impl Partners for Carrier {
    fn keep(&self, file: FileKey, joined: u64, words: &[u8], bytes: &[u8]) -> Result<u8> {
        self.0.keep(file, joined, words, bytes)
    }

    fn joined(&self) -> u64 {
        self.0.joined()
    }

    fn leave_slowest(&self) -> Result<()> {
        self.0.leave_slowest()
    }

    fn forget(&self, file: FileKey, words: &[u8]) -> Result<u8> {
        self.0.forget(file, words)
    }

    fn fill(&self, partner: &str, file: FileKey, words: &[u8], bytes: &[u8]) -> Result<()> {
        self.0.fill(partner, file, words, bytes)
    }

    fn mark(&self, partner: &str, words: &[u8]) -> Result<()> {
        self.0.mark(partner, words)
    }

    fn takes(&self, file: FileKey) -> bool {
        self.0.can_copy(file)
    }

    fn wants(&self) -> bool {
        self.0.wants_copies()
    }
}

/// What an engine is told of the other members of its store.
pub fn told(settings: &Settings, member: Option<&Arc<Member>>, config: Config) -> Config {
    let (Some(member), Some(cluster)) = (member, &settings.cluster) else { return config };
    let readers = || Arc::new(Readers(member.clone())) as Arc<dyn Neighbours>;
    let near = Near(cluster.shares_reads.then(readers));
    let mine = member.clone();
    let is_own = move |file| mine.holder(file) == Holder::Here;
    Config { near, owned: Owned(Some(Arc::new(is_own))), ..config }
}

/// Those who read the store, too.
struct Readers(Arc<Member>);

impl Neighbours for Readers {
    fn read(&self, version: &Version, path: &Path, offset: u64, buf: &mut [u8]) -> bool {
        self.0.read_near(version, path, offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_registry::Embedded;

    #[test]
    fn the_first_marks_the_store_and_all_others_find_its_mark() {
        let dir = tempfile::tempdir().unwrap();
        let (root, kept) = (dir.path().join("store"), dir.path().join("registry"));
        fs::create_dir_all(root.join("sub/dir")).unwrap();
        let registry = Embedded::open(&kept, forebay_registry::PATIENCE).unwrap();
        refuse_alone(&root).expect("nobody shares it");
        let first = mark(&root, &registry, "a").unwrap();
        assert_eq!(mark(&root, &registry, "a").unwrap(), first);
        let alone = refuse_alone(&root.join("sub/dir")).unwrap_err().to_string();
        assert!(alone.contains("--registry") && alone.contains("--read-only"), "{alone}");
        let below = mark(&root.join("sub"), &registry, "a").unwrap_err().to_string();
        assert!(below.contains(&root.display().to_string()), "{below}");
        let names: Vec<_> = fs::read_dir(root.join(DIR)).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn another_registry_and_a_damaged_mark_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        fs::create_dir(&root).unwrap();
        let open = |name| Embedded::open(&dir.path().join(name), forebay_registry::PATIENCE);
        let one = open("one").unwrap();
        mark(&root, &one, "a").unwrap();
        for (registry, prefix) in [(&open("two").unwrap(), "a"), (&one, "b")] {
            let other = mark(&root, registry, prefix).unwrap_err().to_string();
            assert!(other.contains("another registry"), "{other}");
        }
        fs::write(mark_at(&root), "{").unwrap();
        let damaged = refuse_alone(&root).unwrap_err().to_string();
        assert!(damaged.contains(".forebay/id"), "{damaged}");
    }
}
