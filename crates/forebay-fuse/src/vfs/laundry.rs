//! Changes for other members, beside the pages that the kernel here has of the file.
//!
//! The kernel writes a page that a program has changed through a mapping as a whole, with old bytes beside the
//! changed ones. If it read the page before a change for another member, and writes it afterwards, the page would
//! undo that change. So pages are read and written before such a change, or after it, and not meanwhile. When a page
//! is written after a change, the changed bytes are left out, until the kernel has dropped its pages; but not bytes
//! that the kernel has read since, or has from a program here. The change is never made a second time: other members
//! may have seen it and written over it since.
//!
//! A thread waits as long as its own request is waited for. It does not wait for a read that was answered without its
//! bytes, because the store hangs: the bytes of that read get into no page.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_backing::{FileKey, Result};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use forebay_engine::{Requester, requester};

/// How often a waiting thread looks whether its own request and the reads before it are still waited for.
const LOOK: Duration = Duration::from_millis(50);

/// The number of locks that the files share: each read of a page takes one.
const TUBS: usize = 16;

/// The changes and the pages of all files.
#[derive(Default)]
pub struct Laundry([Tub; TUBS]);

/// The changes and the pages of some files.
struct Tub {
    state: Mutex<State>,
    turn: Condvar,
}

#[derive(Default)]
struct State {
    changes: Vec<Change>,
    passing: Vec<Pages>,
    last: u64,
}

impl State {
    fn span(&mut self, key: FileKey, (offset, len): (u64, u64)) -> Span {
        self.last += 1;
        Span { number: self.last, key, start: offset, end: offset.saturating_add(len) }
    }

    /// The changes of these bytes that were made. A change that came after these pages waits, and is not made yet.
    fn over<'a>(&'a mut self, span: &'a Span) -> impl Iterator<Item = &'a mut Change> {
        self.changes.iter_mut().filter(|change| change.is_made() && change.of.meets(span))
    }

    /// Notes that the kernel's bytes are no older than the changes that were made of them. Where the kernel does not
    /// know the file's new end it may still fill the bytes behind the old one with zeros: they stay old.
    fn renew(&mut self, span: &Span) {
        let known = self.over(span).filter(|change| change.stage == Stage::Made);
        known.for_each(|change| change.fresh.push((span.start, span.end)));
    }

    /// Whether an earlier change of these bytes is still being made.
    fn is_changing(&self, span: &Span) -> bool {
        let mut before = self.changes.iter().filter(|change| change.of.number < span.number);
        before.any(|change| !change.is_made() && change.of.meets(span))
    }
}

#[derive(Debug, Clone, Copy)]
struct Span {
    number: u64,
    key: FileKey,
    start: u64,
    end: u64,
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        self.key == other.key && self.start < other.end && other.start < self.end
    }
}

/// Pages that the kernel is reading or writing.
struct Pages {
    of: Span,
    /// The read that gets the pages. Once it was answered without them, they get nowhere.
    reader: Option<Weak<dyn Requester>>,
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    BeingMade,
    /// The change is made and the file is longer: the kernel does not know the new end yet.
    Longer,
    /// The change is made, and the kernel knows where the file ends.
    Made,
}

struct Change {
    of: Span,
    stage: Stage,
    /// The parts of which the kernel has bytes from after the change.
    fresh: Vec<(u64, u64)>,
}

impl Change {
    fn is_made(&self) -> bool {
        self.stage != Stage::BeingMade
    }
}

/// A change that is being made: no page of these bytes is read or written.
pub struct Changing<'a>(Changed<'a>);

/// A change that was made. The kernel may have older bytes until it has dropped its pages.
pub struct Changed<'a> {
    tub: &'a Tub,
    number: u64,
}

/// Pages that the kernel is reading or writing: changes of them for other members wait.
pub struct Passing<'a> {
    tub: &'a Tub,
    number: u64,
}

