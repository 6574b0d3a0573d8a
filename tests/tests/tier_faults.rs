//! The fast tier fills, belongs to another user or store, is damaged, fails.
// S-9, S-11

use std::fs;
use std::io::Write;
use std::path::Path;

use forebay_tests::tree::{Times, Tree};
use forebay_tests::{
    Bed, PATIENCE, Rng, Tier, drop_caches, needs_forebay, proof, sample, text, within,
};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn write_tree(root: &Path, files: u64, len: usize) {
    for i in 0..files {
        sample::file(&root.join(format!("d{}/f{i}", i % 4)), i, len);
    }
}

#[track_caller]
fn check_tree(root: &Path, files: u64, len: usize) {
    for i in 0..files {
        let now = fs::read(root.join(format!("d{}/f{i}", i % 4))).unwrap();
        assert!(now == Rng::new(i).bytes(len), "file {i} below {}", root.display());
    }
}

#[test]
fn a_tree_larger_than_the_tier_is_written() {
    needs_forebay!();
    let bed = Bed::new(Tier::Ext4(128));
    let mounted = bed.mount(&[]);
    write_tree(&bed.mnt, 100, 3 * MIB);
    let status = mounted.status();
    assert!(status["used_bytes"].as_u64() <= status["tier_bytes"].as_u64(), "{status:#}");
    check_tree(&bed.mnt, 100, 3 * MIB);
    mounted.umount();
    check_tree(&bed.backing, 100, 3 * MIB);
    proof!("300 MiB through a tier of 128 MiB");
}

#[test]
fn a_full_tier_slows_writers_to_the_drain_and_fails_none() {
    needs_forebay!();
    let bed = Bed::new(Tier::Ext4(64));
    let mounted = bed.mount(&["--throttle", "30MB,1ms", "--passthrough", "read"]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let root = bed.mnt.join(format!("t{thread}"));
            scope.spawn(move || write_tree(&root, 10, 3 * MIB));
        }
    });
    for thread in 0..4 {
        check_tree(&bed.mnt.join(format!("t{thread}")), 10, 3 * MIB);
    }
    mounted.umount();
    for thread in 0..4 {
        check_tree(&bed.backing.join(format!("t{thread}")), 10, 3 * MIB);
    }
    proof!("120 MiB at 30 MB/s through a tier of 64 MiB");
}

#[test]
fn a_tree_larger_than_the_tier_is_read_again_and_again() {
    needs_forebay!();
    let bed = Bed::new(Tier::Xfs(320));
    write_tree(&bed.backing, 120, 4 * MIB);
    let mounted = bed.mount(&[]);
    for _ in 0..2 {
        check_tree(&bed.mnt, 120, 4 * MIB);
        drop_caches();
        let status = mounted.status();
        assert!(status["used_bytes"].as_u64() <= status["tier_bytes"].as_u64(), "{status:#}");
        assert!(status["clean_bytes"].as_u64() > Some(64 << 20), "cached: {status:#}");
    }
    mounted.umount();
    proof!("480 MiB twice through a tier of 320 MiB");
}

