//! Power cuts. The tier and the backing store are on disks whose write cache forgets (`forebay_tests::disk`); while
//! writers work, the state that a cut would leave is copied at random moments. Each copy is then mounted as after a
//! reset, with another boot id, and judged by the journals of the bytes that had been synced when the copy began.
//!
//! The daemon is stopped (SIGSTOP) during a copy, so that the two images are of one moment; the programs go on, and
//! their writes by passthrough may be before or after the cut. The backing store is a machine of its own: its power
//! stays on, so it is synced before its copy.
// S-3, S-4

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_tests::disk::{Atomic, VolatileDisk};
use forebay_tests::images::{self, ImageFs, MountedFs};
use forebay_tests::journal::{History, Zeros};
use forebay_tests::tree::{Times, Tree};
use forebay_tests::{
    Bed, Mounted, Rng, Tier, binary_mentions, kill, needs_forebay, needs_tools, proof, seed, skip,
    soak, stop, text, tool,
};

use crate::load::{Load, Work, Writer};

/// Programs write past the daemon on tiers of 512 MiB or more.
const IMAGE_MIB: u64 = 768;

/// The disks of one bed, and their mount points. Dropped from the top: tier and backing store before the file system
/// that holds their images, and the bed last.
pub struct Machine {
    tier: Option<Plugged>,
    backing: Option<Plugged>,
    host: MountedFs,
    fs: ImageFs,
    seed: u64,
    pub store: Store,
    pub bed: Bed,
}

/// A mounted disk.
struct Plugged {
    // Unmounted before the disk below is removed.
    _fs: MountedFs,
    disk: VolatileDisk,
}

/// The power of the backing store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// A machine of its own that stays on: it is synced before its copy.
    Apart,
    /// Loses its power with the tier's: unsynced bytes are lost.
    Together,
}

/// Two images of one moment, and the length of each journal before and after.
pub struct Cut {
    pub tier: PathBuf,
    pub backing: PathBuf,
    pub before: Vec<u64>,
    pub after: Vec<u64>,
    /// The number of blocks of the tier that were written and not flushed, and are lost.
    pub forgotten: usize,
}

impl Machine {
    pub fn new(fs: ImageFs, seed: u64) -> Machine {
        let bed = Bed::new(Tier::Disk);
        let big = bed.root.join("host.img");
        images::make(&big, ImageFs::Xfs, 8192);
        let host = MountedFs::image(&big, &bed.dir("host"));
        images::make(&host.path().join("tier.img"), fs, IMAGE_MIB);
        images::make(&host.path().join("backing.img"), ImageFs::Ext4, IMAGE_MIB);
        let (tier, backing, store) = (None, None, Store::Apart);
        let mut machine = Machine { tier, backing, store, bed, host, fs, seed };
        machine.plug("tier.img", "backing.img");
        machine
    }

    fn image(&self, name: &str) -> PathBuf {
        self.host.path().join(name)
    }

    pub fn plug(&mut self, tier: &str, backing: &str) {
        let fast = self.bed.tier.parent().expect("the tier is below a mount").to_path_buf();
        self.tier = Some(self.plug_one((tier, self.fs), "tier-disk", &fast));
        let backing = (backing, ImageFs::Ext4);
        self.backing = Some(self.plug_one(backing, "backing-disk", &self.bed.backing));
    }

    fn plug_one(&self, (image, fs): (&str, ImageFs), disk: &str, at: &Path) -> Plugged {
        let atomic = match fs {
            ImageFs::Ext4 => Atomic::Sectors,
            ImageFs::Xfs => Atomic::Blocks,
        };
        let disk = VolatileDisk::insert(&self.image(image), &self.bed.root.join(disk), atomic);
        let fs =
            MountedFs::device(disk.device(), at).unwrap_or_else(|why| panic!("{image}: {why}"));
        Plugged { _fs: fs, disk }
    }

    /// Mounts the images of a cut, as after a reset.
    pub fn restart(&mut self, cut: &Cut, flags: &[&str]) -> Mounted {
        let name = |path: &Path| path.file_name().expect("name").to_string_lossy().into_owned();
        self.plug(&name(&cut.tier), &name(&cut.backing));
        let mounted = self.bed.mount(flags);
        let recovery = mounted.status()["recovery"].clone();
        assert_eq!(recovery["same_boot"], false, "another boot id was given: {recovery:#}");
        mounted
    }

