//! Complete files that programs write past the daemon: the written blocks are found by content, and no others
//! are flushed.
// S-2, S-6, S-8

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use forebay_tests::sys::Map;
use forebay_tests::{Bed, Mounted, PATIENCE, Tier, is_alive, needs_forebay, proof, text, within};

const BLOCK: usize = 16 << 10;

const BLOCKS: usize = 512;

/// No byte is flushed by itself.
const MOUNT: &[&str] = &["--preset", "hold", "--passthrough", "always"];

/// Makes a file of differing blocks on the backing store, and reads it through the mount.
fn cached(bed: &Bed, mounted: &Mounted, name: &str) -> Vec<u8> {
    let bytes: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK * 7 + at % 251) as u8).collect();
    fs::write(bed.backing.join(name), &bytes).unwrap();
    assert!(fs::read(mounted.at(name)).unwrap() == bytes, "it is read through the mount");
    mounted.keeps_of(name, bytes.len() as u64);
    bytes
}

fn counter(mounted: &Mounted, name: &str) -> u64 {
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    stats["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats:#}"))
}

/// Flushes, and returns the number of copied bytes.
fn flushed(mounted: &Mounted) -> u64 {
    let before = counter(mounted, "flushed_bytes");
    mounted.flush();
    counter(mounted, "flushed_bytes") - before
}

fn for_writing(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn what_is_written_to_a_complete_file_is_all_that_goes_home() {
    needs_forebay!();
    for tier in [Tier::Disk, Tier::Xfs(512), Tier::Tmpfs(512)] {
        let bed = Bed::new(tier);
        let mounted = bed.mount(MOUNT);
        let mut want = cached(&bed, &mounted, "f");
        let before = counter(&mounted, "passthrough_writes");
        let file = for_writing(&mounted.at("f"));
        if counter(&mounted, "passthrough_writes") == before {
            println!("SKIPPED: no passthrough here");
            return;
        }
        for (at, byte) in [(5, b'a'), (100 * BLOCK + 1, b'b'), (511 * BLOCK, b'c')] {
            file.write_all_at(&[byte], at as u64).unwrap();
            want[at] = byte;
        }
        assert_eq!(flushed(&mounted), 3 * BLOCK as u64, "{tier:?}: while it is open");
        file.write_all_at(b"d", 9 * BLOCK as u64).unwrap();
        want[9 * BLOCK] = b'd';
        file.sync_all().unwrap();
        drop(file);
        within(PATIENCE, "its close is known", || mounted.number("passthrough_writers") == 0);
        assert_eq!(flushed(&mounted), BLOCK as u64, "{tier:?}: after its close");
        assert_eq!(mounted.number("dirty_bytes"), 0, "{tier:?}");
        assert!(fs::read(bed.backing.join("f")).unwrap() == want, "{tier:?}: backing store");
        assert!(fs::read(mounted.at("f")).unwrap() == want, "{tier:?}: mount");
        // After eviction and a new fetch the bytes are the same.
        mounted.evict();
        assert!(fs::read(mounted.at("f")).unwrap() == want, "{tier:?}: from the backing store");
        mounted.umount();
    }
    proof!("four blocks of 512 went home from three tiers");
}

#[test]
fn a_mapping_that_is_kept_is_looked_at_again() {
    needs_forebay!();
    for tier in [Tier::Disk, Tier::Tmpfs(512)] {
        let bed = Bed::new(tier);
        let mounted = bed.mount(MOUNT);
        let mut want = cached(&bed, &mounted, "f");
        let file = for_writing(&mounted.at("f"));
        let mut map = Map::shared(&file, BLOCKS * BLOCK, true).unwrap();
        drop(file);
        for (at, byte) in [(7, b'1'), (7, b'2'), (300 * BLOCK, b'3')] {
            map.bytes()[at] = byte;
            want[at] = byte;
            assert_eq!(flushed(&mounted), BLOCK as u64, "{tier:?}: {byte}");
            assert!(fs::read(bed.backing.join("f")).unwrap() == want, "{tier:?}: {byte}");
        }
        map.bytes()[8] = b'4';
        want[8] = b'4';
        drop(map);
        within(PATIENCE, "the file is clean", || {
            mounted.flush();
            mounted.number("dirty_bytes") == 0
        });
        assert!(fs::read(bed.backing.join("f")).unwrap() == want, "{tier:?}: in the end");
        mounted.umount();
    }
    proof!("four stores into mappings of closed files on two tiers");
}

#[test]
fn a_writer_that_writes_nothing_makes_nothing_dirty() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(MOUNT);
    let bytes = cached(&bed, &mounted, "f");
    let before = fs::metadata(bed.backing.join("f")).unwrap();
    drop(for_writing(&mounted.at("f")));
    within(PATIENCE, "its close is known", || mounted.number("passthrough_writers") == 0);
    // Where times come from the last tick, one more look is needed.
    assert_eq!(flushed(&mounted), 0);
    use std::os::unix::fs::MetadataExt;
    let after = fs::metadata(bed.backing.join("f")).unwrap();
    assert_eq!((before.ctime(), before.ctime_nsec()), (after.ctime(), after.ctime_nsec()));
    // Another program changes the file meanwhile: its bytes stay.
    drop(for_writing(&mounted.at("f")));
    within(PATIENCE, "its close is known", || mounted.number("passthrough_writers") == 0);
    mounted.flush();
    for_writing(&bed.backing.join("f")).write_all_at(b"theirs", 0).unwrap();
    let seen = fs::read(mounted.at("f")).unwrap();
    assert!(seen.starts_with(b"theirs") && seen[6..] == bytes[6..]);
    mounted.umount();
    proof!("two opens for writing that wrote nothing");
}

