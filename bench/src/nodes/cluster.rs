//! Nodes with one store: hosts with a mount and a tier of their own, and a registry of three etcd members on
//! hosts of their own.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::net::{Host, Net};
use crate::guard::go_on;
use crate::mounts::{Forebay, start_apart};
use crate::run::{On, Run};

/// Members of the registry.
const MEMBERS: usize = 3;

/// Nothing is flushed by itself: bytes measured between nodes are not on the store.
pub const HOLD: &[&str] = &["--preset", "hold"];

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    // Dropped in this order: clients before servers, and both before their network.
    pub nodes: Vec<Forebay>,
    registry: Vec<Etcd>,
    net: Net,
    /// The shared store, and a directory for the cluster's own files.
    dirs: [PathBuf; 2],
}

impl Cluster {
    /// `count` nodes, mounted with these options, tiers and store on tmpfs.
    pub fn start(run: &Run, count: usize, options: &[&str]) -> Result<Cluster> {
        Cluster::start_each(run, On::Tmpfs, &vec![options; count])
    }

    /// One node for each of these options, with its tier on `tier`. The store is on tmpfs, etcd's data is on the
    /// disk.
    pub fn start_each(run: &Run, tier: On, options: &[&[&str]]) -> Result<Cluster> {
        let count = options.len();
        let store = run.fresh(On::Tmpfs, "store")?;
        let dir = run.fresh(On::Disk, "registry")?;
        let net = Net::of((count + MEMBERS) as u8)?;
        let registry = registry(&net.hosts[count..], &dir)?;
        let addresses = net.hosts[count..].iter().map(|host| format!("{}:2379", host.address()));
        let registry_at = format!("etcd://{}/bench", addresses.collect::<Vec<_>>().join(","));
        let key = dir.join("key");
        write_key(&key)?;
        let mut cluster = Cluster { nodes: vec![], registry, net, dirs: [store, dir] };
        for (at, options) in options.iter().enumerate() {
            let host = cluster.net.hosts[at].clone();
            let (name, listen) = (format!("n{}", at + 1), format!("{}:7400", host.address()));
            let key = key.to_string_lossy();
            let member = ["--registry", &registry_at, "--node", &name, "--peer-listen", &listen];
            let all = [&member[..], &["--cluster-key", &key], options].concat();
            let mut node = run.forebay_at(tier, cluster.dirs[0].clone(), &all)?.on(host);
            node.mount().with_context(|| format!("node {name}"))?;
            cluster.nodes.push(node);
        }
        Ok(cluster)
    }

    pub fn host(&self, node: usize) -> &Arc<Host> {
        &self.net.hosts[node]
    }

    /// The shared directory itself, without a mount.
    pub fn store(&self) -> &Path {
        &self.dirs[0]
    }

    /// A path as one node shows it.
    pub fn at(&self, node: usize, name: &str) -> PathBuf {
        self.nodes[node].mountpoint.join(name)
    }

    /// The entry of a member in `forebay status --cluster`, as one node sees it.
    pub fn told(&self, asked: usize, of: usize) -> Result<Value> {
        let (told, name) = (self.nodes[asked].cluster_status()?, format!("n{}", of + 1));
        let mut members = told["members"].as_array().into_iter().flatten();
        let found = members.find(|member| member["name"] == name.as_str());
        found.cloned().with_context(|| format!("status --cluster knows no {name}"))
    }

    /// Waits until a node's entry of a member fulfils a condition.
    pub fn until(
        &self,
        (asked, of): (usize, usize),
        what: &str,
        so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            go_on()?;
            let told = self.told(asked, of)?;
            if so(&told) {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}: {told}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The bytes that a node has and the store lacks.
    pub fn dirty(&self, node: usize) -> Result<u64> {
        let status = self.nodes[node].status()?;
        status["dirty_bytes"].as_u64().context("status --json has no dirty_bytes")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        self.registry.clear();
        for dir in &self.dirs {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

/// A member of the registry; killed when dropped, since its data are not needed any more.
struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn registry(hosts: &[Arc<Host>], dir: &Path) -> Result<Vec<Etcd>> {
    let url = |host: &Host, port: u16| format!("http://{}:{port}", host.address());
    let peers = hosts.iter().enumerate().map(|(at, host)| format!("e{at}={}", url(host, 2380)));
    let peers = peers.collect::<Vec<_>>().join(",");
    let start = |(at, host): (usize, &Arc<Host>)| -> Result<Etcd> {
        let (name, mut command) = (format!("e{at}"), Command::new("etcd"));
        let (client, peer) = (url(host, 2379), url(host, 2380));
        command.arg("--data-dir").arg(dir.join(&name)).args(["--name", &name]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers, "--log-level", "error"]);
        start_apart(host.put(&mut command), &dir.join(format!("{name}.log"))).map(Etcd)
    };
    let mut members = hosts.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    for (at, host) in hosts.iter().enumerate() {
        let (to, begun) = (format!("{}:2379", host.address()).parse()?, Instant::now());
        while host.connect(to).is_err() {
            go_on()?;
            let ended = members[at].0.try_wait()?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let log = fs::read_to_string(dir.join(format!("e{at}.log"))).unwrap_or_default();
                bail!("etcd does not listen ({ended:?}): {}", log.lines().last().unwrap_or(""));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(members)
}

/// Writes the key by which members know each other.
fn write_key(at: &Path) -> Result<()> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(at)?;
    Ok(std::io::Write::write_all(&mut file, hex.as_bytes())?)
}

/// One node with a registry, and the same mount without one, each with a store of its own.
pub struct Pair {
    pub cluster: Cluster,
    pub alone: Forebay,
}

impl Pair {
    pub fn start(run: &Run, nodes: usize) -> Result<Pair> {
        Pair::start_with(run, nodes, &[])
    }

    /// A pair whose nodes have more options.
    pub fn start_with(run: &Run, nodes: usize, more: &[&str]) -> Result<Pair> {
        let cluster = Cluster::start(run, nodes, &[HOLD, more].concat())?;
        let mut alone = run.forebay_parts(On::Tmpfs, On::Tmpfs, HOLD)?;
        alone.mount().context("the mount without a registry")?;
        Ok(Pair { cluster, alone })
    }

    /// The mount points: with a registry, and without.
    pub fn dirs(&self) -> [&Path; 2] {
        [&self.cluster.nodes[0].mountpoint, &self.alone.mountpoint]
    }
}
