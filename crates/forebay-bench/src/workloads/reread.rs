//! `reread`: what does the page cache gain for input that is read twice, as a sequence search reads
//! its database?

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::rates::{check_tasks, check_transfer};
use super::session::{Before, Cache, Session, Told};
use super::work::{self, Sweep, Work, work};
use super::{Prepared, Queue, Workload, prepare};
use crate::args::{Parsed, Spec};
use crate::cache::{Policy, Residency, advise_away, residency_of};
use crate::error::Result;
use crate::io::{Api, Direction, How};
use crate::progress::Goal;
use crate::record::Access;
use crate::team::Task;
use crate::units::human_bytes;

pub const WORKLOAD: Workload =
    Workload { name: "reread", spec, cache: Policy::Fadvise, queue: Queue::Deep, plan };

fn spec() -> Spec {
    Spec::new("reread")
        .about(
            "What does the page cache do for input read twice, as sequence search reads its database? \
             Reads all of\nit in two passes with the cache at work, then in two passes without \
             (O_DIRECT, or emptied before each\nwhere the file system has none). The cache is \
             emptied before the first pass of each, by --cache.",
        )
        .value(Some('s'), "size", "SIZE", "of the input, all tasks together; default 256m")
        .value(Some('t'), "transfer", "SIZE", "default 1m")
        .value(Some('n'), "tasks", "N", "each reads its part; default 1")
        .examples("  forebay bench reread /mnt/slow -s 2g -n 4\n  forebay bench reread /mnt/forebay -s 8g --cache drop")
}

fn plan(parsed: &Parsed) -> Result<Box<dyn Prepared>> {
    let reread = Reread {
        size: parsed.size("size", 256 << 20)?,
        transfer: parsed.size("transfer", 1 << 20)?,
        tasks: parsed.number("tasks", 1)?,
    };
    check_tasks(reread.tasks)?;
    check_transfer("transfer", reread.transfer, reread.size)?;
    Ok(Box::new(reread))
}

struct Reread {
    size: u64,
    transfer: u64,
    tasks: usize,
}

/// Whether the reader uses the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Cached,
    Direct,
    /// Through the cache, which is emptied before each pass.
    Emptied,
}

impl Reread {
    fn pass(
        &self,
        session: &mut Session,
        files: &[PathBuf],
        (name, reader, cache): (&str, Reader, Cache),
        before: Before,
    ) -> Result<f64> {
        let base = session.base.clone();
        let how = How { direct: reader == Reader::Direct, ..How::default() };
        let shared = Work::on(files[0].clone(), how, self.transfer as usize);
        let team = session.team(self.tasks, name, Goal::Bytes(self.size));
        let outcome = team.run(|task: &Task<'_>, end| {
            let (from, to) = work::share(self.size, self.transfer, task.rank, task.tasks);
            let mut plan = Sweep::over(Direction::Read, from, to, self.transfer);
            work(&base, task, end, &shared, &mut plan).map(drop)
        });
        let seconds = work::seconds(&outcome);
        let told = Told {
            name,
            iteration: 0,
            access: Access::Read,
            tasks: self.tasks,
            seconds,
            transfer: self.transfer,
            before,
            cache,
            files,
            figures: BTreeMap::new(),
        };
        session.phase(told, &outcome)?;
        Ok(seconds)
    }

    /// Two passes; the cache is emptied before the first, and before the second if `reader` says
    /// so.
    fn passes(
        &self,
        session: &mut Session,
        files: &[PathBuf],
        names: [&str; 2],
        reader: Reader,
    ) -> Result<[f64; 2]> {
        let before = session.before_reading(files)?;
        let first = self.pass(session, files, (names[0], reader, Cache::Doubtful), before)?;
        if reader == Reader::Emptied && session.base.api != Api::Null {
            advise_away(&files[0])?;
        }
        let before = session.before_resident(files);
        let cache = if reader == Reader::Cached { Cache::Intended } else { Cache::Doubtful };
        let second = self.pass(session, files, (names[1], reader, cache), before)?;
        Ok([first, second])
    }
}

impl Prepared for Reread {
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("size".into(), human_bytes(self.size)),
            ("transfer".into(), human_bytes(self.transfer)),
            ("tasks".into(), self.tasks.to_string()),
        ])
    }

    fn needs(&self) -> u64 {
        self.size
    }

    /// None: where the workload cannot go around the cache, it empties it.
    fn transfers(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn run(&self, session: &mut Session) -> Result<()> {
        let files = [session.file("input")];
        prepare::create(session, &files[0])?;
        prepare::lay(session, &files[0], (0, self.size), 0, 1)?;
        let with = self.passes(session, &files, ["cached 1", "cached 2"], Reader::Cached)?;
        let kept = residency_of(&files).map_or(0.0, Residency::share);
        let aligned = self.transfer.is_multiple_of(4096);
        let reader = match crate::io::open(&files[0], How { direct: true, ..How::default() }) {
            Ok(_) if aligned => Reader::Direct,
            _ => Reader::Emptied,
        };
        let without = self.passes(session, &files, ["uncached 1", "uncached 2"], reader)?;
        let how = if reader == Reader::Direct { "O_DIRECT" } else { "emptied" };
        session.recorder.finding(format!(
            "With the page cache the second pass took {:.2} of the first ({:.1} % of the input was \
             cached after it); without ({how}) {:.2}. Both passes together took {:.2} s with it, \
             {:.2} s without: a factor of {:.2}.",
            with[1] / with[0].max(1e-9),
            kept * 100.0,
            without[1] / without[0].max(1e-9),
            with[0] + with[1],
            without[0] + without[1],
            (without[0] + without[1]) / (with[0] + with[1]).max(1e-9),
        ))
    }
}
