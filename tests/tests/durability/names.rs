//! Names over power cuts: files that are published by rename and by link, replaced, rotated and
//! removed, while the power of the tier, of the store, or of both goes.
// S-2, S-3, S-4, S-8

use std::path::Path;
use std::time::Instant;

use forebay_tests::images::ImageFs;
use forebay_tests::journal::History;
use forebay_tests::names::{Cut, check_names};
use forebay_tests::tree::{Times, Tree};
use forebay_tests::{Mounted, Rng, needs_forebay, needs_tools, proof, seed, soak};

use crate::load::{Load, Work, Writer};
use crate::power::{Machine, Store};

fn boot(number: u64) -> String {
    format!("00000000-0000-4000-8000-0000000003{number:02}")
}

/// The results of a cut, and the records to judge them by.
struct Aftermath {
    mounted: Mounted,
    /// For each writer, the operations acknowledged before the cut and those that may have begun by
    /// its end.
    histories: Vec<(Writer, History, History)>,
}

impl Aftermath {
    fn judge(&self, root: &Path, cut: Cut) -> Vec<String> {
        let judged = self.histories.iter().flat_map(|(writer, acked, until)| {
            let wrong = check_names(acked, until, &root.join(&writer.name), cut);
            let at = format!("{}/{}", root.display(), writer.name);
            wrong.into_iter().map(move |wrong| format!("{at}/{wrong}"))
        });
        judged.collect()
    }
}

/// One life of a mount, its end by a cut, and the problems afterwards.
fn one_cut(cut: Cut, flags: &[&str], chance: &mut Rng) -> (Vec<String>, usize) {
    let mut machine = Machine::new(ImageFs::Ext4, chance.word());
    machine.store = if cut == Cut::Both { Store::Together } else { Store::Apart };
    machine.bed.env("FOREBAY_BOOT_ID", &boot(1));
    let mounted = machine.bed.mount(flags);
    for name in ["w0", "w1", "w2"] {
        std::fs::create_dir(machine.bed.mnt.join(name)).expect("a directory for the writer");
    }
    // The directories are not under test.
    rustix::fs::sync();
    let mut load = Load::start(&machine.bed, 3, chance.word(), Work::Names);
    load.progress(chance.range(20, 400));
    let after = match cut {
        Cut::Store => end_store(&mut machine, mounted, load, flags),
        _ => end_tier(&mut machine, mounted, load, flags),
    };
    let syncs = after.histories.iter().map(|(_, acked, _)| acked.syncs()).sum();
    let mut wrong = after.judge(&machine.bed.mnt, cut);
    let seen = Tree::read(&machine.bed.mnt);
    let out = after.mounted.umount_with(&[]);
    if out.code != Some(0) {
        wrong.push(format!("umount after the cut: {out:#?}"));
    }
    wrong.extend(after.judge(&machine.bed.backing, cut));
    wrong.extend(seen.differences(&Tree::read(&machine.bed.backing), Times::Compare));
    (wrong, syncs)
}

fn end_tier(machine: &mut Machine, mounted: Mounted, load: Load, flags: &[&str]) -> Aftermath {
    let copies = machine.last_cut(0, &mounted, &load.writers());
    let writers = load.stop();
    mounted.crash();
    machine.unplug();
    machine.bed.env("FOREBAY_BOOT_ID", &boot(2));
    let mounted = machine.restart(&copies, flags);
    let of = |(i, writer): (usize, Writer)| {
        let acked = History::read_prefix(&writer.journal, copies.before[i]);
        let until = History::read_prefix(&writer.journal, copies.after[i]);
        (writer, acked, until)
    };
    Aftermath { mounted, histories: writers.into_iter().enumerate().map(of).collect() }
}

fn end_store(machine: &mut Machine, mounted: Mounted, load: Load, flags: &[&str]) -> Aftermath {
    let copy = machine.cut_store(&mounted);
    let writers = load.stop();
    mounted.crash();
    machine.replug_store(&copy);
    let mounted = machine.bed.mount(flags);
    let of = |writer: Writer| (writer.clone(), writer.history(), writer.history());
    Aftermath { mounted, histories: writers.into_iter().map(of).collect() }
}

fn names_survive(cut: Cut, flags: &[&str], own_seed: u64) {
    const CUTS: usize = 4;
    let seed = seed(own_seed);
    let mut chance = Rng::new(seed);
    let deadline = soak().map(|time| Instant::now() + time);
    let (mut cuts, mut syncs, mut wrong) = (0, 0, Vec::new());
    while cuts < CUTS || deadline.is_some_and(|at| Instant::now() < at) {
        let (found, synced) = one_cut(cut, flags, &mut chance);
        wrong.extend(found.into_iter().map(|problem| format!("cut {cuts}: {problem}")));
        syncs += synced;
        cuts += 1;
    }
    assert!(syncs > 30, "only {syncs} fsyncs");
    assert!(wrong.is_empty(), "seed {seed}, {} problems:\n  {}", wrong.len(), wrong.join("\n  "));
    proof!("{cuts} cuts of the power of {cut:?} with {syncs} fsyncs");
}

#[test]
fn names_survive_power_cuts_of_the_tier() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    names_survive(Cut::Tier, &["--max-age", "300ms"], 600);
}

#[test]
fn names_survive_power_cuts_of_the_tier_with_all_of_it_dirty() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    names_survive(Cut::Tier, &["--preset", "hold"], 610);
}

#[test]
fn names_survive_power_cuts_of_the_store() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    names_survive(Cut::Store, &["--max-age", "300ms"], 620);
}

#[test]
fn names_survive_power_cuts_of_both() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    names_survive(Cut::Both, &["--max-age", "300ms"], 630);
}

#[test]
fn names_survive_power_cuts_of_both_with_all_of_it_dirty() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    names_survive(Cut::Both, &["--preset", "hold"], 640);
}
