//! Names and attributes of a file that another node has claimed.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD, difference, read};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, proof, sys, within};

use crate::{append, random, write};

/// The greatest age of names and attributes elsewhere: the mounts' time to live, and some more.
const SEEN: Duration = Duration::from_secs(5);

/// A change by one node to `f`, which another has claimed, and the state that all nodes must show afterwards.
struct Change {
    what: &'static str,
    make: fn(&Path) -> std::io::Result<()>,
    is_so: fn(&Path) -> bool,
}

fn bytes() -> Vec<u8> {
    random(100_000, 3)
}

fn reads_as(at: &Path, bytes: &[u8]) -> bool {
    read(at).is_ok_and(|found| found == bytes)
}

fn is_gone(at: &Path) -> bool {
    fs::symlink_metadata(at).is_err_and(|why| why.kind() == ErrorKind::NotFound)
}

const CHANGES: &[Change] = &[
    Change {
        what: "rename",
        make: |dir| sys::rename(&dir.join("f"), &dir.join("g"), 0),
        is_so: |dir| is_gone(&dir.join("f")) && reads_as(&dir.join("g"), &bytes()),
    },
    Change {
        what: "rename over a claimed file",
        make: |dir| sys::rename(&dir.join("f"), &dir.join("over"), 0),
        is_so: |dir| is_gone(&dir.join("f")) && reads_as(&dir.join("over"), &bytes()),
    },
    Change {
        what: "rename into another directory",
        make: |dir| sys::rename(&dir.join("f"), &dir.join("sub/g"), 0),
        is_so: |dir| is_gone(&dir.join("f")) && reads_as(&dir.join("sub/g"), &bytes()),
    },
    Change {
        what: "exchange",
        make: |dir| sys::rename(&dir.join("f"), &dir.join("over"), libc::RENAME_EXCHANGE),
        is_so: |dir| reads_as(&dir.join("f"), b"replaced") && reads_as(&dir.join("over"), &bytes()),
    },
    Change {
        what: "unlink",
        make: |dir| fs::remove_file(dir.join("f")),
        is_so: |dir| is_gone(&dir.join("f")),
    },
    Change {
        what: "link",
        make: |dir| fs::hard_link(dir.join("f"), dir.join("l")),
        is_so: |dir| {
            let nlink = |name| fs::metadata(dir.join(name)).map(|found| found.nlink()).ok();
            nlink("f") == Some(2)
                && nlink("l") == Some(2)
                && reads_as(&dir.join("l"), &bytes())
                && reads_as(&dir.join("f"), &bytes())
        },
    },
    Change {
        what: "truncate to less",
        make: |dir| sys::truncate(&dir.join("f"), 777),
        is_so: |dir| size_of(dir) == Some(777) && reads_as(&dir.join("f"), &bytes()[..777]),
    },
    Change {
        what: "truncate to more",
        make: |dir| sys::truncate(&dir.join("f"), 150_000),
        is_so: |dir| {
            let want = [bytes(), vec![0; 50_000]].concat();
            size_of(dir) == Some(150_000) && reads_as(&dir.join("f"), &want)
        },
    },
    Change {
        what: "chmod",
        make: |dir| fs::set_permissions(dir.join("f"), Permissions::from_mode(0o640)),
        is_so: |dir| mode_of(dir) == Some(0o640) && reads_as(&dir.join("f"), &bytes()),
    },
    Change {
        what: "chown",
        make: |dir| std::os::unix::fs::chown(dir.join("f"), Some(47_110), Some(47_111)),
        is_so: |dir| {
            let found = fs::metadata(dir.join("f"));
            found.is_ok_and(|found| (found.uid(), found.gid()) == (47_110, 47_111))
        },
    },
    Change {
        what: "utimens",
        make: |dir| sys::utimens(&dir.join("f"), (1_000_000, 5), (1_234_567, 890)),
        is_so: |dir| sys::mtime(&dir.join("f")) == (1_234_567, 890),
    },
    Change {
        what: "setxattr",
        make: |dir| sys::set_xattr(&dir.join("f"), "user.note", b"elsewhere", 0),
        is_so: |dir| {
            sys::get_xattr(&dir.join("f"), "user.note").is_ok_and(|found| found == b"elsewhere")
        },
    },
    Change {
        what: "removexattr",
        make: |dir| sys::remove_xattr(&dir.join("f"), "user.old"),
        is_so: |dir| {
            sys::list_xattr(&dir.join("f")).is_ok_and(|names| !names.contains(&"user.old".into()))
        },
    },
];

