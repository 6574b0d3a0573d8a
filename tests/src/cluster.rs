//! Nodes that share one backing directory and a registry, all on this machine.
//!
//! Each node has a tier and a mount point of its own. On loopback that is all; networked nodes, and the members of
//! their registry, also have a network namespace each, so that links can be cut and mended. Processes that run and
//! mounts that exist when a cluster is dropped are ended by pid and unmounted by path, and nothing else.

mod history;
mod locker;
mod member;
mod net;
mod registry;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

pub use history::{Appends, Clock, Registers, Span};
pub use locker::Locker;
pub use member::Member;
pub use net::{Host, Net};
pub use registry::Registry;

use crate::cli::Out;
use crate::wait::{PATIENCE, within};
use crate::{say, text};

/// No bytes are flushed by themselves, so that only claims can make bytes visible elsewhere.
pub const HOLD: &[&str] = &["--preset", "hold", "--entry-ttl", "100ms", "--attr-ttl", "100ms"];

/// Longer than any operation may take that must fail within the nodes' patience.
pub const BOUND: Duration = Duration::from_secs(100);

/// Leaves the test unless the commands for networked nodes are installed.
#[macro_export]
macro_rules! needs_network {
    () => {
        $crate::needs_forebay!();
        $crate::needs_tools!("etcd", "ip", "nsenter", "unshare");
    };
}

pub struct Cluster {
    // Dropped in this order: clients before servers, and both before their network.
    pub nodes: Vec<Member>,
    pub registry: Registry,
    pub net: Option<Net>,
    pub root: PathBuf,
    pub backing: PathBuf,
    key: Option<PathBuf>,
}

impl Cluster {
    /// `count` nodes on loopback, laid out but not mounted.
    pub fn laid(count: usize) -> Cluster {
        Cluster::laid_with(count, &[])
    }

    /// As [`Cluster::laid`], with flags for etcd.
    pub fn laid_with(count: usize, etcd: &[&str]) -> Cluster {
        let root = new_root();
        let registry = Registry::local_with(&root, "test", etcd);
        let mut cluster = Cluster {
            nodes: vec![],
            registry,
            net: None,
            backing: root.join("backing"),
            root,
            key: None,
        };
        std::fs::create_dir_all(&cluster.backing).expect("the test directory is writable");
        (0..count).for_each(|_| cluster.add());
        cluster
    }

    /// `count` nodes on loopback, mounted with these flags.
    #[track_caller]
    pub fn start(count: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster::laid(count);
        (0..count).for_each(|at| cluster.mount(at, flags));
        cluster
    }

    /// `count` nodes and `registries` members of the registry, each on a host of its own, mounted with these flags.
    #[track_caller]
    pub fn networked(count: usize, registries: usize, flags: &[&str]) -> Cluster {
        let root = new_root();
        let net = Net::of(count + registries);
        let registry = Registry::on_hosts(&root, &net, count..count + registries);
        let key = root.join("key");
        write_key(&key, 1);
        let backing = root.join("backing");
        std::fs::create_dir_all(&backing).expect("the test directory is writable");
        let mut cluster =
            Cluster { nodes: vec![], registry, net: Some(net), root, backing, key: Some(key) };
        (0..count).for_each(|_| cluster.add());
        (0..count).for_each(|at| cluster.mount(at, flags));
        cluster
    }

    /// Lays out one more node.
    fn add(&mut self) {
        let at = self.nodes.len();
        let name = format!("n{}", at + 1);
        let host = self.net.is_some().then_some(at);
        let mut node = Member::laid(&self.root, &name, &self.backing, host);
        node.flags = self.flags(&name, host);
        self.nodes.push(node);
    }

    fn flags(&self, name: &str, host: Option<usize>) -> Vec<String> {
        let mut flags = vec!["--registry".into(), self.registry.address()];
        flags.extend(["--node".into(), name.into()]);
        if let Some((net, host)) = self.net.as_ref().zip(host) {
            let listen = format!("{}:7400", net.host(host).address());
            flags.extend(["--peer-listen".into(), listen]);
        }
        if let Some(key) = &self.key {
            flags.extend(["--cluster-key".into(), text(key).into()]);
        }
        flags
    }

