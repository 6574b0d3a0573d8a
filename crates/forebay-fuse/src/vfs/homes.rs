//! The parts of every question to a file's home: the patience with which a request looks for the home, the words for
//! attributes, and the errors of a file that is elsewhere by now.

use std::time::{Duration, Instant};

use forebay_backing::{Attr, Error, FileKind};
use forebay_cluster::words::{Answer, Attrs};

/// How long a request that was told to look again goes on looking, before its program gets the error.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first pause between looks, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// How long attributes that were asked for a listing wait to be listed.
pub(super) const FORESEEN: Duration = Duration::from_millis(500);

/// Counts the looks of a request whose file goes from home to home, or whose home begins anew.
pub(super) struct Looks {
    began: Instant,
    pause: Duration,
}

impl Looks {
    pub(super) fn begin() -> Looks {
        Looks { began: Instant::now(), pause: PAUSES.0 }
    }

    /// Pauses before another look; `false` once the patience is over.
    pub(super) fn again(&mut self) -> bool {
        if self.began.elapsed() >= PATIENCE {
            return false;
        }
        forebay_base::lock::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
        true
    }
}

pub(super) fn moved() -> Error {
    Error::os(libc::ESTALE, "the file is served by another member now")
}

pub(super) fn odd(answer: &Answer) -> Error {
    Error::os(libc::EPROTO, format!("a member answers {answer:?} to another question"))
}

/// The store's attributes, with those that the file's home knows better.
pub(super) fn with_home(attr: Attr, home: &Attrs) -> Attr {
    let ctime = attr.ctime.max(home.ctime);
    Attr { size: home.size, blocks: home.blocks, mtime: home.mtime, ctime, ..attr }
}

pub(super) fn words_of(attr: &Attr) -> Attrs {
    let &Attr { key, mode, nlink, uid, gid, size, blocks, .. } = attr;
    let &Attr { atime, mtime, ctime, btime, .. } = attr;
    Attrs { file: key, mode, nlink, uid, gid, size, blocks, atime, mtime, ctime, btime }
}

pub(super) fn attr_of(attrs: &Attrs) -> Attr {
    let &Attrs { file, mode, nlink, uid, gid, size, blocks, atime, mtime, ctime, btime } = attrs;
    let (key, kind, rdev, blksize) = (file, FileKind::File, 0, 4096);
    Attr {
        key,
        kind,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size,
        blocks,
        blksize,
        atime,
        mtime,
        ctime,
        btime,
    }
}
