//! Logs that were damaged after they were written: the damage is told from an end that a crash tore
//! off, and never acted on.
// S-4 S-11

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use forebay_tests::tree::Tree;
use forebay_tests::{Bed, Tier, needs_forebay, proof, text};

const FILES: usize = 20;

fn bytes_of(number: usize) -> Vec<u8> {
    format!("file {number:02} ").into_bytes().repeat(1000 + number)
}

/// A bed whose daemon died with this many synced files in the log of its tier and nowhere else.
fn died(env: &[(&str, &str)]) -> Bed {
    let mut bed = Bed::new(Tier::Disk);
    env.iter().for_each(|(name, value)| bed.env(name, value));
    let mounted = bed.mount(&["--preset", "hold", "--passthrough", "off"]);
    for number in 0..FILES {
        let file = File::create(mounted.at(format!("f{number:02}"))).unwrap();
        file.write_all_at(&bytes_of(number), 0).unwrap();
        file.sync_all().unwrap();
    }
    mounted.crash();
    bed
}

fn last_log(bed: &Bed) -> PathBuf {
    let names = std::fs::read_dir(bed.tier.join("log")).unwrap();
    names.map(|name| name.unwrap().path()).max().expect("a log")
}

/// Flips one bit, at this percentage of the written bytes.
fn flip(log: &PathBuf, at: usize) {
    let bytes = std::fs::read(log).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("records") + 1;
    let at = end * at / 100;
    let file = File::options().write(true).open(log).unwrap();
    file.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
}

/// No command accepts the tier as sound, nothing in it is changed, and a rescue has every byte.
fn is_refused_and_saved(bed: &Bed, what: &str) {
    let tier = text(&bed.tier);
    let before = Tree::read(&bed.tier.join("shadow"));
    let check = bed.forebay(&["check", tier]).expect(1).text();
    assert!(check.contains(what) && check.contains("damaged"), "{check}");
    assert!(check.contains(&format!("forebay recover {tier} --to DIR")), "{check}");
    for out in [bed.try_mount(&[]), bed.forebay(&["recover", tier])] {
        assert_eq!(out.code, Some(2), "{out:#?}");
        assert!(out.stderr.contains("recover TIER --to") && out.stderr.contains(what), "{out:#?}");
    }
    assert_eq!(Tree::read(&bed.tier.join("shadow")).entries.len(), before.entries.len());
    let to = bed.dir("saved");
    let out = bed.forebay(&["recover", tier, "--to", text(&to)]);
    assert!(matches!(out.code, Some(1 | 4)), "{out:#?}");
    assert!(out.stderr.contains(what), "{out:#?}");
    let saved: BTreeSet<Vec<u8>> = Tree::read(&to)
        .entries
        .keys()
        .filter_map(|name| std::fs::read(to.join(name)).ok())
        .collect();
    let missing: Vec<usize> = (0..FILES).filter(|n| !saved.contains(&bytes_of(*n))).collect();
    assert!(missing.is_empty(), "not saved: {missing:?}\n{out:#?}");
}

#[test]
fn a_flipped_bit_in_the_last_log_file_loses_no_synced_file() {
    needs_forebay!();
    for at in [2, 30, 60, 90] {
        let bed = died(&[]);
        flip(&last_log(&bed), at);
        is_refused_and_saved(&bed, "is damaged at record");
    }
    proof!("four times {FILES} files were saved");
}

/// A loss of power may take unsynced records, and only those.
#[test]
fn a_flipped_bit_is_found_after_a_loss_of_power_too() {
    needs_forebay!();
    let mut bed = died(&[("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000001")]);
    bed.env("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000002");
    flip(&last_log(&bed), 50);
    is_refused_and_saved(&bed, "is damaged at record");
    proof!("{FILES} files were saved");
}

#[test]
fn a_missing_log_file_loses_no_synced_file() {
    needs_forebay!();
    let bed = died(&[]);
    std::fs::remove_file(last_log(&bed)).unwrap();
    is_refused_and_saved(&bed, "is missing");
    proof!("{FILES} files were saved");
}
