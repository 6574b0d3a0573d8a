//! The time that decides when something is given up: expiry, the end of a promise to keep files, the wait for a job's
//! epilog.
//!
//! The clock of a machine that comes up after a power cut may show any time, and files that are dropped by it do not
//! come back. The daemon therefore counts the time that it sees pass, over its restarts, and compares.
//!
//! - C1: while the clock agrees with that count within [`MAY_JUMP`], the clock is right.
//! - C2: a clock that has gone further is doubted until [`GRACE`] of the machine's own time has passed with it. Until
//!   then the earlier of the two times counts: a deadline waits for its remaining time or for the grace, whichever is
//!   shorter.
//! - C3: a promise that is written down with its end is not made by a clock that is doubted.
//! - C4: other nodes vouch for a clock: it is right if a node agrees with it whose own clock is not doubted.
//!
//! A node that was off for long is doubted, too: alone it cannot tell that from a wrong clock. It then acts late,
//! which loses nothing; a node that is never up for a day gives nothing up by time.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay_base::lock::{Mutex, Rank};
use forebay_base::units::human_secs;
use serde::{Deserialize, Serialize};

/// How far the clock may go on unseen: over a restart of the machine, and beyond the last written note.
const MAY_JUMP: u64 = 600;

/// How long a clock that has gone further is doubted.
pub const GRACE: u64 = 24 * 60 * 60;

/// The seconds since the epoch, as the machine's clock has them.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The clocks of the machine.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Seconds since 1970.
    pub wall: u64,
    /// The id of the running kernel's boot.
    pub boot: String,
    /// Seconds since the kernel came up, unaffected by changes of the clock.
    pub up: u64,
}

/// The time that was seen to pass, as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Seconds since 1970.
    pub time: u64,
    pub boot: String,
    pub up: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
}

/// How far the clock was from the time seen, and how long it has gone on like that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    pub ahead: i64,
    pub seen: u64,
}

/// The time that counts for a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: u64,
    pub doubt: Option<Doubt>,
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = if self.ahead < 0 { "behind" } else { "ahead of" };
        let (by, left) = (self.ahead.unsigned_abs(), GRACE.saturating_sub(self.seen));
        let (by, left) = (human_secs(by as f64), human_secs(left as f64));
        write!(
            f,
            "this node's clock is {by} {side} the time that its daemon has seen pass (a power cut, or it was off): it \
             is believed in {left}, or when it is set right"
        )
    }
}

impl Seen {
    fn at(reading: &Reading) -> Seen {
        let Reading { wall, boot, up } = reading.clone();
        Seen { time: wall, boot, up, doubt: None }
    }

    fn look(&mut self, now: &Reading) -> Time {
        // The time before a restart of the machine is unknown.
        let since = if self.boot == now.boot { self.up } else { 0 };
        let passed = now.up.saturating_sub(since);
        self.time = self.time.saturating_add(passed);
        (self.boot, self.up) = (now.boot.clone(), now.up);
        let ahead = now.wall as i64 - self.time as i64;
        self.doubt = self.doubted(ahead, passed);
        if self.doubt.is_none() {
            self.time = now.wall;
        }
        Time { seconds: self.time.min(now.wall), doubt: self.doubt }
    }

    fn doubted(&self, ahead: i64, passed: u64) -> Option<Doubt> {
        if ahead.unsigned_abs() <= MAY_JUMP {
            return None;
        }
        let same = self.doubt.filter(|doubt| doubt.ahead.abs_diff(ahead) <= MAY_JUMP);
        let seen = same.map_or(0, |doubt| doubt.seen + passed);
        (seen < GRACE).then_some(Doubt { ahead: same.map_or(ahead, |doubt| doubt.ahead), seen })
    }
}

/// The clock of this node.
pub struct Clock {
    seen: Mutex<Seen>,
    /// Seconds by which a test sets the clock ahead.
    #[cfg(test)]
    pub jumped: std::sync::atomic::AtomicI64,
}

impl Clock {
    /// Continues from the recorded time.
    pub fn after(before: Option<Seen>) -> Clock {
        let seen = before.unwrap_or_else(|| Seen::at(&read()));
        Clock {
            seen: Mutex::new(Rank::NodeNotes, seen),
            #[cfg(test)]
            jumped: std::sync::atomic::AtomicI64::new(0),
        }
    }

    pub fn time(&self) -> Time {
        let mut reading = read();
        reading.wall = reading.wall.saturating_add_signed(self.jumped());
        self.seen.lock().look(&reading)
    }

