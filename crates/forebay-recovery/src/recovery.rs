//! Starting on a tier: surviving bytes are separated from lost ones, and steps that a crash left
//! half done are settled.

use std::collections::HashSet;

use forebay_backing::{BackingStore, Error, Result};

use crate::core::id::FileId;
use crate::core::near::Owned;
use crate::core::state::{Boot, Change, Record, Survived, Verdict};
use crate::report::RecoveryReport;
use crate::tier::digests;
use crate::tier::digests::Digests;
use crate::tier::dir as tier;
use crate::tier::dir::SHADOW_DIRS;
use crate::tier::index::{Index, Loaded};
use crate::tier::media::{Media, Open};
use crate::tier::shadows;
use crate::tier::shadows::Found;
use crate::tier::taken;
use crate::tier::witness::{Since, Witness};

/// One pass over the files that were found.
pub(crate) struct Recovery<'a> {
    pub media: &'a dyn Media,
    pub backing: &'a dyn BackingStore,
    pub index: &'a Index,
    pub boot: Boot,
    /// The files whose names may be made again.
    pub owned: &'a Owned,
    /// The time of day.
    pub now_ms: u64,
    pub report: RecoveryReport,
    pub changed: Vec<FileId>,
    pub lingering: Vec<FileId>,
    /// Files that have lost their last name.
    pub nameless: Vec<FileId>,
}

/// The results of the pass.
pub(crate) struct Outcome {
    pub report: RecoveryReport,
    pub changed: Vec<FileId>,
    /// Files that a program still writes to past the daemon.
    pub lingering: Vec<FileId>,
    /// Files whose shadows are to be removed.
    pub nameless: Vec<FileId>,
}

