//! A Slurm of a test's own: controller, nodes with mounts of their own, munge and registry, all below one
//! directory and on loopback.
//!
//! Each node is a process that holds a mount namespace, with a node daemon and a slurmd in it. Processes
//! that run in such a namespace when the cluster is dropped are killed, and no others.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::etcd::Etcd;
use crate::node::{Node, open_dir};
use crate::wait::{PATIENCE, eventually, within};
use crate::{Out, Proc, binary, finish, free_port, is_alive, kill, text, user_ids};

/// The account of the jobs: Slurm lets root use no burst buffers.
pub const USER: &str = "nobody";

/// Slurm's burst buffer plug-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    Lua,
    DataWarp,
}

impl Setup {
    fn plugin(self) -> &'static str {
        match self {
            Setup::Lua => "lua",
            Setup::DataWarp => "datawarp",
        }
    }
}

/// Leaves the test unless a Slurm with burst buffers is installed.
#[macro_export]
macro_rules! needs_slurm {
    () => {
        $crate::needs_forebay!();
        $crate::needs_tools!(
            "etcd",
            "mkfs.ext4",
            "munged",
            "nsenter",
            "sbatch",
            "setpriv",
            "slurmctld",
            "slurmd",
            "unshare"
        );
        if !$crate::slurm::has_plugins() {
            $crate::skip!("no burst_buffer_lua.so (see tests/packages.txt)");
        }
    };
}

pub fn has_plugins() -> bool {
    let dirs = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let here = |dir: PathBuf| dir.join("slurm-wlm/burst_buffer_lua.so").exists();
    dirs.map(|dir| dir.path()).any(here) || here("/usr/lib".into())
}

/// The SlurmUser: the package's, or another that is not root.
fn slurm_user() -> &'static str {
    match user_ids("slurm") {
        Some(_) => "slurm",
        None => "daemon",
    }
}

/// One node: a namespace of mounts, a node daemon and a slurmd.
pub struct Host {
    pub node: Option<Node>,
    slurmd: Option<Proc>,
    holder: Proc,
    namespace: PathBuf,
}

pub struct Slurm {
    pub hosts: Vec<Host>,
    /// The node daemon of the controller's host.
    pub controller: Node,
    ctld: Option<Proc>,
    _munge: Proc,
    pub etcd: Etcd,
    pub root: PathBuf,
    pub setup: Setup,
    port: u16,
}

impl Slurm {
    /// Starts everything; jobs can use this many MiB of each node.
    pub fn start(setup: Setup, nodes: usize, mib: u64) -> Slurm {
        let mut controller = Node::laid(mib);
        let root = controller.root.clone();
        lay(&root);
        let etcd = Etcd::start(&root);
        let shown = root.join("mnt");
        std::fs::create_dir_all(&shown).unwrap();
        let ports: Vec<u16> = (0..nodes).map(|_| free_port()).collect();
        controller.one_of_several("controller", &etcd.address());
        controller.shows_below(&shown);
        controller.without_pool();
        controller.key(&scheduler_section(&root));
        let munge = start_munge(&root);
        let mut slurm = Slurm {
            hosts: Vec::new(),
            controller,
            ctld: None,
            _munge: munge,
            etcd,
            root,
            setup,
            port: free_port(),
        };
        slurm.configure(&ports, mib);
        slurm.controller.up();
        for number in 1..=nodes {
            let host = Host::start(&slurm, &format!("n{number}"), mib);
            slurm.hosts.push(host);
        }
        within(PATIENCE, "the spool has the pools of all nodes", || {
            slurm.grains() >= nodes as u64 * mib
        });
        slurm.up();
        (0..nodes).for_each(|at| slurm.start_slurmd(at));
        within(PATIENCE, "all nodes are idle", || slurm.idle() == nodes);
        slurm.knows_pools();
        slurm
    }

