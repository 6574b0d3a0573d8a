//! Power cuts below a file system on a loop device on a mounted image, and below an NBD export of one:
//! synced bytes of that file system or a client survive a cut at any moment. The method is that of
//! `power.rs`, except that the backing store loses its power with the tier and keeps only its own
//! synced bytes.
// S-3, S-4

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_tests::images::{self, ImageFs, LoopDevice, MountedFs};
use forebay_tests::journal::Zeros;
use forebay_tests::nbd::{self, qemu_io};
use forebay_tests::{
    Mounted, Rng, binary_mentions, needs_forebay, needs_tools, proof, skip, text, tool,
};

use crate::load::{Load, Work, Writer};
use crate::power::{Cut, Machine, Store, judge};

const IMAGE: &str = "disk.img";
/// The least size for XFS.
const IMAGE_MIB: u64 = 320;
const CUTS: usize = 5;

/// A file system on a device on the mounted image. Dropped in this order.
struct OnTop {
    fs: MountedFs,
    device: LoopDevice,
    kind: ImageFs,
}

impl OnTop {
    fn new(mounted: &Mounted, at: &Path, kind: ImageFs) -> Result<OnTop, String> {
        let device = LoopDevice::attach(&mounted.at(IMAGE));
        Ok(OnTop { fs: MountedFs::device(device.path(), at)?, device, kind })
    }

    /// Unmounts, and runs the file system's own checker.
    fn check(self) -> Option<String> {
        let OnTop { fs, device, kind } = self;
        drop(fs);
        let name = text(device.path());
        let out = match kind {
            ImageFs::Ext4 => tool("e2fsck", &["-f", "-n", name]),
            ImageFs::Xfs => tool("xfs_repair", &["-n", name]),
        };
        (out.code != Some(0)).then(|| format!("the checker found: {out:#?}"))
    }
}

struct Outcome {
    wrong: Vec<String>,
    syncs: usize,
}

fn cut_the_power(
    (tier, above): (ImageFs, ImageFs),
    flags: &[&str],
    seed: u64,
    env: &[(&str, &str)],
) -> Outcome {
    let mut machine = Machine::new(tier, seed);
    machine.store = Store::Together;
    for (name, value) in env {
        machine.bed.env(name, value);
    }
    machine.bed.env("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000001");
    let image = machine.bed.backing.join(IMAGE);
    images::make(&image, above, IMAGE_MIB);
    rustix::fs::sync();
    machine.bed.serve(&image);
    let top = machine.bed.dir("top");
    let mounted = machine.bed.mount(flags);
    let on_top = OnTop::new(&mounted, &top, above).expect("a new file system mounts");
    let (cuts, writers) = load_and_cut(&machine, mounted, on_top, &top, seed);
    machine.unplug();
    let mut wrong = Vec::new();
    for (number, cut) in cuts.iter().enumerate() {
        let boot = format!("00000000-0000-4000-8000-0000000002{number:02}");
        machine.bed.env("FOREBAY_BOOT_ID", &boot);
        let found = problems_after(&mut machine, cut, above, &writers, flags);
        wrong.extend(found.into_iter().map(|w| format!("cut {number}: {w}")));
    }
    Outcome { wrong, syncs: writers.iter().map(|w| w.history().syncs()).sum() }
}

fn load_and_cut(
    machine: &Machine,
    mounted: Mounted,
    on_top: OnTop,
    top: &Path,
    seed: u64,
) -> (Vec<Cut>, Vec<Writer>) {
    let mut chance = Rng::new(seed);
    let mut load = Load::start_in(top, &machine.bed, 3, chance.word(), Work::Synced);
    let mut cuts = Vec::new();
    for number in 0..CUTS {
        load.progress(chance.range(20, 200));
        cuts.push(machine.cut(number, Some(mounted.pid), &load.writers()));
    }
    let writers = load.stop();
    drop(on_top);
    mounted.crash();
    (cuts, writers)
}

fn problems_after(
    machine: &mut Machine,
    cut: &Cut,
    above: ImageFs,
    writers: &[Writer],
    flags: &[&str],
) -> Vec<String> {
    let top = machine.bed.dir("top");
    let mounted = machine.restart(cut, flags);
    let mut wrong = match OnTop::new(&mounted, &top, above) {
        Ok(above) => judge_damaged(cut, writers, &top).into_iter().chain(above.check()).collect(),
        Err(why) => vec![format!("does not even mount: {why}")],
    };
    let out = mounted.umount_with(&[]);
    if out.code != Some(0) {
        wrong.push(format!("umount after the cut: {out:#?}"));
    }
    drop(mounted);
    if wrong.is_empty() {
        let alone = MountedFs::image(&machine.bed.backing.join(IMAGE), &top);
        let left = judge_damaged(cut, writers, alone.path());
        wrong.extend(left.into_iter().map(|w| format!("in the image alone: {w}")));
    }
    machine.unplug();
    wrong
}

/// Judges a damaged file system, whose files may not even be readable: the judge would take that for a
/// fault of the test.
fn judge_damaged(cut: &Cut, writers: &[Writer], root: &Path) -> Vec<String> {
    let judged = || judge(cut, writers, root, Zeros::BeyondSynced);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(judged))
        .unwrap_or_else(|_| vec![format!("{} cannot be read", root.display())])
}

fn survives(tier: ImageFs, above: ImageFs, flags: &[&str], seed: u64) {
    if !binary_mentions("FOREBAY_BOOT_ID") {
        skip!("this forebay has no FOREBAY_BOOT_ID");
    }
    let outcome = cut_the_power((tier, above), flags, seed, &[]);
    assert!(outcome.syncs > 30, "only {} fsyncs", outcome.syncs);
    let lines = &outcome.wrong;
    assert!(lines.is_empty(), "seed {seed}, {} problems:\n  {}", lines.len(), lines.join("\n  "));
    let (name, syncs) = (above.name(), outcome.syncs);
    proof!("{CUTS} power cuts below {name} on a loop device with {syncs} fsyncs");
}

