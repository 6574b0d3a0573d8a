//! Mapped files that another node serves: faults see the file's present state, and stores reach the home.

use std::fs::File;
use std::hint;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD, bounded, difference, read, reads};
use forebay_tests::sys::{Map, fallocate};
use forebay_tests::{PATIENCE, Switch, needs_forebay, needs_tools, proof, within};

use crate::takeover::{COPIED, has_partner, is_taken_over};
use crate::{append, appender, is_honest, random, write};

const PAGE: usize = 4096;

/// The nodes' cached names and sizes stay valid all through a test.
const BELIEVING: &[&str] = &["--preset", "hold", "--entry-ttl", "60s", "--attr-ttl", "60s"];

fn both(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// The file mapped for reading and writing, and closed: a program that this test starts inherits no descriptor of it.
fn mapped(path: &Path, len: usize) -> Map {
    Map::shared(&both(path), len, true).unwrap()
}

#[track_caller]
fn is_everywhere(cluster: &Cluster, name: &str, want: &[u8]) {
    for node in 0..cluster.nodes.len() {
        let found = read(&cluster.at(node, name)).unwrap();
        let differs = difference(&found, want);
        assert_eq!(differs, None, "{name} on n{}: {} bytes", node + 1, found.len());
    }
}

fn counter(cluster: &Cluster, node: usize, name: &str) -> u64 {
    let mnt = forebay_tests::text(&cluster.nodes[node].mnt);
    let all = cluster.forebay(node, &["stats", mnt, "--json"]).ok().json();
    all["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {all:#}"))
}

/// A cluster with requests over /dev/fuse, or over io_uring where the machine has it.
fn start(count: usize, flags: &[&str], transport: &str) -> Option<Cluster> {
    let switch = (transport == "io-uring").then(Switch::take);
    if let Some(switch) = &switch {
        switch.as_ref()?.set("Y");
    }
    Some(Cluster::start(count, &[flags, &["--transport", transport]].concat()))
}

// S-25
#[test]
fn a_mapping_elsewhere_has_what_was_written_before_its_open() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut rounds = 0;
    for transport in ["dev", "io-uring"] {
        let Some(cluster) = start(2, BELIEVING, transport) else { continue };
        let mut want = random(300_001, 1);
        let home = both_new(&cluster.at(0, "f"));
        home.write_all_at(&want, 0).unwrap();
        within(PATIENCE, "the other has heard of it", || cluster.claims(1, "n1") == 1);
        assert_eq!(std::fs::metadata(cluster.at(1, "f")).unwrap().len(), want.len() as u64);
        let mut old = Vec::new();
        for round in 0..6_u64 {
            let file = File::open(cluster.at(1, "f")).unwrap();
            let len = file.metadata().unwrap().len() as usize;
            assert_eq!(len, want.len(), "{transport}, round {round}: as numpy.load asks");
            let mut map = Map::shared(&file, len, false).unwrap();
            let found = map.bytes().to_vec();
            assert_eq!(difference(&found, &want), None, "{transport}, round {round}");
            // An old mapping that still exists, with its pages, disturbs no other.
            old.push(map);
            // After it has read pages the kernel asks again in any case; from then on it relies on the answer.
            let told = std::fs::metadata(cluster.at(1, "f")).unwrap().len();
            assert_eq!(told, want.len() as u64);
            let part = random(20_000, round + 2);
            let at = if round % 2 == 0 { want.len() } else { round as usize * 30_000 };
            home.write_all_at(&part, at as u64).unwrap();
            want.resize(want.len().max(at + part.len()), 0);
            want[at..at + part.len()].copy_from_slice(&part);
            rounds += 1;
        }
        home.set_len(1000).unwrap();
        let file = File::open(cluster.at(1, "f")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1000, "{transport}: it was cut");
        assert_eq!(Map::shared(&file, 1000, false).unwrap().bytes(), &want[..1000]);
    }
    proof!("{rounds} mappings");
}

