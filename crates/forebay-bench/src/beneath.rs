//! Finds the bytes of a path whose file system only leads to files of another one.
//!
//! The benchmark itself knows no such file system. The program that it is part of may register one,
//! before it runs anything; without that, bytes are where their path is.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::Result;

/// The place of the bytes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bytes {
    /// In the file itself.
    Here,
    /// In these files, each with the file's bytes at the file's offsets.
    In(Vec<PathBuf>),
    /// Somewhere else, in an unknown place.
    Unknown,
}

/// A file system that leads to bytes on another one.
pub trait Beneath: Send + Sync {
    /// The place of the bytes of each path.
    fn bytes_of(&self, paths: &[&Path]) -> Vec<Bytes>;

    /// The directory that holds the newest bytes of the files in `directory`; `None` if that
    /// directory itself holds them.
    fn holder(&self, directory: &Path) -> Option<PathBuf>;

    /// Returns when all bytes written in `directory` are in their final place; `None` if that is
    /// where they are written.
    fn settle(&self, directory: &Path) -> Option<Result<()>>;
}

static KNOWN: OnceLock<&'static dyn Beneath> = OnceLock::new();

/// Registers a file system. Called before [`crate::run`]; the first one stays.
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
