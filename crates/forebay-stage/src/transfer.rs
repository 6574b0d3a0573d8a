//! The steps of a transfer.
//!
//! 1. The source is walked and counted, while files that are known already are copied under temporary names.
//! 2. A batch of copies is synced, written to the journal, and given its names; this repeats until all are
//!    done.
//! 3. Further names of files are linked.
//! 4. The files that have names are synced; then the files that come last go the same way.
//! 5. Directories get their attributes, and everything is synced once more.
//! 6. A new tree, which was made beside its place, takes its place; that of an old tree only if no file failed. If
//!    another program has made a directory there meanwhile, the new tree is merged into it (`early`).
//! 7. The journal is removed, if no file failed.
//!
//! After a loss of power at any time, files under final names are whole, old or new. A tree that was
//! made beside its place is missing or whole.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_base::Result;
use forebay_base::glob::Pattern;
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use rustix::fs::Stat;
use rustix::io::Errno;

use crate::attributes::{Attributes, Rights};
use crate::beneath::{Base, Near, Node};
use crate::bytes::Means;
use crate::directories::Whose;
use crate::journal::{Journal, Key};
use crate::links::Links;
use crate::pace::Pace;
use crate::place::{self, Top};
use crate::progress::{Control, Meter, Progress, Tally, add, get, subtract};
use crate::queue::{Closing, FileTask, Queue, Task};
use crate::report::{Ledger, Outcome, Reason, Report, Room, Trouble, destination};
use crate::spec::Spec;
use crate::sync::{How, Sync};

/// Files that are copied or linked after others.
#[derive(Default)]
pub struct Aside {
    pub links: Vec<FileTask>,
    pub last: Vec<FileTask>,
    pub last_links: Vec<FileTask>,
}

/// The state of the name of a tree that was made beside its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// The tree has the name, or no tree is to get it.
    Given,
    /// Another program has made a directory of that name meanwhile: the next run adds to that.
    Taken,
}

/// A running transfer.
pub struct Engine<'a> {
    pub spec: &'a Spec,
    pub control: &'a Control,
    pub base: Base,
    pub sync: Sync,
    pub queue: Queue,
    pub tally: Tally,
    pub ledger: Ledger,
    pub pace: Pace,
    pub means: Means,
    pub journal: Journal,
    pub links: Links,
    last: Vec<Pattern>,
    aside: Mutex<Aside>,
    dirs: Mutex<Vec<(Arc<Node>, Whose, How)>>,
    /// Files that are being copied: no file is copied by two threads at a time.
    active: Mutex<HashSet<Key>>,
    /// The destination's directory as device and inode, which the walk must not enter.
    inside: Option<(u64, u64)>,
    /// The name of the tree that an earlier run made beside its place, if it must be merged.
    pub early: OnceLock<OsString>,
    rights: Rights,
}

/// Carries out a transfer. `tell` is called about every `every`, and once at the end.
///
/// # Errors
///
/// If the transfer cannot begin: a bad spec, a root that cannot be opened, a destination of another
/// type. Errors of single files are in the report.
pub fn run(
    spec: &Spec,
    control: &Control,
    every: Duration,
    mut tell: impl FnMut(&Progress) + Send,
) -> Result<Report> {
    spec.check()?;
    let seconds = std::time::Instant::now();
    let mut before = Tally::default();
    loop {
        let (top, base) = place::find(spec)?;
        let engine = Engine::new(spec, control, base, &top)?;
        engine.tally.add_moved(&before);
        let mut name = Name::Given;
        engine.told(Meter::new(), every, &mut tell, || name = engine.all(&top));
        // A stop from here on stops a run that has begun anew, which has nothing in its place yet.
        if name == Name::Given {
            return Ok(engine.report(seconds.elapsed().as_secs_f64()));
        }
        before = engine.tally;
    }
}

