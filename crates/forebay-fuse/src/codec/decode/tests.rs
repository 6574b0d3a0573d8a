use super::*;
use crate::codec::encode::Words;

/// Every opcode of a request, and some beyond.
const OPCODES: std::ops::Range<u32> = 0..64;

/// A request as the kernel sends it.
fn message(opcode: u32, arg: &[u8], rest: &[u8]) -> Vec<u8> {
    let len = abi::IN_HEADER_LEN + arg.len() + rest.len();
    let head = Words::new().u32(len as u32).u32(opcode).u64(2).u64(77).u32(10).u32(11).u32(12);
    [head.u32(0).bytes(), arg, rest].concat()
}

fn read(message: &[u8]) -> Request<'_> {
    Request::of_message(message).expect("there is a header")
}

/// The decoded call, as text.
fn asked(opcode: u32, arg: Words, rest: &[u8]) -> String {
    format!("{:?}", read(&message(opcode, arg.bytes(), rest)).call())
}

/// Checks everything that a decoded request returns.
fn exercise(request: &Request<'_>) {
    let _ = request.offer();
    assert!(request.forgotten().count() <= 1 + request.rest.len() / 16);
    match request.call() {
        Ok(Call::Write { at, data, .. }) => {
            assert!(at.offset + data.len() as u64 <= 1 << 63);
            assert!(data.len() <= MAX_WRITE as usize);
        }
        Ok(Call::Read(at, size, _)) => assert!(at.offset + u64::from(size) <= 1 << 63),
        Ok(Call::Readdir(_, size) | Call::Readdirplus(_, size)) => assert!(size <= MAX_WRITE),
        Ok(Call::Fallocate { at, len, .. }) => assert!(at.offset + len <= 1 << 63),
        Ok(Call::Setattr(set, size)) => {
            assert!(size.is_none_or(|(size, _)| size <= i64::MAX as u64));
            for time in [set.atime, set.mtime].into_iter().flatten() {
                assert!(!matches!(time, SetTime::At(at) if at.nsec >= 1_000_000_000));
            }
        }
        Ok(
            Call::Lookup(name)
            | Call::Unlink(name)
            | Call::Rmdir(name)
            | Call::Mkdir { name, .. }
            | Call::Mknod { name, .. }
            | Call::Create { name, .. }
            | Call::Symlink { name, .. }
            | Call::Link { name, .. }
            | Call::Rename { to: (_, name), .. },
        ) => assert!(!name.is_empty() && !name.as_bytes().contains(&b'/')),
        Ok(_) => {}
        Err(errno) => assert!([libc::EIO, libc::ENOSYS].contains(&errno)),
    }
}

/// A small generator, for the same mutations every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn a_request_of_any_length_is_decoded_or_refused() {
    for opcode in OPCODES {
        let whole = message(opcode, &[1; 96], b"\0\0a name\0another\0and the rest of it");
        for len in 0..=whole.len() {
            let mut cut = whole[..len].to_vec();
            match Request::of_message(&cut) {
                Some(request) => exercise(&request),
                None => assert!(len < abi::IN_HEADER_LEN),
            }
            // The same message, with its true length in the header.
            if len >= abi::IN_HEADER_LEN {
                cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                exercise(&read(&cut));
            }
        }
    }
}

#[test]
fn an_argument_that_is_cut_short_is_refused() {
    let mut refused = 0;
    for opcode in OPCODES {
        let Some(len) = arg_len(opcode) else { continue };
        let short = message(opcode, &vec![0; len.saturating_sub(1)], b"");
        if len > 0 {
            let errno = read(&short).call().expect_err("too short");
            assert_eq!(errno, ODD, "{opcode}");
            refused += 1;
        }
        // An argument that is exactly long enough has all its numbers.
        exercise(&read(&message(opcode, &vec![0; len], b"a\0b\0")));
    }
    assert!(refused > 25, "{refused}");
}

