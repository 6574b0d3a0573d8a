//! The tree of directories that items live in: pure arithmetic and names, as mdtest has them.

use crate::{Error, Result};

/// Above this, a mistyped `-z` would fill the file system with directories.
const MOST: u64 = 10_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree {
    pub branching: u64,
    pub depth: u32,
    pub leaf_only: bool,
}

impl Tree {
    pub fn check(&self) -> Result<()> {
        if self.count().is_none_or(|count| count > MOST) {
            return Err(Error::usage(format!(
                "-b {} -z {} make more than {MOST} directories; lower -z",
                self.branching, self.depth
            )));
        }
        Ok(())
    }

    fn count(&self) -> Option<u64> {
        (0..=self.depth)
            .try_fold(0u64, |sum, level| sum.checked_add(self.branching.checked_pow(level)?))
    }

    /// All directories; with a branching factor of 0, as with depth 0, the root alone.
    pub fn directories(&self) -> u64 {
        self.count().unwrap_or(MOST)
    }

    /// Directories that items live in.
    pub fn homes(&self) -> u64 {
        self.directories() - self.first_home()
    }

    /// Number of the first directory that items live in; the root is 0, then level by level.
    pub fn first_home(&self) -> u64 {
        if !self.leaf_only || self.branching == 0 {
            return 0;
        }
        self.directories() - self.branching.pow(self.depth)
    }

    /// Paths of all directories below `top`, parents first.
    pub fn paths(&self, top: &str, whose: Whose) -> Vec<String> {
        let name = match whose {
            Whose::All => "mdtest_tree".to_owned(),
            Whose::Rank(rank) => format!("mdtest_tree.{rank}"),
        };
        let mut paths = vec![format!("{top}/{name}.0")];
        for directory in 1..self.directories() {
            let parent = &paths[((directory - 1) / self.branching) as usize];
            paths.push(format!("{parent}/{name}.{directory}"));
        }
        paths
    }
}

/// The users of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    All,
    Rank(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(branching: u64, depth: u32, leaf_only: bool) -> Tree {
        Tree { branching, depth, leaf_only }
    }

    #[test]
    fn directories_are_counted_as_in_mdtest() {
        for (branching, depth, all, leaves) in
            [(1, 0, 1, 1), (1, 3, 4, 1), (2, 2, 7, 4), (3, 2, 13, 9), (0, 0, 1, 1)]
        {
            assert_eq!(tree(branching, depth, false).directories(), all);
            assert_eq!(tree(branching, depth, false).homes(), all);
            assert_eq!(tree(branching, depth, true).homes(), leaves, "{branching} {depth}");
        }
        assert!(tree(99, 9, false).check().is_err());
    }

    #[test]
    fn parents_come_before_their_children() {
        let paths = tree(2, 2, false).paths("/top", Whose::All);
        assert_eq!(paths.len(), 7);
        assert_eq!(paths[0], "/top/mdtest_tree.0");
        assert_eq!(paths[2], "/top/mdtest_tree.0/mdtest_tree.2");
        assert_eq!(paths[6], format!("{}/mdtest_tree.6", paths[2]));
        let own = tree(2, 1, false).paths("/top", Whose::Rank(3));
        assert_eq!(own[0], "/top/mdtest_tree.3.0");
        assert_eq!(own[2], "/top/mdtest_tree.3.0/mdtest_tree.3.2");
    }
}