#[test]
fn a_kill_beside_a_writer_loses_nothing() {
    needs_forebay!();
    for tier in [Tier::Disk, Tier::Tmpfs(512)] {
        let bed = Bed::new(tier);
        let mounted = bed.mount(MOUNT);
        let mut want = cached(&bed, &mounted, "f");
        let file = for_writing(&mounted.at("f"));
        file.write_all_at(b"before the kill", 30 * BLOCK as u64).unwrap();
        want[30 * BLOCK..30 * BLOCK + 15].copy_from_slice(b"before the kill");
        mounted.kill9();
        // The descriptor still leads to the shadow.
        file.write_all_at(b"after it", 40 * BLOCK as u64).unwrap();
        want[40 * BLOCK..40 * BLOCK + 8].copy_from_slice(b"after it");
        drop(file);
        mounted.crash();
        let mounted = bed.mount(MOUNT);
        assert!(fs::read(mounted.at("f")).unwrap() == want, "{tier:?}: mount");
        assert_eq!(flushed(&mounted), 2 * BLOCK as u64, "{tier:?}");
        assert!(fs::read(bed.backing.join("f")).unwrap() == want, "{tier:?}: backing store");
        mounted.umount();
    }
    proof!("two writes beside a kill on two tiers");
}

/// `umount -f` ends the session under a program that has its file open, and writes on.
#[test]
fn writes_after_the_session_was_cut_off_are_not_forgotten() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(MOUNT);
    let mut want = cached(&bed, &mounted, "f");
    let file = File::options().write(true).open(mounted.at("f")).unwrap();
    file.write_all_at(b"before it", 30 * BLOCK as u64).unwrap();
    want[30 * BLOCK..30 * BLOCK + 9].copy_from_slice(b"before it");
    let busy = Command::new("umount").arg("-f").arg(&bed.mnt).output().unwrap();
    assert!(!busy.status.success(), "a file is open");
    within(PATIENCE, "the daemon ends", || !is_alive(mounted.pid));
    file.write_all_at(b"after it", 40 * BLOCK as u64).unwrap();
    want[40 * BLOCK..40 * BLOCK + 8].copy_from_slice(b"after it");
    drop(file);
    drop(mounted);
    let mounted = bed.mount(MOUNT);
    assert!(fs::read(mounted.at("f")).unwrap() == want, "mount");
    mounted.flush();
    assert!(fs::read(bed.backing.join("f")).unwrap() == want, "backing store");
    mounted.umount();
    proof!("two writes beside the end of a session");
}

/// Flips a bit in the one shadow file of this length.
fn damage(dir: &Path, len: u64, at: u64) -> bool {
    fs::read_dir(dir).unwrap().flatten().any(|entry| {
        let path = entry.path();
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            return damage(&path, len, at);
        }
        if found.len() != len {
            return false;
        }
        let file = for_writing(&path);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        true
    })
}

