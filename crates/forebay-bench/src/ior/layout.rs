//! The placement of bytes: pure arithmetic, from IOR's documentation of its layout.
//!
//! Invariants:
//! - O1: without `-zz`, the ranks together touch each byte of the aggregate size exactly once.
//! - O2: the transfers of a rank are a function of the rank whose data it is, so a reader of a
//!   rank's data visits the transfers that that rank wrote, in the same order.
//! - O3: with `-z` the transfers of a segment of a shared file are dealt out among all ranks: those
//!   of one rank lie anywhere in the segment, beside those of others.

use std::path::{Path, PathBuf};

use super::params::{Order, Params, Reorder};
use crate::rng::{Rng, splitmix};

/// The transfers of one rank's data.
#[derive(Debug, Clone)]
pub struct Layout {
    block: u64,
    transfer: u64,
    /// From one of the rank's blocks to its next.
    stride: u64,
    /// Where the rank's first block begins.
    first: u64,
    segments: u64,
    order: Order,
    /// The seed for `-zz`: each rank has its own.
    own_seed: u64,
    /// The ranks that deal the transfers of a segment out among themselves with `-z`, the place of
    /// this one, and the seed they share.
    players: u64,
    place: u64,
    dealt_seed: u64,
}

impl Layout {
    pub fn new(params: &Params, rank: usize) -> Self {
        let (own, tasks) = (rank as u64, params.tasks as u64);
        let (stride, first) = match params.file_per_task {
            true => (params.block, 0),
            false => (tasks * params.block, own * params.block),
        };
        let (players, place, dealer) = match params.file_per_task {
            true => (1, 0, own),
            false => (tasks, own, 0),
        };
        Self {
            block: params.block,
            transfer: params.transfer,
            stride,
            first,
            segments: params.segments,
            order: params.order(),
            own_seed: mixed(params.random_offset_seed, own),
            players,
            place,
            dealt_seed: mixed(params.random_offset_seed, dealer),
        }
    }

    /// Offset in the file of transfer `index` of `0..segments * block / transfer`.
    #[inline]
    pub fn offset(&self, index: u64) -> u64 {
        let each = self.block / self.transfer;
        let (segment, position) = (index / each, index % each);
        match self.order {
            Order::Sequential => self.first + segment * self.stride + position * self.transfer,
            Order::Shuffled => {
                let seed = mixed(self.dealt_seed, segment);
                let dealt = permuted(self.place * each + position, self.players * each, seed);
                segment * self.stride + dealt * self.transfer
            }
            Order::Random => {
                let any = ((u128::from(mixed(self.own_seed, index))
                    * u128::from(self.segments * each))
                    >> 64) as u64;
                self.first + any / each * self.stride + any % each * self.transfer
            }
        }
    }
}

fn mixed(seed: u64, salt: u64) -> u64 {
    splitmix(&mut (seed ^ salt.wrapping_mul(0xff51_afd7_ed55_8ccd)))
}

/// Position `index` of a permutation of `0..count`, without storing it: four rounds of a Feistel
/// network over the next even power of two, walked until the value falls into range.
fn permuted(index: u64, count: u64, seed: u64) -> u64 {
    let half = count.next_power_of_two().ilog2().div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mixed(seed, right << 3 | round) & mask));
        }
        value = left << half | right;
        if value < count {
            return value;
        }
    }
}

/// The rank whose data each rank reads in repetition `repetition`.
pub fn readers(params: &Params, repetition: usize) -> Vec<usize> {
    let tasks = params.tasks;
    let shift = params.task_offset * params.tasks_per_node;
    let seed = match params.random_seed {
        seed if seed < 0 => seed.unsigned_abs() + repetition as u64,
        seed => seed.unsigned_abs(),
    };
    match params.reorder() {
        Reorder::Off => (0..tasks).collect(),
        Reorder::Constant => (0..tasks).map(|rank| (rank + shift) % tasks).collect(),
        Reorder::Random => (0..tasks)
            .map(|rank| {
                let least = shift.min(tasks - 1);
                let extra = Rng::new(mixed(seed, rank as u64)).below((tasks - least) as u64);
                (rank + least + extra as usize) % tasks
            })
            .collect(),
        Reorder::Shuffle => {
            let mut ranks: Vec<usize> = (0..tasks).collect();
            Rng::new(seed).shuffle(&mut ranks);
            ranks
        }
    }
}

/// The file that holds the data of `rank` in a repetition.
pub fn file(params: &Params, rank: usize, repetition: usize) -> PathBuf {
    let paths: Vec<&str> = params.path.split('@').collect();
    let rank_of_file = if params.file_per_task { rank } else { 0 };
    let mut name = paths[rank_of_file % paths.len()].to_owned();
    if params.unique_dir {
        name = in_own_directory(Path::new(&name), rank);
    }
    if params.file_per_task {
        name += &format!(".{rank:08}");
    }
    if params.multi_file {
        name += &format!(".{repetition}");
    }
    name.into()
}

fn in_own_directory(path: &Path, rank: usize) -> String {
    let parent = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default();
    parent.join(rank.to_string()).join(name).to_string_lossy().into_owned()
}

/// All files of a repetition, each once.
pub fn files(params: &Params, repetition: usize) -> Vec<PathBuf> {
    let count = if params.file_per_task { params.tasks } else { 1 };
    (0..count).map(|rank| file(params, rank, repetition)).collect()
}

/// The length of a file of the test after all writes.
pub fn file_size(params: &Params) -> u64 {
    let ranks = if params.file_per_task { 1 } else { params.tasks as u64 };
    params.block.saturating_mul(params.segments).saturating_mul(ranks)
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