#[test]
fn a_file_larger_than_the_tier_is_written_and_read() {
    needs_forebay!();
    let bed = Bed::new(Tier::Ext4(96));
    let mounted = bed.mount(&["--passthrough", "read"]);
    let mut file = fs::File::create(mounted.at("big")).unwrap();
    for i in 0..60 {
        file.write_all(&Rng::new(i).bytes(4 * MIB)).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let check = |root: &Path| {
        for i in 0..60u64 {
            let part =
                forebay_tests::tree::read_range(&root.join("big"), i * 4 * MIB as u64, 4 * MIB);
            assert!(part == Rng::new(i).bytes(4 * MIB), "part {i} below {}", root.display());
        }
    };
    check(&bed.mnt);
    mounted.umount();
    check(&bed.backing);
    let mounted = bed.mount(&[]);
    check(&bed.mnt);
    mounted.umount();
    proof!("240 MiB in one file through a tier of 96 MiB");
}

#[test]
fn somebody_elses_files_may_fill_the_disk_of_the_tier() {
    needs_forebay!();
    let bed = Bed::new(Tier::Ext4(128));
    let mounted = bed.mount(&["--passthrough", "read"]);
    let ballast = fs::File::create(bed.root.join("fast/ballast")).unwrap();
    let free = forebay_tests::sys::statvfs(&bed.root.join("fast"));
    let most = free.f_bavail * free.f_frsize - (12 << 20);
    forebay_tests::sys::fallocate(&ballast, 0, 0, most).unwrap();
    write_tree(&bed.mnt, 20, 3 * MIB);
    check_tree(&bed.mnt, 20, 3 * MIB);
    mounted.umount();
    check_tree(&bed.backing, 20, 3 * MIB);
    proof!("60 MiB through the last 12 MiB of a disk");
}

#[test]
fn what_is_pinned_stays() {
    needs_forebay!();
    let bed = Bed::new(Tier::Ext4(128));
    write_tree(&bed.backing, 80, 3 * MIB);
    let mounted = bed.mount(&[]);
    let pinned = mounted.at("d0/f0");
    mounted.forebay(&["pin", text(&pinned)]).ok();
    check_tree(&bed.mnt, 80, 3 * MIB);
    let list = mounted.forebay(&["ls", "--json", text(&pinned)]).ok().json();
    assert_eq!(list[0]["pinned"], true, "{list:#}");
    assert_eq!(list[0]["cached_bytes"], 3 * MIB, "{list:#}");
    assert!(mounted.number("pinned_bytes") >= 3 * MIB as u64);
    mounted.forebay(&["evict", text(&bed.mnt)]);
    let list = mounted.forebay(&["ls", "--json", text(&pinned)]).ok().json();
    assert_eq!(list[0]["cached_bytes"], 3 * MIB, "evict leaves it: {list:#}");
    mounted.forebay(&["unpin", text(&pinned)]).ok();
    mounted.forebay(&["evict", text(&pinned)]).ok();
    mounted.umount();
    proof!("a pinned file stayed while 240 MiB went through 128 MiB");
}

/// A tier with dirty and clean files, unmounted.
fn used_tier() -> Bed {
    let bed = Bed::new(Tier::Disk);
    write_tree(&bed.backing, 10, 100_000);
    let mounted = bed.mount(&["--preset", "hold"]);
    check_tree(&bed.mnt, 10, 100_000);
    sample::file(&mounted.at("dirty"), 77, 500_000);
    fs::write(mounted.at("d0/f0"), b"dirty too").unwrap();
    mounted.umount_with(&["--keep-dirty"]).ok();
    mounted.assert_gone();
    bed
}

/// Asserts that the mount is refused with exit 2 and the words, and that the tier is untouched.
#[track_caller]
fn refused(bed: &Bed, words: &[&str]) {
    let before = Tree::read(&bed.tier);
    let out = bed.try_mount(&[]).expect(2);
    for word in words {
        assert!(out.stderr.contains(word), "{word:?} is not in: {}", out.stderr);
    }
    let mut after = Tree::read(&bed.tier);
    // The lock and the log of the daemon may be touched.
    let ours = |name: &Path| name.starts_with("run") || name.starts_with("lock");
    after.entries.retain(|name, _| !ours(name));
    let lines = after.differences(&before, Times::Ignore);
    let lines: Vec<_> =
        lines.iter().filter(|line| !line.starts_with("run") && !line.starts_with("lock")).collect();
    assert!(lines.is_empty(), "the refused tier was changed: {lines:?}");
    proof!("refused: {}", out.stderr.trim());
}

#[test]
fn a_tier_of_another_backing_store_is_refused() {
    needs_forebay!();
    let mut bed = used_tier();
    bed.backing = bed.dir("another");
    refused(&bed, &["belongs to", "fast/tier", "another"]);
}

#[test]
fn a_tier_in_use_is_refused() {
    needs_forebay!();
    let mut bed = used_tier();
    let first = bed.mount(&[]);
    let mnt = std::mem::replace(&mut bed.mnt, bed.root.join("mnt2"));
    fs::create_dir(&bed.mnt).unwrap();
    let out = bed.try_mount(&[]).expect(2);
    for word in ["in use", text(&mnt), &format!("(pid {})", first.pid)] {
        assert!(out.stderr.contains(word), "{word}: {}", out.stderr);
    }
    bed.mnt = mnt;
    check_tree_but_first(&bed.mnt);
    first.umount();
    proof!("refused: {}", out.stderr.trim());
}

fn check_tree_but_first(root: &Path) {
    for i in 1..10u64 {
        let now = fs::read(root.join(format!("d{}/f{i}", i % 4))).unwrap();
        assert!(now == Rng::new(i).bytes(100_000), "file {i}");
    }
    assert_eq!(fs::read(root.join("d0/f0")).unwrap(), b"dirty too");
    assert!(fs::read(root.join("dirty")).unwrap() == Rng::new(77).bytes(500_000));
}

#[test]
fn a_tier_of_a_newer_format_is_refused() {
    needs_forebay!();
    let bed = used_tier();
    let path = bed.tier.join("forebay.json");
    let mut block: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    block["format"] = 99.into();
    fs::write(&path, block.to_string()).unwrap();
    refused(&bed, &["newer", "99"]);
}

#[test]
fn a_damaged_superblock_is_refused_wherever_it_is_damaged() {
    needs_forebay!();
    let bed = used_tier();
    let path = bed.tier.join("forebay.json");
    let good = fs::read(&path).unwrap();
    let mut rng = Rng::new(9);
    for round in 0..10 {
        let mut bad = good.clone();
        match round {
            0 => bad.clear(),
            1 => bad.truncate(good.len() / 2),
            2 => bad.fill(0),
            _ => {
                // A letter or digit, so that the change is not one of white space.
                let at = (0..).map(|_| rng.below(good.len() as u64) as usize);
                let at = at.into_iter().find(|at| good[*at].is_ascii_alphanumeric()).unwrap();
                bad[at] = if bad[at] == b'7' { b'8' } else { b'7' };
            }
        }
        fs::write(&path, &bad).unwrap();
        let out = bed.try_mount(&[]);
        assert_eq!(out.code, Some(2), "round {round}: {out:#?}");
        assert!(
            !bed.forebay(&["check", text(&bed.tier)]).code.eq(&Some(0)),
            "round {round}: check"
        );
    }
    fs::write(&path, &good).unwrap();
    let mounted = bed.mount(&[]);
    check_tree_but_first(&bed.mnt);
    mounted.umount();
    check_tree_but_first(&bed.backing);
    proof!("ten kinds of damage refused, nothing lost");
}

/// Without the superblock the owner of the tier is unknown; the dirty files and their names are
/// known.
// S-11
#[test]
fn what_is_dirty_is_saved_without_the_superblock() {
    needs_forebay!();
    for gone in [true, false] {
        let bed = used_tier();
        let (tier, path) = (text(&bed.tier), bed.tier.join("forebay.json"));
        match gone {
            true => fs::remove_file(&path).unwrap(),
            false => fs::write(&path, b"{").unwrap(),
        }
        let check = bed.forebay(&["check", tier]).expect(1);
        assert!(check.text().contains("forebay.json is damaged"), "{check:#?}");
        for out in [bed.try_mount(&[]), bed.forebay(&["recover", tier])] {
            let out = out.expect(2);
            assert!(out.stderr.contains(&format!("forebay recover {tier} --to")), "{out:#?}");
        }
        let to = bed.dir("saved");
        let out = bed.forebay(&["recover", tier, "--to", text(&to)]).expect(1);
        assert!(out.stderr.contains("forebay.json is damaged"), "{out:#?}");
        assert_eq!(fs::read(to.join("d0/f0")).unwrap(), b"dirty too");
        assert!(fs::read(to.join("dirty")).unwrap() == Rng::new(77).bytes(500_000));
        assert_eq!(path.exists(), !gone, "it is only read");
    }
    proof!("two files were saved from each of two tiers");
}

#[test]
fn a_directory_that_is_no_tier_is_refused() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.tier.join("holiday/photo"), 1, 1000);
    refused(&bed, &["not", "empty"]);
}

