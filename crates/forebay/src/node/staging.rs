//! Transfers of private instances. Each has a worker with its owner's rights, which a new daemon finds by the
//! file to which the worker writes its status.
//!
//! - G1: the worker holds a lock on its transfer's status file from before it begins until it has ended:
//!   two workers never work on one transfer, whatever their attempts, and whenever the daemon that started
//!   the first one died.
//! - G2: no thread waits for a worker that does not move: a worker that must end is killed after its patience,
//!   and one that survives even that is left to the kernel.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_base::folder::Folder;
use forebay_base::lock::sleep;
use forebay_base::users::User;
use forebay_base::{Error, Kind, Result, Retry};
use forebay_node::hands::{Failed, Moved, Stage, Staging, Stop};
use forebay_node::records::{Attribute, Direction, Existing, How, Transfer, TransferOptions, What};
use forebay_stage::worker::{self, Action, Ending, Identity, Launch, Line, Order, Program, Work};
use forebay_stage::{
    Existing as SpecExisting, Options, Outcome, Overwrite, Phase, Place, Preserve, Report, Spec,
    What as SpecWhat,
};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::running::{Running, Told};
use super::{asker, size};

/// The priority of workers: programs of the job come first.
const NICE: i32 = 10;

/// The pause between two looks at a worker's progress, and at a wish to stop it.
const POLL: Duration = Duration::from_millis(200);

/// The time limit for a worker's first line, which says that it has begun.
const START_PATIENCE: Duration = Duration::from_secs(10);
const START_POLL: Duration = Duration::from_millis(20);

/// The time limit for removing a transfer's remains: only a hanging file system needs longer.
const CLEAN_PATIENCE: Duration = Duration::from_secs(30);

const PROGRESS_EVERY_MS: u64 = 500;

pub fn stage(
    staging: &Staging<'_>,
    cgroup: Option<&Path>,
    stop: &Stop,
    told: &mut dyn FnMut(&Moved),
) -> Result<Moved> {
    let status = Status { cgroup, ..Status::of(staging, Action::Run) };
    let running = match status.worker(Some(stop))? {
        Found::Running(running) => running,
        Found::Ended(ending) => return ending.map(|moved| *moved),
    };
    let mut told_to_end = Told::default();
    let mut pace = Pace::of(staging);
    while !running.ended(POLL)? {
        if stop.leaves() {
            let why = "the node daemon stops; the transfer goes on";
            return Err(Error::new(Kind::Interrupted, why));
        }
        let moved = status.progress()?;
        if let Some(moved) = &moved {
            told(moved);
        }
        if !stop.is_wanted() {
            pace.require_progress(moved)?;
        } else if let Some(hangs) = running.end(&mut told_to_end, staging.patience)? {
            running.leave();
            return Ok(Moved { cancelled: true, hangs: Some(hangs), ..moved.unwrap_or_default() });
        }
    }
    status.ending(stop)
}

pub fn size_of(staging: &Staging<'_>) -> u64 {
    let Transfer { owner, source, what, .. } = staging.transfer;
    let (at, what, root) = (source.clone(), *what, staging.root.clone());
    let count = move || Ok(size::of(&at, what, &root));
    asker::as_user(owner.uid, owner.gid, source, count).unwrap_or(0)
}

pub fn clean(staging: &Staging<'_>) -> Result<()> {
    let status = Status::of(staging, Action::Clean);
    let running = match status.worker(None)? {
        Found::Running(running) => running,
        Found::Ended(ending) => {
            let why = ending?.refused;
            return why.map_or(Ok(()), |why| Err(Error::new(Kind::Unavailable, why)));
        }
    };
    let deadline = Instant::now() + CLEAN_PATIENCE;
    while !running.ended(POLL)? {
        if Instant::now() >= deadline {
            running.end_now(staging.patience)?;
        }
    }
    status.ending(&Stop::default()).map(|_| ())
}

/// The progress of a running worker, and when it last changed.
struct Pace {
    last: Option<Moved>,
    since: Instant,
    patience: Duration,
}

/// A worker that makes no progress for this long gives its thread to others.
const STANDS: Duration = Duration::from_secs(60);

/// The same limit for a transfer whose worker stood still before.
const STANDS_STILL: Duration = Duration::from_secs(1);

