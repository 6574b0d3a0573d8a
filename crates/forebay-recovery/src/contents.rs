//! What a tier has, read before anybody is told that it is in use.

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

/// A tier that was read, to start an engine on. Nothing in it was changed by that but the format of an older one.
pub struct Contents {
    tier: Tier,
    index: Index,
    loaded: Loaded,
    witness: Witness,
    copies: Found,
    digests: Digests,
}

/// A tier that was recovered: what an engine begins with.
pub struct Recovered {
    pub tier: Tier,
    pub index: Index,
    pub witness: Witness,
    pub copies: Found,
    pub digests: Digests,
    /// What is known of files, as it is on record.
    pub files: BTreeMap<FileId, Record>,
    /// No shadow has this number, or one above it.
    pub next_id: u64,
    /// Files that somebody still writes to past us.
    pub lingering: Vec<FileId>,
    /// Files whose shadows are to go.
    pub nameless: Vec<FileId>,
    pub report: RecoveryReport,
}

impl Contents {
    /// Reads a tier that is ours.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or the copies for others.
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

    /// Settles what a crash has left half done, in the tier and of the names of `owned` on the store, and begins the index
    /// anew. `now_ms` is the time of day, in milliseconds since the epoch. A crash in the midst of it leaves a tier that is
    /// recovered likewise the next time.
    ///
    /// # Errors
    ///
    /// If the tier fails, or the store does not answer where a change of names was under way. Nothing dirty is dropped then.
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

    /// Another one each time that the tier has lost what was written to it and never synced.
    pub fn memory(&self) -> String {
        format!("{}.{}", self.tier.uuid(), self.loaded.losses(&self.witness))
    }
}