impl Default for Tub {
    fn default() -> Tub {
        Tub { state: Mutex::new(Rank::Laundry, State::default()), turn: Condvar::new() }
    }
}

impl Tub {
    #[track_caller]
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits while it is `busy`.
    ///
    /// # Errors
    ///
    /// Those of [`requester::check`].
    #[track_caller]
    fn wait_while(
        &self,
        mut busy: impl FnMut(&mut State) -> bool,
    ) -> Result<MutexGuard<'_, State>> {
        loop {
            let (mut state, _) = self.turn.wait_timeout_while(self.state(), LOOK, &mut busy);
            if !busy(&mut state) {
                return Ok(state);
            }
            drop(state);
            requester::check()?;
            self.leave_answered();
        }
    }

    /// Drops the pages of reads that were answered without them.
    fn leave_answered(&self) {
        let reader = |pages: &Pages| Some((pages.of.number, pages.reader.clone()?));
        let mut readers: Vec<_> = self.state().passing.iter().filter_map(reader).collect();
        // Not under the lock: a thread that answers a request holds the lock of that request.
        readers.retain(|(_, reader)| reader.upgrade().is_none_or(|reader| reader.is_gone()));
        let is_left = |pages: &Pages| readers.iter().all(|(number, _)| *number != pages.of.number);
        self.state().passing.retain(is_left);
    }

    /// Enters pages of these bytes, once no earlier change of them is being made.
    fn pass(
        &self,
        key: FileKey,
        range: (u64, u64),
        reader: Option<Weak<dyn Requester>>,
    ) -> Result<(Passing<'_>, Span, MutexGuard<'_, State>)> {
        let mut state = self.state();
        let of = state.span(key, range);
        state.passing.push(Pages { of, reader });
        drop(state);
        let passing = Passing { tub: self, number: of.number };
        let state = self.wait_while(|state| state.is_changing(&of))?;
        Ok((passing, of, state))
    }
}

impl Laundry {
    fn tub(&self, key: FileKey) -> &Tub {
        &self.0[key.ino as usize % TUBS]
    }

    /// To be called before bytes are changed for another member. Waits for pages of them that are under way.
    ///
    /// # Errors
    ///
    /// If nobody waits for the request any more: the change must not be made.
    pub fn change(&self, key: FileKey, range: (u64, u64)) -> Result<Changing<'_>> {
        let tub = self.tub(key);
        let mut state = tub.state();
        let of = state.span(key, range);
        state.changes.push(Change { of, stage: Stage::BeingMade, fresh: Vec::new() });
        drop(state);
        let changing = Changing(Changed { tub, number: of.number });
        let busy = |state: &mut State| {
            let mut before = state.passing.iter().filter(|pages| pages.of.number < of.number);
            before.any(|pages| pages.of.meets(&of))
        };
        drop(tub.wait_while(busy)?);
        Ok(changing)
    }

    /// To be called before bytes of a program are written that the kernel has in its pages, too.
    ///
    /// # Errors
    ///
    /// If nobody waits for the request any more: the bytes must not be written.
    pub fn renews(&self, key: FileKey, range: (u64, u64)) -> Result<Passing<'_>> {
        let (passing, of, mut state) = self.tub(key).pass(key, range, None)?;
        state.renew(&of);
        Ok(passing)
    }

    /// To be called before the kernel is given these bytes for its pages.
    ///
    /// # Errors
    ///
    /// If the read was answered without them.
    pub fn gives(&self, key: FileKey, range: (u64, u64)) -> Result<Passing<'_>> {
        let reader = requester::now().map(|reader| Arc::downgrade(&reader));
        let (passing, of, mut state) = self.tub(key).pass(key, range, reader)?;
        state.renew(&of);
        Ok(passing)
    }

    /// As [`Laundry::gives`], for a caller that may not wait. `None` while an earlier change is being made.
    pub fn gives_now(&self, key: FileKey, range: (u64, u64)) -> Option<Passing<'_>> {
        let tub = self.tub(key);
        let mut state = tub.state();
        let of = state.span(key, range);
        if state.is_changing(&of) {
            return None;
        }
        state.renew(&of);
        state.passing.push(Pages { of, reader: None });
        Some(Passing { tub, number: of.number })
    }

    /// To be called before pages of the kernel are written. Returns the parts of them that are to be written.
    ///
    /// # Errors
    ///
    /// If nobody waits for the request any more: nothing must be written.
    pub fn comes(&self, key: FileKey, range: (u64, u64)) -> Result<(Passing<'_>, Vec<(u64, u64)>)> {
        let (passing, of, mut state) = self.tub(key).pass(key, range, None)?;
        let mut parts = vec![(of.start, of.end)];
        for change in state.over(&of) {
            let mut old = vec![(change.of.start, change.of.end)];
            change.fresh.iter().for_each(|fresh| old = without(&old, *fresh));
            old.into_iter().for_each(|old| parts = without(&parts, old));
        }
        Ok((passing, parts))
    }
}

