//! Questions and answers, patience, and what happens when a connection ends.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Instant;

use forebay_base::Kind;

use super::*;
use crate::locks::{self, Lock, LockAsk, Of, Range, Space};
use crate::words::{Asker, By, NameChange, NewSize, Opener, Refusal, Set, Within};

fn every_question() -> Vec<Question> {
    let (file, path) = (file(5), PathBuf::from("a/ü \"b\"\n"));
    let asker = Asker { uid: 1, gid: 2, groups: Some(vec![2, 3]), capable: u64::MAX, within: None };
    let within = Some(Within { uids: vec![(0, 1)], gids: vec![(5, 6), (7, 8)] });
    let contained = Asker { groups: None, within, ..asker.clone() };
    let program = Opener { asker: contained, wants: libc::R_OK };
    let changes = [
        NameChange::SetAttr {
            file,
            path: path.clone(),
            is_open: false,
            set: Set { mtime: Some(None), mode: Some(0o640), ..Set::default() },
            size: Some(NewSize { size: 9, is_open: true }),
            asker: asker.clone(),
        },
        NameChange::SetXattr {
            file,
            path: path.clone(),
            name: b"user.x".to_vec(),
            value: vec![0xff; 64 << 10],
            flags: 0,
            asker: asker.clone(),
        },
        NameChange::RemoveXattr { file, path: path.clone(), name: b"user.x".to_vec(), asker },
        NameChange::Link { file, path: path.clone(), to: "c".into() },
        NameChange::Unlink { file, path: path.clone() },
        NameChange::Rename { file, from: path.clone(), to: "c".into(), over: Some(file), flags: 1 },
        NameChange::Replace {
            file,
            from: path.clone(),
            to: "c".into(),
            over: file,
            by: Some(By { member: "a".into(), epoch: 3, number: u64::MAX }),
        },
    ];
    let mut all = vec![
        Question::Holds { file, dir: file },
        Question::Recall { file },
        Question::RecallBelow { path: path.clone() },
        Question::RecallBelow { path: OsString::from_vec(b"no\xffutf8".to_vec()).into() },
        Question::Changed { file },
        Question::Open { file, path: path.clone(), write: true, program: Some(program) },
        Question::Open { file, path, write: false, program: None },
        Question::Close { handle: 1 },
        Question::Read { handle: 1, offset: u64::MAX / 2, len: 70_000 },
        Question::Write { handle: 1, number: 7, offset: 4096, sync: true },
        Question::Append { handle: 1, number: 8, sync: false },
        Question::Sync { handle: 1 },
        Question::Flush { handle: 1 },
        Question::Resize { handle: 1, number: 9, size: 5 },
        Question::Fence { file, number: 10 },
        Question::Allocate { handle: 1, number: 8, offset: 0, len: 1, mode: 0 },
        Question::Seek { handle: 1, offset: 1, whence: 4 },
        Question::Attrs { files: vec![file; 2000] },
    ];
    all.extend(changes.map(|change| Question::Name { number: 11, change }));
    let of = Of { space: Space::Record, owner: u64::MAX };
    let lock = Lock { kind: locks::Kind::Shared, range: Range::ALL, pid: u32::MAX };
    let asks = [
        LockAsk::Set { of, lock, number: 1, waits: true },
        LockAsk::Unset { of, range: Range { first: 1, last: 1 }, number: u64::MAX },
        LockAsk::Test { of: Of { space: Space::Flock, owner: 0 }, lock },
        LockAsk::Cancel { of, number: 2 },
        LockAsk::Reclaim { held: vec![(of, vec![lock; 3])] },
    ];
    let asked = |ask| Question::Lock { file, path: "a/b".into(), epoch: 3, ask };
    all.extend(asks.map(asked));
    all.extend([Question::Granted { number: 3 }, Question::Reclaimed { epoch: 4 }]);
    all
}

