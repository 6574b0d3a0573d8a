//! Random programs on all nodes at once, and a judge of their observations.
//!
//! Some files hold a value that is overwritten in place, some are published by a rename, some are logs to
//! which all append, and new files are made, renamed, changed and removed. Every operation has its times;
//! afterwards no read may have missed a write that had returned before its open began.

mod judge;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD};
use forebay_tests::images::MountedFs;
use forebay_tests::{Rng, needs_forebay, needs_network, needs_tools, proof, say, seed, soak, text};

use crate::{append, is_honest};
use judge::{Item, Judge};

const FILES: u64 = 5;
const LOGS: u64 = 2;
/// The greatest age of a name elsewhere: the mounts' `entry-ttl`, and some more for a slow machine.
const SLACK: Duration = Duration::from_millis(400);

/// Files are flushed now and then, so that claims come and go.
const EAGER: &[&str] =
    &["--max-age", "500ms", "--settle", "200ms", "--entry-ttl", "100ms", "--attr-ttl", "100ms"];

/// What all programs share.
struct World<'a> {
    cluster: &'a Cluster,
    /// One lock per node: shared while its mount is used, exclusive while it is removed.
    in_use: Vec<RwLock<()>>,
    judge: Judge,
    over: AtomicBool,
    /// Whether faults are injected into the nodes, so that operations may fail.
    faults: bool,
    refused: AtomicU64,
}

/// One program on one node.
struct Program<'a> {
    world: &'a World<'a>,
    node: usize,
    name: String,
    rng: Rng,
    number: u64,
    /// The id of the program, which is a part of its values.
    id: u64,
}

/// A value as a file holds it, long enough for a torn one to show.
fn content(value: u64, lines: u64) -> Vec<u8> {
    format!("value {value:017}\n").repeat(lines as usize).into_bytes()
}

fn value_of(bytes: &[u8]) -> std::result::Result<u64, String> {
    let text = String::from_utf8_lossy(bytes);
    let values: BTreeSet<&str> = text.split_inclusive('\n').collect();
    let only = values.first().filter(|_| values.len() == 1);
    let number = only.and_then(|line| line.strip_prefix("value ")?.strip_suffix('\n'));
    let whole = number.filter(|number| number.len() == 17).and_then(|number| number.parse().ok());
    whole.ok_or_else(|| format!("{} bytes, torn or mixed: {values:?}", bytes.len()))
}

