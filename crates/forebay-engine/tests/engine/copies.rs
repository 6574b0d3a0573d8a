//! Copies that one member keeps for another: they have everything that the home has acknowledged as
//! synced, whenever the home dies for good, and whatever happens to the member that keeps them.
//!
//! Two engines over one store, and no network: the home's messages reach the other engine at once.
//! The workload of the power cuts runs at the home. Before changes of the store of copies, and of
//! the home's tier, picked at random, everything but the home's tier is copied. At each such moment
//! the home dies for good; the other engine takes over, is read, flushes, and is compared.

use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_backing::{Error, FileKey, Result};
use forebay_engine::time::Time;
use forebay_engine::{Config, CopiesAt, Engine, Partners, Teller, Told};

use crate::journal::{Crash, Journal};
use crate::media::{CrashMedia, Disk, Lie};
use crate::power_cut::{Workload, compare};
use crate::rng::Rng;
use crate::start::{abandon, patient, read_all, start, time};
use crate::store::{MemStore, Tree};

pub const HOME: &str = "m/1";

const BOOT: &str = "boot-p";

/// Smaller than some of the writes of the workload.
const AHEAD_FROM: u64 = 4096;

/// The way to partners, without a network.
pub struct Way {
    pub partners: Mutex<Vec<Arc<Engine>>>,
    /// The partner to be filled next.
    pub comes: Mutex<Option<Arc<Engine>>>,
    pub filling: Mutex<Vec<Arc<Engine>>>,
    /// The home's process, and the fill by which each partner has its copies: 0 stands for that of
    /// an earlier process.
    pub epoch: AtomicU64,
    fills: Mutex<Vec<(Arc<Engine>, u64)>>,
    pub wants: AtomicBool,
    /// Whether the home is cut off: no partner may acknowledge anything.
    cut_off: AtomicBool,
    /// Whether there are fewer partners than are wanted, so that a sync is to fail.
    pub is_short: AtomicBool,
    /// Whether the next message meets a bug.
    pub bug: AtomicBool,
    told: AtomicU64,
    bytes: AtomicU64,
    words: AtomicU64,
    /// The last messages, to be sent again.
    pub sent: Mutex<Vec<Message>>,
    /// Messages about all files.
    pub marks: Mutex<Vec<Vec<u8>>>,
    /// How often the slowest partner was to be struck off.
    pub hurried: AtomicU64,
    /// Called after each message.
    pub after: Mutex<Option<Act>>,
    is_acting: AtomicBool,
    /// The clock of the test, whichever thread reads it.
    clock: Time,
}

/// An action after a message, run by one thread at a time.
#[derive(Clone)]
pub struct Act(Arc<Mutex<dyn FnMut() + Send>>);

impl Act {
    pub fn new(act: impl FnMut() + Send + 'static) -> Act {
        Act(Arc::new(Mutex::new(act)))
    }
}

#[derive(Clone)]
pub struct Message {
    pub file: FileKey,
    pub words: Vec<u8>,
    pub bytes: Vec<u8>,
}

impl Way {
    pub fn to(partners: &[&Arc<Engine>]) -> Arc<Way> {
        Arc::new(Way {
            partners: Mutex::new(partners.iter().map(|it| (*it).clone()).collect()),
            comes: Mutex::default(),
            filling: Mutex::default(),
            epoch: AtomicU64::new(1),
            fills: Mutex::default(),
            wants: AtomicBool::new(true),
            cut_off: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            bug: AtomicBool::new(false),
            told: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            words: AtomicU64::new(0),
            sent: Mutex::default(),
            marks: Mutex::default(),
            hurried: AtomicU64::new(0),
            after: Mutex::default(),
            is_acting: AtomicBool::new(false),
            clock: time(),
        })
    }

    /// Runs the action, which may take its time. A thread that waits for it uses the same clock:
    /// the simulated one stands still while any thread waits for a lock.
    fn act(&self) {
        while self.is_acting.swap(true, Acquire) {
            self.clock.sleep(Duration::from_millis(1));
        }
        let act = self.after.lock().unwrap().clone();
        if let Some(Act(act)) = act {
            act.lock().unwrap()();
        }
        self.is_acting.store(false, Release);
    }

    fn one(&self, _name: &str) -> Arc<Engine> {
        let (comes, filling) = (self.comes.lock().unwrap(), self.filling.lock().unwrap());
        let first = || self.partners.lock().unwrap()[0].clone();
        comes.clone().or_else(|| filling.first().cloned()).unwrap_or_else(first)
    }

