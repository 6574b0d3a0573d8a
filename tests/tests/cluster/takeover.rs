//! Copies: bytes acknowledged by fsync survive the node that acknowledged them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::Duration;

use forebay_tests::cluster::{Cluster, Locker, bounded, difference, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, text, within};
use serde_json::Value;

use crate::{append, is_honest, random, write};

pub const COPIED: &[&str] =
    &["--preset", "hold", "--entry-ttl", "100ms", "--attr-ttl", "100ms", "--copies", "1"];

/// From the death of a node to the end of its take-over: its lease, and work.
pub const TAKEN: Duration = Duration::from_secs(60);

fn sync(path: &std::path::Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// A program that has a file open. This test itself does not: a child that it starts meanwhile would close the
/// descriptor, and wait for the node.
struct Holder(std::process::Child);

impl Holder {
    fn open(path: &std::path::Path) -> Holder {
        let script = r#"exec 3<>"$0"; echo open; read go
            printf 'of the old one' >&3 || exit; echo wrote; sync -d "$0" && echo synced"#;
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).arg(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("sh is there");
        let mut said = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut said).expect("it has the file open");
        Holder(child)
    }

    /// Ends the input, so that the program writes and syncs; returns the steps it did before one failed.
    fn write_and_sync(mut self) -> String {
        drop(self.0.stdin.take());
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).expect("it ends");
        self.0.wait().expect("it ends");
        said
    }
}

fn in_sync(cluster: &Cluster, asked: usize, of: &str) -> Vec<String> {
    let told = cluster.told(asked, of);
    let names = told["in_sync"].as_array().cloned().unwrap_or_default();
    names.into_iter().filter_map(|name| Some(name.as_str()?.to_string())).collect()
}

pub fn has_partner(cluster: &Cluster, of: usize) {
    let name = cluster.nodes[of].name.clone();
    within(PATIENCE, "it has a partner", || in_sync(cluster, of, &name).len() == 1);
}

fn taken(cluster: &Cluster, asked: usize, of: &str) -> Value {
    cluster.told(asked, of)["taken"].clone()
}

pub fn is_taken_over(cluster: &Cluster, asked: usize, of: &str) {
    within(TAKEN, "a partner has taken it over", || taken(cluster, asked, of)["done"] == true);
}

fn number(cluster: &Cluster, name: &str) -> usize {
    cluster.nodes.iter().position(|node| node.name == name).expect("a node of the cluster")
}