impl Pace {
    fn of(staging: &Staging<'_>) -> Pace {
        let patience = if staging.still.is_some() { STANDS_STILL } else { STANDS };
        Pace { last: staging.still.clone(), since: Instant::now(), patience }
    }

    fn require_progress(&mut self, now: Option<Moved>) -> Result<()> {
        let done = |moved: &Option<Moved>| moved.as_ref().map_or((0, 0), |m| (m.files, m.bytes));
        if done(&now) != done(&self.last) {
            *self = Pace { last: now, since: Instant::now(), patience: STANDS };
        }
        match self.since.elapsed() < self.patience {
            true => Ok(()),
            false => Err(Error::new(
                Kind::TimedOut,
                "it stands still: one of its file systems does not answer, or its rate is very low",
            )),
        }
    }
}

/// The status file of a transfer's workers.
struct Status<'a> {
    staging: &'a Staging<'a>,
    name: String,
    path: PathBuf,
    work: Work,
    cgroup: Option<&'a Path>,
}

/// The result of a search for the worker.
enum Found {
    Running(Running),
    Ended(Result<Box<Moved>>),
}

impl<'a> Status<'a> {
    fn of(staging: &'a Staging<'a>, action: Action) -> Status<'a> {
        let name = format!("{}.jsonl", staging.transfer.id);
        let path = staging.kept.join(&name);
        let Transfer { created, attempt, .. } = *staging.transfer;
        let work = Work { created, attempt, action };
        Status { staging, name, path, work, cgroup: None }
    }

    /// Finds the worker, or how it ended, or starts one (G1). If `stop` is wanted, none is started.
    fn worker(&self, stop: Option<&Stop>) -> Result<Found> {
        let mut deadline = Instant::now() + START_PATIENCE;
        loop {
            let mut file = self.open()?;
            let locked = lock(&file)?;
            let read = worker::read_status(&mut file).map_err(|e| self.failed(e))?;
            let ours = read.work == Some(self.work);
            match locked {
                Lock::Ours => {
                    if let Some(ending) = read.ending.filter(|ending| ours && counts(ending, stop))
                    {
                        return Ok(Found::Ended(Ok(Box::new(moved_at(ending)))));
                    }
                    if stop.is_some_and(Stop::is_wanted) {
                        let moved = Moved { cancelled: true, ..Moved::default() };
                        return Ok(Found::Ended(Ok(Box::new(moved))));
                    }
                    let (spec, identity) = match self.prepared() {
                        // The order itself is refused, and would be refused at the next try, too.
                        Err(error) if error.retry() == Retry::Never => {
                            let moved = Moved::refused(error.to_string());
                            return Ok(Found::Ended(Ok(Box::new(moved))));
                        }
                        prepared => prepared?,
                    };
                    if !ours {
                        self.begin(&mut file)?;
                    }
                    return self.start(&file, spec, identity).map(Found::Running);
                }
                // A worker that was just started may not have written its first line yet.
                Lock::Worker => match Running::find(&self.path) {
                    Err(_) if Instant::now() < deadline => sleep(START_POLL),
                    Ok(running) if ours => return Ok(Found::Running(running)),
                    Ok(running) => {
                        running.end_now(self.staging.patience)?;
                        deadline = Instant::now() + START_PATIENCE;
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::io(error, self.path.display().to_string())
    }

    fn open(&self) -> Result<File> {
        let folder = Folder::own(&self.staging.kept).map_err(|e| self.failed(e))?;
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let wanted = forebay_base::folder::Wanted::File;
        let fd = folder.open(&self.name, flags, wanted).map_err(|e| self.failed(e))?;
        Ok(fd.into())
    }

    /// Clears the file of earlier workers' lines, and writes the new work.
    fn begin(&self, file: &mut File) -> Result<()> {
        let begun = file.set_len(0).and_then(|()| file.write_all(&Line::Work(self.work).text()));
        begun.map_err(|e| self.failed(e))
    }

    /// The spec and the identity with which a worker is started. The error says whether a later try may
    /// succeed ([`Error::retry`]).
    fn prepared(&self) -> Result<(Spec, Identity)> {
        let owner = self.staging.transfer.owner;
        let spec = spec(self.staging)?;
        spec.check()?;
        Ok((spec, identity(owner.uid, owner.gid)?))
    }

    fn start(&self, file: &File, spec: Spec, identity: Identity) -> Result<Running> {
        // From here on the worker holds the lock by a descriptor of its own (G1): a duplicate shares the lock.
        let out: OwnedFd = file.try_clone().map_err(|e| self.failed(e))?.into();
        let action = self.work.action;
        let worker = Launch {
            program: Program::this(&["stage-worker"]),
            order: Order { action, spec, every_ms: Some(PROGRESS_EVERY_MS) },
            identity,
            status: out,
            errors: None,
            cgroup: self.cgroup.filter(|dir| dir.exists()).map(Path::to_path_buf),
            nice: NICE,
        }
        .start()?;
        Running::open(worker.pid())?
            .ok_or_else(|| Error::new(Kind::Unavailable, "a transfer's worker ended at once"))
    }

    fn progress(&self) -> Result<Option<Moved>> {
        let mut file = File::open(&self.path).map_err(|e| self.failed(e))?;
        let read = worker::read_status(&mut file).map_err(|e| self.failed(e))?;
        Ok(read.progress.map(|progress| Moved {
            files: progress.files_done,
            bytes: progress.bytes_done,
            files_total: progress.files_total,
            bytes_total: progress.bytes_total,
            bytes_per_second: progress.bytes_per_second as u64,
            files_per_second: progress.files_per_second,
            // A number that is no time counts as unknown.
            eta: progress.eta_seconds.and_then(|secs| Duration::try_from_secs_f64(secs).ok()),
            stage: match progress.phase {
                Phase::Counting => Stage::Counting,
                Phase::Copying => Stage::Copying,
                Phase::Finishing => Stage::Finishing,
            },
            failures_count: progress.files_failed,
            ..Moved::default()
        }))
    }

    /// The worker's last line; a worker that was told to end may have been killed before it wrote one.
    fn ending(&self, stop: &Stop) -> Result<Moved> {
        let read = worker::read_status(&mut self.open()?).map_err(|e| self.failed(e))?;
        if let Some(ending) = read.ending.filter(|ending| counts(ending, Some(stop))) {
            return Ok(moved_at(ending));
        }
        if stop.is_wanted() {
            return Ok(Moved { cancelled: true, ..self.progress()?.unwrap_or_default() });
        }
        let id = &self.staging.transfer.id;
        let why = format!("transfer {id}: its worker was ended; it is taken up again");
        Err(Error::new(Kind::Unavailable, why))
    }
}

/// Whether the worker's last line ended the transfer. A machine that shuts down stops all processes: a
/// transfer that nobody else wanted to stop goes on later.
fn counts(ending: &Ending, stop: Option<&Stop>) -> bool {
    match ending {
        Ending::Report(report) if report.outcome == Outcome::Stopped => {
            stop.is_some_and(Stop::is_wanted)
        }
        _ => true,
    }
}

enum Lock {
    Ours,
    /// A worker has it.
    Worker,
}

fn lock(status: &File) -> Result<Lock> {
    match flock(status, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock::Ours),
        Err(Errno::WOULDBLOCK) => Ok(Lock::Worker),
        Err(e) => Err(Error::os(e.raw_os_error(), "locking a transfer's status")),
    }
}

fn moved_at(ending: Ending) -> Moved {
    match ending {
        Ending::Report(report) => moved_by(&report),
        Ending::Cleaned => Moved::default(),
        // The worker could not begin: that ended the transfer.
        Ending::Error(_, text) => Moved::refused(text),
    }
}

fn identity(uid: u32, gid: u32) -> Result<Identity> {
    let found = match User::with_id(uid) {
        Ok(None) => Ok(Identity::numeric(uid, gid, vec![gid])),
        _ => Identity::of_account(uid),
    };
    // A directory server that is away will answer again; an account that has expired will not come back.
    found.map_err(|error| match error.kind() {
        Kind::Usage => error,
        _ => Error::new(Kind::Unavailable, error.to_string()),
    })
}

fn moved_by(report: &Report) -> Moved {
    let failed = report.failures.iter().map(|failure| Failed {
        path: failure.path.0.display().to_string(),
        why: failure.text.clone(),
        bytes: failure.bytes,
    });
    let full = report.outcome == Outcome::Full;
    let left = report.left.iter().map(|left| Failed {
        path: left.path.0.display().to_string(),
        why: if full { "the destination is full" } else { "not copied yet" }.into(),
        bytes: left.bytes,
    });
    let failures_count = report.failed.max(report.left_files);
    let mut failures: Vec<Failed> = failed.chain(left).collect();
    failures.extend(unnamed(&failures, failures_count, report.left_bytes));
    Moved {
        files: report.files,
        bytes: report.bytes,
        files_total: report.files + report.left_files,
        bytes_total: report.bytes + report.left_bytes,
        failures,
        failures_count,
        notes: report.notes.clone(),
        notes_count: report.noted,
        how: how(report),
        cancelled: report.outcome == Outcome::Stopped,
        ..Moved::default()
    }
}

fn how(report: &Report) -> How {
    How {
        kept_files: report.kept,
        cloned_bytes: report.bytes_cloned,
        in_kernel_bytes: report.bytes_in_kernel,
        copied_bytes: report.bytes_copied.saturating_sub(report.bytes_in_kernel),
    }
}

/// One entry for the failed files that the report counts without naming them.
fn unnamed(named: &[Failed], count: u64, bytes: u64) -> Option<Failed> {
    let count = count.saturating_sub(named.len() as u64);
    let told = named.iter().map(|failed| failed.bytes).fold(0, u64::saturating_add);
    let bytes = bytes.saturating_sub(told);
    let path = format!("{count} more files");
    let why = "they are too many to be named".into();
    (count > 0).then_some(Failed { path, why, bytes })
}

fn spec(staging: &Staging<'_>) -> Result<Spec> {
    let Transfer { id, direction, source, destination, what, options, .. } = staging.transfer;
    let outside = |path: &Path| Place {
        root: "/".into(),
        path: path.strip_prefix("/").unwrap_or(path).into(),
    };
    let inside = |path: &Path| Place {
        root: staging.root.as_path().into(),
        path: path.strip_prefix(&staging.root).unwrap_or(Path::new("")).into(),
    };
    let what = match what {
        What::Any => found_to_be(staging.transfer)?,
        what => *what,
    };
    let (mut from, to) = match direction {
        Direction::In => (outside(source), inside(destination)),
        Direction::Out => (inside(source), outside(destination)),
    };
    let what = match what {
        What::File | What::Any => SpecWhat::File,
        What::Directory => SpecWhat::Directory,
        What::List => {
            let list = std::mem::replace(&mut from, Place { root: "/".into(), path: "".into() });
            // Names in a list are relative to the directory that the list is in.
            from.root = list.root.clone();
            from.path = list.path.0.parent().unwrap_or(Path::new("")).into();
            SpecWhat::List(list)
        }
    };
    let options = carried(options);
    Ok(Spec { id: id.clone(), source: from, destination: to, what, options })
}

/// The worker's options for a transfer's.
fn carried(options: &TransferOptions) -> Options {
    let takes = |attribute| options.preserve.as_ref().is_none_or(|some| some.has(attribute));
    Options {
        preserve: Preserve {
            times: takes(Attribute::Times),
            mode: takes(Attribute::Mode),
            owner: takes(Attribute::Owner),
            xattrs: takes(Attribute::Xattr),
            acls: takes(Attribute::Acl),
            hard_links: takes(Attribute::Links),
        },
        checksum: options.checksum,
        rate: options.rate_max.unwrap_or(0),
        threads: options.threads.map_or(Options::default().threads, |n| n as usize),
        last: options.last.clone(),
        existing: match options.existing {
            Existing::Replace => SpecExisting::Replace,
            _ => SpecExisting::Merge,
        },
        overwrite: match options.existing {
            Existing::Overwrite | Existing::Replace => Overwrite::Always,
            Existing::Newer => Overwrite::Older,
            Existing::Keep => Overwrite::Never,
            Existing::Fail => Overwrite::Fail,
        },
        ..Options::default()
    }
}

/// The type of a source, as its owner sees it.
fn found_to_be(transfer: &Transfer) -> Result<What> {
    let (owner, source) = (transfer.owner, transfer.source.clone());
    let found =
        asker::as_user(owner.uid, owner.gid, &transfer.source, move || std::fs::metadata(source));
    // A source that exists and cannot be looked at now may be readable later: a file system or a directory server may
    // be away, or the process short of descriptors.
    let is_known = || User::with_id(owner.uid).is_ok_and(|user| user.is_some());
    let found = found.map_err(|e| {
        let at = transfer.source.display();
        match e.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG) => {
                Error::io(e, at.to_string())
            }
            Some(libc::EACCES) if is_known() => Error::io(e, at.to_string()),
            _ => Error::new(Kind::Unavailable, format!("{at}: {e}")),
        }
    })?;
    Ok(if found.is_dir() { What::Directory } else { What::File })
}

