//! A short round in which a link is cut and a node is killed for good while programs on all nodes write and sync:
//! no acknowledged fsync is lost. The long rounds are in `programs`.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use forebay_tests::cluster::{Cluster, read};
use forebay_tests::{PATIENCE, eventually, kill, needs_network, proof, within};

use crate::takeover::{COPIED, has_partner, is_taken_over};
use crate::write;

const NODES: usize = 3;
/// The node that is killed.
const DIES: usize = 0;
/// The time before the cut, of the cut, and between the cut and the kill.
const PHASE: Duration = Duration::from_secs(3);
const LINES: usize = 40;

/// A file that one program writes over with rising numbers, each durable before the next.
struct Record {
    /// The node of the program, and the node that made the file.
    writer: usize,
    home: usize,
    begun: AtomicU64,
    acknowledged: AtomicU64,
    fsyncs: AtomicU64,
}

impl Record {
    fn name(&self) -> String {
        format!("by{}-at{}", self.writer + 1, self.home + 1)
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(SeqCst)
    }
}

fn content(number: u64) -> Vec<u8> {
    format!("number {number:016}\n").repeat(LINES).into_bytes()
}

/// The lowest and the highest number that a file has.
fn numbers(bytes: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number = |line: &str| line.strip_prefix("number ")?.parse::<u64>().ok();
    let all: Option<Vec<u64>> = text.lines().map(number).collect();
    let all = all.filter(|all| all.len() == LINES)?;
    Some((*all.iter().min()?, *all.iter().max()?))
}

/// Writes one number, and syncs it.
fn step(record: &Record, open: &mut Option<File>, at: &PathBuf) -> Result<()> {
    let file = match open {
        Some(file) => file,
        None => open.insert(OpenOptions::new().write(true).open(at)?),
    };
    let number = record.begun.fetch_add(1, SeqCst) + 1;
    file.write_all_at(&content(number), 0)?;
    file.sync_data()?;
    record.acknowledged.store(number, SeqCst);
    record.fsyncs.fetch_add(1, SeqCst);
    Ok(())
}

struct World<'a> {
    cluster: &'a Cluster,
    over: AtomicBool,
    killed: AtomicBool,
    refused: AtomicU64,
}

impl World<'_> {
    fn program(&self, record: &Record) {
        let (at, mut open) = (self.cluster.at(record.writer, record.name()), None);
        while !self.over.load(SeqCst) {
            // Programs of the killed node do nothing more.
            if record.writer == DIES && self.killed.load(SeqCst) {
                return;
            }
            if step(record, &mut open, &at).is_err() {
                self.refused.fetch_add(1, SeqCst);
                open = None;
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// A node shows at least the acknowledged state of a file, and nothing that was never written.
fn check(cluster: &Cluster, node: usize, record: &Record, wrong: &mut Vec<String>) {
    let at = cluster.at(node, record.name());
    let mut found = None;
    eventually(PATIENCE, || {
        found = read(&at).ok();
        found.is_some()
    });
    let (least, most) = (record.acknowledged(), record.begun.load(SeqCst));
    match found.as_deref().and_then(numbers) {
        Some((low, high)) if low >= least && high <= most => {}
        other => wrong.push(format!(
            "n{} reads {} as {other:?}: {least} was acknowledged, {most} begun",
            node + 1,
            record.name()
        )),
    }
}

// S-25
#[test]
fn no_acknowledged_fsync_is_lost_when_a_link_is_cut_and_a_node_is_killed() {
    needs_network!();
    let cluster = Cluster::networked(NODES, 1, COPIED);
    (0..NODES).for_each(|node| has_partner(&cluster, node));
    let mut records = Vec::new();
    for writer in 0..NODES {
        for home in 0..NODES {
            let [begun, acknowledged, fsyncs] = [0; 3].map(AtomicU64::new);
            let record = Record { writer, home, begun, acknowledged, fsyncs };
            write(&cluster.at(home, record.name()), &content(0));
            File::open(cluster.at(home, record.name())).unwrap().sync_all().unwrap();
            records.push(record);
        }
    }
    let world = World {
        cluster: &cluster,
        over: AtomicBool::new(false),
        killed: AtomicBool::new(false),
        refused: AtomicU64::new(0),
    };
    let sum = |of: &dyn Fn(&Record) -> bool| -> u64 {
        records.iter().filter(|record| of(record)).map(|it| it.fsyncs.load(SeqCst)).sum()
    };
    let (mut before_kill, mut at_kill, mut after) = (0, 0, 0);
    thread::scope(|scope| {
        let world = &world;
        for record in &records {
            scope.spawn(move || world.program(record));
        }
        thread::sleep(PHASE);
        cluster.cut(1, 2);
        thread::sleep(PHASE);
        cluster.mend(1, 2);
        thread::sleep(PHASE);
        before_kill = sum(&|record| record.home == DIES);
        kill(cluster.nodes[DIES].pid(), libc::SIGKILL);
        world.killed.store(true, SeqCst);
        at_kill = sum(&|record| record.home == DIES && record.writer != DIES);
        is_taken_over(&cluster, 1, "n1");
        // Programs on other nodes go on with files whose home has died.
        within(PATIENCE, "what was the dead one's is written again", || {
            after = sum(&|record| record.home == DIES && record.writer != DIES) - at_kill;
            after > 10
        });
        world.over.store(true, SeqCst);
    });
    let mut wrong = Vec::new();
    for node in (0..NODES).filter(|node| *node != DIES) {
        records.iter().for_each(|record| check(&cluster, node, record, &mut wrong));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The run had what it tests: a death, refusals, and files that the dead node had acknowledged.
    assert!(!cluster.nodes[DIES].is_running(), "it was killed");
    let refused = world.refused.load(SeqCst);
    let of_the_dead = records.iter().filter(|record| record.home == DIES);
    let each = of_the_dead.map(|record| record.fsyncs.load(SeqCst)).min();
    assert!(each > Some(3) && before_kill > 50, "{each:?} of one, {before_kill} of all");
    assert!(refused > 0, "nobody noticed");
    let all = sum(&|_| true);
    proof!(
        "1 kill, 1 cut, {refused} refusals; {all} acknowledged fsyncs, {before_kill} of the dead one's before it died, {after} of its files after"
    );
}
