mod faults;
mod full;
mod members;
mod older;
mod relay;
pub mod server;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use serde_json::json;

use super::*;
use crate::suite::{self, Bench, eventually};
use crate::{Error, Event, Kind, Seen};
use relay::{Fate, Relay};
use server::{PATIENCE, Server, at, certificate, start, until_up};

const SHORT: Duration = Duration::from_secs(1);

fn bench(registry: Etcd) -> Bench {
    Bench::new(Arc::new(registry))
}

#[test]
fn etcd_does_what_every_registry_does() {
    let Some(server) = start(&[]) else { return };
    suite::run(&server.registry());
    let left = server.admin("/v3/lease/leases", &json!({}));
    drop(server.open(""));
    assert!(left["leases"].as_array().is_none_or(|all| all.len() <= 1), "no lease stays: {left}");
}

#[test]
fn a_prefix_covers_what_begins_with_it_and_nothing_else() {
    for (prefix, inside, outside) in [
        ("", vec!["0", "a/b", "z\u{10ffff}", "Z"], vec![".marks/1/2", "{", ""]),
        ("a/", vec!["a/", "a/b", "a/\u{10ffff}"], vec!["a", "a0", "b"]),
        ("a\u{10ffff}", vec!["a\u{10ffff}", "a\u{10ffff}x"], vec!["a", "b"]),
        ("a\u{d7ff}", vec!["a\u{d7ff}x"], vec!["a\u{e000}", "b"]),
    ] {
        let (first, end) = range_of("/forebay/", prefix);
        let covers = |key: &&str| {
            let key = format!("/forebay/{key}");
            first <= key && key < end
        };
        assert!(inside.iter().all(covers), "{prefix:?}");
        assert!(!outside.iter().any(covers), "{prefix:?}");
    }
}

fn through(relay: &Relay) -> Bench {
    let address = format!("etcd://127.0.0.1:{}/test", relay.port);
    bench(at(&address, PATIENCE).expect("the address is right"))
}

/// M1: commits whose answers are lost, among competing threads, count exactly once each.
#[test]
fn a_commit_whose_answer_was_lost_is_made_once() {
    const THREADS: usize = 4;
    const EACH: usize = 20;
    let Some(server) = start(&[]) else { return };
    let relay = Relay::new(server.port, |n| if n % 3 == 1 { Fate::LoseAnswer } else { Fate::Pass });
    let b = through(&relay);
    let (key, log) = (b.key("n"), b.key("log/"));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (b, key, log) = (&b, &key, &log);
            scope.spawn(move || {
                for i in 0..EACH {
                    loop {
                        let found = b.get("n");
                        let n = found.as_ref().map_or(0, |e| number(&e.value)) + 1;
                        let commit = Commit::new()
                            .if_as_found(key, found.as_ref())
                            .if_absent(format!("{log}{thread}-{i}"))
                            .put(key, n.to_string())
                            .put(format!("{log}{thread}-{i}"), n.to_string());
                        // If the commit had happened, its own key would refuse the next attempt.
                        if b.commit(&commit).committed().is_some() {
                            break;
                        }
                        assert!(
                            b.get(&format!("log/{thread}-{i}")).is_none(),
                            "M1: refused, but done"
                        );
                    }
                }
            });
        }
    });
    assert!(relay.injected() > 10, "answers were lost");
    assert_eq!(b.get("n").map(|e| number(&e.value)), Some(THREADS * EACH));
    assert_eq!(b.range().len(), THREADS * EACH + 1);
    eprintln!("{} answers lost", relay.injected());
}

fn number(value: &[u8]) -> usize {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("a number was put")
}

/// M1: a request that reaches etcd after its repetition, and after other commits, does nothing.
#[test]
fn a_late_request_of_a_commit_that_was_repeated_does_nothing() {
    let Some(server) = start(&[]) else { return };
    let relay = Relay::new(server.port, |n| if n == 0 { Fate::HoldBack } else { Fate::Pass });
    let b = through(&relay);
    let first = b.must(&Commit::new().put(b.key("a"), "first"));
    for value in ["second", "third"] {
        b.must(&Commit::new().put(b.key("a"), value));
    }
    let before = b.get("a").expect("it was put");
    assert_eq!(relay.let_go(), 1, "a request was held back");
    assert_eq!(b.get("a").expect("it is there"), before, "M1");
    assert!(before.revision > first);
}

