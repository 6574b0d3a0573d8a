//! The engine's reports on itself: listing, status, statistics.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Error, Result};

use crate::core::governor::{Decision, Limit};
use crate::core::report::{BusyFile, Failure, FileInfo, Gauges, Stats, Status};
use crate::files::file::{File, Inner};
use crate::files::glance::Glance;
use crate::ops::Ops;
use crate::tier::dir::shadow_name;

impl Ops {
    /// Returns the cached files at or below `prefix`, in the order of their paths.
    ///
    /// # Errors
    ///
    /// EBUSY if a file stays locked for so long that its state cannot be read.
    pub fn list(&self, prefix: &Path) -> Result<Vec<FileInfo>> {
        self.learn(prefix);
        let (mut glance, mut infos) = (Glance::new(self.files.time()), Vec::new());
        for file in self.files.candidates(&[prefix.into()]) {
            let busy = || Error::os(libc::EBUSY, "a file is at work in the tier: ask again later");
            let inner = glance.at(&file).ok_or_else(busy)?;
            let known = inner.charged() > 0 || inner.state.is_dirty() || inner.state.is_pinned();
            let everything = prefix.as_os_str().is_empty();
            let within = || inner.state.paths.any_within(prefix);
            if known && (everything || within()) {
                infos.push(file_info(&file, &inner, self.files.time().ms()));
            }
        }
        infos.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(infos)
    }

    pub fn status(&self) -> Status {
        let level = self.files.level();
        let decision = self.drain.decision();
        let outlook = decision.outlook;
        let copies_bytes = self.files.totals().copies();
        let gauges = Gauges {
            tier_bytes: level.tier_bytes,
            tier_short_bytes: self.files.totals().short(),
            used_bytes: level.used_bytes,
            dirty_bytes: level.dirty_bytes,
            clean_bytes: level.used_bytes.saturating_sub(level.dirty_bytes + copies_bytes),
            copies_bytes,
            flushing_bytes: self.drain.flushing_bytes(),
            passthrough_writers: self.files.totals().writers(),
            oldest_dirty_age_secs: level.oldest_age.map_or(0.0, |age| age.as_secs_f64()),
            governor: decision.term.name().into(),
            arrival_bytes_per_sec: outlook.arrival_rate as u64,
            drain_bytes_per_sec: outlook.drain_rate as u64,
            service_bytes_per_sec: outlook.service_rate as u64,
            full_in_secs: outlook.full_in.map(|time| time.as_secs_f64()),
            clean_in_secs: outlook.clean_in.map(|time| time.as_secs_f64()),
            copies_at_once: decision.depth,
            limited_by: self.limited_by(&decision).into(),
            backing_available: level.backing_available,
            last_error: self.home.health().last_error(),
            ..Gauges::default()
        };
        let attachment = self.files.attachment();
        let mut status = Status { gauges, attachment, troubles: Vec::new() };
        let mut glance = Glance::new(self.files.time());
        for file in self.files.all_files() {
            match glance.at(&file) {
                Some(inner) => self.count_file(&inner, &mut status),
                None => status.busy_files += 1,
            }
        }
        // A conflict waits for an operator to settle it, and nobody can say how long.
        if status.conflicted_files > 0 {
            status.clean_in_secs = None;
            if status.conflicted_files == status.dirty_files {
                status.limited_by = "conflicts".into();
            }
        }
        if status.dirty_files == 0 {
            status.limited_by = "nothing-dirty".into();
            status.clean_in_secs = None;
        }
        status
    }

    fn limited_by(&self, decision: &Decision) -> &'static str {
        if !self.home.health().is_available() {
            return Limit::BackingAway.name();
        }
        let stuck = self.drain.stuck();
        stuck.unwrap_or_else(|| decision.limit.name())
    }

    fn count_file(&self, inner: &Inner, status: &mut Status) {
        status.files += u64::from(inner.charged() > 0 || inner.state.is_dirty());
        status.dirty_files += u64::from(inner.state.is_dirty());
        status.open_files += u64::from(inner.in_use().is_some_and(|live| live.is_open()));
        if inner.is_pinned() {
            status.pinned_files += 1;
            status.pinned_bytes += inner.charged();
        }
        let trouble = match (inner.trouble(), inner.state.conflict().stands()) {
            (_, true) => {
                status.conflicted_files += 1;
                let what = inner.trouble().map_or(inner.state.conflict().why(), |t| &t.error);
                Some(("conflict", what.to_string()))
            }
            (Some(trouble), false) if inner.state.is_dirty() => {
                status.failed_files += 1;
                Some(("failed", format!("{} ({} times)", trouble.error, trouble.count)))
            }
            _ => None,
        };
        if let Some((state, error)) = trouble
            && status.troubles.len() < 100
        {
            status.troubles.push(Failure { path: inner.state.display_path(), state, error });
        }
    }

    /// Returns the files of which requests moved most bytes lately, the busiest first.
    pub fn busiest(&self, count: usize) -> Vec<BusyFile> {
        let now = self.files.uptime().as_secs();
        let mut busy: Vec<(u64, Arc<File>)> =
            self.files.all_files().into_iter().map(|file| (file.heat().rate(now), file)).collect();
        busy.retain(|(rate, _)| *rate > 0);
        busy.sort_by_key(|(rate, _)| std::cmp::Reverse(*rate));
        busy.truncate(count);
        let mut glance = Glance::new(self.files.time());
        let shown = |(bytes_per_sec, file): (u64, Arc<File>)| {
            let path = glance.at(&file)?.state.display_path();
            Some(BusyFile { path, bytes_per_sec })
        };
        busy.into_iter().filter_map(shown).collect()
    }

    pub fn stats(&self) -> Stats {
        Stats {
            counters: self
                .files
                .counters()
                .all()
                .into_iter()
                .chain([
                    ("backing_errors", self.home.health().errors()),
                    ("backing_absences", self.home.health().absences()),
                ])
                .collect(),
            tier: self.files.media().op_counts().into_iter().collect(),
        }
    }
}

fn file_info(file: &File, inner: &Inner, now_ms: u64) -> FileInfo {
    let state = &inner.state;
    let flushing = inner.in_use().is_some_and(|live| live.flight.is_some());
    let word = match () {
        () if state.conflict().stands() => "conflict",
        () if flushing => "flushing",
        () if state.is_dirty() && inner.trouble().is_some() => "failed",
        () if state.is_dirty() => "dirty",
        () => "clean",
    };
    let age = || now_ms.saturating_sub(state.dirty_since()) as f64 / 1000.0;
    let (cached_bytes, dirty_bytes) = match state.is_unseen() {
        true => (inner.charged(), inner.charged()),
        false => (state.present_bytes(), state.dirty_bytes()),
    };
    FileInfo {
        path: state.display_path(),
        size: inner.size(),
        cached_bytes,
        dirty_bytes,
        pinned: state.is_pinned(),
        state: word,
        dirty_age_secs: state.is_dirty().then(age),
        error: inner.trouble().map(|t| t.error.clone()),
        shadow: shadow_name(file.id),
    }
}
