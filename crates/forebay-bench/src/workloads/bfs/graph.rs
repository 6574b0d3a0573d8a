//! An R-MAT graph by seed, written as compressed sparse rows within a limit of memory.
//!
//! The edges are a function of (seed, index), so instead of being sorted on disk they are generated
//! again for each range of vertices whose rows fit into memory.
//!
//! Invariants:
//! - G1: the graph is undirected: `w` is in the row of `v` if and only if `v` is in the row of `w`.
//! - G2: rows are sorted and hold no vertex twice; no vertex is in its own row.
//! - G3: row `v` is the words `offsets[v]..offsets[v + 1]` of the file, little-endian, which is
//!   padded to whole pages.

use std::io::{self, Write};
use std::ops::Range;

use crate::rng::{Rng, splitmix};

/// Bytes of an edge in the file.
pub const WORD: u64 = 4;
/// The alignment of direct reads.
pub const PAGE: u64 = 4096;

/// The recipe of a graph.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// There are two to this power vertices.
    pub scale: u32,
    /// Edges per vertex before loops and doubles are dropped.
    pub edge_factor: u64,
    pub seed: u64,
}

/// Chances of the four quadrants of R-MAT, as Graph500 has them, in 65,536ths and each added to those
/// before it; the fourth is the rest.
const A: u64 = 37_356; // 0.57
const AB: u64 = A + 12_452; // 0.19
const ABC: u64 = AB + 12_452; // 0.19

impl Recipe {
    pub fn vertices(self) -> u64 {
        1 << self.scale
    }

    pub fn edges(self) -> u64 {
        self.vertices() * self.edge_factor
    }

    /// The greatest size of the file in bytes.
    pub fn bytes(self) -> u64 {
        (2 * self.edges() * WORD).next_multiple_of(PAGE)
    }

    /// The two ends of an edge, which may be the same vertex.
    pub fn edge(self, index: u64) -> (u32, u32) {
        let mut mixer = self.seed ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut rng = Rng::new(splitmix(&mut mixer));
        let (mut from, mut to) = (0u64, 0u64);
        let mut chances = 0;
        for level in 0..self.scale {
            // Sixteen bits decide a level, so a number does for four.
            chances = if level % 4 == 0 { rng.next() } else { chances >> 16 };
            let chance = chances & 0xffff;
            let down = u64::from(chance >= AB);
            let right = u64::from((A..AB).contains(&chance)) | u64::from(chance >= ABC);
            (from, to) = (from << 1 | down, to << 1 | right);
        }
        (self.relabel(from), self.relabel(to))
    }

    /// R-MAT gives low numbers the most edges; a permutation spreads them over the file.
    fn relabel(self, vertex: u64) -> u32 {
        let mask = self.vertices() - 1;
        let half = self.scale / 2;
        let mut mixed = vertex;
        for factor in [0x9e37_79b1u64, 0x85eb_ca6b] {
            // Odd factors and shifted xors can be undone, within any number of bits.
            mixed = mixed.wrapping_mul(factor).wrapping_add(self.seed) & mask;
            mixed ^= mixed >> half.max(1);
        }
        mixed as u32
    }
}

/// The offset of each row in words; one more than there are vertices (G3).
pub type Offsets = Vec<u64>;

/// Writes the graph with rows of at most `memory` bytes at a time. `glance` is asked now and then
/// with the share done; false stops.
pub fn write(
    recipe: Recipe,
    memory: u64,
    out: &mut impl Write,
    mut glance: impl FnMut(f64) -> bool,
) -> io::Result<Offsets> {
    let count = recipe.vertices() as usize;
    let stopped = || io::Error::from(io::ErrorKind::Interrupted);
    // One pass over all edges for the degrees, one for each range of rows; doubles make it fewer.
    let passes = 1 + recipe.bytes().div_ceil(memory.max(1));
    let mut goes_on = |pass: u64, index: u64| {
        let done = pass as f64 + index as f64 / recipe.edges() as f64;
        glance((done / passes as f64).min(1.0))
    };
    let degrees = degrees(recipe, |index| goes_on(0, index)).ok_or_else(stopped)?;
    let mut offsets = Vec::with_capacity(count + 1);
    offsets.push(0);
    let (mut first, mut pass) = (0, 1);
    while first < count {
        let last = fitting(&degrees, first, memory / WORD);
        let rows = rows(recipe, &degrees, first..last, |index| goes_on(pass, index));
        write_rows(rows.ok_or_else(stopped)?, out, &mut offsets)?;
        (first, pass) = (last, pass + 1);
    }
    let written = offsets[count] * WORD;
    out.write_all(&vec![0; (written.next_multiple_of(PAGE) - written) as usize])?;
    Ok(offsets)
}

/// The number of edges of each vertex, doubles counted; `None` if it was stopped.
fn degrees(recipe: Recipe, mut goes_on: impl FnMut(u64) -> bool) -> Option<Vec<u32>> {
    let mut degrees = vec![0u32; recipe.vertices() as usize];
    for index in 0..recipe.edges() {
        if index % GLANCE == 0 && !goes_on(index) {
            return None;
        }
        for vertex in both(recipe.edge(index)) {
            degrees[vertex.0 as usize] += 1;
        }
    }
    Some(degrees)
}