#[test]
fn every_word_goes_there_and_back_over_one_connection() {
    for key in [None, key()] {
        let (door, echo, address) = door(key.clone());
        let peers = Peers::new(key);
        let sent: Vec<u8> = (0..1 << 20).map(pattern).collect();
        for question in every_question() {
            let bytes = match question {
                Question::Write { .. } | Question::Append { .. } => &sent[..],
                _ => b"",
            };
            let mut out = b"left over".to_vec();
            let answer =
                peers.ask(&address, &head(), &question, bytes, &mut out, PATIENCE).unwrap();
            let expected = match question {
                Question::Read { .. } => Answer::Bytes,
                Question::Write { .. } | Question::Append { .. } => Answer::At(1 << 20),
                Question::Recall { .. } => Answer::Given(true),
                Question::Holds { .. } => Answer::Holds(true),
                _ => Answer::Done,
            };
            assert_eq!(answer, expected);
            let read = match question {
                Question::Read { offset, len, .. } => {
                    (0..u64::from(len)).map(|n| pattern(offset + n)).collect()
                }
                _ => Vec::new(),
            };
            assert!(out == read, "{question:?}: {} bytes", out.len());
            let asked = echo.asked.lock().unwrap().pop().unwrap();
            assert!(asked == (head(), question, bytes.to_vec()));
        }
        assert_eq!(door.connections(), 1, "the connection is used again");
    }
}

/// Answers one question with the bytes of all parts, and rests after each part.
fn answers_in(parts: &[usize]) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let parts = parts.to_vec();
    let thread = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        let mut question = vec![0; 8 << 10];
        assert!(socket.read(&mut question).unwrap() > 0);
        let (words, len) = (r#""bytes""#, parts.iter().sum::<usize>());
        let (all, of) = (words.len() + len, words.len());
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {all}\r\nForebay-Words: {of}\r\n\r\n");
        socket.write_all(&[head.as_bytes(), words.as_bytes()].concat()).unwrap();
        for part in parts {
            socket.write_all(&vec![7; part]).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
    });
    (address, thread)
}

/// However many bytes have come and were read: a reader that waited for more than are left would wait until its
/// patience ends.
#[test]
fn bytes_come_without_a_wait_in_whatever_parts() {
    let (few, many) = (20 << 10, 250 << 10);
    for parts in
        [[few, 1, 1], [few, few, 1], [many, 100, few], [many, few, many], [1 << 20, 1, few]]
    {
        let (address, door) = answers_in(&parts);
        let (began, mut out) = (Instant::now(), Vec::new());
        let question = Question::Read { handle: 1, offset: 0, len: 4 << 20 };
        let answer =
            Peers::new(None).ask(&address, &head(), &question, b"", &mut out, PATIENCE).unwrap();
        assert_eq!((answer, out.len()), (Answer::Bytes, parts.iter().sum()));
        assert!(began.elapsed() < PATIENCE / 5, "{parts:?}: {:?}", began.elapsed());
        door.join().unwrap();
    }
}

#[test]
fn a_slow_question_holds_up_nobody_else_and_patience_is_kept() {
    let (_door, _echo, address) = door(key());
    let peers = Peers::new(key());
    thread::scope(|scope| {
        let slow = scope.spawn(|| {
            let began = Instant::now();
            let question = Question::Recall { file: file(1500) };
            let patience = Duration::from_millis(300);
            let asked = peers.ask(&address, &head(), &question, b"", &mut Vec::new(), patience);
            (asked.unwrap_err(), began.elapsed())
        });
        thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        assert_eq!(ask(&peers, &address, &Question::Sync { handle: 1 }).unwrap(), Answer::Done);
        assert!(began.elapsed() < Duration::from_millis(250), "{:?}", began.elapsed());
        let (error, time) = slow.join().unwrap();
        assert_eq!(error.kind(), Kind::TimedOut);
        assert!(error.to_string().contains("not known whether"), "{error}");
        assert!(time >= Duration::from_millis(300), "{time:?}");
        assert!(time < Duration::from_millis(1000), "{time:?}");
    });
}

#[test]
fn many_ask_at_once() {
    let (door, echo, address) = door(key());
    let peers = Peers::new(key());
    thread::scope(|scope| {
        for n in 0..32u64 {
            let (peers, address) = (&peers, &address);
            scope.spawn(move || {
                let mut out = Vec::new();
                for round in 0..50 {
                    let offset = n << 20 | round;
                    let question = Question::Read { handle: 1, offset, len: 3000 };
                    peers.ask(address, &head(), &question, b"", &mut out, PATIENCE).unwrap();
                    assert!(out.iter().zip(offset..).all(|(byte, at)| *byte == pattern(at)));
                    assert_eq!(out.len(), 3000);
                }
            });
        }
    });
    assert_eq!(echo.count.load(Ordering::SeqCst), 32 * 50);
    assert!(door.connections() <= 32, "{}", door.connections());
}

