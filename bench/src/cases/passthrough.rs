//! Passthrough paths against the same directory used natively.
//!
//! Reads are of complete, clean files. Writes are to files created by the descriptor that writes, and to
//! complete, clean files opened for writing (those that forebay passes through by rule 2 of its data
//! path); random writers keep their descriptor. An empty passthrough daemon runs along, to show the cost
//! of the kernel's passthrough itself.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::emptyfs::Mode;
use crate::load::{self, Caching, Finish, Forget, MIB, Random, Verb};
use crate::report::{Finding, Report, Target};
use crate::run::{On, Rounds, Run, data, names, remove};
use crate::stat::Samples;
use crate::{mounts::Place, run::Subject};

/// Long enough that the flusher does not start by age during a measurement.
const NO_FLUSH: [&str; 2] = ["--preset", "hold"];

fn contestants(run: &Run, on: On) -> Result<Vec<Place>> {
    let mut options = NO_FLUSH.to_vec();
    // On tmpfs forebay passes writes through only when told so.
    let which = if on == On::Tmpfs { "always" } else { "auto" };
    options.extend(["--passthrough", which]);
    let mut places = vec![run.subject(on, &options)?, run.native(on)?];
    if run.subject != Subject::EmptyPass {
        places.push(run.empty(on, Mode::Pass)?);
    }
    Ok(places)
}

pub fn disk_seq(run: &Run, report: &mut Report) -> Result<()> {
    seq(run, report, On::Disk, run.pick(512, 256) * MIB, Target::AtLeast(0.95))
}

pub fn tmpfs_seq(run: &Run, report: &mut Report) -> Result<()> {
    seq(run, report, On::Tmpfs, run.pick(1024, 512) * MIB, Target::AtLeast(0.9))
}

fn seq(run: &Run, report: &mut Report, on: On, len: u64, target: Target) -> Result<()> {
    let places = contestants(run, on)?;
    let names = names(&places);
    let [samples] = seq_write(run, &places, len, Finish::Close)?;
    let case = format!("passthrough-{}/seq-write", on.label());
    let state = format!("new file of {} MiB into the page cache, closed", len / MIB);
    let finding = Finding::new(&case, &state, "MB/s", &names, &samples);
    report.add(finding.ratio_target("native", target))?;

    let [samples] = run.alternate(places.len(), Rounds::Many, |who, _| {
        let path = data(&places[who]);
        // Written anew every round: the place of a file in memory is luck, and lasts.
        load::write_seq(&path, len, Caching::Buffered, Finish::Close)?;
        places[who].settle()?;
        Ok([load::mb_per_sec(len, load::read_seq(&path, len, Caching::Buffered)?)])
    })?;
    let case = format!("passthrough-{}/seq-read", on.label());
    let state = format!("{} MiB, warm page cache", len / MIB);
    let finding = Finding::new(&case, &state, "MB/s", &names, &samples);
    report.add(finding.ratio_target("native", target))?;
    if on == On::Disk {
        device_rows(run, report, &places, len)?;
    }
    Ok(())
}

fn seq_write(run: &Run, places: &[Place], len: u64, finish: Finish) -> Result<[Samples; 1]> {
    let rounds = if finish == Finish::Close { Rounds::Many } else { Rounds::Few };
    run.alternate(places.len(), rounds, |who, _| {
        let path = places[who].path("new");
        let time = load::write_seq(&path, len, Caching::Buffered, finish)?;
        remove(&path)?;
        Ok([load::mb_per_sec(len, time)])
    })
}