    /// From now on nodes mount without a registry.
    pub fn know_nothing_of_each_other(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.flags.clear());
    }

    /// One more mount point and tier over the same store, with flags that the test chooses.
    pub fn stranger(&self, dir: &str, flags: &[&str]) -> Member {
        let mut node = Member::laid(&self.root, dir, &self.backing, None);
        node.flags = flags.iter().map(ToString::to_string).collect();
        node
    }

    #[track_caller]
    pub fn mount(&mut self, at: usize, flags: &[&str]) {
        self.nodes[at].mount(self.net.as_ref(), flags);
    }

    pub fn forebay(&self, at: usize, args: &[&str]) -> Out {
        self.nodes[at].forebay(self.net.as_ref(), args)
    }

    #[track_caller]
    pub fn status(&self, at: usize) -> Value {
        self.nodes[at].status(self.net.as_ref())
    }

    #[track_caller]
    pub fn dirty(&self, at: usize) -> u64 {
        self.nodes[at].dirty(self.net.as_ref())
    }

    #[track_caller]
    pub fn flush(&self, at: usize) {
        self.nodes[at].flush(self.net.as_ref());
    }

    /// Waits until a node has no claims, as another node sees it. The node is flushed again and again: a file that
    /// was written past the daemon is dirty once more when its last handle is released, which may be after the
    /// program has closed it.
    #[track_caller]
    pub fn gives_back(&self, at: usize) {
        let (asked, of) = ((at + 1) % self.nodes.len(), &self.nodes[at].name);
        within(PATIENCE, "all is given back", || {
            self.flush(at);
            let told = self.told(asked, of);
            told["claims"] == 0 && told["creates"] == 0
        });
    }

    #[track_caller]
    pub fn umount(&mut self, at: usize) {
        self.nodes[at].umount(self.net.as_ref());
    }

    #[track_caller]
    pub fn umount_dirty(&mut self, at: usize) {
        self.nodes[at].umount_dirty(self.net.as_ref());
    }

    /// A path as one node shows it.
    pub fn at(&self, node: usize, name: impl AsRef<Path>) -> PathBuf {
        self.nodes[node].at(name)
    }

    /// The bytes of a file as the backing store has them.
    pub fn stored(&self, name: impl AsRef<Path>) -> std::io::Result<Vec<u8>> {
        std::fs::read(self.backing.join(name))
    }

    /// The entry of a member in `forebay status --cluster`, as one node sees it.
    #[track_caller]
    pub fn told(&self, asked: usize, of: &str) -> Value {
        let mnt = text(&self.nodes[asked].mnt);
        let told = self.forebay(asked, &["status", "--cluster", mnt, "--json"]).ok().json();
        let members = told["members"].as_array().cloned().unwrap_or_default();
        let found = members.into_iter().find(|member| member["name"] == of);
        found.unwrap_or_else(|| panic!("no member {of} in {told:#}"))
    }

    /// The number of files that a node has claimed, according to the registry.
    #[track_caller]
    pub fn claims(&self, asked: usize, of: &str) -> u64 {
        let told = self.told(asked, of);
        told["claims"].as_u64().unwrap_or_else(|| panic!("no claims in {told:#}"))
    }

    #[track_caller]
    pub fn is_alive(&self, asked: usize, of: &str) -> bool {
        self.told(asked, of)["alive"].as_bool().expect("alive is true or false")
    }

    /// kill -9 of the whole registry.
    pub fn registry_dies(&mut self) {
        self.registry.kill_all();
    }

    pub fn registry_returns(&mut self) {
        self.registry.up(self.net.as_ref());
    }

    fn net(&self) -> &Net {
        self.net.as_ref().expect("nodes on loopback cannot be cut off")
    }

    /// Pulls a node's cable.
    pub fn unplug(&self, node: usize) {
        self.net().unplug(node);
    }

    pub fn plug_in(&self, node: usize) {
        self.net().plug_in(node);
    }

    /// Drops all frames that one node sends to the other.
    pub fn cut_one_way(&self, from: usize, to: usize) {
        self.net().cut(from, to);
    }

    pub fn mend_one_way(&self, from: usize, to: usize) {
        self.net().mend(from, to);
    }

    /// Cuts the link between two nodes; both still reach the registry.
    pub fn cut(&self, one: usize, other: usize) {
        self.net().cut(one, other);
        self.net().cut(other, one);
    }

    pub fn mend(&self, one: usize, other: usize) {
        self.net().mend(one, other);
        self.net().mend(other, one);
    }

    /// Cuts a node off from the registry, but not from the other nodes.
    pub fn cut_from_registry(&self, node: usize) {
        (0..self.registry.len()).for_each(|at| self.cut(node, self.registry.host(at)));
    }

    pub fn mend_to_registry(&self, node: usize) {
        (0..self.registry.len()).for_each(|at| self.mend(node, self.registry.host(at)));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                say(&format!("log of {}:\n{}", node.name, tail(&node.log(), 40)));
            }
        }
        self.nodes.clear();
        self.registry.kill_all();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = format!(" {}/", self.root.display());
        if table.contains(&below) {
            say(&format!("left as it is, something is mounted there: {}", self.root.display()));
        } else if std::env::var_os("FOREBAY_TEST_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

fn tail(log: &str, lines: usize) -> String {
    let skip = log.lines().count().saturating_sub(lines);
    log.lines().skip(skip).collect::<Vec<_>>().join("\n")
}

fn new_root() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let base = std::env::var_os("FOREBAY_TEST_DIR").map_or("/var/tmp".into(), PathBuf::from);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let root = base.join(format!("fbt-{}-c{id}", std::process::id()));
    std::fs::create_dir_all(&root).expect("the test directory is writable");
    root
}

