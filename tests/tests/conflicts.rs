//! Another program changes, replaces or deletes backing files, with and without dirty bytes for
//! them in the tier.
// S-8

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use forebay_tests::{Bed, Mounted, PATIENCE, Tier, needs_forebay, proof, text, within};

const OURS: &[u8] = b"ours, and longer than theirs";
const THEIRS: &[u8] = b"theirs";

/// The change of another program to `f` on the backing store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behind {
    Changed,
    Replaced,
    Deleted,
}

/// The object, not a regular file, that another program puts in the place of `d/f`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Put {
    Link,
    LinkToNothing,
    Directory,
    Fifo,
    Socket,
}

impl Behind {
    fn our_back(self, backing: &Path) {
        match self {
            Behind::Changed => fs::write(backing.join("f"), THEIRS).unwrap(),
            Behind::Replaced => {
                fs::write(backing.join("aside"), THEIRS).unwrap();
                fs::rename(backing.join("aside"), backing.join("f")).unwrap();
            }
            Behind::Deleted => fs::remove_file(backing.join("f")).unwrap(),
        }
    }
}

/// Dirty bytes on the mount, other bytes behind; the flush must refuse and say so.
fn in_conflict(behind: Behind) -> (Bed, Mounted) {
    let bed = Bed::new(Tier::Disk);
    fs::write(bed.backing.join("f"), b"original").unwrap();
    fs::write(bed.backing.join("bystander"), b"original").unwrap();
    let mounted = bed.mount(&["--preset", "hold"]);
    let file = fs::File::options().write(true).open(mounted.at("f")).unwrap();
    file.write_all_at(OURS, 0).unwrap();
    drop(file);
    fs::write(mounted.at("bystander"), b"flushed all the same").unwrap();
    behind.our_back(&bed.backing);
    let out = mounted.forebay(&["flush", "--wait", text(&bed.mnt)]);
    assert_eq!(out.code, Some(4), "{behind:?}: {out:#?}");
    let at = mounted.at("f");
    let remedy = format!("settle it with `forebay resolve {} --keep ours|theirs|both`", text(&at));
    assert!(out.stderr.contains(&remedy), "{out:#?}");
    assert_eq!(out.stderr.matches("settle it").count(), 1, "{out:#?}");
    assert!(mounted.forebay(&["status", text(&bed.mnt)]).ok().stdout.contains(&remedy));
    let status = mounted.status();
    assert_eq!(status["conflicted_files"], 1, "{behind:?}: {status:#}");
    assert_eq!(
        (&status["limited_by"], &status["clean_in_secs"]),
        (&"conflicts".into(), &serde_json::Value::Null),
        "nobody knows when it is settled: {status:#}"
    );
    assert!(status["troubles"].to_string().contains("\"f\""), "{status:#}");
    let list = mounted.forebay(&["ls", "--json", text(&mounted.at("f"))]).ok().json();
    assert_eq!(list[0]["state"], "conflict", "{list:#}");
    assert_eq!(theirs(&bed.backing), (behind != Behind::Deleted).then(|| THEIRS.to_vec()));
    assert_eq!(fs::read(bed.backing.join("bystander")).unwrap(), b"flushed all the same");
    (bed, mounted)
}

fn theirs(backing: &Path) -> Option<Vec<u8>> {
    fs::read(backing.join("f")).ok()
}

fn resolve(mounted: &Mounted, keep: &str) {
    mounted.forebay(&["resolve", text(&mounted.at("f")), "--keep", keep]).ok();
    mounted.flush();
    let status = mounted.status();
    assert_eq!(status["conflicted_files"], 0, "{status:#}");
    assert_eq!(status["dirty_bytes"], 0, "{status:#}");
}

/// Another client rotates a file away while the kernel still caches its name. Method: the name is removed here, or
/// another file is renamed over it.
// S-7
#[test]
fn a_name_that_others_have_given_to_another_file_takes_no_bytes_of_ours_along() {
    needs_forebay!();
    for replaces in [false, true] {
        let bed = Bed::new(Tier::Disk);
        let mounted = bed.mount(&["--preset", "hold", "--trust", "5s"]);
        fs::write(mounted.at("f"), OURS).unwrap();
        fs::write(mounted.at("n"), b"new").unwrap();
        fs::rename(bed.backing.join("f"), bed.backing.join("f.1")).unwrap();
        fs::write(bed.backing.join("f"), THEIRS).unwrap();
        match replaces {
            true => fs::rename(mounted.at("n"), mounted.at("f")).unwrap(),
            false => fs::remove_file(mounted.at("f")).unwrap(),
        }
        let moved = mounted.at("f.1");
        within(PATIENCE, "ours are there", || fs::read(&moved).is_ok_and(|bytes| bytes == OURS));
        // The other client's rename has changed the backing file.
        mounted.forebay(&["flush", "--wait", text(&moved)]).expect(4);
        mounted.forebay(&["resolve", text(&moved), "--keep", "ours"]).ok();
        mounted.flush();
        mounted.umount();
        assert_eq!(fs::read(bed.backing.join("f.1")).unwrap(), OURS);
        assert_eq!(theirs(&bed.backing), replaces.then(|| b"new".to_vec()), "as the kernel asked");
        proof!("replaced: {replaces}");
    }
}

