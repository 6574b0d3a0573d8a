//! Members that are silent, refuse, or serve something else, and tokens that etcd takes no more.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::thread::{sleep, spawn};

use super::older::{header, last_stream};
use super::relay::Peer;
use super::*;
use crate::etcd::session::tests::{answer, greeting, head, trailers};

/// How a fake member treats a call.
const ANSWERS: usize = 0;
const REFUSES: usize = 1;
const IS_SILENT: usize = 2;

const TURN: Duration = Duration::from_secs(2);

/// A fake member; it serves until the process ends.
#[derive(Clone)]
struct Fake {
    port: u16,
    mode: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

/// Starts a fake member that takes `time` for a call.
fn fake(time: Duration) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let [mode, calls, connections] = [ANSWERS, 0, 0].map(|n| Arc::new(AtomicUsize::new(n)));
    let fake = Fake { port, mode, calls, connections };
    let serving = fake.clone();
    spawn(move || {
        for client in listener.incoming().flatten() {
            let serving = serving.clone();
            serving.connections.fetch_add(1, SeqCst);
            spawn(move || serve(client, time, &serving));
        }
    });
    fake
}

fn serve(client: TcpStream, time: Duration, fake: &Fake) {
    let Some(mut client) = Peer::client(client) else { return };
    let mut sent = client.stream.write_all(&greeting());
    while sent.is_ok() {
        let Some(request) = client.call() else { return };
        let stream = last_stream(&request);
        fake.calls.fetch_add(1, SeqCst);
        sleep(time);
        let bytes = match fake.mode.load(SeqCst) {
            ANSWERS => answer(stream, header(1, 7).as_ref()),
            REFUSES => {
                [head(stream), trailers(stream, "8", "etcdserver: too many requests")].concat()
            }
            _ => continue,
        };
        sent = client.stream.write_all(&bytes);
    }
}

fn both(first: u16, second: u16, patience: Duration) -> Etcd {
    let address = format!("etcd://127.0.0.1:{first},127.0.0.1:{second}/test");
    at(&address, patience).expect("the address is right")
}

/// Asks with `count` threads at once.
fn fill(registry: &Etcd, count: usize) {
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| registry.barrier().expect("it answers"));
        }
    });
}

#[test]
fn a_silent_member_costs_one_turn_however_many_connections_to_it_are_idle() {
    let (a, b) = (fake(Duration::from_millis(200)), fake(Duration::ZERO));
    let registry = both(a.port, b.port, TURN);
    fill(&registry, 16);
    a.mode.store(IS_SILENT, SeqCst);
    for most in [TURN, TURN / 4] {
        let began = Instant::now();
        registry.barrier().expect("the other one answers");
        assert!(began.elapsed() < most, "{:?}", began.elapsed());
    }
}

#[test]
fn a_member_that_refuses_at_once_is_left() {
    let (a, b) = (fake(Duration::ZERO), fake(Duration::ZERO));
    let registry = both(a.port, b.port, TURN);
    registry.barrier().expect("it answers");
    a.mode.store(REFUSES, SeqCst);
    for _ in 0..3 {
        registry.barrier().expect("the other one answers");
    }
    assert_eq!((a.calls.load(SeqCst), b.calls.load(SeqCst)), (2, 3));
}

#[test]
fn the_only_member_is_asked_over_the_same_connection_after_a_refusal() {
    let a = fake(Duration::ZERO);
    let address = format!("etcd://127.0.0.1:{}/test", a.port);
    let registry = at(&address, SHORT / 2).expect("the address is right");
    a.mode.store(REFUSES, SeqCst);
    let error = registry.barrier().expect_err("it refuses");
    assert!(error.to_string().contains("too many requests"), "{error}");
    let of = |count: &AtomicUsize| count.load(SeqCst);
    assert!(of(&a.calls) > 1 && of(&a.connections) == 1);
}

/// The number of connections to a port.
fn established(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("it is there");
    let to = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.len() > 3 && columns[2].ends_with(&to) && columns[3] == "01"
    };
    table.lines().filter(is_one).count()
}

