//! Turns among programs that wait for room when nothing makes room: of several files that are
//! written at once and together do not fit, one goes on until it is closed. A thread that writes several
//! files goes on with all of them: it closes none before it has written the others. No clock, no I/O.
//!
//! Invariants:
//! - T1: while the drain flushes other files, no program has a turn.
//! - T2: while nothing makes room, a waiting program goes on at least once in [`IDLE`].

use std::time::{Duration, Instant};

/// A program that has the turn and asks for nothing for this long loses it: it may wait for another
/// program.
pub const IDLE: Duration = Duration::from_millis(100);

/// So few bytes that can be flushed make no room worth a wait.
const LITTLE: u64 = 1 << 20;

/// The things that could make room.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    /// Dirty bytes of files that no program writes past the daemon.
    pub flushable: u64,
    /// A number that moves while the drain is at work.
    pub progress: u64,
    /// How long the drain may copy nothing.
    pub patience: Duration,
}

/// A file that waits to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    pub file: u64,
    /// The thread that waits, where it is known.
    pub thread: Option<i32>,
}

impl Writer {
    /// Whether the turn of the one is the other's.
    pub fn shares(&self, other: &Writer) -> bool {
        self.file == other.file || self.thread.is_some() && self.thread == other.thread
    }
}

#[derive(Debug, Default)]
pub struct Turns {
    /// The last progress, and the moment when it was seen to move.
    moved: Option<(u64, Instant)>,
    whose: Option<(Writer, Instant)>,
}

impl Turns {
    /// The writer whose turn it is among the waiting ones; the first of them waits longest.
    pub fn whose(
        &mut self,
        now: Instant,
        left: Left,
        mut waiting: impl Iterator<Item = Writer>,
    ) -> Option<Writer> {
        let moved = match self.moved {
            Some((before, at)) if before == left.progress => at,
            _ => now,
        };
        self.moved = Some((left.progress, moved));
        let drains = left.flushable > LITTLE && now - moved <= left.patience;
        if drains {
            self.whose = None;
            return None;
        }
        let last = self.whose.filter(|(_, at)| now - *at < IDLE);
        let next = match last {
            Some((whose, _)) => waiting.find(|it| it.shares(&whose))?,
            None => waiting.next()?,
        };
        self.whose = Some((next, now));
        Some(next)
    }

    /// Whether the file has the turn, whether or not its program asks for anything now.
    pub fn has(&self, now: Instant, file: u64) -> bool {
        self.whose.is_some_and(|(last, at)| last.file == file && now - at < IDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn left(flushable: u64, progress: u64) -> Left {
        Left { flushable, progress, patience: PATIENCE }
    }

    fn unknown(file: u64) -> Writer {
        Writer { file, thread: None }
    }

    #[test]
    fn a_writer_keeps_its_turn_as_long_as_it_asks() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let mut whose = |ms, waiting: &[u64]| {
            let now = start + Duration::from_millis(ms);
            let writer = turns.whose(now, left(0, 7), waiting.iter().copied().map(unknown));
            writer.map(|writer| writer.file)
        };
        assert_eq!(whose(0, &[]), None);
        assert_eq!(whose(0, &[1, 2, 3]), Some(1));
        assert_eq!(whose(50, &[2, 3]), None, "the first writer may ask again");
        assert_eq!(whose(90, &[2, 3, 1]), Some(1));
        assert_eq!(whose(180, &[2, 3]), None);
        assert_eq!(whose(190, &[2, 3]), Some(2), "T2");
        assert_eq!(whose(200, &[3, 1]), None);
    }

    #[test]
    fn a_thread_goes_on_with_all_of_its_files() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let mut whose = |ms, waiting: &[(u64, i32)]| {
            let now = start + Duration::from_millis(ms);
            let writers = waiting.iter().map(|&(file, it)| Writer { file, thread: Some(it) });
            turns.whose(now, left(0, 7), writers).map(|writer| writer.file)
        };
        assert_eq!(whose(0, &[(1, 10), (2, 20)]), Some(1));
        assert_eq!(whose(1, &[(2, 20), (3, 10)]), Some(3));
        assert_eq!(whose(2, &[(2, 20)]), None);
        assert_eq!(whose(3, &[(2, 20), (3, 11)]), Some(3), "another thread, the same file");
        assert_eq!(whose(4, &[(2, 20), (1, 10)]), None);
        assert_eq!(whose(104, &[(2, 20), (1, 10)]), Some(2));
    }

    #[test]
    fn nobody_has_a_turn_while_the_drain_brings_something_home() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let mut whose = |secs, flushable, progress| {
            let now = start + Duration::from_secs(secs);
            let five = turns.whose(now, left(flushable, progress), [unknown(5)].into_iter());
            five.map(|writer| writer.file)
        };
        assert_eq!(whose(0, 0, 1), Some(5));
        assert_eq!(whose(1, 9 << 20, 1), None, "T1");
        assert_eq!(whose(31, 9 << 20, 2), None, "it goes on");
        assert_eq!(whose(61, 9 << 20, 2), None);
        assert_eq!(whose(62, 9 << 20, 2), Some(5), "it has stopped");
        assert_eq!(whose(63, 9 << 20, 3), None);
        assert_eq!(whose(64, LITTLE, 3), Some(5));
    }
}
