//! Programs that map a file which is passed through to its shadow, and close it: the mapping holds the shadow, and
//! the kernel does not report it to the daemon.
// S-1, S-2, S-6

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use forebay_tests::sys::Map;
use forebay_tests::{Bed, Mounted, PATIENCE, Tier, needs_forebay, proof, sample, text, within};

const MIB: usize = 1 << 20;

/// No byte is flushed by itself.
const MOUNT: &[&str] = &["--preset", "hold", "--passthrough", "always"];

/// Makes a file of one MiB, maps it for writing and closes it.
fn mapped_and_closed(path: &Path) -> Map {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(MIB as u64).unwrap();
    let mut map = Map::shared(&file, MIB, true).unwrap();
    map.bytes().fill(b'A');
    map
}

fn passed(mounted: &Mounted, field: &str) -> bool {
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    stats["counters"][field].as_u64().unwrap_or_else(|| panic!("no {field} in {stats:#}")) > 0
}

#[test]
fn what_is_stored_after_the_close_is_flushed() {
    needs_forebay!();
    for tier in [Tier::Disk, Tier::Tmpfs(256)] {
        let bed = Bed::new(tier);
        let mounted = bed.mount(MOUNT);
        let mut map = mapped_and_closed(&mounted.at("f"));
        if !passed(&mounted, "passthrough_writes") {
            println!("SKIPPED: no passthrough here");
            return;
        }
        mounted.flush();
        mounted.evict();
        assert!(fs::read(bed.backing.join("f")).unwrap() == vec![b'A'; MIB], "{tier:?}: flushed");
        map.bytes()[..MIB / 2].fill(b'B');
        let mut want = vec![b'A'; MIB];
        want[..MIB / 2].fill(b'B');
        assert!(fs::read(mounted.at("f")).unwrap() == want, "{tier:?}: read");
        drop(map);
        // Once the mapping is gone the file can be clean again.
        within(PATIENCE, "the file is clean", || {
            mounted.flush();
            mounted.number("dirty_bytes") == 0
        });
        assert!(fs::read(bed.backing.join("f")).unwrap() == want, "{tier:?}: backing store");
        mounted.evict();
        assert!(fs::read(mounted.at("f")).unwrap() == want, "{tier:?}: from the backing store");
        mounted.umount();
    }
    proof!("stores into mappings of closed files on two tiers");
}

/// On a tier in memory a store leaves no trace: the drain looks anew in time.
// S-6
#[test]
fn what_is_stored_after_a_drain_is_drained_too() {
    needs_forebay!();
    for (tier, closes) in [(Tier::Tmpfs(256), true), (Tier::Tmpfs(256), false), (Tier::Disk, true)]
    {
        let bed = Bed::new(tier);
        let age = ["--preset", "age", "--max-age", "2s", "--settle", "100ms"];
        let mounted = bed.mount(&[&age[..], &["--passthrough", "always"]].concat());
        let mut map = mapped_and_closed(&mounted.at("f"));
        if !passed(&mounted, "passthrough_writes") {
            println!("SKIPPED: no passthrough here");
            return;
        }
        let open = (!closes)
            .then(|| File::options().read(true).write(true).open(mounted.at("f")).unwrap());
        for byte in [b'A', b'B', b'C'] {
            map.bytes().fill(byte);
            within(PATIENCE, "what was stored is on the backing store", || {
                fs::read(bed.backing.join("f")).unwrap() == vec![byte; MIB]
            });
        }
        drop((map, open));
        mounted.umount();
    }
    proof!("three stores were drained while the mapping was there");
}

/// The kernel's cached pages of a file prove nothing while a program stores into its shadow, which changes no time.
#[test]
fn pages_from_beside_a_mapping_are_not_kept() {
    needs_forebay!();
    let bed = Bed::new(Tier::Tmpfs(256));
    let mounted = bed.mount(MOUNT);
    let mut map = mapped_and_closed(&mounted.at("f"));
    if !passed(&mounted, "passthrough_writes") {
        println!("SKIPPED: no passthrough here");
        return;
    }
    // Reads through the daemon, and so through the page cache of the mount.
    let read = || {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_DSYNC);
        let mut bytes = Vec::new();
        options.open(mounted.at("f")).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    for byte in [b'A', b'B', b'C'] {
        map.bytes().fill(byte);
        assert!(read() == vec![byte; MIB], "{}", char::from(byte));
    }
    drop(map);
    assert!(read() == vec![b'C'; MIB]);
    mounted.umount();
    proof!("each open saw what was stored");
}