    fn teller(&self, partner: &Arc<Engine>) -> Teller<'static> {
        let fills = self.fills.lock().unwrap();
        let fill = fills.iter().rev().find(|(it, _)| Arc::ptr_eq(it, partner)).map_or(0, |it| it.1);
        Teller { home: HOME, epoch: self.epoch.load(Relaxed), fill }
    }

    /// Fills a partner as a member does: its old copies are dropped, then it is sent everything.
    pub fn fill_up(&self, home: &Engine, partner: &str) -> Result<()> {
        self.announce(&self.one(partner))?;
        home.outbox.fill_partner(partner, &|| false)
    }

    pub fn announce(&self, partner: &Arc<Engine>) -> Result<()> {
        let fill = {
            let mut fills = self.fills.lock().unwrap();
            let fill = fills.len() as u64 + 1;
            fills.push((partner.clone(), fill));
            fill
        };
        let by = Teller { home: HOME, epoch: self.epoch.load(Relaxed), fill };
        partner.copies.announce(by)
    }

    /// Replaces the only partner by its next process.
    pub fn restarted(&self, again: &Arc<Engine>) {
        let before = std::mem::replace(&mut *self.partners.lock().unwrap(), vec![again.clone()]);
        let fill = self.teller(&before[0]).fill;
        self.fills.lock().unwrap().push((again.clone(), fill));
    }

    /// Begins another process of the home, with the same partners.
    pub fn follow(&self) {
        self.epoch.fetch_add(1, Relaxed);
        self.fills.lock().unwrap().clear();
        self.cut_off.store(false, Relaxed);
    }

    pub fn cut(&self) {
        self.cut_off.store(true, Relaxed);
    }

    pub fn take_counts(&self) -> (u64, u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Relaxed);
        (take(&self.told), take(&self.words), take(&self.bytes))
    }
}

impl Partners for Way {
    fn joined(&self) -> u64 {
        self.filling.lock().unwrap().len() as u64
    }

    fn has_enough(&self) -> Result<()> {
        let is_short = self.is_short.load(Relaxed);
        let short = || Error::os(libc::EIO, "too few members keep copies");
        (!is_short).then_some(()).ok_or_else(short)
    }

    fn keep(&self, file: FileKey, joined: u64, words: &[u8], bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= 1 << 20 && words.len() <= 128 << 10, "in pieces");
        assert!(!self.bug.swap(false, Relaxed), "a bug, as this test wants it");
        if self.cut_off.load(Relaxed) {
            return Err(Error::os(libc::EIO, "this member is superseded"));
        }
        self.told.fetch_add(1, Relaxed);
        self.words.fetch_add(words.len() as u64, Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        let message = Message { file, words: words.to_vec(), bytes: bytes.to_vec() };
        self.sent.lock().unwrap().push(message);
        let partners = self.partners.lock().unwrap().clone();
        for partner in &partners {
            let by = self.teller(partner);
            partner.copies.keep(by, Told::Owes, 1, file, words, bytes)?;
        }
        let filling = self.filling.lock().unwrap().clone();
        for partner in filling.into_iter().take(joined as usize) {
            let by = self.teller(&partner);
            partner.copies.keep(by, Told::Beside, 1, file, words, bytes)?;
        }
        self.act();
        Ok(())
    }

    fn leave_slowest(&self) -> Result<()> {
        self.hurried.fetch_add(1, Relaxed);
        Ok(())
    }

    fn forget(&self, file: FileKey, words: &[u8]) -> Result<()> {
        self.keep(file, u64::MAX, words, &[])
    }

    fn fill(&self, partner: &str, file: FileKey, words: &[u8], bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= 1 << 20 && words.len() <= 128 << 10, "in pieces");
        let partner = self.one(partner);
        let by = self.teller(&partner);
        partner.copies.keep(by, Told::Owes, 1, file, words, bytes)?;
        self.act();
        Ok(())
    }

    fn mark(&self, partner: &str, words: &[u8]) -> Result<()> {
        let partner = self.one(partner);
        self.marks.lock().unwrap().push(words.to_vec());
        partner.copies.mark(self.teller(&partner), words)?;
        self.comes
            .lock()
            .unwrap()
            .take()
            .into_iter()
            .for_each(|it| self.filling.lock().unwrap().push(it));
        Ok(())
    }

    fn takes(&self, _file: FileKey) -> bool {
        !self.cut_off.load(Relaxed)
    }

    fn wants(&self) -> bool {
        self.wants.load(Relaxed)
    }
}

