//! Looking at a tier without changing it.

use std::path::{Path, PathBuf};

use forebay_backing::{Error, Result};
use serde::Serialize;

use crate::index;
use crate::media::{DirMedia, Media};
use crate::state::FileState;
use crate::tier;
use crate::witness::Witness;

/// What is in a tier, and what is wrong with it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    pub ok: bool,
    pub files: u64,
    pub clean_bytes: u64,
    pub dirty_files: u64,
    pub dirty_bytes: u64,
    pub problems: Vec<String>,
    /// Files with dirty bytes.
    pub dirty: Vec<PathBuf>,
}

/// Verifies a tier that nobody uses: superblock, index, log, and that every shadow file that
/// should hold bytes can. Changes nothing.
pub fn check(dir: &Path) -> Result<CheckReport> {
    let _lock = tier::lock_existing(dir)?;
    let media =
        DirMedia::open(dir).map_err(|e| Error::io(e, format!("the tier {}", dir.display())))?;
    let loaded = match index::load_read_only(&media) {
        Ok(loaded) => loaded,
        Err(e) => {
            let problem = format!("the index of the tier {} cannot be read: {e}", dir.display());
            return Ok(CheckReport { problems: vec![problem], ..CheckReport::default() });
        }
    };
    let boot = loaded.boot(&Witness::here(&media));
    let mut report = CheckReport { problems: loaded.problems, ..CheckReport::default() };
    for (id, state) in &loaded.files {
        report.files += 1;
        let dirty = state.dirty_bytes_after(boot);
        report.clean_bytes += state.ranges.bytes(|_| true) - dirty;
        if state.may_be_dirty(boot) {
            report.dirty_files += 1;
            report.dirty_bytes += dirty;
            report.dirty.push(state.display_path());
        }
        report.problems.extend(problem(&media, &tier::shadow_name(*id), state));
    }
    report.ok = report.problems.is_empty();
    Ok(report)
}

fn problem(media: &dyn Media, shadow: &str, state: &FileState) -> Option<String> {
    if state.ranges.count() == 0 && !state.flags.opaque {
        return None;
    }
    let path = state.display_path();
    let dirty = state.dirty_bytes();
    let stat = match media.stat(shadow) {
        Ok(stat) => stat,
        Err(e) => {
            return Some(format!(
                "{}: shadow file {shadow}: {e} ({dirty} dirty bytes)",
                path.display()
            ));
        }
    };
    let need = state.ranges.iter().last().map_or(0, |run| run.end);
    (stat.len < need && !state.flags.opaque).then(|| {
        format!(
            "{}: shadow file {shadow} has {} bytes, {need} are on record ({dirty} dirty bytes)",
            path.display(),
            stat.len
        )
    })
}