// S-25
#[test]
fn what_fsync_acknowledged_is_served_and_flushed_by_the_partner_of_a_dead_node() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, COPIED);
    has_partner(&cluster, 0);
    std::fs::create_dir(cluster.at(0, "d")).unwrap();
    let large = random(5 << 20, 1);
    write(&cluster.at(0, "d/large"), &large);
    sync(&cluster.at(0, "d/large"));
    for n in 0..40 {
        write(&cluster.at(0, format!("d/small{n}")), &random(3000, n));
        sync(&cluster.at(0, format!("d/small{n}")));
    }
    // Overwritten, appended to, cut and renamed after the first copy.
    let mut want = random(200_000, 7);
    write(&cluster.at(0, "f"), &want);
    sync(&cluster.at(0, "f"));
    let f = File::options().write(true).open(cluster.at(0, "f")).unwrap();
    f.write_all_at(&random(50_000, 8), 100_000).unwrap();
    want[100_000..150_000].copy_from_slice(&random(50_000, 8));
    f.sync_all().unwrap();
    f.set_len(180_000).unwrap();
    want.truncate(180_000);
    f.sync_all().unwrap();
    append(&cluster.at(0, "f"), b"the end").unwrap();
    want.extend(b"the end");
    sync(&cluster.at(0, "f"));
    std::fs::rename(cluster.at(0, "f"), cluster.at(0, "d/g")).unwrap();
    let reader = File::open(cluster.at(1, "d/g")).unwrap();
    assert!(cluster.dirty(0) > 0, "nothing is home");
    cluster.nodes[0].crash();
    let began = std::time::Instant::now();
    within(TAKEN, "a partner has taken it over", || taken(&cluster, 1, "n1")["done"] == true);
    println!("taken over {:?} after the death", began.elapsed());
    for node in [1, 2] {
        assert_eq!(difference(&read(&cluster.at(node, "d/large")).unwrap(), &large), None);
        assert_eq!(difference(&read(&cluster.at(node, "d/g")).unwrap(), &want), None);
        for n in 0..40 {
            let found = read(&cluster.at(node, format!("d/small{n}"))).unwrap();
            assert!(found == random(3000, n), "small{n} on node {node}");
        }
    }
    let mut bytes = vec![0; 1000];
    reader.read_exact_at(&mut bytes, 0).expect("who had it open goes on, at the new home");
    assert_eq!(bytes, want[..1000]);
    // The file is written like any other, and is flushed.
    let g = File::options().write(true).open(cluster.at(2, "d/g")).unwrap();
    g.write_all_at(b"written after", 10).unwrap();
    g.sync_all().unwrap();
    want[10..23].copy_from_slice(b"written after");
    drop(g);
    (1..3).for_each(|node| cluster.flush(node));
    assert_eq!(difference(&cluster.stored("d/g").unwrap(), &want), None);
    assert_eq!(difference(&cluster.stored("d/large").unwrap(), &large), None);
    for n in 0..40 {
        assert!(cluster.stored(format!("d/small{n}")).unwrap() == random(3000, n));
    }
    // Held until the dead node is known to have stopped.
    let by = taken(&cluster, 1, "n1")["by"].as_str().unwrap().to_string();
    assert!(cluster.claims(1, &by) >= 42, "what it flushed stays claimed");
    let mnt = cluster.nodes[1].mnt.clone();
    cluster.forebay(1, &["member", "stopped", text(&mnt), "n1", "--confirm", "n1"]).ok();
    within(TAKEN, "all is given back", || cluster.claims(1, &by) == 0);
    assert_eq!(difference(&cluster.stored("d/g").unwrap(), &want), None);
}

// S-25
#[test]
fn an_open_or_a_write_right_after_the_homes_death_waits_for_the_heir() {
    needs_forebay!();
    needs_tools!("etcd");
    // The kernels keep their cached names: an open goes to the dead home.
    let patient = &["--preset", "hold", "--entry-ttl", "60s", "--attr-ttl", "60s", "--copies", "1"];
    let mut cluster = Cluster::start(3, patient);
    has_partner(&cluster, 0);
    let was = random(100_000, 3);
    for name in ["read", "written"] {
        write(&cluster.at(0, name), &was);
        sync(&cluster.at(0, name));
        assert_eq!(difference(&read(&cluster.at(1, name)).unwrap(), &was), None);
    }
    let open = File::options().write(true).open(cluster.at(1, "written")).unwrap();
    cluster.nodes[0].crash();
    let path = cluster.at(1, "read");
    let reads = std::thread::spawn(move || bounded("an open", move || std::fs::read(path)));
    let writes = bounded("a write", move || {
        open.write_all_at(b"after the death", 10)?;
        open.sync_all()
    });
    let (found, waited) = reads.join().unwrap();
    println!("the open waited {waited:?}, the write {:?}", writes.1);
    assert!(waited > Duration::from_secs(2), "it came before the heir: {waited:?}");
    assert_eq!(difference(&found.expect("the heir has it"), &was), None);
    // The home had the bytes that were synced before, and nothing else was lost with it: the handle works on at the
    // heir.
    writes.0.expect("the heir takes it");
    is_taken_over(&cluster, 1, "n1");
    let mut want = was;
    want[10..25].copy_from_slice(b"after the death");
    for node in [1, 2] {
        assert_eq!(difference(&read(&cluster.at(node, "written")).unwrap(), &want), None);
    }
}