fn size_of(dir: &Path) -> Option<u64> {
    fs::metadata(dir.join("f")).map(|found| found.len()).ok()
}

fn mode_of(dir: &Path) -> Option<u32> {
    fs::metadata(dir.join("f")).map(|found| found.mode() & 0o7777).ok()
}

// S-25
#[test]
fn what_one_node_changes_of_a_file_that_another_has_claimed_is_so_everywhere() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    let mut wrong = Vec::new();
    for (number, change) in CHANGES.iter().enumerate() {
        let dir = format!("d{number}");
        let home = cluster.at(0, &dir);
        fs::create_dir_all(home.join("sub")).unwrap();
        write(&home.join("over"), b"replaced");
        write(&home.join("f"), &bytes());
        sys::set_xattr(&home.join("f"), "user.old", b"1", 0).unwrap();
        let stored = cluster.stored(format!("{dir}/f")).unwrap();
        assert!(difference(&stored, &bytes()).is_some(), "f is claimed: it is not home");
        if let Err(why) = (change.make)(&cluster.at(1, &dir)) {
            wrong.push(format!("{}: {why}", change.what));
            continue;
        }
        for node in [1, 0, 2] {
            let at = cluster.at(node, &dir);
            if !forebay_tests::eventually(SEEN, || (change.is_so)(&at)) {
                wrong.push(format!("{}: not so on n{}", change.what, node + 1));
            }
        }
    }
    (0..3).for_each(|node| cluster.flush(node));
    for (number, change) in CHANGES.iter().enumerate() {
        if !(change.is_so)(&cluster.backing.join(format!("d{number}"))) {
            wrong.push(format!("{}: not so on the store", change.what));
        }
    }
    for node in 0..3 {
        let status = cluster.status(node);
        if status["conflicted_files"] != 0 {
            wrong.push(format!("n{}: conflicts: {status:#}", node + 1));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    proof!("{} kinds of change of a file that is claimed elsewhere", CHANGES.len());
}

#[test]
fn a_rename_over_a_file_of_a_third_node_replaces_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    write(&cluster.at(0, "new"), &bytes());
    write(&cluster.at(2, "old"), b"to be replaced");
    assert_eq!(read(&cluster.at(1, "old")).unwrap(), b"to be replaced");
    fs::rename(cluster.at(1, "new"), cluster.at(1, "old")).unwrap();
    for node in 0..3 {
        let at = cluster.at(node, "old");
        within(SEEN, "the new one shows", || reads_as(&at, &bytes()));
        within(SEEN, "the old name is gone", || is_gone(&cluster.at(node, "new")));
    }
    (0..3).for_each(|node| cluster.flush(node));
    assert_eq!(difference(&cluster.stored("old").unwrap(), &bytes()), None);
    assert!(is_gone(&cluster.backing.join("new")));
}

#[test]
fn an_open_file_stays_when_another_node_unlinks_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(cluster.at(0, "f"))
        .unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(cluster.at(1, "f")).unwrap();
    file.write_all_at(b"AFTER", 1).unwrap();
    let mut found = [0; 6];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"bAFTER");
    within(SEEN, "the name is gone", || is_gone(&cluster.at(0, "f")));
    // A new file of that name is a different file.
    write(&cluster.at(1, "f"), b"new");
    within(SEEN, "the new file shows", || reads_as(&cluster.at(0, "f"), b"new"));
    drop(file);
    (0..2).for_each(|node| cluster.flush(node));
    assert_eq!(cluster.stored("f").unwrap(), b"new");
}