    /// Slurm asks for the pools at its start, and every half minute.
    fn knows_pools(&self) {
        within(PATIENCE, "Slurm knows the pool", || {
            self.tool("scontrol", &["show", "burst"]).stdout.contains("flash")
        });
    }

    /// The pool's grains that Slurm would be told.
    fn grains(&self) -> u64 {
        let text = std::fs::read(self.spool().join("pools.json")).unwrap_or_default();
        let told: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        told["pools"][0]["quantity"].as_u64().unwrap_or(0)
    }

    fn configure(&self, ports: &[u16], mib: u64) {
        let etc = self.root.join("etc");
        let contrib = contrib();
        for file in ["burst_buffer.lua", "job_submit.lua", "prolog.sh"] {
            std::fs::copy(contrib.join(file), etc.join(file)).expect("contrib/slurm is there");
        }
        let conf = format!("burst_buffer.{}.conf", self.setup.plugin());
        let shipped = std::fs::read_to_string(contrib.join(conf)).expect("contrib/slurm is there");
        let lines = shipped.lines().filter(|line| !line.contains("Timeout="));
        let mut ours: String = lines.map(|line| format!("{line}\n")).collect();
        ours = ours.replace("/usr/libexec/forebay", text(&etc));
        ours += "StageInTimeout=60\nStageOutTimeout=60\nOtherTimeout=45\n";
        std::fs::write(etc.join("burst_buffer.conf"), ours).unwrap();
        for name in ["dw_wlm_cli", "dwstat"] {
            std::os::unix::fs::symlink(binary(), etc.join(name)).unwrap();
        }
        executable(&etc.join("epilog"), &epilog(&self.root));
        std::fs::write(self.conf(), self.slurm_conf(ports, mib)).unwrap();
    }

    fn slurm_conf(&self, ports: &[u16], mib: u64) -> String {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap();
        let root = text(&self.root);
        let list: Vec<String> = ports.iter().map(u16::to_string).collect();
        let (count, list) = (ports.len(), list.join(","));
        format!(
            "ClusterName=demo\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser=root\n\
             SlurmctldPort={port}\nAuthType=auth/munge\nAuthInfo=socket={root}/munge/run/socket\n\
             CredType=cred/munge\nCommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
             JobCompType=jobcomp/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             SchedulerType=sched/backfill\n\
             SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000\n\
             SlurmdParameters=config_overrides\nSwitchType=switch/none\nMpiDefault=none\nReturnToService=2\nMailProg=/bin/true\n\
             KillWait=2\nMinJobAge=3600\nStateSaveLocation={root}/ctld\n\
             SlurmctldPidFile={root}/var/ctld.pid\nSlurmctldLogFile={root}/logs/ctld.log\n\
             SlurmdPidFile={root}/var/slurmd.%n.pid\nSlurmdLogFile={root}/logs/slurmd.%n.log\n\
             SlurmdSpoolDir={root}/spool.%n\nSlurmctldDebug=verbose\nDebugFlags=BurstBuffer\n\
             BurstBufferType=burst_buffer/{plugin}\nJobSubmitPlugins=lua\nGresTypes=forebay\n\
             PrologFlags=Alloc\nProlog={root}/etc/prolog.sh\nEpilog={root}/etc/epilog\n\
             NodeName=n[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{list}] CPUs=4 \
             RealMemory=1000 Gres=forebay:{mib} State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            user = slurm_user(),
            port = self.port,
            plugin = self.setup.plugin(),
        )
    }

    fn conf(&self) -> PathBuf {
        self.root.join("etc/slurm.conf")
    }

    /// Starts slurmctld and waits until it answers.
    pub fn up(&mut self) {
        let mut command = Command::new("slurmctld");
        command.arg("-D").env("SLURM_CONF", self.conf()).env("FOREBAY", binary());
        command.env("FOREBAY_NODE_SOCKET", self.controller.root.join("run/node.sock"));
        command.env("FOREBAY_SPOOL", self.spool()).stdin(Stdio::null());
        silent(&mut command);
        self.ctld = Some(Proc::spawn(&mut command));
        within(PATIENCE, "slurmctld answers", || {
            self.tool("scontrol", &["ping"]).stdout.contains("UP")
        });
    }

