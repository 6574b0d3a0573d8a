//! The decision which programs may write past the daemon. No clock, no I/O. When to flush and when to slow down
//! is the [`governor`](crate::governor)'s decision.

use std::time::Duration;

use crate::config::Tunables;

/// The levels that the decision is based on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Level {
    pub tier_bytes: u64,
    pub used_bytes: u64,
    pub dirty_bytes: u64,
    /// Bytes that cannot be evicted besides: programs wrote them past the daemon, and the daemon has not looked
    /// at them yet.
    pub doubted_bytes: u64,
    /// Bytes that will become dirty in the next second, if the programs that write past the daemon keep their
    /// rate.
    pub arriving_bytes: u64,
    /// Age of the oldest dirty byte that may be flushed.
    pub oldest_age: Option<Duration>,
    pub backing_available: bool,
}

/// The bound on programs that write past the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The kernel asks before they write where there is hardly any room, see [`holds_writers`].
    Asked,
    /// The daemon looks at their files often, and holds the writers of those that grow where there is hardly any
    /// room.
    Held,
    /// Only the limit on how many are let in.
    LetIn,
}

impl Bound {
    /// The smallest tier that programs may write to past the daemon.
    fn tier_min(self) -> u64 {
        match self {
            // A quarter of a smaller tier is written full between two looks.
            Bound::Asked | Bound::Held => SMALL / 8,
            // At the few GB/s of a fast device, about a second of writing.
            Bound::LetIn => SMALL,
        }
    }
}

/// Whether one more program may write past the daemon. Its shadow cannot be evicted, and it is slowed down only if
/// the kernel asks or holds work, so room is kept: a sixty-fourth of the tier for each such writer, from the free or
/// clean bytes, and the bytes that they will soon have written count as written; a tiny tier never allows it.
pub fn may_write_unseen(level: Level, t: &Tunables, writers: u64, bound: Bound) -> bool {
    if level.tier_bytes < bound.tier_min() {
        return false;
    }
    let dirty_soon = level.dirty_bytes.saturating_add(arriving(level));
    if dirty_soon > t.marks(level.tier_bytes).high {
        return false;
    }
    let room = level.tier_bytes.saturating_sub(dirty_soon.saturating_add(level.doubted_bytes));
    room / 8 > 0 && (writers + 1).saturating_mul(level.tier_bytes / 64) <= room
}

/// On a smaller tier the files of such writers are looked at every [`LOOK_QUICK`].
pub const SMALL: u64 = 4 << 30;

/// At a few GB/s some tens of megabytes are written in this time.
pub const LOOK_QUICK: Duration = Duration::from_millis(10);

/// Less room than this part of [`SMALL`], or of a smaller tier, is written full within the moments between two
/// looks.
const AHEAD_PART: u64 = 4;

/// The bytes that arrive in the time that is reckoned with: a second, and with quick looks a tenth of it.
fn arriving(level: Level) -> u64 {
    if level.tier_bytes < SMALL { level.arriving_bytes / 10 } else { level.arriving_bytes }
}

/// Whether the kernel asks before these programs write, or they are held: dirty bytes may soon fill all that the tier
/// may hold.
pub fn holds_writers(level: Level) -> bool {
    let stays = level.dirty_bytes.saturating_add(level.doubted_bytes);
    let ahead = level.tier_bytes.min(SMALL) / AHEAD_PART;
    stays.saturating_add(arriving(level).max(ahead)) >= level.tier_bytes
}

/// A twentieth of a second: by then a look is made even on a busy machine.
const LOOK_LATE_PARTS: u64 = 20;

/// The bytes that must be free for programs that nobody asks, whether or not dirty bytes fill the tier: what they
/// write until the next look, though it be late, and at least a part of what is kept ahead.
pub fn free_for_unasked(level: Level) -> u64 {
    let ahead = level.tier_bytes.min(SMALL) / AHEAD_PART;
    (level.arriving_bytes / LOOK_LATE_PARTS).clamp(ahead / 4, ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_past_us_need_room_that_is_not_dirty() {
        let t = Tunables::default();
        let tier_bytes = Bound::LetIn.tier_min();
        let may_write_unseen =
            |level, t: &Tunables, writers| may_write_unseen(level, t, writers, Bound::LetIn);
        let level =
            |dirty| Level { tier_bytes, dirty_bytes: tier_bytes / 100 * dirty, ..Level::default() };
        assert!(may_write_unseen(level(50), &t, 0));
        assert!(!may_write_unseen(level(51), &t, 0));
        assert!(may_write_unseen(level(50), &t, 30) && !may_write_unseen(level(50), &t, 33));
        let soon = Level { arriving_bytes: tier_bytes / 100 * 20, ..level(40) };
        assert!(!may_write_unseen(soon, &t, 0), "those that write will have taken the room");
        assert!(!may_write_unseen(Level { tier_bytes: tier_bytes - 1, ..level(0) }, &t, 0));
        let small = |tier_bytes| Level { tier_bytes, ..Level::default() };
        let asked = |tier_bytes| super::may_write_unseen(small(tier_bytes), &t, 0, Bound::Asked);
        assert!(asked(512 << 20) && !asked((512 << 20) - 1), "where the kernel asks it holds them");
        let held = |tier_bytes| super::may_write_unseen(small(tier_bytes), &t, 0, Bound::Held);
        assert!(held(512 << 20) && !held((512 << 20) - 1), "and so do holds");
    }

    #[test]
    fn clean_bytes_go_before_writers_whom_nobody_asks_need_the_room() {
        let free = |arriving_mib: u64| {
            let arriving_bytes = arriving_mib << 20;
            free_for_unasked(Level { tier_bytes: 1 << 30, arriving_bytes, ..Level::default() })
                >> 20
        };
        assert_eq!((free(0), free(2000), free(9000)), (64, 100, 256));
    }

    #[test]
    fn writers_past_us_are_held_before_the_tier_is_full() {
        let level = |dirty_gib: u64, arriving_gib: u64| Level {
            tier_bytes: 8 << 30,
            dirty_bytes: dirty_gib << 30,
            arriving_bytes: arriving_gib << 30,
            ..Level::default()
        };
        assert!(!holds_writers(level(6, 0)) && !holds_writers(level(4, 3)));
        assert!(holds_writers(level(7, 0)) && holds_writers(level(4, 4)));
        let small = |dirty_mib: u64, arriving_mib: u64| Level {
            tier_bytes: 1 << 30,
            dirty_bytes: dirty_mib << 20,
            arriving_bytes: arriving_mib << 20,
            ..Level::default()
        };
        assert!(!holds_writers(small(0, 0)) && !holds_writers(small(700, 2500)));
        assert!(holds_writers(small(768, 0)) && holds_writers(small(700, 3500)));
    }
}
