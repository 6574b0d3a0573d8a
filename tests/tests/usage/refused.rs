//! Meaningless settings are refused, or at least reported, with the remedy.

use std::fs;
use std::path::Path;

use forebay_tests::{Bed, Faults, Tier, forebay_env, needs_forebay, proof, text};

#[test]
fn a_rate_of_nothing_is_refused_at_mount_and_at_run_time() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for flags in [["--rate-max", "0"], ["--rate-max", "0MB/s"], ["--schedule", "always=0MB/s"]] {
        let out = bed.try_mount(&flags).expect(2);
        assert!(out.stderr.contains(flags[0]), "{out:#?}");
    }
    let mounted = bed.mount(&[]);
    let out = mounted.forebay(&["set", text(&mounted.path), "rate-max=0"]).expect(2);
    assert!(out.stderr.contains("none") && out.stderr.contains("hold"), "{out:#?}");
    mounted.umount();
}

#[test]
fn a_quota_or_a_pin_for_what_is_kept_out_is_refused() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    for more in [&["--quota", "1GiB"][..], &["--pin"]] {
        let rule = ["rules", "add", text(&mounted.path), "logs", "deny", "--path", "*.log"];
        let out = mounted.forebay(&[&rule, more].concat()).expect(2);
        assert!(out.stderr.contains("kept out"), "{out:#?}");
    }
    mounted.umount();
}

#[test]
fn a_variable_that_nobody_knows_is_told() {
    needs_forebay!();
    let env = |name: &str| {
        let env = [(name.to_string(), "1".to_string())];
        forebay_env(&["config", "show"], &env).ok().stderr
    };
    assert!(env("FOREBAY_DIRTY_HIHG").contains("did you mean FOREBAY_DIRTY_HIGH?"));
    assert!(env("FOREBAY_NONSENSE").contains("FOREBAY_NONSENSE is not a setting"));
    assert_eq!(env("FOREBAY_TEST_DIR"), "");
}

/// The mount is gone when `run` ends, and no message may claim otherwise.
#[test]
fn run_says_of_the_mount_only_what_is_so() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let faults = Faults::none(&bed);
    faults.set(serde_json::json!([{ "op": "write_at", "path": "f", "fail": "EIO" }]));
    let places = ["run", "--backing", text(&bed.backing), "--tier", text(&bed.tier)];
    let spot = ["--mountpoint", text(&bed.mnt), "--fault", faults.path()];
    let command = ["--", "sh", "-c", "echo bytes > f"];
    let out = bed.forebay(&[&places[..], &spot, &command].concat()).expect(4);
    assert!(!out.stderr.contains("still mounted"), "{out:#?}");
    assert!(out.stderr.contains("6 B in 1 file stay dirty in the tier; unmounted"), "{out:#?}");
    assert_eq!(forebay_tests::images::mounted_at(&bed.mnt), None);
    faults.clear();
    bed.forebay(&["recover", text(&bed.tier)]).ok();
    assert_eq!(std::fs::read(bed.backing.join("f")).unwrap(), b"bytes\n");
    proof!("{}", out.stderr.trim());
}

/// Advice to create the directory would be wrong: the tier belongs to one that is only not mounted.
#[test]
fn a_store_that_is_not_mounted_is_not_to_be_created() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let new = bed.root.join("new");
    let mount = |backing: &Path| {
        let words = ["mount", text(backing), text(&bed.mnt), "--tier", text(&bed.tier)];
        bed.forebay(&words).expect(2).stderr
    };
    assert!(mount(&new).contains("mkdir -p"), "a new tier may have a new store");
    bed.mount(&[]).umount();
    fs::rename(&bed.backing, bed.root.join("aside")).unwrap();
    let said = mount(&bed.backing);
    assert!(said.contains("mount the file system"), "{said}");
    assert!(said.contains(text(&bed.tier)) && !said.contains("mkdir"), "{said}");
    fs::create_dir(&bed.backing).unwrap();
    let said = mount(&bed.backing);
    assert!(said.contains("is the file system of the backing store mounted there?"), "{said}");
}
