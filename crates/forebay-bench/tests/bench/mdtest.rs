//! `forebay bench mdtest` from the outside.

use crate::harness::{bench, names};

const ROWS: [&str; 10] = [
    "Directory creation",
    "Directory stat",
    "Directory rename",
    "Directory removal",
    "File creation",
    "File stat",
    "File read",
    "File removal",
    "Tree creation",
    "Tree removal",
];

/// The mean of a row of the summary.
fn mean(out: &str, row: &str) -> Option<f64> {
    let line = out.lines().find(|line| line.trim_start().starts_with(row))?;
    line.split_whitespace().rev().nth(1)?.parse().ok()
}

#[test]
fn all_phases_run_and_nothing_is_left() {
    let home = tempfile::tempdir().expect("scratch");
    for flags in ["", "-u", "-N 1", "-R", "-L", "-k", "--threads", "-w 4k -e 4k -X -y", "-Y"] {
        let line = format!("mdtest -n 26 --tasks 2 -z 2 -b 3 -i 2 -d md {flags}");
        let run = bench(&line, home.path()).expect(0);
        assert!(run.out.contains("SUMMARY rate (in ops/sec): (of 2 iterations)"), "{}", run.out);
        for row in ROWS {
            assert!(
                mean(&run.out, row).is_some_and(|rate| rate > 0.0),
                "{flags} {row}: {}",
                run.out
            );
        }
        assert_eq!(names(home.path()), [""; 0], "{flags}: the directory it made is gone too");
    }
}

/// A directory that existed before stays, as does one with another user's files in it.
#[test]
fn only_what_the_run_made_is_removed() {
    let home = tempfile::tempdir().expect("scratch");
    std::fs::create_dir(home.path().join("mine")).expect("a directory");
    bench("mdtest -n 4 --tasks 3 -d mine@new", home.path()).expect(0);
    assert_eq!(names(home.path()), ["mine"]);
    bench("mdtest -n 4 -C -d new", home.path()).expect(0);
    std::fs::create_dir(home.path().join("mine/test-dir.1-0")).expect("a directory");
    let left = bench("mdtest -n 4 -i 2 --tasks 2 -d other@mine", home.path()).expect(2);
    assert!(left.err.contains("mine/test-dir.1-0 is left"), "{}", left.err);
    assert_eq!(names(home.path()), ["mine", "new"], "refused before anything is made");
}

/// Rank and item are in the contents, however short: a file in another's place is found.
#[test]
fn a_file_of_another_rank_or_item_does_not_verify() {
    let home = tempfile::tempdir().expect("scratch");
    for bytes in [4, 100, 5000] {
        let line = format!("mdtest -n 3 --tasks 2 -F -d md -w {bytes} -e {bytes}");
        bench(&format!("{line} -C"), home.path()).expect(0);
        let tree = home.path().join("md/test-dir.0-0/mdtest_tree.0");
        bench(&format!("{line} -E -X"), home.path()).expect(0);
        bench("mdtest -n 3 --tasks 2 -F -d md -e 3 -E -X", home.path()).expect(0);
        for other in ["file.mdtest.1.0", "file.mdtest.0.1"] {
            std::fs::copy(tree.join(other), tree.join("file.mdtest.0.0")).expect("writable");
            let wrong = bench(&format!("{line} -E -X"), home.path()).expect(1);
            assert!(wrong.err.contains("file.mdtest.0.0: offset"), "{}", wrong.err);
        }
        bench(&format!("{line} -r"), home.path()).expect(0);
    }
}

