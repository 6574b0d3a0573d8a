//! A node daemon of a test's own: state, pool, socket and mount root below one new directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::cli::{Out, binary, finish, forebay_env};
use crate::procs::{Proc, kill};
use crate::wait::{PATIENCE, within};
use crate::{images, text};

/// Removed when dropped, with all its mounts.
pub struct Node {
    pub root: PathBuf,
    pub name: String,
    env: Vec<(String, String)>,
    daemon: Option<Proc>,
    extra: String,
    keys: String,
    after_hurry: &'static str,
    mounts: MountsOf,
    shown: PathBuf,
    pool: bool,
}

/// The mounts that a daemon counts as its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountsOf {
    Everybody,
    /// As on a machine of its own, for several nodes on one machine.
    Itself,
    /// The mounts of a process, as on the machine that the process plays.
    Of(i32),
}

impl Node {
    /// Starts a node whose pool has this many MiB.
    pub fn start(mib: u64) -> Node {
        let mut node = Node::laid(mib);
        node.up();
        node
    }

    /// Lays a node out without starting it.
    pub fn laid(mib: u64) -> Node {
        let base = std::env::var_os("FOREBAY_TEST_DIR").map_or("/var/tmp".into(), PathBuf::from);
        Node::laid_below(&base, mib)
    }

    /// Lays a node out with all its files below a directory.
    pub fn laid_below(base: &Path, mib: u64) -> Node {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = base.join(format!("fbt-{}-n{id}", std::process::id()));
        std::fs::create_dir_all(root.join("slow")).expect("the test directory is writable");
        let socket = root.join("run/node.sock");
        let env = vec![("FOREBAY_NODE_SOCKET".to_string(), text(&socket).to_string())];
        let extra = format!("capacity = \"{mib}MiB\"\n");
        Node {
            shown: root.join("mnt"),
            root,
            name: "n1".into(),
            env,
            daemon: None,
            extra,
            keys: String::new(),
            after_hurry: "3s",
            mounts: MountsOf::Everybody,
            pool: true,
        }
    }

    /// Adds keys of the pool, such as `swap = true`.
    pub fn pool_key(&mut self, line: &str) {
        self.extra.push_str(line);
        self.extra.push('\n');
    }

    /// Makes this one of several nodes on this machine, with a shared registry.
    pub fn one_of_several(&mut self, name: &str, registry: &str) {
        self.name = name.into();
        self.mounts = MountsOf::Itself;
        self.key(&format!("registry = \"{registry}\""));
    }

    /// Runs the daemon among the mounts of a process, also after a crash.
    pub fn among_mounts_of(&mut self, pid: i32) {
        self.mounts = MountsOf::Of(pid);
    }

    /// Shows instances below a directory that all nodes name alike.
    pub fn shows_below(&mut self, dir: &Path) {
        self.shown = dir.into();
    }

    /// Removes the pool, as on a machine that only serves a scheduler.
    pub fn without_pool(&mut self) {
        self.extra.clear();
        self.pool = false;
    }

    /// Keeps hurried stage-outs for longer than a test takes.
    pub fn long_after_hurry(&mut self) {
        self.after_hurry = "1h";
    }

    /// Whether the manifest of the node says that something was left.
    pub fn has_left_something(&self) -> bool {
        let lines = self.json(&["manifest"]);
        lines.as_array().is_some_and(|lines| lines.iter().any(|line| line["known"] == "left"))
    }

