//! An etcd for a test: members on loopback, each with its data in a temporary directory.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::Etcd;
use crate::{Address, Registry, Result, suite};

pub const PATIENCE: Duration = Duration::from_secs(10);

/// One member.
pub struct Server {
    pub dir: tempfile::TempDir,
    pub port: u16,
    peer: u16,
    name: String,
    /// The names of all members, and their addresses for each other.
    members: String,
    more: Vec<String>,
    scheme: &'static str,
    child: Option<Child>,
}

/// Starts one member alone. `None`, with a message, if etcd is not installed.
pub fn start(more: &[&str]) -> Option<Server> {
    start_cluster(1, more)?.pop()
}

/// Starts `count` members of one cluster. `None`, with a message, if etcd is not installed.
pub fn start_cluster(count: usize, more: &[&str]) -> Option<Vec<Server>> {
    if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("SKIPPED: etcd is not installed");
        return None;
    }
    let more: Vec<String> = more.iter().map(ToString::to_string).collect();
    let mut servers: Vec<Server> = (0..count).map(|i| Server::new(i, more.clone())).collect();
    for _ in 0..STARTS_MAX {
        for server in &mut servers {
            (server.port, server.peer) = (free_port(), free_port());
        }
        let members: Vec<String> =
            servers.iter().map(|s| format!("{}={}", s.name, s.peer_url())).collect();
        for server in &mut servers {
            server.members = members.join(",");
            server.run();
        }
        if servers.iter_mut().all(Server::comes_up) {
            return Some(servers);
        }
        for server in &mut servers {
            server.kill();
            let _ = std::fs::remove_dir_all(server.dir.path().join("data")); // The data name the old ports.
        }
    }
    let log = |server: &Server| std::fs::read_to_string(server.dir.path().join("log"));
    let logs: Vec<String> = servers.iter().map(|s| log(s).unwrap_or_default()).collect();
    panic!("etcd does not start: {}", logs.join("\n\n"));
}

/// The address of a cluster, with the member `first` in front.
pub fn address_of(servers: &[Server], first: usize) -> String {
    let from_first = servers.iter().cycle().skip(first).take(servers.len());
    let hosts: Vec<String> = from_first.map(|s| format!("127.0.0.1:{}", s.port)).collect();
    format!("etcd://{}/test", hosts.join(","))
}

/// The most attempts to start: a port that was free may be taken a moment later.
const STARTS_MAX: usize = 5;

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

impl Server {
    fn new(number: usize, more: Vec<String>) -> Server {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let (name, members) = (format!("member-{number}"), String::new());
        Server { dir, port: 0, peer: 0, name, members, more, scheme: "http", child: None }
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }

    /// Restarts the server with other certificates and options, and TLS.
    pub fn with_tls(mut self, more: &[String]) -> Server {
        self.kill();
        self.scheme = "https";
        self.more.extend_from_slice(more);
        self.run();
        self
    }

    pub fn run(&mut self) {
        let client = format!("{}://127.0.0.1:{}", self.scheme, self.port);
        let peer = self.peer_url();
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.dir.path().join("log"))
            .expect("it can be written");
        let child = Command::new("etcd")
            .args(["--name", &self.name, "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.members])
            .args(&self.more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("etcd can be started"));
    }

    /// Whether the server answers, and has not died.
    fn comes_up(&mut self) -> bool {
        let registry = self.try_open("", Duration::from_secs(1)).expect("the address is right");
        let began = Instant::now();
        while registry.barrier().is_err() {
            let died = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
            if self.child.as_mut().is_none_or(died) || began.elapsed() > Duration::from_secs(60) {
                return false;
            }
        }
        true
    }

    pub fn address(&self, query: &str) -> String {
        let scheme = if self.scheme == "https" { "etcds" } else { "etcd" };
        format!("{scheme}://127.0.0.1:{}/test{query}", self.port)
    }

    pub fn try_open(&self, query: &str, patience: Duration) -> Result<Etcd> {
        at(&self.address(query), patience)
    }

    pub fn open(&self, query: &str) -> Etcd {
        self.try_open(query, PATIENCE).expect("the address is right")
    }

    pub fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(self.open(""))
    }

    /// Makes a request as an operator would, through etcd's JSON gateway.
    pub fn admin(&self, path: &str, body: &Value) -> Value {
        let mut answer = String::new();
        suite::eventually(path, || {
            answer = self.post(path, &body.to_string()).unwrap_or_else(|e| e.to_string());
            answer.starts_with("HTTP/1.0 200 ")
        });
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
        serde_json::from_str(body).unwrap_or_else(|e| panic!("{path}: {e}: {answer}"))
    }

    fn post(&self, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    pub fn compact(&self, revision: u64) {
        let body = json!({ "revision": revision.to_string(), "physical": true });
        self.admin("/v3/kv/compaction", &body);
    }

    /// Kills the server as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // The child may have died.
            let _ = child.wait();
        }
    }

    pub fn signal(&self, signal: libc::c_int) {
        let id = self.child.as_ref().expect("it runs").id();
        // SAFETY: sends a signal to a child of this process that was not waited for.
        let done = unsafe { libc::kill(i32::try_from(id).expect("a pid"), signal) };
        assert_eq!(done, 0, "the signal arrives");
    }

    /// Stops every thread of the server.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.as_ref().expect("it runs").id());
        suite::eventually("all threads are stopped", || {
            let tasks = std::fs::read_dir(&tasks).expect("it is there").flatten();
            let state =
                |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status"));
            tasks.into_iter().all(|task| state(task).is_ok_and(|text| text.contains("State:\tT")))
        });
    }

    /// Replaces one directory of the server by a copy of another.
    pub fn copy(&self, from: &str, to: &str) {
        let (from, to) = (self.dir.path().join(from), self.dir.path().join(to));
        let _ = std::fs::remove_dir_all(&to); // The directory may not exist.
        let copied = Command::new("cp").arg("-a").args([from, to]).status();
        assert!(copied.expect("cp is there").success());
    }

    pub fn restart(&mut self) {
        self.kill();
        self.run();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn at(address: &str, patience: Duration) -> Result<Etcd> {
    match address.parse()? {
        Address::Etcd(endpoint) => Etcd::new(&endpoint, patience),
        Address::Embedded(_) => panic!("{address} is one of etcd"),
    }
}

/// Makes a key and a certificate signed by `ca` (by itself, if `ca` is its own name).
pub fn certificate(dir: &Path, name: &str, ca: &str) {
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").current_dir(dir).args(args).output();
        let done = done.expect("openssl is there");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let (key, cert, request) =
        (format!("{name}.key"), format!("{name}.pem"), format!("{name}.csr"));
    let subject = format!("/O=forebay tests/OU={name}");
    openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &key]);
    if name == ca {
        openssl(&[
            "req", "-x509", "-new", "-key", &key, "-days", "2", "-subj", &subject, "-out", &cert,
        ]);
    } else {
        std::fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost")
            .expect("it can be written");
        openssl(&["req", "-new", "-key", &key, "-subj", &subject, "-out", &request]);
        openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            &format!("{ca}.pem"),
            "-CAkey",
            &format!("{ca}.key"),
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            &cert,
        ]);
    }
}

pub fn until_up(registry: &dyn Registry) {
    suite::eventually("etcd answers again", || registry.barrier().is_ok());
}