/// A program that opens the file beside a mapping of a closed descriptor shares its pages, however it opens the file:
/// a page of another cache would overwrite the stores.
#[test]
fn an_open_beside_a_mapping_has_the_same_pages() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(MOUNT);
    let mut map = mapped_and_closed(&mounted.at("f"));
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(libc::O_DSYNC).open(mounted.at("f"));
    let mut second = Map::shared(&file.unwrap(), MIB, true).unwrap();
    second.bytes()[0] = b'2';
    map.bytes()[100] = b'1';
    second.bytes()[200] = b'2';
    second.sync().unwrap();
    let seen = fs::read(mounted.at("f")).unwrap();
    assert_eq!([seen[0], seen[100], seen[200]], *b"212");
    drop((map, second));
    mounted.umount();
    let home = fs::read(bed.backing.join("f")).unwrap();
    assert_eq!([home[0], home[100], home[200]], *b"212");
    proof!("two mappings of one file, one of them opened with O_DSYNC");
}

#[test]
fn what_is_stored_after_the_close_survives_kill_9() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(MOUNT);
    let mut map = mapped_and_closed(&mounted.at("f"));
    let passes = passed(&mounted, "passthrough_writes");
    mounted.flush();
    if passes {
        map.bytes().fill(b'B');
    }
    mounted.crash();
    drop(map);
    let mounted = bed.mount(&[]);
    let want = vec![if passes { b'B' } else { b'A' }; MIB];
    assert!(fs::read(mounted.at("f")).unwrap() == want, "the mount");
    mounted.umount();
    assert!(fs::read(bed.backing.join("f")).unwrap() == want, "the backing store");
    proof!("stored, killed, mounted again");
}

/// All of the file is clean, and would go with its shadow.
#[test]
fn a_mapped_reader_sees_what_is_written_after_an_eviction() {
    needs_forebay!();
    for tier in [Tier::Disk, Tier::Tmpfs(256)] {
        let bed = Bed::new(tier);
        let old = sample::file(&bed.backing.join("f"), 1, MIB);
        let mounted = bed.mount(MOUNT);
        mounted.forebay(&["prefetch", text(&mounted.at("f"))]).ok();
        let mut map = Map::shared(&File::open(mounted.at("f")).unwrap(), MIB, false).unwrap();
        if !passed(&mounted, "passthrough_reads") {
            println!("SKIPPED: no passthrough here");
            return;
        }
        mounted.evict();
        let named = mounted.forebay(&["evict", text(&mounted.at("f"))]);
        assert!(named.code == Some(1) && named.stderr.contains("mapped"), "{named:?}");
        let file = File::options().write(true).open(mounted.at("f")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"new", 0).unwrap();
        drop(file);
        assert!(map.bytes()[..3] == *b"new" && map.bytes()[3..] == old[3..], "{tier:?}");
        drop(map);
        mounted.flush();
        within(PATIENCE, "nothing of it is in the tier", || {
            mounted.evict();
            mounted.cached("f") == 0
        });
        mounted.umount();
    }
    proof!("written under a mapping whose file was to be evicted, on two tiers");
}

/// Shared libraries are read like this.
#[test]
fn a_mapped_reader_keeps_its_bytes() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let old = sample::file(&bed.backing.join("f"), 1, 20 * MIB);
    let mounted = bed.mount(MOUNT);
    mounted.forebay(&["prefetch", text(&mounted.at("f"))]).ok();
    let file = File::open(mounted.at("f")).unwrap();
    let mut map = Map::shared(&file, 20 * MIB, false).unwrap();
    drop(file);
    if !passed(&mounted, "passthrough_reads") {
        println!("SKIPPED: no passthrough here");
        return;
    }
    // The dirty part stays, so the rest would be punched out of the shadow.
    let file = File::options().write(true).open(mounted.at("f")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &old[..1], 0).unwrap();
    drop(file);
    mounted.evict();
    assert!(map.bytes() == old, "evicted under a mapping");
    assert!(fs::read(mounted.at("f")).unwrap() == old);

    // Another program writes a new version: new readers see that, the old reader its own version.
    mounted.flush();
    let new = sample::file(&bed.backing.join("f"), 2, 20 * MIB);
    within(PATIENCE, "the new version is seen", || fs::read(mounted.at("f")).unwrap() == new);
    assert!(map.bytes() == old, "emptied under a mapping");
    drop(map);
    mounted.evict();
    assert!(fs::read(mounted.at("f")).unwrap() == new);
    mounted.umount();
    proof!("20 MiB mapped, evicted and replaced");
}