/// Method: bytes of requests with plausible contents are overwritten, most with small, large and
/// negative numbers, and parts of them are taken out; both transports' ways of cutting are tried.
#[test]
fn mutated_requests_are_decoded_or_refused() {
    let mut random = Random(17);
    let (mut understood, mut refused) = (0, 0);
    for opcode in OPCODES {
        for turn in 0..2_000 {
            let arg: Vec<u8> = (0..arg_len(opcode).unwrap_or(8)).map(|_| 0).collect();
            let mut whole = message(opcode, &arg, b"name\0second\0some bytes that are written");
            for _ in 0..turn % 6 {
                let at = abi::IN_HEADER_LEN + random.below(whole.len() - abi::IN_HEADER_LEN);
                let numbers = [0, 1, 7, 0x7f, 0x80, 0xff];
                let end = whole.len().min(at + [1, 4, 8][random.below(3)]);
                whole[at..end].fill(numbers[random.below(numbers.len())]);
            }
            if turn % 5 == 0 {
                let from = abi::IN_HEADER_LEN + random.below(whole.len() - abi::IN_HEADER_LEN);
                whole.drain(from..whole.len().min(from + random.below(20)));
            }
            if turn % 3 > 0 {
                let len = whole.len() as u32;
                whole[..4].copy_from_slice(&len.to_ne_bytes());
            }
            let request = read(&whole);
            exercise(&request);
            match request.call() {
                Ok(_) => understood += 1,
                Err(_) => refused += 1,
            }
            let (head, body) = whole.split_at(abi::IN_HEADER_LEN);
            let mut op_in = [0; 128];
            let len = body.len().min(arg.len());
            op_in[..len].copy_from_slice(&body[..len]);
            let head = Head::of(head.first_chunk().unwrap());
            exercise(&Request::of_parts(head, &op_in, &body[len..]));
        }
    }
    assert!(understood > 20_000 && refused > 20_000, "{understood} and {refused}");
}

#[test]
fn names_are_taken_one_after_the_other() {
    let mut rest: &[u8] = b"one\0two\0value";
    assert_eq!(name(&mut rest).unwrap(), "one");
    assert_eq!(name(&mut rest).unwrap(), "two");
    assert_eq!(rest, b"value");
    assert_eq!(name(&mut rest), Err(ODD));
}

