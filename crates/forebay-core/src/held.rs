//! Which files' writers are held where the kernel does not ask, at each look at the files that are written past
//! the daemon. No clock, no I/O.
//!
//! Invariants:
//! - H1: no hold lasts much longer than [`HOLD_FOR`]: then whoever else waits for the file in the kernel (an
//!   unlink, a truncation, an fsync) has its turn, and each waiting writer makes one call.
//! - H2: a file that does not grow is let go: rewriting takes no room.

use std::time::{Duration, Instant};

use crate::turns::{Left, Turns, Writer};

/// How long a hold lasts before it is given back and asked for again.
const HOLD_FOR: Duration = Duration::from_secs(1);

/// A file that has grown so lately will probably grow on. A held one grows once in [`HOLD_FOR`], if its writer
/// waits.
const GROWS_FOR: Duration = Duration::from_secs(1);
const GROWS_HELD_FOR: Duration = Duration::from_secs(2);

/// Whether the tier has room for files that are written past the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Enough,
    Little,
}

/// A file that is written past the daemon, as a look has found it.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub id: u64,
    /// When it was last seen to have grown.
    pub grew: Option<Instant>,
    pub hold: Option<Hold>,
}

/// A hold of a file.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    /// When the file was first held, in a row without a break.
    pub since: Instant,
    /// When this hold has come into force; `None` while it is under way.
    pub came: Option<Instant>,
}

/// The change for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Stay,
    Hold,
    /// Gives the hold back, and asks for another one (H1).
    Renew,
    LetGo,
}

/// Decides for all files of a look, in their order.
pub fn steps(
    turns: &mut Turns,
    now: Instant,
    (room, left): (Room, Left),
    files: &[Seen],
) -> Vec<Step> {
    if room == Room::Enough {
        return files.iter().map(let_go).collect();
    }
    let mut waiting: Vec<&Seen> = files.iter().filter(|file| file.waits(now)).collect();
    waiting.sort_by_key(|file| file.hold.map_or(now, |hold| hold.since));
    let whose = match waiting.is_empty() {
        true => None,
        false => turns.whose(now, left, waiting.iter().map(|file| file.writer())),
    };
    let has = |file: &Seen| whose == Some(file.writer()) || turns.has(now, file.id);
    let step = |file: &Seen| match has(file) {
        true => let_go(file),
        false => file.step(now),
    };
    files.iter().map(step).collect()
}

fn let_go(file: &Seen) -> Step {
    if file.hold.is_some() { Step::LetGo } else { Step::Stay }
}

impl Seen {
    /// Whether a program may write more soon.
    pub fn wants_room(&self, now: Instant) -> bool {
        self.hold.is_some() || self.grew_within(now, GROWS_FOR)
    }

    /// A hold does not tell which threads wait.
    fn writer(&self) -> Writer {
        Writer { file: self.id, thread: None }
    }

    /// Whether a program wants to write more.
    fn waits(&self, now: Instant) -> bool {
        self.hold.is_some() || self.grew == Some(now)
    }

    fn grew_within(&self, now: Instant, time: Duration) -> bool {
        self.grew.is_some_and(|at| now - at <= time)
    }

    fn step(&self, now: Instant) -> Step {
        match self.hold {
            None if self.grew_within(now, GROWS_FOR) => Step::Hold,
            None => Step::Stay,
            Some(hold) if hold.came.is_none_or(|at| now - at < HOLD_FOR) => Step::Stay,
            Some(_) if self.grew_within(now, GROWS_HELD_FOR) => Step::Renew,
            Some(_) => Step::LetGo,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(flushable: u64) -> Left {
        Left { flushable, progress: 1, patience: Duration::from_secs(30) }
    }

    struct Look {
        start: Instant,
        turns: Turns,
    }

    impl Look {
        fn new() -> Look {
            Look { start: Instant::now(), turns: Turns::default() }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn grown(&self, id: u64, ms: u64) -> Seen {
            Seen { id, grew: Some(self.at(ms)), hold: None }
        }

        /// A file that last grew at `grew`, held since `since`, whose present hold came at `came`.
        fn held(&self, id: u64, grew: u64, (since, came): (u64, Option<u64>)) -> Seen {
            let hold = Hold { since: self.at(since), came: came.map(|came| self.at(came)) };
            Seen { hold: Some(hold), ..self.grown(id, grew) }
        }

        fn steps(&mut self, ms: u64, room: Room, flushable: u64, files: &[Seen]) -> Vec<Step> {
            let now = self.at(ms);
            steps(&mut self.turns, now, (room, left(flushable)), files)
        }
    }

    #[test]
    fn files_that_grow_are_held_while_there_is_little_room() {
        let mut look = Look::new();
        let old = Seen { grew: None, ..look.grown(3, 0) };
        let files =
            [look.grown(1, 5000), look.grown(2, 3000), old, look.held(4, 4900, (4950, None))];
        let little = look.steps(5000, Room::Little, 1 << 30, &files);
        assert_eq!(little, [Step::Hold, Step::Stay, Step::Stay, Step::Stay]);
        let enough = look.steps(5010, Room::Enough, 1 << 30, &files);
        assert_eq!(enough, [Step::Stay, Step::Stay, Step::Stay, Step::LetGo]);
    }

    // H1, H2.
    #[test]
    fn a_hold_is_renewed_while_its_file_grows_in_between() {
        let mut look = Look::new();
        let under_way = look.held(1, 100, (110, None));
        let held = look.held(1, 100, (110, Some(120)));
        let rewritten = look.held(1, 100, (110, Some(1800)));
        let written = look.held(1, 2500, (110, Some(1800)));
        let mut step =
            |ms, file: Seen| look.steps(ms, Room::Little, 1 << 30, std::slice::from_ref(&file))[0];
        assert_eq!(step(9000, under_way), Step::Stay, "it holds nobody up, and comes in the end");
        assert_eq!(step(1119, held), Step::Stay);
        assert_eq!(step(1120, held), Step::Renew, "H1");
        assert_eq!(step(2800, rewritten), Step::LetGo, "H2");
        assert_eq!(step(2800, written), Step::Renew);
    }

    /// Where nothing can make room, one file goes on until it does not grow any more.
    #[test]
    fn one_file_goes_on_while_nothing_makes_room() {
        let mut look = Look::new();
        let (first, second) =
            (look.held(1, 90, (110, Some(110))), look.held(2, 90, (100, Some(100))));
        let go = look.steps(120, Room::Little, 0, &[first, second]);
        assert_eq!(go, [Step::Stay, Step::LetGo], "the longest held one");
        let grown = look.grown(2, 130);
        assert_eq!(look.steps(130, Room::Little, 0, &[first, grown]), [Step::Stay, Step::Stay]);
        assert_eq!(look.steps(200, Room::Little, 0, &[first, grown]), [Step::Stay, Step::Stay]);
        assert_eq!(look.steps(240, Room::Little, 0, &[first, grown]), [Step::LetGo, Step::Hold]);
        let drains = look.steps(250, Room::Little, 1 << 30, &[look.grown(1, 250), grown]);
        assert_eq!(drains, [Step::Hold, Step::Hold], "the drain makes room");
    }
}
