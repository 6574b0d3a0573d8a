//! Room on the backing store: dirty bytes here count as used there, and a flush that does not fit is
//! not begun.
// S-7, S-9

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_tests::{
    Bed, Mounted, PATIENCE, Rng, Tier, needs_forebay, proof, sample, sys, text, within,
};

const MIB: u64 = 1 << 20;

/// Files of 8 MiB, the first the oldest; the store has room for two.
const LEN: usize = 8 << 20;

fn free(path: &Path) -> u64 {
    let said = sys::statvfs(path);
    said.f_bavail * said.f_frsize
}

fn full_store(flags: &[&str]) -> (Bed, Mounted) {
    let mut bed = Bed::new(Tier::Tmpfs(256));
    bed.backing_in_memory(20);
    let mounted = bed.mount(&[&["--preset", "hold"], flags].concat());
    // Not in the order of names.
    for i in [3, 1, 4, 0, 2] {
        sample::file(&mounted.at(format!("f{i}")), i, LEN);
    }
    (bed, mounted)
}

fn whole(root: &Path, i: u64) -> bool {
    fs::read(root.join(format!("f{i}"))).unwrap() == Rng::new(i).bytes(LEN)
}

fn length(root: &Path, i: u64) -> u64 {
    fs::metadata(root.join(format!("f{i}"))).unwrap().len()
}

fn flush_that_fails(mounted: &Mounted) {
    let out = mounted.forebay(&["flush", "--wait", text(&mounted.path)]);
    assert_eq!(out.code, Some(1), "{out:#?}");
    assert!(out.stderr.contains("room"), "why is told: {out:#?}");
}

#[test]
fn what_is_dirty_is_not_free_on_the_backing_store() {
    needs_forebay!();
    let mut bed = Bed::new(Tier::Tmpfs(256));
    bed.backing_in_memory(64);
    let mounted = bed.mount(&["--preset", "hold"]);
    let before = free(&bed.mnt);
    for i in 0..3 {
        sample::file(&mounted.at(format!("f{i}")), i, LEN);
    }
    let less = before - free(&bed.mnt);
    assert!((24 * MIB..25 * MIB).contains(&less), "{less} bytes less are free");
    mounted.flush();
    let less = before - free(&bed.mnt);
    assert!((24 * MIB..25 * MIB).contains(&less), "{less} bytes less are free after the flush");
    // Overwriting existing bytes takes no room.
    sample::file(&mounted.at("aside"), 9, LEN);
    mounted.flush();
    let before = free(&bed.mnt);
    let file = fs::File::options().write(true).open(mounted.at("f0")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 4 * MIB as usize], 0).unwrap();
    drop(file);
    assert_eq!(free(&bed.mnt), before);
    mounted.umount();
    proof!("24 MiB were counted while they were dirty, and once");
}

#[test]
fn on_a_store_without_room_for_all_the_oldest_files_are_whole() {
    needs_forebay!();
    let (bed, mounted) = full_store(&[]);
    assert_eq!(free(&bed.mnt), 0, "40 MiB are on their way to 20");
    flush_that_fails(&mounted);
    assert!(whole(&bed.backing, 3) && whole(&bed.backing, 1), "the oldest two");
    for i in [4, 0, 2] {
        assert_eq!(length(&bed.backing, i), 0, "f{i} was not begun");
    }
    assert!((0..5).all(|i| whole(&bed.mnt, i)), "all are whole here");
    fs::remove_file(mounted.at("f3")).unwrap();
    // The bytes of the removed file are freed a moment later.
    within(PATIENCE, "the next oldest has its place", || {
        flush_that_fails(&mounted);
        whole(&bed.backing, 4)
    });
    assert!([0, 2].iter().all(|i| length(&bed.backing, *i) == 0), "nor are those begun");
    for i in [0, 1] {
        fs::remove_file(mounted.at(format!("f{i}"))).unwrap();
    }
    within(PATIENCE, "the last has a place", || {
        mounted.forebay(&["flush", "--wait", text(&bed.mnt)]).code == Some(0)
    });
    mounted.umount();
    assert!(whole(&bed.backing, 2) && whole(&bed.backing, 4));
    proof!("whole files in the order of their age");
}

