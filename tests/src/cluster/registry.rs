//! A registry of one or three etcd members, each on a host of its own or all on loopback.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::net::{Host, Net};
use crate::wait::{PATIENCE, within};
use crate::{Proc, free_port, text};

pub struct Registry {
    servers: Vec<Server>,
    prefix: &'static str,
}

struct Server {
    name: String,
    /// The host of the network that the member is on.
    host: Option<usize>,
    address: String,
    client: u16,
    peer: u16,
    dir: PathBuf,
    /// Additional arguments of the member.
    args: Vec<String>,
    process: Option<Proc>,
}

impl Registry {
    /// A registry on loopback.
    pub fn local(dir: &Path, prefix: &'static str) -> Registry {
        Registry::local_with(dir, prefix, &[])
    }

    /// A registry on loopback, with flags for etcd.
    pub fn local_with(dir: &Path, prefix: &'static str, args: &[&str]) -> Registry {
        let mut registry = Registry { servers: Vec::new(), prefix };
        registry.servers.push(Server {
            name: "e1".into(),
            host: None,
            address: "127.0.0.1".into(),
            client: free_port(),
            peer: free_port(),
            dir: dir.into(),
            args: args.iter().map(ToString::to_string).collect(),
            process: None,
        });
        registry.up(None);
        registry
    }

    /// A registry on these hosts, with one member on each.
    pub fn on_hosts(dir: &Path, net: &Net, hosts: std::ops::Range<usize>) -> Registry {
        let server = |(number, host): (usize, usize)| Server {
            name: format!("e{}", number + 1),
            host: Some(host),
            address: net.host(host).address(),
            client: 2379,
            peer: 2380,
            dir: dir.into(),
            args: Vec::new(),
            process: None,
        };
        let servers = hosts.enumerate().map(server).collect();
        let mut registry = Registry { servers, prefix: "test" };
        registry.up(Some(net));
        registry
    }

    /// The value for `--registry`.
    pub fn address(&self) -> String {
        let hosts = self.servers.iter().map(|one| format!("{}:{}", one.address, one.client));
        format!("etcd://{}/{}", hosts.collect::<Vec<_>>().join(","), self.prefix)
    }

    /// The number of reads of keys that the members of the registry have answered since they began.
    #[track_caller]
    pub fn reads(&self, net: Option<&Net>) -> u64 {
        let of = |server: &Server| -> u64 {
            let url = format!("http://{}:{}/metrics", server.address, server.client);
            let mut curl = match net.zip(server.host) {
                Some((net, host)) => net.host(host).command("curl"),
                None => Command::new("curl"),
            };
            let out = curl.args(["-s", &url]).output().expect("curl is there");
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let range = |line: &&str| {
                line.starts_with("grpc_server_handled_total{") && line.contains("\"Range\"")
            };
            let counts = text.lines().filter(range).filter_map(|line| line.split(' ').nth(1));
            counts.filter_map(|count| count.parse::<f64>().ok()).sum::<f64>() as u64
        };
        self.servers.iter().map(of).sum()
    }

    /// Asks the first member of a registry on loopback directly, without forebay.
    #[track_caller]
    pub fn admin(&self, path: &str, body: &Value) -> Value {
        let server = &self.servers[0];
        let mut curl = Command::new("curl");
        curl.args(["-s", "-d", "@-", &format!("{}{path}", server.url(server.client))]);
        let curl = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut curl = curl.expect("curl is there");
        let mut input = curl.stdin.take().expect("it is piped");
        input.write_all(body.to_string().as_bytes()).expect("curl reads");
        drop(input);
        let out = curl.wait_with_output().expect("curl ends");
        serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|e| panic!("{path}: {e}: {}", String::from_utf8_lossy(&out.stdout)))
    }

    pub fn len(&self) -> usize {
        self.servers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The host of the network that a member is on.
    pub fn host(&self, at: usize) -> usize {
        self.servers[at].host.expect("it is not on loopback")
    }

    /// Starts the members that do not run, and waits until all of them listen.
    pub fn up(&mut self, net: Option<&Net>) {
        let peers = self.servers.iter().map(|one| format!("{}={}", one.name, one.url(one.peer)));
        let cluster = peers.collect::<Vec<_>>().join(",");
        for server in &mut self.servers {
            if server.process.is_none() {
                server.start(server.host.and_then(|host| Some(net?.host(host))), &cluster);
            }
        }
        for server in &self.servers {
            within(PATIENCE, "etcd listens", || match server.host.zip(net) {
                Some((host, net)) => net.host(host).listens(server.client),
                None => std::net::TcpStream::connect(("127.0.0.1", server.client)).is_ok(),
            });
        }
    }

    /// kill -9 of one member.
    pub fn kill(&mut self, at: usize) {
        self.servers[at].process.take().expect("it runs").kill();
    }

    /// The data directory of a member.
    pub fn data(&self, at: usize) -> PathBuf {
        self.servers[at].dir.join(&self.servers[at].name)
    }

    /// kill -9 of all running members.
    pub fn kill_all(&mut self) {
        for server in &mut self.servers {
            server.process.take().iter_mut().for_each(Proc::kill);
        }
    }
}

impl Server {
    fn url(&self, port: u16) -> String {
        format!("http://{}:{port}", self.address)
    }

    fn start(&mut self, host: Option<&Host>, cluster: &str) {
        let mut command = match host {
            Some(host) => host.command("etcd"),
            None => Command::new("etcd"),
        };
        command.args(["--name", &self.name, "--initial-cluster", cluster]);
        command.args(["--data-dir", text(&self.dir.join(&self.name))]);
        for (flag, port) in [("client", self.client), ("peer", self.peer)] {
            command.args([format!("--listen-{flag}-urls"), self.url(port)]);
        }
        command.args(["--advertise-client-urls", &self.url(self.client)]);
        command.args(["--initial-advertise-peer-urls", &self.url(self.peer)]);
        command.args(&self.args);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{}.log", self.name)))
            .expect("the test directory is writable");
        command.stdout(log.try_clone().expect("dup")).stderr(log).stdin(Stdio::null());
        self.process = Some(Proc::spawn(&mut command));
    }
}