impl Recovery<'_> {
    pub fn run(
        media: &dyn Media,
        backing: &dyn BackingStore,
        index: &Index,
        loaded: &mut Loaded,
        spared: &HashSet<FileId>,
        witness: &Witness,
        (owned, now_ms): (&Owned, u64),
    ) -> Result<Outcome> {
        let since = loaded.since(witness);
        let boot = loaded.boot(witness);
        let report = RecoveryReport {
            same_boot: since != Since::Rebooted,
            remounted: since == Since::Remounted,
            clean_shutdown: loaded.clean_shutdown || since == Since::Unused,
            problems: std::mem::take(&mut loaded.problems),
            ..RecoveryReport::default()
        };
        let mut pass = Recovery {
            media,
            backing,
            index,
            boot,
            owned,
            now_ms,
            report,
            changed: Vec::new(),
            lingering: Vec::new(),
            nameless: Vec::new(),
        };
        if boot == Boot::Kept {
            // Syncs past the daemon rest on kept bytes: such a file is wholly dirty soon, and
            // durable where it was kept.
            let goes = |state: &Record| state.keeps() && !state.is_held() && !state.is_unseen();
            let kept = loaded.files.iter_mut().filter(|(_, state)| goes(state));
            pass.changed.extend(kept.map(|(id, state)| {
                state.apply(&Change::LetGo { start: 0, end: u64::MAX });
                *id
            }));
        }
        let lingers = loaded.files.values().any(|state| state.is_unseen());
        if !pass.report.clean_shutdown || lingers {
            pass.sort(loaded, spared)?;
        } else {
            pass.prove_dirty(loaded)?;
        }
        match loaded.names.is_empty() {
            true => pass.note_ctimes(loaded, |_| None),
            false => pass.settle_names(loaded)?,
        }
        for state in loaded.files.values() {
            pass.report.files += 1;
            pass.report.conflicted_files += u64::from(state.conflict().stands());
            if state.is_dirty() {
                pass.report.dirty_files += 1;
                pass.report.dirty_bytes += state.dirty_bytes();
            }
        }
        pass.report.problems.iter().for_each(|p| tracing::warn!("recovery: {p}"));
        let Recovery { report, changed, lingering, nameless, .. } = pass;
        Ok(Outcome { report, changed, lingering, nameless })
    }

    /// Keeps, repairs or drops every file. `spared` are shadow files that other records name.
    fn sort(&mut self, loaded: &mut Loaded, spared: &HashSet<FileId>) -> Result<()> {
        let every_record_was_read = self.report.problems.is_empty();
        let mut shadows = self.shadows()?;
        let ids: Vec<FileId> = loaded.files.keys().copied().collect();
        for id in ids {
            let exists = shadows.remove(&id);
            if self.keep_or_drop(loaded, id, exists)? == Verdict::Drop && exists {
                shadows.insert(id);
            }
        }
        // A shadow without a record holds no byte that counts, if every record could be read.
        if every_record_was_read {
            for id in shadows.difference(spared) {
                let _ = self.media.remove(&tier::shadow_name(*id));
            }
            for id in Digests::all(self.media) {
                if !loaded.files.contains_key(&id) {
                    let _ = self.media.remove(&digests::name(id));
                }
            }
        }
        Ok(())
    }

    /// After a clean shutdown only dirty files are compared now; the others at their first use.
    fn prove_dirty(&mut self, loaded: &mut Loaded) -> Result<()> {
        let dirty = loaded.files.iter().filter(|(_, state)| state.is_dirty());
        let ids: Vec<FileId> = dirty.map(|(id, _)| *id).collect();
        for id in ids {
            if !self.look(id, &loaded.files[&id])?.is_sound() {
                self.keep_or_drop(loaded, id, true)?;
            }
        }
        Ok(())
    }

    fn look(&self, id: FileId, state: &Record) -> Result<Found> {
        let name = || format!("looking at the shadow file {}", tier::shadow_name(id));
        shadows::look(self.media, id, state, self.boot).map_err(|e| Error::io(e, name()))
    }

    fn keep_or_drop(&mut self, loaded: &mut Loaded, id: FileId, exists: bool) -> Result<Verdict> {
        let state = loaded.files.get_mut(&id).expect("who calls lists them");
        let verdict = self.recover_file(id, state, exists)?;
        if verdict == Verdict::Drop {
            loaded.files.remove(&id);
            self.changed.push(id);
        }
        Ok(verdict)
    }

    fn shadows(&self) -> Result<HashSet<FileId>> {
        let mut found = HashSet::new();
        for dir in 0..SHADOW_DIRS {
            let names = self.media.list(&tier::shadow_dir(FileId(dir)));
            let names = names.map_err(|e| Error::io(e, "listing the shadow files"))?;
            found.extend(names.iter().filter_map(|n| u64::from_str_radix(n, 16).ok()).map(FileId));
        }
        Ok(found)
    }

    fn recover_file(&mut self, id: FileId, state: &mut Record, exists: bool) -> Result<Verdict> {
        // A clean file of the same boot needs no second look.
        if self.boot == Boot::Kept && !state.is_dirty() && (exists || !state.has_bytes()) {
            return Ok(Verdict::Keep);
        }
        if self.boot == Boot::Kept && state.is_unseen() && exists {
            let shadow = self.media.open(&tier::shadow_name(id), Open::Existing);
            let alone = shadow.and_then(|shadow| shadow.is_ours_alone());
            // A file system without leases cannot tell; then no program is assumed to write.
            if !alone.unwrap_or(true) {
                self.lingering.push(id);
                return Ok(Verdict::Keep);
            }
        }
        let before = state.clone();
        let name = tier::shadow_name(id);
        let found = self.look(id, state)?;
        let survived = state.recover(self.boot, found.shadow(&before), self.now_ms);
        self.note(&found, id, &before, &survived);
        if let Found::Foreign(_) = found {
            shadows::set_aside(self.media, id)
                .map_err(|e| Error::io(e, format!("setting {name} aside")))?;
        }
        if survived.verdict == Verdict::Keep {
            // Programs that are passed through to the shadow would read on, or not far enough.
            if let Found::Sound(stat) | Found::Short(stat) = found
                && stat.len != state.size()
            {
                let file = self.media.open(&name, Open::Existing);
                file.and_then(|file| file.set_len(state.size()))
                    .map_err(|e| Error::io(e, format!("repairing the shadow file {name}")))?;
            }
        }
        if *state != before {
            self.changed.push(id);
        }
        Ok(survived.verdict)
    }

    fn note(&mut self, found: &Found, id: FileId, before: &Record, survived: &Survived) {
        let Survived { dropped, lost, .. } = *survived;
        if dropped + lost > 0 {
            taken::remove(self.media, before.key);
        }
        self.report.dropped_files += u64::from(dropped > 0);
        self.report.dropped_bytes += dropped;
        self.report.lost_files += u64::from(lost > 0);
        self.report.lost_bytes += lost;
        let problem = found.problem(id, lost);
        let path = before.display_path();
        let named = problem.map(|what| format!("{}: {what}", path.display()));
        self.report.problems.extend(named);
    }
}

pub(crate) fn is_none(error: &Error) -> bool {
    error.is(libc::ENOENT) || error.is(libc::ENOTDIR)
}
