//! Nodes that the kernel had of one file, and that are another file's by now.
//!
//! A node's id is its file's inode number. If the store gives the number of a removed file to another one, an open by the
//! old file's name may be on its way: the kernel tells the two files apart only once it has the answer that names the
//! new one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long an open by a node's old name may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// The nodes whose numbers were used again of late, the oldest first.
#[derive(Default)]
pub struct Reused(VecDeque<Node>);

struct Node {
    id: u64,
    at: Instant,
    /// Threads that were sent back to look the name up again.
    sent_back: Vec<u32>,
}

impl Node {
    fn is(&self, id: u64) -> bool {
        self.id == id && self.at.elapsed() < ON_ITS_WAY
    }
}

impl Reused {
    pub fn note(&mut self, id: u64) {
        self.0.retain(|old| old.id != id && old.at.elapsed() < ON_ITS_WAY);
        self.0.push_back(Node { id, at: Instant::now(), sent_back: Vec::new() });
    }

    pub fn has(&self, id: u64) -> bool {
        self.0.iter().any(|node| node.is(id))
    }

    /// Whether this thread was not sent back yet; it is by now.
    pub fn sends_back(&mut self, id: u64, thread: u32) -> bool {
        let Some(node) = self.0.iter_mut().find(|node| node.is(id)) else { return false };
        let is_first = !node.sent_back.contains(&thread);
        if is_first {
            node.sent_back.push(thread);
        }
        is_first
    }
}
