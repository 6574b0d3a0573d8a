//! The configuration of a node daemon: one TOML file, or none.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_base::units::{parse_duration, parse_size};
use forebay_base::{Error, Kind, Result};
use serde::{Deserialize, Deserializer};

use crate::records::check_name;

/// The directory in which a node daemon keeps its state over restarts.
pub const STATE: &str = "/var/lib/forebay";

/// The socket at which programs ask the node daemon.
pub const SOCKET: &str = "/run/forebay/node.sock";

/// The directory below which instances are mounted.
pub const MOUNT_ROOT: &str = "/run/forebay/mnt";

/// The directory in which a scheduler's hooks find answers for which they may not wait.
pub const SPOOL: &str = "/run/forebay/slurm";

const JOB_LOGS: &str = "/var/log/forebay/jobs";

/// Longer than a scheduler is down for an upgrade.
const UNKNOWN_AFTER: Duration = Duration::from_secs(600);

/// A node that has died reports nothing.
const RELEASE_PATIENCE: Duration = Duration::from_secs(60);

/// Each transfer is a record that all nodes read.
const TRANSFERS_PER_USER: u64 = 10_000;

/// Room is granted in multiples of this, unless a pool sets its own grain.
const GRAIN: u64 = 1 << 20;

/// How long explicit stage-outs are kept whose instance was told to hurry.
const KEEP_AFTER_HURRY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long to wait for a busy mount when its instance goes, before it is taken away; also for a transfer that
/// is to end, before it is killed.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);

/// Programs of jobs have precedence over transfers.
const TRANSFER_WEIGHT: u32 = 20;

/// The kernel's maximum.
const WEIGHT_MAX: u32 = 10_000;

/// A pool without a set capacity gets one part in this many of the free space: the rest is for others.
const SHARE_OF_FREE: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodeConfig {
    /// The name by which other nodes and the scheduler know this node.
    #[serde(default = "host_name")]
    pub name: String,
    /// The address at which other nodes reach this one.
    #[serde(default)]
    pub address: Option<String>,
    /// `etcd://...`; `None` for a registry of this machine's own.
    #[serde(default)]
    pub registry: Option<String>,
    #[serde(default = "state")]
    pub state: PathBuf,
    #[serde(default = "socket")]
    pub socket: PathBuf,
    #[serde(default = "mount_root")]
    pub mount_root: PathBuf,
    #[serde(default = "keep_after_hurry", deserialize_with = "duration")]
    pub keep_after_hurry: Duration,
    #[serde(default = "busy_patience", deserialize_with = "duration")]
    pub busy_patience: Duration,
    /// A directory of the cgroup file system (v2, or v1's `cpu`) for the processes of transfers, made if it is
    /// missing. Default: `transfers` beside the daemon's own, where systemd has delegated that; otherwise
    /// none.
    #[serde(default)]
    pub transfer_cgroup: Option<PathBuf>,
    /// The share of the processors for all transfers together, where programs compete for them: a program's
    /// cgroup has 100.
    #[serde(default = "transfer_weight")]
    pub transfer_weight: u32,
    /// Mount points that must have something mounted before a path below them is a backing store.
    #[serde(default)]
    pub backing_mounts: Vec<PathBuf>,
    /// The command that is run when more than `manifest-max` bytes are not home, to tell the scheduler, such
    /// as `scontrol update nodename=%n state=drain reason=%r`.
    #[serde(default)]
    pub over_manifest_command: Option<String>,
    #[serde(default, deserialize_with = "some_size")]
    pub manifest_max: Option<u64>,
    #[serde(default)]
    pub limits: Limits,
    /// Set on the machine on which a scheduler's hooks run.
    #[serde(default)]
    pub scheduler: Option<SchedulerConfig>,
    #[serde(default, rename = "pool")]
    pub pools: Vec<PoolConfig>,
}

/// The settings for a scheduler's hooks: what they may ask of this node daemon, and what it keeps for them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Tells jobs of different clusters apart.
    pub cluster: String,
    /// The user of the hooks, such as Slurm's `SlurmUser`: may make instances for jobs of any user.
    #[serde(default = "scheduler_user")]
    pub user: String,
    /// The directory in which the daemon writes files for hooks that may not wait.
    #[serde(default = "spool")]
    pub spool: PathBuf,
    /// The directory of the jobs' logs, each readable by the job's owner.
    #[serde(default = "job_logs")]
    pub logs: PathBuf,
    /// The path of Slurm's configuration, if it is not the default one.
    #[serde(default)]
    pub slurm_conf: Option<PathBuf>,
    /// A job that the scheduler has not known for this long has ended.
    #[serde(default = "unknown_after", deserialize_with = "duration")]
    pub unknown_after: Duration,
    /// How long to wait for nodes that do not report that a job's processes are gone.
    #[serde(default = "release_patience", deserialize_with = "duration")]
    pub release_patience: Duration,
    /// Whether this machine has the file systems that jobs stage from.
    #[serde(default = "yes")]
    pub look_at_sources: bool,
}