/// A taker that dies when a file is its own already, and not claimed yet, goes on when it is back: the dead home's
/// claim stands until then, and its acknowledged bytes are served.
// S-25
#[test]
fn a_taker_that_dies_between_adopting_and_claiming_goes_on_when_it_is_back() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(2);
    cluster.mount(0, COPIED);
    cluster.nodes[1].env.push(("FOREBAY_FAILPOINTS".into(), "adopt.done".into()));
    cluster.mount(1, COPIED);
    has_partner(&cluster, 0);
    for name in ["f", "g"] {
        write(&cluster.at(0, name), &random(100_000, 5));
        sync(&cluster.at(0, name));
    }
    cluster.nodes[0].crash();
    within(TAKEN, "its heir dies, too", || !cluster.nodes[1].is_running());
    cluster.nodes[1].env.clear();
    cluster.nodes[1].crash();
    cluster.mount(1, COPIED);
    is_taken_over(&cluster, 1, "n1");
    for name in ["f", "g"] {
        reads(&cluster.at(1, name), &random(100_000, 5));
    }
    cluster.flush(1);
    for name in ["f", "g"] {
        assert_eq!(difference(&cluster.stored(name).unwrap(), &random(100_000, 5)), None);
    }
}

/// A node that comes back finds its files at another node. Bytes that were taken over are dropped, whatever became of
/// the file since; newer ones are kept aside.
// S-25
#[test]
fn a_node_that_comes_back_flushes_nothing_that_was_taken_over() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, COPIED);
    has_partner(&cluster, 0);
    for name in ["same", "newer", "gone", "over", "both"] {
        write(&cluster.at(0, name), &random(100_000, 1));
        sync(&cluster.at(0, name));
    }
    // Never acknowledged as durable.
    let newer = ["newer", "both"].map(|name| {
        let newer = File::options().write(true).open(cluster.at(0, name)).unwrap();
        newer.write_all_at(b"not synced", 50_000).unwrap();
        newer
    });
    cluster.nodes[0].crash();
    drop(newer);
    within(TAKEN, "its partner has taken it over", || taken(&cluster, 1, "n1")["done"] == true);
    std::fs::remove_file(cluster.at(1, "gone")).unwrap();
    write(&cluster.at(1, "other"), b"of the new home");
    for name in ["over", "both"] {
        write(&cluster.at(1, name), &random(90_000, 2));
        sync(&cluster.at(1, name));
    }
    cluster.mount(0, COPIED);
    for node in 0..2 {
        for name in ["same", "newer"] {
            reads(&cluster.at(node, name), &random(100_000, 1));
        }
        for name in ["over", "both"] {
            reads(&cluster.at(node, name), &random(90_000, 2));
        }
    }
    assert!(read(&cluster.at(0, "gone")).is_err(), "it was removed");
    within(PATIENCE, "what is newer is kept aside, and nothing else", || {
        let all = cluster.nodes[0].log().matches("taken over: nothing here is newer").count();
        all == 3 && cluster.status(0)["conflicted_files"].as_u64() == Some(2)
    });
    (0..2).for_each(|node| {
        drop(cluster.forebay(node, &["flush", "--wait", text(&cluster.nodes[node].mnt)]))
    });
    for name in ["same", "newer"] {
        assert_eq!(difference(&cluster.stored(name).unwrap(), &random(100_000, 1)), None);
    }
    assert!(cluster.stored("gone").is_err());
    // The node has restarted, which proves that its old process has stopped: everything is settled by itself.
    within(TAKEN, "all is given back", || cluster.claims(0, "n2") == 0);
    for (name, bytes) in [("newer", random(100_000, 1)), ("both", random(90_000, 2))] {
        let kept = cluster.at(0, name);
        cluster.forebay(0, &["resolve", text(&kept), "--keep", "theirs"]).ok();
        reads(&kept, &bytes);
    }
    within(PATIENCE, "the taker knows nothing of it any more", || {
        std::fs::read_dir(cluster.nodes[1].tier.join("taken")).unwrap().count() == 0
    });
    cluster.forebay(0, &["umount", text(&cluster.nodes[0].mnt)]).ok();
}

