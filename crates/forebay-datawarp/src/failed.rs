//! Failed stages, file by file: those of a stage-out are in the manifest, those of a stage-in in the record
//! of the transfer.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use forebay_base::Result;

use crate::place::{Place, Site};
use crate::records::{Direction, Missing, Mode, Transfer, What};
use crate::standing::{Scope, Standing, counting, is_above, is_of};

/// A file whose stage failed, by its path in the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub path: PathBuf,
    pub errno: i32,
}

/// The failed files at the time of `dw_open_failed_stage`; later failures are not in it.
pub struct Listing {
    left: VecDeque<Failed>,
}

impl Listing {
    pub fn open(path: &Path) -> Result<Listing> {
        path.metadata().map_err(|e| forebay_base::Error::io(e, path.display().to_string()))?;
        let site = Site::here()?;
        let place = site.place(path)?;
        let all = site.transfers()?;
        let stages = counting(&place.only(&all), &place.path, Scope::Tree);
        let failed = stages.iter().filter(|one| Standing::of(one) == Some(Standing::Failed));
        let mut left = VecDeque::new();
        for transfer in failed {
            let newer: Vec<_> = stages.iter().filter(|one| one.id > transfer.id).collect();
            let files = files_of(&place, transfer)?.into_iter().filter(|failed| {
                let renewed = newer
                    .iter()
                    .any(|newer| is_of(newer, &failed.path) || is_above(newer, &failed.path));
                // A file that was unlinked has no failed stage.
                let there =
                    transfer.direction == Direction::In || failed.path.symlink_metadata().is_ok();
                failed.path.starts_with(&place.path) && !renewed && there
            });
            left.extend(files);
        }
        Ok(Listing { left })
    }

    pub fn first(&self) -> Option<&Failed> {
        self.left.front()
    }

    pub fn pass(&mut self) {
        self.left.pop_front();
    }
}

/// The files of a failed transfer whose names are known.
pub fn files_of(place: &Place<'_>, transfer: &Transfer) -> Result<Vec<Failed>> {
    let said: Vec<(String, String)> = match transfer.direction {
        Direction::Out => {
            let lines: Vec<Missing> = place.site.daemon.get("/v1/manifest")?;
            let its = |line: &Missing| line.transfer.as_deref() == Some(&transfer.id);
            lines.into_iter().filter(its).map(|line| (line.file, line.why)).collect()
        }
        Direction::In => {
            let actual = transfer.current().cloned();
            let files = actual.map(|actual| actual.failed).unwrap_or_default();
            files.into_iter().map(|file| (file.path, file.why)).collect()
        }
    };
    if said.is_empty() {
        let why = transfer.current().and_then(|actual| actual.why.clone()).unwrap_or_default();
        return Ok(vec![Failed { path: transfer.inside().into(), errno: errno_in(&why) }]);
    }
    let failed = |(name, why): &(String, String)| Failed {
        path: shown(place, transfer, name),
        errno: errno_in(why),
    };
    Ok(said.iter().map(failed).collect())
}

/// The path in the instance of a name in a report. The name is relative to the top of the transfer, or, for
/// a cache, to the mount.
fn shown(place: &Place<'_>, transfer: &Transfer, name: &str) -> PathBuf {
    // If the transfer failed as a whole, its one line names the source itself.
    if Path::new(name) == transfer.inside() {
        return transfer.inside().into();
    }
    let name = name.trim_start_matches('/');
    let top = match (place.instance.mode, transfer.what) {
        _ if name.is_empty() => return transfer.inside().into(),
        (_, What::File | What::Other) => return transfer.inside().into(),
        (Mode::Cache, What::Directory) => place.root(),
        (_, What::Directory) => transfer.inside(),
    };
    top.join(name)
}

/// The errno in an error text of Rust, which puts the number behind the message; EIO for other errors, such
/// as a source that changed while it was copied.
fn errno_in(why: &str) -> i32 {
    let number = |text: &str| text.split_once(')')?.0.parse().ok();
    let found = why.rsplit_once("(os error ").and_then(|(_, rest)| number(rest));
    found.filter(|errno| *errno > 0).unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errno_of_a_failure_is_the_one_in_its_words() {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(errno_in(&format!("destination: writing: {full}")), libc::ENOSPC);
        assert_eq!(errno_in("source: it changed while it was copied"), libc::EIO);
        assert_eq!(errno_in("odd (os error x)"), libc::EIO);
    }
}
