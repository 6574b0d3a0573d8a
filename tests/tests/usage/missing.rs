//! A name that does not exist is reported as missing, by every command that takes names.
// S-5

use std::fs;
use std::os::unix::fs::symlink;

use forebay_tests::{Bed, Out, Tier, needs_forebay, proof, text};

const COMMANDS: [&[&str]; 8] = [
    &["flush", "--wait"],
    &["fence"],
    &["wait", "--durable"],
    &["evict"],
    &["prefetch"],
    &["pin"],
    &["unpin"],
    &["purge", "--yes"],
];

#[test]
fn a_name_that_is_nowhere_is_missing_and_one_that_is_not_cached_is_fine() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    fs::create_dir(bed.backing.join("old")).unwrap();
    fs::write(bed.backing.join("old/uncached"), "bytes").unwrap();
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::write(mounted.at("there"), [7; 5000]).unwrap();
    symlink("there", mounted.at("link")).unwrap();
    symlink("old", mounted.at("way")).unwrap();
    for command in COMMANDS {
        let run = |names: &[&str]| -> Out {
            let paths: Vec<_> = names.iter().map(|name| mounted.at(name)).collect();
            let paths: Vec<&str> = paths.iter().map(|path| text(path)).collect();
            mounted.forebay(&[command, &paths[..]].concat())
        };
        run(&["old"]).ok();
        for missing in ["typo", "old/typo", "there/typo", "link", "way/uncached"] {
            let out = run(&[missing]).expect(1);
            assert!(out.stderr.contains(&format!("{missing}: missing:")), "{out:#?}");
            assert_eq!(out.stderr.matches("missing:").count(), 1, "{out:#?}");
        }
    }
    assert_eq!(mounted.number("dirty_bytes"), 5000, "nobody named what is there");
    proof!("{} commands", COMMANDS.len());
    mounted.umount();
}

#[test]
fn what_else_was_named_is_done_all_the_same() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::write(mounted.at("there"), [7; 5000]).unwrap();
    let (there, typo) = (mounted.at("there"), mounted.at("typo"));
    let out = mounted.forebay(&["flush", "--wait", "--json", text(&typo), text(&there)]);
    let report = &out.expect(1).json()["report"];
    assert_eq!((&report["files"], &report["bytes"]), (&1.into(), &5000.into()), "{report:#}");
    assert_eq!(report["failures"][0]["state"], "missing", "{report:#}");
    assert_eq!(fs::read(bed.backing.join("there")).unwrap(), [7; 5000]);
    mounted.umount();
}

#[test]
fn ls_and_resolve_say_so_too() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    fs::write(bed.backing.join("uncached"), "bytes").unwrap();
    let mounted = bed.mount(&[]);
    let out = mounted.forebay(&["ls", text(&mounted.at("typo"))]).expect(1);
    assert!(out.stderr.contains("No such file"), "{out:#?}");
    mounted.forebay(&["ls", text(&mounted.at("uncached"))]).ok();
    mounted.forebay(&["resolve", text(&mounted.at("typo")), "--keep", "ours"]).expect(2);
    mounted.umount();
}
