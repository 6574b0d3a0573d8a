//! The rules that keep bytes safe, by name. A simulation switches each off and must see damage.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// An open believes the mirror only behind a barrier that began after the open.
    BarrierBeforeOpen,
    /// A member that is asked for a file without a barrier, by what the asker's mirror says, serves it only if it is
    /// the home for certain.
    HomeVouches,
    /// An unclaimed file may be held by a member that makes files in its directory.
    AskCreators,
    /// A creator's "no" may be newer than the barrier before it: the asker looks again behind another barrier.
    LookAfterCreators,
    /// An unclaimed file is claimed before another file takes its name.
    ClaimBeforeReplace,
    /// A file of which other members held newer bytes is looked up in the store again.
    ForgetOnGiven,
    /// No member claims or begins to create while a directory is renamed.
    GateStopsClaims,
    /// A member that renames a directory has others give back what they hold below.
    RecallBelowGate,
    /// A rename begins while its gate stands: a gate goes with its owner's lease.
    GateStands,
    /// A writer of an unclaimed file claims it first.
    ClaimBeforeWrite,
    /// A program of another member writes only once the claim has come under which its writes are owed to it.
    ClaimBeforeServe,
    /// A directory stays claimed for new files until the creations begun in it are done, however long they take.
    MakingKeepsCreates,
    /// The question whether a file is held is answered once the creations under way in its directory are done: the file
    /// may be one of them.
    HoldsWaitsForMaking,
    /// A claim counts once the mirror has it: by then the mirror has seen the give-backs before it.
    ReachOwnClaim,
    /// A claim goes only when its file's bytes are flushed.
    ReleaseBeforeGiveBack,
    /// No writer begins between the flush and the end of the give-back.
    WritersWaitDuringRelease,
    /// No reader begins once the give-back was sent.
    ReadersWaitDuringGiveBack,
    /// An unclaimed file is looked at after a change: a member that has claimed it is told.
    LookAfterChange,
    /// A process whose epoch was taken changes nothing.
    EpochStands,
    /// Questions of others wait until a restarted member knows its dirty files.
    BeganBeforeHolds,
    /// A partner counts once it has all bytes.
    FilledBeforeCounted,
    /// Bytes that a partner did not take are acknowledged once a commit has struck the partner off.
    StruckBeforeAcknowledged,
    /// A member that takes a home over takes no more copies from that home.
    TakerRefusesCopies,
    /// A partner that was struck off does not take over.
    OnlyInSyncTakes,
    /// A member that is alive is not taken over.
    OnlyDeadIsTaken,
    /// A copy that was made under an earlier claim of the file is not used.
    CopyHasClaimsNumber,
    /// Bytes are in the taker's tier before the claim is.
    AdoptBeforeClaim,
    /// Tasks wait for a dead member's files while another member takes that member over.
    WaitForTaker,
    /// A taken-over file stays newer than the store until no other member writes it there.
    HeldUntilFenced,
    /// A member that may have been taken over does nothing without a lease.
    LeaseStands,
    /// A taker that has lost some of a dead member's copies does not give up the claims for which it has none.
    OnlyWholeGivesUp,
    /// A member that comes back checks what others have claimed before it trusts its own files.
    ReturnedLooks,
    /// A read grant counts once the mirror has it: by then the mirror has seen the earlier claims.
    GrantReached,
    /// A grant is worth nothing once the lease that it hung on has run out, also when there is another lease.
    GrantEndsWithLease,
    /// A grant does not count in a directory where others make files, or bring names.
    CreatorsBeforeGrant,
    /// A claim counts once all members with older read grants know of it, or their grants are gone.
    ClaimWaitsForGrants,
    /// Making files in a directory likewise waits for older grants.
    CreatesWaitForGrants,
    /// A member with a read grant says that it knows of a claim only when its mirror has it.
    AnswerMeansReached,
}

/// The rules that hold: all of them outside simulations.
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
