//! Files that a workload needs before it can measure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::session::{Cache, Session, Told};
use super::work::{self, Ending, Sweep, Work, work};
use crate::error::Result;
use crate::io::{self, Api, Direction, How};
use crate::progress::Goal;
use crate::record::Access;
use crate::team::Task;

/// Large enough for any device, small enough to be stopped.
const TRANSFER: u64 = 1 << 20;

/// The name of the phase in results.
pub const NAME: &str = "prepare";

/// Makes an empty file.
pub fn create(session: &Session, path: &Path) -> Result<()> {
    if session.base.api == Api::Null {
        return Ok(());
    }
    io::open(path, How { write: true, create: true, truncate: true, direct: false }).map(drop)
}

/// Writes `from..to` of a file that exists, in order and synced, with `tasks` tasks.
pub fn lay(
    session: &mut Session,
    path: &Path,
    (from, to): (u64, u64),
    iteration: u32,
    tasks: usize,
) -> Result<()> {
    if to <= from {
        return Ok(());
    }
    // O_DIRECT cannot write a rest of odd length.
    let direct = session.base.direct() && (to - from).is_multiple_of(4096);
    let how = How { write: true, direct, ..How::default() };
    let base = session.base.clone();
    let shared = Work { ending: Ending::Sync, ..Work::on(path.to_owned(), how, TRANSFER as usize) };
    let before = session.before();
    let team = session.team(tasks, NAME, Goal::Bytes(to - from));
    let outcome = team.run(|task: &Task<'_>, end| {
        let (first, last) = work::share(to - from, TRANSFER, task.rank, task.tasks);
        let mut plan = Sweep::over(Direction::Write, from + first, from + last, TRANSFER);
        work(&base, task, end, &shared, &mut plan).map(drop)
    });
    let files: [PathBuf; 1] = [path.to_owned()];
    let told = Told {
        name: NAME,
        iteration,
        access: Access::Write,
        tasks,
        seconds: work::seconds(&outcome),
        transfer: TRANSFER,
        before,
        cache: Cache::Intended,
        files: &files,
        figures: BTreeMap::new(),
    };
    session.phase(told, &outcome).map(drop)
}
