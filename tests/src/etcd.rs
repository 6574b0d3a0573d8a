//! A registry of one etcd on loopback; gone when dropped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::wait::within;
use crate::{Proc, free_port, text};

pub struct Etcd {
    server: Option<Proc>,
    dir: PathBuf,
    port: u16,
    peer: u16,
}

impl Etcd {
    pub fn start(dir: &Path) -> Etcd {
        let (port, peer) = (free_port(), free_port());
        let mut etcd = Etcd { server: None, dir: dir.into(), port, peer };
        etcd.up();
        etcd
    }

    pub fn up(&mut self) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new("etcd");
        command.args(["--data-dir", text(&self.dir.join("etcd"))]);
        for (flag, port) in [("client", self.port), ("peer", self.peer)] {
            command.args([format!("--listen-{flag}-urls"), url(port)]);
        }
        command.args(["--advertise-client-urls", &url(self.port)]);
        command.args(["--initial-advertise-peer-urls", &url(self.peer)]);
        command.args(["--initial-cluster", &format!("default={}", url(self.peer))]);
        let log = std::fs::File::create(self.dir.join("etcd.log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null());
        self.server = Some(Proc::spawn(&mut command));
        within(Duration::from_secs(60), "etcd listens", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    pub fn kill(&mut self) {
        self.server.take().expect("it runs").kill();
    }

    pub fn address(&self) -> String {
        format!("etcd://127.0.0.1:{}/test", self.port)
    }
}
