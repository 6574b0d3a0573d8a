//! Where the bytes of a path are when its file system only leads to them: in files of another one.
//!
//! The benchmark knows no such file system by itself. The program that it is part of may name one,
//! once, before it runs anything; without that, bytes are where their path is.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::Result;

/// Where to look for the bytes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bytes {
    /// In the file itself.
    Here,
    /// In these files, each with the file's bytes at the file's offsets.
    In(Vec<PathBuf>),
    /// Somewhere else, and nobody may know where.
    Unknown,
}

/// A file system that leads to bytes of others.
pub trait Beneath: Send + Sync {
    /// For each of the paths.
    fn bytes_of(&self, paths: &[&Path]) -> Vec<Bytes>;

    /// The directory that holds the newest bytes of what is in `directory`; `None` if that holds
    /// them itself.
    fn holder(&self, directory: &Path) -> Option<PathBuf>;

    /// Returns when all that was written in `directory` is where it is to stay; `None` if it stays
    /// where it is written.
    fn settle(&self, directory: &Path) -> Option<Result<()>>;
}

static KNOWN: OnceLock<&'static dyn Beneath> = OnceLock::new();

/// To be called before [`crate::run`]; what was named first stays.
pub fn name(known: &'static dyn Beneath) {
    KNOWN.get_or_init(|| known);
}

pub(crate) fn bytes_of(paths: &[&Path]) -> Vec<Bytes> {
    KNOWN.get().map_or_else(|| vec![Bytes::Here; paths.len()], |known| known.bytes_of(paths))
}

/// The directory whose file system the bytes of `directory` are on.
pub(crate) fn holder(directory: &Path) -> PathBuf {
    let elsewhere = KNOWN.get().and_then(|known| known.holder(directory));
    elsewhere.unwrap_or_else(|| directory.to_path_buf())
}

pub(crate) fn settle(directory: &Path) -> Option<Result<()>> {
    KNOWN.get()?.settle(directory)
}