#[test]
fn a_quiet_watch_asks_its_member_over_one_connection() {
    let Some(server) = start(&[]) else { return };
    let registry = server.try_open("", Duration::from_millis(200)).expect("the address is right");
    let mut watch = registry.watch("", registry.barrier().expect("it answers")).expect("it begins");
    let began = Instant::now();
    while began.elapsed() < SHORT * 2 {
        watch.next(Duration::from_millis(50)).expect("it is quiet");
    }
    let count = established(server.port);
    assert!((2..=3).contains(&count), "{count} connections");
}

/// An etcd with the user root.
fn with_users(more: &[&str]) -> Option<(Server, String)> {
    let server = start(more)?;
    let path = server.dir.path().join("password");
    std::fs::write(&path, "root").expect("it can be written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    server.admin("/v3/auth/user/add", &json!({ "name": "root", "password": "root" }));
    server.admin("/v3/auth/role/add", &json!({ "name": "root" }));
    server.admin("/v3/auth/user/grant", &json!({ "user": "root", "role": "root" }));
    server.admin("/v3/auth/enable", &json!({}));
    let address = server.address(&format!("?user=root&password-file={}", path.display()));
    Some((server, address))
}

/// A token of JWT holds for one revision of the users.
#[test]
fn a_token_from_before_a_change_of_the_users_is_asked_for_again() {
    let keys = tempfile::tempdir().expect("a directory can be made");
    let openssl = |args: &[&str]| {
        let done =
            std::process::Command::new("openssl").current_dir(keys.path()).args(args).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !openssl(&["genrsa", "-out", "key", "2048"]) {
        println!("SKIPPED: openssl is not installed");
        return;
    }
    assert!(openssl(&["rsa", "-in", "key", "-pubout", "-out", "pub"]));
    let dir = keys.path().display();
    let option = format!("jwt,pub-key={dir}/pub,priv-key={dir}/key,sign-method=RS256,ttl=10m");
    let Some((server, address)) = with_users(&["--auth-token", &option]) else { return };
    let registry = at(&address, Duration::from_secs(5)).expect("the address is right");
    let change = |name: &str| {
        registry.barrier().expect("it answers");
        let user = json!({ "name": "root", "password": "root" });
        let told = server.admin("/v3/auth/authenticate", &user);
        let token = told["token"].as_str().expect("a token").to_string();
        let body = json!({ "name": name, "password": "x" }).to_string();
        let length = body.len();
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("it is there");
        let head = "POST /v3/auth/user/add HTTP/1.0\r\nAuthorization:";
        write!(stream, "{head} {token}\r\nContent-Length: {length}\r\n\r\n{body}").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.contains(" 200 "), "{answer}");
    };
    change("one");
    registry.barrier().expect("it answers again");
    change("two");
    registry.commit(&Commit::new().put("a", "")).expect("it answers again");
    change("three");
    registry.watch("", Revision(1)).map(drop).expect("a watch begins");
}

#[test]
fn a_token_that_has_run_out_is_asked_for_once_and_keeps_no_watch_from_beginning() {
    const THREADS: usize = 16;
    let Some((_server, address)) = with_users(&["--auth-token-ttl", "1"]) else { return };
    let registry = at(&address, Duration::from_secs(5)).expect("the address is right");
    let after = registry.barrier().expect("it answers");
    let ends = || sleep(Duration::from_millis(3500));
    ends();
    registry.watch("", after).map(drop).expect("it begins");
    fill(&registry, THREADS); // Connections, so that all threads ask at the same time.
    ends();
    let before = authentications(&registry);
    fill(&registry, THREADS);
    let more = authentications(&registry) - before;
    assert!((1..=2).contains(&more), "{more} times");
}

/// How often etcd was asked for a token.
fn authentications(registry: &Etcd) -> usize {
    let metrics = registry.client.page("/metrics").expect("it answers");
    let is_one = |line: &&str| {
        line.starts_with("grpc_server_started_total") && line.contains("\"Authenticate\"")
    };
    let line = metrics.lines().find(is_one).expect("it is counted");
    line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a number")
}

/// etcd 3.4 drops a deletion together with the history before it.
#[test]
fn a_watch_misses_no_deletion_at_the_revision_of_a_compaction() {
    let Some(server) = start(&[]) else { return };
    let b = bench(server.open(""));
    b.must(&Commit::new().put(b.key("a"), "1"));
    let deleted = b.must(&Commit::new().delete(b.key("a")));
    b.must(&Commit::new().put(b.key("c"), "1"));
    server.compact(deleted.0);
    let seen = b.watch(Revision(deleted.0 - 1)).next(PATIENCE).expect("it answers");
    assert_eq!(seen, Seen::Compacted(deleted), "R4");
    let told = suite::events(&mut *b.watch(deleted), 1);
    assert_eq!(told[0].key(), b.key("c"), "R4");
}

/// R6: the peer sends the first bytes of an answer of TLS, one by one.
#[test]
fn a_peer_that_sends_byte_by_byte_is_left_within_the_patience() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    certificate(dir.path(), "ca", "ca");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    spawn(move || {
        let (mut client, _) = listener.accept().expect("somebody comes");
        for byte in [0x16, 3, 3, 0x20, 0, 2, 0, 0x1f, 0xfc].into_iter().chain([1; 11]) {
            if client.write_all(&[byte]).is_err() {
                return;
            }
            sleep(SHORT * 3 / 10);
        }
    });
    let ca = dir.path().join("ca.pem");
    let address = format!("etcds://127.0.0.1:{port}/test?ca={}", ca.display());
    let registry = at(&address, SHORT).expect("the address is right");
    let began = Instant::now();
    let error = registry.barrier().expect_err("it never answers");
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    assert!(began.elapsed() < SHORT * 2, "R6: {:?}", began.elapsed());
}