fn both_new(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

// S-3 S-25
#[test]
fn what_is_stored_elsewhere_is_at_home_when_it_was_synced_or_unmapped() {
    needs_forebay!();
    needs_tools!("etcd");
    for transport in ["dev", "io-uring"] {
        let Some(cluster) = start(3, HOLD, transport) else { continue };
        let mut want = random(50 * PAGE + 100, 1);
        write(&cluster.at(0, "f"), &want);
        let mut map = mapped(&cluster.at(1, "f"), want.len());
        for round in 0..20_usize {
            let at = round * 2 * PAGE + round * 37;
            let part = random(3000, round as u64);
            map.bytes()[at..at + 3000].copy_from_slice(&part);
            want[at..at + 3000].copy_from_slice(&part);
            // A descriptor of the same node sees the stores before that.
            let found = read(&cluster.at(1, "f")).unwrap();
            assert_eq!(difference(&found, &want), None, "{transport}, round {round}: on its node");
            let synced = counter(&cluster, 0, "syncs");
            map.sync().unwrap();
            assert!(counter(&cluster, 0, "syncs") > synced, "{transport}: it is durable at home");
            is_everywhere(&cluster, "f", &want);
        }
        map.bytes()[want.len() - 7..].copy_from_slice(b"the end");
        let len = want.len();
        want[len - 7..].copy_from_slice(b"the end");
        drop(map);
        is_everywhere(&cluster, "f", &want);
        cluster.flush(0);
        assert_eq!(difference(&cluster.stored("f").unwrap(), &want), None, "{transport}");
    }
    proof!("stores came home by msync and munmap");
}

/// The home makes the file longer while another node has changed the page of its end: the appended bytes are not
/// overwritten with the zeros that the page has there, however long the kernel there takes the file to be.
// S-25
#[test]
fn a_page_of_the_former_end_does_not_come_over_what_was_appended() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    let ways = [("unseen", 300, false), ("seen", 300, true), ("pages", 30_000, true)];
    for (name, grows, is_seen) in ways {
        let mut want = random(100, 1);
        write(&cluster.at(0, name), &want);
        let mut map = mapped(&cluster.at(1, name), 40_000);
        map.bytes()[5] = b'5';
        want[5] = b'5';
        let more = random(grows, 2);
        append(&cluster.at(0, name), &more).unwrap();
        want.extend(&more);
        if is_seen {
            within(PATIENCE, "its size shows", || {
                std::fs::metadata(cluster.at(1, name)).unwrap().len() == want.len() as u64
            });
        }
        map.sync().unwrap();
        is_everywhere(&cluster, name, &want);
        // Once more, in a page that is clean by now.
        map.bytes()[6] = b'6';
        want[6] = b'6';
        append(&cluster.at(2, name), b"of the third").unwrap();
        want.extend(b"of the third");
        within(PATIENCE, "its size shows", || {
            std::fs::metadata(cluster.at(1, name)).unwrap().len() == want.len() as u64
        });
        map.bytes()[110] = b'7';
        want[110] = b'7';
        map.sync().unwrap();
        is_everywhere(&cluster, name, &want);
    }
    proof!("nothing appended was lost");
}

/// A program follows a growing file through a mapping for reading, then another program of its node maps the file to
/// store in the page of its end, which the follower has read before.
// S-25
#[test]
fn a_store_beside_a_follower_keeps_the_appended_bytes() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let mut want = random(100, 1);
    write(&cluster.at(0, "f"), &want);
    let file = File::open(cluster.at(1, "f")).unwrap();
    let mut follows = Map::shared(&file, 1 << 20, false).unwrap();
    let grow = |want: &mut Vec<u8>, round| {
        let more = random(3000, round);
        append(&cluster.at(0, "f"), &more).unwrap();
        want.extend(more);
    };
    let shows = |want: &[u8]| {
        within(PATIENCE, "its size shows", || {
            std::fs::metadata(cluster.at(1, "f")).unwrap().len() == want.len() as u64
        });
    };
    for round in 2..12 {
        // The page of the end, with zeros behind it; or as it was when it was first read.
        hint::black_box(follows.bytes()[want.len() - 1]);
        grow(&mut want, round);
        shows(&want);
    }
    let mut map = mapped(&cluster.at(1, "f"), 1 << 20);
    for round in 12..20 {
        let at = want.len() - 10;
        hint::black_box(follows.bytes()[at]);
        map.bytes()[at] = b'S';
        want[at] = b'S';
        grow(&mut want, round);
        shows(&want);
        map.sync().unwrap();
        is_everywhere(&cluster, "f", &want);
    }
    proof!("{} bytes were followed", want.len());
}

