//! The number of copies, what is copied, and where: `--copies 2`, `--copies-at write`,
//! `--failure-domain`.

use std::fs::File;
use std::io::Write;

use forebay_tests::cluster::{Cluster, HOLD, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, proof, text, within};

use crate::takeover::{COPIED, is_taken_over};
use crate::{random, write};

fn in_sync(cluster: &Cluster, asked: usize, of: &str) -> Vec<String> {
    let told = cluster.told(asked, of);
    let names = told["in_sync"].as_array().cloned().unwrap_or_default();
    names.into_iter().filter_map(|name| Some(name.as_str()?.to_string())).collect()
}

fn synced(path: &std::path::Path, bytes: &[u8]) {
    write(path, bytes);
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn with_two_copies_acknowledged_bytes_outlive_two_nodes() {
    needs_forebay!();
    needs_tools!("etcd");
    let flags = [HOLD, &["--copies", "2"]].concat();
    let mut cluster = Cluster::start(3, &flags);
    within(PATIENCE, "both others are partners", || in_sync(&cluster, 0, "n1").len() == 2);
    let bytes = random(3 << 20, 1);
    synced(&cluster.at(0, "large"), &bytes);
    for n in 0..20 {
        synced(&cluster.at(0, format!("small{n}")), &random(3000, n));
    }
    assert!(cluster.dirty(0) > 3 << 20, "nothing is home");
    // The home and the first-named partner die; the other partner stays.
    let first = in_sync(&cluster, 0, "n1")[0].clone();
    let (dies, stays) = if first == "n2" { (1, 2) } else { (2, 1) };
    cluster.nodes[0].crash();
    cluster.nodes[dies].crash();
    is_taken_over(&cluster, stays, "n1");
    reads(&cluster.at(stays, "large"), &bytes);
    (0..20).for_each(|n| reads(&cluster.at(stays, format!("small{n}")), &random(3000, n)));
    cluster.flush(stays);
    assert_eq!(cluster.stored("large").unwrap(), bytes);
    proof!("n1 and {first} died, {} has all 21 files", cluster.nodes[stays].name);
}

#[test]
fn with_copies_at_write_a_kill_right_after_a_write_loses_nothing() {
    needs_forebay!();
    needs_tools!("etcd");
    let flags = [COPIED, &["--copies-at", "write"]].concat();
    let mut cluster = Cluster::start(2, &flags);
    within(PATIENCE, "it has a partner", || in_sync(&cluster, 0, "n1").len() == 1);
    let mut file = File::create(cluster.at(0, "log")).unwrap();
    let mut want = Vec::new();
    for n in 0..50 {
        let line = format!("line {n} {}\n", "x".repeat(n * 37 % 2000));
        file.write_all(line.as_bytes()).unwrap();
        want.extend(line.as_bytes());
    }
    // The file is neither synced nor closed.
    cluster.nodes[0].kill9();
    drop(file);
    is_taken_over(&cluster, 1, "n1");
    reads(&cluster.at(1, "log"), &want);
    proof!("{} bytes were written and never synced", want.len());
}

#[test]
fn nodes_of_one_failure_domain_are_never_each_other_s_partner() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(3);
    for (node, domain) in [(0, "rack1"), (1, "rack1"), (2, "rack2")] {
        cluster.nodes[node].set_flag("--failure-domain", domain);
        cluster.nodes[node].set_flag("--copies", "2");
        cluster.mount(node, HOLD);
    }
    within(PATIENCE, "all partners are found", || {
        in_sync(&cluster, 0, "n1") == ["n3"]
            && in_sync(&cluster, 0, "n2") == ["n3"]
            && in_sync(&cluster, 0, "n3").len() == 2
    });
    synced(&cluster.at(0, "f"), b"in both racks");
    let page = cluster.forebay(0, &["status", "--cluster", text(&cluster.nodes[0].mnt)]).ok();
    let of_n1 = page.stdout.lines().find(|line| line.starts_with("n1")).unwrap_or_default();
    assert!(of_n1.contains("n3, 1 MISSING"), "{}", page.stdout);
    // The only node of another rack leaves: then there is no partner, rather than a neighbour.
    cluster.umount(2);
    within(PATIENCE, "n3 is no partner any more", || {
        synced(&cluster.at(0, "f"), b"in one rack");
        synced(&cluster.at(1, "g"), b"in one rack");
        in_sync(&cluster, 0, "n1").is_empty() && in_sync(&cluster, 0, "n2").is_empty()
    });
    for n in 0..20 {
        synced(&cluster.at(0, "f"), &random(1000, n));
        synced(&cluster.at(1, "g"), &random(1000, n));
        assert!(in_sync(&cluster, 0, "n1").is_empty() && in_sync(&cluster, 0, "n2").is_empty());
    }
    // The node comes back, and is chosen again.
    cluster.mount(2, HOLD);
    within(PATIENCE, "n3 is a partner again", || in_sync(&cluster, 0, "n1") == ["n3"]);
}
