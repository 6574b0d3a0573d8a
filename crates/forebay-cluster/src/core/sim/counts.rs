//! The dice, and counts of what happened.

use super::{More, Plan};

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
    /// Reads that a home served without a barrier of the asker, and reads that it did not serve so.
    pub vouched: u64,
    pub not_vouched: u64,
    pub copied: Copied,
    pub granted: Granted,
    pub more: MoreCounts,
}

/// What happens only in worlds with [`More`] faults.
#[derive(Debug, Default, Clone)]
pub struct MoreCounts {
    /// Changes of clock rates.
    pub turned: u64,
    /// Leases that ended of processes whose clocks are slow, and of processes that stood still.
    pub ended_slow: u64,
    pub ended_standing: u64,
    /// Processes that stopped between a decision and its effects; and those that stopped for longer than a
    /// lease.
    pub stood: u64,
    pub stood_long: u64,
    /// Renames that were granted, and had lost their gate when they were to be made.
    pub gates_gone: u64,
    pub cuts: u64,
    pub cuts_of_all: u64,
    pub cuts_of_registry: u64,
    /// Machines that came back unchanged, and machines whose members others had taken over.
    pub back_itself: u64,
    pub back_superseded: u64,
    /// Files whose newest bytes were lost in a power cut, and those whose newest bytes were in the tier.
    pub unsynced: u64,
    pub lasted: u64,
    /// Calls to the store that ended with the machine.
    pub never_sent: u64,
    /// Copies that were forgotten since the store has their bytes, and that came back after a power cut.
    pub came_again: u64,
    pub not_adopted: u64,
    pub leaders: u64,
    pub extended: u64,
    /// Commits that came to pass, or did not, in a change of leaders.
    pub in_doubt: u64,
    pub behind: u64,
    pub asked_behind: u64,
}

/// Counts of what happens only where there are read grants, and names move.
#[derive(Debug, Default, Clone)]
pub struct Granted {
    pub opened: u64,
    pub waited: u64,
    /// Answers of how far a mirror is.
    pub told: u64,
    /// Members called to give their grants up.
    pub called: u64,
    /// Waits for the lease of a member that was dead, stopped or cut off.
    pub expired: u64,
    pub moved: u64,
    pub linked: u64,
    /// Opens through a name that had gone.
    pub stale: u64,
}

/// Counts of what happens only where copies are kept.
#[derive(Debug, Default, Clone)]
pub struct Copied {
    pub synced: u64,
    pub struck: u64,
    pub filled: u64,
    pub deaths: u64,
    pub taken: u64,
    /// Members taken from a taker that died in the middle.
    pub taken_again: u64,
    pub claims_taken: u64,
    /// Claims taken twice: from a member that had taken them.
    pub claims_taken_again: u64,
    /// Claims given back in the name of a dead member.
    pub left: u64,
    pub rolled_back: u64,
    pub came_back: u64,
    /// Members that came back while they were being taken over.
    pub came_back_in_time: u64,
    pub disowned: u64,
    pub superseded_files: u64,
    pub superseded: u64,
    pub cut_off: u64,
    /// Writes of a superseded process to the store over another member's bytes.
    pub zombie_writes: u64,
    pub settled: u64,
    pub flushed_again: u64,
    pub waited_for_taker: u64,
    pub full: u64,
    /// Members whose tier has lost a copy.
    pub damaged: u64,
    /// Takers that lacked some copies.
    pub short: u64,
    /// Copies that waited for a claim; those whose claim was on its way, and those of members cut off from the
    /// registry.
    pub hurried: u64,
    pub hurried_amid: u64,
    pub hurried_cut_off: u64,
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

    fn list_copied(&mut self) -> [(&'static str, &mut u64); 26] {
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
            ("copies that waited for a claim", &mut copied.hurried),
            ("waited for a claim on its way", &mut copied.hurried_amid),
            ("waited for a claim, and cut off", &mut copied.hurried_cut_off),
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

    fn list_more(&mut self) -> [(More, &'static str, &mut u64); 21] {
        let more = &mut self.more;
        [
            (More::Clocks, "clocks that came to run otherwise", &mut more.turned),
            (More::Clocks, "leases that ended by a slow clock", &mut more.ended_slow),
            (More::Clocks, "leases of processes that stood still", &mut more.ended_standing),
            (More::Clocks, "processes stopped in the middle", &mut more.stood),
            (More::Clocks, "stopped for longer than a lease", &mut more.stood_long),
            (More::Clocks, "gates gone before a rename", &mut more.gates_gone),
            (More::Power, "members without power", &mut more.cuts),
            (More::Power, "all members without power", &mut more.cuts_of_all),
            (More::Power, "registry without power", &mut more.cuts_of_registry),
            (More::Power, "back in their own place", &mut more.back_itself),
            (More::Power, "back, and superseded", &mut more.back_superseded),
            (More::Power, "unsynced files lost", &mut more.unsynced),
            (More::Power, "synced files kept", &mut more.lasted),
            (More::Power, "calls that ended with a machine", &mut more.never_sent),
            (More::Power, "copies that came again", &mut more.came_again),
            (More::Power, "adoptions undone", &mut more.not_adopted),
            (More::Leader, "leaders changed", &mut more.leaders),
            (More::Leader, "leases extended", &mut more.extended),
            (More::Leader, "commits in doubt", &mut more.in_doubt),
            (More::Leader, "watches behind", &mut more.behind),
            (More::Leader, "barriers before a watch that is behind", &mut more.asked_behind),
        ]
    }

    pub fn add(&mut self, other: &Counts) {
        let mut other = other.clone();
        for ((.., mine), (.., theirs)) in self.list_more().into_iter().zip(other.list_more()) {
            *mine += *theirs;
        }
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

    /// Asserts that every injected fault has happened.
    pub fn all_happened(&mut self, plan: Plan) {
        for (name, count) in self.list() {
            assert!(*count > 0 || (plan.grants && name == "renames"), "{name}: never");
        }
        for (name, count) in self.list_copied() {
            assert!((*count > 0) == (plan.copies > 0), "{name}: {count}");
        }
        for (more, name, count) in self.list_more() {
            // These are rare where nothing is synced, nothing renamed and no member taken over; and where all
            // else happens, too.
            let seldom =
                ["gates", "back, and superseded", "adoptions", "calls that", "copies that"];
            let is_listed = seldom.iter().any(|seldom| name.starts_with(seldom));
            let is_seldom = is_listed && (plan.grants || plan.more == More::All);
            assert!(*count > 0 || is_seldom || !plan.has(more), "{name}: never");
        }
        for (name, count) in self.list_direct() {
            assert!((*count > 0) == plan.direct, "{name}: {count}");
        }
        for (name, count) in self.list_granted() {
            assert!(*count > 0 || !plan.grants, "{name}: never");
        }
    }
}