impl Program<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.world.cluster.at(self.node, name)
    }

    fn value(&mut self) -> u64 {
        self.number += 1;
        self.id * 1_000_000_000 + self.number
    }

    fn run(&mut self) {
        while !self.world.over.load(Relaxed) {
            let held = self.world.in_use[self.node].read().expect("no panic inside");
            let done = self.step();
            drop(held);
            if let Err((what, why)) = done {
                let may = self.world.faults && (is_honest(&why) || is_dead(&why));
                self.world.refused.fetch_add(1, Relaxed);
                if !may {
                    self.world.judge.wrong(format!("{} {what}: {why}", self.name));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn step(&mut self) -> std::result::Result<(), (&'static str, Error)> {
        let said = |what| move |why| (what, why);
        match self.rng.below(20) {
            0..3 => self.overwrite().map_err(said("overwrites")),
            3..7 => self.look().map_err(said("reads")),
            7..9 => self.publish().map_err(said("publishes")),
            9..12 => self.look_published().map_err(said("reads what was published")),
            12..14 => self.append().map_err(said("appends")),
            14 => self.read_log().map_err(said("reads a log")),
            15 => self.make().map_err(said("makes a file")),
            16 => self.change(Self::rename).map_err(said("renames")),
            17 => self.change(Self::chmod).map_err(said("changes a mode")),
            18 if self.rng.one_in(3) => self.change(Self::unlink).map_err(said("removes")),
            _ => self.read_made().map_err(said("reads a new file")),
        }
    }

    fn overwrite(&mut self) -> Result<()> {
        let (file, value) = (self.rng.below(FILES), self.value());
        let at = self.at(&format!("value{file}"));
        let judge = &self.world.judge;
        judge.values.wrote(file as usize, value, judge.begins());
        let (span, done) = judge
            .clock
            .time(|| File::options().write(true).open(at)?.write_all_at(&content(value, 1), 0));
        judge.values.wrote(file as usize, value, span);
        done
    }

    fn look(&mut self) -> Result<()> {
        let file = self.rng.below(FILES);
        let at = self.at(&format!("value{file}"));
        let judge = &self.world.judge;
        let (span, found) = judge.clock.time(|| fs::read(at));
        match value_of(&found?) {
            Ok(value) => judge.saw(&judge.values, file, value, span, &self.name, self.node),
            Err(why) => judge.wrong(format!("{} read value{file} at {span:?}: {why}", self.name)),
        }
        Ok(())
    }

    /// Programs on all nodes replace the same names.
    fn publish(&mut self) -> Result<()> {
        let (file, value) = (self.rng.below(FILES), self.value());
        let aside = self.at(&format!("aside-{value}"));
        fs::write(&aside, content(value, self.rng.range(1, 3000)))?;
        let at = self.at(&format!("published{file}"));
        let judge = &self.world.judge;
        judge.published.wrote(file as usize, value, judge.begins());
        let (span, done) = judge.clock.time(|| fs::rename(aside, at));
        judge.published.wrote(file as usize, value, span);
        done
    }

    fn look_published(&mut self) -> Result<()> {
        let file = self.rng.below(FILES);
        let at = self.at(&format!("published{file}"));
        let judge = &self.world.judge;
        let (span, found) = judge.clock.time(|| read_published(&at));
        match value_of(&found?) {
            Ok(value) => judge.saw(&judge.published, file, value, span, &self.name, self.node),
            Err(why) => {
                judge.wrong(format!("{} read published{file} at {span:?}: {why}", self.name))
            }
        }
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        let (log, number) = (self.rng.below(LOGS) as usize, self.value());
        let line = format!("{} {number} {}", self.name, "y".repeat(self.rng.below(100) as usize));
        let at = self.at(&format!("log{log}"));
        let judge = &self.world.judge;
        judge.logs[log].begins(&line, judge.clock.now());
        let (span, done) = judge.clock.time(|| append(&at, format!("{line}\n").as_bytes()));
        judge.logs[log].appended(&line, span);
        done
    }

    fn read_log(&mut self) -> Result<()> {
        let log = self.rng.below(LOGS) as usize;
        let at = self.at(&format!("log{log}"));
        let judge = &self.world.judge;
        let began = judge.clock.now();
        let found = fs::read(at)?;
        judge.logs[log].read(began, &found, &self.name);
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        let value = self.value();
        let (name, lines) = (format!("made/{value}"), self.rng.range(1, 1000));
        let at = self.at(&name);
        fs::write(&at, content(value, lines))?;
        let mode = fs::metadata(&at)?.mode() & 0o7777;
        self.world.judge.keep(Item { name, value, lines, mode });
        Ok(())
    }

    /// Changes a file that no other program changes meanwhile; if the change fails, the state of the file
    /// is unknown, and no program looks at it again.
    fn change(&mut self, how: fn(&mut Self, Item) -> Result<Option<Item>>) -> Result<()> {
        let chance = self.rng.word();
        let Some(item) = self.world.judge.take(chance) else { return Ok(()) };
        if let Some(item) = how(self, item)? {
            self.world.judge.keep(item);
        }
        Ok(())
    }

    fn rename(&mut self, item: Item) -> Result<Option<Item>> {
        let name = format!("made/{}-renamed", self.value());
        fs::rename(self.at(&item.name), self.at(&name))?;
        Ok(Some(Item { name, ..item }))
    }

    fn chmod(&mut self, item: Item) -> Result<Option<Item>> {
        let mode = 0o600 | self.rng.below(64) as u32;
        fs::set_permissions(self.at(&item.name), fs::Permissions::from_mode(mode))?;
        Ok(Some(Item { mode, ..item }))
    }

    fn unlink(&mut self, item: Item) -> Result<Option<Item>> {
        fs::remove_file(self.at(&item.name))?;
        self.world.judge.removed(item);
        Ok(None)
    }

    fn read_made(&mut self) -> Result<()> {
        let chance = self.rng.word();
        let Some(item) = self.world.judge.pick(chance) else { return Ok(()) };
        match fs::read(self.at(&item.name)) {
            Ok(found) if found == content(item.value, item.lines) => Ok(()),
            Ok(found) => {
                let (len, value) = (found.len(), value_of(&found));
                let why = format!("{} read {item:?}: {len} bytes, {value:?}", self.name);
                self.world.judge.wrong(why);
                Ok(())
            }
            // The file was renamed or removed between the choice and the open.
            Err(_) if !self.world.judge.has(&item) => Ok(()),
            Err(why) if self.world.faults && why.kind() != ErrorKind::NotFound => Err(why),
            Err(why) => {
                self.world.judge.wrong(format!("{} read {item:?}: {why}", self.name));
                Ok(())
            }
        }
    }
}

/// Opens a name that other programs replace all the time: an open that meets two replacements may fail with
/// ESTALE, as on NFS, or with EIO where the opened file lost its name at its home; a second open must find
/// the file.
fn read_published(at: &Path) -> Result<Vec<u8>> {
    let mut last = fs::read(at);
    for _ in 0..3 {
        match &last {
            Err(why) if matches!(why.raw_os_error(), Some(libc::ESTALE | libc::EIO)) => {
                last = fs::read(at);
            }
            _ => break,
        }
    }
    last
}

/// Whether the error is that of a mount whose daemon was killed.
fn is_dead(why: &Error) -> bool {
    let dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV];
    why.raw_os_error().is_some_and(|errno| dead.contains(&errno))
}

/// Lays out the files that all programs use.
fn lay(cluster: &Cluster) {
    fs::create_dir(cluster.at(0, "made")).expect("a mount that works");
    for file in 0..FILES {
        for name in ["value", "published"] {
            crate::write(&cluster.backing.join(format!("{name}{file}")), &content(0, 1));
        }
    }
    for log in 0..LOGS {
        crate::write(&cluster.at(0, format!("log{log}")), b"");
    }
}

/// Injects a fault into the nodes, and undoes it.
type Inject<'a> = dyn Fn(&World, &mut Rng) + Sync + 'a;

/// Runs two programs on each node for a time, with faults injected meanwhile.
fn run_programs(cluster: &Cluster, seed: u64, time: Duration, faults: Option<&Inject>) -> Judge {
    lay(cluster);
    let world = World {
        cluster,
        in_use: cluster.nodes.iter().map(|_| RwLock::new(())).collect(),
        judge: Judge::new(LOGS as usize),
        over: AtomicBool::new(false),
        faults: faults.is_some(),
        refused: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        for node in 0..cluster.nodes.len() {
            for one in 0..2_u64 {
                let id = node as u64 * 2 + one + 1;
                let rng = Rng::new(seed.wrapping_mul(31).wrapping_add(id));
                let name = format!("n{}/{one}", node + 1);
                let mut program = Program { world: &world, node, name, rng, number: 0, id };
                scope.spawn(move || program.run());
            }
        }
        let mut rng = Rng::new(seed);
        while world.judge.clock.now() < time && !world.judge.is_wrong() {
            match faults {
                Some(inject) => inject(&world, &mut rng),
                None => thread::sleep(Duration::from_millis(50)),
            }
        }
        world.over.store(true, Relaxed);
    });
    world.judge.note_refused(world.refused.into_inner());
    world.judge
}

/// Compares the contents that all nodes show, and at last those of the store, with the programs' records.
fn settle(cluster: &Cluster, judge: &Judge) {
    thread::sleep(SLACK);
    for round in ["at the end", "flushed"] {
        for node in 0..cluster.nodes.len() {
            let who = format!("n{}, {round}", node + 1);
            let dir = cluster.nodes[node].mnt.clone();
            judge.compare(&dir, &who, node);
        }
        for (node, member) in cluster.nodes.iter().enumerate() {
            let out = cluster.forebay(node, &["flush", "--wait", text(&member.mnt)]);
            if out.code != Some(0) {
                judge.wrong(format!("{}: {}", member.name, out.text()));
            }
        }
    }
    judge.compare(&cluster.backing, "the store", usize::MAX);
    for node in 0..cluster.nodes.len() {
        let conflicts = &cluster.status(node)["conflicted_files"];
        if *conflicts != 0 {
            judge.wrong(format!("n{} has {conflicts} conflicts", node + 1));
        }
    }
}

#[test]
fn programs_on_three_nodes_see_what_had_been_written() {
    needs_forebay!();
    needs_tools!("etcd");
    for (own, flags) in [(11, HOLD), (12, EAGER)] {
        let seed = seed(own);
        let cluster = Cluster::start(3, flags);
        let time = soak().map_or(Duration::from_secs(6), |all| all / 2);
        let judge = run_programs(&cluster, seed, time, None);
        settle(&cluster, &judge);
        let (reads, elsewhere) = judge.reads();
        let wrong = judge.verdict(SLACK);
        assert!(
            wrong.is_empty(),
            "seed {seed}: {} wrong: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(12)]
        );
        assert!(
            elsewhere > 50,
            "seed {seed}: {elsewhere} of {reads} reads saw another node's write"
        );
        proof!("seed {seed}: {elsewhere} of {reads} reads saw another node's write");
    }
}

/// Daemons stand still, and are killed and mounted again, while the programs run.
#[test]
fn programs_see_what_had_been_written_though_nodes_stop_and_die() {
    if soak().is_none() {
        return say(
            "SKIPPED: programs while nodes die and links are cut: see ./run torture cluster",
        );
    }
    needs_forebay!();
    needs_tools!("etcd");
    let seed = seed(21);
    let cluster = Cluster::start(3, EAGER);
    let killed = AtomicU64::new(0);
    let pids: Vec<_> = cluster.nodes.iter().map(|node| AtomicU64::new(node.pid() as u64)).collect();
    let inject = |world: &World, rng: &mut Rng| {
        let node = rng.below(3) as usize;
        let member = &world.cluster.nodes[node];
        let pid = pids[node].load(Relaxed) as i32;
        if rng.one_in(2) {
            forebay_tests::kill(pid, libc::SIGSTOP);
            thread::sleep(Duration::from_millis(rng.range(100, 1500)));
            forebay_tests::kill(pid, libc::SIGCONT);
        } else {
            forebay_tests::kill(pid, libc::SIGKILL);
            killed.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(rng.range(0, 500)));
            let alone = world.in_use[node].write().expect("no panic inside");
            pids[node].store(member.again(EAGER) as u64, Relaxed);
            drop(alone);
        }
        thread::sleep(Duration::from_millis(rng.range(200, 1500)));
    };
    let time = soak().unwrap_or(Duration::from_secs(20));
    let judge = run_programs(&cluster, seed, time, Some(&inject));
    settle(&cluster, &judge);
    let (reads, elsewhere) = judge.reads();
    let wrong = judge.verdict(SLACK);
    assert!(
        wrong.is_empty(),
        "seed {seed}: {} wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(12)]
    );
    let killed = killed.into_inner();
    assert!(killed > 1 && judge.refused() > 0, "seed {seed}: {killed} kills, nobody noticed");
    let refused = judge.refused();
    proof!(
        "seed {seed}: {killed} kills, {refused} refusals, {elsewhere} of {reads} reads saw another's"
    );
}