/// M2: a refused commit stays refused, also if its compares hold when an earlier request of it
/// arrives.
#[test]
fn a_late_request_of_a_commit_that_was_refused_does_nothing() {
    let Some(server) = start(&[]) else { return };
    let relay = Relay::new(server.port, |n| if n == 0 { Fate::HoldBack } else { Fate::Pass });
    let direct = bench(server.open(""));
    let (key, lock) = (direct.key("a"), direct.key("lock"));
    direct.must(&Commit::new().put(&lock, ""));
    let b = through(&relay);
    let refused = b.commit(&Commit::new().if_absent(&lock).put(&key, ""));
    assert_eq!(refused.committed(), None);
    direct.must(&Commit::new().delete(&lock));
    assert_eq!(relay.let_go(), 1, "a request was held back");
    assert_eq!(direct.get("a"), None, "M2");
}

/// M2, if the answer of the repetition is lost as well.
#[test]
fn a_refusal_whose_answer_was_lost_stays_one() {
    let Some(server) = start(&[]) else { return };
    let fate = |n| if n < 3 { Fate::LoseAnswer } else { Fate::Pass };
    let relay = Relay::new(server.port, fate);
    let direct = bench(server.open(""));
    let key = direct.key("a");
    direct.must(&Commit::new().put(&key, "there"));
    let outcome = through(&relay).commit(&Commit::new().if_absent(&key).put(&key, "mine"));
    assert_eq!(outcome.committed(), None, "R2: it is there");
    assert_eq!(relay.injected(), 3);
}

/// R3, R4: with the server killed again and again, no answered commit is missing, none is there
/// twice, and a watch sees each exactly once.
#[test]
fn nothing_is_lost_or_doubled_when_the_server_is_killed() {
    const KILLS: usize = 4;
    const THREADS: usize = 3;
    let Some(mut server) = start(&[]) else { return };
    let b = Bench::new(Arc::new(at(&server.address(""), Duration::from_secs(60)).expect("right")));
    let after = b.revision();
    let mut watch = b.watch(after);
    let (done, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (b, done, made) = (&b, &done, &made);
            scope.spawn(move || {
                for i in 0.. {
                    if done.load(SeqCst) {
                        return;
                    }
                    let key = b.key(&format!("{thread}-{i:05}"));
                    b.must(&Commit::new().if_absent(&key).put(&key, ""));
                    made.fetch_add(1, SeqCst);
                }
            });
        }
        for _ in 0..KILLS {
            let before = made.load(SeqCst);
            eventually("commits go on", || made.load(SeqCst) > before + 20);
            server.restart();
        }
        until_up(&*b.registry);
        done.store(true, SeqCst);
    });
    let made = made.into_inner();
    let entries = b.range();
    assert_eq!(entries.len(), made, "R3");
    let seen = suite::events(&mut *watch, made);
    assert!(seen.is_sorted_by_key(Event::revision), "R4");
    let mut keys: Vec<&str> = seen.iter().map(Event::key).collect();
    keys.sort_unstable();
    let there: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, there, "R4");
    eprintln!("{made} commits over {KILLS} kills");
}

/// R4: a watch whose connection ended while the history was compacted says so; one that had every
/// change goes on.
#[test]
fn a_watch_says_when_the_history_was_compacted() {
    let Some(mut server) = start(&[]) else { return };
    let b = bench(server.open(""));
    let first = b.must(&Commit::new().put(b.key("a"), "1"));
    let mut told = b.watch(first);
    let second = b.must(&Commit::new().put(b.key("a"), "2"));
    assert_eq!(suite::events(&mut *told, 1).len(), 1);
    server.compact(second.0);
    let third = b.must(&Commit::new().put(b.key("a"), "3"));
    assert_eq!(suite::events(&mut *told, 1)[0].revision(), third, "it goes on");
    let mut behind = b.watch(Revision(first.0 - 1));
    for _ in 0..2 {
        let seen = behind.next(PATIENCE).expect("it answers");
        assert_eq!(seen, Seen::Compacted(second), "R4");
    }
    let exact = suite::events(&mut *b.watch(second), 1);
    assert_eq!(exact[0].revision(), third);

    let mut cut = b.watch(third);
    server.kill();
    server.run();
    until_up(&*b.registry);
    let direct = bench(server.open(""));
    let made: Vec<_> = (0..5).map(|_| direct.must(&Commit::new().put(b.key("a"), ""))).collect();
    server.compact(made[4].0);
    let mut seen = Seen::Quiet;
    eventually("the watch asks again", || {
        seen = cut.next(SHORT).expect("it answers");
        seen != Seen::Quiet
    });
    // Either the watch asked again before the compaction, and has every change; or it reports the
    // compaction.
    match seen {
        Seen::Changes(events) => assert_eq!(events.changes[0].revision(), made[0]),
        other => assert_eq!(other, Seen::Compacted(made[4])),
    }
}

