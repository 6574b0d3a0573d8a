//! The observations of cache and device around one phase, and the judgement of its number.

use std::path::{Path, PathBuf};

use super::layout::Layout;
use super::measure::Measured;
use super::params::Params;
use crate::cache::{self, Pieces, Residency};
use crate::honest::{Device, Evidence, Memory, Moved, judge};
use crate::io::{Api, Direction};

/// Looks before a phase, and again after it.
pub struct Probe<'a> {
    params: &'a Params,
    files: &'a [PathBuf],
    /// The parts of each file that are in the page cache before it is read.
    before: Option<Vec<Pieces>>,
    device: Option<(Device, Moved)>,
    memory: Memory,
}

/// The most transfers of a rank that are looked up: a spread sample of more tells as much.
const LOOKED_UP: u64 = 10_000;

impl<'a> Probe<'a> {
    pub fn new(params: &'a Params, files: &'a [PathBuf], direction: Direction) -> Self {
        let place = files[0].parent().filter(|parent| !parent.as_os_str().is_empty());
        let place = place.unwrap_or(Path::new("."));
        let real = params.api != Api::Null;
        let device = real.then(|| Device::behind(place)).flatten();
        Self {
            params,
            files,
            before: (real && direction == Direction::Read).then(|| Pieces::of_all(files)).flatten(),
            device: device.and_then(|device| Some((device.clone(), device.moved()?))),
            memory: if real { Memory::of(place) } else { Memory::No },
        }
    }

    /// Judges a phase; `owners` are the ranks whose data each rank handled.
    pub fn judge(self, measured: &mut Measured, owners: &[usize]) {
        if self.params.api == Api::Null {
            return;
        }
        let direction = measured.direction;
        let before = self.before.as_ref().map(|pieces| self.read_from(pieces, measured, owners));
        let after =
            (direction == Direction::Write).then(|| cache::residency_of(self.files)).flatten();
        let device_bytes =
            self.device.and_then(|(device, before)| Some(device.moved()?.since(before, direction)));
        let evidence = Evidence {
            bytes: measured.bytes,
            seconds: measured.total,
            // For transfers around the cache its contents did not determine the number; the
            // device's count is the evidence.
            cache: before.filter(|_| !self.params.around_cache()).or(after),
            device_bytes,
            limit: self.params.device_limit,
            memory: self.memory,
        };
        measured.warnings = judge(direction, &evidence);
        measured.device = device_bytes;
        measured.resident = before.map(Residency::share);
        measured.unwritten = after
            .and_then(|after| after.unwritten)
            .map(|unwritten| (unwritten as f64 / measured.bytes.max(1) as f64).min(1.0));
    }

    /// The share of the bytes read that had been in the cache. A phase may end early, or read part
    /// of a longer file: only the bytes it read count.
    fn read_from(&self, pieces: &[Pieces], measured: &Measured, owners: &[usize]) -> Residency {
        let mut found = Residency::default();
        for (rank, &owner) in measured.ranks.iter().zip(owners) {
            let file = &pieces[if self.params.file_per_task { owner } else { 0 }];
            let layout = Layout::new(self.params, owner);
            let count = rank.transfers.min(self.params.transfers_per_task());
            let step = count.div_ceil(LOOKED_UP).max(1);
            let looked_up = (0..count).step_by(step as usize);
            let resident: f64 = looked_up
                .map(|index| file.share(layout.offset(index), self.params.transfer))
                .sum::<f64>()
                / count.div_ceil(step).max(1) as f64;
            found.total += rank.bytes;
            found.resident += (resident * rank.bytes as f64).round() as u64;
        }
        found
    }
}