#[test]
fn what_ext4_on_a_loop_device_synced_survives_power_cuts() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4", "losetup");
    survives(ImageFs::Ext4, ImageFs::Ext4, &["--max-age", "300ms"], 300);
}

#[test]
fn what_xfs_on_a_loop_device_synced_survives_power_cuts() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "xfs_repair", "losetup");
    survives(ImageFs::Ext4, ImageFs::Xfs, &["--max-age", "300ms"], 330);
}

#[test]
fn what_ext4_on_a_loop_device_synced_survives_with_all_of_it_dirty() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4", "losetup");
    survives(ImageFs::Xfs, ImageFs::Ext4, &["--max-age", "1h"], 310);
}

/// Proof that the test works: a barrier that stops at the loop device, or at forebay, is found.
#[test]
fn a_barrier_that_is_not_passed_on_is_caught() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4", "losetup");
    if !binary_mentions("FOREBAY_SKIP_SYNC") {
        skip!("this forebay cannot leave a sync out (FOREBAY_SKIP_SYNC)");
    }
    let env = [("FOREBAY_SKIP_SYNC", "shadow")];
    let caught = (0..3).any(|i| {
        let outcome =
            cut_the_power((ImageFs::Ext4, ImageFs::Ext4), &["--max-age", "1h"], 320 + i, &env);
        !outcome.wrong.is_empty()
    });
    assert!(caught, "without the sync of the shadow nothing was found missing");
    proof!("the missing sync was caught");
}

const MIB: u64 = 1 << 20;

/// A client of an NBD export writes and flushes round by round; the power is cut after each flush,
/// while later writes may be anywhere. Returns the missing bytes.
fn cut_below_nbd(flags: &[&str], env: &[(&str, &str)]) -> Vec<String> {
    let mut machine = Machine::new(ImageFs::Ext4, 0);
    machine.store = Store::Together;
    for (name, value) in env {
        machine.bed.env(name, value);
    }
    machine.bed.env("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000001");
    let image = machine.bed.backing.join(IMAGE);
    File::create(&image).and_then(|file| file.set_len(64 * MIB)).expect("a sparse image");
    rustix::fs::sync();
    machine.bed.serve(&image);
    let mounted = machine.bed.mount(flags);
    let socket = machine.bed.root.join("nbd.sock");
    let mut server = nbd::serve(nbd::qemu_nbd(&mounted.at(IMAGE), &socket, &[]), &socket);
    let mut cuts = Vec::new();
    for number in 0..CUTS {
        let (key, own) = (number + 1, 4 + number * 2);
        // The first mebibyte again and again, and one that only this round writes.
        let write = |at: usize| format!("write -P {key} {at}M 1M");
        qemu_io(&socket, &[&write(0), &write(own), "flush"]);
        cuts.push(machine.cut(number, Some(mounted.pid), &[]));
        qemu_io(&socket, &[&format!("write -P 99 {}M 1M", own + 1)]);
    }
    server.kill();
    mounted.crash();
    machine.unplug();
    let mut wrong = Vec::new();
    for (number, cut) in cuts.iter().enumerate() {
        let boot = format!("00000000-0000-4000-8000-0000000002{number:02}");
        machine.bed.env("FOREBAY_BOOT_ID", &boot);
        let mounted = machine.restart(cut, &[]);
        wrong.extend(missing(&mounted.at(IMAGE), number).map(|w| format!("cut {number}: {w}")));
        let out = mounted.umount_with(&[]);
        if out.code != Some(0) {
            wrong.push(format!("cut {number}: {out:#?}"));
        }
        drop(mounted);
        wrong.extend(missing(&image, number).map(|w| format!("image of cut {number}: {w}")));
        machine.unplug();
    }
    wrong
}

/// The rounds up to `last` whose bytes are missing.
fn missing(path: &Path, last: usize) -> impl Iterator<Item = String> {
    let file = File::open(path).expect("the image");
    let holds = |mib: usize, key: usize| {
        let mut bytes = vec![0; MIB as usize];
        let read = file.read_exact_at(&mut bytes, mib as u64 * MIB);
        read.is_ok() && bytes.iter().all(|byte| usize::from(*byte) == key)
    };
    let rounds = (0..=last).map(|round| (4 + round * 2, round + 1));
    let wrong: Vec<String> = std::iter::once((0, last + 1))
        .chain(rounds)
        .filter(|(mib, key)| !holds(*mib, *key))
        .map(|(mib, key)| format!("{mib} MiB is not all {key}"))
        .collect();
    wrong.into_iter()
}

#[test]
fn what_a_client_of_an_nbd_export_flushed_survives_power_cuts() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4", "qemu-nbd", "qemu-io");
    if !binary_mentions("FOREBAY_BOOT_ID") {
        skip!("this forebay has no FOREBAY_BOOT_ID");
    }
    let wrong = cut_below_nbd(&["--max-age", "300ms"], &[]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n  "));
    if binary_mentions("FOREBAY_SKIP_SYNC") {
        // Held, since otherwise a slow machine has all bytes on the backing store before the power is
        // cut.
        let held = ["--preset", "hold"];
        let caught = cut_below_nbd(&held, &[("FOREBAY_SKIP_SYNC", "shadow")]);
        assert!(!caught.is_empty(), "without the sync of the shadow nothing was found missing");
        proof!(
            "{CUTS} power cuts below an NBD export; a missing sync lost {} writes",
            caught.len()
        );
    }
}
