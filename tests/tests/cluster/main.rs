//! Several nodes with one backing store: the others see the writes of each node.
//!
//! `data`, `names`, `locks` and `seats_of_locks` test what programs see while all nodes work, `deaths` and `cuts` the
//! absence of a node, the registry or a link, `operate` an operator's actions then, `reads` how little the store is
//! asked, `refusals` mounts that must not exist together, `clocks` nodes with different times of day.
//! `grants` tests directories that are read without asking the registry.
//! `programs` runs random programs on all nodes and judges what they saw; `applications` are programs people run, and
//! `overview` is the operators' view; `taking_out` tests how a node leaves.
//! `quota` tests a full registry.
//! `copies` tests how many deaths acknowledged bytes survive.
//! `rights` tests who may open and change a file of another node, `mappings` what a mapping of one sees, and when its
//! stores count.
//! `acknowledged` tests acknowledged fsyncs while programs run, `superseded` a node that wakes after its place was
//! taken.

mod acknowledged;
mod applications;
mod clocks;
mod copies;
mod cuts;
mod data;
mod deaths;
mod grants;
mod locks;
mod mappings;
mod names;
mod operate;
mod overview;
mod programs;
mod quota;
mod reads;
mod refusals;
mod rights;
mod seats_of_locks;
mod superseded;
mod takeover;
mod taking_out;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use forebay_tests::fill;

/// Bytes of a file, repeatable by the seed.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed, 0);
    bytes
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
}

fn appender(path: &Path) -> std::io::Result<File> {
    File::options().append(true).create(true).open(path)
}

fn append(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    appender(path)?.write_all(bytes)
}

/// Whether this is an error that an operation may have if it needs a node that is away.
fn is_honest(why: &std::io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT | libc::EBUSY))
}