/// Damage in the index or the log: named by check, refused or survived by mount, never turned into
/// wrong bytes.
#[test]
fn damage_in_the_index_is_named_and_never_becomes_wrong_bytes() {
    needs_forebay!();
    let mut named = 0;
    for seed in 0..8 {
        let bed = used_tier();
        let victim = damage_one_file(&bed.tier, seed);
        let check = bed.forebay(&["check", text(&bed.tier), "--json"]);
        assert!(check.code.is_some_and(|code| code < 100), "check crashed: {check:#?}");
        let out = bed.try_mount(&["--preset", "hold"]);
        match out.code {
            Some(0) => {
                let mounted = bed.mounted();
                nothing_wrong(&bed.mnt, &victim);
                mounted.try_umount(&[]);
                nothing_wrong(&bed.backing, &victim);
            }
            Some(code) => {
                assert!(code < 100 && !out.stderr.contains("panicked"), "{victim}: {out:#?}");
                assert_ne!(check.code, Some(0), "{victim}: mount refuses what check calls sound");
                let to = bed.dir("saved");
                let saved = bed.forebay(&["recover", text(&bed.tier), "--to", text(&to)]);
                assert!(saved.code.is_some_and(|c| c < 100), "{victim}: {saved:#?}");
            }
            None => panic!("{victim}: {out:#?}"),
        }
        if check.code != Some(0) {
            named += 1;
            // Unreadable parts of the index or log end the check with a message instead of a list.
            let listed =
                check.stdout.contains("problems") && check.json()["problems"][0].is_string();
            let told = check.stderr.contains("index") || check.stderr.contains("log");
            assert!(listed || told, "{victim}: {check:#?}");
        }
        forebay_tests::say(&format!("  {victim}: check {:?}, mount {:?}", check.code, out.code));
    }
    assert!(named > 0, "no damage was ever named");
    proof!("8 tiers damaged, {named} named by check");
}

