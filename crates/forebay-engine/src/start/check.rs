//! Looking at a tier without changing it.

use std::path::{Path, PathBuf};

use forebay_backing::Result;
use serde::Serialize;

use crate::core::id::FileId;
use crate::core::state::{Boot, Record, Verdict};
use crate::start::report::why_dropped;
use crate::tier::dir as tier;
use crate::tier::index::Loaded;
use crate::tier::media::Media;
use crate::tier::witness::Witness;
use crate::tier::{index, shadows};
use crate::time::Time;

/// What a mount would find in a tier, and what is wrong with it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    pub ok: bool,
    pub files: u64,
    pub clean_bytes: u64,
    pub dirty_files: u64,
    pub dirty_bytes: u64,
    /// What was never synced and went with the power, or with the tier's file system: no damage.
    pub dropped_files: u64,
    pub dropped_bytes: u64,
    /// How, in words, if anything was dropped.
    pub why_dropped: Option<&'static str>,
    /// What has to be there and is not.
    pub lost_files: u64,
    pub lost_bytes: u64,
    pub problems: Vec<String>,
    /// Files with dirty bytes.
    pub dirty: Vec<PathBuf>,
}

impl CheckReport {
    fn of(media: &dyn Media, loaded: Loaded, now: &Witness) -> CheckReport {
        let (since, boot) = (loaded.since(now), loaded.boot(now));
        let problems = [loaded.damage, loaded.problems].concat();
        let mut report = CheckReport { problems, ..CheckReport::default() };
        for (id, record) in loaded.files {
            report.file(media, id, record, boot);
        }
        report.why_dropped = (report.dropped_files > 0).then(|| why_dropped(since));
        report.ok = report.problems.is_empty();
        report
    }

    fn file(&mut self, media: &dyn Media, id: FileId, mut record: Record, boot: Boot) {
        let path = record.display_path();
        self.files += 1;
        let found = match shadows::look(media, id, &record, boot) {
            Ok(found) => found,
            Err(e) => {
                let name = tier::shadow_name(id);
                return self.problems.push(format!("{}: shadow file {name}: {e}", path.display()));
            }
        };
        let shadow = found.shadow(&record);
        let survived = record.recover(boot, shadow, Time::default().ms());
        self.dropped_files += u64::from(survived.dropped > 0);
        self.dropped_bytes += survived.dropped;
        self.lost_files += u64::from(survived.lost > 0);
        self.lost_bytes += survived.lost;
        let problem = found.problem(id, survived.lost);
        self.problems.extend(problem.map(|what| format!("{}: {what}", path.display())));
        if survived.verdict == Verdict::Drop {
            return;
        }
        let dirty = record.dirty_bytes();
        self.clean_bytes += record.present_bytes() - dirty;
        if record.is_dirty() {
            self.dirty_files += 1;
            self.dirty_bytes += dirty;
            self.dirty.push(path);
        }
    }
}

/// Verifies a tier that nobody uses: superblock, index, log, and that every shadow file that
/// should hold bytes can. Changes nothing.
pub fn check(dir: &Path) -> Result<CheckReport> {
    let (media, _lock) = tier::open_existing(dir)?;
    let now = Witness::here(&media);
    let loaded = match index::load_read_only(&media, &now) {
        Ok(loaded) => loaded,
        Err(e) => {
            let problem = format!("the index of the tier {} cannot be read: {e}", dir.display());
            return Ok(CheckReport { problems: vec![problem], ..CheckReport::default() });
        }
    };
    Ok(CheckReport::of(&media, loaded, &now))
}