/// A program that opens a file for writing, and writes nothing, does not cause bad bytes of the tier to be
/// flushed.
// S-2 S-11
#[test]
fn a_bit_that_was_flipped_does_not_go_home_by_an_open_that_writes_nothing() {
    needs_forebay!();
    for tier in [Tier::Disk, Tier::Xfs(512)] {
        let bed = Bed::new(tier);
        let mounted = bed.mount(MOUNT);
        let bytes = cached(&bed, &mounted, "f");
        mounted.umount();
        assert!(damage(&bed.tier.join("shadow"), bytes.len() as u64, 9), "there is a shadow");
        let mounted = bed.mount(MOUNT);
        let before = counter(&mounted, "passthrough_writes");
        let file = for_writing(&mounted.at("f"));
        if counter(&mounted, "passthrough_writes") == before {
            println!("SKIPPED: no passthrough here");
            return;
        }
        let mut bad = [0];
        file.read_exact_at(&mut bad, 9).unwrap();
        assert_ne!(bad[0], bytes[9], "it is damaged");
        assert_eq!(flushed(&mounted), 0, "{tier:?}: while it is open");
        drop(file);
        within(PATIENCE, "its close is known", || mounted.number("passthrough_writers") == 0);
        assert_eq!(flushed(&mounted), 0, "{tier:?}: after its close");
        assert!(fs::read(bed.backing.join("f")).unwrap() == bytes, "{tier:?}: backing store");
        mounted.umount();
        let tier = text(&bed.tier).to_string();
        let found = bed.forebay(&["check", "--read-data", &tier]);
        assert!(found.code == Some(1) && found.stdout.contains("f: bytes 0 to"), "{found:#?}");
    }
    proof!("one bad bit stayed where it was on two tiers");
}

/// S11: a clean copy that went bad on the tier is found by the digests of the bytes read from the store, and
/// dropped by hand.
// S-11
#[test]
fn check_reads_the_data_and_finds_the_bit_that_was_flipped() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(MOUNT);
    let mut want = cached(&bed, &mounted, "f");
    fs::write(mounted.at("dirty"), vec![7; 3 * BLOCK]).unwrap();
    // A block that was flushed after a look counts like one that was read.
    for_writing(&mounted.at("f")).write_all_at(b"x", 5 * BLOCK as u64).unwrap();
    want[5 * BLOCK] = b'x';
    within(PATIENCE, "its close is known", || mounted.number("passthrough_writers") == 0);
    mounted.forebay(&["flush", text(&mounted.at("f"))]).ok();
    mounted.umount_with(&["--keep-dirty"]).ok();
    let tier = text(&bed.tier).to_string();
    let len = want.len() as u64;
    let sound = bed.forebay(&["check", "--read-data", "--json", &tier]).ok().json();
    assert_eq!(sound["data"]["read_bytes"], len + 3 * BLOCK as u64, "{sound:#}");
    assert_eq!(sound["data"]["verified_bytes"], len, "the dirty file is nowhere else: {sound:#}");
    assert_eq!(sound["data"]["uncompared_bytes"], 3 * BLOCK as u64, "{sound:#}");

    assert!(damage(&bed.tier.join("shadow"), len, 5 * BLOCK as u64 + 9), "there is a shadow");
    assert_eq!(bed.forebay(&["check", &tier]).code, Some(0), "without a look at the data");
    let out = bed.forebay(&["check", "--read-data", &tier]);
    let named = format!("f: bytes {} to {}", 5 * BLOCK, 6 * BLOCK);
    assert!(out.code == Some(1) && out.stdout.contains(&named), "{out:#?}");
    assert!(out.stdout.contains("forebay evict"), "{out:#?}");

    let mounted = bed.mount(MOUNT);
    mounted.forebay(&["evict", text(&mounted.at("f"))]).ok();
    assert!(fs::read(mounted.at("f")).unwrap() == want, "fetched again");
    mounted.umount();
    bed.forebay(&["check", "--read-data", &tier]).ok();
    proof!("one bit of {len} bytes was found");
}