/// The limits of an ordinary user, on all nodes together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limits {
    #[serde(default)]
    pub instances_per_user: Option<u64>,
    #[serde(default, deserialize_with = "some_size")]
    pub bytes_per_user: Option<u64>,
    /// Counts transfers that are not done.
    #[serde(default = "transfers_per_user")]
    pub transfers_per_user: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            instances_per_user: None,
            bytes_per_user: None,
            transfers_per_user: transfers_per_user(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PoolConfig {
    pub name: String,
    pub dir: PathBuf,
    /// Default: half of the free space when the daemon first starts.
    #[serde(default, deserialize_with = "some_size")]
    pub capacity: Option<u64>,
    #[serde(default = "grain", deserialize_with = "size")]
    pub grain: u64,
    /// Whether a capacity must hold. With `false` a private instance may be a plain directory.
    #[serde(default = "yes")]
    pub enforce: bool,
    /// Whether instances may swap here.
    #[serde(default)]
    pub swap: bool,
}

impl NodeConfig {
    pub fn read(path: &Path) -> Result<NodeConfig> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| {
            usage(format!("{shown}: {e}; `forebay node --help` shows what is in it"))
        })?;
        NodeConfig::from_toml(&text).map_err(|e| e.context(shown))
    }

    pub fn from_toml(text: &str) -> Result<NodeConfig> {
        let mut config: NodeConfig = toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(String::new(), |span| place_in(text, span.start));
            usage(format!("{at}{}", e.message()))
        })?;
        if config.pools.is_empty() && config.scheduler.is_none() {
            config.pools.push(PoolConfig::of_this_machine(&config.state));
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        check_name("node", &self.name)?;
        for (key, path) in
            [("state", &self.state), ("socket", &self.socket), ("mount-root", &self.mount_root)]
        {
            require_absolute(key, path)?;
        }
        if let Some(cgroup) = &self.transfer_cgroup {
            require_absolute("transfer-cgroup", cgroup)?;
        }
        if !(1..=WEIGHT_MAX).contains(&self.transfer_weight) {
            return Err(usage(format!(
                "transfer-weight: give 1 to {WEIGHT_MAX}; 100 is a program's"
            )));
        }
        self.backing_mounts.iter().try_for_each(|path| require_absolute("backing-mounts", path))?;
        if let Some(scheduler) = &self.scheduler {
            check_name("cluster", &scheduler.cluster)?;
            require_absolute("scheduler: spool", &scheduler.spool)?;
            require_absolute("scheduler: logs", &scheduler.logs)?;
        }
        for (at, pool) in self.pools.iter().enumerate() {
            pool.check()?;
            let others = &self.pools[..at];
            if others.iter().any(|other| other.name == pool.name) {
                return Err(usage(format!("pool {}: two pools have this name", pool.name)));
            }
            let inside = |other: &&PoolConfig| {
                other.dir.starts_with(&pool.dir) || pool.dir.starts_with(&other.dir)
            };
            if let Some(other) = others.iter().find(inside) {
                let why = format!("pool {}: its dir is that of pool {}", pool.name, other.name);
                return Err(usage(format!("{why}, or inside it: give each one of its own")));
            }
        }
        Ok(())
    }
}

impl PoolConfig {
    fn of_this_machine(state: &Path) -> PoolConfig {
        PoolConfig {
            name: "flash".into(),
            dir: state.join("pool"),
            capacity: None,
            grain: GRAIN,
            enforce: true,
            swap: false,
        }
    }

    fn check(&self) -> Result<()> {
        check_name("pool", &self.name)?;
        require_absolute(&format!("pool {}: dir", self.name), &self.dir)?;
        if self.grain == 0 || !self.grain.is_multiple_of(1 << 20) {
            return Err(usage(format!("pool {}: grain: give whole MiB, at least one", self.name)));
        }
        match self.capacity {
            Some(capacity) if capacity < self.grain => {
                Err(usage(format!("pool {}: capacity: is less than one grain", self.name)))
            }
            _ => Ok(()),
        }
    }

    /// The bytes that the pool may grant, in whole grains, with `free` bytes on its file system and `granted`
    /// bytes granted already.
    pub fn capacity_of(&self, free: u64, granted: u64) -> u64 {
        let bytes = self.capacity.unwrap_or((free.saturating_add(granted)) / SHARE_OF_FREE);
        bytes / self.grain * self.grain
    }
}

