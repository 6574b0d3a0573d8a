//! `forebay bench` on a forebay mount: it knows that the bytes are in the fast tier.

use forebay_tests::{Bed, Mounted, Out, Tier, needs_forebay, proof, text};
use serde_json::Value;

fn bench(mounted: &Mounted, words: &[&str]) -> Out {
    mounted.forebay(&[&["bench"], words].concat()).ok()
}

fn share(out: &Out, phase: &str) -> f64 {
    let line = out.stdout.lines().find(|line| line.starts_with(phase) && line.contains('%'));
    let line = line.unwrap_or_else(|| panic!("no share of {phase}: {out:#?}"));
    let percent = line.split('%').next().unwrap().split_whitespace().next_back().unwrap();
    percent.parse().unwrap()
}

/// The bytes that were just written are in the page cache of the shadow file.
#[test]
fn what_the_page_cache_holds_of_a_shadow_is_seen_and_emptied() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    let file = mounted.at("testFile");
    let line = ["ior", "-t", "1m", "-b", "8m", "-o", text(&file)];
    let kept = bench(&mounted, &line);
    assert!(share(&kept, "read 0") > 99.0, "{kept:#?}");
    assert!(kept.stdout.contains("was in the page cache"), "{kept:#?}");
    let emptied = bench(&mounted, &[&line[..], &["--cache", "fadvise"]].concat());
    assert!(share(&emptied, "read 0") < 50.0, "{emptied:#?}");
    proof!("{} % and {} %", share(&kept, "read 0"), share(&emptied, "read 0"));
    mounted.umount();
}

/// The benchmark reports a tier in memory, whatever file system the mount seems to be.
#[test]
fn a_tier_in_memory_is_told() {
    needs_forebay!();
    let bed = Bed::new(Tier::Tmpfs(256));
    let mounted = bed.mount(&["--preset", "hold"]);
    let file = mounted.at("testFile");
    let out = bench(&mounted, &["ior", "-t", "1m", "-b", "8m", "-o", text(&file)]);
    assert!(out.stdout.contains("lives in memory"), "{out:#?}");
    mounted.umount();
}

/// A checkpoint is on the backing store when a fence says so.
#[test]
fn a_checkpoint_ends_when_nothing_of_it_is_dirty() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold", "--throttle", "8MB/s,1ms"]);
    let json = bed.root.join("result.json");
    let line =
        ["checkpoint", text(&mounted.path), "-n", "2", "-s", "4m", "--bursts", "1", "--keep"];
    let out = bench(&mounted, &[&line[..], &["--json", text(&json)]].concat());
    assert!(out.text().contains("a fence of the mount says"), "{out:#?}");
    assert_eq!(mounted.number("dirty_bytes"), 0, "all of it is on the backing store");
    let result: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let after = find(&result, "after_last_burst_seconds").expect("a figure");
    // 8 MiB at 8 MB/s.
    assert!(after > 0.5, "{after}");
    proof!("durable {after:.2} s after the last burst");
    mounted.umount();
}

/// As with all commands, `--json` alone prints the document, and nothing else, on standard output.
#[test]
fn json_without_a_file_goes_to_standard_output() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let (dir, file) = (text(&bed.backing), bed.backing.join("testFile"));
    for line in [
        &["rates", dir, "-s", "1m", "--count", "20", "--json"][..],
        &["rates", "--json", "-", dir, "-s", "1m", "--count", "20"],
        &["mdtest", "--json", "-n", "5", "-d", dir],
        &["ior", "--json", "-t", "4k", "-b", "8k", "-o", text(&file)],
        &["compare", dir, dir, "-i", "5", "--json", "--", "rates", "-s", "1m", "--count", "20"],
    ] {
        let out = bed.forebay(&[&["bench"], line].concat()).ok();
        let found: Value = serde_json::from_str(&out.stdout).expect(&out.stdout);
        assert!(found.is_object() && !out.stderr.is_empty(), "{line:?}: {out:#?}");
    }
}

fn find(json: &Value, key: &str) -> Option<f64> {
    match json {
        Value::Object(map) => {
            let here = map.get(key).and_then(Value::as_f64);
            here.or_else(|| map.values().find_map(|value| find(value, key)))
        }
        Value::Array(all) => all.iter().find_map(|value| find(value, key)),
        _ => None,
    }
}
