//! The right to open and change a file that another node has claimed: its home decides by the present attributes
//! there, whatever the kernel of the program's node has cached.

use std::fs::{self, File, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use forebay_tests::acl::{self, Entry};
use forebay_tests::cluster::Cluster;
use forebay_tests::user::User;
use forebay_tests::{needs_forebay, needs_tools, sys};

use crate::write;

/// Nodes keep cached attributes for longer than a test takes.
const LONG: &[&str] = &["--preset", "hold", "--entry-ttl", "10m", "--attr-ttl", "10m"];

const OWNER: User = User { uid: 47_101, gid: 47_101, groups: &[] };
const MEMBER: User = User { uid: 47_102, gid: 47_102, groups: &[5, 47_110, 6] };
const STRANGER: User = User { uid: 47_103, gid: 47_103, groups: &[] };
const GROUP: u32 = 47_110;

/// Two nodes, the first of which has claimed `f`; the second has seen its mode as 0666.
struct Bed {
    cluster: Cluster,
}

impl Bed {
    fn new() -> Bed {
        let cluster = Cluster::start(2, LONG);
        let bed = Bed { cluster };
        write(&bed.at_home("f"), b"claimed");
        chown(bed.at_home("f"), Some(OWNER.uid), Some(GROUP)).unwrap();
        bed.set_mode(0o666);
        for user in [OWNER, MEMBER, STRANGER] {
            user.run(0, || bed.open("r+").map(drop))
                .unwrap_or_else(|why| panic!("{user:?}: {why}"));
        }
        bed
    }

    fn at_home(&self, name: &str) -> std::path::PathBuf {
        self.cluster.at(0, name)
    }

    fn elsewhere(&self, name: &str) -> std::path::PathBuf {
        self.cluster.at(1, name)
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(self.at_home("f"), Permissions::from_mode(mode)).unwrap();
    }

    /// Opens `f` on the node that is not its home: "r", "w" or "r+".
    fn open(&self, how: &str) -> Result<File> {
        let (read, write) = (how.contains(['r', '+']), how.contains(['w', '+']));
        File::options().read(read).write(write).open(self.elsewhere("f"))
    }
}

#[track_caller]
fn is_refused<T>(kind: i32, done: &Result<T>, what: &str) {
    match done {
        Err(why) if why.raw_os_error() == Some(kind) => {}
        Err(why) => panic!("{what}: {why}"),
        Ok(_) => panic!("{what}: it was let do that"),
    }
}

// S-25
#[test]
fn a_home_lets_those_open_a_file_who_may_by_now() {
    needs_forebay!();
    needs_tools!("etcd");
    let bed = Bed::new();
    bed.set_mode(0o640);
    is_refused(libc::EACCES, &STRANGER.run(0, || bed.open("r")), "0640, a stranger reads");
    is_refused(libc::EACCES, &MEMBER.run(0, || bed.open("r+")), "0640, one of the group writes");
    is_refused(libc::EACCES, &MEMBER.run(0, || bed.open("w")), "0640, one of the group writes");
    let read = |user: User| {
        user.run(0, || {
            let mut bytes = [0; 7];
            bed.open("r")?.read_exact_at(&mut bytes, 0)?;
            assert_eq!(&bytes, b"claimed");
            Ok::<_, Error>(())
        })
    };
    read(MEMBER).expect("0640, one of the group reads");
    OWNER.run(0, || bed.open("r+")).expect("0640, its owner");
    bed.open("r+").expect("root");
    let truncates = || File::options().write(true).truncate(true).open(bed.elsewhere("f"));
    is_refused(libc::EACCES, &MEMBER.run(0, truncates), "0640, one of the group truncates");
    let size = || sys::truncate(&bed.elsewhere("f"), 1);
    is_refused(libc::EACCES, &STRANGER.run(0, size), "0640, a stranger truncates");
    read(MEMBER).expect("nothing was cut");

    // The list grants rights to the stranger, and removes them from the group.
    let list = [
        Entry::Owner(6),
        Entry::User(STRANGER.uid, 4),
        Entry::Group(0),
        Entry::Mask(4),
        Entry::Other(0),
    ];
    sys::set_xattr(&bed.at_home("f"), acl::ACCESS, &acl::encode(&list), 0).unwrap();
    read(STRANGER).expect("who is named in the list");
    is_refused(libc::EACCES, &MEMBER.run(0, || bed.open("r")), "the group has nothing in the list");
}

// S-25
#[test]
fn an_open_file_can_be_used_whatever_its_mode_becomes() {
    needs_forebay!();
    needs_tools!("etcd");
    let bed = Bed::new();
    let file = STRANGER.run(0, || bed.open("r+")).unwrap();
    bed.set_mode(0o400);
    is_refused(libc::EACCES, &STRANGER.run(0, || bed.open("r")), "0400, a stranger reads");
    STRANGER.run(0, || {
        file.write_all_at(b"written", 0).unwrap();
        file.set_len(4).unwrap();
        file.sync_all().unwrap();
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"writ");
    });
    assert_eq!(fs::read(bed.at_home("f")).unwrap(), b"writ");
}

