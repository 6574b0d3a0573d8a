//! The mount as a member of a store: how it joins the other mounts of the store.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Kind, Result, Version};
use forebay_base::folder::Folder;
use forebay_cluster::member::{Holder, Joining, Member, Sorting, SyncStore, keeps_its_place};
use forebay_cluster::peer::{Key, Tls};
use forebay_engine::{Config, Naming, Near, Neighbours, Owned, Partners};
use forebay_registry::{Address, Identity, Registry};

use super::{mark, saved};
use crate::config::{Certificates, ClusterSettings, Settings};
use crate::registry_problems::with_way_out;

/// The registry that the settings name.
fn registry(settings: &ClusterSettings) -> Result<(Arc<dyn Registry>, String)> {
    let address: Address = settings.registry.parse()?;
    let Address::Etcd(endpoint) = &address else {
        return Err(Error::new(
            Kind::Usage,
            format!(
                "registry {}: members on several nodes agree in etcd only: give an address such as \
                 etcd://host:2379/forebay; on one machine alone mount without --registry",
                settings.registry
            ),
        ));
    };
    let prefix = endpoint.prefix.trim_matches('/').to_string();
    Ok((forebay_registry::open_at(&address, forebay_registry::PATIENCE)?, prefix))
}

/// Joins the members of the store at `root`. `run` is the tier's folder, `tier` its number, `boot` the
/// answer of [`Contents::memory`](forebay_engine::Contents::memory); `probe` returns the key that this
/// mount gives the file at a path.
///
/// # Errors
///
/// [`Kind::Usage`] for a store, a name or a key that does not fit, with the remedy; errors of the registry.
pub fn join(
    root: mark::Root<'_>,
    settings: &ClusterSettings,
    (run, tier, boot): (&Arc<Folder>, String, String),
    probe: impl Fn(&Path) -> Result<FileKey>,
) -> Result<Arc<Member>> {
    let path = root.path;
    if !path.is_dir() {
        let what = format!(
            "{}: members on several nodes share a directory, not a file or device",
            path.display()
        );
        return Err(Error::new(Kind::Usage, what));
    }
    let (registry, prefix) = registry(settings)?;
    let memory = boot.clone();
    let mark = mark::of(root, &*registry, &prefix).map_err(with_way_out)?;
    let seen = look_back(run, &*registry).map_err(with_way_out)?;
    let key = settings.key.as_deref().map(Key::read).transpose()?;
    let tls = |it: &Certificates| Tls::read(&it.cert, &it.key, &it.ca).map(Arc::new);
    let tls = settings.certificates.as_ref().map(tls).transpose()?;
    if key.is_none() && rustix::process::geteuid().is_root() {
        tracing::warn!(
            "no cluster-key: every user of this machine can ask as a member, and has root's rights in {}",
            path.display()
        );
    }
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    Member::join(Joining {
        registry,
        store: mark.store,
        probe: probe(&Path::new(mark::DIR).join(mark::NAME))?,
        node: settings.node.clone().unwrap_or_else(host),
        tier,
        boot,
        listen: settings.listen,
        key,
        tls,
        patience: forebay_registry::PATIENCE,
        domain: settings.domain.clone(),
        copies: settings.copies,
        copies_or_fail: settings.copies_or_fail,
        shares_reads: settings.shares_reads,
        sync_store: sync_store(path),
        enters: {
            let run = run.clone();
            let seen = seen.clone();
            Box::new(move || saved::store_registry(&run, &seen))
        },
        sorting: {
            let (run, place) = (run.clone(), format!("{} {memory}", seen.cluster));
            Sorting {
                before: saved::load_sorted(&run, &place),
                done: Box::new(move |line| saved::store_sorted(&run, &place, line)),
            }
        },
    })
}

/// Refuses a registry that was restored from an older copy: it lacks claims that members have made since.
fn look_back(run: &Folder, registry: &dyn Registry) -> Result<Identity> {
    let now = Identity { revision: registry.barrier()?, ..registry.cluster()? };
    let seen = saved::load_registry(run).filter(|seen| seen.cluster == now.cluster);
    if let Some(seen) = seen.filter(|seen| now.revision < seen.revision) {
        let file = run.path().join(saved::REGISTRY);
        return Err(Error::new(
            Kind::Usage,
            format!(
                "registry {} is at revision {}, and this tier has seen {}: it was restored from an older copy, and has \
                 forgotten who holds what. Restore a newer one; if there is none, unmount all nodes of the store (forebay \
                 umount --keep-dirty), remove {} and its like on each, and mount them: what they have changed since \
                 is then kept aside, for forebay resolve",
                registry.address(),
                now.revision,
                seen.revision,
                file.display()
            ),
        ));
    }
    Ok(now)
}

/// Makes the kernel write out all data of the store's file system, whichever process wrote them.
fn sync_store(root: &Path) -> SyncStore {
    let root = root.to_path_buf();
    Arc::new(move || {
        let failed = |e: std::io::Error| Error::io(e, format!("syncing {}", root.display()));
        let dir = File::open(&root).map_err(failed)?;
        rustix::fs::syncfs(&dir).map_err(|e| failed(e.into()))
    })
}

/// Carries the engine's messages to the partners, which keep copies.
pub struct Carrier(pub Arc<Member>);

impl Partners for Carrier {
    fn keep(&self, file: FileKey, joined: u64, words: &[u8], bytes: &[u8]) -> Result<()> {
        self.0.keep(file, joined, words, bytes)
    }

    fn has_enough(&self) -> Result<()> {
        self.0.has_enough()
    }

    fn joined(&self) -> u64 {
        self.0.joined()
    }

    fn leave_slowest(&self) -> Result<()> {
        self.0.leave_slowest()
    }

    fn forget(&self, file: FileKey, words: &[u8]) -> Result<()> {
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

/// Adds to an engine's configuration what it needs to know of the other members of its store.
pub fn told(settings: &Settings, member: Option<&Arc<Member>>, config: Config) -> Config {
    let (Some(member), Some(cluster)) = (member, &settings.cluster) else { return config };
    let readers = || Arc::new(Readers(member.clone())) as Arc<dyn Neighbours>;
    let near = Near(cluster.shares_reads.then(readers));
    let mine = member.clone();
    let of = move |file| match mine.holder(file) {
        Holder::Here => Naming::Own,
        Holder::Nobody if keeps_its_place(&mine) => Naming::Unclaimed,
        _ => Naming::Others,
    };
    Config { near, owned: Owned(Some(Arc::new(of))), ..config }
}

/// The other members that read the store.
struct Readers(Arc<Member>);

impl Neighbours for Readers {
    fn read(&self, version: &Version, path: &Path, offset: u64, buf: &mut [u8]) -> bool {
        self.0.read_near(version, path, offset, buf)
    }
}
