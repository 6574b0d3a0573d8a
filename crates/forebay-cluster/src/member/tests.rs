//! Members with a real registry and real doors, in one process; behind each a mount that only counts.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use forebay_backing::FileKey;
use forebay_base::{Error, Kind, Result};
use forebay_registry::{
    Commit, Embedded, Entry, Health, Identity, Lease, Outcome, PATIENCE, Registry, Revision, Seen,
    Watch,
};

use super::join::json;
use super::{Changing, Holder, Joining, Member, Opening, Sorting};
use crate::core::{Access, Ends, Input, SETTLE, Standing};
use crate::front::{Front, Home, Keeper, Kept, Told};
use crate::keys;
use crate::peer::limits::BYTES_MAX;
use crate::words::{Answer, Question};

mod partners;

const DIR: FileKey = FileKey { ino: 2, generation: 1 };

fn key(ino: u64) -> FileKey {
    FileKey { ino, generation: 1 }
}

fn member(name: &str) -> keys::Member {
    let (tier, boot) = (format!("tier of {name}"), "boot".into());
    keys::Member { tier, boot, ..keys::Member::of(name) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic inside")
}

/// A mount without files.
#[derive(Default)]
struct Fake {
    busy: Mutex<HashSet<FileKey>>,
    released: Mutex<HashMap<FileKey, u32>>,
    looked_at: Mutex<HashMap<FileKey, u32>>,
    forgotten: Mutex<HashMap<FileKey, u32>>,
    below: Mutex<Vec<FileKey>>,
    /// Writes that wait in the mount, and whether they go on.
    waiting: (Mutex<(usize, bool)>, Condvar),
    /// Files that are the mount's own, though no copy of them is kept any more.
    adopted: Mutex<HashSet<FileKey>>,
    /// Members whose lives were reported as ended.
    ended: Mutex<Vec<String>>,
}

/// This mount keeps no copies, and is asked for none.
impl Keeper for Fake {
    fn keep(&self, _: Home<'_>, _: Told, _: u64, _: FileKey, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Error::os(libc::ENOSPC, "a mount without a tier"))
    }

    fn mark(&self, _: Home<'_>, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn begin_fill(&self, _: Home<'_>) -> Result<()> {
        Ok(())
    }

    fn copies_of(&self, _: &str) -> Kept {
        Kept { files: Vec::new(), is_whole: true }
    }

    fn adopt(&self, _: &str, file: FileKey) -> Result<()> {
        let is_its = lock(&self.adopted).contains(&file);
        is_its.then_some(()).ok_or_else(|| Error::os(libc::ENOENT, "no copy"))
    }

    fn take(&self, _: FileKey) -> Result<()> {
        Ok(())
    }

    fn disown(&self, _: FileKey) -> Result<()> {
        Ok(())
    }

    fn drop_copies(&self, _: &str) {}

    fn settle(&self, _: FileKey) -> Result<()> {
        Ok(())
    }

    fn fill(&self, _: &str, _: &dyn Fn() -> bool) -> Result<()> {
        Ok(())
    }

    fn suspend(&self, _: bool) {}

    fn superseded(&self) {}

    fn is_idle(&self) -> bool {
        true
    }
}

impl Front for Fake {
    fn release(&self, file: FileKey) -> bool {
        *lock(&self.released).entry(file).or_default() += 1;
        !lock(&self.busy).contains(&file)
    }

    fn is_free(&self, file: FileKey) -> bool {
        *lock(&self.looked_at).entry(file).or_default() += 1;
        !lock(&self.busy).contains(&file)
    }

    fn forget(&self, file: FileKey, _: &Ends) {
        *lock(&self.forgotten).entry(file).or_default() += 1;
    }

    fn lost(&self, _file: FileKey) {}

    fn below(&self, _path: &Path) -> Vec<FileKey> {
        lock(&self.below).clone()
    }

    fn answer(
        &self,
        (from, _): (&str, u64),
        question: Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Answer {
        if let Question::Write { offset: u64::MAX, .. } = question {
            lock(&self.waiting.0).0 += 1;
            let waiting = lock(&self.waiting.0);
            let waits = |waiting: &mut (usize, bool)| !waiting.1;
            let waited = self.waiting.1.wait_timeout_while(waiting, PATIENCE * 4, waits);
            drop(waited.unwrap());
        }
        out.extend_from_slice(from.as_bytes());
        out.extend_from_slice(bytes);
        Answer::Bytes
    }

    fn ended(&self, member: &str) {
        lock(&self.ended).push(member.into());
    }
}

/// A registry whose watches can be cut off, until what they missed is compacted.
struct Cut {
    registry: Arc<dyn Registry>,
    state: Arc<AtomicU8>,
}

const FLOWS: u8 = 0;
const CUT: u8 = 1;
const COMPACTED: u8 = 2;
/// One commit is refused.
const REFUSED: u8 = 3;

struct CutWatch(Box<dyn Watch>, Arc<AtomicU8>);

impl Watch for CutWatch {
    fn next(&mut self, _: Duration) -> Result<Seen> {
        match self.1.compare_exchange(COMPACTED, FLOWS, SeqCst, SeqCst) {
            Ok(_) => Ok(Seen::Compacted(Revision(0))),
            Err(REFUSED) => {
                self.1.store(FLOWS, SeqCst);
                Err(Error::new(Kind::WrongTier, "an older copy"))
            }
            Err(CUT) => {
                std::thread::sleep(Duration::from_millis(10));
                Ok(Seen::Quiet)
            }
            Err(_) => self.0.next(Duration::from_millis(10)),
        }
    }
}

impl Registry for Cut {
    fn address(&self) -> &str {
        self.registry.address()
    }

    fn get(&self, key: &str) -> Result<(Option<Entry>, Revision)> {
        self.registry.get(key)
    }

    fn range(&self, prefix: &str) -> Result<(Vec<Entry>, Revision)> {
        self.registry.range(prefix)
    }

    fn commit(&self, commit: &Commit) -> Result<Outcome> {
        self.registry.commit(commit)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        let watch = self.registry.watch(prefix, after)?;
        Ok(Box::new(CutWatch(watch, self.state.clone())))
    }

    fn lease(&self, ttl: Duration) -> Result<Box<dyn Lease>> {
        self.registry.lease(ttl)
    }

    fn barrier(&self) -> Result<Revision> {
        self.registry.barrier()
    }

    fn compact(&self, upto: Revision) -> Result<()> {
        self.registry.compact(upto)
    }

    fn cluster(&self) -> Result<Identity> {
        self.registry.cluster()
    }

    fn health(&self) -> Result<Health> {
        self.registry.health()
    }
}

struct Bed {
    registry: Arc<dyn Registry>,
    _dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let registry = Arc::new(Embedded::open(&dir.path().join("r"), PATIENCE).unwrap());
        Bed { registry, _dir: dir }
    }

    fn joining(&self, node: &str) -> Joining {
        Joining {
            registry: self.registry.clone(),
            store: "s".into(),
            probe: key(1),
            node: node.into(),
            tier: format!("tier of {node}"),
            boot: "boot".into(),
            listen: "127.0.0.1:0".parse().unwrap(),
            key: None,
            tls: None,
            domain: None,
            copies: 0,
            copies_or_fail: false,
            shares_reads: false,
            sync_store: Arc::new(|| Ok(())),
            enters: Box::new(|| ()),
            sorting: Sorting { before: None, done: Box::new(|_| ()) },
            patience: PATIENCE,
        }
    }

    fn member(&self, node: &str) -> (Arc<Member>, Arc<Fake>) {
        self.joined(self.joining(node))
    }

    fn joined(&self, joining: Joining) -> (Arc<Member>, Arc<Fake>) {
        let member = Member::join(joining).unwrap();
        let fake = Arc::new(Fake::default());
        let front: Weak<dyn Front> = Arc::downgrade(&(fake.clone() as Arc<dyn Front>));
        member.serve(front, Vec::new());
        (member, fake)
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SETTLE + Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn there(opening: Opening) -> String {
    match opening {
        Opening::There(home) => home,
        Opening::Here(_) => panic!("opened here"),
    }
}

fn open(member: &Arc<Member>, file: u64, how: Access) -> Opening {
    member.open(key(file), DIR, Path::new("f"), how).unwrap()
}

#[test]
fn a_file_has_one_home_until_its_bytes_are_home_and_all_others_look_again() {
    let bed = Bed::new();
    let ((a, front), (b, seen)) = (bed.member("a"), bed.member("b"));
    let Opening::Here(Some(held)) = open(&a, 7, Access::Write) else { panic!("a may") };
    assert_eq!(there(open(&b, 7, Access::Read)), "a");
    assert_eq!(there(open(&b, 7, Access::Write)), "a");
    assert_eq!(b.holder(key(7)), Holder::There("a".into()));
    lock(&front.busy).insert(key(7));
    drop(held);
    eventually("it is asked whether it is free", || lock(&front.looked_at).contains_key(&key(7)));
    assert!(lock(&front.released).is_empty(), "what is idle is flushed by the drain");
    assert_eq!(there(open(&b, 7, Access::Read)), "a", "it is not");
    lock(&front.busy).clear();
    eventually("it is given back", || a.holder(key(7)) == Holder::Nobody);
    let opened = open(&b, 7, Access::Read);
    assert!(matches!(opened, Opening::Here(None)));
    assert!(lock(&seen.forgotten).contains_key(&key(7)), "before the open was answered");
    let Opening::Here(Some(_held)) = open(&b, 7, Access::Write) else { panic!("b may now") };
    assert_eq!(there(open(&a, 7, Access::Read)), "b");
}

/// The next home is asked before the mount was told that the former home is no longer the home.
#[test]
fn the_end_of_a_home_is_known_before_the_next_home() {
    let bed = Bed::new();
    let ((a, _f), (b, seen), (c, _h)) = (bed.member("a"), bed.member("b"), bed.member("c"));
    for _ in 0..3 {
        let held = open(&a, 7, Access::Write);
        assert_eq!(there(open(&b, 7, Access::Read)), "a");
        lock(&seen.forgotten).clear();
        drop(held);
        eventually("it is given back", || a.holder(key(7)) == Holder::Nobody);
        let Opening::Here(Some(held)) = open(&c, 7, Access::Write) else { panic!("c may now") };
        while b.holder(key(7)) != Holder::There("c".into()) {
            std::thread::yield_now();
        }
        let is_noted = b.ends(key(7)).is_some();
        assert!(is_noted || lock(&seen.forgotten).contains_key(&key(7)));
        drop(held);
        eventually("it is given back", || c.holder(key(7)) == Holder::Nobody);
    }
}

/// No task waits for the claim of a new file, and still no other member takes the file for unclaimed.
#[test]
fn a_file_that_was_made_a_moment_ago_is_found_at_its_home() {
    let bed = Bed::new();
    let ((a, _f), (b, _g)) = (bed.member("a"), bed.member("b"));
    let making = a.create(DIR, Path::new("d")).unwrap();
    let held: Vec<_> = (100..200).map(|n| a.created(key(n), DIR, Path::new("d/f"))).collect();
    drop(making);
    for n in (100..200).rev() {
        assert_eq!(there(open(&b, n, Access::Read)), "a");
    }
    drop(held);
    eventually("all are given back, the directory, too", || {
        let seen = b.overview().unwrap().members;
        seen.iter().all(|member| member.claims + member.creates == 0)
    });
}

#[test]
fn names_of_a_claimed_file_are_changed_by_its_home_and_of_two_homes_one_gives_back() {
    let bed = Bed::new();
    let ((a, _f), (b, front), (c, _h)) = (bed.member("a"), bed.member("b"), bed.member("c"));
    let held = (open(&a, 7, Access::Write), open(&b, 8, Access::Write));
    let change = |member: &Arc<Member>, files: &[u64]| {
        let files: Vec<_> = files.iter().map(|n| (key(*n), DIR)).collect();
        member.change(&files, None)
    };
    assert!(matches!(change(&c, &[7]).unwrap(), Changing::There(home) if home == "a"));
    assert!(matches!(change(&c, &[9]).unwrap(), Changing::Here(_)));
    let refused = change(&c, &[7, 8]).err().expect("both are in use");
    assert!(refused.is(libc::EBUSY), "{refused}");
    drop(held.1);
    let done = change(&c, &[7, 8]).unwrap();
    assert!(matches!(done, Changing::There(home) if home == "a"));
    assert!(lock(&front.released).contains_key(&key(8)), "b was asked to give it back");
    drop(held.0);
}

#[test]
fn a_directory_is_renamed_only_when_nobody_holds_files_in_it() {
    let bed = Bed::new();
    let ((a, _f), (b, front)) = (bed.member("a"), bed.member("b"));
    let held = open(&b, 8, Access::Write);
    lock(&front.below).push(key(8));
    let below = Some(Path::new("d"));
    let refused = a.change(&[], below).err().expect("it is in use");
    assert!(refused.is(libc::EBUSY), "{refused}");
    drop(held);
    let gate = a.change(&[], below).unwrap();
    assert_eq!(b.holder(key(8)), Holder::Nobody, "it was given back");
    let waits = {
        let b = b.clone();
        std::thread::spawn(move || open(&b, 9, Access::Write))
    };
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waits.is_finished(), "nobody claims while a directory is being renamed");
    drop(gate);
    assert!(matches!(waits.join().unwrap(), Opening::Here(Some(_))));
}

#[test]
fn bytes_go_with_a_question_and_with_its_answer() {
    let bed = Bed::new();
    let ((_a, _f), (b, _g)) = (bed.member("a"), bed.member("b"));
    let mut out = b"before ".to_vec();
    let question = Question::Write { handle: 1, number: 1, offset: 0, sync: false };
    let answer = b.ask("a", &question, b" and bytes", &mut out).unwrap();
    assert_eq!((answer, out.as_slice()), (Answer::Bytes, b"b and bytes".as_slice()));
    let unknown = b.ask("x", &question, b"", &mut Vec::new()).unwrap_err();
    assert_eq!(unknown.errno(), libc::EIO, "{unknown}");
}

#[test]
fn what_does_not_fit_is_refused_with_the_remedy() {
    let bed = Bed::new();
    let (_a, _f) = bed.member("a");
    let refused = |change: &dyn Fn(&mut Joining)| {
        let mut joining = bed.joining("a");
        change(&mut joining);
        Member::join(joining).err().expect("it is refused").to_string()
    };
    let other_tier = refused(&|joining| joining.tier = "another".into());
    assert!(other_tier.contains("--node") && other_tier.contains("mounted now"), "{other_tier}");
    let other_numbers = refused(&|joining| joining.probe = key(3));
    assert!(other_numbers.contains("alike on all nodes"), "{other_numbers}");
    let no_name = refused(&|joining| joining.node = "a/b".into());
    assert!(no_name.contains("'a/b'"), "{no_name}");
}

/// A restarted member goes on with its claims; the process before it acknowledges nothing more.
#[test]
fn a_member_keeps_its_claims_over_a_restart_and_its_older_process_is_superseded() {
    let bed = Bed::new();
    let ((old, _f), (b, _g)) = (bed.member("a"), bed.member("b"));
    let held = open(&old, 7, Access::Write);
    let (new, _h) = bed.member("a");
    assert_eq!(new.epoch(), old.epoch() + 1);
    eventually("the old one hears of it", || old.is_superseded());
    assert!(old.open(key(9), DIR, Path::new("g"), Access::Write).is_err());
    assert_eq!(new.holder(key(7)), Holder::Here);
    eventually("b knows the new one", || {
        b.ask("a", &Question::Close { handle: 1 }, b"", &mut Vec::new()).is_ok()
    });
    std::mem::forget(held);
    let writes = Instant::now();
    assert!(matches!(open(&new, 7, Access::Write), Opening::Here(Some(_))));
    assert!(writes.elapsed() < PATIENCE);
}

/// Lives that ended while a member was cut off are reported all the same: otherwise it would keep locks for dead
/// members.
#[test]
fn lives_that_ended_while_the_watch_was_cut_off_are_told_to_have_ended() {
    let bed = Bed::new();
    let state = Arc::new(AtomicU8::new(FLOWS));
    let cut = Cut { registry: bed.registry.clone(), state: state.clone() };
    let others = ["dies", "restarts", "lapses", "lives"].map(|name| (name, bed.member(name)));
    let (home, front) = bed.joined(Joining { registry: Arc::new(cut), ..bed.joining("home") });
    eventually("it knows them", || home.others().len() == others.len());
    // It hears nothing of the members that it knew from the start.
    let told = || lock(&front.ended).iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(told(), BTreeSet::new());
    state.store(CUT, SeqCst);
    others[0].1.0.leave();
    let _again = bed.member("restarts");
    // These leases ran out, and were taken anew.
    for name in ["lapses", "home"] {
        let alive = format!("stores/s/alive/{name}");
        bed.registry.commit(&Commit::new().delete(&alive)).unwrap();
        bed.registry.commit(&Commit::new().put(&alive, "")).unwrap();
    }
    state.store(COMPACTED, SeqCst);
    let ended = ["dies", "home", "lapses", "restarts"].map(String::from).into();
    eventually("it is told of each", || told() == ended);
    assert_eq!(home.others().len(), others.len() - 1);
    // The member hears of later ends as before.
    others[3].1.0.leave();
    eventually("it is told", || told().contains("lives"));
}

/// An older registry's history is not the one that this member and the others agreed on: the member would take claims
/// and lives for gone that are not.
#[test]
fn a_member_does_not_follow_a_registry_that_is_an_older_one() {
    let bed = Bed::new();
    let state = Arc::new(AtomicU8::new(FLOWS));
    let cut = Cut { registry: bed.registry.clone(), state: state.clone() };
    let (home, _front) = bed.joined(Joining { registry: Arc::new(cut), ..bed.joining("home") });
    let (_other, _other_front) = bed.member("other");
    eventually("it knows the other", || home.others().len() == 1);
    assert_eq!(Arc::strong_count(&state), 3, "here, in the registry and in the watch");
    state.store(REFUSED, SeqCst);
    eventually("the watch has ended", || Arc::strong_count(&state) == 2);
    bed.registry.commit(&Commit::new().delete("stores/s/alive/other")).unwrap();
    assert_eq!(home.others().len(), 1, "it stays with what it knew");
}

#[test]
fn a_member_that_leaves_gives_back_clean_files_and_keeps_dirty_ones() {
    let bed = Bed::new();
    let ((a, front), (b, _g)) = (bed.member("a"), bed.member("b"));
    drop((open(&a, 7, Access::Write), open(&a, 8, Access::Write)));
    lock(&front.busy).insert(key(8));
    a.leave();
    eventually("the lease has ended", || matches!(b.holder(key(8)), Holder::Dead(_)));
    assert_eq!(b.holder(key(7)), Holder::Nobody);
    let lost = b.open(key(8), DIR, Path::new("f"), Access::Read).err().expect("a is gone");
    assert!(lost.errno() == libc::EIO && lost.to_string().contains("member a"), "{lost}");
}

/// Reads until the registry has a read grant of the member.
fn read_until_granted(bed: &Bed, member: &Arc<Member>) {
    let grant = format!("stores/s/grants/{}", member.name());
    eventually("it has a read grant", || {
        assert!(matches!(open(member, 50, Access::Read), Opening::Here(None)));
        bed.registry.get(&grant).unwrap().0.is_some()
    });
}

fn granted(bed: &Bed) -> Vec<Entry> {
    bed.registry.range("stores/s/grants/").unwrap().0
}

/// A member that claims goes on once the others have heard of the claim, and their grants stay.
#[test]
fn claims_and_new_files_beside_a_grant_are_known_to_its_holder() {
    let bed = Bed::new();
    let ((a, _f), (b, _g), (c, _h)) = (bed.member("a"), bed.member("b"), bed.member("c"));
    read_until_granted(&bed, &b);
    read_until_granted(&bed, &c);
    let grants = granted(&bed);
    assert_eq!(grants.len(), 2);
    let mut held = Vec::new();
    for file in 100..130 {
        let opened = open(&a, file, Access::Write);
        assert!(matches!(opened, Opening::Here(Some(_))));
        // Neither member asks the registry before it is answered.
        assert_eq!(b.holder(key(file)), Holder::There("a".into()));
        assert_eq!(c.holder(key(file)), Holder::There("a".into()));
        held.push(opened);
    }
    let making = a.create(DIR, Path::new("d/new")).unwrap();
    assert!(b.needs_dir(), "it knows that files are made");
    assert_eq!(granted(&bed), grants);
    drop((making, held));
}

/// A member that claims waits for a member with a grant that hears nothing, for as long as the registry has that
/// member's lease.
#[test]
fn a_claim_waits_for_the_lease_of_a_deaf_grant_holder() {
    let bed = Bed::new();
    let (a, _f) = bed.member("a");
    let state = Arc::new(AtomicU8::new(FLOWS));
    let cut = Cut { registry: bed.registry.clone(), state: state.clone() };
    let (b, _g) = bed.joined(Joining { registry: Arc::new(cut), ..bed.joining("b") });
    read_until_granted(&bed, &b);
    state.store(CUT, SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    let writes = {
        let a = a.clone();
        std::thread::spawn(move || open(&a, 7, Access::Write))
    };
    std::thread::sleep(Duration::from_millis(500));
    assert!(!writes.is_finished(), "b opens it by what it has heard");
    assert!(matches!(open(&b, 7, Access::Read), Opening::Here(None)), "it began before");
    state.store(FLOWS, SeqCst);
    assert!(matches!(writes.join().unwrap(), Opening::Here(Some(_))));
    assert_eq!(there(open(&b, 7, Access::Read)), "a");
}

/// Writes that wait for room take a part of a home's connections, and further ones are told to ask again: the
/// questions by which members agree get through meanwhile.
#[test]
fn a_home_whose_writers_wait_answers_what_members_agree_by() {
    let bed = Bed::new();
    let (a, fake) = bed.member("a");
    let (b, _b) = bed.member("b");
    let write = Question::Write { handle: 1, number: 1, offset: u64::MAX, sync: false };
    let waiting = || lock(&fake.waiting.0).0;
    std::thread::scope(|scope| {
        let ask = || b.ask("a", &write, b"", &mut Vec::new());
        let all: Vec<_> = (0..300).map(|_| scope.spawn(ask)).collect();
        eventually("as many as may wait do", || waiting() == 64);
        let began = Instant::now();
        let holds = Question::Holds { file: key(9), dir: DIR };
        let answer = b.ask("a", &holds, b"", &mut Vec::new()).unwrap();
        assert_eq!(answer, Answer::Holds(false));
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(waiting(), 64, "no more of them wait there");
        lock(&fake.waiting.0).1 = true;
        fake.waiting.1.notify_all();
        let done = all.into_iter().map(|asked| asked.join().unwrap());
        assert_eq!(done.filter(|answer| answer.is_ok()).count(), 300);
    });
    assert_eq!(waiting(), 300);
    drop(a);
}

/// A caller that waits under the core's lock would keep out the thread that has heard that the lease stands again.
#[test]
fn a_wait_until_the_member_may_serve_does_not_hold_the_core() {
    let bed = Bed::new();
    let (a, _front) = bed.joined(Joining { copies: 1, ..bed.joining("a") });
    let (_b, _its) = bed.member("b");
    eventually("b keeps copies", || a.copies().1 == 1);
    // The tending thread reports the true lease each tenth of a second.
    for _ in 0..5 {
        a.feed(Input::Lease(Duration::ZERO));
        a.wait_fit().expect("its lease stands");
    }
}

/// All nodes run one release: the first member of a newer one waits for the last member of the older one.
#[test]
fn a_store_goes_on_to_a_newer_release_once_nobody_of_the_older_is_mounted() {
    let bed = Bed::new();
    let store = |protocol| {
        let store = keys::Store { protocol, probe: keys::file(key(1)) };
        Commit::new().put("stores/s", json(&store))
    };
    let old = store(keys::PROTOCOL - 1).put("stores/s/alive/old", "");
    bed.registry.commit(&old).unwrap();
    let refused = |what: &str| {
        let error = Member::join(bed.joining("new")).err().expect("it is refused");
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    refused("unmount old first");
    bed.registry.commit(&Commit::new().delete("stores/s/alive/old")).unwrap();
    let (new, _f) = bed.member("new");
    let (found, _) = bed.registry.get("stores/s").unwrap();
    let found: keys::Store = super::join::parse(&found.unwrap()).unwrap();
    assert_eq!(found.protocol, keys::PROTOCOL);
    new.leave();
    bed.registry.commit(&store(keys::PROTOCOL + 1)).unwrap();
    refused("newer release");
}