    /// Kills slurmctld as a crash would. The process that runs its scripts notices that, and ends them
    /// and itself.
    pub fn crash(&mut self) {
        let mut ctld = self.ctld.take().expect("it runs");
        let scripts = children_of(ctld.pid());
        ctld.kill();
        let gone = |pid: &i32| !is_alive(*pid);
        if !eventually(Duration::from_secs(10), || scripts.iter().all(gone)) {
            scripts.into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
        }
    }

    /// Waits until Slurm has certainly saved its present state: jobs every five seconds, burst buffers
    /// every half minute (`AGENT_INTERVAL`). A killed slurmctld loses younger state.
    pub fn saved(&self) {
        std::thread::sleep(Duration::from_secs(32));
    }

    fn start_slurmd(&mut self, at: usize) {
        let name = format!("n{}", at + 1);
        let spool = self.root.join(format!("spool.{name}"));
        std::fs::create_dir_all(&spool).unwrap();
        let host = &mut self.hosts[at];
        let mut command = Command::new("nsenter");
        command.args(["--target", &host.holder.pid().to_string(), "--mount", "slurmd", "-D", "-N"]);
        command.arg(&name).env("SLURM_CONF", self.root.join("etc/slurm.conf"));
        silent(command.stdin(Stdio::null()));
        host.slurmd = Some(Proc::spawn(&mut command));
    }

    fn idle(&self) -> usize {
        let out = self.tool("sinfo", &["-h", "-N", "-t", "idle", "-o", "%N"]).stdout;
        out.split_whitespace().count()
    }

    pub fn spool(&self) -> PathBuf {
        self.root.join("spool")
    }

    /// The directory where jobs run and leave their output, and of their data.
    pub fn out(&self) -> PathBuf {
        self.root.join("out")
    }

