//! Whether a file has moved since somebody looked: asked by all who let its lock go between a look and
//! what follows from it.

use std::collections::VecDeque;

/// What may have moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// What is known of the backing file has followed a change of ours, of names and attributes or by a
    /// flush: a look at it from before says nothing then.
    Base,
    /// The same, or such a change was, or is, under way: the backing file differs from what we know
    /// because of us.
    Home,
    /// The size was changed: a sync from before says nothing of what came after.
    Size,
    /// Bytes of `[start, end)` were thrown away, or changed around the tier.
    Bytes(u64, u64),
}

/// Rises with what happens to a file.
#[derive(Debug, Default)]
pub struct Clock {
    base: u32,
    size: u32,
    bytes: u32,
    under_way: u16,
}

/// A moment of a clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    base: u32,
    size: u32,
    bytes: u32,
    under_way: bool,
}

impl Look {
    /// Whether no change of names or attributes was under way.
    pub fn is_quiet(self) -> bool {
        !self.under_way
    }

    /// Whether nothing of ours had changed the backing file since the file is known.
    pub fn is_first(self) -> bool {
        self.base == 0
    }
}

impl Clock {
    pub fn look(&self) -> Look {
        let Clock { base, size, bytes, under_way } = *self;
        Look { base, size, bytes, under_way: under_way > 0 }
    }

    /// Whether it moved since; `lately` are the bytes that went last.
    pub fn changed(&self, since: Look, what: What, lately: Option<&Lately>) -> bool {
        match what {
            What::Base => self.base != since.base,
            What::Home => self.base != since.base || since.under_way || self.is_under_way(),
            What::Size => self.size != since.size,
            What::Bytes(start, end) => {
                let times = self.bytes.wrapping_sub(since.bytes) as usize;
                times > 0 && lately.is_none_or(|lately| lately.any(times, start, end))
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
        self.note_base();
    }

    pub fn note_base(&mut self) {
        self.base = self.base.wrapping_add(1).max(1);
    }

    pub fn note_size(&mut self) {
        self.size = self.size.wrapping_add(1);
    }

    pub fn note_bytes(&mut self, lately: &mut Lately, start: u64, end: u64) {
        self.bytes = self.bytes.wrapping_add(1);
        lately.note(start, end);
    }
}

/// What was thrown away last, the newest behind.
#[derive(Debug, Default)]
pub struct Lately(VecDeque<(u64, u64)>);

impl Lately {
    /// Of the smallest units so many go in a moment.
    const KEPT: usize = 256;

    fn note(&mut self, start: u64, end: u64) {
        if self.0.len() == Lately::KEPT {
            self.0.pop_front();
        }
        self.0.push_back((start, end));
    }

    /// Whether the last so many times took any of `[start, end)`, as far as is known.
    fn any(&self, times: usize, start: u64, end: u64) -> bool {
        let hit = |&(a, b): &(u64, u64)| a < end && start < b;
        times > self.0.len() || self.0.iter().rev().take(times).any(hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // S-1 S-6
    #[test]
    fn each_tells_what_moved_since_a_look_and_nothing_else() {
        let (mut clock, mut lately) = (Clock::default(), Lately::default());
        let moved = |clock: &Clock, lately: &Lately, since: Look| {
            [What::Base, What::Home, What::Size, What::Bytes(10, 20)]
                .map(|what| clock.changed(since, what, Some(lately)))
        };
        let start = clock.look();
        assert!(start.is_first() && start.is_quiet());
        assert_eq!(moved(&clock, &lately, start), [false; 4]);
        clock.note_bytes(&mut lately, 0, 10);
        clock.note_bytes(&mut lately, 20, 30);
        assert_eq!(moved(&clock, &lately, start), [false; 4], "beside it");
        clock.note_bytes(&mut lately, 19, 21);
        assert_eq!(moved(&clock, &lately, start), [false, false, false, true]);
        let later = clock.look();
        assert!(clock.changed(start, What::Bytes(50, 60), None), "nobody knows which");
        assert!(!clock.changed(later, What::Bytes(10, 20), None), "none since");
        clock.note_size();
        assert_eq!(moved(&clock, &lately, later), [false, false, true, false]);
        let later = clock.look();
        clock.begin_change();
        assert_eq!(moved(&clock, &lately, later), [false, true, false, false], "under way");
        let within = clock.look();
        assert!(!within.is_quiet() && clock.changed(within, What::Home, None));
        clock.end_change();
        assert_eq!(moved(&clock, &lately, within), [true, true, false, false]);
        assert!(!clock.changed(clock.look(), What::Home, None) && !clock.look().is_first());
    }

    #[test]
    fn what_went_too_often_to_be_remembered_may_have_been_anything() {
        let (mut clock, mut lately) = (Clock::default(), Lately::default());
        let start = clock.look();
        for _ in 0..Lately::KEPT {
            clock.note_bytes(&mut lately, 0, 1);
        }
        assert!(!clock.changed(start, What::Bytes(5, 6), Some(&lately)));
        clock.note_bytes(&mut lately, 0, 1);
        assert!(clock.changed(start, What::Bytes(5, 6), Some(&lately)));
    }
}
