//! Mounting a tier that holds many files, and the daemon's memory afterwards.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::load::{self, Forget};
use crate::mounts::Forebay;
use crate::report::{Finding, Report, Target};
use crate::run::{On, Run};

const PER_DIR: usize = 1_000;
const FILE_SIZE: usize = 1 << 10;

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let dirs = run.pick(100, 10);
    let count = dirs * PER_DIR;
    let mut forebay = run.forebay_parts(On::Disk, On::Tmpfs, &["--preset", "hold"])?;
    forebay.mount()?;
    let empty = settled_kib(&forebay)?;
    memory(report, "start/memory-idle-empty", "fresh tier", empty, true)?;

    for dir in 0..dirs {
        let dir = forebay.mountpoint.join(format!("dir-{dir:03}"));
        fs::create_dir(&dir)?;
        load::write_small(&dir, PER_DIR, FILE_SIZE, 4)?;
    }
    forebay.flush()?;
    let built = settled_kib(&forebay)?;
    let state = format!("{count} files of 1 KiB just written and flushed");
    memory(report, "start/memory-after-writing", &state, built, false)?;

    mounts(run, report, &mut forebay, count)?;

    let mounted = settled_kib(&forebay)?;
    let state = format!("tier of {count} cached files, just mounted");
    memory(report, "start/memory-idle", &state, mounted, true)?;
    growth(report, "start/memory-per-cached-file", "mounted, untouched", mounted - empty, count)?;
    for dir in 0..dirs {
        load::read_small(&forebay.mountpoint.join(format!("dir-{dir:03}")), PER_DIR, 1)?;
    }
    let touched = settled_kib(&forebay)?;
    growth(report, "start/memory-per-file-in-use", "each opened and read", touched - empty, count)?;
    tier_share(report, &forebay.tier, count)
}

fn mounts(run: &Run, report: &mut Report, forebay: &mut Forebay, count: usize) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..run.few_rounds() * 2 {
        let cold = round % 2;
        forebay.unmount()?;
        if cold == 1 && !load::drop_caches(Forget::Pages) {
            forebay.mount()?;
            continue;
        }
        times[cold].push(forebay.mount()?.as_secs_f64());
    }
    for (case, state, times) in [
        ("start/mount", "tier's index in the page cache", &times[0]),
        ("start/mount-cold", "page cache dropped", &times[1]),
    ] {
        if !times.is_empty() {
            let state = format!("tier of {count} cached files on the disk, {state}");
            let finding = Finding::alone(case, &state, "s", "forebay", times);
            report.add(finding.target(Target::AtMost(1.0)))?;
        }
    }
    Ok(())
}

/// Resident memory once the daemon has come to rest.
fn settled_kib(forebay: &Forebay) -> Result<f64> {
    std::thread::sleep(Duration::from_secs(1));
    forebay.resident_kib()
}

fn memory(report: &mut Report, case: &str, state: &str, kib: f64, judged: bool) -> Result<()> {
    let finding = Finding::alone(case, state, "MiB", "forebay", &[kib / 1024.0]);
    report.add(if judged { finding.target(Target::AtMost(50.0)) } else { finding })
}

fn growth(report: &mut Report, case: &str, state: &str, kib: f64, count: usize) -> Result<()> {
    let bytes = kib * 1024.0 / count as f64;
    let state = format!("{state}; resident memory above a fresh tier's, over {count} files");
    report.add(Finding::alone(case, &state, "B/file", "forebay", &[bytes]))
}

/// The disk space of the tier beyond the files' own bytes.
fn tier_share(report: &mut Report, tier: &Path, count: usize) -> Result<()> {
    let bytes = allocated(tier)? as f64 / count as f64;
    let state = format!("allocated on the disk, over {count} files of 1 KiB, data included");
    report.add(Finding::alone("start/tier-bytes-per-file", &state, "B/file", "forebay", &[bytes]))
}

fn allocated(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        total += meta.blocks() * 512;
        if meta.is_dir() {
            total += allocated(&entry.path())?;
        }
    }
    Ok(total)
}