    pub fn unplug(&mut self) {
        self.tier = None;
        self.backing = None;
    }

    /// Copies the state of a cut at a quiet moment: the daemon is stopped meanwhile; without a daemon, at any moment.
    pub fn cut(&self, number: usize, daemon: Option<i32>, writers: &[Writer]) -> Cut {
        let lens = || writers.iter().map(Writer::journal_len).collect::<Vec<_>>();
        if let Some(pid) = daemon {
            // The daemon's writes must not fall between the two copies.
            stop(pid);
            self.sync_store_apart();
        }
        let before = lens();
        let copies = self.copy_disks(number);
        let after = lens();
        if let Some(pid) = daemon {
            kill(pid, libc::SIGCONT);
        }
        Cut { before, after, ..copies }
    }

    /// The end: the disks stop in the middle of any operation, and the daemon is killed. Its last calls to a store
    /// that stays on might have come before the cut, too, since no sync of the tier succeeds any more.
    pub fn last_cut(&self, number: usize, mounted: &Mounted, writers: &[Writer]) -> Cut {
        let lens = || writers.iter().map(Writer::journal_len).collect::<Vec<_>>();
        let disk = |plugged: &Option<Plugged>| plugged.as_ref().expect("plugged in").disk.die();
        let before = lens();
        disk(&self.tier);
        if self.store == Store::Together {
            disk(&self.backing);
        }
        let after = lens();
        mounted.kill9();
        self.sync_store_apart();
        Cut { before, after, ..self.copy_disks(number) }
    }

    /// The store alone loses its power; the daemon is killed, and the tier stays mounted.
    pub fn cut_store(&self, mounted: &Mounted) -> PathBuf {
        let plugged = self.backing.as_ref().expect("plugged in");
        plugged.disk.die();
        mounted.kill9();
        let copy = self.image("backing-alone.img");
        plugged.disk.cut(&copy, &mut Rng::new(self.seed)).expect("a copy of the disk");
        copy
    }

    /// Puts the copy of the store's disk in the place of the disk.
    pub fn replug_store(&mut self, copy: &Path) {
        self.backing = None;
        let name = copy.file_name().expect("name").to_string_lossy();
        self.backing =
            Some(self.plug_one((&name, ImageFs::Ext4), "backing-disk", &self.bed.backing));
    }

    fn sync_store_apart(&self) {
        if self.store == Store::Apart {
            let store = File::open(&self.bed.backing).expect("the backing store");
            rustix::fs::syncfs(&store).expect("sync of the backing store");
        }
    }

    /// Copies the backing store first, so that its copy alone is judged rightly too.
    fn copy_disks(&self, number: usize) -> Cut {
        let names = [format!("tier-{number}.img"), format!("backing-{number}.img")];
        let [tier, backing] = names.map(|name| self.image(&name));
        let copy = |plugged: &Option<Plugged>, to: &Path, salt: u64| {
            let disk = &plugged.as_ref().expect("plugged in").disk;
            let mut chance = Rng::new(self.seed ^ (number as u64 * 2 + salt));
            disk.cut(to, &mut chance).expect("a copy of the disk")
        };
        copy(&self.backing, &backing, 0);
        let forgotten = copy(&self.tier, &tier, 1).dropped;
        Cut { tier, backing, before: Vec::new(), after: Vec::new(), forgotten }
    }
}

/// The problems after one cut; `judge` also proves that no foreign bytes reach the backing store.
fn problems_after(
    machine: &mut Machine,
    cut: &Cut,
    writers: &[Writer],
    flags: &[&str],
) -> Vec<String> {
    let mounted = machine.restart(cut, flags);
    let mut wrong = judge(cut, writers, &machine.bed.mnt, Zeros::Never);
    let seen = Tree::read(&machine.bed.mnt);
    let out = mounted.umount_with(&[]);
    if out.code != Some(0) {
        wrong.push(format!("umount after the cut: {out:#?}"));
    }
    wrong.extend(judge(cut, writers, &machine.bed.backing, Zeros::Never));
    wrong.extend(seen.differences(&Tree::read(&machine.bed.backing), Times::Compare));
    drop(mounted);
    machine.unplug();
    wrong
}