/// Edges between two glances: some milliseconds.
const GLANCE: u64 = 1 << 16;

/// An edge seen from both ends; a loop from neither (G1, G2).
fn both((a, b): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
    [(a, b), (b, a)].into_iter().filter(|(a, b)| a != b)
}

/// The end of the longest range from `first` whose rows have at most `words`; one row at least.
fn fitting(degrees: &[u32], first: usize, words: u64) -> usize {
    let mut sum = 0;
    let fits = degrees[first..].iter().take_while(|degree| {
        sum += u64::from(**degree);
        sum <= words
    });
    first + fits.count().max(1)
}

/// Rows of a range of vertices as generated: unsorted, and with doubles.
struct RawRows {
    starts: Vec<usize>,
    words: Vec<u32>,
}

/// Goes through all edges; `None` if it was stopped.
fn rows(
    recipe: Recipe,
    degrees: &[u32],
    range: Range<usize>,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Option<RawRows> {
    let mut starts = Vec::with_capacity(range.len() + 1);
    starts.push(0usize);
    for vertex in range.clone() {
        starts.push(starts[starts.len() - 1] + degrees[vertex] as usize);
    }
    let mut words = vec![0u32; starts[range.len()]];
    let mut cursors = starts.clone();
    for index in 0..recipe.edges() {
        if index % GLANCE == 0 && !goes_on(index) {
            return None;
        }
        for (from, to) in both(recipe.edge(index)) {
            if range.contains(&(from as usize)) {
                let cursor = &mut cursors[from as usize - range.start];
                words[*cursor] = to;
                *cursor += 1;
            }
        }
    }
    Some(RawRows { starts, words })
}

/// Sorts each row and leaves doubles out (G2).
fn write_rows(rows: RawRows, out: &mut impl Write, offsets: &mut Offsets) -> io::Result<()> {
    let RawRows { starts, mut words } = rows;
    for row in starts.windows(2) {
        let row = &mut words[row[0]..row[1]];
        row.sort_unstable();
        let mut kept = 0u64;
        let mut before = None;
        for &vertex in row.iter() {
            if before != Some(vertex) {
                out.write_all(&vertex.to_le_bytes())?;
                kept += 1;
                before = Some(vertex);
            }
        }
        offsets.push(offsets[offsets.len() - 1] + kept);
    }
    Ok(())
}

/// The words of a piece of the file.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe { scale: 9, edge_factor: 8, seed: 7 };

    fn made(memory: u64) -> (Vec<u8>, Offsets) {
        let mut file = Vec::new();
        let offsets = write(RECIPE, memory, &mut file, |_| true).unwrap();
        (file, offsets)
    }

    /// G1 and G2 against sets built from the edges themselves.
    #[test]
    fn the_rows_are_the_edges_seen_from_both_ends() {
        let (file, offsets) = made(1 << 30);
        let mut expected = vec![std::collections::BTreeSet::new(); 512];
        for index in 0..RECIPE.edges() {
            let (a, b) = RECIPE.edge(index);
            if a != b {
                expected[a as usize].insert(b);
                expected[b as usize].insert(a);
            }
        }
        let all: Vec<u32> = words(&file).collect();
        for (vertex, row) in expected.iter().enumerate() {
            let (from, to) = (offsets[vertex] as usize, offsets[vertex + 1] as usize);
            assert!(all[from..to].iter().eq(row.iter()), "row {vertex}");
        }
        assert!((file.len() as u64).is_multiple_of(PAGE) && offsets[512] > 3000);
    }

    #[test]
    fn little_memory_makes_the_same_file() {
        assert_eq!(made(1 << 30), made(1000));
    }

    /// Wherever the stop falls, it is obeyed at the next glance: no pass over all edges continues.
    #[test]
    fn a_stop_is_obeyed_at_the_next_glance() {
        let all = std::cell::Cell::new(0);
        let counted = |_: f64| {
            all.set(all.get() + 1);
            true
        };
        write(RECIPE, 1000, &mut Vec::new(), counted).unwrap();
        for stop in 1..=all.get() {
            let mut glances = 0;
            let error = write(RECIPE, 1000, &mut Vec::new(), |_| {
                glances += 1;
                glances < stop
            });
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::Interrupted);
            assert_eq!(glances, stop);
        }
    }

    #[test]
    fn labels_are_a_permutation_and_degrees_are_skewed() {
        for scale in [1, 2, 5, 9] {
            let recipe = Recipe { scale, ..RECIPE };
            let mut labels: Vec<u32> = (0..1 << scale).map(|v| recipe.relabel(v)).collect();
            labels.sort_unstable();
            assert!(labels.into_iter().eq(0..1 << scale), "{scale}");
        }
        let (_, offsets) = made(1 << 30);
        let mut degrees: Vec<u64> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        degrees.sort_unstable_by(|a, b| b.cmp(a));
        let top: u64 = degrees[..51].iter().sum();
        assert!(top * 3 > offsets[512], "a tenth of the vertices has over a third of the edges");
    }
}
