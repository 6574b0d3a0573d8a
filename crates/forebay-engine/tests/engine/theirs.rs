//! Changes of a backing file by other programs are seen whatever hides them: a flush that fails, or
//! a change of names or attributes through the daemon.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::wrap::{Fault, FaultHandle, FaultRule, FaultRules, Verb, Wrapped};
use forebay_backing::{Access, BackingFile, BackingStore, Error, Kind, RenameMode};
use forebay_backing::{SetAttr, SetTime, Timestamp};
use forebay_engine::{Config, Engine, File, OpenFile};

use crate::hook::Hook;
use crate::losses::file_of;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, named, patient, read_all, start};
use crate::store::MemStore;

const LEN: usize = 64 << 10;
const THEIRS: &[u8] = b"a line of theirs";
const AT: Timestamp = Timestamp { sec: 1_000_000, nsec: 7 };

/// An engine over a store with hooked calls, some of which fail then.
struct Bed {
    store: MemStore,
    hook: Arc<Hook>,
    faults: FaultHandle,
    engine: Arc<Engine>,
}

impl Bed {
    fn new() -> Bed {
        let (store, hook) = (MemStore::new(), Arc::new(Hook::default()));
        let (faulty, faults) =
            Fault::with_rules(Arc::new(store.clone()), FaultRules::default()).expect("no rules");
        let hooked = Wrapped::new(faulty, hook.clone());
        let media = Arc::new(CrashMedia::default());
        let engine = start(media, hooked, "theirs", Config::default(), patient());
        Bed { store, hook, faults, engine: engine.expect("a new tier") }
    }

    /// Makes an open file `f` of `len` times `A`, which the store has.
    fn flushed(&self, len: usize) -> OpenFile {
        let (file, _) = self.engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
        self.engine.io.write(&file, 0, &vec![b'A'; len]).expect("room");
        self.engine.drain.flush_file(&file).expect("a store that works");
        file
    }

    /// Returns the file as another program has it open on the store.
    fn theirs(&self) -> Arc<dyn BackingFile> {
        self.store.open(Path::new("f"), Access::ReadWrite).expect("it is there")
    }

    fn fail(&self, failing: &[(&str, &str)]) {
        let rule = |(op, errno): &(&str, &str)| FaultRule {
            op: op.to_string(),
            fail: Some(errno.to_string().try_into().expect("an error's name")),
            ..FaultRule::default()
        };
        let rules = failing.iter().map(rule).collect();
        self.faults.set_rules(FaultRules { seed: 1, rules }).expect("sound rules");
    }

    /// Calls `act` once, before the first such call to the store.
    fn at_first(&self, verb: Verb, act: impl FnOnce() + Send + 'static) {
        let mut act = Some(act);
        self.hook.set(move |call| {
            if call.verb == verb
                && let Some(act) = act.take()
            {
                act();
            }
        });
    }

    /// Flushes once more, after a flush that may have failed.
    fn flush_again(&self, file: &Arc<File>) -> Result<(), Error> {
        self.faults.clear();
        self.engine.drain.flush_file(file)
    }
}

fn append(theirs: &dyn BackingFile) {
    let end = theirs.stat().expect("memory").size;
    theirs.write_at(THEIRS, end).expect("memory");
}

/// Writes in place, and sets the time back: only the ctime shows it.
fn rewrite_unseen(theirs: &dyn BackingFile) {
    let before = theirs.stat().expect("memory");
    theirs.write_at(&vec![b'T'; before.size as usize], 0).expect("memory");
    theirs.set_times(None, Some(before.mtime)).expect("memory");
}

#[track_caller]
fn is_conflict(flushed: Result<(), Error>, when: &str) {
    let error = flushed.expect_err(when);
    assert_eq!(error.kind(), Kind::Conflict, "{when}: {error}");
}

/// Goal: bytes that a failed flush has not written to the backing file are never cut off.
// S-8
#[test]
fn what_others_append_while_a_flush_fails_is_a_conflict() {
    let failing: [(Verb, &[(&str, &str)]); 4] = [
        (Verb::WriteAt, &[("write_at", "ENOSPC")]),
        (Verb::SetTimes, &[("set_times", "EIO")]),
        (Verb::SyncFiles, &[("sync_files", "EIO")]),
        (Verb::SyncFiles, &[("sync_files", "EIO"), ("sync", "EIO")]),
    ];
    for (verb, rules) in failing {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        bed.engine.io.write(&file, LEN as u64, &[b'B'; 4096]).expect("room");
        let theirs = bed.theirs();
        bed.at_first(verb, move || append(&*theirs));
        bed.fail(rules);
        bed.engine.drain.flush_file(&file).expect_err("a store that fails");
        is_conflict(bed.flush_again(&file), &format!("{rules:?}"));
        assert!(file_of(&bed.store, "f").ends_with(THEIRS), "{rules:?}: it was cut off");
        drop(file);
        abandon(bed.engine);
    }
}