pub fn partner_on(media: &CrashMedia, store: MemStore, boot: &str) -> Result<Arc<Engine>> {
    start(Arc::new(media.clone()), Arc::new(store), boot, Config::default(), patient())
}

/// The state of everything but the home's tier at one moment.
struct Moment {
    at: u64,
    disk: Disk,
    tree: Tree,
    journal: Journal,
}

#[derive(Default, Debug)]
struct Done {
    moments: usize,
    images: usize,
    adopted: usize,
    adopted_bytes: u64,
    told: u64,
    lies: u64,
}

pub fn take_over(engine: &Arc<Engine>) -> std::result::Result<(usize, u64), String> {
    let (mut files, mut bytes) = (0, 0);
    for copy in engine.copies.list(HOME) {
        engine.ops.adopt(HOME, copy.file).map_err(|e| format!("adopting {copy:?}: {e}"))?;
        engine.ops.hold_taken(copy.file, &[]).map_err(|e| format!("holding {copy:?}: {e}"))?;
        (files, bytes) = (files + 1, bytes + copy.bytes);
    }
    match engine.copies.list(HOME).len() {
        0 => Ok((files, bytes)),
        left => Err(format!("{left} copies are left")),
    }
}

impl Moment {
    fn check(&self, rng: &mut Rng, done: &mut Done) -> std::result::Result<(), String> {
        let at = self.at;
        self.recover(BOOT, self.disk.process_crash_image(), done)
            .map_err(|e| format!("change {at}, the keeper's process died: {e}"))?;
        for image in self.disk.crash_images(rng, 1) {
            self.recover("boot-p2", image, done)
                .map_err(|e| format!("change {at}, the keeper lost power: {e}"))?;
        }
        Ok(())
    }

    fn recover(&self, boot: &str, disk: Disk, done: &mut Done) -> std::result::Result<(), String> {
        let (media, store) = (CrashMedia::on(disk), MemStore::on(self.tree.clone()));
        let engine = partner_on(&media, store.clone(), boot).map_err(|e| format!("start: {e}"))?;
        done.images += 1;
        let taken = take_over(&engine);
        let problems = engine.recovery().problems.clone();
        let result = taken.and_then(|(files, bytes)| {
            (done.adopted, done.adopted_bytes) = (done.adopted + files, done.adopted_bytes + bytes);
            compare(&self.journal, Crash::Power, &engine, &store)?;
            settle_all(&engine, &store)
        });
        let list = engine.ops.list(Path::new(""));
        abandon(engine);
        result.map_err(|e| format!("{e}; the tier holds {list:?} ({problems:?})"))
    }
}

/// Settles all files, once the former home is known to have stopped.
pub fn settle_all(engine: &Arc<Engine>, store: &MemStore) -> std::result::Result<(), String> {
    let keys: Vec<FileKey> = engine.files.known_below(Path::new(""));
    let is_conflict = |e: &Error| e.kind() == forebay_backing::Kind::Conflict;
    for key in keys {
        match engine.ops.settle_taken(key) {
            Err(e) if is_conflict(&e) => {}
            Err(e) => return Err(format!("settling: {e}")),
            Ok(()) if !engine.files.is_at_rest(key) => return Err("it does not rest".into()),
            Ok(()) => {}
        }
    }
    for (path, bytes) in store.snapshot().files() {
        let seen = read_all(engine, &path).map_err(|e| format!("reading: {e}"))?;
        if seen != bytes {
            return Err(format!("{} differs after it was settled", path.display()));
        }
    }
    Ok(())
}