#[test]
fn an_open_file_that_its_home_removes_keeps_its_attributes() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    for is_replaced in [false, true] {
        write(&cluster.at(0, "f"), b"before");
        let file = File::open(cluster.at(1, "f")).unwrap();
        match is_replaced {
            false => fs::remove_file(cluster.at(0, "f")).unwrap(),
            true => {
                write(&cluster.at(0, "new"), b"other bytes");
                fs::rename(cluster.at(0, "new"), cluster.at(0, "f")).unwrap();
            }
        }
        // The kernel's cached attributes are old by then.
        std::thread::sleep(SEEN);
        let attrs = file.metadata().unwrap();
        assert_eq!((attrs.len(), attrs.nlink()), (6, 0));
        let mut found = [0; 6];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"before");
    }
}

// S-25
#[test]
fn the_attributes_of_an_open_file_are_changed_whatever_others_do_to_its_name() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    let replace = |dir: &Path| {
        write(&dir.join("other"), b"other bytes");
        fs::rename(dir.join("other"), dir.join("f"))
    };
    type Act<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;
    let acts: [(&str, Act<'_>); 3] = [
        ("renamed", &|dir| fs::rename(dir.join("f"), dir.join("g"))),
        ("removed", &|dir| fs::remove_file(dir.join("f"))),
        ("replaced", &replace),
    ];
    for (what, act) in acts {
        fs::create_dir(cluster.at(0, what)).unwrap();
        write(&cluster.at(0, what).join("f"), &bytes());
        let home = File::open(cluster.at(0, what).join("f")).unwrap();
        let path = cluster.at(1, what).join("f");
        let file = File::options().read(true).write(true).open(path).unwrap();
        act(&cluster.at(2, what)).unwrap();
        // Once as long as the kernel knows the name, and once when it does not.
        for (size, mode, secs) in [(200, 0o640, 1_234_567), (100, 0o600, 7_654_321)] {
            let done = |call: &str, done: std::io::Result<()>| {
                done.unwrap_or_else(|why| panic!("{call} of a {what} file: {why}"));
            };
            done("ftruncate", file.set_len(size));
            done("fchmod", file.set_permissions(Permissions::from_mode(mode)));
            done("fchown", std::os::unix::fs::fchown(&file, Some(47_110), Some(47_111)));
            let mtime = std::time::UNIX_EPOCH + Duration::from_secs(secs);
            done("futimens", file.set_modified(mtime));
            let is_so = |file: &File| {
                let attrs = file.metadata().unwrap();
                let owner = (attrs.uid(), attrs.gid()) == (47_110, 47_111);
                let rights = owner && attrs.mode() & 0o7777 == mode;
                rights && attrs.len() == size && attrs.modified().unwrap() == mtime
            };
            assert!(is_so(&file), "{what}: {:?}", file.metadata());
            within(SEEN, "its home shows it", || is_so(&home));
            thread::sleep(SEEN);
            assert!(is_so(&file), "{what}, later: {:?}", file.metadata());
        }
    }
    for node in 0..3 {
        assert_eq!(mode_of(&cluster.at(node, "replaced")), Some(0o644), "that is another file");
    }
}

#[test]
fn a_name_that_another_node_has_removed_is_made_anew_at_once() {
    needs_forebay!();
    needs_tools!("etcd");
    // The kernel goes on with the name that it knows.
    let cluster = Cluster::start(3, &["--entry-ttl", "10s", "--attr-ttl", "10s"]);
    let [a, b, c] = [0, 1, 2].map(|node| cluster.at(node, "f"));
    append(&b, b"before").unwrap();
    cluster.gives_back(1);
    let home = File::options().write(true).open(&a).unwrap();
    append(&b, b"far").unwrap();
    cluster.flush(0);
    fs::remove_file(c).unwrap();
    drop(home);
    File::create(&b).expect("its directory is there");
    assert_eq!(read(&b).unwrap(), b"");
}

