//! The place of an embedded registry: a file of its own in a directory that no other user can
//! replace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_base::folder::{self, Folder, Wanted};
use forebay_base::lock::sleep;
use forebay_base::way::{self, Demand, End};
use redb::{Database, DatabaseError};
use rustix::fs::{Mode, OFlags, fchmod, fstat, fsync};

use super::failed;
use crate::{Error, Kind, Result};

const FILE: &str = "registry.redb";

/// All values are small; those that are read often stay in memory.
const CACHE_BYTES: usize = 16 << 20;

const LOOK: Duration = Duration::from_millis(20);

/// Opens or makes the file, and waits up to `patience` for a dying process that still holds it.
pub fn open(dir: &Path, patience: Duration) -> Result<Database> {
    let folder = folder(dir)?;
    let began = Instant::now();
    loop {
        let file = file(&folder).map_err(|e| Error::io(e, at(dir)))?;
        match Database::builder().set_cache_size(CACHE_BYTES).create_file(file) {
            Err(DatabaseError::DatabaseAlreadyOpen) if began.elapsed() < patience => sleep(LOOK),
            Err(DatabaseError::DatabaseAlreadyOpen) => return Err(in_use(dir)),
            opened => return opened.map_err(|e| failed(e.into(), &at(dir))),
        }
    }
}

fn folder(dir: &Path) -> Result<Folder> {
    let mut end = way::walk(dir, Demand::Fixed)?;
    if end.found.is_none() {
        match rustix::fs::mkdirat(&end.dir, &end.name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(Error::io(e.into(), format!("creating {}", dir.display()))),
        }
        end = way::walk(dir, Demand::Fixed)?;
    }
    opened(&end).map_err(|e| match folder::is_refusal(&e) {
        true => Error::new(
            Kind::Usage,
            format!("{}: {e}: name a directory of your own, or a new one", at(dir)),
        ),
        false => Error::io(e, at(dir)),
    })
}

fn opened(end: &End) -> io::Result<Folder> {
    let fd = end.found.as_ref().ok_or(io::ErrorKind::NotFound)?;
    folder::require(&fstat(fd)?, Wanted::Dir)?;
    let folder = Folder::of(fd.as_fd(), &end.path)?;
    folder.close_to_others()?;
    Ok(folder)
}

fn file(folder: &Folder) -> io::Result<File> {
    let fd = folder.open(FILE, OFlags::RDWR | OFlags::CREATE, Wanted::File)?;
    fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    fsync(folder)?; // A file whose name is lost in a power cut is lost itself.
    Ok(fd.into())
}

pub fn bytes(dir: &Path) -> Option<u64> {
    std::fs::symlink_metadata(dir.join(FILE)).ok().map(|meta| meta.len())
}

fn in_use(dir: &Path) -> Error {
    Error::new(
        Kind::Unavailable,
        format!(
            "{}: another process has it open (it serves one at a time): end that one, or reach it by \
             the node daemon",
            at(dir)
        ),
    )
}

fn at(dir: &Path) -> String {
    format!("registry {}", dir.display())
}