/// A partner that dies is removed before fsync succeeds, and another one is filled.
#[test]
fn a_partner_that_dies_is_replaced_and_fsync_goes_on() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, COPIED);
    has_partner(&cluster, 0);
    write(&cluster.at(0, "f"), &random(300_000, 1));
    sync(&cluster.at(0, "f"));
    let partner = in_sync(&cluster, 0, "n1").remove(0);
    let (first, other) = (number(&cluster, &partner), 3 - number(&cluster, &partner));
    cluster.nodes[first].kill9();
    let path = cluster.at(0, "f");
    let (synced, took) = bounded("an fsync while the partner is dead", move || {
        append(&path, b"more")?;
        File::open(&path)?.sync_all()
    });
    synced.expect("it goes on with fewer copies");
    assert!(took < Duration::from_secs(30), "{took:?}");
    let third = cluster.nodes[other].name.clone();
    within(TAKEN, "the third is filled", || in_sync(&cluster, 0, "n1") == [third.clone()]);
    let status = cluster.forebay(0, &["status", "--cluster", text(&cluster.nodes[0].mnt)]).ok();
    assert!(status.stdout.contains(&third), "{status:#?}");
    cluster.nodes[0].crash();
    within(TAKEN, "it takes over", || taken(&cluster, other, "n1")["done"] == true);
    let mut want = random(300_000, 1);
    want.extend(b"more");
    reads(&cluster.at(other, "f"), &want);
}

/// Where partners copy a file, its writers and its readers go through the daemon if other programs have it open.
#[test]
fn a_file_with_copies_is_written_while_others_read_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(2);
    for node in 0..2 {
        cluster.mount(node, COPIED);
    }
    has_partner(&cluster, 0);
    let path = cluster.at(0, "log");
    std::fs::write(&path, random(300_000, 1)).unwrap();
    let mut want = random(300_000, 1);
    let reader = File::open(&path).unwrap();
    let also = File::open(&path).unwrap();
    append(&path, b"appended").expect("beside two readers");
    want.extend(b"appended");
    let both = File::options().read(true).write(true).open(&path).expect("beside two readers");
    both.write_all_at(b"in the middle", 1000).unwrap();
    want[1000..1013].copy_from_slice(b"in the middle");
    both.sync_all().unwrap();
    for file in [&reader, &also, &both] {
        let mut bytes = vec![0; want.len()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(difference(&bytes, &want), None);
    }
    cluster.nodes[0].crash();
    within(TAKEN, "it takes over", || taken(&cluster, 1, "n1")["done"] == true);
    reads(&cluster.at(1, "log"), &want);
}

/// The node's tier fails at the restart: the partner's copies are all that is left.
// S-25
#[test]
fn a_node_whose_start_fails_is_taken_over() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, COPIED);
    has_partner(&cluster, 0);
    write(&cluster.at(0, "f"), b"synced");
    sync(&cluster.at(0, "f"));
    cluster.nodes[0].crash();
    let epoch = cluster.told(1, "n1")["epoch"].clone();
    std::fs::write(cluster.nodes[0].tier.join("index.redb"), b"not an index").unwrap();
    let out = cluster.nodes[0].try_mount(None, COPIED);
    assert!(out.code != Some(0) && out.stderr.contains("index is damaged"), "{out:#?}");
    assert_eq!(cluster.told(1, "n1")["epoch"], epoch, "it has joined nobody");
    is_taken_over(&cluster, 1, "n1");
    reads(&cluster.at(1, "f"), b"synced");
}