/// The line, and the key whose value begins there, if one does.
fn place_in(text: &str, at: usize) -> String {
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let typed = before.rsplit('\n').next().unwrap_or_default();
    match typed.split_once('=') {
        Some((key, _)) => format!("line {line}: {}: ", key.trim()),
        None => format!("line {line}: "),
    }
}

fn require_absolute(key: &str, path: &Path) -> Result<()> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(usage(format!("{key}: {}: write an absolute path", path.display()))),
    }
}

fn usage(why: String) -> Error {
    Error::new(Kind::Usage, why)
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Schedulers call a node by the part before the first dot.
    name.split('.').next().unwrap_or_default().to_string()
}

fn state() -> PathBuf {
    STATE.into()
}

fn socket() -> PathBuf {
    SOCKET.into()
}

fn mount_root() -> PathBuf {
    MOUNT_ROOT.into()
}

fn keep_after_hurry() -> Duration {
    KEEP_AFTER_HURRY
}

fn transfer_weight() -> u32 {
    TRANSFER_WEIGHT
}

fn scheduler_user() -> String {
    "slurm".into()
}

fn spool() -> PathBuf {
    SPOOL.into()
}

fn job_logs() -> PathBuf {
    JOB_LOGS.into()
}

fn unknown_after() -> Duration {
    UNKNOWN_AFTER
}

fn release_patience() -> Duration {
    RELEASE_PATIENCE
}

fn transfers_per_user() -> u64 {
    TRANSFERS_PER_USER
}

fn busy_patience() -> Duration {
    BUSY_PATIENCE
}

fn grain() -> u64 {
    GRAIN
}

fn yes() -> bool {
    true
}