const ALL: [Behind; 3] = [Behind::Changed, Behind::Replaced, Behind::Deleted];

#[test]
fn keeping_ours_puts_our_bytes_on_the_backing_store() {
    needs_forebay!();
    for behind in ALL {
        let (bed, mounted) = in_conflict(behind);
        resolve(&mounted, "ours");
        assert_eq!(fs::read(mounted.at("f")).unwrap(), OURS, "{behind:?}");
        mounted.umount();
        assert_eq!(theirs(&bed.backing).unwrap(), OURS, "{behind:?}");
        proof!("{behind:?}");
    }
}

#[test]
fn keeping_theirs_leaves_the_backing_store_alone() {
    needs_forebay!();
    for behind in ALL {
        let (bed, mounted) = in_conflict(behind);
        resolve(&mounted, "theirs");
        let want = (behind != Behind::Deleted).then(|| THEIRS.to_vec());
        within(PATIENCE, "the mount shows theirs", || fs::read(mounted.at("f")).ok() == want);
        mounted.umount();
        assert_eq!(theirs(&bed.backing), want, "{behind:?}");
        proof!("{behind:?}");
    }
}

#[test]
fn keeping_both_loses_nobodys_bytes() {
    needs_forebay!();
    for behind in [Behind::Changed, Behind::Replaced] {
        let (bed, mounted) = in_conflict(behind);
        resolve(&mounted, "both");
        mounted.umount();
        let mut found: Vec<Vec<u8>> = fs::read_dir(&bed.backing)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name() != "bystander")
            .map(|entry| fs::read(entry.path()).unwrap())
            .collect();
        found.sort();
        assert_eq!(found, [OURS, THEIRS], "{behind:?}");
        assert_eq!(theirs(&bed.backing).unwrap(), THEIRS, "the name stays theirs");
        proof!("{behind:?}");
    }
}

// S-12
#[test]
fn a_conflict_holds_the_unmount_and_outlives_it_when_told_to() {
    needs_forebay!();
    let (bed, mounted) = in_conflict(Behind::Changed);
    let out = mounted.umount_with(&["--timeout", "20s"]);
    assert_eq!(out.code, Some(4), "{out:#?}");
    assert!(out.text().contains('f'), "the file is named: {out:#?}");
    assert_eq!(mounted.umount_with(&["--keep-dirty"]).code, Some(0));
    mounted.assert_gone();
    assert_eq!(theirs(&bed.backing).unwrap(), THEIRS);
    let mounted = bed.mount(&["--max-age", "100ms"]);
    within(PATIENCE, "the conflict is found again", || mounted.status()["conflicted_files"] == 1);
    assert_eq!(theirs(&bed.backing).unwrap(), THEIRS);
    resolve(&mounted, "ours");
    mounted.umount();
    assert_eq!(theirs(&bed.backing).unwrap(), OURS);
    proof!("kept over an unmount, then settled");
}

impl Put {
    fn over(self, path: &Path) {
        fs::remove_file(path).unwrap();
        match self {
            Put::Link => {
                fs::write(path.with_file_name("target"), THEIRS).unwrap();
                std::os::unix::fs::symlink("target", path).unwrap();
            }
            Put::LinkToNothing => std::os::unix::fs::symlink("/nowhere", path).unwrap(),
            Put::Directory => {
                fs::create_dir(path).unwrap();
                fs::write(path.join("inside"), THEIRS).unwrap();
            }
            Put::Fifo => forebay_tests::sys::mkfifo(path, 0o600).unwrap(),
            Put::Socket => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        }
    }
}