#[test]
fn large_requests_and_answers_come_whole() {
    const COUNT: usize = 81;
    let Some(server) = start(&[]) else { return };
    let b = bench(server.open(""));
    let after = b.revision();
    let value = vec![b'v'; limits::VALUE_MAX];
    // More than one answer may hold, and almost as much in each commit as it may.
    let commit = |c: Commit, i: usize| c.put(b.key(&format!("{i:02}")), value.clone());
    for first in (0..COUNT).step_by(3) {
        b.must(&(first..first + 3).fold(Commit::new(), commit));
    }
    let entries = b.range();
    assert!(entries.len() == COUNT && entries.iter().all(|entry| entry.value == value));
    assert_eq!(suite::events(&mut *b.watch(after), COUNT).len(), COUNT);
}

/// R6.
#[test]
fn a_server_that_does_not_answer_is_told_within_the_patience() {
    let Some(mut server) = start(&[]) else { return };
    let registry = server.try_open("", SHORT).expect("the address is right");
    let mut watch = registry.watch("", registry.barrier().expect("it answers")).expect("it begins");
    let host = format!("127.0.0.1:{}", server.port);
    let bounded = |what: &dyn Fn() -> Option<Error>| {
        let began = Instant::now();
        let error = what().expect("nobody answers");
        assert!(began.elapsed() < SHORT * 3, "R6: {:?}", began.elapsed());
        assert_eq!(error.kind(), Kind::TimedOut, "{error}");
        assert!(error.to_string().contains(&host), "{error}");
    };
    let commit = Commit::new().put("a", "");
    server.stop();
    bounded(&|| registry.get("a").err());
    bounded(&|| registry.commit(&commit).err());
    bounded(&|| registry.lease(Duration::from_secs(5)).err());
    let began = Instant::now();
    let error = loop {
        match watch.next(Duration::from_millis(100)) {
            Ok(seen) => assert_eq!(seen, Seen::Quiet),
            Err(error) => break error,
        }
        assert!(began.elapsed() < SHORT * 6, "R6: a silent member is noticed");
    };
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    server.signal(libc::SIGCONT);
    until_up(&registry);
    let outcome = registry.commit(&Commit::new().put("after", "")).expect("it answers");
    eventually("the watch goes on", || match watch.next(SHORT) {
        Ok(Seen::Changes(events)) => Some(events.revision) >= outcome.committed(),
        _ => false,
    });
    server.kill();
    bounded(&|| registry.get("a").err());
    server.run();
    until_up(&registry);
}

#[test]
fn another_service_on_the_port_is_told() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let serving = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("somebody comes");
        std::io::Write::write_all(&mut client, b"220 mail.example.org ESMTP\r\n")
            .expect("it reads");
    });
    let registry = at(&format!("etcd://127.0.0.1:{port}"), SHORT).expect("the address is right");
    let error = registry.barrier().expect_err("that is no etcd");
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    serving.join().expect("it only writes");
}

/// The first of two named members does not answer; the second does.
#[test]
fn a_member_that_is_down_is_passed_over() {
    let Some(server) = start(&[]) else { return };
    let dead = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = dead.local_addr().expect("it is bound").port();
    let address = format!("etcd://127.0.0.1:{port},127.0.0.1:{}/test", server.port);
    let b = bench(at(&address, Duration::from_secs(4)).expect("the address is right"));
    b.must(&Commit::new().put(b.key("a"), "")); // The first is silent.
    drop(dead);
    b.must(&Commit::new().put(b.key("b"), "")); // And then closed.
    let mut watch = b.watch(b.revision());
    b.must(&Commit::new().put(b.key("c"), ""));
    suite::events(&mut *watch, 1);
}

