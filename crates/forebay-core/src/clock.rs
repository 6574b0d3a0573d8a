//! Clocks that tell whether a file has moved since a look at it: for all code that releases a file's
//! lock between a look and the action that relies on it.
//!
//! All files share one count of moments, so a caller can take a look before it knows which file it asks
//! the store about.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::ranges::{Ranges, State};

/// The moment of the last event of any file.
static NOW: AtomicU64 = AtomicU64::new(0);

fn tick() -> u64 {
    NOW.fetch_add(1, SeqCst) + 1
}

/// The parts of a file that may have moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The known state of the backing file has followed a change through the mount (names, attributes,
    /// or a flush): an earlier look at the backing file proves nothing then.
    Base,
    /// As `Base`, or such a change was, or is, under way: the backing file differs from its known state
    /// because of the mount.
    Home,
    /// The size was changed: an earlier sync says nothing about later bytes.
    Size,
    /// A time was set through us: what a flush has told the store since before it is out of date.
    Time,
    /// Bytes in the tier may have become others: they were written, or cut off.
    Content,
    /// Bytes of `[start, end)` were thrown away, or changed around the tier.
    Bytes(u64, u64),
}

/// The moments of the last events of one file.
#[derive(Debug)]
pub struct Clock {
    base: u64,
    size: u64,
    time: u64,
    content: u64,
    bytes: u64,
    under_way: u16,
    history: History,
}

/// The moment of a look at a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    at: u64,
    under_way: bool,
    history: History,
}

/// The past of a file since it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct History {
    /// A change of names or attributes was asked for, and may have failed.
    asked: bool,
    /// The backing file was found as it is known, or its known state has followed a change of this daemon.
    proven: bool,
}

impl Look {
    /// A look by a caller that does not know yet which file it looks at.
    pub fn now() -> Look {
        Look { at: NOW.load(SeqCst), ..Look::default() }
    }

    /// Whether no change of names or attributes was under way.
    pub fn is_quiet(self) -> bool {
        !self.under_way
    }

    /// Whether the known state of the backing file was proven since the file is known. Until then an earlier
    /// daemon may have changed the backing file as it died.
    pub fn is_proven(self) -> bool {
        self.history.proven
    }

    /// Whether no change through the mount was even asked for.
    pub fn is_untouched(self) -> bool {
        !self.history.asked
    }
}

impl Default for Clock {
    /// The clock of a file that is known from now on.
    fn default() -> Clock {
        let now = tick();
        let (under_way, history) = (0, History::default());
        Clock { base: now, size: 0, time: 0, content: now, bytes: 0, under_way, history }
    }
}

impl Clock {
    pub fn look(&self) -> Look {
        Look { under_way: self.is_under_way(), history: self.history, ..Look::now() }
    }

    /// Whether `what` moved since the look; `lately` are the bytes that were discarded last.
    pub fn changed(&self, since: Look, what: What, lately: Option<&Gone>) -> bool {
        match what {
            What::Base => self.base > since.at,
            What::Home => self.base > since.at || self.is_under_way(),
            What::Size => self.size > since.at,
            What::Time => self.time > since.at,
            What::Content => self.content > since.at,
            What::Bytes(start, end) => {
                let is_hit = |&(a, b): &(u64, u64)| a < end && start < b;
                self.bytes > since.at && lately.is_none_or(|lately| lately.any_since(since, is_hit))
            }
        }
    }

    /// Changes of names or attributes are in progress.
    pub fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    pub fn begin_change(&mut self) {
        self.under_way += 1;
    }

    pub fn end_change(&mut self) {
        self.under_way = self.under_way.checked_sub(1).expect("a change ends once");
        self.note_asked();
    }

    /// Notes that a change of names or attributes is, or was, asked for: it may have failed.
    pub fn note_asked(&mut self) {
        (self.base, self.history.asked) = (tick(), true);
    }

    /// Notes that the known state of the backing file was brought up to date.
    pub fn note_base(&mut self) {
        (self.base, self.history) = (tick(), History { asked: true, proven: true });
    }

    /// Notes that the backing file was found in its known state.
    pub fn note_found_as_known(&mut self) {
        self.history.proven = true;
    }

    pub fn note_size(&mut self) {
        self.size = tick();
    }

    pub fn note_time(&mut self) {
        self.time = tick();
    }

    pub fn note_content(&mut self) {
        self.content = tick();
    }

    pub fn note_bytes(&mut self, lately: &mut Gone, start: u64, end: u64) {
        self.bytes = lately.note((start, end));
    }
}

/// The last events of many things and their moments, the newest at the end.
#[derive(Debug)]
pub struct Lately<T> {
    last: VecDeque<(u64, T)>,
    /// Events up to this moment are forgotten.
    from: u64,
}

/// The bytes of a file that were discarded last.
pub type Gone = Lately<(u64, u64)>;

/// The number of events kept: of the smallest units so many are evicted in a moment.
const KEPT: usize = 256;

impl<T> Default for Lately<T> {
    fn default() -> Lately<T> {
        Lately { last: VecDeque::new(), from: NOW.load(SeqCst) }
    }
}

impl<T> Lately<T> {
    /// Notes an event of `what` now. Returns its moment.
    pub fn note(&mut self, what: T) -> u64 {
        if self.last.len() == KEPT
            && let Some((oldest, _)) = self.last.pop_front()
        {
            self.from = oldest;
        }
        let now = tick();
        self.last.push_back((now, what));
        now
    }