/// An object that is no regular file is never overwritten: if it has the name of a file with dirty
/// bytes that is a conflict, and an unmount says so until it is settled.
#[test]
fn a_file_replaced_by_what_is_no_file_is_a_conflict_that_can_be_settled() {
    needs_forebay!();
    let puts = [Put::Link, Put::LinkToNothing, Put::Directory, Put::Fifo, Put::Socket];
    for (put, keep) in puts.iter().flat_map(|put| ["ours", "theirs", "both"].map(|k| (*put, k))) {
        let bed = Bed::new(Tier::Disk);
        fs::create_dir(bed.backing.join("d")).unwrap();
        let there = bed.backing.join("d/f");
        fs::write(&there, b"original").unwrap();
        let mounted = bed.mount(&["--preset", "hold"]);
        fs::write(mounted.at("d/f"), OURS).unwrap();
        put.over(&there);
        let kind = fs::symlink_metadata(&there).unwrap().file_type();
        let out = mounted.umount_with(&["--timeout", "20s"]);
        assert_eq!(out.code, Some(4), "{put:?}: {out:#?}");
        assert_eq!(mounted.number("conflicted_files"), 1, "{put:?}");
        assert_eq!(fs::symlink_metadata(&there).unwrap().file_type(), kind, "{put:?}: untouched");
        mounted.forebay(&["resolve", text(&mounted.at("d/f")), "--keep", keep]).ok();
        mounted.umount();
        if keep != "theirs" {
            let ours = if keep == "ours" { "d/f" } else { "d/f.forebay-ours-1" };
            assert_eq!(fs::read(bed.backing.join(ours)).unwrap(), OURS, "{put:?}");
        }
        if keep != "ours" {
            assert_eq!(fs::symlink_metadata(&there).unwrap().file_type(), kind, "{put:?}: {keep}");
        }
        if put == Put::Directory {
            let theirs = if keep == "ours" { "d/f.forebay-theirs-1" } else { "d/f" };
            let inside = bed.backing.join(theirs).join("inside");
            assert_eq!(fs::read(inside).unwrap(), THEIRS, "{keep}");
        }
        proof!("{put:?}, kept {keep}");
    }
}

/// No byte is written through a link that took the place of a directory.
#[test]
fn a_directory_replaced_by_a_link_makes_conflicts_of_its_dirty_files() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    fs::create_dir(bed.backing.join("d")).unwrap();
    fs::write(bed.backing.join("d/f"), b"original").unwrap();
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::write(mounted.at("d/f"), OURS).unwrap();
    fs::rename(bed.backing.join("d"), bed.backing.join("moved")).unwrap();
    std::os::unix::fs::symlink("moved", bed.backing.join("d")).unwrap();
    let out = mounted.umount_with(&["--timeout", "20s"]);
    assert_eq!((out.code, mounted.number("conflicted_files")), (Some(4), 1), "{out:#?}");
    mounted.forebay(&["resolve", text(&mounted.at("d/f")), "--keep", "theirs"]).ok();
    mounted.umount();
    assert_eq!(fs::read(bed.backing.join("moved/f")).unwrap(), b"original");
    proof!("a conflict, settled");
}

/// The conflict is found when the file is opened, too, not only when it is flushed.
#[test]
fn a_conflict_found_after_a_crash_loses_nothing() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    fs::write(bed.backing.join("f"), b"original").unwrap();
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::write(mounted.at("f"), OURS).unwrap();
    mounted.kill9();
    mounted.crash();
    Behind::Changed.our_back(&bed.backing);
    let mounted = bed.mount(&["--preset", "hold"]);
    let out = mounted.forebay(&["flush", "--wait", text(&bed.mnt)]);
    assert_eq!(out.code, Some(4), "{out:#?}");
    assert_eq!(theirs(&bed.backing).unwrap(), THEIRS);
    resolve(&mounted, "ours");
    mounted.umount();
    assert_eq!(theirs(&bed.backing).unwrap(), OURS);
    proof!("conflict after a crash");
}

// S-1
#[test]
fn without_dirty_bytes_the_next_open_sees_what_others_wrote() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    // The kernel caches names and attributes for a second; the rest is for a busy machine.
    let limit = Duration::from_secs(20);
    for round in 0..20u32 {
        let text = format!("round {round} {}", "x".repeat(round as usize * 300));
        fs::write(bed.backing.join("f"), &text).unwrap();
        within(limit, "the new bytes are seen", || {
            fs::read_to_string(mounted.at("f")).is_ok_and(|now| now == text)
        });
        if round % 5 == 4 {
            fs::remove_file(bed.backing.join("f")).unwrap();
            within(limit, "the file is gone", || !mounted.at("f").exists());
        }
    }
    // Same size, changed in place.
    fs::write(bed.backing.join("same"), b"aaaa").unwrap();
    within(limit, "first", || fs::read(mounted.at("same")).is_ok_and(|b| b == b"aaaa"));
    fs::write(bed.backing.join("same"), b"bbbb").unwrap();
    within(limit, "second", || fs::read(mounted.at("same")).is_ok_and(|b| b == b"bbbb"));
    // A directory that other programs fill.
    fs::create_dir(bed.backing.join("d")).unwrap();
    for i in 0..30 {
        fs::write(bed.backing.join(format!("d/{i}")), b"x").unwrap();
    }
    within(limit, "the names are seen", || {
        fs::read_dir(mounted.at("d")).is_ok_and(|list| list.count() == 30)
    });
    assert_eq!(mounted.number("conflicted_files"), 0);
    mounted.umount();
    proof!("20 changes behind our back seen");
}