pub fn judge(cut: &Cut, writers: &[Writer], root: &Path, zeros: Zeros) -> Vec<String> {
    let mut wrong = Vec::new();
    for (i, writer) in writers.iter().enumerate() {
        let synced = History::read_prefix(&writer.journal, cut.before[i]);
        // The operation in flight at the end of the copy may have begun within it.
        let issued = History::read_prefix(&writer.journal, cut.after[i]);
        let found = synced.check_synced(&issued, &root.join(&writer.name), zeros);
        wrong.extend(found.into_iter().map(|p| format!("{}/{}/{p}", root.display(), writer.name)));
    }
    wrong
}

struct Outcome {
    wrong: Vec<String>,
    cuts: usize,
    syncs: usize,
    /// The number of blocks that the tier's disk forgot.
    forgotten: usize,
    /// The number of times that a program wrote past the daemon.
    past: u64,
    /// The number of syncs that left the note of durability to the shadow's seal.
    sealed: u64,
}

fn cut_the_power(
    (fs, work): (ImageFs, Work),
    flags: &[&str],
    seed: u64,
    env: &[(&str, &str)],
) -> Outcome {
    const QUIET_CUTS: usize = 3;
    let deadline = soak().map(|time| Instant::now() + time);
    let mut outcome =
        Outcome { wrong: Vec::new(), cuts: 0, syncs: 0, forgotten: 0, past: 0, sealed: 0 };
    let mut chance = Rng::new(seed);
    loop {
        let mut machine = Machine::new(fs, chance.word());
        for (name, value) in env {
            machine.bed.env(name, value);
        }
        machine.bed.env("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000001");
        let mounted = machine.bed.mount(flags);
        let mut load = Load::start(&machine.bed, 3, chance.word(), work);
        let mut cuts = Vec::new();
        for number in 0..QUIET_CUTS {
            load.progress(chance.range(20, 300));
            cuts.push(machine.cut(number, Some(mounted.pid), &load.writers()));
        }
        load.progress(chance.range(20, 100));
        let counters = mounted.forebay(&["stats", text(&mounted.path), "--json"]).ok().json();
        let counter = |name: &str| counters["counters"][name].as_u64().unwrap_or(0);
        outcome.past += counter("passthrough_writes");
        outcome.sealed += counter("sealed_syncs");
        cuts.push(machine.last_cut(QUIET_CUTS, &mounted, &load.writers()));
        let writers = load.stop();
        mounted.crash();
        machine.unplug();
        for (number, cut) in cuts.iter().enumerate() {
            let boot = format!("00000000-0000-4000-8000-0000000001{number:02}");
            machine.bed.env("FOREBAY_BOOT_ID", &boot);
            let wrong = problems_after(&mut machine, cut, &writers, flags);
            let name = machine.fs.name();
            outcome.wrong.extend(wrong.into_iter().map(|w| format!("{name} cut {number}: {w}")));
        }
        outcome.cuts += cuts.len();
        outcome.forgotten += cuts.iter().map(|cut| cut.forgotten).sum::<usize>();
        outcome.syncs += writers.iter().map(|w| w.history().syncs()).sum::<usize>();
        if deadline.is_none_or(|at| Instant::now() > at) {
            return outcome;
        }
    }
}

fn survives(fs: ImageFs, flags: &[&str], own_seed: u64) {
    survives_with((fs, Work::Synced), flags, own_seed);
}

fn survives_with(load: (ImageFs, Work), flags: &[&str], own_seed: u64) {
    let seed = seed(own_seed);
    if !binary_mentions("FOREBAY_BOOT_ID") {
        skip!("this forebay has no FOREBAY_BOOT_ID");
    }
    let outcome = cut_the_power(load, flags, seed, &[]);
    assert!(outcome.syncs > 50, "only {} fsyncs", outcome.syncs);
    let lines = &outcome.wrong;
    assert!(lines.is_empty(), "seed {seed}, {} problems:\n  {}", lines.len(), lines.join("\n  "));
    let seals = matches!(load.1, Work::Growing);
    assert!(outcome.sealed > 20 || !seals, "{} sealed syncs", outcome.sealed);
    assert!(outcome.past > 0 || !flags.contains(&"always"), "nobody wrote past the daemon");
    let (cuts, syncs, forgotten) = (outcome.cuts, outcome.syncs, outcome.forgotten);
    proof!("{cuts} power cuts under load with {syncs} fsyncs; the disk forgot {forgotten} blocks");
}

