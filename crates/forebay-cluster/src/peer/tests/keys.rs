//! The cluster key: its file, and what it protects.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use forebay_base::Kind;

use super::*;

#[test]
fn a_key_is_read_only_if_nobody_else_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let text = format!("{}\n", "k7".repeat(32));
    std::fs::write(&path, &text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let read = Key::read(&path).unwrap();
    // The line's end does not count.
    let same = Key::new(text.trim_end().as_bytes()).unwrap();
    assert!(read.check(&[b"x"], &same.sign(&[b"x"])));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let error = Key::read(&path).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(error.to_string().contains(&format!("chmod 600 {}", path.display())), "{error}");
    assert!(Key::read(&folder.path().join("none")).unwrap_err().is(libc::ENOENT));
    for (len, fits) in [(31, false), (32, true), (4096, true), (4097, false), (9000, false)] {
        let path = folder.path().join(len.to_string());
        std::fs::write(&path, vec![b'k'; len]).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(Key::read(&path).is_ok(), fits, "{len}");
    }
}

#[test]
fn a_member_with_another_key_or_none_is_told() {
    let sync = Question::Sync { handle: 1 };
    let other = || Some(Key::new(&[7; 32]).unwrap());
    for (here, there, says) in [
        (key(), other(), "the cluster keys differ"),
        (None, key(), "only who has its cluster key"),
        (key(), None, "this member has no cluster key"),
    ] {
        let (_door, echo, address) = door(there);
        let error = ask(&Peers::new(here), &address, &sync).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(echo.count.load(Ordering::SeqCst), 0);
    }
}

/// The bytes that each direction carried.
pub(super) type Captured = Arc<Mutex<Vec<u8>>>;

/// Stands between the asker and the door: passes on all bytes, after `change` has seen them, and keeps
/// them.
pub(super) fn between(
    door: String,
    change: impl Fn(&mut Vec<u8>) + Send + Clone + 'static,
) -> (String, Captured) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let captured = Captured::default();
    let keep = captured.clone();
    thread::spawn(move || {
        let mut near = listener.accept().unwrap().0;
        let mut far = TcpStream::connect(door).unwrap();
        let (mut from, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from, &mut to));
        let mut text = vec![0; 64 << 10];
        while let Ok(len @ 1..) = near.read(&mut text) {
            let mut text = text[..len].to_vec();
            change(&mut text);
            keep.lock().unwrap().extend_from_slice(&text);
            far.write_all(&text).unwrap();
        }
    });
    (address, captured)
}

#[test]
fn a_captured_question_cannot_be_asked_again() {
    let (_door, echo, address) = door(key());
    // Each question is sent twice.
    let (twice, captured) = between(address.clone(), |text| {
        if text.starts_with(b"POST /ask") {
            text.extend_from_within(..);
        }
    });
    ask(&Peers::new(key()), &twice, &Question::Sync { handle: 1 }).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(echo.count.load(Ordering::SeqCst), 1);
    // The whole connection is sent once more: the door's nonce is another one.
    let said = say(address.parse().unwrap(), &captured.lock().unwrap());
    assert!(said.contains("the cluster keys differ"), "{said}");
    assert_eq!(echo.count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_changed_word_length_or_seal_is_refused() {
    let swap = |from: String, to: String| {
        move |text: &mut Vec<u8>| {
            if let Some(at) = text.windows(from.len()).position(|part| part == from.as_bytes()) {
                text[at..at + from.len()].copy_from_slice(to.as_bytes());
            }
        }
    };
    let question = Question::Write { handle: 1, number: 1, offset: 4096, sync: false };
    let length = |bytes| format!("Content-Length: {}", words(&question).len() + bytes);
    for (from, to, passes) in [
        ("offset\":4096", "offset\":8192", false),
        (&*length(10), &*length(9), false),
        ("Forebay-Seal", "Forebay-Sale", false),
        ("nothing like that", "nothing like this", true),
    ] {
        let (_door, echo, address) = door(key());
        let (changes, _) = between(address, swap(from.into(), to.into()));
        let peers = Peers::new(key());
        let asked =
            peers.ask(&changes, &head(), &question, b"some bytes", &mut Vec::new(), PATIENCE);
        assert_eq!(asked.is_ok(), passes, "{from}: {asked:?}");
        assert_eq!(echo.count.load(Ordering::SeqCst), u64::from(passes));
        if let Err(error) = asked {
            assert!(error.to_string().contains("the seal is not"), "{error}");
        }
    }
}

#[test]
fn a_refusal_or_an_answer_without_its_seal_is_not_believed() {
    // A door greets with the key's proof, and then another sender speaks in its place.
    for said in [
        "HTTP/1.1 503 No\r\nContent-Length: 28\r\n\r\n{\"status\":503,\"error\":\"busy\"}",
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n\"done\"",
    ] {
        let (_door, _echo, address) = door(key());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let middle = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let mut near = listener.accept().unwrap().0;
            let mut far = TcpStream::connect(address).unwrap();
            let mut text = vec![0; 64 << 10];
            for _ in 0..2 {
                let len = near.read(&mut text).unwrap();
                far.write_all(&text[..len]).unwrap();
                let len = far.read(&mut text).unwrap();
                near.write_all(&text[..len]).unwrap();
            }
            assert!(near.read(&mut text).unwrap() > 0);
            near.write_all(said.as_bytes()).unwrap();
        });
        let error = ask(&Peers::new(key()), &middle, &Question::Sync { handle: 1 }).unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains("seal"), "{error}");
    }
}