#[cfg(test)]
mod tests {
    use forebay_node::records::{Owner, THREADS_MAX, TransferOptions, TransferWant, When};

    use super::*;

    fn transfer(direction: Direction, what: What, source: &str, destination: &str) -> Transfer {
        Transfer {
            id: "t1".into(),
            instance: "i".into(),
            node: "n".into(),
            direction,
            what,
            source: source.into(),
            destination: destination.into(),
            when: When::Now,
            owner: Owner { uid: 1, gid: 1 },
            options: TransferOptions::default(),
            want: TransferWant::Done,
            created: 0,
            attempt: 0,
            after_hurry: false,
        }
    }

    fn report(outcome: Outcome) -> Report {
        Report {
            id: "t1".into(),
            outcome,
            files: 7,
            bytes: 7,
            kept: 0,
            bytes_copied: 7,
            bytes_cloned: 0,
            bytes_in_kernel: 3,
            hard_links: 0,
            directories: 0,
            counted: true,
            seconds: 1.0,
            failed: 0,
            failures: Vec::new(),
            noted: 0,
            notes: Vec::new(),
            left_files: 0,
            left_bytes: 0,
            left: Vec::new(),
        }
    }

    /// Calls `look` with the status of a transfer whose earlier worker ended with `outcome`.
    fn after(work: Work, outcome: Outcome, look: impl Fn(&Status<'_>)) {
        let dir = tempfile::tempdir().unwrap();
        let mut text = Line::Work(work).text();
        text.extend(Line::Report(report(outcome)).text());
        std::fs::write(dir.path().join("t1.jsonl"), text).unwrap();
        let ordered = transfer(Direction::Out, What::File, "/mnt/i/a", "/pfs/a");
        let transfer = &Transfer { created: 5, ..ordered };
        let (root, kept) = ("/mnt/i".into(), dir.path().into());
        let staging = Staging { transfer, root, kept, patience: Duration::ZERO, still: None };
        look(&Status::of(&staging, Action::Run));
    }

    #[test]
    fn what_did_not_come_along_is_told_with_the_rest() {
        let notes = vec!["a: user.x: the destination keeps no such attributes".to_string()];
        let noted = Report { noted: 5, notes: notes.clone(), ..report(Outcome::Done) };
        let moved = moved_by(&noted);
        assert_eq!((moved.notes_count, moved.notes, moved.failures_count), (5, notes, 0));
        assert_eq!((moved.how.copied_bytes, moved.how.in_kernel_bytes), (4, 3));
    }

    fn stopped() -> Stop {
        let stop = Stop::default();
        stop.now();
        stop
    }

    /// The transfers of a job get the same ids in a new registry.
    #[test]
    fn what_another_order_of_the_same_id_came_to_does_not_count() {
        let action = Action::Run;
        for (created, files) in [(5, 7), (4, 0)] {
            after(Work { created, attempt: 0, action }, Outcome::Done, |status| {
                let found = status.worker(Some(&stopped())).unwrap();
                let Found::Ended(Ok(moved)) = found else { panic!("it was started") };
                assert_eq!((moved.files, moved.cancelled), (files, files == 0), "{created}");
            });
        }
    }

    /// When the machine shuts down, every process is told to stop.
    #[test]
    fn a_transfer_that_nobody_stopped_is_not_over_when_its_worker_was() {
        let work = Work { created: 5, attempt: 0, action: Action::Run };
        after(work, Outcome::Stopped, |status| {
            let error = status.ending(&Stop::default()).unwrap_err();
            assert!(error.to_string().contains("taken up again"), "{error}");
            assert!(status.ending(&stopped()).unwrap().cancelled);
            let found = status.worker(Some(&stopped())).unwrap();
            assert!(matches!(found, Found::Ended(Ok(moved)) if moved.cancelled));
            // The result of the new worker does not matter: in a test this program copies nothing.
            let found = status.worker(Some(&Stop::default()));
            assert!(!matches!(found, Ok(Found::Ended(_))), "it goes on");
        });
    }

    /// Otherwise a caller that waits for the transfer would wait for ever.
    #[test]
    fn what_no_later_try_would_heal_has_ended_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        std::fs::write(&there, "x").unwrap();
        let tried = |what: What, source: &Path, threads: u32| {
            let mut ordered = transfer(Direction::Out, what, "/", "/pfs/a");
            ordered.source = source.into();
            ordered.options.threads = Some(threads);
            let (root, kept) = (dir.path().into(), dir.path().into());
            let patience = Duration::ZERO;
            let staging = Staging { transfer: &ordered, root, kept, patience, still: None };
            stage(&staging, None, &Stop::default(), &mut |_| {}).map(|moved| moved.refused)
        };
        let why = tried(What::Any, &dir.path().join("not there"), 1).unwrap().expect("it ended");
        assert!(why.contains("not there: No such file"), "{why}");
        let why = tried(What::File, &there, 300).unwrap().expect("it ended");
        assert!(why.contains("threads: 300 are too many"), "{why}");
    }