// S-25
#[test]
fn a_home_lets_its_owner_alone_change_a_files_attributes() {
    needs_forebay!();
    needs_tools!("etcd");
    let bed = Bed::new();
    // The other node still has the first owner in its cache.
    chown(bed.at_home("f"), Some(MEMBER.uid), Some(GROUP)).unwrap();
    bed.set_mode(0o604);
    let at = bed.elsewhere("f");
    let mode = |mode| fs::set_permissions(&at, Permissions::from_mode(mode));
    is_refused(libc::EPERM, &OWNER.run(0, || mode(0o777)), "chmod");
    is_refused(libc::EPERM, &OWNER.run(0, || chown(&at, None, Some(OWNER.gid))), "chgrp");
    let times = || File::open(&at)?.set_modified(std::time::UNIX_EPOCH);
    is_refused(libc::EPERM, &OWNER.run(0, times), "utimens");
    let note = || sys::set_xattr(&at, "user.note", b"1", 0);
    is_refused(libc::EACCES, &OWNER.run(0, note), "setxattr");
    sys::set_xattr(&bed.at_home("f"), "user.note", b"1", 0).unwrap();
    let unset = || sys::remove_xattr(&at, "user.note");
    is_refused(libc::EACCES, &OWNER.run(0, unset), "removexattr");
    let list = acl::encode(&[Entry::Owner(7), Entry::Group(7), Entry::Other(7)]);
    let set_list = || sys::set_xattr(&at, acl::ACCESS, &list, 0);
    is_refused(libc::EPERM, &OWNER.run(0, set_list), "setfacl");
    let found = fs::metadata(bed.at_home("f")).unwrap();
    assert_eq!(found.permissions().mode() & 0o7777, 0o604, "nothing was changed");
    mode(0o640).expect("root may");
    let is_so = || fs::metadata(bed.at_home("f")).unwrap().permissions().mode() & 0o7777 == 0o640;
    assert!(is_so());
}

/// The kernel runs the program for a user who may not read it.
#[test]
fn a_program_that_may_be_run_and_not_read_is_run_elsewhere() {
    needs_forebay!();
    needs_tools!("etcd");
    let bed = Bed::new();
    let program = fs::read("/bin/true").unwrap();
    write(&bed.at_home("program"), &program);
    let mode = Permissions::from_mode(0o711);
    fs::set_permissions(bed.at_home("program"), mode).unwrap();
    let at = bed.elsewhere("program");
    let run = |at: &Path| STRANGER.run(0, || Command::new(at).status());
    assert!(run(&at).expect("it may be run").success());
    let read = STRANGER.run(0, || File::open(&at));
    assert_eq!(read.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_ne!(
        fs::metadata(bed.cluster.backing.join("program")).map(|it| it.len()).ok(),
        Some(program.len() as u64),
        "it is claimed"
    );
}
