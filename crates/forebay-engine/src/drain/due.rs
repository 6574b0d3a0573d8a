//! Gathers the next dirty files for the drain, the oldest first, and has them picked and sorted.
//! Large files go in parts, small ones whole.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::core::governor::pick::{Hot, Kind, Piece, Rule, STREAM_BYTES, pick};
use crate::core::governor::{Decision, Term, age, batch_bytes};
use crate::core::stamps;
use crate::drain::Drain;
use crate::drain::ages::{goes_whole, is_flushable, weighed};
use crate::drain::parcel::{Pick, Take};
use crate::files::file::{File, Inner};

/// Files in one batch; the backing store is synced once for each batch.
const BATCH_FILES: usize = 512;

/// Bytes that are gathered, in batches: more than one batch, to have a choice when sorting.
const LOOK_BATCHES: u64 = 4;

struct Candidate {
    file: Arc<File>,
    pieces: Vec<Piece>,
    whole: bool,
}

impl Drain {
    /// Returns the next batch.
    pub(crate) fn due(&self, decision: &Decision) -> Vec<Pick> {
        let tunables = self.files.tunables();
        let marks = tunables.marks(self.files.level().tier_bytes);
        let budget = batch_bytes(decision, &marks);
        let mut candidates = self.candidates(decision, budget * LOOK_BATCHES);
        candidates.sort_by_cached_key(|candidate| candidate.file.path());
        for (n, candidate) in candidates.iter_mut().enumerate() {
            candidate.pieces.iter_mut().for_each(|piece| piece.file = n as u64);
        }
        let pieces: Vec<Piece> =
            candidates.iter().flat_map(|candidate| candidate.pieces.iter().copied()).collect();
        let forced = matches!(decision.term, Term::Level | Term::Hard | Term::Deadline);
        let rule = Rule {
            budget,
            from_age: decision.from_age,
            settle: tunables.settle,
            no_wait_age: age::no_wait_age(tunables.max_age),
            hot: if forced { Hot::FillUp } else { Hot::Stay },
        };
        taken(&candidates, &pick(&pieces, &rule))
    }

    fn candidates(&self, decision: &Decision, enough: u64) -> Vec<Candidate> {
        let now = self.files.time().ms();
        let until = match decision.from_age.is_zero() {
            true => u64::MAX,
            false => now.saturating_sub(decision.from_age.as_millis() as u64),
        };
        let max_age = self.files.tune(|t| t.max_age);
        let rest = self.files.totals().look_rest(self.files.time(), max_age);
        let by_age = matches!(decision.term, Term::Age | Term::Idle);
        let mut bytes = 0;
        let mut candidates = Vec::new();
        // The lock of the queue comes after a file's.
        let files = self.files.dirty().older(now, until);
        for file in files {
            let instant = self.files.time().now();
            let stays = |inner: &Inner| {
                self.holds.covers(inner) || (by_age && inner.was_looked_at(instant, rest, max_age))
            };
            if stays(&file.lock()) {
                continue;
            }
            let Some(candidate) = candidate(file, instant, now) else { continue };
            bytes += candidate.pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            candidates.push(candidate);
            if candidates.len() >= BATCH_FILES || bytes >= enough {
                break;
            }
        }
        candidates
    }
}

fn candidate(file: Arc<File>, instant: Instant, now: u64) -> Option<Candidate> {
    let inner = file.lock();
    if !is_flushable(&inner, instant) || !inner.state.is_dirty() {
        return None;
    }
    let ago = |then: u64| Duration::from_millis(now.saturating_sub(stamps::known(then, now)));
    let whole = goes_whole(&inner);
    let pieces = match whole {
        true => vec![Piece {
            file: 0,
            start: 0,
            end: inner.dirty_charged().max(1),
            bytes: inner.dirty_charged().max(1),
            age: ago(inner.state.dirty_since()),
            untouched: ago(inner.last_write()),
            kind: kind(inner.dirty_charged()),
        }],
        false => weighed(&inner)
            .map(|(part, bytes)| Piece {
                file: 0,
                start: part.start,
                end: part.end,
                bytes,
                age: ago(part.stamp.first),
                untouched: ago(part.stamp.last),
                kind: kind(part.run_bytes),
            })
            .collect(),
    };
    drop(inner);
    Some(Candidate { file, pieces, whole })
}

fn kind(run_bytes: u64) -> Kind {
    if run_bytes >= STREAM_BYTES { Kind::Sequential } else { Kind::Random }
}

fn taken(candidates: &[Candidate], picked: &[Piece]) -> Vec<Pick> {
    let of_file = picked.chunk_by(|a, b| a.file == b.file);
    of_file
        .map(|pieces| {
            let candidate = &candidates[pieces[0].file as usize];
            let take = match candidate.whole {
                true => Take::All,
                false => Take::Runs(pieces.iter().map(|p| (p.start, p.end)).collect()),
            };
            (candidate.file.clone(), take)
        })
        .collect()
}