const ALL_PAST: &[&str] =
    &["--max-age", "300ms", "--passthrough", "always", "--digests-from", "4KiB"];

/// No flush happens that would be recorded with the growth.
const GROWING: &[&str] = &["--preset", "hold", "--passthrough", "always"];

#[test]
fn synced_bytes_survive_power_cuts_on_ext4() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    survives(ImageFs::Ext4, ALL_PAST, 70);
}

#[test]
fn synced_bytes_survive_power_cuts_on_xfs() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    survives(ImageFs::Xfs, ALL_PAST, 80);
}

/// No request tells of msync and RWF_DSYNC in a file that is open past the daemon.
#[test]
fn bytes_that_were_synced_past_the_daemon_survive_power_cuts() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    survives_with((ImageFs::Ext4, Work::Silent), ALL_PAST, 75);
}

/// Each sync of one file commits what the file system has in memory of the others.
#[test]
fn files_that_grow_past_the_daemon_survive_power_cuts_on_ext4() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    survives_with((ImageFs::Ext4, Work::Growing), GROWING, 130);
}

#[test]
fn files_that_grow_past_the_daemon_survive_power_cuts_on_xfs() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    survives_with((ImageFs::Xfs, Work::Growing), GROWING, 140);
}

#[test]
fn synced_bytes_survive_power_cuts_on_the_daemon_path() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    survives(ImageFs::Xfs, &["--preset", "hold", "--passthrough", "off"], 90);
}

/// Proof that the test works: without the sync of the shadow file, fsync breaks its promise.
#[test]
fn a_protocol_without_the_sync_of_the_shadow_is_caught() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    if !binary_mentions("FOREBAY_SKIP_SYNC") {
        skip!("this forebay cannot leave a sync out (FOREBAY_SKIP_SYNC)");
    }
    for sync in ["shadow", "log"] {
        let env = [("FOREBAY_SKIP_SYNC", sync)];
        let caught = (0..3).any(|try_number| {
            let seed = 100 + try_number;
            {
                let load = (ImageFs::Ext4, Work::Synced);
                !cut_the_power(load, &["--preset", "hold"], seed, &env).wrong.is_empty()
            }
        });
        assert!(caught, "without the sync of the {sync} nothing was found missing");
        proof!("the missing sync of the {sync} was caught");
    }
}

/// The same for files that grow past the daemon: a seal alone is not enough.
#[test]
fn a_seal_without_the_sync_of_the_shadow_is_caught() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    if !binary_mentions("FOREBAY_SKIP_SYNC") {
        skip!("this forebay cannot leave a sync out (FOREBAY_SKIP_SYNC)");
    }
    for (fs, seed) in [(ImageFs::Ext4, 150), (ImageFs::Xfs, 151)] {
        let env = [("FOREBAY_SKIP_SYNC", "shadow")];
        let outcome = cut_the_power((fs, Work::Growing), GROWING, seed, &env);
        assert!(outcome.sealed > 20, "{} sealed syncs", outcome.sealed);
        assert!(!outcome.wrong.is_empty(), "{}: nothing was found missing", fs.name());
    }
}

/// Whether bytes are handed to the disk before a file is sealed for them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WrittenOut {
    Yes,
    No,
}

/// A file grows from `from` bytes and is sealed, another one is synced, and the power is cut. Returns the surviving
/// bytes of the first file, and whether it has its seal.
fn cut_behind_a_seal(fs: ImageFs, from: usize, out: WrittenOut) -> (Vec<u8>, bool) {
    const SEAL: &std::ffi::CStr = c"user.fb";
    let mut machine = Machine::new(fs, 160 + from as u64);
    let root = machine.bed.tier.parent().expect("the tier is below a mount").to_path_buf();
    let file = File::create_new(root.join("sealed")).expect("room");
    file.write_all_at(&vec![7; from], 0).and_then(|()| file.sync_all()).expect("room");
    File::open(&root).and_then(|dir| dir.sync_all()).expect("a directory");
    file.write_all_at(&[8; GROWS], from as u64).expect("room");
    if out == WrittenOut::Yes {
        let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: takes numbers alone.
        assert_eq!(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, how) }, 0);
    }
    let seal = [1_u8; 28];
    // SAFETY: the name ends with a zero, and the value is as long as stated.
    let set = unsafe {
        libc::fsetxattr(file.as_raw_fd(), SEAL.as_ptr(), seal.as_ptr().cast(), seal.len(), 0)
    };
    assert_eq!(set, 0);
    let other = File::create_new(root.join("other")).expect("room");
    other.write_all_at(&[9; 100], 0).and_then(|()| other.sync_all()).expect("room");
    let cut = machine.cut(0, None, &[]);
    drop((file, other));
    machine.unplug();
    let found = MountedFs::try_image(&cut.tier, &root).expect("a file system");
    let bytes = std::fs::read(found.path().join("sealed")).expect("it was synced once");
    let file = File::open(found.path().join("sealed")).expect("it is there");
    let mut room = [0_u8; 64];
    // SAFETY: the name ends with a zero, and there is as much room as stated.
    let len = unsafe {
        libc::fgetxattr(file.as_raw_fd(), SEAL.as_ptr(), room.as_mut_ptr().cast(), room.len())
    };
    (bytes, len == 28)
}