/// Links between any two nodes, or to the registry, are cut and mended while the programs run.
#[test]
fn programs_see_what_had_been_written_though_links_are_cut() {
    if soak().is_none() {
        return say(
            "SKIPPED: programs while nodes die and links are cut: see ./run torture cluster",
        );
    }
    needs_network!();
    let seed = seed(31);
    let cluster = Cluster::networked(3, 1, EAGER);
    let inject = |world: &World, rng: &mut Rng| {
        let (one, other) = (rng.below(3) as usize, rng.below(2) as usize);
        let other = (one + 1 + other) % 3;
        let pause = Duration::from_millis(rng.range(200, 4000));
        let cluster = world.cluster;
        match rng.below(4) {
            0 => {
                cluster.cut(one, other);
                thread::sleep(pause);
                cluster.mend(one, other);
            }
            1 => {
                cluster.cut_one_way(one, other);
                thread::sleep(pause);
                cluster.mend_one_way(one, other);
            }
            2 => {
                cluster.cut_from_registry(one);
                thread::sleep(pause * 4);
                cluster.mend_to_registry(one);
            }
            _ => {
                cluster.unplug(one);
                thread::sleep(pause * 4);
                cluster.plug_in(one);
            }
        }
        thread::sleep(Duration::from_millis(rng.range(200, 1500)));
    };
    let time = soak().unwrap_or_default();
    let judge = run_programs(&cluster, seed, time, Some(&inject));
    say("links are whole again");
    forebay_tests::within(forebay_tests::PATIENCE, "all are alive again", || {
        ["n1", "n2", "n3"].iter().all(|name| cluster.is_alive(0, name))
    });
    settle(&cluster, &judge);
    let (reads, elsewhere) = judge.reads();
    let wrong = judge.verdict(SLACK);
    assert!(
        wrong.is_empty(),
        "seed {seed}: {} wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(12)]
    );
    assert!(judge.refused() > 0, "seed {seed}: nobody noticed");
    let refused = judge.refused();
    proof!("seed {seed}: {refused} refusals, {elsewhere} of {reads} reads saw another's");
}

