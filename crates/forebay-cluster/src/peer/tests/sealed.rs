//! TLS between members.

use std::path::Path;
use std::process::Command;

use forebay_base::Kind;

use super::keys::between;
use super::*;
use crate::peer::Tls;

/// Makes a key and a certificate for an address, signed by `ca` (by itself, if it has that name).
fn certificate(dir: &Path, name: &str, ca: &str, ip: &str) {
    let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
    let (subject, names) =
        (format!("/O=forebay tests/OU={name}"), dir.join(format!("{name}.names")));
    std::fs::write(&names, format!("subjectAltName=IP:{ip}")).unwrap();
    let openssl = |line: String| {
        let mut command = Command::new("openssl");
        let done =
            command.current_dir(dir).args(line.split(' ')).output().expect("openssl is there");
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let make = |line: &str| {
        let mut command = Command::new("openssl");
        command.current_dir(dir).args(line.split(' ')).args(["-subj", &subject]);
        let done = command.output().expect("openssl is there");
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    };
    openssl(format!("ecparam -name prime256v1 -genkey -noout -out {key}"));
    if name == ca {
        return make(&format!("req -x509 -new -key {key} -days 2 -out {name}.pem"));
    }
    make(&format!("req -new -key {key} -out {request}"));
    openssl(format!(
        "x509 -req -in {request} -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 -extfile {name}.names -out {name}.pem"
    ));
}

fn tls(dir: &Path, name: &str, ca: &str) -> Option<Arc<Tls>> {
    let file = |name: &str, end: &str| dir.join(format!("{name}.{end}"));
    Some(Arc::new(Tls::read(&file(name, "pem"), &file(name, "key"), &file(ca, "pem")).unwrap()))
}

/// Members `a` and `b` of one authority, `c` of another, and `d` whose certificate is for another address. `None`
/// without openssl.
fn members() -> Option<tempfile::TempDir> {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("SKIPPED: openssl is not installed");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, ca) in [("ca", "ca"), ("a", "ca"), ("b", "ca"), ("other", "other"), ("c", "other")] {
        certificate(dir.path(), name, ca, "127.0.0.1");
    }
    certificate(dir.path(), "d", "ca", "127.0.0.9");
    Some(dir)
}

fn door_of(tls: Option<Arc<Tls>>) -> (Door, Arc<Echo>, String) {
    let echo = Arc::new(Echo::default());
    let door = Door::open("127.0.0.1:0".parse().unwrap(), (key(), tls), echo.clone()).unwrap();
    let address = door.address().to_string();
    (door, echo, address)
}

#[test]
fn what_passes_between_members_with_certificates_is_read_by_nobody() {
    let Some(dir) = members() else { return };
    let (door, _, address) = door_of(tls(dir.path(), "a", "ca"));
    let (middle, passed) = between(address, |_| ());
    let peers = Peers::new(key()).over(tls(dir.path(), "b", "ca"));
    let text = b"the bytes of a file, which nobody else is to read. ".repeat(80_000);
    let mut out = Vec::new();
    for round in 0..3 {
        let write = Question::Append { handle: 1, number: round, sync: false };
        let written = peers.ask(&middle, &head(), &write, &text, &mut out, PATIENCE).unwrap();
        assert_eq!(written, Answer::At(text.len() as u64));
        let read = Question::Read { handle: 1, offset: round, len: 3 << 20 };
        let answer = peers.ask(&middle, &head(), &read, b"", &mut out, PATIENCE).unwrap();
        assert_eq!(answer, Answer::Bytes);
        assert!(out.len() == 3 << 20 && (0u64..).zip(&out).all(|(n, b)| *b == pattern(round + n)));
    }
    assert_eq!(door.connections(), 1, "one connection for all of it");
    let passed = passed.lock().unwrap();
    assert!(passed.len() > 3 * text.len(), "it went this way");
    for plain in [&b"which nobody else"[..], b"POST /", b"Content-Length"] {
        assert!(!passed.windows(plain.len()).any(|part| part == plain), "{plain:?} can be read");
    }
}

#[test]
fn a_byte_that_was_changed_on_the_way_is_no_byte() {
    let Some(dir) = members() else { return };
    let (_door, echo, address) = door_of(tls(dir.path(), "a", "ca"));
    let (middle, _) = between(address, |bytes| {
        if let Some(byte) = bytes.get_mut(9000) {
            *byte ^= 1;
        }
    });
    let peers = Peers::new(key()).over(tls(dir.path(), "b", "ca"));
    let write = Question::Write { handle: 1, number: 1, offset: 0, sync: false };
    let text = vec![7; 1 << 20];
    let error = peers.ask(&middle, &head(), &write, &text, &mut Vec::new(), PATIENCE).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert_eq!(echo.count.load(Ordering::SeqCst), 0, "the question did not come to its end");
}

#[test]
fn a_member_without_a_trusted_certificate_is_told() {
    let Some(dir) = members() else { return };
    let of = |name: &str, ca: &str| tls(dir.path(), name, ca);
    for (here, there, says) in [
        (of("c", "ca"), of("a", "ca"), "does not believe this member's certificate"),
        (of("c", "other"), of("a", "ca"), "its certificate is not believed"),
        (of("b", "ca"), of("d", "ca"), "name the IP address of its peer-listen"),
        (of("b", "ca"), None, "does not speak TLS"),
        (None, of("a", "ca"), "it speaks TLS"),
    ] {
        let (_door, echo, address) = door_of(there);
        let error = ask(&Peers::new(key()).over(here), &address, &Question::Sync { handle: 1 });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(echo.count.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn files_that_are_no_certificates_are_told() {
    let Some(dir) = members() else { return };
    let file = |name: &str| dir.path().join(name);
    let read = |cert: &str, key: &str, ca: &str| {
        Tls::read(&file(cert), &file(key), &file(ca)).expect_err("it cannot be used").to_string()
    };
    assert!(read("a.key", "a.key", "ca.pem").contains("no certificate in PEM"));
    assert!(read("a.pem", "b.key", "ca.pem").contains("cannot be used for TLS"));
    assert!(read("a.pem", "a.pem", "ca.pem").contains("a.pem"));
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file("a.key"), PermissionsExt::from_mode(0o644)).unwrap();
    assert!(read("a.pem", "a.key", "ca.pem").contains("chmod 600"));
}

/// A full door greets no guest.
#[test]
fn a_full_door_answers_a_greeting_with_busy() {
    let Some(dir) = members() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let door = thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        crate::peer::guest::turn_away(&socket);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let peers = Peers::new(key()).over(tls(dir.path(), "b", "ca"));
    let said = ask(&peers, &address, &Question::Sync { handle: 1 }).unwrap();
    assert_eq!(said, Answer::Refused(crate::words::Refusal::Busy));
    drop(peers);
    door.join().unwrap();
}