#[test]
fn a_directory_is_renamed_with_files_in_it_that_others_have_claimed() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    fs::create_dir_all(cluster.at(0, "d/sub")).unwrap();
    for (node, name) in [(0, "a"), (0, "sub/b"), (2, "c"), (1, "own")] {
        write(&cluster.at(node, format!("d/{name}")), &random(50_000, node as u64));
    }
    let home = |name: &str| cluster.stored(name).is_ok_and(|found| found.len() == 50_000);
    assert!(!home("d/a") && !home("d/c"), "they are claimed, not home");
    fs::rename(cluster.at(1, "d"), cluster.at(1, "e")).unwrap();
    let check = |round: &str| {
        for at in 0..3 {
            within(SEEN, "the old name is gone", || is_gone(&cluster.at(at, "d")));
            for (node, name) in [(0, "a"), (0, "sub/b"), (2, "c"), (1, "own")] {
                let path = cluster.at(at, format!("e/{name}"));
                let want = random(50_000, node as u64);
                let shows = || reads_as(&path, &want);
                within(SEEN, &format!("{round}: {name} on n{}", at + 1), shows);
            }
        }
    };
    check("renamed");
    // All nodes go on below the new name, and may make the old one again.
    append(&cluster.at(0, "e/log"), b"one\n").unwrap();
    append(&cluster.at(2, "e/log"), b"two\n").unwrap();
    assert_eq!(read(&cluster.at(1, "e/log")).unwrap(), b"one\ntwo\n");
    (0..3).for_each(|node| cluster.flush(node));
    check("flushed");
    assert_eq!(cluster.stored("e/sub/b").unwrap(), random(50_000, 0));
    fs::create_dir(cluster.at(2, "d")).unwrap();
    write(&cluster.at(2, "d/a"), b"another");
    within(SEEN, "the new directory shows", || reads_as(&cluster.at(0, "d/a"), b"another"));
    for node in 0..3 {
        let found = read(&cluster.at(node, "e/a")).unwrap();
        let shown = String::from_utf8_lossy(&found[..found.len().min(20)]).into_owned();
        let differs = difference(&found, &random(50_000, 0));
        assert_eq!(differs, None, "e/a on n{}: {} bytes, {shown:?}", node + 1, found.len());
    }
}

/// Of the nodes that make a name at once exactly one succeeds.
#[test]
fn of_many_who_make_one_name_exclusively_one_does() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    let mut winners = [0; 3];
    for round in 0..50 {
        let together = std::sync::Barrier::new(3);
        let made: Vec<bool> = std::thread::scope(|scope| {
            let together = &together;
            let make = |node: usize| {
                let at = cluster.at(node, format!("lock{round}"));
                scope.spawn(move || {
                    together.wait();
                    match File::create_new(at) {
                        Ok(file) => {
                            file.write_all_at(format!("n{}", node + 1).as_bytes(), 0).is_ok()
                        }
                        Err(why) => {
                            assert_eq!(why.kind(), ErrorKind::AlreadyExists, "{why}");
                            false
                        }
                    }
                })
            };
            let made: Vec<_> = (0..3).map(make).collect();
            made.into_iter().map(|made| made.join().unwrap()).collect()
        });
        let won: Vec<usize> = (0..3).filter(|node| made[*node]).collect();
        assert_eq!(won.len(), 1, "round {round}: {made:?}");
        winners[won[0]] += 1;
        let name = format!("n{}", won[0] + 1);
        for node in 0..3 {
            let at = cluster.at(node, format!("lock{round}"));
            within(PATIENCE, "its maker's word", || reads_as(&at, name.as_bytes()));
        }
    }
    proof!("{winners:?} of 50 names went to n1, n2, n3");
}

