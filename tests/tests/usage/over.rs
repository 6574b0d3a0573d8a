//! A mount over its own backing directory: paths do not change.
// S-12

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_tests::{
    Bed, PATIENCE, Tier, forebay, images, needs_forebay, proof, text, while_busy, within,
};

fn mount_over(bed: &Bed, flags: &[&str]) {
    let dir = text(&bed.backing);
    bed.forebay(&[&["mount", dir, dir, "--tier", text(&bed.tier)], flags].concat()).ok();
    assert!(images::mounted_at(&bed.backing).is_some(), "it covers the directory");
}

#[test]
fn a_directory_is_covered_and_uncovered() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    fs::create_dir_all(bed.backing.join("a/b")).unwrap();
    fs::write(bed.backing.join("a/b/old"), "old").unwrap();
    let beneath = fs::File::open(&bed.backing).unwrap();
    let beneath = format!("/proc/self/fd/{}/a/b/new", std::os::fd::AsRawFd::as_raw_fd(&beneath));
    mount_over(&bed, &["--preset", "hold"]);
    let (old, new) = (bed.backing.join("a/b/old"), bed.backing.join("a/b/new"));
    assert_eq!(fs::read(&old).unwrap(), b"old");
    fs::write(&new, [7; 100_000]).unwrap();
    fs::rename(&old, bed.backing.join("a/renamed")).unwrap();
    assert_ne!(fs::read(&beneath).unwrap_or_default(), [7; 100_000], "dirty in the tier");
    forebay(&["flush", "--wait", text(&new)]).ok();
    assert_eq!(fs::read(&beneath).unwrap(), [7; 100_000], "flushed beneath the mount");
    fs::write(&new, "at the end").unwrap();
    forebay(&["umount", text(&bed.backing)]).ok();
    assert_eq!(images::mounted_at(&bed.backing), None);
    assert_eq!(fs::read(&new).unwrap(), b"at the end");
    assert_eq!(fs::read(bed.backing.join("a/renamed")).unwrap(), b"old");
    proof!("the same paths before, under and after the mount");
}

/// The daemon dies: dirty bytes are recovered without the mount, and not through it.
#[test]
fn a_covered_directory_is_recovered_once_it_is_uncovered() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    mount_over(&bed, &["--preset", "hold"]);
    let file = bed.backing.join("f");
    fs::write(&file, [9; 50_000]).unwrap();
    let status = forebay(&["status", "--json", text(&bed.backing)]).ok().json();
    let pid = status.as_array().map_or(&status, |all| &all[0])["pid"].as_i64();
    let pid = i32::try_from(pid.expect("a daemon")).unwrap();
    forebay_tests::kill(pid, 9);
    within(PATIENCE, "it is dead", || !forebay_tests::is_alive(pid));
    let covered = forebay(&["recover", text(&bed.tier)]);
    assert!(covered.stderr.contains("covered by the forebay mount"), "{covered:#?}");
    forebay(&["umount", text(&bed.backing)]).expect(4);
    assert_ne!(fs::read(&file).unwrap_or_default(), [9; 50_000], "not yet");
    forebay(&["recover", text(&bed.tier)]).ok();
    assert_eq!(fs::read(&file).unwrap(), [9; 50_000]);
    mount_over(&bed, &[]);
    assert_eq!(fs::read(&file).unwrap(), [9; 50_000]);
    forebay(&["umount", text(&bed.backing)]).ok();
}

/// Only the directory itself can be covered: neither one above nor one below it.
#[test]
fn what_is_above_or_below_cannot_be_covered() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let below = bed.backing.join("below");
    fs::create_dir(&below).unwrap();
    for (backing, at) in [(&bed.backing, &below), (&below, &bed.backing)] {
        let words = ["mount", text(backing), text(at), "--tier", text(&bed.tier)];
        let out = forebay(&words).expect(2);
        assert!(out.stderr.contains("is inside"), "{out:#?}");
    }
    let inside = bed.backing.join("tier");
    let words = ["mount", text(&bed.backing), text(&bed.backing), "--tier", text(&inside)];
    let out = forebay(&words).expect(2);
    assert!(out.stderr.contains("is inside"), "{out:#?}");
}

/// Those who use what a mount covers do not keep the mount from going.
#[test]
fn the_users_of_a_mount_are_not_those_of_the_directory_that_it_covers() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let dir = text(&bed.backing).to_string();
    let sleeper = |at: &Path| {
        let mut sleep = Command::new("sleep");
        sleep.arg("600").current_dir(at).stdin(Stdio::null()).spawn().unwrap()
    };
    let mut below = sleeper(&bed.backing);
    bed.forebay(&["mount", &dir, &dir, "--tier", text(&bed.tier)]).ok();
    let mut inside = sleeper(&bed.backing);
    let out = bed.forebay(&["umount", &dir]);
    for sleeper in [&mut below, &mut inside] {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    let end = while_busy(|| bed.forebay(&["umount", &dir]));
    let out = out.expect(1);
    let named = format!("in use by {} (sleep, works in it): ", inside.id());
    assert!(out.stderr.contains(&named), "{out:#?}");
    end.ok();
    proof!("{}", out.stderr.trim());
}