/// The parts without a range.
fn without(parts: &[(u64, u64)], (start, end): (u64, u64)) -> Vec<(u64, u64)> {
    let left = |(from, to): &(u64, u64)| [(*from, start.min(*to)), (end.max(*from), *to)];
    parts.iter().flat_map(left).filter(|(from, to)| from < to).collect()
}

impl<'a> Changing<'a> {
    /// Notes that the change is made, and which bytes it has changed.
    pub fn made(self, range: (u64, u64)) -> Changed<'a> {
        self.made_as(range, Stage::Made)
    }

    /// As [`Changing::made`], for a change that has made the file longer: the kernel is still to be told the new end.
    pub fn made_longer(self, range: (u64, u64)) -> Changed<'a> {
        self.made_as(range, Stage::Longer)
    }

    fn made_as(self, (offset, len): (u64, u64), stage: Stage) -> Changed<'a> {
        let Changing(changed) = self;
        let mut state = changed.tub.state();
        let number = changed.number;
        let found = state.changes.iter_mut().find(|change| change.of.number == number);
        let change = found.expect("there until it is dropped");
        (change.of.start, change.of.end) = (offset, offset.saturating_add(len));
        change.stage = stage;
        drop(state);
        changed.tub.turn.notify_all();
        changed
    }
}