#[test]
fn users_are_let_in_as_far_as_their_rights_go() {
    let Some(server) = start(&[]) else { return };
    let file = |name: &str, password: &str| {
        let path = server.dir.path().join(name);
        std::fs::write(&path, password).expect("it can be written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
        format!("?user={name}&password-file={}", path.display())
    };
    for name in ["root", "node", "other"] {
        server.admin("/v3/auth/user/add", &json!({ "name": name, "password": name }));
        server.admin("/v3/auth/role/add", &json!({ "name": name }));
        server.admin("/v3/auth/user/grant", &json!({ "user": name, "role": name }));
    }
    let (key, range_end) = ("L3Rlc3Qv", "L3Rlc3Qw"); // "/test/" and "/test0" in base64
    let perm = json!({ "permType": "READWRITE", "key": key, "range_end": range_end });
    server.admin("/v3/auth/role/grant", &json!({ "name": "node", "perm": perm }));
    let registry = server.open(&file("node", "node\n"));
    registry.barrier().expect("users are asked for nowhere yet");
    server.admin("/v3/auth/enable", &json!({}));

    let refused = |error: Error, word: &str| {
        assert!(error.is(libc::EACCES), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    suite::run(&(Arc::new(registry) as Arc<dyn Registry>));
    refused(server.open("").barrier().expect_err("nobody"), "password-file");
    let wrong = server.open(&file("node", "guessed"));
    refused(wrong.barrier().expect_err("a wrong password"), "authentication failed");
    let other = server.open(&file("other", "other"));
    refused(other.get("a").expect_err("no right"), "grant-permission");
    refused(other.commit(&Commit::new().put("a", "")).expect_err("no right"), "permission denied");
    refused(other.watch("", Revision(0)).err().expect("no right"), "permission denied");
}

/// A new token is asked for when etcd has forgotten the old one.
#[test]
fn a_token_that_etcd_has_forgotten_is_asked_for_again() {
    let Some(mut server) = start(&["--auth-token-ttl", "2"]) else { return };
    let path = server.dir.path().join("password");
    std::fs::write(&path, "root").expect("it can be written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    server.admin("/v3/auth/user/add", &json!({ "name": "root", "password": "root" }));
    server.admin("/v3/auth/role/add", &json!({ "name": "root" }));
    server.admin("/v3/auth/user/grant", &json!({ "user": "root", "role": "root" }));
    server.admin("/v3/auth/enable", &json!({}));
    let b = bench(server.open(&format!("?user=root&password-file={}", path.display())));
    let mut watch = b.watch(b.must(&Commit::new().put(b.key("a"), "1")));
    server.restart();
    b.must(&Commit::new().put(b.key("a"), "2"));
    assert_eq!(suite::events(&mut *watch, 1).len(), 1);
}

#[test]
fn tls_believes_only_whom_it_should() {
    if std::process::Command::new("openssl").arg("version").output().is_err() {
        println!("SKIPPED: openssl is not installed");
        return;
    }
    let Some(server) = start(&[]) else { return };
    let dir = server.dir.path().to_path_buf();
    for (name, ca) in
        [("ca", "ca"), ("server", "ca"), ("node", "ca"), ("strange", "strange"), ("spy", "strange")]
    {
        certificate(&dir, name, ca);
    }
    let file = |name: &str| dir.join(name).display().to_string();
    let mut options = vec!["--client-cert-auth".to_string()];
    for (option, name) in [
        ("--cert-file", "server.pem"),
        ("--key-file", "server.key"),
        ("--trusted-ca-file", "ca.pem"),
    ] {
        options.extend([option.to_string(), file(name)]);
    }
    let server = server.with_tls(&options);
    let query = |ca: &str, who: Option<&str>| {
        let who = who.map(|who| {
            format!("&cert={}&key={}", file(&format!("{who}.pem")), file(&format!("{who}.key")))
        });
        format!("?ca={}{}", file(ca), who.unwrap_or_default())
    };
    let registry = server.open(&query("ca.pem", Some("node")));
    assert!(registry.health().expect("it answers").quota.is_some(), "its metrics are read");
    suite::run(&(Arc::new(registry) as Arc<dyn Registry>));
    let refused = |query: &str, word: &str| {
        let error = server.open(query).barrier().expect_err("it is refused");
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(&query("strange.pem", Some("node")), "ca= has to name");
    refused(&query("ca.pem", None), "cert= and key=");
    refused(&query("ca.pem", Some("spy")), "cert= and key=");
    let plain = format!("etcd://127.0.0.1:{}", server.port);
    let error =
        at(&plain, SHORT).expect("the address is right").barrier().expect_err("it wants TLS");
    assert!(error.to_string().contains("etcds://"), "{error}");
    secrets_are_kept(&server, &dir);
}

fn secrets_are_kept(server: &Server, dir: &Path) {
    let file = |name: &str| dir.join(name).display().to_string();
    let query =
        format!("?ca={}&cert={}&key={}", file("ca.pem"), file("node.pem"), file("node.key"));
    std::fs::set_permissions(dir.join("node.key"), PermissionsExt::from_mode(0o644)).expect("ours");
    let error = server.try_open(&query, SHORT).err().expect("others may read the key");
    assert!(error.to_string().contains("chmod 600"), "{error}");
}

/// A key that is no text is not forebay's.
#[test]
fn a_page_that_ends_with_a_key_that_is_no_text_is_followed_by_the_next() {
    let Some(server) = start(&[]) else { return };
    let registry = server.open("");
    let mut keys: Vec<String> = (1..limits::PAGE).map(|n| format!("a/{n:03}")).collect();
    keys.push("a/\u{e9}".into());
    for some in keys.chunks(100) {
        let commit = some.iter().fold(Commit::new(), |c, key| c.put(key, ""));
        registry.commit(&commit).expect("it answers");
    }
    // "/test/a/" and the byte 0x80, in base64.
    server.admin("/v3/kv/put", &json!({ "key": "L3Rlc3QvYS+A" }));
    let (entries, _) = registry.range("").expect("it answers");
    let there: Vec<String> = entries.into_iter().map(|entry| entry.key).collect();
    assert_eq!((there.len(), there.last()), (keys.len(), keys.last()));
}