/// The judge accepts one directory that all share, and rejects mounts that know nothing of each other.
#[test]
fn the_judge_tells_one_file_system_from_three_that_only_share_a_store() {
    needs_forebay!();
    needs_tools!("etcd");
    let seed = seed(41);
    let time = Duration::from_secs(3);
    let cluster = Cluster::laid(3);
    let bound: Vec<_> =
        cluster.nodes.iter().map(|node| MountedFs::bind(&cluster.backing, &node.mnt)).collect();
    let judge = run_programs(&cluster, seed, time, None);
    judge.compare(&cluster.backing, "the store", usize::MAX);
    let wrong = judge.verdict(Duration::ZERO);
    assert!(wrong.is_empty(), "one directory: {:#?}", &wrong[..wrong.len().min(12)]);
    let (reads, elsewhere) = judge.reads();
    assert!(elsewhere > 100, "{elsewhere} of {reads}");
    drop(bound);
    drop(cluster);
    let mut cluster = Cluster::laid(3);
    cluster.know_nothing_of_each_other();
    (0..3).for_each(|node| cluster.mount(node, HOLD));
    let judge = run_programs(&cluster, seed, time, None);
    let wrong = judge.verdict(SLACK);
    assert!(!wrong.is_empty(), "seed {seed}: three caches without claims pass");
    proof!("{} things are wrong without claims, such as {}", wrong.len(), wrong[0]);
}
