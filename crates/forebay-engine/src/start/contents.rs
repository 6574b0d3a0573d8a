//! What a tier has, read before anybody is told that it is in use.

use forebay_backing::{Error, Kind, Result};

use crate::tier::digests::Digests;
use crate::tier::dir::Tier;
use crate::tier::index::{Index, Loaded};
use crate::tier::shelf::Found;
use crate::tier::witness::Witness;

/// A tier that was read, to start an engine on. Nothing in it was changed by that but the format of an older one.
pub struct Contents {
    pub(crate) tier: Tier,
    pub(crate) index: Index,
    pub(crate) loaded: Loaded,
    pub(crate) witness: Witness,
    pub(crate) copies: Found,
    pub(crate) digests: Digests,
}

impl Contents {
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

    /// Another one each time that the tier has lost what was written to it and never synced.
    pub fn memory(&self) -> String {
        format!("{}.{}", self.tier.uuid(), self.loaded.losses(&self.witness))
    }
}
