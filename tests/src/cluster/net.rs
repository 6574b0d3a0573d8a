//! A network of a test's own: hosts joined by a bridge, each in a network namespace.
//!
//! A namespace lives as long as the process that holds it, and its links end with it: nothing of it
//! shows outside, and nothing is left when the holders are dropped. The kernels that tests run on may
//! have no `netem` and no traffic classifiers, so a direction is cut by a wrong link address: frames
//! leave, and no host takes them.

use std::process::{Command, Stdio};

use crate::wait::{PATIENCE, within};
use crate::{Out, Proc, finish};

const NOBODY: &str = "02:00:00:00:00:fe";

/// A process that holds a network namespace.
pub struct Host {
    holder: Proc,
    number: u8,
}

impl Host {
    fn new(number: u8) -> Host {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]).stdin(Stdio::null());
        let holder = Proc::spawn(&mut command);
        let link = format!("/proc/{}/ns/net", holder.pid());
        let ours = std::fs::read_link("/proc/self/ns/net").expect("/proc is mounted");
        within(PATIENCE, "the host has a network of its own", || {
            std::fs::read_link(&link).is_ok_and(|there| there != ours)
        });
        Host { holder, number }
    }

    pub fn address(&self) -> String {
        address(self.number)
    }

    /// A command that runs on this host.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.pid().to_string(), "--net"]).arg(program);
        command
    }

    fn run(&self, args: &[&str]) -> Out {
        finish(self.command(args[0]).args(&args[1..]), PATIENCE)
    }

    /// Whether a server listens on this host.
    pub fn listens(&self, port: u16) -> bool {
        let address = self.address();
        let holder = format!("/proc/{}/ns/net", self.holder.pid());
        // Only a thread of its own enters the namespace: the rest of the test stays where it is.
        let there = std::thread::spawn(move || {
            let namespace = std::fs::File::open(holder)?;
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )?;
            std::net::TcpStream::connect((address.as_str(), port))
        });
        there.join().is_ok_and(|connected| connected.is_ok())
    }
}

fn address(number: u8) -> String {
    format!("10.99.0.{number}")
}

/// The bridge and its hosts.
pub struct Net {
    switch: Host,
    hosts: Vec<Host>,
}

impl Net {
    /// Joins `count` hosts.
    pub fn of(count: usize) -> Net {
        let switch = Host::new(0);
        switch.run(&["ip", "link", "add", "br0", "type", "bridge"]).ok();
        switch.run(&["ip", "link", "set", "br0", "up"]).ok();
        let hosts = (1..=count as u8).map(|number| Net::join(&switch, number)).collect();
        Net { switch, hosts }
    }

    fn join(switch: &Host, number: u8) -> Host {
        let host = Host::new(number);
        let (port, to) = (port(number), switch.holder.pid().to_string());
        host.run(&["ip", "link", "set", "lo", "up"]).ok();
        let pair = ["type", "veth", "peer", "name", &port, "netns", &to];
        host.run(&[&["ip", "link", "add", "eth0"], &pair[..]].concat()).ok();
        switch.run(&["ip", "link", "set", &port, "master", "br0", "up"]).ok();
        let with_mask = format!("{}/24", address(number));
        host.run(&["ip", "addr", "add", &with_mask, "dev", "eth0"]).ok();
        host.run(&["ip", "link", "set", "eth0", "up"]).ok();
        host
    }

    pub fn host(&self, at: usize) -> &Host {
        &self.hosts[at]
    }

    /// Pulls a host's cable.
    pub fn unplug(&self, at: usize) {
        self.switch.run(&["ip", "link", "set", &port(self.hosts[at].number), "down"]).ok();
    }

    pub fn plug_in(&self, at: usize) {
        self.switch.run(&["ip", "link", "set", &port(self.hosts[at].number), "up"]).ok();
    }

    /// From now on no frame from one host reaches the other. The other direction is unchanged.
    pub fn cut(&self, from: usize, to: usize) {
        let to = self.hosts[to].address();
        let wrong = ["lladdr", NOBODY, "dev", "eth0", "nud", "permanent"];
        self.hosts[from].run(&[&["ip", "neigh", "replace", &to], &wrong[..]].concat()).ok();
    }

    pub fn mend(&self, from: usize, to: usize) {
        let to = self.hosts[to].address();
        self.hosts[from].run(&["ip", "neigh", "del", &to, "dev", "eth0"]).ok();
    }
}

fn port(number: u8) -> String {
    format!("port{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(host: &Host) -> Proc {
        let mut command = host.command("etcd");
        let url = |port: u16| format!("http://{}:{port}", host.address());
        let dir = std::env::temp_dir().join(format!("fbt-net-{}", std::process::id()));
        command.args(["--data-dir", dir.to_str().expect("plain path")]);
        command.args(["--listen-client-urls", &url(2379), "--advertise-client-urls", &url(2379)]);
        command.args(["--listen-peer-urls", &url(2380)]);
        command.args(["--initial-advertise-peer-urls", &url(2380)]);
        command.args(["--initial-cluster", &format!("default={}", url(2380))]);
        Proc::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Whether a connection from one host to a server on another succeeds within a second.
    fn reaches(from: &Host, to: &Host) -> bool {
        let script = format!("exec 3<>/dev/tcp/{}/2379", to.address());
        let mut command = from.command("timeout");
        command.args(["1", "bash", "-c", &script]);
        finish(&mut command, PATIENCE).code == Some(0)
    }

    #[test]
    fn what_is_cut_is_cut_and_what_is_mended_is_whole() {
        crate::needs_tools!("etcd", "ip", "nsenter", "unshare");
        let net = Net::of(3);
        let server = echo(net.host(0));
        within(PATIENCE, "the server listens", || net.host(0).listens(2379));
        let all = |net: &Net| [1, 2].map(|at| reaches(net.host(at), net.host(0)));
        assert_eq!(all(&net), [true, true]);
        net.cut(1, 0);
        assert_eq!(all(&net), [false, true], "one host's requests are lost");
        net.mend(1, 0);
        assert_eq!(all(&net), [true, true]);
        net.cut(0, 2);
        assert_eq!(all(&net), [true, false], "the answers to one host are lost");
        net.mend(0, 2);
        net.unplug(0);
        assert_eq!(all(&net), [false, false]);
        net.plug_in(0);
        within(PATIENCE, "all reach it again", || all(&net) == [true, true]);
        drop(server);
        let dir = std::env::temp_dir().join(format!("fbt-net-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(dir);
    }
}