    /// The time that the clock shows, right or wrong.
    pub fn wall(&self) -> u64 {
        now().saturating_add_signed(self.jumped())
    }

    /// Accepts the clock as right (C4).
    pub fn believe(&self) {
        let mut reading = read();
        reading.wall = self.wall();
        *self.seen.lock() = Seen::at(&reading);
    }

    pub fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    #[cfg(not(test))]
    fn jumped(&self) -> i64 {
        0
    }

    #[cfg(test)]
    fn jumped(&self) -> i64 {
        self.jumped.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The boot id of the running kernel.
pub fn boot_id() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.unwrap_or_default().trim().to_string()
}

fn read() -> Reading {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
    Reading { wall: now(), boot: boot_id(), up: up as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;
    const START: u64 = 1_700_000_000;

    fn reading(boot: &str, up: u64, wall: u64) -> Reading {
        Reading { wall, boot: boot.into(), up }
    }

    fn seen() -> Seen {
        Seen::at(&reading("a", 1000, START))
    }

    fn trusted(time: Time) -> u64 {
        assert_eq!(time.doubt, None);
        time.seconds
    }

    fn doubted(time: Time) -> u64 {
        assert!(time.doubt.is_some());
        time.seconds
    }

    #[test]
    fn a_clock_that_goes_on_is_believed_also_over_a_short_restart_of_the_machine() {
        let mut seen = seen();
        assert_eq!(trusted(seen.look(&reading("a", 1000 + DAY, START + DAY))), START + DAY);
        // No daemon ran for a long time; the kernel did.
        assert_eq!(
            trusted(seen.look(&reading("a", 1000 + 9 * DAY, START + 9 * DAY))),
            START + 9 * DAY
        );
        let up_again = START + 9 * DAY + 60 + MAY_JUMP;
        assert_eq!(trusted(seen.look(&reading("b", 60, up_again))), up_again);
        // Drift is followed.
        for n in 1..100 {
            let wall = up_again + n * (DAY + 300);
            assert_eq!(trusted(seen.look(&reading("b", 60 + n * DAY, wall))), wall);
        }
    }

    /// C2.
    #[test]
    fn after_a_jump_a_deadline_waits_for_what_is_left_of_it_or_for_the_grace() {
        for wrong in [START + 365 * DAY, START + 2 * DAY] {
            let mut seen = seen();
            assert_eq!(doubted(seen.look(&reading("b", 10, wrong))), START + 10);
            let later = |up| reading("b", up, wrong - 10 + up);
            assert_eq!(doubted(seen.look(&later(3600))), START + 3600);
            // Over restarts of the daemon, and of the machine.
            let text = serde_json::to_string(&seen).unwrap();
            let mut seen: Seen = serde_json::from_str(&text).unwrap();
            assert_eq!(doubted(seen.look(&later(7200))), START + 7200);
            let again = |up| reading("c", up, wrong - 10 + 7200 + 60 + up);
            assert_eq!(doubted(seen.look(&again(30))), START + 7200 + 30);
            assert_eq!(doubted(seen.look(&again(GRACE - 7200))), START + GRACE);
            let believed = again(GRACE - 7200 + 40);
            assert_eq!(trusted(seen.look(&believed)), believed.wall);
        }
    }

    #[test]
    fn a_clock_that_is_set_right_is_believed_at_once() {
        let mut seen = seen();
        doubted(seen.look(&reading("b", 10, START + 999 * DAY)));
        doubted(seen.look(&reading("b", 3000, START + 999 * DAY + 2990)));
        assert_eq!(trusted(seen.look(&reading("b", 3600, START + 3600 + 200))), START + 3800);
    }

    /// Another jump begins its own grace.
    #[test]
    fn a_second_jump_does_not_live_on_the_grace_of_the_first() {
        let mut seen = seen();
        doubted(seen.look(&reading("b", 0, START + 9 * DAY)));
        doubted(seen.look(&reading("b", GRACE - 1, START + 9 * DAY + GRACE - 1)));
        assert_eq!(
            doubted(seen.look(&reading("b", GRACE + 5, START + 99 * DAY))),
            START + GRACE + 5
        );
    }

    /// C2: a slow clock decides late, and its corrected time is not believed against the time seen.
    #[test]
    fn a_clock_that_is_behind_ends_nothing_and_neither_does_its_correction() {
        let mut seen = seen();
        assert_eq!(doubted(seen.look(&reading("b", 10, 5))), 5);
        assert_eq!(doubted(seen.look(&reading("b", 70, 65))), 65);
        assert_eq!(trusted(seen.look(&reading("b", 100, START + 100 + MAY_JUMP))), START + 700);
    }
}