impl<'a> Engine<'a> {
    fn new(spec: &'a Spec, control: &'a Control, base: Base, top: &Top) -> Result<Engine<'a>> {
        let shown = spec.destination.shown();
        let failed = |e: rustix::io::Errno| forebay_base::Error::io(e.into(), shown.clone());
        let journal = Journal::open(&base.dst, &spec.id, place::fingerprint(spec));
        let journal = journal.map_err(|e| match e {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => place::not_writable(spec, top, e),
            _ => failed(e).context("the transfer's journal"),
        })?;
        Ok(Engine {
            sync: Sync::of(&base.dst).map_err(failed)?,
            queue: Queue::new(spec.options.threads),
            tally: Tally::default(),
            ledger: Ledger::default(),
            pace: Pace::new(spec.options.rate),
            means: Means::default(),
            links: Links::default(),
            last: spec.last()?,
            aside: Mutex::new(Rank::TransferNotes, Aside::default()),
            dirs: Mutex::new(Rank::TransferNotes, Vec::new()),
            active: Mutex::new(Rank::TransferNotes, HashSet::new()),
            inside: top.inside(&base),
            early: OnceLock::new(),
            rights: Rights::now(),
            spec,
            control,
            base,
            journal,
        })
    }

    fn all(&self, top: &Top) -> Name {
        let placed = match self.prepare(top) {
            Ok(placed) => placed,
            Err(trouble) => {
                self.fail_path(Path::new(""), trouble);
                return Name::Given;
            }
        };
        self.pool();
        self.tally.counted.store(self.queue.counted(), Ordering::Relaxed);
        let links = std::mem::take(&mut self.aside().links);
        self.link_all(links);
        self.last_ones();
        self.tally.finishing.store(true, Ordering::Relaxed);
        if !self.queue.stops() {
            self.close_dirs(Closing::Finish);
        }
        if let Err(errno) = self.sync.all() {
            self.fail_path(Path::new(""), destination("making durable")(errno));
        }
        let name = match self.queue.stops() {
            true => Ok(Name::Given),
            false => self.put_in_place(&placed),
        };
        match name {
            Ok(Name::Taken) => return Name::Taken,
            Ok(Name::Given) => {}
            Err(trouble) => self.fail_path(Path::new(""), trouble),
        }
        self.end();
        Name::Given
    }

    fn link_all(&self, links: Vec<FileTask>) {
        self.queue.push_all(links.into_iter().map(Task::Link));
        self.pool();
    }

    /// Publishes the files that come last (step 4).
    fn last_ones(&self) {
        let (files, links) = {
            let mut aside = self.aside();
            (std::mem::take(&mut aside.last), std::mem::take(&mut aside.last_links))
        };
        if files.is_empty() && links.is_empty() {
            return;
        }
        if !self.queue.stops() {
            self.close_dirs(Closing::Sync);
            if let Err(errno) = self.sync.all() {
                self.fail_path(Path::new(""), destination("making durable")(errno));
            }
        }
        if self.ledger.failed() == 0 || self.queue.stops() {
            self.queue.push_all(files.into_iter().map(Task::Copy));
            self.pool();
            return self.link_all(links);
        }
        for task in files.into_iter().chain(links) {
            let text = "it comes last, and something before it failed";
            self.fail(&task, Trouble::new(Reason::HeldBack, text));
        }
    }

    /// Lets all threads work until no task is left.
    pub fn pool(&self) {
        std::thread::scope(|scope| {
            for _ in 0..self.spec.options.threads {
                scope.spawn(|| self.work());
            }
        });
    }

    fn work(&self) {
        let mut near = Near::default();
        while let Some((task, _busy)) = self.queue.next() {
            if self.control.stops() || self.ledger.room() == Room::None {
                self.queue.stop();
            }
            self.act(task, &mut near);
        }
    }

    fn act(&self, task: Task, near: &mut Near) {
        // Checked before the task, which may take as long as all the rest.
        if !self.tally.counted.load(Ordering::Relaxed) && self.queue.counted() {
            self.tally.counted.store(true, Ordering::Relaxed);
        }
        match task {
            Task::Walk(stream) => self.walk(stream),
            Task::Look(node, names) => self.look_at(&node, names, near),
            Task::Copy(file) => self.file(file, near),
            Task::Piece(large, piece) => self.piece(&large, piece),
            Task::Flush(batch) => self.flush(batch, near),
            Task::Name(batch) => self.name_all(batch, near),
            Task::Link(second) => self.link(second, near),
            Task::Close(node, how) => self.close_dir(&node, how),
        }
    }

    /// Runs `work` while `tell` gets the progress.
    fn told(
        &self,
        mut meter: Meter,
        every: Duration,
        mut tell: impl FnMut(&Progress) + Send,
        work: impl FnOnce(),
    ) {
        let (over, news) = (Mutex::new(Rank::TransferNotes, false), Condvar::new());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let (over, _) = news.wait_timeout_while(over.lock(), every, |over| !*over);
                    ended.store(*over, Ordering::Relaxed);
                    drop(over);
                    tell(&meter.look(&self.tally));
                }
            });
            let end = End { over: &over, news: &news };
            work();
            drop(end);
        });
    }

    fn report(&self, seconds: f64) -> Report {
        let tally = &self.tally;
        let mut report = Report {
            id: self.spec.id.clone(),
            outcome: self.outcome(),
            files: get(&tally.files_done),
            bytes: get(&tally.bytes_published),
            kept: get(&tally.kept),
            bytes_copied: get(&tally.bytes_copied),
            bytes_cloned: get(&tally.bytes_cloned),
            bytes_in_kernel: get(&tally.bytes_in_kernel),
            hard_links: get(&tally.hard_links),
            directories: get(&tally.directories),
            counted: self.queue.counted(),
            seconds,
            failed: 0,
            failures: Vec::new(),
            noted: 0,
            notes: Vec::new(),
            left_files: get(&tally.files_total).saturating_sub(get(&tally.files_done)),
            left_bytes: get(&tally.bytes_total).saturating_sub(get(&tally.bytes_published)),
            left: Vec::new(),
        };
        self.ledger.fill(&mut report);
        report
    }

    fn outcome(&self) -> Outcome {
        match (self.ledger.room(), self.queue.stops(), self.ledger.failed()) {
            (Room::None, ..) => Outcome::Full,
            (_, true, _) => Outcome::Stopped,
            (_, _, 0) => Outcome::Done,
            _ => Outcome::Failed,
        }
    }

    /// Lists the files that a stop left; without a stop, checks the sums.
    fn end(&self) {
        let undone = self.queue.undone();
        for task in undone.files.iter().chain(&undone.links) {
            self.ledger.left(&task.from(), task.size);
        }
        let (counted, there) = (get(&self.tally.files_total), get(&self.tally.files_done));
        let (size, bytes) = (get(&self.tally.bytes_total), get(&self.tally.bytes_published));
        if self.outcome() == Outcome::Done && (counted, size) != (there, bytes) {
            let text = format!(
                "{counted} files of {size} bytes were counted, {there} of {bytes} are there"
            );
            self.fail_path(Path::new(""), Trouble::new(Reason::Mismatch, text));
        }
        if self.outcome() == Outcome::Done {
            // A journal that cannot be removed does no harm.
            _ = self.journal.remove(&self.base.dst, &self.spec.id);
        }
    }
}