/// Rows that the device decides: reported without a target, since two native runs differ by more.
fn device_rows(run: &Run, report: &mut Report, places: &[Place], len: u64) -> Result<()> {
    let mut add = |what: &str, state: &str, [samples]: [Samples; 1]| {
        let state = format!("{} MiB, the device decides; {state}", len / MIB);
        let case = format!("passthrough-disk/seq-{what}");
        report.add(Finding::new(&case, &state, "MB/s", &names(places), &samples))
    };
    let written = seq_write(run, places, len, Finish::SyncAndClose)?;
    add("write-fsync", "new file, fsync, closed", written)?;
    for place in places {
        load::write_seq(&data(place), len, Caching::Buffered, Finish::SyncAndClose)?;
        place.settle()?;
    }
    let read = |caching| {
        run.alternate(places.len(), Rounds::Few, |who, _| {
            load::drop_caches(Forget::Pages);
            let time = load::read_seq(&data(&places[who]), len, caching)?;
            Ok([load::mb_per_sec(len, time)])
        })
    };
    add("read-direct", "O_DIRECT", read(Caching::Direct)?)?;
    if load::drop_caches(Forget::Pages) {
        add("read-cold", "drop_caches before each read", read(Caching::Buffered)?)?;
    }
    Ok(())
}

pub fn disk_random(run: &Run, report: &mut Report) -> Result<()> {
    random(run, report, On::Disk)
}

pub fn tmpfs_random(run: &Run, report: &mut Report) -> Result<()> {
    random(run, report, On::Tmpfs)
}

fn random(run: &Run, report: &mut Report, on: On) -> Result<()> {
    let len = run.pick(256, 128) * MIB;
    let places = contestants(run, on)?;
    for place in &places {
        load::write_seq(&data(place), len, Caching::Buffered, Finish::SyncAndClose)?;
        place.settle()?;
    }
    for caching in [Caching::Buffered, Caching::Direct] {
        let open = |place: &Place| Ok(vec![load::open(&data(place), caching)?]);
        let files = places.iter().map(open).collect::<Result<Vec<_>>>()?;
        for threads in [1, 4] {
            let row = Row { on, work: Work::Read, caching, threads, len };
            random_row(run, report, &places, &files, row)?;
        }
    }
    for (caching, threads) in [(Caching::Buffered, 1), (Caching::Buffered, 4), (Caching::Direct, 1)]
    {
        let files = places.iter().map(|place| existing(place, len, caching));
        let files = files.collect::<Result<Vec<_>>>()?;
        let row = Row { on, work: Work::Rewrite, caching, threads, len };
        random_row(run, report, &places, &files, row)?;
    }
    for caching in [Caching::Buffered, Caching::Direct] {
        for (threads, count) in [(1, 1), (4, 1), (4, 4)] {
            let create = |place: &Place| new_files(place, count, caching, len);
            let files = places.iter().map(create).collect::<Result<Vec<_>>>()?;
            let row = Row { on, work: Work::Write, caching, threads, len };
            random_row(run, report, &places, &files, row)?;
            for place in &places {
                (0..count).try_for_each(|index| remove(&new_file(place, index)))?;
            }
        }
    }
    Ok(())
}

fn new_file(place: &Place, index: usize) -> PathBuf {
    place.path(&format!("new-{index}"))
}

/// Creates files of `len` bytes, on the disk, by descriptors that stay open.
fn new_files(place: &Place, count: usize, caching: Caching, len: u64) -> Result<Vec<File>> {
    let create = |index| {
        let file = load::create(&new_file(place, index), caching)?;
        load::fill(&file, len)?;
        file.sync_data()?;
        Ok(file)
    };
    (0..count).map(create).collect()
}

/// Makes a complete and clean file, and opens it for writing.
fn existing(place: &Place, len: u64, caching: Caching) -> Result<Vec<File>> {
    load::write_seq(&data(place), len, Caching::Buffered, Finish::SyncAndClose)?;
    place.settle()?;
    Ok(vec![load::open_to_write(&data(place), caching)?])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Read,
    Write,
    /// Overwriting existing bytes.
    Rewrite,
}

#[derive(Clone, Copy)]
struct Row {
    on: On,
    work: Work,
    caching: Caching,
    threads: usize,
    len: u64,
}