    /// The mounts that its daemon sees, as `/proc` tells them.
    pub fn mountinfo(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).unwrap_or_default()
    }

    /// Adds keys of the node.
    pub fn key(&mut self, line: &str) {
        self.keys.push_str(line);
        self.keys.push('\n');
    }

    pub fn env(&mut self, name: &str, value: &str) {
        self.env.push((name.into(), value.into()));
    }

    pub fn config(&self) -> PathBuf {
        let at = |name: &str| self.root.join(name).display().to_string();
        let config = self.root.join("node.toml");
        let pool = match self.pool {
            true => {
                format!("[[pool]]\nname = \"flash\"\ndir = \"{}\"\n{}", at("pool"), self.extra)
            }
            false => String::new(),
        };
        let body = format!(
            "name = \"{}\"\nstate = \"{}\"\nsocket = \"{}\"\nmount-root = \"{}\"\n\
             busy-patience = \"1s\"\nkeep-after-hurry = \"{}\"\n{}{pool}",
            self.name,
            at("state"),
            at("run/node.sock"),
            text(&self.shown),
            self.after_hurry,
            self.keys,
        );
        std::fs::write(&config, body).expect("the test directory is writable");
        config
    }

    /// Starts the daemon and waits until it answers.
    pub fn up(&mut self) {
        self.spawn();
        let socket = self.root.join("run/node.sock");
        within(PATIENCE, "the node daemon answers", || {
            socket.exists() && self.forebay(&["node", "health"]).code != Some(3)
        });
    }

    /// Starts a daemon that reaches a failpoint because of the state it finds, and waits until it
    /// is dead.
    pub fn dies_at(&mut self, step: &str) {
        self.env("FOREBAY_FAILPOINTS", step);
        self.spawn();
        self.died();
        self.env("FOREBAY_FAILPOINTS", "");
    }

    fn spawn(&mut self) {
        let config = self.config();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.root.join("log"))
            .expect("the test directory is writable");
        let mut command = match self.mounts {
            MountsOf::Everybody => Command::new(binary()),
            MountsOf::Itself => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private"]).arg(binary());
                command
            }
            MountsOf::Of(pid) => {
                let mut command = Command::new("nsenter");
                command.args(["--target", &pid.to_string(), "--mount"]).arg(binary());
                command
            }
        };
        command.args(["node", "--config", text(&config)]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        self.daemon = Some(Proc::spawn(&mut command));
    }

    /// Kills the daemon as a crash would; mounts and transfers go on.
    pub fn crash(&mut self) {
        self.daemon.take().expect("it runs").kill();
    }

    pub fn pid(&self) -> i32 {
        self.daemon.as_ref().expect("it runs").pid()
    }

    /// Asks the daemon to stop, and waits until it has.
    pub fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        kill(daemon.pid(), libc::SIGTERM);
        assert!(daemon.wait(PATIENCE).is_some_and(|status| status.success()), "{}", self.log());
    }

    /// Waits for a daemon that ends by itself, as at a failpoint.
    pub fn died(&mut self) {
        let mut daemon = self.daemon.take().expect("it ran");
        assert!(daemon.wait(PATIENCE).is_some(), "it is alive\n{}", self.log());
    }

    pub fn forebay(&self, args: &[&str]) -> Out {
        forebay_env(args, &self.env)
    }

    /// Runs a command as an ordinary user without an account.
    pub fn as_user(&self, uid: u32, args: &[&str]) -> Out {
        let id = uid.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(binary()).args(args);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        finish(&mut command, PATIENCE * 4)
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.forebay(&[args, &["--json"]].concat());
        serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {out:?}"))
    }

    /// The path of an instance.
    pub fn at(&self, id: &str) -> PathBuf {
        self.shown.join(id)
    }

    pub fn slow(&self) -> PathBuf {
        self.root.join("slow")
    }

    /// The number of bytes that the pool has granted.
    pub fn granted(&self) -> u64 {
        self.json(&["pools"])[0]["granted"].as_u64().expect("a number")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.root.join("log")).unwrap_or_default()
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let at = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        at.filter(|at| at.starts_with(&self.shown)).collect()
    }

    /// Fails unless all instances are gone: grants, mounts, files of the pool, records.
    #[track_caller]
    pub fn assert_empty(&self) {
        within(Duration::from_secs(20), "the pool is empty", || {
            self.granted() == 0 && self.in_pool().is_empty()
        });
        let left = self.mounts();
        assert!(left.is_empty(), "{left:?} are mounted\n{}", self.log());
        assert_eq!(self.json(&["instance", "list"]), serde_json::json!([]), "{}", self.log());
    }

    /// Files of the pool that belong to an instance.
    pub fn in_pool(&self) -> Vec<PathBuf> {
        let folders = ["spaces", "swap", "tiers", "trash", "state"];
        let lists = folders.map(|name| std::fs::read_dir(self.root.join("pool").join(name)));
        let entries = lists.into_iter().flatten().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            crate::say(&format!("log of the node daemon:\n{}", self.log()));
        }
        if self.daemon.is_some() {
            let list = self.forebay(&["instance", "list", "--json"]).stdout;
            // Any result is accepted: a panic here would hide the test's own.
            let list: Vec<Value> = serde_json::from_str(&list).unwrap_or_default();
            for instance in list {
                let id = instance["id"].as_str().unwrap_or_default().to_string();
                self.forebay(&["instance", "destroy", &id, "--hurry", "--timeout", "20s"]);
            }
            self.crash();
        }
        for at in self.mounts().iter().rev() {
            let _ = images::unmount(at, true);
        }
        if std::env::var_os("FOREBAY_TEST_KEEP").is_none() && self.mounts().is_empty() {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// Makes a directory in which every user may write.
pub fn open_dir(at: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(at).expect("the test directory is writable");
    std::fs::set_permissions(at, PermissionsExt::from_mode(0o777)).expect("it is ours");
}