    /// The log of slurmctld.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.root.join("logs/ctld.log")).unwrap_or_default()
    }

    /// Runs one of Slurm's commands, as root.
    pub fn tool(&self, program: &str, args: &[&str]) -> Out {
        finish(Command::new(program).args(args).env("SLURM_CONF", self.conf()), PATIENCE)
    }

    /// Runs one of Slurm's commands, as the user.
    pub fn user_tool(&self, program: &str, args: &[&str]) -> Out {
        let (uid, gid) = user_ids(USER).expect("an account");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"]);
        command.arg(program).args(args).env("SLURM_CONF", self.conf()).current_dir(self.out());
        finish(&mut command, PATIENCE)
    }

    /// Submits a script; returns the result of sbatch.
    pub fn sbatch(&self, args: &[&str], script: &str) -> Out {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let at = self.root.join(format!("out/script-{number}"));
        std::fs::write(&at, script).unwrap();
        self.user_tool("sbatch", &[&["--parsable"], args, &[text(&at)]].concat())
    }

    /// Submits a script; returns the id of the job.
    #[track_caller]
    pub fn submit(&self, args: &[&str], script: &str) -> String {
        self.sbatch(args, script).ok().stdout.trim().to_string()
    }

    /// A field of `scontrol show job`.
    pub fn field(&self, id: &str, key: &str) -> String {
        let shown = self.tool("scontrol", &["show", "job", id, "-o"]).stdout;
        let from = |at: usize| shown[at + key.len() + 2..].split(' ').next().unwrap_or_default();
        shown.find(&format!(" {key}=")).map(from).unwrap_or_default().trim().to_string()
    }

    pub fn show(&self, id: &str) -> String {
        self.tool("scontrol", &["show", "job", id]).text()
    }

    pub fn state(&self, id: &str) -> String {
        self.field(id, "JobState")
    }

    /// Waits until `scontrol show job` shows a text.
    #[track_caller]
    pub fn until(&self, id: &str, what: &str) {
        let mut last = String::new();
        let there = eventually(PATIENCE, || {
            last = self.show(id);
            last.contains(what)
        });
        assert!(
            there,
            "job {id} never shows {what}: {last}\n{}\n{}",
            self.job_log(id),
            self.tail()
        );
    }

    /// Waits until Slurm is finished with a job, and returns the job's state.
    #[track_caller]
    pub fn finished(&self, id: &str) -> String {
        let over = |state: &str| {
            ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"].contains(&state)
        };
        let done = eventually(PATIENCE, || {
            let torn = ["complete", ""].contains(&self.field(id, "BurstBufferState").as_str());
            torn && over(&self.state(id))
        });
        assert!(done, "{}\n{}\n{}", self.show(id), self.job_log(id), self.tail());
        self.state(id)
    }

    fn tail(&self) -> String {
        let log = self.log();
        let from = log.lines().count().saturating_sub(60);
        let lines: Vec<&str> = log.lines().skip(from).collect();
        format!("{}\nnode daemon of the controller:\n{}", lines.join("\n"), self.controller.log())
    }

    /// The output of a job.
    pub fn output(&self, id: &str) -> String {
        std::fs::read_to_string(self.out().join(format!("slurm-{id}.out"))).unwrap_or_default()
    }

    /// The log that forebay writes about a job for its owner.
    pub fn job_log(&self, id: &str) -> String {
        let at = self.root.join(format!("joblogs/demo-{id}.log"));
        std::fs::read_to_string(at).unwrap_or_default()
    }

    /// Fails unless all traces of jobs are gone: instances, grants, mounts, files, records, processes.
    #[track_caller]
    pub fn assert_empty(&self) {
        within(Duration::from_secs(60), "no instance is left", || {
            self.controller.json(&["instance", "list"]) == serde_json::json!([])
        });
        for host in &self.hosts {
            let node = host.node.as_ref().expect("it is there");
            node.assert_empty();
            let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", host.holder.pid()));
            let shown = self.root.join("mnt");
            let table = table.unwrap();
            let left: Vec<&str> =
                table.lines().filter(|line| line.contains(text(&shown))).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let jobs = self.spool().join("jobs");
        within(Duration::from_secs(60), "no job is in the spool", || {
            std::fs::read_dir(&jobs).map_or(true, |dir| dir.count() == 0)
        });
        let shown: Vec<_> = std::fs::read_dir(self.root.join("mnt")).unwrap().flatten().collect();
        assert!(shown.is_empty(), "{shown:?}");
    }
}

impl Host {
    fn start(slurm: &Slurm, name: &str, mib: u64) -> Host {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sleep", "infinity"]);
        let holder = Proc::spawn(command.stdin(Stdio::null()));
        let link = format!("/proc/{}/ns/mnt", holder.pid());
        let ours = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        within(PATIENCE, "the node has mounts of its own", || {
            std::fs::read_link(&link).is_ok_and(|there| there != ours)
        });
        let namespace = std::fs::read_link(&link).unwrap();
        // Spaces hold more than their capacity: tables and a journal of their own.
        let mut node = Node::laid(mib + mib / 8 + 256);
        node.one_of_several(name, &slurm.etcd.address());
        node.among_mounts_of(holder.pid());
        node.shows_below(&slurm.root.join("mnt"));
        // The Epilog knows its node by name, and reaches its daemon through this link.
        let socket = node.root.join("run/node.sock");
        std::os::unix::fs::symlink(socket, slurm.root.join(format!("var/{name}.sock"))).unwrap();
        node.up();
        Host { node: Some(node), slurmd: None, holder, namespace }
    }

    pub fn node(&mut self) -> &mut Node {
        self.node.as_mut().expect("it is there")
    }