fn random_row(
    run: &Run,
    report: &mut Report,
    places: &[Place],
    files: &[Vec<File>],
    row: Row,
) -> Result<()> {
    let Row { on, work, caching, threads, len } = row;
    let verb = if work == Work::Read { Verb::Read } else { Verb::Write };
    let [samples] = run.alternate(places.len(), Rounds::Many, |who, seed| {
        if verb == Verb::Read && caching == Caching::Buffered {
            load::warm(&files[who][0], len)?;
        }
        let rate =
            load::random(&files[who], len, Random { verb, threads, time: run.slice(), seed })?;
        if verb == Verb::Write {
            // Not measured: no contestant starts with another's dirty pages.
            files[who].iter().try_for_each(File::sync_data)?;
        }
        Ok([rate])
    })?;
    let (word, made) = match work {
        Work::Read => ("read", "complete, warm"),
        Work::Write => ("write", "created by the same open"),
        Work::Rewrite => ("rewrite", "complete and clean, opened for writing"),
    };
    let (own, each) =
        if files[0].len() > 1 { ("-own", "one file per thread") } else { ("", "one file") };
    let direct = if caching == Caching::Direct { "-direct" } else { "" };
    let case = format!("passthrough-{}/random-{word}{direct}-{threads}t{own}", on.label());
    let state = format!("{each} of {} MiB, {}, {made}", len / MIB, caching.label());
    let finding = Finding::new(&case, &state, "op/s", &names(places), &samples);
    report.add(finding.ratio_target("native", Target::AtLeast(0.85)))
}

pub fn mmap(run: &Run, report: &mut Report) -> Result<()> {
    for on in [On::Disk, On::Tmpfs] {
        let len = run.pick(256, 128) * MIB;
        let places = contestants(run, on)?;
        for place in &places {
            load::write_seq(&data(place), len, Caching::Buffered, Finish::SyncAndClose)?;
            place.settle()?;
        }
        let open = |place: &Place| load::open(&data(place), Caching::Buffered);
        let files = places.iter().map(open).collect::<Result<Vec<_>>>()?;
        mmap_row(run, report, on, (&places, &files), (Work::Read, len))?;
        drop(files);
        let files = places.iter().map(|place| existing(place, len, Caching::Buffered));
        let files: Vec<File> = files.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        mmap_row(run, report, on, (&places, &files), (Work::Rewrite, len))?;
        drop(files);
        let create = |place: &Place| new_files(place, 1, Caching::Buffered, len);
        let files = places.iter().map(create).collect::<Result<Vec<_>>>()?;
        let files: Vec<File> = files.into_iter().flatten().collect();
        mmap_row(run, report, on, (&places, &files), (Work::Write, len))?;
    }
    Ok(())
}

fn mmap_row(
    run: &Run,
    report: &mut Report,
    on: On,
    (places, files): (&[Place], &[File]),
    (work, len): (Work, u64),
) -> Result<()> {
    let verb = if work == Work::Read { Verb::Read } else { Verb::Write };
    let time = run.slice() + Duration::from_millis(200);
    let [samples] = run.alternate(places.len(), Rounds::Many, |who, seed| {
        load::warm(&files[who], len)?;
        let rate = load::mmap_random(&files[who], len, verb, time, seed)?;
        if verb == Verb::Write {
            files[who].sync_data()?;
        }
        Ok([rate])
    })?;
    let (word, file) = match work {
        Work::Read => ("read", "complete file, warm"),
        Work::Write => ("write", "file created by the same open"),
        Work::Rewrite => ("rewrite", "complete, clean file opened for writing"),
    };
    let case = format!("passthrough-{}/mmap-{word}", on.label());
    let state = format!("{} MiB, fresh mapping each round, {file}", len / MIB);
    let finding = Finding::new(&case, &state, "op/s", &names(places), &samples);
    report.add(finding.ratio_target("native", Target::AtLeast(0.95)))
}