/// Overwrites a piece of the index or of a log. Returns a description of the damage.
fn damage_one_file(tier: &Path, seed: u64) -> String {
    use std::os::unix::fs::FileExt;
    let all = Tree::read(tier);
    let files: Vec<_> = all
        .entries
        .iter()
        .filter(|(name, e)| {
            e.size > 0 && (name.starts_with("index.redb") || name.starts_with("log"))
        })
        .collect();
    let mut rng = Rng::new(seed);
    let (name, entry) = files[(seed as usize) % files.len()];
    let file = fs::File::options().write(true).open(tier.join(name)).unwrap();
    if seed % 4 == 3 {
        file.set_len(entry.size / 2).unwrap();
        return format!("{} cut to half", name.display());
    }
    let at = if seed.is_multiple_of(4) { 0 } else { rng.below(entry.size) };
    let len = rng.range(1, 5000).min(entry.size - at);
    file.write_all_at(&rng.bytes(len as usize), at).unwrap();
    format!("{}: {len} bytes at {at} of {}", name.display(), entry.size)
}

/// Asserts that each file has one of the contents it ever had.
#[track_caller]
fn nothing_wrong(root: &Path, victim: &str) {
    for i in 0..10u64 {
        let Ok(now) = fs::read(root.join(format!("d{}/f{i}", i % 4))) else { continue };
        let known = now == Rng::new(i).bytes(100_000)
            || (i == 0 && (now == b"dirty too" || now.is_empty()));
        assert!(known, "{victim}: file {i} below {} has bytes nobody wrote", root.display());
    }
    if let Ok(now) = fs::read(root.join("dirty")) {
        let whole = Rng::new(77).bytes(500_000);
        assert!(whole.starts_with(&now), "{victim}: wrong bytes in the dirty file");
    }
}

#[test]
fn a_missing_shadow_file_with_dirty_bytes_is_named_by_check() {
    needs_forebay!();
    let bed = used_tier();
    let tree = Tree::read(&bed.tier.join("shadow"));
    let (name, _) = tree.entries.iter().find(|(_, e)| e.size == 500_000).expect("its shadow");
    fs::remove_file(bed.tier.join("shadow").join(name)).unwrap();
    let out = bed.forebay(&["check", text(&bed.tier), "--json"]);
    assert_ne!(out.code, Some(0), "{out:#?}");
    assert!(out.json()["problems"].to_string().contains("dirty"), "{out:#?}");
    let to = bed.dir("saved");
    let out = bed.forebay(&["recover", text(&bed.tier), "--to", text(&to)]);
    assert_ne!(out.code, Some(0), "not everything can be saved: {out:#?}");
    assert_eq!(fs::read(to.join("d0/f0")).unwrap(), b"dirty too", "what is sound is saved");
    proof!("named and saved around");
}

/// The machine and its backing store are gone; only the flash is left.
#[test]
fn dirty_files_are_saved_without_the_backing_store() {
    needs_forebay!();
    let bed = used_tier();
    fs::rename(&bed.backing, bed.root.join("elsewhere")).unwrap();
    let to = bed.dir("saved");
    let out = bed.forebay(&["recover", text(&bed.tier), "--to", text(&to)]);
    assert_eq!(fs::read(to.join("d0/f0")).unwrap(), b"dirty too", "{out:#?}");
    assert_eq!(fs::read(to.join("dirty")).unwrap(), Rng::new(77).bytes(500_000));
    assert_eq!(out.code, Some(0), "all that is dirty is whole in the tier: {out:#?}");
    fs::rename(bed.root.join("elsewhere"), &bed.backing).unwrap();
    bed.forebay(&["recover", text(&bed.tier)]).ok();
    assert_eq!(fs::read(bed.backing.join("dirty")).unwrap(), Rng::new(77).bytes(500_000));
    proof!("saved without the store, and flushed once it was back");
}

