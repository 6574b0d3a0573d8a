//! Looking at a tier without changing it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::Result;
use serde::Serialize;

use crate::core::id::FileId;
use crate::core::report::Progress;
use crate::core::state::{Boot, Portrait, Record, Verdict};
use crate::report::why_dropped;
use crate::scrub::{Scrubbed, scrub, scrub_copy};
use crate::tier::digests::Digests;
use crate::tier::dir::{self as tier, Existing};
use crate::tier::index::Loaded;
use crate::tier::media::Media;
use crate::tier::shelf::Found;
use crate::tier::witness::Witness;
use crate::tier::{index, shadows};
use crate::time::Time;

/// The state in which a mount would find a tier, and its problems.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    pub ok: bool,
    pub files: u64,
    pub clean_bytes: u64,
    pub dirty_files: u64,
    pub dirty_bytes: u64,
    /// Files and bytes that were never synced and were lost with the power, or when the tier's file
    /// system was unmounted: no damage.
    pub dropped_files: u64,
    pub dropped_bytes: u64,
    /// How they were lost, as text, if any were.
    pub why_dropped: Option<&'static str>,
    /// Files and bytes that should be in the tier and are missing.
    pub lost_files: u64,
    pub lost_bytes: u64,
    /// Files with a conflict on record that an operator has to settle: the problems say why.
    pub conflicted_files: u64,
    pub problems: Vec<String>,
    /// Whether daemons refuse the tier: none mounts or flushes it, and its contents can be saved
    /// elsewhere, as [`salvage`](crate::salvage::salvage()) does.
    pub is_refused: bool,
    /// Files with dirty bytes.
    pub dirty: Vec<PathBuf>,
    /// The result of reading all bytes, if that was asked for.
    pub scrubbed: Option<Scrubbed>,
}

impl CheckReport {
    fn of(
        media: &Arc<dyn Media>,
        loaded: Loaded,
        now: &Witness,
        data: Option<&Progress>,
    ) -> CheckReport {
        let (since, boot) = (loaded.since(now), loaded.boot(now));
        let is_refused = !loaded.damage.is_empty();
        let problems = [loaded.damage, loaded.problems].concat();
        let mut report = CheckReport { problems, is_refused, ..CheckReport::default() };
        let is_ours = |id, file| loaded.files.get(&id).is_some_and(|it| it.key == file);
        let copies = data.map(|_| Found::read(&**media, boot, &is_ours));
        let mut sound: Vec<(FileId, Record)> = Vec::new();
        for (id, record) in loaded.files {
            sound.extend(report.file(&**media, id, record, boot).map(|record| (id, record)));
        }
        if let Some((progress, copies)) = data.zip(copies) {
            let copies = copies.unwrap_or_else(|e| {
                report.problems.push(format!("copies that are kept for other members: {e}"));
                Found::default()
            });
            let digests = Digests::existing_of(media.clone(), boot);
            report.read_all(&**media, (&sound, &copies), digests.as_ref(), progress);
        }
        report.why_dropped = (report.dropped_files > 0).then(|| why_dropped(since));
        report
    }

    /// Reads the bytes of all files, and compares clean ones with the known digests of the store.
    fn read_all(
        &mut self,
        media: &dyn Media,
        (files, copies): (&[(FileId, Record)], &Found),
        digests: Option<&Digests>,
        progress: &Progress,
    ) {
        self.problems.extend(copies.problems());
        let of_copy = |portrait: &Portrait| portrait.ranges.bytes(|_| true);
        let bytes: u64 = files.iter().map(|(_, record)| record.present_bytes()).sum();
        let copied: u64 = copies.copies().map(|(_, portrait)| of_copy(portrait)).sum();
        progress.total_bytes.store(bytes + copied, Relaxed);
        progress.total_files.store((files.len() + copies.copies().count()) as u64, Relaxed);
        let mut sums = Scrubbed::default();
        for (id, record) in files {
            let found = scrub(media, digests, (*id, record), &mut sums, progress);
            self.read_one(record.display_path().display().to_string(), found, progress);
        }
        for (home, id, portrait) in copies.kept() {
            let found = scrub_copy(media, (id, portrait), &mut sums, progress);
            let name = portrait.first_path();
            self.read_one(format!("copy of {} for {home}", name.display()), found, progress);
        }
        self.scrubbed = Some(sums);
    }