/// The home cuts the file, and makes it longer again: pages that were changed elsewhere before do not make it longer,
/// and bring back nothing but their own bytes.
// S-25
#[test]
fn pages_behind_a_new_end_are_not_brought_back() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    for (name, is_seen, grows) in
        [("cut", false, 0), ("seen", true, 0), ("longer", false, 1000), ("both", true, 1000)]
    {
        let mut want = random(3 * PAGE, 1);
        write(&cluster.at(0, name), &want);
        let mut map = mapped(&cluster.at(1, name), want.len());
        for page in [0, 2] {
            map.bytes()[page * PAGE + 5] = b'5';
        }
        want[5] = b'5';
        let home = both(&cluster.at(0, name));
        home.set_len(5000).unwrap();
        want.truncate(5000);
        let more = random(grows, 2);
        home.write_all_at(&more, 5000).unwrap();
        want.extend(&more);
        if is_seen {
            within(PATIENCE, "its size shows", || {
                std::fs::metadata(cluster.at(1, name)).unwrap().len() == want.len() as u64
            });
        }
        map.sync().unwrap();
        is_everywhere(&cluster, name, &want);
        drop(map);
        is_everywhere(&cluster, name, &want);
    }
    proof!("what was cut off stayed away");
}

/// A program makes the file longer itself, and stores behind its former end.
#[test]
fn what_is_stored_behind_an_end_that_its_own_node_has_moved_counts() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    type Grow = fn(&File);
    let ways: [(&str, Grow); 3] = [
        ("allocated", |file| fallocate(file, 0, 0, 2 * PAGE as u64).unwrap()),
        ("sized", |file| file.set_len(2 * PAGE as u64).unwrap()),
        ("written", |file| file.write_all_at(&[0], 2 * PAGE as u64 - 1).unwrap()),
    ];
    for (name, grow) in ways {
        let mut want = random(100, 1);
        write(&cluster.at(0, name), &want);
        let file = both(&cluster.at(1, name));
        let mut map = Map::shared(&file, 2 * PAGE, true).unwrap();
        map.bytes()[5] = b'5';
        grow(&file);
        want.resize(2 * PAGE, 0);
        want[5] = b'5';
        for (value, is_last) in [(b'1', false), (0, false), (b'2', true)] {
            for at in [200, 3000, 5000] {
                map.bytes()[at] = value;
                want[at] = value;
            }
            map.sync().unwrap();
            if !is_last {
                is_everywhere(&cluster, name, &want);
            }
        }
        drop((map, file));
        is_everywhere(&cluster, name, &want);
    }
    proof!("three ways to grow");
}

/// Pages are written to their place even if the descriptor appends, on either node.
// S-25
#[test]
fn pages_of_a_descriptor_that_appends_come_home_to_their_place() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, &[HOLD, &["--passthrough", "off"]].concat());
    let mut want = random(3 * PAGE, 1);
    write(&cluster.at(0, "log"), &want);
    for node in [1, 0] {
        let mut options = File::options();
        let options = options.read(true).write(true).custom_flags(libc::O_APPEND);
        let file = options.open(cluster.at(node, "log")).unwrap();
        let mut map = Map::shared(&file, want.len(), true).unwrap();
        map.bytes()[PAGE..PAGE + 4].copy_from_slice(b"page");
        want[PAGE..PAGE + 4].copy_from_slice(b"page");
        map.sync().unwrap();
        is_everywhere(&cluster, "log", &want);
        map.bytes()[7] = node as u8;
        want[7] = node as u8;
        drop((map, file));
        append(&cluster.at(node, "log"), b"a line\n").unwrap();
        want.extend(b"a line\n");
        is_everywhere(&cluster, "log", &want);
    }
    proof!("mappings of two appending descriptors");
}

