//! Hosts of a network of their own: network namespaces, joined by a bridge.
//!
//! An open descriptor of this process holds a namespace, so that it ends with the process, and its
//! links with it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

/// One network namespace.
pub struct Host {
    namespace: File,
    number: u8,
}

/// Moves the calling thread into the network namespace.
fn enter(namespace: RawFd) -> std::io::Result<()> {
    // SAFETY: a descriptor and a flag; only the calling thread changes.
    match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Host {
    fn new(number: u8) -> Result<Host> {
        // In a thread of its own, so that the other threads stay where they are.
        let made = std::thread::spawn(|| -> std::io::Result<File> {
            // SAFETY: a flag; only the calling thread changes.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = made.join().expect("no panic inside");
        let namespace = namespace.context("no network namespace can be made: run this as root")?;
        let host = Host { namespace, number };
        host.ip(&["link", "set", "lo", "up"])?;
        Ok(host)
    }

    pub fn address(&self) -> String {
        format!("10.98.0.{}", self.number)
    }

    /// Makes a command run on this host.
    pub fn put<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let namespace = self.namespace.as_raw_fd();
        // SAFETY: one system call, which may be made between fork and exec; the descriptor is open as
        // long as the host exists, and callers that run commands on it hold the host.
        unsafe { command.pre_exec(move || enter(namespace)) }
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("ip");
        let done = self.put(command.args(arguments)).output().context("cannot start ip")?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
        Ok(())
    }

    /// Runs `work` in a thread that is on this host.
    fn there<T: Send>(&self, work: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
        let namespace = self.namespace.as_raw_fd();
        let done = std::thread::scope(|scope| {
            scope.spawn(move || enter(namespace).and_then(|()| work())).join()
        });
        Ok(done.expect("no panic inside")?)
    }

    pub fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let stream = self.there(|| TcpStream::connect(to))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    pub fn listen(&self) -> Result<TcpListener> {
        let address = format!("{}:0", self.address());
        self.there(|| TcpListener::bind(address))
    }
}

/// The bridge and the hosts that it joins.
pub struct Net {
    pub hosts: Vec<Arc<Host>>,
    _switch: Host,
}

impl Net {
    pub fn of(count: u8) -> Result<Net> {
        let switch = Host::new(0)?;
        switch.ip(&["link", "add", "br0", "type", "bridge"])?;
        switch.ip(&["link", "set", "br0", "up"])?;
        let at = switch.namespace.as_raw_fd();
        let namespace = format!("/proc/{}/fd/{at}", std::process::id());
        let join = |number: u8| -> Result<Arc<Host>> {
            let host = Host::new(number)?;
            let (port, address) = (format!("port{number}"), format!("{}/24", host.address()));
            let pair = ["type", "veth", "peer", "name", &port, "netns", &namespace];
            host.ip(&[&["link", "add", "eth0"], &pair[..]].concat())?;
            switch.ip(&["link", "set", &port, "master", "br0", "up"])?;
            host.ip(&["addr", "add", &address, "dev", "eth0"])?;
            host.ip(&["link", "set", "eth0", "up"])?;
            Ok(Arc::new(host))
        };
        let hosts = (1..=count).map(join).collect::<Result<_>>()?;
        Ok(Net { hosts, _switch: switch })
    }
}
