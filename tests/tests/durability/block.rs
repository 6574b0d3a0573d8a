//! Power cuts below a file system on a loop device on a mounted image: what that file system has
//! synced is there, whatever the moment. The method is that of `power.rs`, except that the backing
//! store loses its power with the tier and keeps no more than was synced to it.
// S-3, S-4

use std::path::Path;

use forebay_tests::images::{self, ImageFs, LoopDevice, MountedFs};
use forebay_tests::journal::Zeros;
use forebay_tests::{
    Mounted, Rng, binary_mentions, needs_forebay, needs_tools, proof, skip, text, tool,
};

use crate::load::{Load, Work, Writer};
use crate::power::{Cut, Machine, Store, judge};

const IMAGE: &str = "disk.img";
const IMAGE_MIB: u64 = 192;
const CUTS: usize = 5;

/// An ext4 on a device on the mounted image. Dropped in this order.
struct OnTop {
    fs: MountedFs,
    device: LoopDevice,
}

impl OnTop {
    fn new(mounted: &Mounted, at: &Path) -> Result<OnTop, String> {
        let device = LoopDevice::attach(&mounted.at(IMAGE));
        Ok(OnTop { fs: MountedFs::device(device.path(), at)?, device })
    }

    /// Unmounts, and lets the file system's own checker look.
    fn check(self) -> Option<String> {
        let OnTop { fs, device } = self;
        drop(fs);
        let name = text(device.path());
        let out = tool("e2fsck", &["-f", "-n", name]);
        (out.code != Some(0)).then(|| format!("the checker found: {out:#?}"))
    }
}

struct Outcome {
    wrong: Vec<String>,
    syncs: usize,
}

fn cut_the_power(tier: ImageFs, flags: &[&str], seed: u64, env: &[(&str, &str)]) -> Outcome {
    let mut machine = Machine::new(tier);
    machine.store = Store::Together;
    for (name, value) in env {
        machine.bed.env(name, value);
    }
    machine.bed.env("FOREBAY_BOOT_ID", "00000000-0000-4000-8000-000000000001");
    let image = machine.bed.backing.join(IMAGE);
    images::make(&image, ImageFs::Ext4, IMAGE_MIB);
    rustix::fs::sync();
    machine.bed.serve(&image);
    let top = machine.bed.dir("top");
    let (cuts, writers) = load_and_cut(&machine, &top, flags, seed);
    machine.unplug();
    let mut wrong = Vec::new();
    for (number, cut) in cuts.iter().enumerate() {
        let boot = format!("00000000-0000-4000-8000-0000000002{number:02}");
        machine.bed.env("FOREBAY_BOOT_ID", &boot);
        let found = problems_after(&mut machine, cut, &writers, flags);
        wrong.extend(found.into_iter().map(|w| format!("cut {number}: {w}")));
    }
    Outcome { wrong, syncs: writers.iter().map(|w| w.history().syncs()).sum() }
}

fn load_and_cut(
    machine: &Machine,
    top: &Path,
    flags: &[&str],
    seed: u64,
) -> (Vec<Cut>, Vec<Writer>) {
    let mut chance = Rng::new(seed);
    let mounted = machine.bed.mount(flags);
    let on_top = OnTop::new(&mounted, top).expect("a new file system mounts");
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
    writers: &[Writer],
    flags: &[&str],
) -> Vec<String> {
    let top = machine.bed.dir("top");
    let mounted = machine.restart(cut, flags);
    let mut wrong = match OnTop::new(&mounted, &top) {
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

/// Files of a damaged file system may not even be readable, which the judge takes for a fault of
/// the test.
fn judge_damaged(cut: &Cut, writers: &[Writer], root: &Path) -> Vec<String> {
    let judged = || judge(cut, writers, root, Zeros::BeyondSynced);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(judged))
        .unwrap_or_else(|_| vec![format!("{} cannot be read", root.display())])
}

fn survives(tier: ImageFs, flags: &[&str], seed: u64) {
    if !binary_mentions("FOREBAY_BOOT_ID") {
        skip!("this forebay has no FOREBAY_BOOT_ID");
    }
    let outcome = cut_the_power(tier, flags, seed, &[]);
    assert!(outcome.syncs > 30, "only {} fsyncs", outcome.syncs);
    let lines = &outcome.wrong;
    assert!(lines.is_empty(), "seed {seed}, {} problems:\n  {}", lines.len(), lines.join("\n  "));
    proof!("{CUTS} power cuts below ext4 on a loop device with {} fsyncs", outcome.syncs);
}

#[test]
fn what_ext4_on_a_loop_device_synced_survives_power_cuts() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4", "losetup");
    survives(ImageFs::Ext4, &["--max-age", "300ms"], 300);
}

#[test]
fn what_ext4_on_a_loop_device_synced_survives_with_all_of_it_dirty() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4", "losetup");
    survives(ImageFs::Xfs, &["--max-age", "1h"], 310);
}

/// The test must bite: a barrier that stops at the loop device, or at forebay, is found.
#[test]
fn a_barrier_that_is_not_passed_on_is_caught() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4", "losetup");
    if !binary_mentions("FOREBAY_SKIP_SYNC") {
        skip!("this forebay cannot leave a sync out (FOREBAY_SKIP_SYNC)");
    }
    let env = [("FOREBAY_SKIP_SYNC", "shadow")];
    let caught = (0..3).any(|i| {
        let outcome = cut_the_power(ImageFs::Ext4, &["--max-age", "1h"], 320 + i, &env);
        !outcome.wrong.is_empty()
    });
    assert!(caught, "without the sync of the shadow nothing was found missing");
    proof!("the missing sync was caught");
}
