//! Chance, and what it came to.

use super::Plan;

/// splitmix64
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub refused: u64,
    pub answers_lost: u64,
    pub late_commits: u64,
    pub kills: u64,
    pub cut_while_opening: u64,
    pub remote_writes: u64,
    /// Files that another member asked for before their maker had noted them.
    pub opened_early: u64,
    pub renames: u64,
    pub reads: u64,
    pub failed: u64,
    pub snapshots: u64,
    pub outages: u64,
    /// Reads that a home served without a barrier of who asked, and that it did not.
    pub vouched: u64,
    pub not_vouched: u64,
    pub copied: Copied,
    pub granted: Granted,
}

/// What happens only where there are read grants, and names move.
#[derive(Debug, Default, Clone)]
pub struct Granted {
    pub opened: u64,
    pub waited: u64,
    /// How far a mirror is.
    pub told: u64,
    /// Members, to give their grants up.
    pub called: u64,
    /// For the lease of somebody who was dead, stopped or cut off.
    pub expired: u64,
    pub moved: u64,
    pub linked: u64,
    /// Through a name that had gone.
    pub stale: u64,
}

/// What happens only where copies are kept.
#[derive(Debug, Default, Clone)]
pub struct Copied {
    pub synced: u64,
    pub struck: u64,
    pub filled: u64,
    pub deaths: u64,
    pub taken: u64,
    /// From a taker that died in the middle.
    pub taken_again: u64,
    pub claims_taken: u64,
    /// Twice: from one who had taken it.
    pub claims_taken_again: u64,
    /// Given back in the name of the dead.
    pub left: u64,
    pub rolled_back: u64,
    pub came_back: u64,
    /// While another was taking it over.
    pub came_back_in_time: u64,
    pub disowned: u64,
    pub superseded_files: u64,
    pub superseded: u64,
    pub cut_off: u64,
    /// What a superseded process wrote to the store over another's bytes.
    pub zombie_writes: u64,
    pub settled: u64,
    pub flushed_again: u64,
    pub waited_for_taker: u64,
    pub full: u64,
    /// Members whose tier has lost a copy.
    pub damaged: u64,
    /// Takers that lacked some.
    pub short: u64,
}

impl Counts {
    fn list(&mut self) -> [(&'static str, &mut u64); 12] {
        [
            ("commits refused", &mut self.refused),
            ("answers lost", &mut self.answers_lost),
            ("late commits", &mut self.late_commits),
            ("kills", &mut self.kills),
            ("cut while somebody waited", &mut self.cut_while_opening),
            ("writes for others", &mut self.remote_writes),
            ("opened elsewhere while being made", &mut self.opened_early),
            ("renames", &mut self.renames),
            ("reads", &mut self.reads),
            ("failed", &mut self.failed),
            ("snapshots", &mut self.snapshots),
            ("outages", &mut self.outages),
        ]
    }

    fn list_copied(&mut self) -> [(&'static str, &mut u64); 23] {
        let copied = &mut self.copied;
        [
            ("synced with copies", &mut copied.synced),
            ("partners struck off", &mut copied.struck),
            ("partners filled", &mut copied.filled),
            ("deaths for good", &mut copied.deaths),
            ("members taken over", &mut copied.taken),
            ("taken over from a dead taker", &mut copied.taken_again),
            ("claims taken over", &mut copied.claims_taken),
            ("claims taken over twice", &mut copied.claims_taken_again),
            ("files given back for the dead", &mut copied.left),
            ("files rolled back to what was synced", &mut copied.rolled_back),
            ("members that came back", &mut copied.came_back),
            ("came back while being taken over", &mut copied.came_back_in_time),
            ("adopted files disowned", &mut copied.disowned),
            ("superseded files at a return", &mut copied.superseded_files),
            ("superseded processes", &mut copied.superseded),
            ("members cut off", &mut copied.cut_off),
            ("writes of superseded processes", &mut copied.zombie_writes),
            ("files settled", &mut copied.settled),
            ("flushed again", &mut copied.flushed_again),
            ("waits for a taker", &mut copied.waited_for_taker),
            ("copies refused for want of space", &mut copied.full),
            ("copies lost in a tier", &mut copied.damaged),
            ("takers without all copies", &mut copied.short),
        ]
    }

    fn list_granted(&mut self) -> [(&'static str, &mut u64); 8] {
        let granted = &mut self.granted;
        [
            ("opens under a grant", &mut granted.opened),
            ("claims that waited for a grant", &mut granted.waited),
            ("questions how far a mirror is", &mut granted.told),
            ("calls to give a grant up", &mut granted.called),
            ("grants that ended with a lease", &mut granted.expired),
            ("files moved to another directory", &mut granted.moved),
            ("files linked in another directory", &mut granted.linked),
            ("opens by a name that had gone", &mut granted.stale),
        ]
    }

    fn list_direct(&mut self) -> [(&'static str, &mut u64); 2] {
        [
            ("reads that a home vouched for", &mut self.vouched),
            ("reads that no home vouched for", &mut self.not_vouched),
        ]
    }

    pub fn add(&mut self, other: &Counts) {
        let mut other = other.clone();
        for ((_, mine), (_, theirs)) in self.list_direct().into_iter().zip(other.list_direct()) {
            *mine += *theirs;
        }
        for ((_, mine), (_, theirs)) in self.list().into_iter().zip(other.list()) {
            *mine += *theirs;
        }
        for ((_, mine), (_, theirs)) in self.list_copied().into_iter().zip(other.list_copied()) {
            *mine += *theirs;
        }
        for ((_, mine), (_, theirs)) in self.list_granted().into_iter().zip(other.list_granted()) {
            *mine += *theirs;
        }
    }

    /// What is injected must have happened.
    pub fn all_happened(&mut self, plan: Plan) {
        for (name, count) in self.list() {
            assert!(*count > 0 || (plan.grants && name == "renames"), "{name}: never");
        }
        for (name, count) in self.list_copied() {
            assert!((*count > 0) == (plan.copies > 0), "{name}: {count}");
        }
        for (name, count) in self.list_direct() {
            assert!((*count > 0) == plan.direct, "{name}: {count}");
        }
        for (name, count) in self.list_granted() {
            assert!(*count > 0 || !plan.grants, "{name}: never");
        }
    }
}