fn size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
    parse_size(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

fn some_size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u64>, D::Error> {
    size(from).map(Some)
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Duration, D::Error> {
    parse_duration(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_describes_this_machine() {
        let config = NodeConfig::from_toml("").unwrap();
        assert!(!config.name.is_empty() && !config.name.contains('.'));
        assert_eq!(config.pools.len(), 1);
        assert_eq!(config.pools[0].dir, Path::new(STATE).join("pool"));
        assert_eq!(config.pools[0].capacity_of(10 << 30, 0), 5 << 30);
        assert_eq!(config.pools[0].capacity_of(8 << 30, 2 << 30), 5 << 30);
    }

    #[test]
    fn a_scheduler_s_machine_need_have_no_pool() {
        let config = NodeConfig::from_toml("[scheduler]\ncluster = \"c\"").unwrap();
        assert!(config.pools.is_empty());
        assert_eq!(config.scheduler.unwrap().spool, Path::new(SPOOL));
    }

    #[test]
    fn every_key_is_read() {
        let text = "name = \"n1\"\naddress = \"10.0.0.1:7070\"\nregistry = \"etcd://h:2379\"\n\
            state = \"/s\"\nsocket = \"/k\"\nmount-root = \"/m\"\nkeep-after-hurry = \"2h\"\n\
            busy-patience = \"3s\"\nbacking-mounts = [\"/pfs\"]\nmanifest-max = \"1TiB\"\n\
            over-manifest-command = \"true\"\ntransfer-cgroup = \"/sys/fs/cgroup/t\"\n\
            transfer-weight = 50\n[limits]\ninstances-per-user = 3\n\
            bytes-per-user = \"1GiB\"\ntransfers-per-user = 7\n[scheduler]\ncluster = \"c\"\nuser = \"s\"\nspool = \"/sp\"\n\
            logs = \"/l\"\nslurm-conf = \"/c\"\nunknown-after = \"5m\"\nrelease-patience = \"9s\"\n\
            look-at-sources = false\n[[pool]]\nname = \"p\"\ndir = \"/nvme\"\ncapacity = \"7MiB\"\n\
            grain = \"2MiB\"\nenforce = false\nswap = true\n";
        let config = NodeConfig::from_toml(text).unwrap();
        assert_eq!((config.name.as_str(), config.limits.bytes_per_user), ("n1", Some(1 << 30)));
        assert_eq!(config.limits.transfers_per_user, 7);
        assert_eq!(config.transfer_cgroup.as_deref(), Some(Path::new("/sys/fs/cgroup/t")));
        assert_eq!(config.transfer_weight, 50);
        assert_eq!(config.keep_after_hurry, Duration::from_secs(7200));
        let scheduler = config.scheduler.as_ref().unwrap();
        assert_eq!((scheduler.cluster.as_str(), scheduler.user.as_str()), ("c", "s"));
        assert_eq!(scheduler.unknown_after, Duration::from_secs(300));
        assert_eq!(config.pools[0].capacity_of(0, 0), 6 << 20);
    }

    /// The keys of a table as the parser knows them: it names them when it meets an unknown key.
    fn keys_of(table: &str) -> Vec<String> {
        let error = NodeConfig::from_toml(&format!("{table}unheard-of = 1")).unwrap_err();
        let (_, expected) = error.to_string().split_once("expected ").map(own).expect("it says");
        expected.split('`').skip(1).step_by(2).map(String::from).collect()
    }

    fn own((a, b): (&str, &str)) -> (String, String) {
        (a.into(), b.into())
    }

    /// The rows of a table of the page, each with its first two columns, after the text `before`.
    fn rows<'a>(page: &'a str, before: &str) -> Vec<(&'a str, &'a str)> {
        let (_, rest) =
            page.split_once(before).unwrap_or_else(|| panic!("{before} is not in the page"));
        let lines = rest.lines().skip_while(|line| !line.starts_with('|'));
        let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
        let cells = |line: &'a str| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            (cells.next().unwrap_or_default().trim_matches('`'), cells.next().unwrap_or_default())
        };
        rows.map(cells).collect()
    }

    /// `docs/JOBS.md` has each key once, in the order of the structs, with its default.
    #[test]
    fn the_page_has_every_key_with_its_default() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/JOBS.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (before, table) in [
            ("## The node daemon's configuration", ""),
            ("`[limits]`:", "[limits]\n"),
            ("`[scheduler]`:", "[scheduler]\n"),
            ("`[[pool]]`:", "[[pool]]\n"),
        ] {
            let rows = rows(&page, before);
            let named: Vec<&str> = rows.iter().map(|(key, _)| *key).collect();
            assert_eq!(named, keys_of(table), "{before}");
            let needed = match table {
                "[scheduler]\n" => "cluster = \"c\"\n",
                "[[pool]]\n" => "name = \"p\"\ndir = \"/d\"\n",
                _ => "",
            };
            let plain = format!("{table}{needed}");
            let written = rows.iter().fold(plain.clone(), |text, (key, default)| {
                match default.strip_prefix('`').and_then(|text| text.strip_suffix('`')) {
                    Some(it) if it.parse::<u64>().is_ok() || it.parse::<bool>().is_ok() => {
                        format!("{text}{key} = {it}\n")
                    }
                    Some(it) => format!("{text}{key} = \"{it}\"\n"),
                    None => text,
                }
            });
            assert!(written != plain, "{before}: it has defaults");
            let read = |text: &str| NodeConfig::from_toml(text).unwrap();
            assert_eq!(read(&written), read(&plain), "{written}");
        }
    }

    #[test]
    fn mistakes_are_told_with_line_and_remedy() {
        for (text, expected) in [
            ("nme = \"a\"", "line 1: unknown field `nme`, expected one of"),
            ("name = \"a/b\"", "node \"a/b\": a name begins with"),
            ("transfer-weight = 0", "transfer-weight: give 1 to 10000"),
            ("transfer-cgroup = \"t\"", "transfer-cgroup: t: write an absolute path"),
            ("state = \"x\"", "state: x: write an absolute path"),
            ("[scheduler]\ncluster = \"a b\"", "cluster \"a b\": a name begins with"),
            ("[scheduler]\ncluster = \"a\"\nspool = \"s\"", "scheduler: spool: s: write an"),
            ("keep-after-hurry = \"3\"", "line 1: keep-after-hurry: add a unit"),
            ("name = \"a\"\nmanifest-max = \"3\"", "line 2: manifest-max: add a unit"),
            ("[[pool]]\nname = \"p\"", "line 1: missing field `dir`"),
            (
                "[[pool]]\nname = \"p\"\ndir = \"/a\"\ngrain = \"5KiB\"",
                "pool p: grain: give whole MiB",
            ),
            (
                "[[pool]]\nname = \"p\"\ndir = \"/a\"\ncapacity = \"5KiB\"",
                "pool p: capacity: is less",
            ),
            (
                "[[pool]]\nname = \"p\"\ndir = \"/a\"\n[[pool]]\nname = \"q\"\ndir = \"/a/b\"",
                "pool q: its dir is that of pool p",
            ),
            (
                "[[pool]]\nname = \"p\"\ndir = \"/a\"\n[[pool]]\nname = \"p\"\ndir = \"/b\"",
                "pool p: two pools have this name",
            ),
        ] {
            let error = NodeConfig::from_toml(text).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{text}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