/// A path that an operator gives up costs no other file its copies, though the partner that has them is away.
#[test]
fn what_is_not_given_up_is_taken_over_by_a_partner_that_is_back() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, COPIED);
    has_partner(&cluster, 0);
    for name in ["f", "g"] {
        write(&cluster.at(0, name), b"on the store");
    }
    cluster.gives_back(0);
    for name in ["f", "g"] {
        write(&cluster.at(0, name), b"synced");
        sync(&cluster.at(0, name));
    }
    let name = in_sync(&cluster, 0, "n1").remove(0);
    let partner = number(&cluster, &name);
    let asked = 3 - partner;
    cluster.nodes[partner].crash();
    cluster.nodes[0].crash();
    within(PATIENCE, "both are dead", || {
        ["n1", &name].iter().all(|name| !cluster.is_alive(asked, name))
    });
    let mnt = cluster.nodes[asked].mnt.clone();
    let give_up = ["member", "give-up", text(&mnt), "n1", "f", "--confirm", "n1"];
    let refused = cluster.forebay(asked, &give_up);
    assert!(refused.code == Some(2) && refused.stderr.contains(&name), "{refused:#?}");
    cluster.forebay(asked, &[&give_up[..], &["--confirm", &name]].concat()).ok();
    reads(&cluster.at(asked, "f"), b"on the store");
    read(&cluster.at(asked, "g")).expect_err("that was not given up");
    cluster.mount(partner, COPIED);
    is_taken_over(&cluster, asked, "n1");
    reads(&cluster.at(asked, "g"), b"synced");
}

/// If copies are required, nothing is acknowledged without them; written bytes are flushed, and taken over.
#[test]
fn without_a_partner_fsync_goes_on_or_fails_as_configured() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(2);
    cluster.mount(0, &[COPIED, &["--copies-short", "fail"]].concat());
    let mut file = File::create(cluster.at(0, "f")).unwrap();
    file.write_all(b"with nobody else").unwrap();
    let why = file.sync_all().expect_err("nobody keeps a copy");
    assert_eq!(why.raw_os_error(), Some(libc::EIO), "{why}");
    let told = cluster.forebay(0, &["status", "--cluster", text(&cluster.nodes[0].mnt)]).ok();
    assert!(told.stdout.contains("1 MISSING"), "{told:#?}");
    cluster.flush(0);
    assert_eq!(cluster.stored("f").unwrap(), b"with nobody else");
    file.sync_all().expect("the store has it");
    cluster.mount(1, &[COPIED, &["--copies-short", "fail"]].concat());
    has_partner(&cluster, 0);
    file.write_all(b", and with one").unwrap();
    file.sync_all().expect("a partner has it");
    drop(file);
    cluster.nodes[0].crash();
    within(TAKEN, "it takes over", || taken(&cluster, 1, "n1")["done"] == true);
    reads(&cluster.at(1, "f"), b"with nobody else, and with one");
}

/// A node that stood still for longer than its lease does not serve, flush or acknowledge anything any more, and
/// reports that it has stopped.
#[test]
fn a_node_that_was_taken_for_dead_does_nothing_when_it_wakes() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, COPIED);
    has_partner(&cluster, 0);
    write(&cluster.at(0, "f"), &random(100_000, 1));
    sync(&cluster.at(0, "f"));
    let old = Holder::open(&cluster.at(0, "f"));
    cluster.nodes[0].pause();
    within(TAKEN, "its partner has taken it over", || taken(&cluster, 1, "n1")["done"] == true);
    let f = File::options().write(true).open(cluster.at(1, "f")).unwrap();
    f.write_all_at(b"of the new home", 0).unwrap();
    f.sync_all().unwrap();
    drop(f);
    cluster.flush(1);
    cluster.nodes[0].resume();
    let (said, _) = bounded("a write on the node that woke", move || old.write_and_sync());
    assert!(!said.contains("synced"), "nothing is acknowledged: {said}");
    let _ = cluster.forebay(0, &["flush", text(&cluster.nodes[0].mnt)]);
    within(TAKEN, "it has said that it stopped, and all is given back", || {
        cluster.claims(1, "n2") == 0
    });
    let mut want = random(100_000, 1);
    want[..15].copy_from_slice(b"of the new home");
    assert_eq!(difference(&cluster.stored("f").unwrap(), &want), None);
    reads(&cluster.at(1, "f"), &want);
    let why = File::open(cluster.at(0, "f")).expect_err("it serves nobody");
    assert!(is_honest(&why), "{why}");
}

