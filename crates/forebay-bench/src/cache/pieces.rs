//! What the page cache holds of each part of a file: a phase may read some of it only.

use std::fs::File;
use std::path::Path;

use super::{PAGE, residency};

/// Shares of equal pieces of a file that are in memory; none for a file that cannot be asked.
#[derive(Debug, Default)]
pub struct Pieces {
    len: u64,
    shares: Vec<f64>,
}

/// Pieces of all files together: each costs a system call before a phase.
const MOST: usize = 4096;

impl Pieces {
    /// Of each of the files.
    pub fn of_all(paths: &[impl AsRef<Path>]) -> Vec<Self> {
        let each = (MOST / paths.len().max(1)).max(16) as u64;
        paths.iter().map(|path| Self::of(path.as_ref(), each).unwrap_or_default()).collect()
    }

    fn of(path: &Path, pieces: u64) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let len = size.div_ceil(pieces).next_multiple_of(PAGE).max(PAGE);
        let starts = (0..size).step_by(len as usize);
        let shares = starts.map(|start| residency(&file, start, len).map(|found| found.share()));
        Ok(Self { len, shares: shares.collect::<std::io::Result<_>>()? })
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
