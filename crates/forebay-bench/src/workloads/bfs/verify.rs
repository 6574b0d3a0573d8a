//! Checks that a tree is a breadth-first tree of the graph, by the five rules of Graph500:
//! 1. it is a tree rooted at the root, without cycles;
//! 2. each tree edge joins levels that differ by one;
//! 3. each edge of the graph joins levels that differ by one at most, or two vertices not reached;
//! 4. the tree spans the root's component, which is rule 3 for edges half reached;
//! 5. each tree edge is an edge of the graph.

use std::io::{self, Read};

use super::graph::words;
use super::search::NONE;

/// The level of a vertex that was not reached.
const UNREACHED: u32 = u32::MAX;

/// The size of a right tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tree {
    pub vertices: u64,
    /// Edges of the graph between them, each once.
    pub edges: u64,
}

/// The reason why a tree is wrong, or could not be checked.
#[derive(Debug)]
pub enum Fault {
    Wrong(String),
    Read(io::Error),
    /// The caller ended the check early.
    Stopped,
}

/// Vertices between two calls of `goes_on`: some milliseconds.
const GLANCE: usize = 1 << 12;

/// Checks a tree by reading the whole graph once, in order, while `goes_on` returns true.
pub fn verify(
    offsets: &[u64],
    mut rows: impl Read,
    parents: &[u32],
    root: u32,
    goes_on: impl Fn() -> bool,
) -> Result<Tree, Fault> {
    let levels = levels(parents, root).map_err(Fault::Wrong)?;
    let mut tree = Tree::default();
    let mut row = Vec::new();
    for (vertex, pair) in offsets.windows(2).enumerate() {
        if vertex % GLANCE == 0 && !goes_on() {
            return Err(Fault::Stopped);
        }
        row.resize((pair[1] - pair[0]) as usize * 4, 0);
        rows.read_exact(&mut row).map_err(Fault::Read)?;
        check_row(vertex, &row, &levels, parents, root).map_err(Fault::Wrong)?;
        if levels[vertex] != UNREACHED {
            tree.vertices += 1;
            tree.edges += pair[1] - pair[0];
        }
    }
    tree.edges /= 2;
    Ok(tree)
}

/// Rules 3 to 5 for the edges of one vertex.
fn check_row(
    vertex: usize,
    row: &[u8],
    levels: &[u32],
    parents: &[u32],
    root: u32,
) -> Result<(), String> {
    let level = levels[vertex];
    let mut parent_seen = level == UNREACHED || vertex == root as usize;
    for other in words(row) {
        let far = levels[other as usize];
        if (level == UNREACHED) != (far == UNREACHED) {
            return Err(format!("of edge {vertex}-{other} only one end was reached"));
        }
        if level.abs_diff(far) > 1 {
            return Err(format!("edge {vertex}-{other} joins levels {level} and {far}"));
        }
        parent_seen |= other == parents[vertex];
    }
    match parent_seen {
        true => Ok(()),
        false => Err(format!("tree edge {}-{vertex} is no edge", parents[vertex])),
    }
}

/// Rules 1 and 2: a vertex's level is its parent's plus one, and every way up ends at the root.
fn levels(parents: &[u32], root: u32) -> Result<Vec<u32>, String> {
    let mut levels = vec![UNREACHED; parents.len()];
    if parents[root as usize] != root {
        return Err(format!("the root {root} is not its own parent"));
    }
    levels[root as usize] = 0;
    let mut path = Vec::new();
    for start in 0..parents.len() {
        let mut vertex = start;
        while levels[vertex] == UNREACHED && parents[vertex] != NONE {
            if path.len() > parents.len() {
                return Err(format!("the way up from {start} is a cycle"));
            }
            path.push(vertex);
            vertex = parents[vertex] as usize;
        }
        let mut level = levels[vertex];
        if level == UNREACHED && !path.is_empty() {
            return Err(format!("the way up from {start} ends at {vertex}, which was not reached"));
        }
        while let Some(below) = path.pop() {
            level += 1;
            levels[below] = level;
        }
    }
    Ok(levels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0-1, 0-2, 1-3, 2-3, and 4-5 apart.
    const ROWS: [&[u32]; 6] = [&[1, 2], &[0, 3], &[0, 3], &[1, 2], &[5], &[4]];

    fn check(parents: [u32; 6]) -> Result<Tree, String> {
        check_while(parents, true)
    }

    fn check_while(parents: [u32; 6], goes_on: bool) -> Result<Tree, String> {
        let mut offsets = vec![0u64];
        let mut bytes = Vec::new();
        for row in ROWS {
            offsets.push(offsets[offsets.len() - 1] + row.len() as u64);
            bytes.extend(row.iter().flat_map(|word| word.to_le_bytes()));
        }
        verify(&offsets, &bytes[..], &parents, 0, || goes_on).map_err(|fault| match fault {
            Fault::Wrong(text) => text,
            Fault::Stopped => "stopped".to_owned(),
            Fault::Read(error) => panic!("{error}"),
        })
    }

    #[test]
    fn a_right_tree_is_accepted_and_counted() {
        for parent_of_3 in [1, 2] {
            let tree = check([0, 0, 0, parent_of_3, NONE, NONE]);
            assert_eq!(tree, Ok(Tree { vertices: 4, edges: 4 }));
        }
    }

    #[test]
    fn a_check_can_be_stopped() {
        assert_eq!(check_while([0, 0, 0, 1, NONE, NONE], false), Err("stopped".to_owned()));
    }

    #[test]
    fn each_rule_catches_its_fault() {
        for (parents, says) in [
            ([0, 3, 0, 1, NONE, NONE], "cycle"),
            ([1, 0, 0, 1, NONE, NONE], "not its own parent"),
            ([0, 0, 3, 1, NONE, NONE], "joins levels"),
            ([0, 0, 0, NONE, NONE, NONE], "only one end"),
            ([0, 0, 0, 0, NONE, NONE], "no edge"),
            ([0, 0, 0, 1, 5, NONE], "not reached"),
        ] {
            let fault = check(parents).unwrap_err();
            assert!(fault.contains(says), "{parents:?}: {fault}");
        }
    }
}
