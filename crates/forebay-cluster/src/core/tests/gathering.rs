//! The number of commits that new files cost.

use forebay_registry::{Change, Commit};

use super::*;

/// Makes a file each 500 us; each commit takes a millisecond, and its claims are seen a moment later. Records how
/// many files each commit claimed.
struct Burst {
    core: Core,
    now: Duration,
    revision: u64,
    under_way: Vec<(Duration, u64, Commit)>,
    sizes: Vec<usize>,
    answered: Vec<u64>,
    /// The registry refuses, for a reason that the watch has not told yet.
    refuses: bool,
}

const STEP: Duration = Duration::from_micros(500);

impl Burst {
    fn begin() -> Burst {
        let core = core(vec![entry("creates/1.1/a", vec![], 3)], Rules::default());
        let (under_way, sizes, answered) = (vec![], vec![], vec![]);
        Burst { core, now: STEP, revision: 10, under_way, sizes, answered, refuses: false }
    }

    fn feed(&mut self, input: Input) {
        for effect in self.core.handle(self.now, input) {
            match effect {
                Effect::Commit(ticket, commit) => {
                    self.sizes.push(commit.changes.len());
                    self.under_way.push((self.now + STEP * 2, ticket, commit));
                }
                Effect::Answer(ticket, Way::Here) => self.answered.push(ticket),
                _ => {}
            }
        }
    }

    fn go_on(&mut self) {
        self.now += STEP;
        let is_over = |(until, ..): &(Duration, u64, Commit)| *until <= self.now;
        let Some(at) = self.under_way.iter().position(is_over) else { return };
        let (_, ticket, commit) = self.under_way.remove(at);
        if self.refuses {
            let refused = Outcome::Refused(Revision(self.revision));
            return self.feed(Input::Committed(ticket, Ok(refused)));
        }
        self.revision += 1;
        let revision = Revision(self.revision);
        self.feed(Input::Committed(ticket, Ok(Outcome::Committed(revision))));
        // The watch is behind: more files are made between the answer and the event.
        let events = commit.changes.into_iter().map(|change| match change {
            Change::Put { key, value, .. } => {
                Event::Put(Entry { key, value, revision, lease: None })
            }
            other => panic!("nothing is given back here: {other:?}"),
        });
        let events = events.collect();
        self.feed(Input::Seen(revision, events));
    }

    fn create(&mut self, ino: u64) -> FileKey {
        let file = FileKey { ino, generation: 1 };
        self.feed(Input::Created { file, dir: DIR, path: format!("d/{ino}").into() });
        file
    }

    fn is_claimed(&self, file: FileKey) -> bool {
        self.core.mirror.claims.contains_key(&file)
    }

    /// Whether the file's claim comes before the next tick.
    fn is_claimed_soon(&mut self, file: FileKey) -> bool {
        (0..20).for_each(|_| self.go_on());
        self.is_claimed(file)
    }
}

#[test]
fn claims_of_new_files_go_together() {
    let mut burst = Burst::begin();
    for ino in 100..700 {
        burst.create(ino);
        burst.go_on();
    }
    burst.feed(Input::Tick);
    (0..20).for_each(|_| burst.go_on());
    let all = (100..700).map(|ino| FileKey { ino, generation: 1 });
    assert!(all.into_iter().all(|file| burst.is_claimed(file)));
    assert_eq!(burst.sizes.iter().sum::<usize>(), 600, "each is claimed once: {:?}", burst.sizes);
    assert!(burst.sizes.len() <= 20, "600 files in 300 ms: {:?}", burst.sizes);
    assert_eq!(burst.sizes[0], 1, "the first one waits for nothing");
}

#[test]
fn the_claim_of_a_new_file_that_is_waited_for_waits_for_no_other_files() {
    let mut burst = Burst::begin();
    burst.create(100);
    burst.go_on();
    let file = burst.create(101);
    assert!(!burst.is_claimed_soon(file), "it waits for others");
    let rename = Ask::Change { files: vec![file], dirs: vec![DIR], below: None };
    burst.feed(Input::Ask(1, rename));
    assert!(burst.is_claimed_soon(file));
    // The next one is likely to be waited for, too.
    let next = burst.create(102);
    assert!(burst.is_claimed_soon(next));
    burst.now += Duration::from_secs(2);
    burst.create(103);
    let later = burst.create(104);
    assert!(!burst.is_claimed_soon(later));
    burst.feed(Input::Hurry);
    assert!(burst.is_claimed_soon(later));
}

/// Writes that are acknowledged to a program of another member are owed under the claim.
#[test]
fn a_program_elsewhere_is_served_once_the_claim_of_a_new_file_is_there() {
    let mut burst = Burst::begin();
    burst.create(100);
    burst.go_on();
    let file = burst.create(101);
    let open = |how| Ask::Open { file, dir: DIR, path: "d/101".into(), how };
    burst.feed(Input::Ask(1, open(Access::Write)));
    burst.feed(Input::Ask(2, open(Access::Serve)));
    assert_eq!((burst.answered.as_slice(), burst.is_claimed(file)), ([1].as_slice(), false));
    assert!(burst.is_claimed_soon(file));
    assert_eq!(burst.answered, [1, 2]);
    burst.feed(Input::Ask(3, open(Access::Serve)));
    assert_eq!(burst.answered, [1, 2, 3]);
}

#[test]
fn a_claim_that_is_waited_for_is_next_after_those_on_their_way() {
    let mut burst = Burst::begin();
    burst.create(100);
    let file = burst.create(101);
    burst.feed(Input::Ask(1, Ask::Change { files: vec![file], dirs: vec![DIR], below: None }));
    assert_eq!(burst.sizes.len(), 1, "one commit at a time");
    assert!(burst.is_claimed_soon(file));
}

#[test]
fn what_is_refused_is_not_sent_again_and_again() {
    let mut burst = Burst::begin();
    burst.refuses = true;
    let file = burst.create(100);
    for _ in 0..20 {
        burst.feed(Input::Hurry);
        burst.go_on();
    }
    assert!(burst.sizes.len() <= 2, "in 10 ms: {:?}", burst.sizes);
    burst.refuses = false;
    (0..60).for_each(|_| burst.go_on());
    burst.feed(Input::Tick);
    assert!(burst.is_claimed_soon(file));
}