/// A user who saves elsewhere may not trust the store, and has no need to wait for it.
#[test]
fn what_is_saved_elsewhere_is_not_drained_too() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mut whole = sample::file(&bed.backing.join("whole"), 5, 2 * MIB);
    let mounted = bed.mount(&["--preset", "hold", "--readahead", "0"]);
    let part = fs::File::options().write(true).open(mounted.at("whole")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&part, b"dirty too", 0).unwrap();
    drop(part);
    sample::file(&mounted.at("dirty"), 77, 500_000);
    mounted.umount_with(&["--keep-dirty"]).ok();
    whole[..9].copy_from_slice(b"dirty too");
    let before = Tree::read(&bed.backing);
    let to = bed.dir("saved");
    // Reading the rest of a file takes longer than a drain would need to begin.
    let eager = ["--preset", "age", "--max-age", "1ms", "--settle", "1ms"];
    let slow = ["--throttle", "2MB/s,1ms"];
    let args = [&["recover", text(&bed.tier), "--to", text(&to)][..], &eager, &slow].concat();
    let out = bed.forebay(&args).ok();
    assert_eq!(fs::read(to.join("dirty")).unwrap(), Rng::new(77).bytes(500_000), "{out:#?}");
    assert!(fs::read(to.join("whole")).unwrap() == whole, "{out:#?}");
    for inside in [bed.backing.join("new/saved"), bed.backing.clone()] {
        let out = bed.forebay(&["recover", text(&bed.tier), "--to", text(&inside)]).expect(2);
        assert!(out.stderr.contains("apart from"), "{out:#?}");
    }
    let lines = Tree::read(&bed.backing).differences(&before, Times::Compare);
    assert!(lines.is_empty(), "the rescue changed the backing store: {lines:?}");
    let left = bed.forebay(&["check", text(&bed.tier), "--json"]).ok().json();
    assert_eq!(left["dirty_files"], 2, "they stay dirty in the tier");
    proof!("saved, and nothing was drained");
}

#[test]
fn bytes_are_saved_from_a_tier_whose_index_is_lost() {
    needs_forebay!();
    let bed = used_tier();
    fs::write(bed.tier.join("index.redb"), b"not an index").unwrap();
    let to = bed.dir("saved");
    let out = bed.forebay(&["recover", text(&bed.tier), "--to", text(&to)]);
    assert!(out.code.is_some_and(|code| code != 0 && code < 100), "{out:#?}");
    let want = Rng::new(77).bytes(500_000);
    let saved = Tree::read(&to);
    let found = saved
        .entries
        .keys()
        .filter(|name| fs::read(to.join(name)).is_ok_and(|bytes| bytes == want));
    assert_eq!(found.count(), 1, "under its name or its number: {out:#?}");
    proof!("the bytes are there without the index");
}

/// The device under the tier loses its second half: reads there fail with EIO.
#[test]
fn a_failing_device_gives_errors_and_no_wrong_bytes() {
    needs_forebay!();
    let bed = Bed::new(Tier::Ext4(256));
    write_tree(&bed.backing, 40, 3 * MIB);
    let mounted = bed.mount(&[]);
    check_tree(&bed.mnt, 40, 3 * MIB);
    rustix::fs::sync();
    let image = fs::File::options().write(true).open(bed.root.join("fast.img")).unwrap();
    image.set_len(64 << 20).unwrap();
    drop_caches();
    let (mut right, mut failed) = (0, 0);
    for i in 0..40u64 {
        match fs::read(bed.mnt.join(format!("d{}/f{i}", i % 4))) {
            Ok(bytes) => {
                assert!(bytes == Rng::new(i).bytes(3 * MIB), "file {i} has wrong bytes");
                right += 1;
            }
            Err(_) => failed += 1,
        }
    }
    within(PATIENCE, "the daemon answers", || {
        mounted.forebay(&["status", text(&bed.mnt)]).code == Some(0)
    });
    drop(mounted);
    check_tree(&bed.backing, 40, 3 * MIB);
    proof!("{right} files right, {failed} with an error, none wrong");
}