#[test]
fn a_member_that_serves_something_else_is_passed_over() {
    let good = fake(Duration::ZERO);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.write_all(b"220 mail.example.org ESMTP\r\n"); // The client may have gone.
            sleep(Duration::from_millis(50));
        }
    });
    both(port, good.port, TURN).barrier().expect("the other one answers");
    let error = both(port, port, TURN).barrier().expect_err("none is etcd");
    assert_eq!(error.kind(), Kind::Usage, "{error}");
}

#[test]
fn a_member_with_a_strange_certificate_is_passed_over() {
    if std::process::Command::new("openssl").arg("version").output().is_err() {
        println!("SKIPPED: openssl is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory can be made");
    for (name, ca) in [("ca", "ca"), ("right", "ca"), ("other", "other"), ("wrong", "other")] {
        certificate(dir.path(), name, ca);
    }
    let file = |name: &str| dir.path().join(name).display().to_string();
    let with = |name: &str| {
        let (cert, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        let options = ["--cert-file".into(), cert, "--key-file".into(), key];
        start(&[]).map(|server| server.with_tls(&options))
    };
    let (Some(wrong), Some(right)) = (with("wrong"), with("right")) else { return };
    let (hosts, ca) =
        (format!("127.0.0.1:{},127.0.0.1:{}", wrong.port, right.port), file("ca.pem"));
    let address = format!("etcds://{hosts}/test?ca={ca}");
    let registry = at(&address, PATIENCE).expect("the address is right");
    registry.barrier().expect("the other one answers");
}

/// A way to a server on which the first bytes of each connection take `time`.
fn slow_way(to: u16, time: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        let _ = std::io::copy(&mut from, &mut to); // Either may have gone.
        let _ = to.shutdown(Shutdown::Both);
    };
    spawn(move || {
        for client in listener.incoming().flatten() {
            spawn(move || {
                sleep(time);
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
                let [back, away] =
                    [&server, &client].map(|s| s.try_clone().expect("a file is free"));
                spawn(move || copy(back, away));
                copy(client, server);
            });
        }
    });
    port
}

#[test]
fn a_watch_begins_again_over_a_slow_way() {
    let Some(mut server) = start(&[]) else { return };
    let direct = bench(server.open(""));
    let address = format!("etcd://127.0.0.1:{}/test", slow_way(server.port, TURN / 2));
    let registry = at(&address, TURN * 2).expect("the address is right");
    let mut watch = registry.watch("", direct.revision()).expect("it begins");
    server.restart();
    until_up(&*direct.registry);
    direct.must(&Commit::new().put(direct.key("a"), ""));
    let began = Instant::now();
    while watch.next(Duration::from_millis(50)).expect("it asks again") == Seen::Quiet {
        assert!(began.elapsed() < TURN * 2, "it is open again");
    }
}