/// Marks the work as over, also when it panics.
struct End<'a> {
    over: &'a Mutex<bool>,
    news: &'a Condvar,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        // This also runs while unwinding.
        *self.over.lock_anyway() = true;
        self.news.notify_all();
    }
}

/// Functions for all parts of a transfer.
impl Engine<'_> {
    #[track_caller]
    pub fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock()
    }

    #[track_caller]
    fn active(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.active.lock()
    }

    pub fn attributes(&self) -> Attributes<'_> {
        Attributes { options: &self.spec.options, rights: self.rights }
    }

    pub fn is_last(&self, task: &FileTask) -> bool {
        !self.last.is_empty() && self.last.iter().any(|pattern| pattern.matches(&task.from()))
    }

    pub fn is_inside(&self, dir: &Stat) -> bool {
        self.inside == Some((dir.st_dev, dir.st_ino))
    }

    pub fn remember_dir(&self, node: Arc<Node>, whose: Whose, how: How) {
        self.dirs.lock().push((node, whose, how));
    }

    pub fn dirs(&self) -> Vec<(Arc<Node>, Whose, How)> {
        self.dirs.lock().clone()
    }

    /// Marks a file as being copied; false if another thread is copying it.
    pub fn enter(&self, task: &FileTask) -> bool {
        self.active().insert(Key::of(&task.to()))
    }

    pub fn leave(&self, task: &FileTask) {
        self.active().remove(&Key::of(&task.to()));
    }

    pub fn published(&self, task: &FileTask) {
        self.links.published(task.shared);
        self.leave(task);
    }

    pub fn fail(&self, task: &FileTask, trouble: Trouble) {
        self.leave(task);
        match trouble {
            Trouble::Stopped => {
                // For the only file of a transfer, no other thread sees the stop.
                self.queue.stop();
                self.ledger.left(&task.from(), task.size);
            }
            Trouble::Failed(reason, text) => {
                add(&self.tally.files_failed, 1);
                add(&self.tally.bytes_failed, task.size);
                self.list_failure(&task.from(), task.size, reason, text);
            }
        }
    }

    /// Records a failure of a path that was not counted as a file.
    pub fn fail_path(&self, path: &Path, trouble: Trouble) {
        let Trouble::Failed(reason, text) = trouble else { return };
        self.list_failure(path, 0, reason, text);
    }

    fn list_failure(&self, path: &Path, bytes: u64, reason: Reason, text: String) {
        if self.ledger.fail(path, bytes, reason, text) == Room::None {
            self.queue.stop();
        }
    }

    /// Takes a counted file out of the totals.
    pub fn uncount(&self, task: &FileTask) {
        subtract(&self.tally.files_total, 1);
        subtract(&self.tally.bytes_total, task.size);
    }

    /// Takes back the progress of a copy that failed.
    pub fn take_back(&self, bytes: u64) {
        subtract(&self.tally.bytes_done, bytes);
    }

    /// Corrects the size of a file that differs from the walk's.
    pub fn resized(&self, task: &mut FileTask, size: u64) {
        add(&self.tally.bytes_total, size);
        subtract(&self.tally.bytes_total, std::mem::replace(&mut task.size, size));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};

    use rustix::fs::OFlags;

    use super::*;
    use crate::journal::{Version, temp_name};
    use crate::large::{Large, PIECE};
    use crate::publish::Ready;
    use crate::queue::Nature;
    use crate::spec::{Options, Overwrite, Place, What};
    use crate::sync::tests::{Mounted, failing, mounted, seeing};

    fn spec(top: &Path) -> Spec {
        let place = |path: &str| Place { root: top.into(), path: path.into() };
        let (source, destination) = (place("from"), place("to"));
        let (id, what, options) = ("t".into(), What::Directory, Options::default());
        Spec { id, source, destination, what, options }
    }

    /// A finished copy of `name` that is not durable yet.
    fn copied(engine: &Engine<'_>, node: &Arc<Node>, name: &str) -> Ready {
        let key = Key::of(Path::new("to").join(name).as_path());
        let (temp, since) = (temp_name("t", key), engine.sync.since());
        let dir = crate::beneath::open_dir(engine.base.dst.as_fd(), &node.to).unwrap();
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let fd = crate::beneath::open_name(&dir, &temp, flags).unwrap();
        let version = Version::of_destination(&rustix::fs::fstat(&fd).unwrap());
        let nature = Nature::Regular;
        let task = FileTask {
            node: node.clone(),
            name: name.into(),
            new_name: None,
            size: 0,
            nature,
            shared: None,
        };
        Ready { task, temp, key, versions: (version, version), since, lost: Vec::new() }
    }

    /// Runs `work` on a transfer of `from` to `to`; `work` takes the steps.
    fn with_engine(
        top: &Path,
        overwrite: Overwrite,
        work: impl Fn(&Engine<'_>, &Arc<Node>),
    ) -> Report {
        let (mut spec, control) = (spec(top), Control::default());
        spec.options.overwrite = overwrite;
        let (found, base) = place::find(&spec).unwrap();
        let engine = Engine::new(&spec, &control, base, &found).unwrap();
        let node = engine.make_dir(Path::new(""), Path::new("to")).unwrap();
        work(&engine, &node);
        engine.report(0.0)
    }

    /// With `checksum`, contents are compared, for small files and for pieces.
    #[test]
    fn checksums_are_compared_where_they_are_asked_for() {
        use crate::bytes::Verify;
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("from")).unwrap();
        for (checksum, verify) in [(true, Verify::Content), (false, Verify::Size)] {
            let (mut spec, control) = (spec(top.path()), Control::default());
            spec.options.checksum = checksum;
            let (found, base) = place::find(&spec).unwrap();
            let engine = Engine::new(&spec, &control, base, &found).unwrap();
            assert_eq!(engine.mover(&std::sync::atomic::AtomicU64::new(0)).verify, verify);
        }
    }

    fn look_at(engine: &Engine<'_>, node: &Arc<Node>, names: &[&str]) {
        let names = names.iter().map(|name| (name.into(), None)).collect();
        engine.look_at(node, names, &mut Near::default());
    }

    fn links(engine: &Engine<'_>) {
        let links = std::mem::take(&mut engine.aside().links);
        engine.link_all(links);
    }

    /// A file with three names, a link with two, and files that will take their first names.
    fn rotating(top: &Path) {
        let from = top.join("from");
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("ckpt"), "old").unwrap();
        std::fs::hard_link(from.join("ckpt"), from.join("ckpt.1")).unwrap();
        std::fs::hard_link(from.join("ckpt"), from.join("ckpt.2")).unwrap();
        std::fs::write(from.join("ckpt.new"), "new!").unwrap();
        symlink("old", from.join("last")).unwrap();
        std::fs::hard_link(from.join("last"), from.join("last.1")).unwrap();
        symlink("new", from.join("last.new")).unwrap();
    }

    const NAMES: [&str; 5] = ["ckpt", "ckpt.1", "ckpt.2", "last", "last.1"];

    fn assert_same_content(top: &Path, names: &[&str]) {
        let content = |dir: &str, name: &str| {
            let path = top.join(dir).join(name);
            let read = std::fs::read(&path).map(|bytes| String::from_utf8(bytes).unwrap());
            read.or_else(|_| std::fs::read_link(&path).map(|to| to.display().to_string())).ok()
        };
        for name in names {
            assert_eq!(content("to", name), content("from", name), "{name}");
        }
    }

    #[test]
    fn a_first_name_that_is_another_files_by_now_is_not_linked_to() {
        let top = tempfile::tempdir().unwrap();
        rotating(top.path());
        let at = |name: &str| top.path().join("from").join(name);
        let report = with_engine(top.path(), Overwrite::Always, |engine, node| {
            look_at(engine, node, &NAMES);
            std::fs::rename(at("ckpt.new"), at("ckpt")).unwrap();
            std::fs::rename(at("last.new"), at("last")).unwrap();
            engine.pool();
            links(engine);
        });
        assert_eq!((report.outcome, report.files), (Outcome::Done, 5), "{report:#?}");
        assert_same_content(top.path(), &NAMES);
    }

    #[test]
    fn a_second_name_that_is_another_files_by_now_gets_that_ones_content() {
        let top = tempfile::tempdir().unwrap();
        rotating(top.path());
        let at = |name: &str| top.path().join("from").join(name);
        let report = with_engine(top.path(), Overwrite::Always, |engine, node| {
            look_at(engine, node, &NAMES);
            engine.pool();
            std::fs::rename(at("ckpt.new"), at("ckpt.1")).unwrap();
            std::fs::rename(at("last.new"), at("last.1")).unwrap();
            links(engine);
        });
        assert_eq!((report.outcome, report.files), (Outcome::Done, 5), "{report:#?}");
        assert_eq!(report.hard_links, 1, "{report:#?}");
        assert_same_content(top.path(), &NAMES);
    }

    #[test]
    fn a_file_that_changed_after_its_first_name_was_copied_gets_no_second() {
        let top = tempfile::tempdir().unwrap();
        rotating(top.path());
        let at = |name: &str| top.path().join("from").join(name);
        let report = with_engine(top.path(), Overwrite::Always, |engine, node| {
            look_at(engine, node, &NAMES);
            engine.pool();
            std::fs::write(at("ckpt"), "other").unwrap();
            std::fs::rename(at("ckpt.new"), at("ckpt.1")).unwrap();
            links(engine);
        });
        let told: Vec<_> = report.failures.iter().map(|f| (&*f.path.0, f.reason)).collect();
        assert_eq!(told, [(Path::new("ckpt.2"), Reason::Changed)]);
        assert!(!top.path().join("to/ckpt.2").exists());
        assert_same_content(top.path(), &["ckpt.1", "last", "last.1"]);
    }

    /// A file that must stay is neither linked to nor replaced by a link.
    #[test]
    fn links_mind_what_shall_stay() {
        let top = tempfile::tempdir().unwrap();
        rotating(top.path());
        let to = top.path().join("to");
        std::fs::create_dir(&to).unwrap();
        for (name, text) in [("ckpt", "stays"), ("last.1", "stays, too")] {
            std::fs::write(to.join(name), text).unwrap();
        }
        let report = with_engine(top.path(), Overwrite::Never, |engine, node| {
            look_at(engine, node, &NAMES);
            engine.pool();
            links(engine);
        });
        assert_eq!((report.outcome, report.files), (Outcome::Done, 5), "{report:#?}");
        assert_eq!(std::fs::read(to.join("ckpt")).unwrap(), b"stays");
        assert_eq!(std::fs::read(to.join("last.1")).unwrap(), b"stays, too");
        assert_same_content(top.path(), &["ckpt.1", "ckpt.2", "last"]);
    }

    /// A file of three pieces, in a file system of its own, so that it is copied in pieces.
    fn large(top: &Path) -> Mounted {
        std::fs::create_dir_all(top.join("from")).unwrap();
        std::fs::create_dir_all(top.join("to")).unwrap();
        let mounted = mounted(&top.join("from"), "tmpfs", None);
        let file = std::fs::File::create(top.join("from/large")).unwrap();
        for piece in 0..3u8 {
            file.write_all_at(&[piece + 1; 4096], u64::from(piece) * PIECE).unwrap();
        }
        mounted
    }

    fn begin_large(engine: &Engine<'_>) -> Arc<Large> {
        let node = engine.make_dir(Path::new(""), Path::new("to")).unwrap();
        let pair = Near::default().pair(&engine.base, &node).unwrap();
        let src = crate::beneath::open_name(&pair.src, "large".as_ref(), OFlags::RDONLY).unwrap();
        let stat = rustix::fs::fstat(&src).unwrap();
        let (name, size) = ("large".into(), stat.st_size as u64);
        let nature = Nature::Regular;
        let task = FileTask { node, name, new_name: None, size, nature, shared: None };
        Arc::new(Large::begin(engine, task, pair, src, stat).unwrap().expect("it has pieces"))
    }

    fn temps(top: &Path) -> Vec<(std::ffi::OsString, u64)> {
        let names = std::fs::read_dir(top.join("to")).unwrap().map(|entry| entry.unwrap());
        let of = names.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino()));
        of.filter(|(name, _)| name.as_encoded_bytes().starts_with(b".forebay-stage-")).collect()
    }

    /// The next file that is made gets the inode number of a removed one: the journal's lines about the first
    /// do not hold for the second.
    #[test]
    fn pieces_of_a_file_that_was_lost_do_not_count_for_the_next_one() {
        let top = tempfile::tempdir().unwrap();
        let _mounted = large(top.path());
        let (spec, control) = (spec(top.path()), Control::default());
        let mut lost = 0;
        for _ in 0..20 {
            let (found, base) = place::find(&spec).unwrap();
            let mut engine = Engine::new(&spec, &control, base, &found).unwrap();
            engine.sync = failing(&engine.base.dst, &[0]);
            let large = begin_large(&engine);
            let inode = temps(top.path())[0].1;
            if inode == lost {
                // As if the run were killed after one piece.
                engine.piece(&large, 0);
                std::mem::forget(large);
                break;
            }
            lost = inode;
            let pieces = large.missing().into_iter();
            engine.queue.push_all(pieces.map(|piece| Task::Piece(large.clone(), piece)));
            engine.pool();
            assert_eq!((engine.report(0.0).failed, temps(top.path())), (1, Vec::new()));
        }
        let report = run(&spec, &control, Duration::from_secs(1), |_| ()).unwrap();
        assert_eq!((report.outcome, report.files), (Outcome::Done, 1), "{report:#?}");
        let content = |dir: &str| std::fs::read(top.path().join(dir).join("large")).unwrap();
        assert!(content("to") == content("from"), "a piece is missing");
        assert_eq!(temps(top.path()), []);
    }

    /// Whatever has the file's name by then, nothing of the old copy stays.
    #[test]
    fn a_killed_large_file_leaves_nothing_behind() {
        let cases = [("small", 5), ("a link", 0), ("large", 2 * 4096), ("no", 0), ("no list", 0)];
        for (what, copied) in cases {
            let top = tempfile::tempdir().unwrap();
            let _mounted = large(top.path());
            let (mut spec, control) = (spec(top.path()), Control::default());
            {
                let (found, base) = place::find(&spec).unwrap();
                let engine = Engine::new(&spec, &control, base, &found).unwrap();
                let large = begin_large(&engine);
                engine.piece(&large, 1);
                std::mem::forget(large);
            }
            let from = top.path().join("from/large");
            match what {
                "small" => std::fs::write(&from, "small").unwrap(),
                "a link" => {
                    std::fs::remove_file(&from).unwrap();
                    symlink("elsewhere", &from).unwrap();
                }
                _ => {}
            }
            assert_eq!(temps(top.path()).len(), 1, "{what}");
            if what.starts_with("no") {
                if what == "no list" {
                    std::fs::write(top.path().join("list"), "large\n").unwrap();
                    spec.what = What::List(Place { root: top.path().into(), path: "list".into() });
                }
                crate::clean(&spec).unwrap();
            } else {
                let report = run(&spec, &control, Duration::from_secs(1), |_| ()).unwrap();
                assert_eq!((report.outcome, report.files), (Outcome::Done, 1), "{report:#?}");
                assert_eq!(report.bytes_copied, copied, "{what}");
            }
            assert_eq!(temps(top.path()), [], "{what}");
        }
    }

    /// The sync of the destination's file system does not reach a file system mounted below it.
    #[test]
    fn what_is_in_a_file_system_below_is_synced_alone() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        std::fs::create_dir_all(at("from/below/new")).unwrap();
        std::fs::create_dir_all(at("to/below")).unwrap();
        for name in ["from/file", "from/below/file", "from/below/new/file"] {
            std::fs::write(at(name), name).unwrap();
        }
        let _mounted = mounted(&at("to/below"), "tmpfs", None);
        let (spec, control) = (spec(top.path()), Control::default());
        let (found, base) = place::find(&spec).unwrap();
        let mut engine = Engine::new(&spec, &control, base, &found).unwrap();
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        engine.sync = seeing(How::Whole, &engine.base.dst, seen.clone());
        engine.all(&found);
        let report = engine.report(0.0);
        assert_eq!((report.outcome, report.files), (Outcome::Done, 3), "{report:#?}");
        let synced = |name: &str| {
            let found = std::fs::metadata(at("to").join(name)).unwrap();
            seen.lock().unwrap().contains(&(found.dev(), found.ino()))
        };
        let names = ["below", "below/file", "below/new", "below/new/file"];
        assert_eq!(names.map(synced), [true; 4]);
        assert_eq!(["", "file"].map(synced), [false; 2]);
    }

    /// A name is durable when all directories above it are, whichever run made them.
    #[test]
    fn directories_that_a_list_goes_through_are_synced_up_to_its_base() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        std::fs::create_dir(at("from")).unwrap();
        std::fs::create_dir(at("to")).unwrap();
        std::fs::write(at("from/file"), "file").unwrap();
        std::fs::write(at("list"), "file a/b/file\nfile a/c/file\n").unwrap();
        let (mut spec, control) = (spec(top.path()), Control::default());
        spec.what = What::List(Place { root: top.path().into(), path: "list".into() });
        for run in ["that makes them", "that finds them"] {
            let (found, base) = place::find(&spec).unwrap();
            let mut engine = Engine::new(&spec, &control, base, &found).unwrap();
            let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
            engine.sync = seeing(How::Each, &engine.base.dst, seen.clone());
            engine.all(&found);
            assert_eq!(engine.report(0.0).outcome, Outcome::Done, "{:#?}", engine.report(0.0));
            for name in ["", "a", "a/b", "a/c"] {
                let dir = std::fs::metadata(at("to").join(name)).unwrap();
                let seen = seen.lock().unwrap();
                let syncs = seen.iter().filter(|one| **one == (dir.dev(), dir.ino())).count();
                assert_eq!(syncs, 1, "the run {run}, {name:?}");
            }
        }
    }

    /// The kernel reports a failed write once, to the next sync, whichever file it is for.
    #[test]
    fn no_file_gets_its_name_that_was_begun_before_a_sync_failed() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("from")).unwrap();
        let (spec, control) = (spec(top.path()), Control::default());
        let (found, base) = place::find(&spec).unwrap();
        let mut engine = Engine::new(&spec, &control, base, &found).unwrap();
        engine.sync = failing(&engine.base.dst, &[0]);
        let node = engine.make_dir(Path::new(""), Path::new("to")).unwrap();
        let near = &mut Near::default();
        let (first, second) = (copied(&engine, &node, "first"), copied(&engine, &node, "second"));
        engine.flush(vec![first], near);
        let third = copied(&engine, &node, "third");
        engine.flush(vec![second, third], near);
        engine.pool();
        let names = std::fs::read_dir(top.path().join("to")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["third"]);
        let report = engine.report(0.0);
        let told: Vec<_> = report.failures.iter().map(|f| (&*f.path.0, f.reason)).collect();
        assert_eq!(told, [(Path::new("first"), Reason::Io), (Path::new("second"), Reason::Io)]);
        let next = Journal::open(&engine.base.dst, "t", place::fingerprint(&spec)).unwrap();
        let known = ["first", "second", "third"]
            .map(|name| next.published(Key::of(&Path::new("to").join(name))).is_some());
        assert_eq!(known, [false, false, true]);
    }
}
