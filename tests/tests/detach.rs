//! Detaching the tier of a mount that goes on serving, and attaching it again.
// S-20

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use forebay_tests::{
    Bed, Mounted, PATIENCE, Tier, drop_caches, needs_forebay, proof, sample, text, within,
};

const MIB: usize = 1 << 20;

/// The space that a file system may use for a few files that are all hole.
const EMPTY_MAX: u64 = 32 << 10;

/// Nothing is flushed before a command asks for it, and existing files are written through the
/// daemon.
const HOLD: &[&str] = &["--preset", "hold", "--max-age", "1h", "--passthrough", "new"];

fn counter(mounted: &Mounted, name: &str) -> u64 {
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    stats["counters"][name].as_u64().unwrap_or_else(|| panic!("{name} in {stats}"))
}

fn detach(mounted: &Mounted, flags: &[&str]) -> forebay_tests::Out {
    mounted.forebay(&[&["detach", text(&mounted.path)], flags].concat())
}

fn attach(mounted: &Mounted) -> forebay_tests::Out {
    mounted.forebay(&["attach", text(&mounted.path)])
}

fn attachment(mounted: &Mounted) -> String {
    mounted.status()["attachment"].as_str().unwrap().to_string()
}

/// Whether the kernel passes files through, judged by its version: Linux 6.9 and later do.
fn kernel_passes_files() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let number: Vec<u32> = release.split(['.', '-']).map_while(|n| n.trim().parse().ok()).collect();
    number >= vec![6, 9]
}

/// The bytes that shadow files in the tier occupy.
fn shadow_bytes(tier: &Path) -> u64 {
    let mut bytes = 0;
    for dir in fs::read_dir(tier.join("shadow")).unwrap() {
        for file in fs::read_dir(dir.unwrap().path()).unwrap() {
            bytes += file.unwrap().metadata().map_or(0, |meta| meta.blocks() * 512);
        }
    }
    bytes
}

#[test]
fn programs_go_on_through_a_detach_and_an_attach() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let old = sample::file(&bed.backing.join("old"), 1, 4 * MIB);
    sample::file(&bed.backing.join("pinned"), 2, MIB);
    let mounted = bed.mount(HOLD);
    fs::read(mounted.at("old")).unwrap();
    mounted.forebay(&["pin", text(&mounted.at("pinned"))]).ok();
    let new = sample::file(&mounted.at("new"), 3, 8 * MIB);
    // A program has its file open all the time, through the daemon.
    let mut log = File::options().append(true).open(mounted.at("old")).unwrap();
    log.write_all(b"one").unwrap();
    assert!(shadow_bytes(&bed.tier) >= 13 * MIB as u64);
    let told = detach(&mounted, &[]).ok().stdout;
    assert!(told.contains("waits for") && told.contains("no data"), "{told}");
    assert_eq!(attachment(&mounted), "detached");
    assert_eq!((mounted.number("used_bytes"), mounted.number("dirty_files")), (0, 0));
    assert!(shadow_bytes(&bed.tier) <= EMPTY_MAX);
    assert_eq!(fs::read(bed.backing.join("new")).unwrap(), new);
    // Reads are right, and are not kept; writes are on the backing store when they return.
    drop_caches();
    assert!(fs::read(mounted.at("new")).unwrap() == new);
    assert!(fs::read(mounted.at("old")).unwrap() == [&old[..], b"one"].concat());
    log.write_all(b"two").unwrap();
    let file = File::create(mounted.at("fresh")).unwrap();
    file.write_all_at(b"fresh", 0).unwrap();
    assert!(fs::read(bed.backing.join("old")).unwrap().ends_with(b"onetwo"));
    assert_eq!(fs::read(bed.backing.join("fresh")).unwrap(), b"fresh");
    file.sync_all().unwrap();
    // A file without a name is treated the same.
    let mut nameless = File::options().read(true).append(true).open(mounted.at("fresh")).unwrap();
    fs::remove_file(mounted.at("fresh")).unwrap();
    nameless.write_all(b" and gone").unwrap();
    let mut found = String::new();
    nameless.rewind().unwrap();
    nameless.read_to_string(&mut found).unwrap();
    assert_eq!(found, "fresh and gone");
    drop((file, nameless));
    assert_eq!(mounted.number("used_bytes"), 0);
    assert!(shadow_bytes(&bed.tier) <= EMPTY_MAX);
    assert!(counter(&mounted, "read_bypass_detached") > 0);
    assert!(counter(&mounted, "write_bypass_detached") > 0);
    let shown = mounted.forebay(&["status", text(&mounted.path)]).ok().stdout;
    assert!(shown.contains("DETACHED"), "{shown}");
    let screen = mounted.forebay(&["top", "--once", text(&mounted.path)]).ok().stdout;
    assert!(screen.contains("fast tier: detached"), "{screen}");
    assert!(detach(&mounted, &[]).expect(2).stderr.contains("already"));
    assert!(detach(&mounted, &["--keep-dirty"]).expect(2).stderr.contains("already"));

    attach(&mounted).ok();
    assert_eq!(attachment(&mounted), "attached");
    assert!(attach(&mounted).expect(2).stderr.contains("already"));
    log.write_all(b"three").unwrap();
    assert!(fs::read(bed.backing.join("old")).unwrap().ends_with(b"onetwo"));
    assert!(mounted.number("dirty_bytes") > 0);
    drop_caches();
    fs::read(mounted.at("new")).unwrap();
    mounted.keeps(8 * MIB as u64);
    drop(log);
    assert_eq!(counter(&mounted, "conflicts"), 0);
    mounted.umount();
    assert!(fs::read(bed.backing.join("old")).unwrap().ends_with(b"onetwothree"));
    proof!("one detach, one attach");
}

