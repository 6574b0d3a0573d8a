//! Files that all nodes read are read from the store once.

use forebay_tests::cluster::{Cluster, HOLD, difference, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, text, within};

use crate::{random, write};

const SHARE: &[&str] =
    &["--preset", "hold", "--entry-ttl", "100ms", "--attr-ttl", "100ms", "--share-reads"];

/// The bytes that a node has read from the store, and from other nodes.
fn fetched(cluster: &Cluster, node: usize) -> (u64, u64) {
    let mnt = text(&cluster.nodes[node].mnt);
    let stats = cluster.forebay(node, &["stats", "--json", mnt]).ok().json();
    let count = |name: &str| stats["counters"][name].as_u64().expect("a counter");
    (count("fill_bytes"), count("near_bytes"))
}

// S-25
#[test]
fn a_dataset_that_all_nodes_read_leaves_the_store_once() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::laid(4);
    let (large, small) = (random(20 << 20, 1), random(20_000, 2));
    write(&cluster.backing.join("large"), &large);
    for n in 0..50 {
        write(&cluster.backing.join(format!("small{n}")), &small);
    }
    let mut cluster = cluster;
    (0..4).for_each(|node| cluster.mount(node, SHARE));
    within(PATIENCE, "all know of each other", || {
        (0..4).all(|node| (1..=4).all(|of| cluster.is_alive(node, &format!("n{of}"))))
    });
    std::thread::scope(|scope| {
        for node in 0..4 {
            let (cluster, large, small) = (&cluster, &large, &small);
            scope.spawn(move || {
                assert_eq!(difference(&read(&cluster.at(node, "large")).unwrap(), large), None);
                for n in 0..50 {
                    assert!(read(&cluster.at(node, format!("small{n}"))).unwrap() == *small);
                }
            });
        }
    });
    let of: Vec<(u64, u64)> = (0..4).map(|node| fetched(&cluster, node)).collect();
    let (store, near): (u64, u64) =
        (of.iter().map(|(store, _)| store).sum(), of.iter().map(|(_, near)| near).sum());
    let size = (large.len() + 50 * small.len()) as u64;
    assert!(store <= size * 105 / 100, "{size} bytes were read, the store gave {store}: {of:?}");
    assert!(near >= size * 290 / 100, "three of four got theirs from another: {of:?}");
}

/// Other nodes do not wait for a reader that dies, and its bytes never hide newer ones.
#[test]
fn the_reader_for_all_may_die_and_written_bytes_are_seen() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, SHARE);
    let before = random(9 << 20, 1);
    write(&cluster.backing.join("f"), &before);
    assert_eq!(difference(&read(&cluster.at(0, "f")).unwrap(), &before), None);
    let after = random(9 << 20, 2);
    write(&cluster.at(1, "f"), &after);
    for node in 0..3 {
        reads(&cluster.at(node, "f"), &after);
    }
    cluster.flush(1);
    for node in 0..3 {
        reads(&cluster.at(node, "f"), &after);
    }
    write(&cluster.backing.join("g"), &before);
    cluster.nodes[2].kill9();
    for node in 0..2 {
        assert_eq!(difference(&read(&cluster.at(node, "g")).unwrap(), &before), None);
    }
}

#[test]
fn a_prefetch_on_all_nodes_fetches_once_and_names_what_failed() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, SHARE);
    let bytes = random(6 << 20, 1);
    std::fs::create_dir(cluster.backing.join("d")).unwrap();
    for n in 0..4 {
        write(&cluster.backing.join(format!("d/{n}")), &bytes);
    }
    let dir = cluster.at(0, "d");
    let job = cluster.forebay(0, &["prefetch", "--all-nodes", "--json", text(&dir)]).ok().json();
    assert_eq!(job["report"]["files"], 4, "{job:#}");
    let size = 4 * bytes.len() as u64;
    let of: Vec<(u64, u64)> = (0..3).map(|node| fetched(&cluster, node)).collect();
    let store: u64 = of.iter().map(|(store, _)| store).sum();
    assert!(of.iter().all(|(store, near)| store + near == size), "each has all of it: {of:?}");
    assert!(store <= size * 105 / 100, "the store gave {store} for {size}: {of:?}");
    std::fs::remove_dir_all(cluster.backing.join("d")).unwrap();
    // A node that stands still is named, and the wait for it is bounded.
    write(&cluster.backing.join("one"), &bytes);
    cluster.nodes[2].pause();
    let one = cluster.at(0, "one");
    let out = cluster.forebay(0, &["prefetch", "--all-nodes", text(&one)]);
    cluster.nodes[2].resume();
    assert_eq!(out.code, Some(1), "{out:#?}");
    assert!(out.stderr.contains("member n3"), "{out:#?}");
    let alone = Cluster::laid(1);
    let node = alone.stranger("alone", &[]);
    assert_eq!(node.try_mount(None, HOLD).code, Some(0));
    let out = node.forebay(None, &["prefetch", "--all-nodes", text(&node.mnt)]);
    assert_eq!(out.code, Some(2), "{out:#?}");
    assert!(out.stderr.contains("--registry"), "{out:#?}");
}