/// The new home of a file does not know the locks that the dead one had granted: their holders are told.
#[test]
fn a_lock_at_a_home_that_is_taken_over_is_lost_and_its_program_hears_of_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, COPIED);
    has_partner(&cluster, 0);
    write(&cluster.at(0, "f"), &random(10_000, 1));
    sync(&cluster.at(0, "f"));
    let partner = number(&cluster, &in_sync(&cluster, 0, "n1")[0]);
    let other = 3 - partner;
    let mut holder = Locker::start(env!("CARGO_BIN_EXE_locker"), &cluster.at(other, "f"), "rw");
    assert_eq!(holder.ask("fcntl w 0 10"), "ok");
    cluster.nodes[0].crash();
    is_taken_over(&cluster, partner, "n1");
    within(PATIENCE, "whoever has the lost lock is told", || holder.ask("read") == "errno 5");
    let log = cluster.nodes[other].log();
    assert!(log.contains("a lock is lost"), "{log}");
    let mut next = Locker::start(env!("CARGO_BIN_EXE_locker"), &cluster.at(partner, "f"), "rw");
    assert_eq!(next.ask("fcntl w 0 10"), "ok");
}

/// Bytes that were lost with a home are reported to the next program that opens the file, if no program has it open
/// any more. (This process does not have it open: its children would close it, and get the report.)
// S-25
#[test]
fn a_sync_through_another_descriptor_reports_the_loss_with_the_home() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, COPIED);
    has_partner(&cluster, 0);
    let open =
        |cluster: &Cluster, name| File::options().write(true).open(cluster.at(1, name)).unwrap();
    for name in ["closed", "cut", "synced"] {
        write(&cluster.at(0, name), b"synced by the home");
        sync(&cluster.at(0, name));
        match name {
            "cut" => open(&cluster, name).set_len(6).unwrap(),
            _ => open(&cluster, name).write_all_at(b"UNSYNCED", 0).unwrap(),
        }
        if name == "synced" {
            sync(&cluster.at(1, name));
        }
    }
    cluster.nodes[0].crash();
    is_taken_over(&cluster, 1, "n1");
    let second = open(&cluster, "closed");
    let why = second.sync_all().expect_err("what was acknowledged before is lost");
    assert_eq!(why.raw_os_error(), Some(libc::EIO), "{why}");
    second.sync_all().expect("it is told once");
    assert_eq!(read(&cluster.at(1, "closed")).unwrap(), b"synced by the home");
    open(&cluster, "closed").sync_all().expect("and not to who comes later");
    open(&cluster, "cut").sync_all().expect_err("it is as long as before");
    open(&cluster, "synced").sync_all().expect("nothing of it is lost");
    assert_eq!(read(&cluster.at(1, "synced")).unwrap(), b"UNSYNCEDy the home");
}

/// A node that leaves in order is not dead: its tier also has the unsynced bytes, and the others wait for it.
// S-12 S-25
#[test]
fn a_node_that_leaves_with_dirty_bytes_is_not_taken_over() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, COPIED);
    has_partner(&cluster, 0);
    write(&cluster.at(0, "f"), b"synced");
    sync(&cluster.at(0, "f"));
    write(&cluster.at(0, "f"), b"newer");
    write(&cluster.at(0, "g"), b"never synced");
    cluster.umount_dirty(0);
    within(PATIENCE, "the others hear of it", || !cluster.is_alive(1, "n1"));
    // A take-over would begin as soon as the node is gone.
    std::thread::sleep(Duration::from_secs(2));
    assert!(taken(&cluster, 1, "n1").is_null(), "{}", cluster.told(1, "n1"));
    for name in ["f", "g"] {
        let error = read(&cluster.at(1, name)).expect_err("its bytes are in the tier of node 0");
        assert!(is_honest(&error), "{error}");
    }
    cluster.mount(0, COPIED);
    for (name, bytes) in [("f", &b"newer"[..]), ("g", b"never synced")] {
        reads(&cluster.at(1, name), bytes);
    }
    has_partner(&cluster, 0);
    assert_eq!(cluster.status(0)["conflicted_files"], 0);
}