// S-8
#[test]
fn what_others_put_in_its_place_while_a_flush_fails_is_a_conflict() {
    for op in ["set_times", "sync_files"] {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        bed.engine.io.write(&file, LEN as u64 - 4096, b"ours").expect("room");
        let theirs = bed.theirs();
        bed.at_first(Verb::WriteAt, move || {
            theirs.set_len(0).expect("memory");
            theirs.write_at(THEIRS, 0).expect("memory");
        });
        bed.fail(&[(op, "EIO")]);
        bed.engine.drain.flush_file(&file).expect_err("a store that fails");
        is_conflict(bed.flush_again(&file), op);
        assert_eq!(file_of(&bed.store, "f").len(), LEN - 4092, "{op}: it was made longer");
        drop(file);
        abandon(bed.engine);
    }
}

/// Others write over all bytes that a flush had copied, before it failed.
// S-8
#[test]
fn what_others_write_over_a_copy_that_cannot_be_synced_is_a_conflict() {
    let bed = Bed::new();
    let file = bed.flushed(LEN);
    bed.engine.io.write(&file, 0, b"ours").expect("room");
    let theirs = bed.theirs();
    bed.at_first(Verb::SyncFiles, move || theirs.write_at(THEIRS, 0).expect("memory"));
    bed.fail(&[("sync_files", "EIO")]);
    bed.engine.drain.flush_file(&file).expect_err("a store that fails");
    is_conflict(bed.flush_again(&file), "a sync that failed");
    assert!(file_of(&bed.store, "f").starts_with(THEIRS));
    drop(file);
    abandon(bed.engine);
}

/// Method: a part of the written bytes is there, and the call fails.
// S-8
#[test]
fn what_a_failing_write_has_left_is_ours() {
    for (errno, left) in [("ENOSPC", LEN), ("EIO", LEN + 1000)] {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        bed.engine.io.write(&file, LEN as u64, &[b'B'; 4096]).expect("room");
        let part = bed.theirs();
        bed.at_first(Verb::WriteAt, move || {
            part.write_at(&[b'B'; 1000], LEN as u64).expect("memory");
        });
        bed.fail(&[("write_at", errno)]);
        bed.engine.drain.flush_file(&file).expect_err("a store that fails");
        assert_eq!(file_of(&bed.store, "f").len(), left, "{errno}");
        bed.flush_again(&file).expect("nobody else wrote to it");
        assert_eq!(file_of(&bed.store, "f").len(), LEN + 4096);
        assert_eq!(counter(&bed.engine, "conflicts"), 0);
        drop(file);
        abandon(bed.engine);
    }
}

/// A change of names or attributes through the daemon.
#[derive(Debug, Clone, Copy)]
enum Change {
    Mode,
    Time,
    Rename,
    Link,
    Unlink,
}

impl Change {
    /// Makes the change: `f` is `g` after a rename, and has that name too after a link, and before an unlink.
    fn make(self, engine: &Arc<Engine>) {
        let path = Path::new("f");
        let attr = engine.verbs.stat(path).expect("it is there");
        let at = named(path, &attr);
        let set = |set: SetAttr| engine.verbs.set_attr(at, &set).map(drop);
        let other = Path::new("g");
        let made = match self {
            Change::Mode => set(SetAttr { mode: Some(0o640), ..SetAttr::default() }),
            Change::Time => set(SetAttr { mtime: Some(SetTime::At(AT)), ..SetAttr::default() }),
            Change::Rename => engine.verbs.rename(at, other, None, RenameMode::NoReplace),
            Change::Link => engine.verbs.link(at, other).map(drop),
            Change::Unlink => engine.verbs.unlink(named(other, &attr)),
        };
        made.expect("a store that works");
    }

    fn name_after(self) -> &'static str {
        if matches!(self, Change::Rename) { "g" } else { "f" }
    }
}

/// Goal: a change through the daemon during a flush does not hide another program's. Method: others
/// write between the copy and the look at its result, then the change goes through.
// S-6 S-8
#[test]
fn what_others_append_to_a_copy_is_a_conflict_beside_a_change_of_ours() {
    for change in [Change::Mode, Change::Time, Change::Rename, Change::Link] {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        bed.engine.io.write(&file, 0, b"ours").expect("room");
        let (theirs, engine) = (bed.theirs(), bed.engine.clone());
        bed.at_first(Verb::SyncFiles, move || {
            append(&*theirs);
            change.make(&engine);
        });
        is_conflict(bed.engine.drain.flush_file(&file), &format!("{change:?}"));
        let found = file_of(&bed.store, change.name_after());
        assert!(found.ends_with(THEIRS), "{change:?}: it was cut off");
        drop(file);
        abandon(bed.engine);
    }
}

/// The same for an overwrite by others. A set time is left out: without one only others can move the mtime.
// S-6 S-8
#[test]
fn what_others_write_over_a_copy_is_a_conflict_beside_a_change_of_ours() {
    for change in [Change::Mode, Change::Rename, Change::Link] {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        bed.engine.io.write(&file, 0, b"ours").expect("room");
        let (theirs, engine) = (bed.theirs(), bed.engine.clone());
        bed.at_first(Verb::SyncFiles, move || {
            theirs.write_at(THEIRS, 0).expect("memory");
            change.make(&engine);
        });
        is_conflict(bed.engine.drain.flush_file(&file), &format!("{change:?}"));
        assert!(file_of(&bed.store, change.name_after()).starts_with(THEIRS));
        drop(file);
        abandon(bed.engine);
    }
}

