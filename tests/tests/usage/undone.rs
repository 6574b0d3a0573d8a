//! The traces of a command that fails.

use std::fs;
use std::net::TcpListener;

use forebay_tests::{Bed, Tier, needs_forebay, proof};

/// A failed mount removes everything that it has made; existing objects stay.
#[test]
fn a_mount_that_fails_leaves_no_new_tier_behind() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let fails: [&[&str]; 2] = [
        &["--metrics-listen", &address],
        &["--registry", "etcd://127.0.0.1:1/none", "--peer-listen", "127.0.0.1:0"],
    ];
    for flags in fails {
        let out = bed.try_mount(flags);
        assert!(out.code != Some(0) && !out.stderr.contains("stays"), "{flags:?}: {out:#?}");
        assert!(!bed.tier.exists(), "{flags:?}: its new tier is left");
        fs::create_dir(&bed.tier).unwrap();
        bed.try_mount(flags);
        assert!(bed.tier.join("forebay.json").exists(), "{flags:?}: it was there before");
        fs::remove_dir_all(&bed.tier).unwrap();
    }
    drop(taken);
    bed.mount(&[]).umount();
    proof!("{} ways to fail", fails.len());
}
