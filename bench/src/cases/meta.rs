//! Metadata of 10,000 files against an empty passthrough daemon over the same file system.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use crate::emptyfs::Mode;
use crate::load::{self, Forget};
use crate::report::{Finding, Report, Target};
use crate::run::{On, Rounds, Run, Subject, names};

pub fn tmpfs(run: &Run, report: &mut Report) -> Result<()> {
    files(run, report, On::Tmpfs)
}

pub fn disk(run: &Run, report: &mut Report) -> Result<()> {
    files(run, report, On::Disk)
}

fn files(run: &Run, report: &mut Report, on: On) -> Result<()> {
    let count = run.pick(10_000, 2_000);
    let mut places = vec![run.subject(on, &["--preset", "hold"])?];
    if run.subject != Subject::EmptyPass {
        places.push(run.empty(on, Mode::Pass)?);
    }
    places.push(run.native(on)?);
    let cold = load::drop_caches(Forget::NamesAndInodes);
    let samples = run.alternate(places.len(), Rounds::Many, |who, round| {
        let dir = places[who].path(&format!("meta-{round}"));
        fs::create_dir(&dir)?;
        let create = load::create_empty(&dir, count)?;
        if cold {
            forget_names();
        }
        let stat_cold = load::stat_all(&dir, count)?;
        let stat_warm = load::stat_all(&dir, count)?;
        if cold {
            forget_names();
        }
        let statx_cold = load::statx_all(&dir, count)?;
        if cold {
            forget_names();
        }
        let list = load::list(&dir, count)?;
        Ok([create, stat_cold, stat_warm, statx_cold, list])
    })?;
    // Not before all files are created: for minutes ext4 looks at each freed inode when it makes one.
    let [unlink] = run.alternate(places.len(), Rounds::Many, |who, round| {
        let dir = places[who].path(&format!("meta-{round}"));
        if cold {
            forget_names();
        }
        load::list(&dir, count)?;
        let unlink = load::unlink_all(&dir, count)?;
        fs::remove_dir(&dir)?;
        Ok([unlink])
    })?;
    let dropped = if cold { "names and inodes dropped before" } else { "not root: warm" };
    let rows = [
        ("create", "open O_EXCL and close, no data"),
        ("stat-cold", dropped),
        ("stat-warm", "again at once"),
        ("statx-birth-cold", dropped),
        ("readdir", dropped),
        ("unlink", "right after a listing"),
    ];
    for ((what, state), samples) in rows.into_iter().zip(samples.iter().chain([&unlink])) {
        let case = format!("metadata-{}/{what}", on.label());
        let state = format!("{count} files, one thread; {state}");
        let finding = Finding::new(&case, &state, "us/file", &names(&places), samples);
        // The empty daemon has no birth times: the kernel asks it once where it asks forebay twice.
        let finding = match what {
            "statx-birth-cold" => finding,
            _ => finding.ratio_target("empty-pass", Target::AtMost(1.25)),
        };
        report.add(finding)?;
    }
    Ok(())
}

fn forget_names() {
    load::drop_caches(Forget::NamesAndInodes);
    // The kernel tells the daemon about every inode it forgot; that cost is not the next loop's.
    std::thread::sleep(Duration::from_millis(100));
}