    #[test]
    fn what_may_be_ordered_may_be_carried() {
        let options = Options { threads: THREADS_MAX as usize, ..Options::default() };
        let place = Place { root: "/".into(), path: "a".into() };
        let (source, destination) = (place.clone(), place);
        let mut spec = Spec { id: "t".into(), source, destination, what: SpecWhat::File, options };
        spec.check().unwrap();
        spec.options.threads += 1;
        assert!(spec.check().is_err());
    }

    #[test]
    fn an_order_without_wishes_is_carried_as_a_worker_does_it_by_itself() {
        assert_eq!(carried(&TransferOptions::default()), Options::default());
        let preserve = Some("times,acl".parse().unwrap());
        let options = TransferOptions { preserve, ..TransferOptions::default() };
        let Preserve { times, mode, owner, xattrs, acls, hard_links } = carried(&options).preserve;
        assert_eq!((times, acls), (true, true));
        assert_eq!((mode, owner, xattrs, hard_links), (false, false, false, false));
    }

    /// T2 of the worker: no path of the instance leads outside it.
    #[test]
    fn the_instance_is_the_root_of_what_is_in_it() {
        let of = |transfer: &Transfer| {
            let (root, kept) = ("/mnt/i".into(), "/k".into());
            let patience = Duration::ZERO;
            spec(&Staging { transfer, root, kept, patience, still: None }).unwrap()
        };
        let spec = of(&transfer(Direction::In, What::File, "/pfs/a", "/mnt/i/d/a"));
        assert_eq!((spec.source.root, spec.source.path), ("/".into(), "pfs/a".into()));
        assert_eq!((spec.destination.root, spec.destination.path), ("/mnt/i".into(), "d/a".into()));
        let spec = of(&transfer(Direction::Out, What::Directory, "/mnt/i", "/pfs/out/"));
        assert_eq!((spec.source.root, spec.source.path), ("/mnt/i".into(), "".into()));
        assert_eq!(spec.destination.path, "pfs/out/".into());
        let spec = of(&transfer(Direction::In, What::Any, "/proc/self", "/mnt/i/d"));
        assert_eq!(spec.what, SpecWhat::Directory);
        let spec = of(&transfer(Direction::In, What::Directory, "/pfs/set", "/mnt/i"));
        assert_eq!((spec.destination.root, spec.destination.path), ("/mnt/i".into(), "".into()));
        let spec = of(&transfer(Direction::Out, What::List, "/mnt/i/w/list", "/pfs/out"));
        assert_eq!((spec.source.root, spec.source.path), ("/mnt/i".into(), "w".into()));
    }
}