#[test]
fn phases_can_be_chosen_one_by_one() {
    let home = tempfile::tempdir().expect("scratch");
    let run = |flags: &str| bench(&format!("mdtest -n 20 -F -d md {flags}"), home.path());
    let stat = run("-T").expect(2);
    assert!(stat.err.contains("-C"), "{}", stat.err);
    run("-C -w 100").expect(0);
    let tree = home.path().join("md/test-dir.0-0/mdtest_tree.0");
    assert_eq!(names(&tree).len(), 20);
    let again = run("-C").expect(2);
    assert!(again.err.contains("left from an earlier run"), "{}", again.err);
    let stat = run("-T").expect(0);
    assert!(mean(&stat.out, "File stat").is_some_and(|rate| rate > 0.0));
    assert_eq!(mean(&stat.out, "File creation"), Some(0.0));
    let read = run("-E -e 100 -X").expect(0);
    assert!(mean(&read.out, "File read").is_some_and(|rate| rate > 0.0));
    std::fs::write(tree.join("file.mdtest.0.3"), vec![b'!'; 100]).expect("writable");
    let wrong = run("-E -e 100 -X").expect(1);
    assert!(wrong.err.contains("file.mdtest.0.3: offset 0"), "{}", wrong.err);
    run("-r").expect(0);
    assert!(names(&home.path().join("md")).is_empty());
}

#[test]
fn items_are_where_mdtest_puts_them() {
    let home = tempfile::tempdir().expect("scratch");
    bench("mdtest -I 2 -z 1 -b 2 -L -C --tasks 2 -u -d md", home.path()).expect(0);
    let top = home.path().join("md/test-dir.0-0");
    assert_eq!(names(&top), ["mdtest_tree.0.0", "mdtest_tree.1.0"]);
    let root = top.join("mdtest_tree.1.0");
    assert_eq!(names(&root), ["mdtest_tree.1.1", "mdtest_tree.1.2"]);
    let leaf = names(&root.join("mdtest_tree.1.2"));
    // Numbered as by mdtest: the root would have had 0 and 1.
    assert_eq!(leaf, ["dir.mdtest.1.4", "dir.mdtest.1.5", "file.mdtest.1.4", "file.mdtest.1.5"]);
}

#[test]
fn a_shared_tree_has_the_names_of_mdtest() {
    let home = tempfile::tempdir().expect("scratch");
    bench("mdtest -I 1 -z 2 -b 2 -F -C --tasks 2 -i 2 -d md", home.path()).expect(0);
    assert_eq!(names(&home.path().join("md")), ["test-dir.0-0", "test-dir.1-0"]);
    let root = home.path().join("md/test-dir.1-0/mdtest_tree.0");
    let deep = root.join("mdtest_tree.2/mdtest_tree.5");
    assert_eq!(names(&deep), ["file.mdtest.0.5", "file.mdtest.1.5"]);
    let found = ["file.mdtest.0.0", "file.mdtest.1.0", "mdtest_tree.1", "mdtest_tree.2"];
    assert_eq!(names(&root), found);
}

#[test]
fn results_are_recorded() {
    let home = tempfile::tempdir().expect("scratch");
    bench("mdtest -n 10 -d md --json r.json -Z", home.path()).expect(0);
    let text = std::fs::read_to_string(home.path().join("r.json")).expect("the document");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["phases"].as_array().map(Vec::len), Some(10), "{text}");
}

/// The lines of the IO500: creation ends by its deadline, and later runs use the items it made.
#[test]
fn a_stonewalled_creation_is_taken_up_by_later_runs() {
    let home = tempfile::tempdir().expect("a directory");
    let line = "mdtest -n 1000000 --tasks 2 -u -L -F -P -G 2053284211 -N 1 -d md -x stonewall -w 64 \
                -e 64 -Y -W 0.2 -a POSIX -V 1";
    let run = bench(&format!("{line} -C"), home.path()).expect(0);
    let text = std::fs::read_to_string(home.path().join("stonewall")).expect("kept");
    let items: usize = text.trim().parse().expect("a number");
    assert!((1..1_000_000).contains(&items), "{items}\n{}", run.out);
    for task in 0..2 {
        let tree = home.path().join(format!("md/test-dir.0-0/mdtest_tree.{task}.0"));
        assert_eq!(names(&tree).len(), items, "all tasks create as many");
    }
    bench(&format!("{line} -T"), home.path()).expect(0);
    bench(&format!("{line} -E -X"), home.path()).expect(0);
    let other = line.replace("-G 2053284211", "-G 1");
    bench(&format!("{other} -E -X"), home.path()).expect(1);
    bench(&format!("{line} -r"), home.path()).expect(0);
    assert!(names(&home.path().join("md")).is_empty());
}
