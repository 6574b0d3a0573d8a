//! The contents of a tier, read before the tier is announced as in use.

use std::collections::BTreeMap;

use forebay_backing::{BackingStore, Error, Kind, Result};

use crate::core::id::FileId;
use crate::core::near::Owned;
use crate::core::state::Record;
use crate::recovery::{Outcome, Recovery};
use crate::report::RecoveryReport;
use crate::tier::digests::Digests;
use crate::tier::dir::Tier;
use crate::tier::index::{Index, Loaded};
use crate::tier::shelf::Found;
use crate::tier::witness::Witness;

/// A tier that was read, to start an engine on. Reading changes nothing in it except the format of
/// an older one.
pub struct Contents {
    tier: Tier,
    index: Index,
    loaded: Loaded,
    witness: Witness,
    copies: Found,
    digests: Digests,
}

/// A tier that was recovered, from which an engine begins.
pub struct Recovered {
    pub tier: Tier,
    pub index: Index,
    pub witness: Witness,
    pub copies: Found,
    pub digests: Digests,
    /// The records of files.
    pub files: BTreeMap<FileId, Record>,
    /// The ids of all shadow files are below this number.
    pub next_id: u64,
    /// Files that a program still writes to past the daemon.
    pub lingering: Vec<FileId>,
    /// Files whose shadows are to be removed.
    pub nameless: Vec<FileId>,
    pub report: RecoveryReport,
}

impl Contents {
    /// Reads a tier that is in this process's use.
    ///
    /// # Errors
    ///
    /// If the index, or the copies for others, cannot be read.
    pub fn read(mut tier: Tier) -> Result<Contents> {
        let witness = Witness::here(&*tier.media);
        let (index, loaded) = Index::open(tier.media.clone(), &witness).map_err(|e| {
            Error::new(
                Kind::WrongTier,
                "the tier's index is damaged, and nothing was changed: 'forebay check' says more; save what it holds with 'forebay recover TIER --to DIR', then move the tier away to start with a new one",
            )
            .with_source(e)
        })?;
        tier.take_over()?;
        let boot = loaded.boot(&witness);
        let is_ours = |id, file| loaded.files.get(&id).is_some_and(|it| it.key == file);
        let copies = Found::read(&*tier.media, boot, &is_ours)
            .map_err(|e| Error::io(e, "reading the copies that are kept for other members"))?;
        let digests = Digests::open(tier.media.clone(), boot)
            .map_err(|e| Error::io(e, "opening the tier's digests"))?;
        Ok(Contents { tier, index, loaded, witness, copies, digests })
    }

    /// Settles what a crash has left half done, in the tier and in the names of `owned` on the
    /// store, and begins the index anew. `now_ms` is the time of day, in milliseconds since the
    /// epoch. A crash during that leaves a tier that the next start recovers in the same way.
    ///
    /// # Errors
    ///
    /// If the tier fails, or the store does not answer where a change of names was under way. No
    /// dirty byte is dropped then.
    pub fn recover(
        self,
        backing: &dyn BackingStore,
        owned: &Owned,
        now_ms: u64,
    ) -> Result<Recovered> {
        let Contents { tier, index, mut loaded, witness, copies, digests } = self;
        let spared = copies.shadows();
        let next_id = spared.iter().map(|id| id.0 + 1).max().unwrap_or(0);
        loaded.next_id = loaded.next_id.max(next_id);
        let mut done = Recovery::run(
            &*tier.media,
            backing,
            &index,
            &mut loaded,
            &spared,
            &witness,
            (owned, now_ms),
        )?;
        done.report.problems.extend(copies.problems());
        let states = &loaded.files;
        index
            .begin(&witness, loaded.next_id, &done.changed, &|id| states.get(&id).cloned())
            .map_err(|e| Error::io(e, "writing the tier's index"))?;
        let (files, next_id) = (std::mem::take(&mut loaded.files), loaded.next_id);
        let Outcome { lingering, nameless, report, .. } = done;
        Ok(Recovered {
            tier,
            index,
            witness,
            copies,
            digests,
            files,
            next_id,
            lingering,
            nameless,
            report,
        })
    }

    /// Returns the name of the tier's memory, which changes each time that the tier has lost unsynced writes.
    pub fn memory(&self) -> String {
        format!("{}.{}", self.tier.uuid(), self.loaded.losses(&self.witness))
    }
}