#[test]
fn a_name_that_leads_elsewhere_is_refused() {
    for bad in [&b"\0"[..], b"a/b\0", b"/\0", b"../up\0", b"endless"] {
        assert_eq!(read(&message(abi::UNLINK, &[], bad)).call().unwrap_err(), ODD);
        let to = [b"good\0", bad].concat();
        assert_eq!(read(&message(abi::RENAME, &[0; 8], &to)).call().unwrap_err(), ODD);
    }
    // A text that is no file's name may have slashes.
    let found = asked(abi::SYMLINK, Words::new(), b"name\0a/b\0");
    assert_eq!(found, r#"Ok(Symlink { name: "name", target: "a/b" })"#);
    let found = asked(abi::GETXATTR, Words::new().u32(9).u32(0), b"user.a/b\0");
    assert_eq!(found, r#"Ok(Getxattr { name: "user.a/b", room: 9 })"#);
}

/// The words of each argument have the order of linux/fuse.h.
#[test]
fn numbers_are_found_where_they_stand() {
    let words = Words::new;
    let all = [
        (
            asked(abi::MKNOD, words().u32(1).u32(2).u32(3).u32(0), b"n\0"),
            r#"Mknod { name: "n", mode: (1, 3), device: 2 }"#,
        ),
        (asked(abi::MKDIR, words().u32(1).u32(2), b"n\0"), r#"Mkdir { name: "n", mode: (1, 2) }"#),
        (
            asked(abi::CREATE, words().u32(1).u32(2).u32(3).u32(4), b"n\0"),
            r#"Create { name: "n", mode: (2, 3), flags: OpenFlags(1) }"#,
        ),
        (
            asked(abi::RENAME, words().u64(5), b"n\0m\0"),
            r#"Rename { name: "n", to: (5, "m"), flags: 0 }"#,
        ),
        (
            asked(abi::RENAME2, words().u64(5).u32(2).u32(0), b"n\0m\0"),
            r#"Rename { name: "n", to: (5, "m"), flags: 2 }"#,
        ),
        (asked(abi::LINK, words().u64(5), b"n\0"), r#"Link { node: 5, name: "n" }"#),
        (asked(abi::OPEN, words().u32(5).u32(6), b""), "Open { flags: OpenFlags(5) }"),
        (
            asked(abi::READ, words().u64(1).u64(2).u32(3).zeros(20), b""),
            "Read(At { handle: 1, offset: 2 }, 3, Cache)",
        ),
        (
            asked(abi::READ, words().u64(1).u64(2).u32(3).u32(2).zeros(16), b""),
            "Read(At { handle: 1, offset: 2 }, 3, Program)",
        ),
        (
            asked(abi::WRITE, words().u64(1).u64(2).u32(3).u32(4).zeros(16), b"abcd"),
            "Write { at: At { handle: 1, offset: 2 }, data: [97, 98, 99], suid: Strip, manner: Manner { syncs: false, is_cached: false } }",
        ),
        (
            asked(
                abi::WRITE,
                words().u64(1).u64(2).u32(1).u32(3).u64(0).u32(libc::O_DSYNC as u32).u32(0),
                b"a",
            ),
            "Write { at: At { handle: 1, offset: 2 }, data: [97], suid: Keep, manner: Manner { syncs: true, is_cached: true } }",
        ),
        (asked(abi::RELEASE, words().u64(1).zeros(16), b""), "Release(1)"),
        (
            asked(abi::FALLOCATE, words().u64(1).u64(2).u64(3).u32(4).u32(0), b""),
            "Fallocate { at: At { handle: 1, offset: 2 }, len: 3, mode: 4 }",
        ),
        (
            asked(abi::LSEEK, words().u64(1).u64(u64::MAX).u32(4).u32(0), b""),
            "Lseek(At { handle: 1, offset: 18446744073709551615 }, 4)",
        ),
        (
            asked(abi::SETXATTR, words().u32(2).u32(1), b"n\0ab"),
            r#"Setxattr { name: "n", value: [97, 98], flags: 1 }"#,
        ),
        (asked(abi::LISTXATTR, words().u32(9).u32(0), b""), "Listxattr { room: 9 }"),
    ];
    for (found, expected) in all {
        assert_eq!(found, format!("Ok({expected})"));
    }
    let head = Head::of(message(abi::GETATTR, &[], &[]).first_chunk().unwrap());
    assert_eq!((head.unique, head.node), (2, 77));
    assert_eq!((head.from.uid, head.from.gid, head.from.pid), (10, 11, 12));
}

#[test]
fn no_place_is_beyond_the_last_page_that_a_file_can_have() {
    let read_at = |offset: u64| {
        let arg = Words::new().u64(1).u64(offset).u32(4096).zeros(20);
        read(&message(abi::READ, arg.bytes(), &[])).call().map(|_| ())
    };
    let last = (1 << 63) - 4096;
    assert_eq!(read_at(last), Ok(()));
    for beyond in [last + 1, 1 << 63, u64::MAX] {
        assert_eq!(read_at(beyond), Err(ODD));
    }
}

#[test]
fn what_is_forgotten_is_told_one_by_one_or_together() {
    let one = message(abi::FORGET, &3u64.to_ne_bytes(), &[]);
    assert_eq!(read(&one).forgotten().collect::<Vec<_>>(), [(77, 3)]);
    let pairs = Words::new().u64(1).u64(2).u64(3).u64(4);
    let many =
        |count| message(abi::BATCH_FORGET, Words::new().u32(count).u32(0).bytes(), pairs.bytes());
    assert_eq!(read(&many(2)).forgotten().collect::<Vec<_>>(), [(1, 2), (3, 4)]);
    assert_eq!(read(&many(1)).forgotten().count(), 1);
    assert_eq!(read(&many(u32::MAX)).forgotten().count(), 2, "no more than there are");
    assert_eq!(read(&message(abi::GETATTR, &[1; 16], &[1; 32])).forgotten().count(), 0);
}

#[test]
fn a_setattr_says_what_its_flags_name_and_nothing_else() {
    let valid = abi::FATTR_MTIME | abi::FATTR_ATIME | abi::FATTR_ATIME_NOW | abi::FATTR_SIZE;
    let words = |nsec| {
        let words = Words::new().u32(valid).u32(0).u64(5).u64(7).zeros(16);
        words.u64(-2i64 as u64).zeros(8).u32(0).u32(nsec).u32(0).u32(0o644).zeros(16)
    };
    let whole = message(abi::SETATTR, words(9).bytes(), &[]);
    let Ok(Call::Setattr(set, size)) = read(&whole).call() else { panic!("no setattr") };
    assert_eq!((set.mode, set.uid, set.gid), (None, None, None));
    assert!(matches!(set.atime, Some(SetTime::Now)));
    let then = Timestamp { sec: -2, nsec: 9 };
    assert!(matches!(set.mtime, Some(SetTime::At(at)) if at == then));
    assert_eq!(size, Some((7, None)));
    // UTIME_OMIT is no time.
    let odd = message(abi::SETATTR, words((1 << 30) - 2).bytes(), &[]);
    assert_eq!(read(&odd).call().unwrap_err(), ODD);
}

/// `struct fuse_lk_in`.
fn lk_in(first: u64, last: u64, kind: i32, flags: u32) -> Words {
    let words = Words::new().u64(5).u64(6).u64(first).u64(last);
    words.u32(kind as u32).u32(77).u32(flags).u32(0)
}

#[test]
fn locks_are_told_apart() {
    let last = i64::MAX as u64;
    let set = asked(abi::SETLK, lk_in(1, last, libc::F_WRLCK, 0), b"");
    for word in
        ["handle: 5", "Record", "owner: 6", "Set", "Exclusive", "first: 1", "pid: 77", "false"]
    {
        assert!(set.contains(word), "{word} in {set}");
    }
    let wait = asked(abi::SETLKW, lk_in(0, last, libc::F_RDLCK, abi::LK_FLOCK), b"");
    assert!(wait.contains("Flock") && wait.contains("Shared") && wait.contains("true"), "{wait}");
    for opcode in [abi::SETLK, abi::SETLKW] {
        let unset = asked(opcode, lk_in(3, 4, libc::F_UNLCK, 0), b"");
        assert!(unset.contains("Unset(Range { first: 3, last: 4 })"), "{unset}");
    }
    assert!(asked(abi::GETLK, lk_in(3, 4, libc::F_RDLCK, 0), b"").contains("Test("));
    for odd in [
        (abi::GETLK, lk_in(3, 4, libc::F_UNLCK, 0)),
        (abi::SETLK, lk_in(4, 3, libc::F_RDLCK, 0)),
        (abi::SETLK, lk_in(0, last + 1, libc::F_RDLCK, 0)),
        (abi::SETLK, lk_in(0, 0, 3, 0)),
    ] {
        assert_eq!(asked(odd.0, odd.1, b""), "Err(5)");
    }
    let flush = asked(abi::FLUSH, Words::new().u64(5).u64(0).u64(9), b"");
    assert_eq!(flush, "Ok(Flush(5, 9))");
}

#[test]
fn an_interrupt_names_a_request() {
    let whole = message(abi::INTERRUPT, Words::new().u64(12).bytes(), b"");
    assert_eq!(read(&whole).interrupted(), Some(12));
    assert_eq!(read(&message(abi::INTERRUPT, &[0; 7], b"")).interrupted(), None);
    assert_eq!(read(&message(abi::OPEN, Words::new().u64(12).bytes(), b"")).interrupted(), None);
    // A mount that grants no locks answers that it does not know INTERRUPT.
    assert!(matches!(read(&whole).call(), Err(libc::ENOSYS)));
}
