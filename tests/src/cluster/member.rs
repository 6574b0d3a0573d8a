//! One node of a cluster: a tier, a mount point, and the daemon that serves it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::net::Net;
use crate::cli::{Out, binary, finish};
use crate::procs::{is_alive, kill, stop};
use crate::wait::{PATIENCE, eventually, within};
use crate::{images, text};

pub struct Member {
    pub name: String,
    pub mnt: PathBuf,
    pub tier: PathBuf,
    pub backing: PathBuf,
    /// The host of the network that the node is on.
    pub(super) host: Option<usize>,
    pub(super) flags: Vec<String>,
    /// The environment of its commands, and so of its daemon.
    pub env: Vec<(String, String)>,
    pid: i32,
}

impl Member {
    pub(super) fn laid(root: &Path, name: &str, backing: &Path, host: Option<usize>) -> Member {
        let own = root.join(name);
        std::fs::create_dir_all(own.join("mnt")).expect("the test directory is writable");
        Member {
            name: name.into(),
            mnt: own.join("mnt"),
            tier: own.join("tier"),
            backing: backing.into(),
            host,
            flags: Vec::new(),
            env: Vec::new(),
            pid: 0,
        }
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mnt.join(name)
    }

    /// The pid of the mount's daemon.
    pub fn pid(&self) -> i32 {
        assert!(self.pid > 1, "{} is not mounted", self.name);
        self.pid
    }

    /// Runs `forebay ARGS` on this node.
    pub fn forebay(&self, net: Option<&Net>, args: &[&str]) -> Out {
        let mut command = match self.host.zip(net) {
            Some((host, net)) => net.host(host).command(binary()),
            None => Command::new(binary()),
        };
        command.args(args).envs(self.env.iter().map(|(name, value)| (name, value)));
        finish(&mut command, PATIENCE * 2)
    }

    pub fn try_mount(&self, net: Option<&Net>, flags: &[&str]) -> Out {
        let mut args = vec!["mount", text(&self.backing), text(&self.mnt)];
        args.extend(["--tier", text(&self.tier)]);
        args.extend(self.flags.iter().map(String::as_str));
        args.extend(flags);
        self.forebay(net, &args)
    }

    /// Sets a flag for every mount from now on.
    pub fn set_flag(&mut self, name: &str, value: &str) {
        match self.flags.iter().position(|flag| flag == name) {
            Some(at) => self.flags[at + 1] = value.into(),
            None => self.flags.extend([name.into(), value.into()]),
        }
    }

    #[track_caller]
    pub fn mount(&mut self, net: Option<&Net>, flags: &[&str]) {
        let out = self.try_mount(net, flags);
        assert_eq!(out.code, Some(0), "{}: {out:#?}\n{}", self.name, self.log());
        self.pid = self.status(net)["pid"].as_i64().expect("status has a pid") as i32;
        assert!(is_alive(self.pid), "the daemon that status names is alive");
    }

    #[track_caller]
    pub fn status(&self, net: Option<&Net>) -> Value {
        match self.forebay(net, &["status", "--json", text(&self.mnt)]).ok().json() {
            Value::Array(mut all) => all.remove(0),
            one => one,
        }
    }

    /// The number of bytes that are not on the store.
    #[track_caller]
    pub fn dirty(&self, net: Option<&Net>) -> u64 {
        let status = self.status(net);
        status["dirty_bytes"].as_u64().unwrap_or_else(|| panic!("no dirty_bytes in {status:#}"))
    }

    #[track_caller]
    pub fn flush(&self, net: Option<&Net>) {
        self.forebay(net, &["flush", "--wait", text(&self.mnt)]).ok();
    }

    /// Unmounts in order.
    #[track_caller]
    pub fn umount(&mut self, net: Option<&Net>) {
        let mnt = self.mnt.clone();
        self.umount_as(net, &["umount", text(&mnt)]);
    }

    /// Unmounts in order; dirty bytes stay in the tier.
    #[track_caller]
    pub fn umount_dirty(&mut self, net: Option<&Net>) {
        let mnt = self.mnt.clone();
        self.umount_as(net, &["umount", "--keep-dirty", text(&mnt)]);
    }

    #[track_caller]
    fn umount_as(&mut self, net: Option<&Net>, args: &[&str]) {
        crate::while_busy(|| self.forebay(net, args)).ok();
        within(PATIENCE, "the daemon ends", || !is_alive(self.pid));
        self.pid = 0;
    }

    /// kill -9 of the daemon; the dead mount stays.
    pub fn kill9(&mut self) {
        kill(self.pid(), libc::SIGKILL);
        within(PATIENCE, "the killed daemon is gone", || !is_alive(self.pid));
    }

    /// kill -9, and an operator's steps before the next mount.
    pub fn crash(&mut self) {
        self.kill9();
        images::unmount(&self.mnt, true).expect("a dead mount can be detached");
        self.pid = 0;
    }

    /// Mounts again after a kill, in a test that shares the node, and returns the new daemon's pid.
    #[track_caller]
    pub fn again(&self, flags: &[&str]) -> i32 {
        let gone = eventually(PATIENCE, || with_argument(&self.tier).is_empty());
        assert!(gone, "a daemon of {} runs still", self.name);
        images::unmount(&self.mnt, true).expect("a dead mount can be detached");
        let out = self.try_mount(None, flags);
        assert_eq!(out.code, Some(0), "{}: {out:#?}\n{}", self.name, self.log());
        self.status(None)["pid"].as_i64().expect("status has a pid") as i32
    }

    /// Stops every thread of the daemon.
    pub fn pause(&self) {
        stop(self.pid());
    }

    pub fn resume(&self) {
        kill(self.pid(), libc::SIGCONT);
    }

    pub fn is_running(&self) -> bool {
        self.pid > 1 && is_alive(self.pid)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.tier.join("run/forebay.log")).unwrap_or_default()
    }

    /// The lines that the daemon logged after this length of its log.
    pub fn log_since(&self, from: usize) -> String {
        self.log().get(from..).unwrap_or_default().to_string()
    }
}

/// Processes that have a path among their arguments.
fn with_argument(path: &Path) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let named = processes.filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == text(path).as_bytes())
    });
    named.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

impl Drop for Member {
    /// No other process has this tier among its arguments, even if the mount was an unexpected one.
    fn drop(&mut self) {
        for pid in with_argument(&self.tier) {
            kill(pid, libc::SIGCONT);
            kill(pid, libc::SIGKILL);
            eventually(PATIENCE, || !is_alive(pid));
        }
        if images::mounted_at(&self.mnt).is_some() {
            let _ = images::unmount(&self.mnt, true);
        }
    }
}