// S-6 S-8
#[test]
fn what_others_append_to_a_copy_is_a_conflict_beside_a_write_of_ours() {
    let bed = Bed::new();
    let file = bed.flushed(LEN);
    bed.engine.io.write(&file, 0, b"ours").expect("room");
    let (theirs, engine, open) = (bed.theirs(), bed.engine.clone(), file.clone());
    bed.at_first(Verb::SyncFiles, move || {
        append(&*theirs);
        engine.io.write(&open, 0, b"more").expect("room");
    });
    is_conflict(bed.engine.drain.flush_file(&file), "written meanwhile");
    assert!(file_of(&bed.store, "f").ends_with(THEIRS), "it was cut off");
    drop(file);
    abandon(bed.engine);
}

/// Each change of names and attributes moves the ctime, which alone showed the change by others.
const CHANGES: [Change; 5] =
    [Change::Mode, Change::Time, Change::Rename, Change::Link, Change::Unlink];

// S-1
#[test]
fn a_change_of_ours_does_not_hide_what_others_have_made_of_a_cached_file() {
    for change in CHANGES {
        let bed = Bed::new();
        drop(bed.flushed(LEN));
        if matches!(change, Change::Unlink) {
            Change::Link.make(&bed.engine);
        }
        assert!(read_all(&bed.engine, Path::new("f")).expect("it is there") == [b'A'; LEN]);
        rewrite_unseen(&*bed.theirs());
        change.make(&bed.engine);
        let found = read_all(&bed.engine, Path::new(change.name_after())).expect("it is there");
        assert!(found == [b'T'; LEN], "{change:?}: old bytes were read");
        abandon(bed.engine);
    }
}

// S-8
#[test]
fn a_change_of_ours_does_not_hide_what_others_have_made_of_a_dirty_file() {
    for change in CHANGES {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        if matches!(change, Change::Unlink) {
            Change::Link.make(&bed.engine);
        }
        bed.engine.io.write(&file, 0, b"ours").expect("room");
        rewrite_unseen(&*bed.theirs());
        change.make(&bed.engine);
        // One more change does not hide it either.
        let attr = bed.engine.verbs.stat(Path::new(change.name_after())).expect("it is there");
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let at = named(Path::new(change.name_after()), &attr);
        bed.engine.verbs.set_attr(at, &set).expect("a store that works");
        is_conflict(bed.engine.drain.flush_file(&file), &format!("{change:?}"));
        assert!(file_of(&bed.store, change.name_after()) == [b'T'; LEN], "{change:?}");
        drop(file);
        abandon(bed.engine);
    }
}

/// Two changes through the daemon at once: the answer to the first comes after that to the second.
// S-8
#[test]
fn changes_of_ours_at_once_are_no_conflict_whichever_answer_comes_last() {
    for (first, second) in [
        (Change::Mode, Change::Mode),
        (Change::Mode, Change::Time),
        (Change::Time, Change::Mode),
        (Change::Link, Change::Mode),
    ] {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        bed.engine.io.write(&file, 0, b"ours").expect("room");
        let verb = if matches!(first, Change::Link) { Verb::Link } else { Verb::SetAttr };
        let (engine, mut came) = (bed.engine.clone(), false);
        bed.hook.set_after(move |call| {
            if call.verb == verb && !std::mem::replace(&mut came, true) {
                second.make(&engine);
            }
        });
        first.make(&bed.engine);
        bed.engine.drain.flush_file(&file).expect("nobody else wrote to it");
        assert!(file_of(&bed.store, "f").starts_with(b"ours"), "{first:?}");
        assert_eq!(counter(&bed.engine, "conflicts"), 0, "{first:?} {second:?}");
        drop(file);
        abandon(bed.engine);
    }
}

/// A change through the daemon of a file that nobody else touches makes neither a conflict nor other bytes.
// S-1 S-8
#[test]
fn changes_of_ours_alone_leave_what_is_cached_as_it_is() {
    for change in CHANGES {
        let bed = Bed::new();
        let file = bed.flushed(LEN);
        if matches!(change, Change::Unlink) {
            Change::Link.make(&bed.engine);
        }
        bed.engine.io.write(&file, 0, b"ours").expect("room");
        change.make(&bed.engine);
        bed.engine.drain.flush_file(&file).expect("nobody else wrote to it");
        drop(file);
        let cached = bed.engine.ops.status().clean_bytes;
        let found = read_all(&bed.engine, Path::new(change.name_after())).expect("it is there");
        assert!(found.starts_with(b"ours") && found.len() == LEN, "{change:?}");
        assert_eq!(bed.engine.ops.status().clean_bytes, cached);
        assert_eq!((counter(&bed.engine, "conflicts"), cached), (0, LEN as u64), "{change:?}");
        abandon(bed.engine);
    }
}
