//! The directory that is the tier of a cache instance.

use std::path::PathBuf;

use forebay_base::{Error, Result};

use super::make::{made_dir, open_dir};
use super::mount::hand_over;
use super::pool::Pool;
use super::{Id, Owner, Record, Stage, What, usage_error};
use crate::failpoint;

impl Pool {
    /// Makes the directory of a tier, or confirms an existing one. `bytes` is the grant of the
    /// instance; its daemon keeps to it.
    ///
    /// [`Pool::remove`] removes it: the caller makes sure first that it holds no dirty bytes.
    pub fn tier_dir(&self, id: &Id, owner: Owner, bytes: u64) -> Result<PathBuf> {
        let _turn = self.turn(id);
        let mut record = match Record::load(&self.inner.state, id)? {
            Some(record) => confirmed(record, owner)?,
            None => {
                let record = Record::new(id, bytes, What::Tier { owner });
                record.save(&self.inner.state)?;
                record
            }
        };
        failpoint::pass("tier-recorded");
        let folder = &self.inner.tiers;
        let known = record.stage == Stage::Ready;
        if known && open_dir(folder, id.as_str(), owner)?.is_none() {
            let at = folder.path().join(id.as_str());
            let context = format!("{}: the tier of {id} is gone", at.display());
            return Err(Error::os(libc::ENOENT, context));
        }
        let dir = made_dir(folder, id.as_str(), owner)?;
        failpoint::pass("tier-directory");
        hand_over(&dir, owner, 0o700)?;
        if !known {
            record.stage = Stage::Ready;
            record.save(&self.inner.state)?;
        }
        Ok(folder.path().join(id.as_str()))
    }
}

fn confirmed(record: Record, owner: Owner) -> Result<Record> {
    let id = &record.id;
    match &record.what {
        _ if record.is_removing() => {
            let context = format!("{id} is being removed: wait until it is gone");
            Err(Error::os(libc::EBUSY, context))
        }
        What::Tier { owner: known } if *known == owner => Ok(record),
        What::Tier { .. } => Err(usage_error(format!("{id}: the tier has another owner"))),
        _ => Err(usage_error(format!("{id} is there, but is no cache"))),
    }
}