/// The claim is given back, and the node that has the file mapped becomes its home, where programs are passed
/// through. The mapping goes on beside them.
#[test]
fn a_mapping_outlives_that_its_own_node_becomes_the_home() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, &[HOLD, &["--passthrough", "always"]].concat());
    // Large, so that some of the pages that are read together are still missing.
    let mut want = random(8 << 20, 1);
    write(&cluster.at(0, "f"), &want);
    let file = File::open(cluster.at(1, "f")).unwrap();
    let mut map = Map::shared(&file, want.len(), false).unwrap();
    assert_eq!(map.bytes()[..PAGE], want[..PAGE]);
    cluster.gives_back(0);
    std::thread::sleep(Duration::from_millis(300)); // The name is looked up again.
    let mut options = File::options();
    let near = options.read(true).write(true).truncate(true).open(cluster.at(1, "f")).unwrap();
    want = random(8 << 20, 2);
    near.write_all_at(&want, 0).unwrap();
    for round in 1..=3_u8 {
        let also = both(&cluster.at(1, "f"));
        let mut native = Map::shared(&also, want.len(), true).unwrap();
        let at = usize::from(round) * (2 << 20);
        also.write_all_at(&[round; 100], at as u64).unwrap();
        native.bytes()[at + 100..at + 200].fill(b'm');
        want[at..at + 100].fill(round);
        want[at + 100..at + 200].fill(b'm');
        // A missing page comes with the file's present bytes.
        let found = map.bytes()[at..at + 200].to_vec();
        assert_eq!(difference(&found, &want[at..at + 200]), None, "round {round}");
    }
    assert!(counter(&cluster, 1, "passthrough_writes") > 0, "programs are passed through here");
    drop(near);
    within(PATIENCE, "it is served here", || cluster.claims(0, "n2") == 1);
    is_everywhere(&cluster, "f", &want);
    cluster.flush(1);
    assert_eq!(difference(&cluster.stored("f").unwrap(), &want), None, "on the store");
    drop((map, file));
    is_everywhere(&cluster, "f", &want);
    proof!("three native writers beside a mapping from before");
}

/// With copies: unsynced stores whose home died reach the node that takes its place.
#[test]
fn what_was_stored_comes_to_the_heir_of_a_dead_home() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, COPIED);
    has_partner(&cluster, 0);
    let mut want = random(10 * PAGE, 1);
    write(&cluster.at(0, "f"), &want);
    File::open(cluster.at(0, "f")).unwrap().sync_all().unwrap();
    let mut map = mapped(&cluster.at(1, "f"), want.len());
    map.bytes()[10..15].copy_from_slice(b"first");
    want[10..15].copy_from_slice(b"first");
    map.sync().unwrap();
    map.bytes()[PAGE..PAGE + 6].copy_from_slice(b"second");
    want[PAGE..PAGE + 6].copy_from_slice(b"second");
    cluster.nodes[0].crash();
    is_taken_over(&cluster, 1, "n1");
    let ((synced, map), took) = bounded("an msync", move || (map.sync(), map));
    let mut map = map;
    synced.unwrap();
    reads(&cluster.at(1, "f"), &want);
    let near = both(&cluster.at(1, "f"));
    near.write_all_at(b"native", 2 * PAGE as u64).unwrap();
    want[2 * PAGE..2 * PAGE + 6].copy_from_slice(b"native");
    map.bytes()[3 * PAGE] = b'3';
    want[3 * PAGE] = b'3';
    map.sync().unwrap();
    drop((map, near));
    reads(&cluster.at(1, "f"), &want);
    cluster.flush(1);
    assert_eq!(difference(&cluster.stored("f").unwrap(), &want), None, "on the store");
    proof!("synced after {took:?}");
}

