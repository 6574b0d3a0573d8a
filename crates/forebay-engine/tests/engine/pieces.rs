//! A round in pieces, several of which are under way at once.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_backing::{Error, FileKey, Result};
use forebay_engine::{Config, CopiesAt, OpenFile, Partners};

use crate::copied::{Pair, pair_with, read};
use crate::copies::{Way, take_over};
use crate::media::CrashMedia;
use crate::rng::Rng;
use crate::start::within;

/// Four pieces and a half.
const LEN: usize = (4 << 20) + (512 << 10);

/// Called for each piece, from 0 on, before its partner has it.
type Before = dyn Fn(&Road, usize) -> Result<()> + Send + Sync;

/// A way on which pieces take time.
struct Road {
    way: Arc<Way>,
    before: Mutex<Arc<Before>>,
    begun: AtomicUsize,
    ended: AtomicUsize,
    /// The most pieces that were under way at once.
    most: AtomicUsize,
}

impl Road {
    fn under_way(&self) -> usize {
        self.begun.load(SeqCst) - self.ended.load(SeqCst)
    }

    fn set(&self, before: impl Fn(&Road, usize) -> Result<()> + Send + Sync + 'static) {
        *self.before.lock().unwrap() = Arc::new(before);
        for count in [&self.begun, &self.ended, &self.most] {
            count.store(0, SeqCst);
        }
    }
}

impl Partners for Road {
    fn keep(&self, file: FileKey, joined: u64, words: &[u8], bytes: &[u8]) -> Result<()> {
        let n = self.begun.fetch_add(1, SeqCst);
        self.most.fetch_max(self.under_way(), SeqCst);
        let before = self.before.lock().unwrap().clone();
        let kept = before(self, n).and_then(|()| self.way.keep(file, joined, words, bytes));
        self.ended.fetch_add(1, SeqCst);
        kept
    }

    fn has_enough(&self) -> Result<()> {
        self.way.has_enough()
    }

    fn joined(&self) -> u64 {
        self.way.joined()
    }

    fn forget(&self, file: FileKey, words: &[u8]) -> Result<()> {
        self.way.forget(file, words)
    }

    fn leave_slowest(&self) -> Result<()> {
        self.way.leave_slowest()
    }

    fn fill(&self, partner: &str, file: FileKey, words: &[u8], bytes: &[u8]) -> Result<()> {
        self.way.fill(partner, file, words, bytes)
    }

    fn mark(&self, partner: &str, words: &[u8]) -> Result<()> {
        self.way.mark(partner, words)
    }

    fn takes(&self, file: FileKey) -> bool {
        self.way.takes(file)
    }

    fn wants(&self) -> bool {
        self.way.wants()
    }
}

/// Makes a file that partners were not told of yet, and the way to the partner.
fn begun() -> (Pair, Arc<Road>, OpenFile) {
    // No byte goes ahead of the sync.
    let config = Config { ahead_from: u64::MAX, ..Config::default() };
    let pair = pair_with(&CrashMedia::default(), config);
    let [begun, ended, most] = [(); 3].map(|()| AtomicUsize::new(0));
    let before: Mutex<Arc<Before>> = Mutex::new(Arc::new(|_, _| Ok(())));
    let road = Arc::new(Road { way: pair.way.clone(), before, begun, ended, most });
    pair.home.files.begin_copies(road.clone(), CopiesAt::Sync);
    let mut rng = Rng::new(11);
    let bytes: Vec<u8> = (0..LEN / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
    let file = pair.make("f", &bytes);
    (pair, road, file)
}

fn is_with_the_partner(pair: &Pair) {
    pair.way.cut();
    take_over(&pair.keeper).unwrap();
    assert!(read(&pair.keeper, "f") == read(&pair.home, "f"));
}

/// The first piece comes after the two that follow it.
// S-3
#[test]
fn pieces_that_pass_each_other_are_one_round() {
    let (pair, road, file) = begun();
    road.set(|road, n| {
        if n == 0 {
            within("two others come first", || road.ended.load(SeqCst) == 2);
        }
        Ok(())
    });
    pair.home.io.sync(&file).unwrap();
    assert_eq!(road.begun.load(SeqCst), 5);
    assert!((2..=3).contains(&road.most.load(SeqCst)), "the two may follow each other");
    is_with_the_partner(&pair);
}

/// The last piece says what the whole is: no caller is told that all is there before it is.
// S-3
#[test]
fn the_last_piece_begins_when_all_others_have_come() {
    let (pair, road, file) = begun();
    road.set(|road, n| {
        match n {
            0..4 => std::thread::sleep(Duration::from_millis(20 * n as u64)),
            _ => assert_eq!(road.under_way(), 1),
        }
        Ok(())
    });
    pair.home.io.sync(&file).unwrap();
    assert_eq!(road.begun.load(SeqCst), 5);
    is_with_the_partner(&pair);
}

/// No piece of a failed round comes after it, and the next round brings everything again.
// S-3
#[test]
fn a_piece_that_fails_ends_its_round_and_the_pieces_beside_it() {
    for fails in 0..5 {
        let (pair, road, file) = begun();
        road.set(move |_, n| match n == fails {
            true => Err(Error::os(libc::EIO, "nobody could be struck off")),
            false => {
                std::thread::sleep(Duration::from_millis(10));
                Ok(())
            }
        });
        pair.home.io.sync(&file).unwrap_err();
        assert_eq!(road.under_way(), 0, "{fails}");
        assert!(road.begun.load(SeqCst) <= fails + 4, "no more are sent");
        assert!(pair.kept().is_empty(), "{fails}: half a round counts for nothing");
        road.set(|_, _| Ok(()));
        pair.way.take_counts();
        pair.home.io.sync(&file).unwrap();
        assert_eq!(pair.way.take_counts().2, LEN as u64, "{fails}");
        is_with_the_partner(&pair);
    }
}