#[test]
fn a_door_that_began_anew_is_asked_without_an_error() {
    let (old, _, address) = door(None);
    let peers = Peers::new(None);
    ask(&peers, &address, &Question::Sync { handle: 1 }).unwrap();
    let at: SocketAddr = old.address();
    drop(old);
    let error = ask(&peers, &address, &Question::Sync { handle: 1 }).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{error}");
    let _new = Door::open(at, (None, None), Arc::new(Echo::default())).unwrap();
    // Not even a question that must not be repeated fails.
    let change = NameChange::Unlink { file: file(1), path: "a".into() };
    assert_eq!(ask(&peers, &address, &Question::Name { number: 1, change }).unwrap(), Answer::Done);
}

/// Answers the first question of a connection, and breaks it at the second, which it answers with `half`.
fn breaks(half: &'static [u8]) -> (String, Arc<AtomicU64>) {
    breaks_and_says(half, "\"done\"")
}

/// As `breaks`; on each further connection the first answer is `says`.
fn breaks_and_says(half: &'static [u8], says: &'static str) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    thread::spawn(move || {
        for (n, socket) in listener.incoming().enumerate() {
            let mut socket = socket.unwrap();
            let mut text = [0; 4096];
            assert!(socket.read(&mut text).unwrap() > 0);
            count.fetch_add(1, Ordering::SeqCst);
            let says = if n == 0 { "\"done\"" } else { says };
            let len = says.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{says}");
            socket.write_all(answer.as_bytes()).unwrap();
            if socket.read(&mut text).unwrap_or(0) > 0 {
                count.fetch_add(1, Ordering::SeqCst);
                socket.write_all(half).unwrap();
            }
        }
    });
    (address, asked)
}

#[test]
fn what_is_safe_is_repeated_once_and_what_is_not_says_so() {
    let unlink = NameChange::Unlink { file: file(1), path: "a".into() };
    let unlink = Question::Name { number: 1, change: unlink };
    let sync = Question::Sync { handle: 1 };
    // Nothing was answered.
    let (address, asked) = breaks(b"");
    let peers = Peers::new(None);
    ask(&peers, &address, &sync).unwrap();
    assert_eq!(ask(&peers, &address, &sync).unwrap(), Answer::Done);
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let error = ask(&peers, &address, &unlink).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("not known whether it happened"), "{error}");
    // With half an answer not even a question that is safe to repeat is asked again.
    let (address, asked) = breaks(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"op");
    let peers = Peers::new(None);
    ask(&peers, &address, &sync).unwrap();
    let error = ask(&peers, &address, &sync).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

/// A home takes an append, and begins anew before it answers: that its next life refuses the repeated one says
/// nothing of the first.
#[test]
fn an_append_that_a_later_life_refuses_may_have_been_done_by_the_earlier_one() {
    let sync = Question::Sync { handle: 1 };
    let append = Question::Append { handle: 1, number: 1, sync: false };
    let (address, asked) = breaks_and_says(b"", r#"{"refused":{"epoch":4}}"#);
    let peers = Peers::new(None);
    ask(&peers, &address, &sync).unwrap();
    let error = ask(&peers, &address, &append).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("not known whether it happened"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 3, "it was sent twice");
    // An append that was sent once was not done.
    let (address, _) = breaks_and_says(b"", r#"{"refused":{"epoch":4}}"#);
    ask(&Peers::new(None), &address, &sync).unwrap();
    let refused = ask(&Peers::new(None), &address, &append).unwrap();
    assert_eq!(refused, Answer::Refused(Refusal::Epoch(4)));
}

#[test]
fn one_that_accepts_and_says_nothing_takes_no_longer_than_patience() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for key in [None, key()] {
        let began = Instant::now();
        let (mut out, patience) = (Vec::new(), Duration::from_millis(250));
        let question = Question::Write { handle: 1, number: 1, offset: 0, sync: false };
        let bytes = vec![0; 4 << 20];
        let peers = Peers::new(key);
        peers.ask(&address, &head(), &question, &bytes, &mut out, patience).unwrap_err();
        let time = began.elapsed();
        assert!(time >= patience && time < Duration::from_secs(2), "{time:?}");
    }
}

#[test]
fn a_name_and_other_nonsense_for_an_address_say_what_is_wrong() {
    let error = ask(&Peers::new(None), "n1:7000", &Question::Sync { handle: 1 }).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(error.to_string().contains("n1:7000"), "{error}");
    let error = ask(&Peers::new(None), "192.0.2.1:7000", &Question::Sync { handle: 1 });
    assert!(error.unwrap_err().to_string().contains("cluster key"));
}
