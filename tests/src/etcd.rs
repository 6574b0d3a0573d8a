//! A registry of one etcd on loopback, removed when dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

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
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    pub fn kill(&mut self) {
        self.server.take().expect("it runs").kill();
    }

    pub fn address(&self) -> String {
        format!("etcd://127.0.0.1:{}/test", self.port)
    }

    /// The address for a user of etcd whose password is in a file.
    pub fn address_as(&self, user: &str, password_file: &Path) -> String {
        format!("{}?user={user}&password-file={}", self.address(), text(password_file))
    }

    /// Sends a request to the gateway, as `etcdctl` would; it must succeed.
    #[track_caller]
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let (body, port) = (body.to_string(), self.port);
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        write!(
            stream,
            "POST /v3/{path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
        assert!(head.lines().next().is_some_and(|line| line.contains(" 200 ")), "{path}: {answer}");
        serde_json::from_str(body).unwrap_or_else(|e| panic!("{path}: {e}: {answer}"))
    }

    /// Writes a key of the registry without forebay.
    #[track_caller]
    pub fn put(&self, key: &str, value: &[u8]) {
        self.ask("kv/put", &json!({ "key": full(key), "value": base64(value) }));
    }

    #[track_caller]
    pub fn delete(&self, key: &str) {
        self.ask("kv/deleterange", &json!({ "key": full(key) }));
    }

    /// From now on only these users are let in: root, and one with all rights below the prefix.
    #[track_caller]
    pub fn require_users(&self, user: &str, password: &str) {
        for (name, password) in [("root", "root's own"), (user, password)] {
            self.ask("auth/user/add", &json!({ "name": name, "password": password }));
            self.ask("auth/role/add", &json!({ "name": name }));
            self.ask("auth/user/grant", &json!({ "user": name, "role": name }));
        }
        let (key, end) = (base64(b"/test/"), base64(b"/test0"));
        let may = json!({ "permType": "READWRITE", "key": key, "range_end": end });
        self.ask("auth/role/grant", &json!({ "name": user, "perm": may }));
        self.ask("auth/enable", &json!({}));
    }
}

fn full(key: &str) -> String {
    base64(format!("/test/{key}").as_bytes())
}

/// Encodes bytes as etcd's JSON has them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