/// The kernel has attributes that it believes for longer than the test takes.
// S-1
#[test]
fn an_open_reads_to_the_end_that_others_gave_the_file() {
    needs_forebay!();
    for passthrough in ["auto", "off"] {
        let bed = Bed::new(Tier::Disk);
        let mounted = bed.mount(&["--trust", "1h", "--passthrough", passthrough]);
        for len in [0, 100, 5000, 70] {
            fs::write(bed.backing.join("f"), vec![b'x'; len]).unwrap();
            assert_eq!(fs::read(mounted.at("f")).unwrap().len(), len, "{passthrough}");
            assert_eq!(fs::metadata(mounted.at("f")).unwrap().len(), len as u64, "{passthrough}");
        }
        mounted.umount();
    }
    proof!("read to four ends");
}

/// The mount's own flush must never be mistaken for another program's change, however often a file
/// is written, flushed, touched and renamed.
#[test]
fn our_own_flushes_are_no_conflicts() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mut mounted = bed.mount(&["--max-age", "50ms"]);
    for round in 0..60u64 {
        let file =
            fs::File::options().create(true).truncate(false).write(true).open(mounted.at("f"));
        file.unwrap().write_all_at(&round.to_le_bytes(), round * 100).unwrap();
        match round % 6 {
            0 => mounted.flush(),
            1 => forebay_tests::sys::utimens(&mounted.at("f"), (1, 2), (3, 4)).unwrap(),
            2 => fs::rename(mounted.at("f"), mounted.at("g"))
                .and_then(|()| fs::rename(mounted.at("g"), mounted.at("f")))
                .unwrap(),
            3 => forebay_tests::sys::set_xattr(&mounted.at("f"), "user.n", &[round as u8], 0)
                .unwrap(),
            4 => mounted.evict(),
            _ if round % 12 == 5 => {
                mounted.umount();
                mounted = bed.mount(&["--max-age", "50ms"]);
            }
            _ => {
                mounted.kill9();
                mounted.crash();
                mounted = bed.mount(&["--max-age", "50ms"]);
            }
        }
    }
    mounted.flush();
    let status = mounted.status();
    assert_eq!(status["conflicted_files"], 0, "{status:#}");
    mounted.umount();
    let bytes = fs::read(bed.backing.join("f")).unwrap();
    for round in 0..60u64 {
        let at = (round * 100) as usize;
        assert_eq!(bytes[at..at + 8], round.to_le_bytes(), "round {round}");
    }
    proof!("60 rounds without a conflict");
}

/// The kernel's pages outlive discarded bytes: an open descriptor, and the next open, must not read them. Size and
/// times are equal on both sides, so that no version tells them apart.
// S-1
#[test]
fn no_cache_serves_what_an_operator_has_thrown_away() {
    needs_forebay!();
    for settle in ["purge", "theirs"] {
        let bed = Bed::new(Tier::Disk);
        fs::write(bed.backing.join("f"), b"original").unwrap();
        let mounted = bed.mount(&["--preset", "hold", "--passthrough", "off"]);
        let at = mounted.at("f");
        let file = fs::File::options().read(true).write(true).open(&at).unwrap();
        let told = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"from us!", 0).unwrap();
        file.set_modified(told).unwrap();
        let read = |file: &fs::File| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(&read(&file), b"from us!");
        match settle {
            "purge" => drop(mounted.forebay(&["purge", "--yes", text(&at)]).ok()),
            _ => {
                fs::write(bed.backing.join("f"), b"theirs!!").unwrap();
                mounted.forebay(&["flush", "--wait", text(&at)]).expect(4);
                mounted.forebay(&["resolve", text(&at), "--keep", settle]).ok();
            }
        }
        let wanted: &[u8; 8] = if settle == "purge" { b"original" } else { b"theirs!!" };
        assert_eq!(&read(&file), wanted, "{settle}: by the open descriptor");
        drop(file);
        assert_eq!(&read(&fs::File::open(&at).unwrap()), wanted, "{settle}: by a new one");
        mounted.umount();
        proof!("{settle}");
    }
}