/// Writes a cluster key; each seed gives another key.
pub fn write_key(at: &Path, seed: u64) {
    use std::os::unix::fs::PermissionsExt;
    let mut bytes = [0; 32];
    crate::fill(&mut bytes, seed, 0);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(at, hex + "\n").expect("the test directory is writable");
    std::fs::set_permissions(at, PermissionsExt::from_mode(0o600)).expect("it is ours");
}

/// Runs an operation that must end, one way or the other, and returns how long it took. It has a thread of its own:
/// an operation that hangs in the kernel fails the test, and not the run.
#[track_caller]
pub fn bounded<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> (T, Duration) {
    let (send, receive) = std::sync::mpsc::channel();
    let began = Instant::now();
    std::thread::spawn(move || send.send(work()));
    match receive.recv_timeout(BOUND) {
        Ok(value) => (value, began.elapsed()),
        Err(_) => panic!("hangs for more than {BOUND:?}: {what}"),
    }
}

/// Reads a whole file; the read must end within the bound.
#[track_caller]
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let at = path.to_path_buf();
    bounded(text(path), move || std::fs::read(at)).0
}

/// Waits until a file has these bytes.
#[track_caller]
pub fn reads(path: &Path, bytes: &[u8]) {
    let mut last = Ok(Vec::new());
    let same = crate::eventually(PATIENCE, || {
        last = read(path);
        last.as_ref().is_ok_and(|found| found == bytes)
    });
    if !same {
        let found = last.map(|found| (found.len(), difference(&found, bytes)));
        panic!("{}: {} bytes are wanted, found {found:?}", path.display(), bytes.len());
    }
}

/// The first offset at which two contents differ.
pub fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let common = one.len().min(other.len());
    let at = (0..common).find(|at| one[*at] != other[*at]);
    at.or_else(|| (one.len() != other.len()).then_some(common))
}
