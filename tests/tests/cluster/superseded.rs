//! Open files on a node that stood still until another node took its place: they fail, and nothing is acknowledged
//! that is not kept. Bytes that were durable before are at the new home.

use std::fs::File;
use std::os::unix::fs::FileExt;

use forebay_tests::cluster::{Cluster, Locker, difference, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, proof, within};

use crate::takeover::{COPIED, TAKEN, has_partner, is_taken_over};
use crate::write;

const EIO: &str = "errno 5";

/// A load would end with SIGBUS.
const EFAULT: &str = "errno 14";

/// Files on the node whose place is taken: each is open there, and used in its own way when the node wakes.
const NEAR: [&str; 9] =
    ["read", "write", "append", "cut", "allocate", "synced", "closed", "stored", "faulted"];

/// Files whose home is the other node.
const FAR: [&str; 3] = ["far", "far-closed", "far-stored"];

fn was() -> Vec<u8> {
    vec![b'o'; 40_960]
}

struct Open<'a> {
    cluster: &'a Cluster,
    name: &'static str,
    holder: Locker,
}

impl Open<'_> {
    fn new<'a>(cluster: &'a Cluster, name: &'static str) -> Open<'a> {
        let how = if name == "append" { name } else { "rw" };
        let holder = Locker::start(env!("CARGO_BIN_EXE_holder"), &cluster.at(0, name), how);
        Open { cluster, name, holder }
    }

    /// The operations while all nodes work: none of them is synced.
    fn begins(&mut self) {
        let commands: &[&str] = match self.name {
            "synced" | "closed" | "far" | "far-closed" => &["write 0 NEW"],
            "stored" | "far-stored" => &["map 40960", "store 0 NEW"],
            "faulted" => &["map 40960"],
            _ => &[],
        };
        commands.iter().for_each(|command| self.does(command));
    }

    #[track_caller]
    fn does(&mut self, command: &str) {
        assert_eq!(self.holder.ask(command), "ok", "{}: {command}", self.name);
    }

    #[track_caller]
    fn fails(&mut self, command: &str, want: &str) {
        let said = self.holder.says_of(command, TAKEN);
        assert_eq!(said, want, "{}: {command}\n{}", self.name, self.cluster.nodes[0].log());
    }

    /// The operations after the node has learned that its place was taken.
    fn goes_on(&mut self) {
        match self.name {
            "read" => {
                self.does("drop");
                self.fails("read 8192 3", EIO);
            }
            "write" => self.fails("write 0 LATE", EIO),
            "append" => self.fails("append LATE", EIO),
            "cut" => self.fails("cut 3", EIO),
            "allocate" => self.fails("allocate 50000", EIO),
            "synced" => self.fails("fsync", EIO),
            "stored" => self.fails("msync", EIO),
            "faulted" => {
                self.does("drop");
                self.fails("fault 8192", EFAULT);
            }
            "far" => {
                self.fails("read 8192 3", EIO);
                self.fails("fsync", EIO);
                self.fails("write 0 LATE", EIO);
            }
            "far-stored" => self.fails("msync", EIO),
            _ => self.fails("close", EIO),
        }
    }
}

// S-25
#[test]
fn what_is_open_on_a_node_whose_place_was_taken_fails_and_acknowledges_nothing() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, COPIED);
    has_partner(&cluster, 0);
    let homes = NEAR.map(|name| (0, name)).into_iter().chain(FAR.map(|name| (1, name)));
    for (home, name) in homes {
        let path = cluster.at(home, name);
        write(&path, &was());
        File::open(&path).unwrap().sync_all().unwrap();
    }
    let mut open: Vec<Open> =
        NEAR.iter().chain(&FAR).map(|name| Open::new(&cluster, name)).collect();
    open.iter_mut().for_each(Open::begins);
    // Two files that are used at the very moment when the node wakes.
    let [mut writes, mut syncs] = ["write", "synced"].map(|name| Open::new(&cluster, name));
    syncs.does("write 100 ALSO");
    cluster.nodes[0].pause();
    writes.holder.tell("write 50 LATE");
    syncs.holder.tell("fsync");
    is_taken_over(&cluster, 1, "n1");
    let file = File::options().write(true).open(cluster.at(1, "read")).unwrap();
    file.write_all_at(b"NEW HOME", 8192).unwrap();
    file.sync_all().unwrap();
    drop(file);
    cluster.nodes[0].resume();
    for early in [&mut writes, &mut syncs] {
        let said = early.holder.says(TAKEN).expect("it is answered");
        assert!(said == EIO || said == "errno 110", "{}: {said}", early.name);
        proof!("{} as it woke: {said}", early.name);
    }
    within(PATIENCE, "it knows", || {
        cluster.nodes[0].log().contains("another has taken this member's place")
    });
    open.iter_mut().for_each(Open::goes_on);
    drop((open, writes, syncs));
    is_as_acknowledged(&mut cluster);
}

/// The new home has the durable bytes; other bytes of the old home are kept aside when it is back.
fn is_as_acknowledged(cluster: &mut Cluster) {
    let want = |name: &str| {
        let mut want = was();
        match name {
            "read" => want[8192..8200].copy_from_slice(b"NEW HOME"),
            // The other node has acknowledged the write, and works.
            "far" | "far-closed" => want[..3].copy_from_slice(b"NEW"),
            _ => {}
        }
        want
    };
    cluster.flush(1);
    // Settled when the old node has confirmed that it stopped.
    within(TAKEN, "all is given back", || cluster.claims(1, "n2") == 0);
    for name in NEAR.iter().chain(&FAR) {
        let found = read(&cluster.at(1, name)).unwrap();
        // Stored there, and never acknowledged by any call: the bytes may have arrived, or not.
        let mut want = want(name);
        if *name == "far-stored" && found[..3] == *b"NEW" {
            want[..3].copy_from_slice(b"NEW");
        }
        assert_eq!(difference(&found, &want), None, "{name}");
        assert_eq!(difference(&cluster.stored(name).unwrap(), &want), None, "{name} on the store");
    }
    cluster.nodes[0].crash();
    cluster.mount(0, COPIED);
    for name in NEAR {
        reads(&cluster.at(0, name), &want(name));
    }
    within(PATIENCE, "what was never acknowledged as durable is aside", || {
        cluster.status(0)["conflicted_files"].as_u64() >= Some(2)
    });
}