impl Changed<'_> {
    /// Notes that the kernel was told where the file ends.
    pub fn end_is_known(&self) {
        let mut state = self.tub.state();
        let own = state.changes.iter_mut().filter(|change| change.of.number == self.number);
        own.for_each(|change| change.stage = Stage::Made);
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.tub.state().changes.retain(|change| change.of.number != self.number);
        self.tub.turn.notify_all();
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        let mut state = self.tub.state();
        state.passing.retain(|pages| pages.of.number != self.number);
        let is_waited_for = !state.changes.is_empty();
        drop(state);
        if is_waited_for {
            self.tub.turn.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    const KEY: FileKey = FileKey { ino: 7, generation: 1 };
    const PAGE: (u64, u64) = (0, 4096);
    const WAITED_FOR: &str = "nobody was answered";

    fn parts(laundry: &Laundry) -> Vec<(u64, u64)> {
        laundry.comes(KEY, PAGE).expect(WAITED_FOR).1
    }

    #[test]
    fn what_was_changed_is_left_out_of_older_pages() {
        let laundry = Laundry::default();
        let changed = laundry.change(KEY, (100, 50)).expect(WAITED_FOR).made((100, 50));
        assert_eq!(parts(&laundry), [(0, 100), (150, 4096)]);
        let other = laundry.change(KEY, (4000, u64::MAX)).expect(WAITED_FOR).made((4000, u64::MAX));
        assert_eq!(parts(&laundry), [(0, 100), (150, 4000)]);
        let of_another = FileKey { ino: 8, ..KEY };
        assert_eq!(laundry.comes(of_another, PAGE).expect(WAITED_FOR).1, [(0, 4096)]);
        drop((changed, other));
        assert_eq!(parts(&laundry), [(0, 4096)], "the kernel has dropped them");
    }

    /// The kernel zeroes what it has read behind the end that it knows.
    #[test]
    fn what_the_kernel_has_behind_its_end_is_old_until_it_is_told_of_the_new_one() {
        let laundry = Laundry::default();
        let changed = laundry.change(KEY, (100, 50)).expect(WAITED_FOR).made_longer((100, 50));
        drop(laundry.gives(KEY, PAGE).expect(WAITED_FOR));
        assert_eq!(parts(&laundry), [(0, 100), (150, 4096)]);
        changed.end_is_known();
        assert_eq!(parts(&laundry), [(0, 100), (150, 4096)], "it was read before");
        drop(laundry.gives(KEY, PAGE).expect(WAITED_FOR));
        assert_eq!(parts(&laundry), [(0, 4096)]);
    }

    #[test]
    fn what_the_kernel_has_since_counts() {
        let laundry = Laundry::default();
        let _changed = laundry.change(KEY, (100, 50)).expect(WAITED_FOR).made((100, 50));
        drop(laundry.renews(KEY, (120, 10)).expect(WAITED_FOR));
        assert_eq!(parts(&laundry), [(0, 100), (120, 130), (150, 4096)]);
        drop(laundry.gives_now(KEY, PAGE).expect("nothing is being changed"));
        assert_eq!(parts(&laundry), [(0, 4096)]);
        let _later = laundry.change(KEY, (0, 10)).expect(WAITED_FOR).made((0, 10));
        assert_eq!(parts(&laundry), [(10, 4096)], "it was read before that");
    }

    #[test]
    fn a_change_and_pages_wait_for_each_other() {
        let (laundry, is_made) = (Laundry::default(), AtomicBool::new(false));
        let reads = laundry.renews(KEY, PAGE).expect(WAITED_FOR);
        thread::scope(|scope| {
            let changes = scope.spawn(|| {
                let changing = laundry.change(KEY, (100, 50)).expect(WAITED_FOR);
                is_made.store(true, SeqCst);
                changing.made((100, 50))
            });
            while laundry.tub(KEY).state().changes.is_empty() {
                thread::yield_now();
            }
            assert!(laundry.gives_now(KEY, PAGE).is_none(), "a change waits already");
            assert!(laundry.gives_now(KEY, (200, 50)).is_some(), "of other bytes");
            let comes = scope.spawn(|| {
                let (_passing, parts) = laundry.comes(KEY, PAGE).expect(WAITED_FOR);
                assert!(is_made.load(SeqCst), "not before the change that waits");
                parts
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!is_made.load(SeqCst), "what is under way comes first");
            drop(reads);
            let _changed = changes.join().expect("no panic");
            comes.join().expect("no panic");
        });
    }

    /// A file that shares the lock of [`KEY`], and one that does not.
    const OTHERS: [FileKey; 2] =
        [FileKey { ino: 7 + TUBS as u64, ..KEY }, FileKey { ino: 8, ..KEY }];

    /// Fails if the work waits for something that does not end.
    fn in_time<T: Send + 'static>(
        laundry: &Arc<Laundry>,
        work: impl FnOnce(&Laundry) -> T + Send + 'static,
    ) -> T {
        let (does, (done, end)) = (laundry.clone(), channel());
        thread::spawn(move || done.send(work(&does)));
        end.recv_timeout(Duration::from_secs(20)).expect("it waits for nobody")
    }

    /// A change of each other file, and pages of the same bytes that are read and written.
    fn others_pass(laundry: &Arc<Laundry>) {
        for other in OTHERS {
            let parts = in_time(laundry, move |laundry| {
                drop(laundry.renews(other, PAGE).expect(WAITED_FOR));
                drop(laundry.gives(other, PAGE).expect(WAITED_FOR));
                let changed = laundry.change(other, (100, 50)).expect(WAITED_FOR).made((100, 50));
                let parts = laundry.comes(other, PAGE).expect(WAITED_FOR).1;
                assert!(laundry.gives_now(other, PAGE).is_some());
                drop(changed);
                parts
            });
            assert_eq!(parts, [(0, 100), (150, 4096)]);
        }
    }

    #[test]
    fn no_file_waits_for_changes_and_pages_of_another() {
        let laundry = Arc::new(Laundry::default());
        let passing = laundry.gives(KEY, PAGE).expect(WAITED_FOR);
        thread::scope(|scope| {
            let change = scope.spawn(|| laundry.change(KEY, (100, 50)).expect(WAITED_FOR));
            while laundry.tub(KEY).state().changes.is_empty() {
                thread::yield_now();
            }
            others_pass(&laundry);
            assert!(!change.is_finished(), "it waits for the page");
            drop(passing);
            let changing = change.join().expect("no panic");
            let page = scope.spawn(|| laundry.comes(KEY, PAGE).expect(WAITED_FOR).1);
            others_pass(&laundry);
            assert!(!page.is_finished(), "it waits for the change");
            let _changed = changing.made((100, 50));
            assert_eq!(page.join().expect("no panic"), [(0, 100), (150, 4096)]);
        });
    }

    #[test]
    fn files_of_two_locks_do_not_share_one() {
        let laundry = Arc::new(Laundry::default());
        let [_, other] = OTHERS;
        let _locked = laundry.tub(KEY).state();
        in_time(&laundry, move |laundry| drop(laundry.gives(other, PAGE).expect(WAITED_FOR)));
    }

    /// Many threads, on files that share a lock and one that does not: no page of bytes that are being changed is
    /// on its way, and no thread waits for ever.
    #[test]
    fn pages_come_and_go_before_a_change_or_after_it() {
        #[derive(Default)]
        struct Seen {
            pages: AtomicU64,
            is_changing: AtomicBool,
            met: AtomicU64,
        }
        let laundry = Arc::new(Laundry::default());
        let seen: Arc<[Seen; 3]> = Arc::default();
        let files = [KEY, OTHERS[0], OTHERS[1]];
        let threads: Vec<_> = (0..4_usize)
            .map(|at| {
                let (laundry, seen) = (laundry.clone(), seen.clone());
                thread::spawn(move || {
                    for turn in 0..400 {
                        let (key, seen) = (files[(turn + at) % 3], &seen[(turn + at) % 3]);
                        if at == turn % 4 {
                            let changing = laundry.change(key, (100, 50)).expect(WAITED_FOR);
                            seen.is_changing.store(true, SeqCst);
                            thread::yield_now();
                            assert_eq!(seen.pages.load(SeqCst), 0, "pages are on their way");
                            seen.is_changing.store(false, SeqCst);
                            drop(changing.made((100, 50)));
                            continue;
                        }
                        let pages = match turn % 2 {
                            0 => laundry.gives(key, PAGE).expect(WAITED_FOR),
                            _ => laundry.comes(key, PAGE).expect(WAITED_FOR).0,
                        };
                        seen.pages.fetch_add(1, SeqCst);
                        thread::yield_now();
                        assert!(!seen.is_changing.load(SeqCst), "they are being changed");
                        seen.pages.fetch_sub(1, SeqCst);
                        drop(pages);
                        seen.met.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        let began = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            assert!(began.elapsed() < Duration::from_secs(60), "somebody waits for ever");
            thread::sleep(Duration::from_millis(5));
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(seen.iter().all(|seen| seen.met.load(SeqCst) > 0));
    }

    /// Nobody knows which bytes a failed change has changed: none is left out.
    #[test]
    fn a_change_that_failed_keeps_no_page_away() {
        let laundry = Laundry::default();
        drop(laundry.change(KEY, (100, 50)).expect(WAITED_FOR));
        assert_eq!(parts(&laundry), [(0, 4096)]);
    }
}