/// The growth of the sealed file in bytes.
const GROWS: usize = 9000;

/// The basis of the seals of shadows (docs/decisions/seals.md): the sync of another file makes the seal durable, and
/// then the bytes are, too. Where they were not written out before, ext4 shows zeros in their place.
#[test]
fn a_file_system_commits_a_seal_behind_the_bytes_that_were_written_out() {
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    for fs in [ImageFs::Ext4, ImageFs::Xfs] {
        for from in [100, 4096] {
            let (bytes, sealed) = cut_behind_a_seal(fs, from, WrittenOut::Yes);
            assert!(sealed, "{}: the sync of another file brings it", fs.name());
            let expected = [vec![7; from], vec![8; GROWS]].concat();
            assert!(bytes == expected, "{} from {from}: {} bytes", fs.name(), bytes.len());
        }
    }
    let (bytes, sealed) = cut_behind_a_seal(ImageFs::Ext4, 100, WrittenOut::No);
    assert!(sealed && bytes[100..].iter().all(|byte| *byte == 0), "{} bytes", bytes.len());
    assert!(bytes.len() > 100, "it has a length that nobody has written");
}

/// Whether a file system has the disk write what it syncs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Barriers {
    On,
    Off,
}

/// The judge itself, without forebay: writers on a plain ext4 image whose power is cut. Returns the problems.
fn cut_a_plain_ext4(seed: u64, work: Work, barriers: Barriers) -> Vec<String> {
    let mut machine = Machine::new(ImageFs::Ext4, seed);
    if barriers == Barriers::Off {
        let at = text(&machine.bed.backing);
        tool("mount", &["-o", "remount,barrier=0", at]).ok();
    }
    let bind = MountedFs::bind(&machine.bed.backing, &machine.bed.mnt);
    let mut load = Load::start(&machine.bed, 2, seed, work);
    let mut chance = Rng::new(seed);
    let mut cuts = Vec::new();
    for number in 0..4 {
        load.progress(chance.range(20, 300));
        cuts.push(machine.cut(number, None, &load.writers()));
    }
    let writers = load.stop();
    drop(bind);
    machine.unplug();
    let mut wrong = Vec::new();
    for cut in &cuts {
        match MountedFs::try_image(&cut.backing, &machine.bed.backing) {
            Ok(fs) => wrong.extend(judge(cut, &writers, fs.path(), Zeros::BeyondSynced)),
            Err(why) => wrong.push(why),
        }
    }
    wrong
}

#[test]
fn a_plain_ext4_keeps_its_promise_and_a_program_that_does_not_sync_is_caught() {
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    let wrong = cut_a_plain_ext4(110, Work::Synced, Barriers::On);
    assert!(wrong.is_empty(), "ext4 itself:\n  {}", wrong.join("\n  "));
    let lost_in = |work, barriers| -> usize {
        (0..3).map(|i| cut_a_plain_ext4(120 + i, work, barriers).len()).sum()
    };
    let caught = lost_in(Work::Unsynced, Barriers::On);
    assert!(caught > 0, "a writer that only claims to sync was not caught");
    let forgotten = lost_in(Work::Synced, Barriers::Off);
    assert!(forgotten > 0, "the disk forgot nothing of a file system that never asks for a flush");
    proof!(
        "ext4 passes; a writer that only claims to sync lost {caught} files, a file system without barriers {forgotten}"
    );
}
