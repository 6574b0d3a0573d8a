//! Shadow files that differ from their records: cut short, missing, or of another kind. Missing
//! bytes are reported, and fetched again or lost; they never read as zeros.
// S-4 S-11

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_tests::{Bed, Mounted, Tier, needs_forebay, proof, sys, text};

const LEN: usize = 300_000;

/// The daemon serves, so that dirty bytes are recorded in ranges; nothing is flushed by itself.
const FLAGS: [&str; 4] = ["--preset", "hold", "--passthrough", "off"];

fn synced(mounted: &Mounted, name: &str, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).create(true).truncate(false).open(mounted.at(name));
    let file = file.unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_all().unwrap();
}

/// The shadows of an unused tier, by the number of the file: in the order in which files were made.
fn shadows(bed: &Bed) -> Vec<PathBuf> {
    let dirs = std::fs::read_dir(bed.tier.join("shadow")).unwrap();
    let names = dirs.flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap());
    let mut found: Vec<PathBuf> = names.map(|name| name.unwrap().path()).collect();
    let number = |path: &Path| u64::from_str_radix(path.file_name().unwrap().to_str().unwrap(), 16);
    found.sort_by_key(|path| number(path).unwrap());
    found
}

fn cut(shadow: &Path, len: u64) {
    File::options().write(true).open(shadow).unwrap().set_len(len).unwrap();
}

#[track_caller]
fn is(path: &Path, wanted: &[u8]) {
    let found = std::fs::read(path).unwrap();
    let wrong = found.iter().zip(wanted).position(|(a, b)| a != b);
    assert!(found.len() == wanted.len() && wrong.is_none(), "{path:?}: {}, {wrong:?}", found.len());
}

#[test]
fn dirty_bytes_that_the_shadow_lacks_are_lost_and_not_zeros() {
    needs_forebay!();
    for gone in [false, true] {
        let bed = Bed::new(Tier::Disk);
        let mounted = bed.mount(&FLAGS);
        synced(&mounted, "f", 0, &[b'A'; LEN]);
        mounted.flush();
        synced(&mounted, "f", 8192, &[b'B'; 16384]);
        mounted.crash();
        let [shadow] = &shadows(&bed)[..] else { panic!("one file") };
        match gone {
            true => std::fs::remove_file(shadow).unwrap(),
            false => cut(shadow, 0),
        }
        let check = bed.forebay(&["check", "--json", text(&bed.tier)]).expect(1).json();
        assert_eq!((&check["lost_files"], &check["lost_bytes"]), (&1.into(), &16384.into()));
        assert_eq!(check["dropped_files"], 0, "no power was lost: {check:#}");
        let out = bed.forebay(&["recover", text(&bed.tier)]).expect(1);
        let said = out.text();
        assert!(said.contains("f: 16384 dirty bytes are lost"), "{said}");
        assert!(!said.contains("power was lost"), "{said}");
        is(&bed.backing.join("f"), &[b'A'; LEN]);
        bed.forebay(&["check", text(&bed.tier)]).ok();
    }
    proof!("twice 16384 bytes were missed, and the old ones left alone");
}

/// Asserts that a recorded loss is still reported as a problem, as long as it is not settled.
#[track_caller]
fn still_waits(bed: &Bed) {
    let check = bed.forebay(&["check", text(&bed.tier)]).expect(1).text();
    assert!(check.contains("f: in conflict: dirty bytes of it were lost"), "{check}");
    assert!(check.contains("forebay resolve") && !check.contains("forebay recover"), "{check}");
    let check = bed.forebay(&["check", "--json", text(&bed.tier)]).expect(1).json();
    assert_eq!((&check["ok"], &check["conflicted_files"]), (&false.into(), &1.into()));
}

#[test]
fn what_is_left_of_a_torn_file_waits_for_a_decision() {
    needs_forebay!();
    const LEFT: usize = 100_000;
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&FLAGS);
    synced(&mounted, "f", 0, &[b'A'; LEN]);
    mounted.crash();
    cut(&shadows(&bed)[0], LEFT as u64);
    let to = bed.dir("saved");
    let out = bed.forebay(&["recover", text(&bed.tier), "--to", text(&to)]).expect(4);
    assert!(out.text().contains("200000 dirty bytes are lost"), "{out:#?}");
    is(&to.join("f"), &[b'A'; LEFT]);
    let out = bed.forebay(&["recover", text(&bed.tier)]).expect(4);
    assert!(out.text().contains("200000 dirty bytes are lost"), "{out:#?}");
    is(&bed.backing.join("f"), b"");
    still_waits(&bed);
    let out = bed.try_mount(&FLAGS).ok();
    assert!(out.text().contains("1 file in conflict"), "{out:#?}");
    let mounted = bed.mounted();
    is(&mounted.at("f"), &[b'A'; LEFT]);
    assert_eq!(mounted.number("conflicted_files"), 1);
    let out = mounted.try_umount(&[]).expect(4);
    assert!(out.text().contains("still mounted"), "{out:#?}");
    assert!(!out.text().contains("nothing is lost"), "{out:#?}");
    is(&bed.backing.join("f"), b"");
    mounted.try_umount(&["--keep-dirty"]).ok();
    still_waits(&bed);
    let mounted = bed.mount(&FLAGS);
    mounted.forebay(&["resolve", text(&mounted.at("f")), "--keep", "ours"]).ok();
    mounted.umount();
    bed.forebay(&["check", text(&bed.tier)]).ok();
    is(&bed.backing.join("f"), &[b'A'; LEFT]);
    proof!("{LEFT} of {LEN} bytes were saved, and flushed when told");
}