    fn read_one(&mut self, name: String, found: io::Result<Vec<String>>, progress: &Progress) {
        let problems = found.unwrap_or_else(|e| vec![format!("its shadow file: {e}")]);
        let failed = u64::from(!problems.is_empty());
        self.problems.extend(problems.into_iter().map(|what| format!("{name}: {what}")));
        progress.failed_files.fetch_add(failed, Relaxed);
        progress.done_files.fetch_add(1, Relaxed);
    }

    /// Examines a file; returns its state after a start, if it survives.
    fn file(
        &mut self,
        media: &dyn Media,
        id: FileId,
        mut record: Record,
        boot: Boot,
    ) -> Option<Record> {
        let path = record.display_path();
        self.files += 1;
        let found = match shadows::look(media, id, &record, boot) {
            Ok(found) => found,
            Err(e) => {
                let name = tier::shadow_name(id);
                self.problems.push(format!("{}: shadow file {name}: {e}", path.display()));
                return None;
            }
        };
        let shadow = found.shadow(&record);
        let survived = record.recover(boot, shadow, Time::default().ms());
        self.dropped_files += u64::from(survived.dropped > 0);
        self.dropped_bytes += survived.dropped;
        self.lost_files += u64::from(survived.lost > 0);
        self.lost_bytes += survived.lost;
        let problem = found.problem(id, survived.lost);
        // A conflict that comes of a loss found here is reported as that loss.
        if record.conflict().stands() && survived.lost == 0 && survived.verdict == Verdict::Keep {
            let why = record.conflict().why();
            self.conflicted_files += 1;
            self.problems.push(format!("{}: in conflict: {why}", path.display()));
        }
        self.problems.extend(problem.map(|what| format!("{}: {what}", path.display())));
        if survived.verdict == Verdict::Drop {
            return None;
        }
        let dirty = record.dirty_bytes();
        self.clean_bytes += record.present_bytes() - dirty;
        if record.is_dirty() {
            self.dirty_files += 1;
            self.dirty_bytes += dirty;
            self.dirty.push(path);
        }
        Some(record)
    }
}

/// Verifies a tier that is not in use: superblock, index, log, and that every shadow file that
/// should hold bytes can hold them. Changes nothing.
///
/// # Errors
///
/// If `dir` is no tier, or the tier is in use.
pub fn check(dir: &Path) -> Result<CheckReport> {
    look(dir, None)
}

/// Like [`check`]; also reads all bytes of the tier, and compares clean ones with the store's content as
/// far as its digests are known. If `progress` is cancelled it ends early, and says nothing of the rest.
///
/// # Errors
///
/// As those of [`check`].
pub fn check_data(dir: &Path, progress: &Progress) -> Result<CheckReport> {
    look(dir, Some(progress))
}

fn look(dir: &Path, data: Option<&Progress>) -> Result<CheckReport> {
    let Existing { media, damage, lock: _lock } = tier::open_existing(dir)?;
    let now = Witness::here(&media);
    let mut report = match index::load_read_only(&media, &now) {
        Ok(loaded) => {
            let media: Arc<dyn Media> = Arc::new(media);
            CheckReport::of(&media, loaded, &now, data)
        }
        Err(e) => {
            let problem = format!("the index of the tier {} cannot be read: {e}", dir.display());
            CheckReport { problems: vec![problem], is_refused: true, ..CheckReport::default() }
        }
    };
    report.is_refused |= damage.is_some();
    report.problems.splice(0..0, damage.map(|error| error.to_string()));
    report.ok = report.problems.is_empty();
    Ok(report)
}