    /// Whether an event after `since` concerned anything for which `is_meant` holds, as far as is
    /// known.
    pub fn any_since(&self, since: Look, is_meant: impl Fn(&T) -> bool) -> bool {
        let newest = self.last.iter().rev().take_while(|(at, _)| *at > since.at);
        self.from > since.at || newest.into_iter().any(|(_, what)| is_meant(what))
    }
}

/// The moment of the last event of something that has no clock of its own.
#[derive(Debug, Default)]
pub struct Last(AtomicU64);

impl Last {
    /// Notes an event now.
    pub fn note(&self) {
        self.0.fetch_max(tick(), SeqCst);
    }

    pub fn is_since(&self, since: Look) -> bool {
        self.0.load(SeqCst) > since.at
    }
}

/// A look that lasts: writes during it are noted.
#[derive(Debug)]
pub struct Watch {
    began: u64,
    written: Ranges,
}

impl Watch {
    pub fn begin() -> Watch {
        Watch { began: tick(), written: Ranges::None }
    }

    pub fn note(&mut self, start: u64, end: u64) {
        // "To the end" must leave room for sums.
        self.written.set(start, end.min(1 << 62), State::Dirty);
    }

    /// Makes every look before now count as one from before the watch.
    pub fn disown_answers(&mut self) {
        self.began = tick();
    }

    /// The ranges that were written since the watch began.
    pub fn written(&self) -> &Ranges {
        &self.written
    }

    /// Whether the watch had begun when the look was taken.
    pub fn covers(&self, look: Look) -> bool {
        self.began <= look.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // S-1 S-6
    #[test]
    fn each_tells_what_moved_since_a_look_and_nothing_else() {
        let (mut clock, mut lately) = (Clock::default(), Gone::default());
        let moved = |clock: &Clock, lately: &Gone, since: Look| {
            [What::Base, What::Home, What::Size, What::Time, What::Content, What::Bytes(10, 20)]
                .map(|what| clock.changed(since, what, Some(lately)))
        };
        let start = clock.look();
        assert!(start.is_untouched() && !start.is_proven() && start.is_quiet());
        assert_eq!(moved(&clock, &lately, start), [false; 6]);
        clock.note_bytes(&mut lately, 0, 10);
        clock.note_bytes(&mut lately, 20, 30);
        assert_eq!(moved(&clock, &lately, start), [false; 6], "beside it");
        clock.note_bytes(&mut lately, 19, 21);
        assert_eq!(moved(&clock, &lately, start), [false, false, false, false, false, true]);
        let later = clock.look();
        assert!(clock.changed(start, What::Bytes(50, 60), None), "nobody knows which");
        let anew = Gone::default();
        assert!(clock.changed(start, What::Bytes(50, 60), Some(&anew)), "it remembers none");
        assert!(!clock.changed(later, What::Bytes(10, 20), None), "none since");
        clock.note_size();
        assert_eq!(moved(&clock, &lately, later), [false, false, true, false, false, false]);
        let later = clock.look();
        clock.note_time();
        assert_eq!(moved(&clock, &lately, later), [false, false, false, true, false, false]);
        let later = clock.look();
        clock.note_content();
        assert_eq!(moved(&clock, &lately, later), [false, false, false, false, true, false]);
        let later = clock.look();
        clock.begin_change();
        let home_alone = [false, true, false, false, false, false];
        assert_eq!(moved(&clock, &lately, later), home_alone, "under way");
        let within = clock.look();
        assert!(!within.is_quiet() && clock.changed(within, What::Home, None));
        clock.end_change();
        assert_eq!(moved(&clock, &lately, within), [true, true, false, false, false, false]);
        assert!(!clock.changed(clock.look(), What::Home, None));
        let asked = clock.look();
        assert!(!asked.is_proven() && !asked.is_untouched(), "it may have failed");
        clock.note_base();
        assert!(clock.look().is_proven());
        let mut found = Clock::default();
        found.note_found_as_known();
        assert!(found.look().is_proven() && found.look().is_untouched());
        let nobody = Look::now();
        assert!(!clock.changed(nobody, What::Home, None), "none is known since");
        assert!(Clock::default().changed(nobody, What::Base, None), "it is known since");
        assert!(Clock::default().changed(nobody, What::Content, None), "likewise");
    }

    #[test]
    fn a_clock_that_forgot_where_bytes_went_counts_any_range_as_gone() {
        let (mut clock, mut lately) = (Clock::default(), Gone::default());
        let start = clock.look();
        for _ in 0..KEPT {
            clock.note_bytes(&mut lately, 0, 1);
        }
        assert!(!clock.changed(start, What::Bytes(5, 6), Some(&lately)));
        clock.note_bytes(&mut lately, 0, 1);
        assert!(clock.changed(start, What::Bytes(5, 6), Some(&lately)));
    }

    #[test]
    fn a_watch_notes_written_ranges_and_which_looks_came_before_it() {
        let before = Look::now();
        let mut watch = Watch::begin();
        assert!(!watch.covers(before) && watch.covers(Look::now()));
        watch.note(10, u64::MAX);
        assert_eq!(watch.written().gaps(0, 100), [(0, 10)]);
    }
}