#[test]
fn kept_dirty_bytes_outlast_a_killed_daemon_and_go_home_after_an_attach() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let old = sample::file(&bed.backing.join("old"), 1, 4 * MIB);
    let mounted = bed.mount(HOLD);
    fs::read(mounted.at("old")).unwrap();
    let kept = sample::file(&mounted.at("kept"), 2, 8 * MIB);
    let part = File::options().write(true).open(mounted.at("old")).unwrap();
    part.write_all_at(b"changed", MIB as u64).unwrap();
    drop(part);
    let told = detach(&mounted, &["--keep-dirty"]).ok().stdout;
    assert!(told.contains("stay dirty"), "{told}");
    assert!(shadow_bytes(&bed.tier) < 9 * MIB as u64, "the clean bytes of `old` are gone");
    // Now the drain would work, if it were allowed.
    let set = ["set", text(&mounted.path), "preset=governor", "max-age=1s", "settle=0s"];
    mounted.forebay(&set).ok();
    within(PATIENCE, "the drain says why it rests", || {
        mounted.status()["limited_by"] == "detached"
            && mounted.status()["oldest_dirty_age_secs"].as_f64() > Some(2.0)
    });
    assert_eq!(counter(&mounted, "flushed_bytes"), 0);
    mounted.crash();

    let eager = ["--max-age", "1s", "--settle", "0s"];
    let out = bed.try_mount(&eager).ok();
    assert!(out.text().contains("detached"), "the mount says so: {}", out.text());
    let mounted = bed.mounted();
    assert_eq!(attachment(&mounted), "detached-keep-dirty");
    drop_caches();
    let mut want = old;
    want[MIB..MIB + 7].copy_from_slice(b"changed");
    assert!(fs::read(mounted.at("kept")).unwrap() == kept);
    assert!(fs::read(mounted.at("old")).unwrap() == want);
    assert_eq!(fs::metadata(bed.backing.join("kept")).unwrap().len(), 0);
    // A file without kept bytes is on the backing store at once.
    let file = File::create(mounted.at("fresh")).unwrap();
    file.write_all_at(b"fresh", 0).unwrap();
    assert_eq!(fs::read(bed.backing.join("fresh")).unwrap(), b"fresh");
    drop(file);
    // A file with kept bytes is written in the tier, and a sync makes that durable.
    let file = File::options().write(true).open(mounted.at("kept")).unwrap();
    file.write_all_at(b"newer", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(counter(&mounted, "flushed_bytes"), 0);

    attach(&mounted).ok();
    within(PATIENCE, "the drain to bring them home", || mounted.number("dirty_files") == 0);
    let mut home = kept;
    home[..5].copy_from_slice(b"newer");
    assert!(fs::read(bed.backing.join("kept")).unwrap() == home);
    assert!(fs::read(bed.backing.join("old")).unwrap() == want);
    assert_eq!(counter(&mounted, "conflicts"), 0);
    mounted.umount();
    // An attached tier stays attached after a restart, too.
    let mounted = bed.mount(&[]);
    assert_eq!(attachment(&mounted), "attached");
    mounted.umount();
    proof!("{} bytes kept through a kill", home.len());
}