/// n2's kernel has an inode of the file from before n1 claimed it.
#[test]
fn a_file_that_was_looked_up_before_it_went_elsewhere_is_opened_there_and_here_again() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let (old, new) = (random(100_000, 1), random(100_000, 2));
    write(&cluster.at(0, "f"), &old);
    cluster.gives_back(0);
    let at = cluster.at(1, "f");
    assert_eq!(difference(&read(&at).unwrap(), &old), None);
    let home = File::options().write(true).open(cluster.at(0, "f")).unwrap();
    home.write_all_at(&new, 0).unwrap();
    let there = File::open(&at).unwrap();
    let seen_there = || {
        let mut found = vec![0; new.len()];
        there.read_exact_at(&mut found, 0).unwrap();
        difference(&found, &new)
    };
    assert_eq!(seen_there(), None);
    drop(home);
    cluster.gives_back(0);
    for _ in 0..3 {
        assert_eq!(difference(&read(&at).unwrap(), &new), None);
    }
    assert_eq!(seen_there(), None);
}

/// As the tasks of a parallel program do: one makes the file anew, all open it, even if another file had its
/// name before.
#[test]
fn nodes_that_open_a_new_file_at_once_write_parts_of_one_file() {
    needs_forebay!();
    needs_tools!("etcd");
    const PART: usize = 10_000;
    // Names live for a second: each round begins within that time.
    let cluster = Cluster::start(4, &["--preset", "hold"]);
    for (kind, name) in ["new", "again"].into_iter().enumerate() {
        for round in 0..12 {
            let first = round % 4;
            let name = if kind == 0 { format!("{name}{round}") } else { name.into() };
            drop(File::create(cluster.at(first, &name)).unwrap());
            let begin = Barrier::new(4);
            thread::scope(|scope| {
                for node in 0..4 {
                    let (at, begin) = (cluster.at(node, &name), &begin);
                    scope.spawn(move || {
                        begin.wait();
                        let mut open = File::options();
                        open.write(true).create(round % 2 == 0);
                        let file = open
                            .open(&at)
                            .unwrap_or_else(|why| panic!("n{}, {round}: {why}", node + 1));
                        file.write_all_at(&random(PART, node as u64), (node * PART) as u64)
                            .unwrap();
                    });
                }
            });
            let want: Vec<u8> = (0..4).flat_map(|node| random(PART, node)).collect();
            for node in 0..4 {
                let found = read(&cluster.at(node, &name)).unwrap();
                assert_eq!(difference(&found, &want), None, "{name}, {round}, on n{}", node + 1);
            }
            std::fs::remove_file(cluster.at((first + 1) % 4, &name)).unwrap();
        }
    }
}

/// A home that has had a file under a name which another node has changed since forgets the file with its present
/// name, and is left without a conflict.
// S-25
#[test]
fn a_removed_file_is_not_kept_for_a_name_that_another_node_has_changed() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    for (remover, how) in [(0, "unlink"), (1, "unlink"), (1, "replace")] {
        let name = |part: &str| format!("{how}-{remover}-{part}");
        write(&cluster.at(0, name("old")), &bytes());
        cluster.gives_back(0);
        fs::rename(cluster.at(1, name("old")), cluster.at(1, name("new"))).unwrap();
        within(PATIENCE, "the rename is heard of", || {
            fs::write(cluster.at(0, name("new")), b"at its home").is_ok()
        });
        match how {
            "unlink" => fs::remove_file(cluster.at(remover, name("new"))).unwrap(),
            _ => {
                write(&cluster.at(remover, name("other")), b"other");
                fs::rename(cluster.at(remover, name("other")), cluster.at(remover, name("new")))
                    .unwrap();
            }
        }
        cluster.flush(0);
        assert_eq!(cluster.status(0)["conflicted_files"], 0, "{how} by n{}", remover + 1);
        assert!(cluster.stored(name("old")).is_err());
    }
    cluster.umount(1);
    cluster.umount(0);
}
