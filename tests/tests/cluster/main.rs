//! Several nodes with one backing store: what one of them writes, the others see.
//!
//! `data`, `names`, `locks` and `seats_of_locks` say what programs see while all is well, `deaths` and `cuts` what is so when a node,
//! the registry or a link is gone, `operate` what an operator does then, `reads` how little the store is
//! asked, `refusals` what must not be mounted together, `clocks` what is so when nodes tell other times.
//! `grants` says what is so of directories that are read without asking.
//! `programs` runs random programs on all nodes and judges what they saw; `applications` are programs people
//! run, and `overview` is what operators see; `taking_out` says how a node leaves.
//! `quota` is what is so when the registry is full.
//! `copies` says how many deaths acknowledged bytes outlive.
//! `rights` says who may open and change a file there, `mappings` what a mapping there sees, and when its stores count.
//! `acknowledged` is the same while programs run, `superseded` what is so of a node that wakes after its place was taken.

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

/// Bytes of a file, which its seed repeats.
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

/// What a call may come to that needs somebody who is away.
fn is_honest(why: &std::io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT | libc::EBUSY))
}
