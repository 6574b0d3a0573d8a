//! The residency of each part of a file: a phase may read only some parts.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{PAGE, residency};
use crate::beneath::{self, Bytes};

/// The shares of equal pieces of a file that are in memory; none for a file that cannot be
/// examined.
#[derive(Debug, Default)]
pub struct Pieces {
    len: u64,
    shares: Vec<f64>,
}

/// Pieces of all files together: each costs a system call before a phase.
const MOST: usize = 4096;

impl Pieces {
    /// The pieces of each of the files; `None` if the place of a file's bytes is unknown.
    pub fn of_all(paths: &[impl AsRef<Path>]) -> Option<Vec<Self>> {
        let each = (MOST / paths.len().max(1)).max(16) as u64;
        let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
        let places = beneath::bytes_of(&paths);
        paths.iter().zip(places).map(|(path, bytes)| Self::of(path, &bytes, each)).collect()
    }

    fn of(path: &Path, bytes: &Bytes, pieces: u64) -> Option<Self> {
        let others = match bytes {
            Bytes::Here => &[][..],
            Bytes::In(files) => files,
            Bytes::Unknown => return None,
        };
        let size = std::fs::metadata(path).map_or(0, |found| found.len());
        let len = size.div_ceil(pieces).next_multiple_of(PAGE).max(PAGE);
        let mut found = Self { len, shares: vec![0.0; size.div_ceil(len) as usize] };
        for file in std::iter::once(path).chain(others.iter().map(PathBuf::as_path)) {
            found.add(file);
        }
        Some(found)
    }

    /// Adds the residency of a file; a file that cannot be opened adds nothing.
    fn add(&mut self, file: &Path) {
        let Ok(file) = File::open(file) else { return };
        for (at, share) in self.shares.iter_mut().enumerate() {
            let found = residency(&file, at as u64 * self.len, self.len);
            *share = (*share + found.unwrap_or_default().share()).min(1.0);
        }
    }

    /// The share of a range, as far as it lies within the file, that is in memory.
    pub fn share(&self, offset: u64, len: u64) -> f64 {
        let (mut asked, mut resident) = (0.0, 0.0);
        let mut at = offset;
        while at < offset + len {
            let Some(share) = self.shares.get((at / self.len.max(1)) as usize) else { break };
            let end = ((at / self.len + 1) * self.len).min(offset + len);
            asked += (end - at) as f64;
            resident += share * (end - at) as f64;
            at = end;
        }
        if asked > 0.0 { resident / asked } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_shares_of_the_pieces_it_touches() {
        let pieces = Pieces { len: 100, shares: vec![1.0, 0.0, 0.5] };
        for (offset, len, share) in
            [(0, 100, 1.0), (100, 100, 0.0), (0, 300, 0.5), (50, 100, 0.5), (290, 50, 0.5)]
        {
            assert!((pieces.share(offset, len) - share).abs() < 1e-9, "{offset} {len}");
        }
        assert!(pieces.share(400, 10) == 0.0 && Pieces::default().share(0, 10) == 0.0);
    }
}
