//! Changes for other members beside a store that hangs.

use std::sync::Condvar;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::JoinHandle;

use forebay_backing::wrap::{Call, Layer, Verb, Wrapped};
use forebay_engine::WritePolicy;

use super::patience::{asked, watched};
use super::*;
use crate::request::Shared;

const PAGE: usize = 4096;

const LIMIT: Duration = Duration::from_secs(1);

/// Holds up calls of one kind.
#[derive(Default)]
struct Hangs {
    state: Mutex<(Option<Verb>, usize)>,
    goes_on: Condvar,
}

impl Hangs {
    fn at(&self, verb: Verb) {
        *lock(&self.state) = (Some(verb), 0);
    }

    fn goes_on(&self) {
        lock(&self.state).0 = None;
        self.goes_on.notify_all();
    }

    fn has_come(&self) -> bool {
        lock(&self.state).1 > 0
    }
}

impl Layer for Hangs {
    const PASSES_FD: bool = false;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.0 == Some(call.verb) {
            state.1 += 1;
            drop(self.goes_on.wait_while(state, |(verb, _)| *verb == Some(call.verb)));
        }
        Ok(())
    }
}

/// A mount that is the home of `f`, a page of `o`, which a program here and one elsewhere have open.
struct Home {
    bed: Bed,
    shared: Arc<Shared>,
    hangs: Arc<Hangs>,
    near: u64,
    guest: u64,
    last: u64,
}

impl Home {
    fn new(policy: WritePolicy) -> Home {
        let bed = Bed::new(0);
        std::fs::write(bed.root.join("backing/f"), [b'o'; PAGE]).expect("it is writable");
        let hangs = Arc::new(Hangs::default());
        let store = Wrapped::new(Bed::store(&bed.root), hangs.clone());
        let tier = bed.root.join("a");
        std::fs::create_dir_all(&tier).expect("the directory is writable");
        let media = Arc::new(DirMedia::open(&tier).expect("it is there"));
        let vfs = Bed::vfs_between(media, store, Passthrough::Off);
        let now = vfs.engine.files.tunables();
        let tunables = Tunables { backing_timeout: LIMIT, policy, ..now };
        vfs.engine.ops.set_tunables(tunables).expect("it is valid");
        vfs.set_cluster(Box::new(Played { net: bed.net.clone(), name: "a".into() }));
        let Ok(Looked::There(entry)) = vfs.lookup(ROOT, OsStr::new("f"), Origin::default()) else {
            panic!("it is there")
        };
        let near =
            vfs.open(entry.id, libc::O_RDWR.into(), Origin::default()).expect("it is A's").handle;
        let open =
            Question::Open { file: entry.attr.key, path: "f".into(), write: true, program: None };
        let Answer::Opened { handle: guest, .. } = vfs.answer(("b", 1), open, b"", &mut Vec::new())
        else {
            panic!("A serves it")
        };
        let shared = Arc::new(Shared::new(vfs, 1, Duration::ZERO));
        Home { bed, shared, hangs, near, guest, last: 0 }
    }

    /// A program elsewhere writes.
    fn writes_there(&mut self, text: &'static str) -> JoinHandle<Answer> {
        self.last += 1;
        let (shared, handle, number) = (self.shared.clone(), self.guest, self.last);
        std::thread::spawn(move || {
            let write = Question::Write { handle, number, offset: 100, sync: false };
            shared.vfs.answer(("b", 1), write, text.as_bytes(), &mut Vec::new())
        })
    }

    /// The answer, which has to come while the watchdog looks and the store still hangs.
    fn answer(&self, asks: JoinHandle<Answer>) -> Answer {
        eventually("it is answered", || {
            self.shared.expire();
            asks.is_finished()
        });
        assert!(lock(&self.hangs.state).0.is_some(), "the store hangs still");
        asks.join().expect("no panic")
    }

    fn page(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        let read = self.shared.vfs.read_by(Reader::Cache, self.near, 0, &mut page);
        let len = read.expect("the store is back").bytes(&page).len();
        page.truncate(len);
        page
    }

    fn is_back(&self, told: &Receiver<i32>) {
        self.hangs.goes_on();
        eventually("whatever hung has ended", || {
            told.try_recv() == Err(TryRecvError::Disconnected)
                && !self.shared.vfs.engine.health.is_called()
        });
        self.shared.vfs.engine.health.came_back();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.hangs.goes_on();
        self.shared.settle();
        self.shared.vfs.engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
        let _ = &self.bed;
    }
}

fn old_but(text: &str) -> Vec<u8> {
    let mut page = vec![b'o'; PAGE];
    page[100..100 + text.len()].copy_from_slice(text.as_bytes());
    page
}

/// The kernel's read was answered with an error: bytes that the store returns at last get into no page.
// S-10 S-25
#[test]
fn a_change_for_another_member_waits_for_no_read_that_was_answered_without_the_store() {
    let mut home = Home::new(WritePolicy::WriteBack);
    home.hangs.at(Verb::ReadAt);
    let near = home.near;
    let reads = asked(&home.shared, move |vfs| {
        let _ = vfs.read_by(Reader::Cache, near, 0, &mut [0; PAGE]);
    });
    eventually("the read hangs", || home.hangs.has_come());
    std::thread::sleep(LIMIT / 2);
    let writes = home.writes_there("FAR");
    std::thread::sleep(LIMIT / 10);
    assert!(!writes.is_finished(), "the kernel may be given these bytes still");
    assert_eq!(watched(&home.shared, &reads), libc::ETIMEDOUT);
    let answer = home.answer(writes);
    assert!(matches!(answer, Answer::Done), "{answer:?}");
    home.is_back(&reads);
    assert_eq!(home.page(), old_but("FAR"));
}

/// A page that is written around the tier may come over a change made meanwhile: the change is given up instead.
// S-10 S-25
#[test]
fn a_change_for_another_member_waits_for_a_page_no_longer_than_a_program_would() {
    let mut home = Home::new(WritePolicy::WriteAround);
    home.hangs.at(Verb::WriteAt);
    let near = home.near;
    let comes = asked(&home.shared, move |vfs| {
        let manner = Manner { is_cached: true, ..Manner::default() };
        let _ = vfs.write(near, 0, &[b'o'; PAGE], manner);
    });
    eventually("the page hangs", || home.hangs.has_come());
    let writes = home.writes_there("FAR");
    let answer = home.answer(writes);
    assert!(matches!(answer, Answer::Refused(Refusal::Errno(libc::ETIMEDOUT, _))), "{answer:?}");
    assert_eq!(watched(&home.shared, &comes), libc::ETIMEDOUT);
    home.is_back(&comes);
    assert_eq!(home.page(), old_but(""));
    let again = home.writes_there("FAR").join().expect("no panic");
    assert!(matches!(again, Answer::Done), "{again:?}");
    assert_eq!(home.page(), old_but("FAR"));
}