/// Opens a complete file so that it is passed through. The kernel reports an earlier close to the
/// daemon some time after it, and until then the file is served as before.
fn open_past_the_daemon(mounted: &Mounted, name: &str) -> Option<File> {
    let mut reader = None;
    let mut passes = || {
        reader = None;
        reader = Some(File::open(mounted.at(name)).unwrap());
        counter(mounted, "passthrough_reads") > 0
    };
    if kernel_passes_files() {
        within(PATIENCE, "a cached file is passed through", passes);
    } else if !passes() {
        return None;
    }
    reader
}

#[test]
fn a_detach_that_cannot_be_leaves_the_tier_attached_and_says_why() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("read"), 1, MIB);
    let mounted = bed.mount(&["--preset", "hold", "--max-age", "1h", "--passthrough", "read"]);
    fs::read(mounted.at("read")).unwrap();
    // The file is read past the daemon, so its bytes in the tier must stay.
    let reader = open_past_the_daemon(&mounted, "read");
    if reader.is_some() {
        let out = detach(&mounted, &["--timeout", "4s"]).expect(4);
        let words = ["read: ", "past the daemon", "stays attached"];
        assert!(words.iter().all(|word| out.stderr.contains(word)), "{}", out.stderr);
        assert_eq!(attachment(&mounted), "attached");
    }
    drop(reader);
    // The tier has the only copy of a file without a name.
    let mut nameless = File::create(mounted.at("gone")).unwrap();
    nameless.write_all(&vec![7; MIB]).unwrap();
    fs::remove_file(mounted.at("gone")).unwrap();
    let out = detach(&mounted, &["--timeout", "10s"]).expect(4);
    assert!(out.stderr.contains("that were removed"), "{}", out.stderr);
    drop(nameless);
    // A conflict does not go away by itself.
    fs::write(mounted.at("ours"), b"first").unwrap();
    mounted.flush();
    let ours = File::options().write(true).open(mounted.at("ours")).unwrap();
    ours.write_all_at(b"ours", 0).unwrap();
    drop(ours);
    fs::write(bed.backing.join("ours"), b"theirs, longer").unwrap();
    let out = detach(&mounted, &[]).expect(4);
    assert!(out.stderr.contains("conflict"), "{}", out.stderr);
    assert_eq!(attachment(&mounted), "attached");
    mounted.forebay(&["resolve", text(&mounted.at("ours")), "--keep", "ours"]).ok();
    detach(&mounted, &["--keep-dirty"]).ok();
    // From kept bytes to none.
    detach(&mounted, &[]).ok();
    assert_eq!((attachment(&mounted).as_str(), mounted.number("used_bytes")), ("detached", 0));
    assert!(fs::read(bed.backing.join("ours")).unwrap().starts_with(b"ours"));
    mounted.umount();
    let mounted = bed.mount(&[]);
    assert_eq!(attachment(&mounted), "detached", "until somebody attaches it");
    mounted.umount();
    proof!("three refusals");
}
