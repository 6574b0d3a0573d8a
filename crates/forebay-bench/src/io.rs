//! The ways to move bytes: POSIX calls, memory mapping, io_uring, and a target that does nothing.
//!
//! A [`Target`] is chosen once, outside the loop of [`crate::drive`], which is compiled for each.
//!
//! Invariant I1: between `start` and the `wait` that returns its slot, that slot's buffer is not
//! touched; the kernel may be using it.

mod buffers;
mod mmap;
mod null;
mod posix;
mod uring;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub use buffers::Buffers;
pub use mmap::Mmap;
pub use null::Null;
pub use posix::{Posix, RangeLocks};
pub use uring::Uring;

use crate::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Api {
    #[default]
    Posix,
    Mmap,
    Uring,
    Null,
}

impl Api {
    /// The name as `-a` takes it and as results carry it.
    pub fn name(self) -> &'static str {
        match self {
            Api::Posix => "POSIX",
            Api::Mmap => "MMAP",
            Api::Uring => "URING",
            Api::Null => "DUMMY",
        }
    }

    /// Reads the value of `-a`, with a hint for interfaces that need other machinery.
    pub fn parse(text: &str) -> Result<Self> {
        match text.to_ascii_uppercase().as_str() {
            "POSIX" => Ok(Api::Posix),
            "MMAP" => Ok(Api::Mmap),
            "URING" | "IO_URING" | "AIO" => Ok(Api::Uring),
            "DUMMY" | "NULL" => Ok(Api::Null),
            "MPIIO" | "HDF5" | "NCMPI" => Err(Error::usage(format!(
                "-a {text} needs MPI, which this benchmark does without; \
                 -a POSIX makes the same accesses without the library"
            ))),
            _ => Err(Error::usage(format!(
                "-a {text} is not an interface of this benchmark; use POSIX, MMAP, URING or DUMMY"
            ))),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

/// One transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    pub direction: Direction,
    pub offset: u64,
    pub len: usize,
}

/// A completed transfer: which slot, and how many bytes moved.
pub struct Done {
    pub slot: usize,
    pub result: std::io::Result<usize>,
}

/// An open file under one API, with up to `depth` transfers in flight.
pub trait Target {
    /// Begins a transfer between the file and `buffer`, which stays `slot`'s until waited for (I1).
    ///
    /// # Safety
    ///
    /// `buffer` is valid for `op.len` bytes until `wait` returns `slot`, and has no other user.
    unsafe fn start(&mut self, slot: usize, op: Op, buffer: *mut u8);

    /// Returns one completed transfer; at least one must be in flight.
    fn wait(&mut self) -> Done;

    /// Makes written bytes durable.
    fn sync(&mut self) -> std::io::Result<()>;
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct How {
    pub write: bool,
    pub create: bool,
    pub truncate: bool,
    /// Around the page cache (O_DIRECT).
    pub direct: bool,
}

/// Opens `path`; an error names it and, for O_DIRECT, the remedy.
pub fn open(path: &Path, how: How) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(how.write).create(how.create).truncate(how.truncate);
    if how.direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) if how.direct => Error::failed(format!(
            "{} cannot be opened with O_DIRECT; its file system has no direct I/O, \
             use --cache drop or --cache fadvise instead",
            path.display()
        )),
        _ => Error::io("open", path, &error),
    })
}