fn run(
    seed: u64,
    lie: Option<Lie>,
    at: CopiesAt,
    done: &mut Done,
) -> std::result::Result<(), String> {
    // For half of the seeds files go ahead of their syncs.
    let ahead_from = if seed % 2 == 1 { AHEAD_FROM } else { Config::default().ahead_from };
    let mut work = Workload::with(seed, None, Config { ahead_from, ..Config::default() });
    let media = CrashMedia::default();
    if let Some(lie) = lie {
        media.set_lie(lie);
    }
    let keeper = partner_on(&media, work.store.clone(), BOOT).expect("a new tier");
    let way = Way::to(&[&keeper]);
    work.engine.files.begin_copies(way.clone(), at);
    way.fill_up(&work.engine, "p").expect("nothing is dirty yet");
    let moments = watch(&work, &media, seed);
    let worked = work.work();
    media.set_hook(None);
    work.media.set_hook(None);
    done.told += way.take_counts().0;
    done.lies += media.lies_told();
    // The home is dead: it acknowledges nothing more.
    way.cut();
    let (journal, store) = (work.journal.lock().unwrap().clone(), work.store.clone());
    abandon(work.engine.clone());
    worked?;
    let moments = std::mem::take(&mut *moments.lock().unwrap());
    done.moments += moments.len();
    let mut rng = Rng::new(seed ^ 0xc0b1);
    let checked = moments.iter().try_for_each(|moment| moment.check(&mut rng, done));
    // The partner has lived through all of it.
    let lived = checked.and_then(|()| {
        let store = MemStore::on(store.snapshot());
        take_over(&keeper)?;
        let _ = (&journal, &store);
        Ok(())
    });
    abandon(keeper);
    lived
}

fn watch(work: &Workload, media: &CrashMedia, seed: u64) -> Arc<Mutex<Vec<Moment>>> {
    let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let rng = Rng::new(seed ^ 0x3b1e);
    let hook = |mut rng: Rng, step: u64, theirs: Option<CrashMedia>| {
        let (out, store, journal) = (moments.clone(), work.store.clone(), work.journal.clone());
        let mut next = None;
        Box::new(move |at: u64, disk: &Disk| {
            if *next.get_or_insert(at + rng.below(step / 2)) != at {
                return;
            }
            next = Some(at + 1);
            let journal = journal.lock().unwrap();
            // Messages under way are not in the journal yet. The thread at that medium may wait for
            // the journal.
            let of_theirs = theirs.as_ref().map(CrashMedia::try_snapshot);
            let Some(disk) = of_theirs.unwrap_or_else(|| Some(disk.clone())) else { return };
            next = Some(at + 1 + rng.below(step));
            let moment = Moment { at, disk, tree: store.snapshot(), journal: journal.clone() };
            out.lock().unwrap().push(moment);
        })
    };
    let mut rng = rng;
    media.set_hook(Some(hook(rng.fork(), 110, None)));
    work.media.set_hook(Some(hook(rng.fork(), 260, Some(media.clone()))));
    moments
}

fn seeds(some: std::ops::Range<u64>) -> Vec<u64> {
    match std::env::var("FOREBAY_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => some.collect(),
    }
}

/// Goal: everything that a home acknowledged as synced is there after its death. Method: above.
#[test]
fn no_death_of_a_home_loses_what_was_synced() {
    let (mut done, seeds) = (Done::default(), seeds(0..8));
    let one = seeds.len() == 1;
    for seed in seeds {
        let at = if seed % 4 == 3 { CopiesAt::Write } else { CopiesAt::Sync };
        if let Err(e) = run(seed, None, at, &mut done) {
            panic!(
                "seed {seed}: {e}\nrepeat: FOREBAY_SEED={seed} cargo test -p forebay-engine no_death_of"
            );
        }
    }
    println!("{done:?}");
    if one {
        // The bounds below hold for all seeds together, not for each.
        return assert!(done.images > 0, "it died: {done:?}");
    }
    assert!(done.moments > 10 && done.images > 30, "it died: {done:?}");
    assert!(done.adopted > 20 && done.adopted_bytes > 0 && done.told > 20, "it mattered: {done:?}");
}

fn catches(lie: Lie) {
    let mut done = Done::default();
    let caught = (0..12).find_map(|seed| run(seed, Some(lie), CopiesAt::Sync, &mut done).err());
    assert!(done.lies > 0, "nothing was left out");
    let caught = caught.unwrap_or_else(|| panic!("{lie:?} was left out unnoticed: {done:?}"));
    println!("{lie:?}: {caught}");
}

#[test]
fn the_test_of_deaths_catches_a_missing_sync_of_the_copies_log() {
    catches(Lie::Copies);
}

#[test]
fn the_test_of_deaths_catches_a_missing_sync_of_a_copy() {
    catches(Lie::Shadow);
}

#[test]
fn the_test_of_deaths_catches_a_missing_sync_of_a_copys_name() {
    catches(Lie::Dir);
}
