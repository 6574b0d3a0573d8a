//! A backing store that is no longer at its path.
// S-11

use std::fs;

use forebay_tests::images::{self, MountedFs};
use forebay_tests::{Bed, Mounted, Tier, needs_forebay, text};

/// Dirty bytes go to what was mounted, wherever that is now; every command that brings them home says so.
#[test]
fn a_store_that_is_no_longer_at_its_path_is_told_of() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::write(mounted.at("f"), "one").unwrap();
    let quiet = mounted.forebay(&["flush", "--wait", text(&bed.mnt)]).ok();
    assert!(!quiet.stderr.contains("WARNING"), "{quiet:#?}");
    let gone = bed.root.join("gone");
    fs::rename(&bed.backing, &gone).unwrap();
    fs::create_dir(&bed.backing).unwrap();
    fs::write(mounted.at("f"), "two").unwrap();
    let told = format!(
        "{} leads elsewhere now, or nowhere: the bytes are in what was mounted",
        text(&bed.backing)
    );
    let status = mounted.forebay(&["status", text(&bed.mnt)]).ok();
    assert!(status.stdout.contains(&told), "{status:#?}");
    let flush = mounted.forebay(&["flush", "--wait", "--json", text(&bed.mnt)]).ok().json();
    let warning = flush["warning"].as_str().expect("it warns");
    assert!(warning.contains(&told) && warning.contains(text(&gone)), "{flush:#}");
    assert!(warning.contains("move it back"), "what to do: {flush:#}");
    let out = mounted.umount();
    assert!(out.stderr.contains("leads elsewhere now"), "{out:#?}");
    assert_eq!(fs::read(gone.join("f")).unwrap(), b"two");
    assert!(!bed.backing.join("f").exists());
}

/// The file system of the store is unmounted lazily, and another is mounted over the store's path.
#[test]
fn a_store_whose_file_system_went_or_is_covered_is_told_of() {
    needs_forebay!();
    let mut bed = Bed::new(Tier::Disk);
    let other = bed.dir("other");
    let over = |bed: &Bed| MountedFs::bind(&other, &bed.backing);
    let astray = |mounted: &Mounted| mounted.status()["backing_astray"].clone();
    bed.backing_in_memory(16);
    let mounted = bed.mount(&[]);
    assert!(astray(&mounted).is_null(), "{:#}", mounted.status());
    let cover = over(&bed);
    assert!(astray(&mounted).as_str().is_some_and(|text| text.contains("another mount covers")));
    drop(cover);
    assert!(astray(&mounted).is_null(), "{:#}", mounted.status());
    images::unmount(&bed.backing, true).unwrap();
    assert!(astray(&mounted).as_str().is_some_and(|text| text.contains("no longer mounted")));
    mounted.umount();
}

/// A mount over its own directory covers the path, and that is as it should be.
#[test]
fn a_mount_over_its_own_directory_is_not_astray() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let dir = text(&bed.backing);
    bed.forebay(&["mount", dir, dir, "--tier", text(&bed.tier)]).ok();
    let status = bed.forebay(&["status", "--json", dir]).ok().json();
    bed.forebay(&["umount", dir]).ok();
    let told = status.get("backing_astray").expect("it is told of");
    assert!(told.is_null(), "{status:#}");
}