#[test]
fn clean_bytes_that_the_shadow_lacks_are_fetched_again() {
    needs_forebay!();
    for ends_well in [false, true] {
        let bed = Bed::new(Tier::Disk);
        let mounted = bed.mount(&FLAGS);
        for name in ["cut", "gone", "dir"] {
            synced(&mounted, name, 0, &[b'A'; LEN]);
        }
        mounted.flush();
        match ends_well {
            true => drop(mounted.umount()),
            false => mounted.crash(),
        }
        let [a, b, c] = &shadows(&bed)[..] else { panic!("three files") };
        cut(a, 4096);
        std::fs::remove_file(b).unwrap();
        std::fs::remove_file(c).unwrap();
        std::fs::create_dir(c).unwrap();
        bed.forebay(&["check", text(&bed.tier)]).expect(1);
        let mounted = bed.mount(&FLAGS);
        for name in ["cut", "gone", "dir"] {
            is(&mounted.at(name), &[b'A'; LEN]);
        }
        mounted.umount();
        bed.forebay(&["check", text(&bed.tier)]).ok();
    }
    proof!("twice three files were fetched again");
}

#[test]
fn what_is_no_shadow_does_not_stand_in_the_way_of_the_rest() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&FLAGS);
    let names = ["dir", "fifo", "link", "sound"];
    for name in names {
        synced(&mounted, name, 0, name.as_bytes());
    }
    mounted.crash();
    let [dir, fifo, link, _] = &shadows(&bed)[..] else { panic!("four files") };
    for shadow in [dir, fifo, link] {
        std::fs::remove_file(shadow).unwrap();
    }
    std::fs::create_dir(dir).unwrap();
    sys::mkfifo(fifo, 0o600).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", link).unwrap();
    let names_them = |said: &str| {
        for (name, what) in
            [("dir", "a directory"), ("fifo", "a FIFO"), ("link", "a symbolic link")]
        {
            let line = said.lines().find(|line| line.contains(&format!("{name}: ")));
            assert!(line.is_some_and(|line| line.contains(what)), "{name}: {said}");
        }
    };
    names_them(&bed.forebay(&["check", text(&bed.tier)]).expect(1).text());
    let to = bed.dir("saved");
    names_them(&bed.forebay(&["recover", text(&bed.tier), "--to", text(&to)]).expect(4).text());
    is(&to.join("sound"), b"sound");
    names_them(&bed.forebay(&["recover", text(&bed.tier)]).expect(1).text());
    is(&bed.backing.join("sound"), b"sound");
    for name in &names[..3] {
        is(&bed.backing.join(name), b"");
    }
    let mounted = bed.mount(&FLAGS);
    synced(&mounted, "dir", 0, b"again");
    mounted.umount();
    is(&bed.backing.join("dir"), b"again");
    proof!("one file of four was saved and flushed");
}

/// Bytes lost with the power are no damage; bytes lost without a loss of power are.
#[test]
fn a_loss_of_power_is_told_from_damage() {
    needs_forebay!();
    let mut bed = Bed::new(Tier::Disk);
    bed.env("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000001");
    let mounted = bed.mount(&FLAGS);
    std::fs::write(mounted.at("never"), [b'N'; LEN]).unwrap();
    synced(&mounted, "synced", 0, &[b'S'; LEN]);
    mounted.crash();
    let [never, synced] = &shadows(&bed)[..] else { panic!("two files") };
    std::fs::remove_file(never).unwrap();
    let check = bed.forebay(&["check", text(&bed.tier)]).expect(1).text();
    assert!(check.contains("never: 300000 dirty bytes are lost"), "{check}");
    assert!(check.contains("damaged") && !check.contains("power"), "{check}");
    bed.env("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000002");
    let check = bed.forebay(&["check", text(&bed.tier)]).ok().text();
    assert!(check.contains("power was lost") && !check.contains("damaged"), "{check}");
    let check = bed.forebay(&["check", "--json", text(&bed.tier)]).ok().json();
    assert_eq!((&check["dropped_bytes"], &check["dirty_bytes"]), (&LEN.into(), &LEN.into()));
    cut(synced, 0);
    let check = bed.forebay(&["check", text(&bed.tier)]).expect(1).text();
    assert!(check.contains("synced: 300000 dirty bytes are lost"), "{check}");
    proof!("{LEN} bytes went with the power, {LEN} with the medium");
}
