//! The rules that keep bytes safe, by name. A simulation switches each off and must see damage.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// An open believes the mirror only behind a barrier that began after it.
    BarrierBeforeOpen,
    /// An unclaimed file may be held by who makes files in its directory.
    AskCreators,
    /// A creator's "no" may be newer than the barrier before it: look again behind another.
    LookAfterCreators,
    /// An unclaimed file is claimed before its name is taken from it by another.
    ClaimBeforeReplace,
    /// A file of which others held newer bytes is looked up in the store again.
    ForgetOnGiven,
    /// Nobody claims or begins to create while a directory is renamed.
    GateStopsClaims,
    /// Who renames a directory has others give back what they hold below.
    RecallBelowGate,
    /// A writer of an unclaimed file claims it first.
    ClaimBeforeWrite,
    /// A directory stays claimed for new files until what was begun in it is made, however long that takes.
    MakingKeepsCreates,
    /// A claim counts once the mirror has it: give-backs before it were seen then.
    ReachOwnClaim,
    /// A claim goes only when the bytes are home.
    ReleaseBeforeGiveBack,
    /// No writer begins between the flush and the end of the give-back.
    WritersWaitDuringRelease,
    /// No reader begins either once the give-back was sent.
    ReadersWaitDuringGiveBack,
    /// A changed file that was unclaimed is looked at afterwards: who claimed it is told.
    LookAfterChange,
    /// A process whose epoch was taken changes nothing.
    EpochStands,
    /// What others ask waits until a restarted member knows its dirty files.
    BeganBeforeHolds,
}

/// Which rules hold: all of them outside simulations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    off: u32,
}

impl Rules {
    #[cfg(test)]
    pub fn without(rule: Rule) -> Rules {
        Rules { off: 1 << rule as u32 }
    }

    pub(super) fn obey(self, rule: Rule) -> bool {
        self.off & (1 << rule as u32) == 0
    }
}