/// Other programs append all the time while the first page is changed through a mapping, and the size is asked for.
#[test]
fn no_line_is_lost_beside_a_mapping_of_the_page_it_goes_to() {
    needs_forebay!();
    needs_tools!("etcd");
    // All lines of both nodes are in the first page.
    const LINES: usize = 220;
    for mapper in [1, 0] {
        let cluster =
            Cluster::start(3, &["--preset", "hold", "--attr-ttl", "5ms", "--passthrough", "off"]);
        let mut want = b"head".to_vec();
        write(&cluster.at(0, "log"), &want);
        let mut map = mapped(&cluster.at(mapper, "log"), 1 << 20);
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for node in [1 - mapper, 2] {
                let mut log = appender(&cluster.at(node, "log")).unwrap();
                let done = &done;
                scope.spawn(move || {
                    for n in 0..LINES {
                        log.write_all(format!("n{node} {n:05}\n").as_bytes()).unwrap();
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    done.fetch_add(1, SeqCst);
                });
            }
            for round in 0.. {
                map.bytes()[..4].copy_from_slice(format!("{:04}", round % 10_000).as_bytes());
                let size = std::fs::metadata(cluster.at(mapper, "log")).unwrap().len();
                if round % 3 == 0 {
                    map.sync().unwrap();
                }
                assert!(size >= 4);
                if done.load(SeqCst) == 2 {
                    break;
                }
            }
        });
        map.bytes()[..4].copy_from_slice(b"head");
        map.sync().unwrap();
        let found = read(&cluster.at(0, "log")).unwrap();
        let (mut next, mut wrong) = ([0; 3], Vec::new());
        for line in String::from_utf8_lossy(&found[4..]).lines() {
            let node = if line.starts_with("n2") { 2 } else { 1 - mapper };
            match line == format!("n{node} {:05}", next[node]) {
                true => next[node] += 1,
                false => wrong.push(line.to_string()),
            }
        }
        want.truncate(4);
        assert_eq!(found[..4], want);
        let mut all = [LINES; 3];
        all[mapper] = 0;
        assert_eq!((next, wrong), (all, vec![]), "mapped on n{}", mapper + 1);
    }
    proof!("{LINES} lines of each of two nodes");
}

/// A page that cannot be fetched is an error in the end, and so is one that cannot be written back.
// S-25
#[test]
fn a_dead_home_fails_faults_and_syncs_within_bounds() {
    needs_forebay!();
    needs_tools!("etcd");
    for how in ["killed", "stopped"] {
        let mut cluster = Cluster::start(2, HOLD);
        let want = random(10 * PAGE, 1);
        let mut all = Vec::new();
        for name in ["faults", "stores"] {
            write(&cluster.at(0, name), &want);
            all.push(mapped(&cluster.at(1, name), 4 << 20));
        }
        all[1].bytes()[0] = !want[0];
        match how {
            "killed" => cluster.nodes[0].kill9(),
            _ => cluster.nodes[0].pause(),
        }
        let (faults, stores) = (all.remove(0), all.remove(0));
        let ((fault, faults), took) =
            bounded("a fault", move || (faults.populate(5 * PAGE..6 * PAGE), faults));
        let why = fault.expect_err("its home is dead");
        assert_eq!(why.raw_os_error(), Some(libc::EFAULT), "what kills a program with SIGBUS");
        proof!("{how}: a fault failed after {took:?}");
        let ((synced, stores), took) = bounded("an msync", move || (stores.sync(), stores));
        let why = synced.expect_err("its home is dead");
        assert!(is_honest(&why), "{how}: {why}");
        proof!("{how}: an msync failed after {took:?} with {why}");
        let (_, took) = bounded("munmap", move || drop((faults, stores)));
        proof!("{how}: munmap took {took:?}");
        // The node itself works.
        write(&cluster.at(1, "own"), b"own");
        let began = std::time::Instant::now();
        cluster.umount(1);
        proof!("{how}: an unmount took {:?}", began.elapsed());
    }
}