    /// Kills the processes in the namespace, except the one that holds it.
    fn sweep(&self) {
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let there = std::fs::read_link(entry.path().join("ns/mnt"));
            if pid != self.holder.pid() && there.is_ok_and(|there| there == self.namespace) {
                kill(pid, libc::SIGKILL);
            }
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::say(&self.tail());
        }
        if self.ctld.is_some() {
            self.tool("scancel", &["--full", "--hurry", "--user", USER]);
            eventually(Duration::from_secs(15), || {
                self.tool("squeue", &["-h", "-o", "%A"]).stdout.trim().is_empty()
            });
        }
        for mut host in self.hosts.drain(..) {
            host.slurmd = None;
            // The node daemon removes its instances, then ends.
            host.node = None;
            host.sweep();
        }
        if self.ctld.is_some() {
            self.crash();
        }
    }
}

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/slurm")
}

/// Makes the directories, with their owners and modes.
fn lay(root: &Path) {
    for dir in ["etc", "ctld", "logs", "var", "munge/key", "munge/run", "munge/log", "munge/lib"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    open_dir(&root.join("out"));
    let (uid, gid) = user_ids(slurm_user()).expect("an account");
    for dir in ["ctld", "logs", "var"] {
        std::os::unix::fs::chown(root.join(dir), Some(uid), Some(gid)).unwrap();
    }
}

fn scheduler_section(root: &Path) -> String {
    format!(
        "[scheduler]\ncluster = \"demo\"\nuser = \"{}\"\nspool = \"{}\"\nlogs = \"{}\"\n\
         slurm-conf = \"{}\"\nunknown-after = \"20s\"\nrelease-patience = \"10s\"",
        slurm_user(),
        text(&root.join("spool")),
        text(&root.join("joblogs")),
        text(&root.join("etc/slurm.conf")),
    )
}

/// The Epilog's environment is set here, since Slurm gives it another.
fn epilog(root: &Path) -> String {
    format!(
        "#!/bin/sh\nexport FOREBAY={} FOREBAY_NODE_SOCKET={}/var/$SLURMD_NODENAME.sock\nexec sh {}\n",
        text(binary()),
        text(root),
        text(&contrib().join("epilog.sh")),
    )
}

fn executable(at: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(at, script).unwrap();
    std::fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
}

fn silent(command: &mut Command) {
    command.stdout(Stdio::null()).stderr(Stdio::null());
}

/// Munge wants its directories for itself, and its socket reachable for every user.
fn start_munge(root: &Path) -> Proc {
    use std::os::unix::fs::PermissionsExt;
    let munge = root.join("munge");
    let key = munge.join("key/munge.key");
    let mut bytes = vec![0; 1024];
    crate::fill(&mut bytes, u64::from(std::process::id()), 0);
    std::fs::write(&key, bytes).unwrap();
    for (path, mode) in [("key/munge.key", 0o400), ("key", 0o700), ("log", 0o700), ("lib", 0o700)] {
        std::fs::set_permissions(munge.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(munge.join("run"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new("munged");
    let flag = |name: &str, path: &str| format!("--{name}={}", text(&munge.join(path)));
    command.arg("--foreground").arg(flag("key-file", "key/munge.key"));
    command.args([flag("socket", "run/socket"), flag("pid-file", "run/pid")]);
    command.args([flag("log-file", "log/log"), flag("seed-file", "lib/seed")]);
    silent(command.stdin(Stdio::null()));
    let server = Proc::spawn(&mut command);
    within(PATIENCE, "munge listens", || munge.join("run/socket").exists());
    server
}

/// The descendants of a process.
fn children_of(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
    let own: Vec<i32> =
        lists.flatten().flat_map(|list| numbers(&list).collect::<Vec<_>>()).collect();
    let below: Vec<i32> = own.iter().flat_map(|pid| children_of(*pid)).collect();
    [own, below].concat()
}

fn numbers(text: &str) -> impl Iterator<Item = i32> {
    text.split_whitespace().filter_map(|number| number.parse().ok())
}
