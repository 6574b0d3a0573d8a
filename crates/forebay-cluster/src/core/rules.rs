//! The rules that keep bytes safe, by name. A simulation switches each off and must see damage.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// An open believes the mirror only behind a barrier that began after it.
    BarrierBeforeOpen,
    /// Who is asked for a file without a barrier, by what the mirror says, serves it only if it is its home for certain.
    HomeVouches,
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
    /// It begins while its gate stands: a gate goes with its owner's lease.
    GateStands,
    /// A writer of an unclaimed file claims it first.
    ClaimBeforeWrite,
    /// A program elsewhere writes once the claim is there under which that is owed to it.
    ClaimBeforeServe,
    /// A directory stays claimed for new files until what was begun in it is made, however long that takes.
    MakingKeepsCreates,
    /// Whether a file is held is said once what was being made in its directory is known: it may be one of these.
    HoldsWaitsForMaking,
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
    /// A partner counts once it has all.
    FilledBeforeCounted,
    /// What a partner did not take is acknowledged once a commit has struck it off.
    StruckBeforeAcknowledged,
    /// Who takes a member over takes no more copies of it.
    TakerRefusesCopies,
    /// A partner that was struck off does not take over.
    OnlyInSyncTakes,
    /// Nor is a member taken over that is alive.
    OnlyDeadIsTaken,
    /// A copy that was made under an earlier claim of the file is worth nothing.
    CopyHasClaimsNumber,
    /// Bytes are in the taker's tier before the claim is.
    AdoptBeforeClaim,
    /// What a dead member held is waited for while another takes it over.
    WaitForTaker,
    /// What was taken over stays newer than the store until nobody else writes there.
    HeldUntilFenced,
    /// Who may have been taken over does nothing without a lease.
    LeaseStands,
    /// Who has lost some of a dead member's copies does not give up what it has none of.
    OnlyWholeGivesUp,
    /// Who comes back does not believe in what others have claimed.
    ReturnedLooks,
    /// A read grant counts once the mirror has it: what was claimed before was seen then.
    GrantReached,
    /// It is worth nothing once the lease that it hung on has run out, also when there is another.
    GrantEndsWithLease,
    /// Nor in a directory where others make files, or bring names.
    CreatorsBeforeGrant,
    /// A claim counts once all with read grants that are older know of it, or their grants are gone.
    ClaimWaitsForGrants,
    /// So does that files are made in a directory.
    CreatesWaitForGrants,
    /// Who has a read grant knows of a claim when the mirror does: not before that is it said.
    AnswerMeansReached,
}

/// Which rules hold: all of them outside simulations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    off: u64,
}

impl Rules {
    #[cfg(test)]
    pub fn without(rule: Rule) -> Rules {
        Rules { off: 1 << rule as u64 }
    }

    pub(super) fn obey(self, rule: Rule) -> bool {
        self.off & (1 << rule as u64) == 0
    }
}