/// A refusal in the middle of a file, as by a quota that the store does not report.
#[test]
fn a_refusal_in_the_middle_of_a_file_gives_its_room_back() {
    needs_forebay!();
    let rules = std::env::temp_dir().join(format!("forebay-room-{}", std::process::id()));
    let refused = r#"{"op": "write_at", "path": "f*", "fail": "EDQUOT", "skip": 12}"#;
    let silent = r#"{"op": "statfs", "fail": "EIO"}"#;
    fs::write(&rules, format!(r#"{{"rules": [{refused}, {silent}]}}"#)).unwrap();
    let (bed, mounted) = full_store(&["--fault", text(&rules)]);
    let out = mounted.forebay(&["flush", "--wait", text(&mounted.path)]);
    assert_eq!(out.code, Some(1), "{out:#?}");
    let parts = |i: &u64| ![0, LEN as u64].contains(&length(&bed.backing, *i));
    let found: Vec<u64> = (0..5).filter(parts).collect();
    assert!(found.is_empty(), "parts of {found:?}");
    // The files of other owners are not affected.
    let other = mounted.at("theirs");
    fs::write(&other, "others have room").unwrap();
    std::os::unix::fs::chown(&other, Some(4321), None).unwrap();
    mounted.forebay(&["flush", "--wait", text(&other)]).ok();
    fs::write(&rules, r#"{"rules": []}"#).unwrap();
    for i in [0, 1, 2] {
        fs::remove_file(mounted.at(format!("f{i}"))).unwrap();
    }
    within(PATIENCE, "the others have a place", || {
        mounted.forebay(&["flush", "--wait", text(&bed.mnt)]).code == Some(0)
    });
    mounted.umount();
    assert!(whole(&bed.backing, 3) && whole(&bed.backing, 4));
    fs::remove_file(&rules).unwrap();
    proof!("no part of a file was left");
}

/// A size beyond the available room is reported with the size used instead; two tiers on one file
/// system know of each other and share its room.
#[test]
fn a_size_that_cannot_be_had_is_told_and_a_shared_file_system_is_shared() {
    needs_forebay!();
    let bed = Bed::new(Tier::Tmpfs(256));
    let out = bed.try_mount(&["--tier-size", "100PiB"]).ok();
    assert!(out.stderr.contains("tier-size: gets") && out.stderr.contains("MiB"), "{out:#?}");
    let mounted = bed.mounted();
    assert_eq!(mounted.number("tier_shared_with"), 0);
    let alone = mounted.number("tier_bytes");
    let (other, at) = (bed.tier.with_file_name("other-tier"), bed.dir("other-mnt"));
    let serve = |what: &[&str]| bed.forebay(what).ok();
    let backing = bed.dir("other-store");
    let args = ["mount", text(&backing), text(&at), "--tier", text(&other), "--preset", "hold"];
    serve(&args);
    sample::file(&at.join("f"), 1, 100 << 20);
    assert_eq!(mounted.number("tier_shared_with"), 1);
    let status = mounted.forebay(&["status", text(&bed.mnt)]).ok();
    assert!(status.stdout.contains("1 other tier"), "{status:#?}");
    within(PATIENCE, "what the other uses is not ours", || {
        mounted.number("tier_bytes") < alone - 90 * MIB
    });
    serve(&["umount", text(&at)]);
    mounted.umount();
    proof!("told, and shared");
}

/// Clean bytes are not evicted for it, and the answer comes at once.
#[test]
fn a_reservation_larger_than_the_tier_evicts_nothing() {
    needs_forebay!();
    let mut bed = Bed::new(Tier::Tmpfs(128));
    bed.backing_in_memory(1024);
    sample::file(&bed.backing.join("cached"), 1, 40 << 20);
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::read(mounted.at("cached")).unwrap();
    mounted.keeps(40 * MIB);
    let used = mounted.number("used_bytes");
    let huge = fs::File::create(mounted.at("huge")).unwrap();
    let began = Instant::now();
    let room = free(&bed.backing);
    sys::fallocate(&huge, 0, 0, room / 2).unwrap();
    assert_eq!(huge.metadata().unwrap().len(), room / 2, "the size is set");
    let refused = sys::fallocate(&huge, 0, 0, room * 2).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(huge.metadata().unwrap().len(), room / 2);
    // A reservation that fits is kept, as long as nothing has to be evicted for it.
    let small = fs::File::create(mounted.at("small")).unwrap();
    sys::fallocate(&small, 0, 0, 20 * MIB).unwrap();
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    assert_eq!(stats["counters"]["evicted_bytes"].as_u64(), Some(0), "{stats:#}");
    let status = mounted.status();
    assert!(mounted.number("used_bytes") >= used + 20 * MIB, "it is reserved: {status:#}");
    std::os::unix::fs::FileExt::write_all_at(&huge, b"there", room / 4).unwrap();
    drop((huge, small));
    fs::remove_file(mounted.at("huge")).unwrap();
    mounted.umount();
    proof!("{} MiB were served, nothing was evicted", room >> 21);
}
