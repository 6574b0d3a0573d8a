//! The daemon path on tmpfs, against absolute targets and an empty daemon.
//!
//! Every byte must come through the daemon, so the mount's own page cache is dropped before each
//! read; the tier's pages stay in memory.

use anyhow::Result;

use crate::emptyfs::Mode;
use crate::load::{self, Caching, Finish, MIB, Random, Verb};
use crate::report::{Finding, Report, Target};
use crate::run::{On, Rounds, Run, Subject, data, names, remove};

/// Within 15 % of an empty daemon.
const NEAR_EMPTY: Target = Target::AtLeast(0.85);

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let len = run.pick(1024, 512) * MIB;
    let size = len / MIB;
    let options = ["--passthrough", "off", "--preset", "hold"];
    let mut places = vec![run.subject(On::Tmpfs, &options)?, run.native(On::Tmpfs)?];
    if run.subject != Subject::EmptyPlain {
        places.push(run.empty(On::Tmpfs, Mode::Plain)?);
    }
    let names = names(&places);

    let [samples] = run.alternate(places.len(), Rounds::Many, |who, _| {
        let path = places[who].path("new");
        let time = load::write_seq(&path, len, Caching::Buffered, Finish::Close)?;
        remove(&path)?;
        Ok([load::mb_per_sec(len, time)])
    })?;
    let state = format!("new file of {size} MiB, 1 MiB blocks, close included");
    report.add(
        Finding::new("daemon/seq-write", &state, "MB/s", &names, &samples)
            .target(Target::AtLeast(1200.0))
            .ratio_target("empty-plain", NEAR_EMPTY),
    )?;

    let [samples] = run.alternate(places.len(), Rounds::Many, |who, _| {
        let path = data(&places[who]);
        // Written anew every round: the place of a file in memory is luck, and lasts.
        load::write_seq(&path, len, Caching::Buffered, Finish::Close)?;
        places[who].settle()?;
        load::drop_pages(&path)?;
        let time = load::read_seq(&path, len, Caching::Buffered)?;
        Ok([load::mb_per_sec(len, time)])
    })?;
    let state = format!("{size} MiB, 1 MiB blocks; mount's pages dropped, tier in memory");
    report.add(
        Finding::new("daemon/seq-read", &state, "MB/s", &names, &samples)
            .target(Target::AtLeast(1800.0))
            .ratio_target("empty-plain", NEAR_EMPTY),
    )?;

    for (threads, target) in [(1, Some(Target::AtLeast(25_000.0))), (4, None)] {
        let [samples] = run.alternate(places.len(), Rounds::Many, |who, seed| {
            load::drop_pages(&data(&places[who]))?;
            let file = load::open(&data(&places[who]), Caching::Buffered)?;
            let work = Random { verb: Verb::Read, threads, time: run.slice(), seed };
            Ok([load::random(std::slice::from_ref(&file), len, work)?])
        })?;
        let case = format!("daemon/random-read-{threads}t");
        let state = format!("{size} MiB, no block twice; mount's pages dropped, tier in memory");
        let finding = Finding::new(&case, &state, "op/s", &names, &samples);
        let finding = finding.ratio_target("empty-plain", NEAR_EMPTY);
        report.add(match target {
            Some(target) => finding.target(target),
            None => finding,
        })?;
    }

    let [samples] = run.alternate(places.len(), Rounds::Many, |who, seed| {
        let path = data(&places[who]);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let work = Random { verb: Verb::Write, threads: 1, time: run.slice(), seed };
        Ok([load::random(std::slice::from_ref(&file), len, work)?])
    })?;
    let state = format!("{size} MiB, existing file opened for writing");
    report.add(Finding::new("daemon/random-write-1t", &state, "op/s", &names, &samples))
}
