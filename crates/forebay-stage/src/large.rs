//! Large files: several threads copy them in pieces. Each piece is synced and written to the journal, so
//! that after a kill the next run copies only the missing pieces.

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forebay_base::lock::{Mutex, Rank};
use rustix::fs::{self, FileType, OFlags, Stat};

use crate::beneath::{Pair, open_name};
use crate::file::{Temp, shape};
use crate::journal::{Key, Nonce, Version, pieces_name};
use crate::progress::get;
use crate::queue::FileTask;
use crate::report::{Reason, Tried, Trouble, destination, source};
use crate::sync;
use crate::transfer::Engine;

/// The bytes that each thread of a killed run copies again at most. Half or twice this size made no
/// difference to the speed.
pub const PIECE: u64 = 64 << 20;

/// Whether a file is copied in pieces.
pub fn is(stat: &Stat) -> bool {
    stat.st_size as u64 > PIECE
}

/// A large file being copied. The piece that ends last finishes the file.
pub struct Large {
    task: FileTask,
    key: Key,
    version: Version,
    pair: Arc<Pair>,
    src: OwnedFd,
    stat: Stat,
    nonce: Nonce,
    inode: u64,
    have: HashSet<u64>,
    temp: Mutex<Option<Temp>>,
    left: AtomicUsize,
    own: AtomicU64,
    trouble: Mutex<Option<Trouble>>,
}

impl Large {
    /// Opens both sides; `None` if a reflink has copied the whole file.
    pub fn begin(
        engine: &Engine<'_>,
        task: FileTask,
        pair: Arc<Pair>,
        src: OwnedFd,
        stat: Stat,
    ) -> Tried<Option<Large>> {
        let key = Key::of(&task.to());
        let version = Version::of_source(&stat);
        let (temp, nonce, have) = found_or_made(engine, &pair, &task, version)?;
        let own = AtomicU64::new(0);
        let size = stat.st_size as u64;
        if have.is_empty() && engine.mover(&own).reflink(&src, &temp.fd, size) {
            engine.finish(&task, key, &pair, &src, &stat, temp)?;
            return Ok(None);
        }
        fs::ftruncate(&temp.fd, size).map_err(destination("setting its size"))?;
        let inode = fs::fstat(&temp.fd).map_err(destination("looking"))?.st_ino;
        let left = AtomicUsize::new(0);
        let temp = Mutex::new(Rank::TransferNotes, Some(temp));
        let trouble = Mutex::new(Rank::TransferNotes, None);
        let large = Large {
            task,
            key,
            version,
            pair,
            src,
            stat,
            nonce,
            inode,
            have,
            temp,
            left,
            own,
            trouble,
        };
        large.left.store(large.missing().len(), Ordering::Relaxed);
        large.count_what_is_there(engine);
        Ok(Some(large))
    }

    fn count_what_is_there(&self, engine: &Engine<'_>) {
        let missing = self.missing();
        let there: u64 = (0..self.pieces())
            .filter(|piece| !missing.contains(piece))
            .map(|piece| self.range(piece))
            .map(|range| range.end - range.start)
            .sum();
        engine.mover(&self.own).passed(there);
    }

    fn pieces(&self) -> u64 {
        (self.stat.st_size as u64).div_ceil(PIECE)
    }

    fn range(&self, piece: u64) -> Range<u64> {
        piece * PIECE..((piece + 1) * PIECE).min(self.stat.st_size as u64)
    }

    /// The pieces to copy: at least one, whose end finishes the file.
    pub fn missing(&self) -> Vec<u64> {
        let missing: Vec<u64> = (0..self.pieces()).filter(|n| !self.have.contains(n)).collect();
        if missing.is_empty() { vec![self.pieces() - 1] } else { missing }
    }

    fn copy(&self, engine: &Engine<'_>, piece: u64) -> Tried<()> {
        let now = fs::fstat(&self.src).map_err(source("looking again"))?;
        if Version::of_source(&now) != self.version {
            return Err(Trouble::new(Reason::Changed, "it was changed while it was copied"));
        }
        let dst = self.open(engine)?;
        let mover = engine.mover(&self.own);
        mover.copy(&self.src, &dst, self.range(piece), shape(&self.stat))?;
        sync::data(&dst).map_err(destination("syncing"))?;
        let written = engine.journal.piece(self.key, self.nonce, piece);
        written.map_err(destination("writing the transfer's journal"))
    }

    /// The temporary file, opened for one piece: the kernel reports a failed write once per open file, so
    /// each piece gets the errors of its own sync.
    fn open(&self, engine: &Engine<'_>) -> Tried<OwnedFd> {
        let name = pieces_name(&engine.spec.id, self.key, self.nonce);
        let fd = open_name(&self.pair.dst, &name, OFlags::RDWR);
        let fd = fd.map_err(destination("opening what is copied of it"))?;
        match fs::fstat(&fd).map_err(destination("looking"))?.st_ino == self.inode {
            true => Ok(fd),
            false => Err(Trouble::new(Reason::InTheWay, "another file took its temporary name")),
        }
    }

    fn failed(&self) -> bool {
        self.trouble.lock().is_some()
    }

    fn end(&self, engine: &Engine<'_>) {
        let temp = self.temp.lock().take();
        let temp = temp.expect("the last piece ends once");
        let trouble = self.trouble.lock().take();
        let result = match trouble {
            None => engine.finish(&self.task, self.key, &self.pair, &self.src, &self.stat, temp),
            Some(Trouble::Stopped) => {
                temp.leave();
                Err(Trouble::Stopped)
            }
            Some(trouble) => Err(trouble),
        };
        if let Err(trouble) = result {
            engine.take_back(get(&self.own));
            engine.fail(&self.task, trouble);
        }
    }
}

impl Engine<'_> {
    pub fn piece(&self, large: &Large, piece: u64) {
        if !large.failed()
            && let Err(trouble) = large.copy(self, piece)
        {
            let mut first = large.trouble.lock();
            first.get_or_insert(trouble);
        }
        if large.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            large.end(self);
        }
    }
}

/// The temporary file of an earlier run with its synced pieces, or a new one.
fn found_or_made(
    engine: &Engine<'_>,
    pair: &Arc<Pair>,
    task: &FileTask,
    version: Version,
) -> Tried<(Temp, Nonce, HashSet<u64>)> {
    let key = Key::of(&task.to());
    let begun = engine.journal.begun(key).filter(|begun| begun.source == version);
    if let Some(begun) = begun
        && let Some(temp) = found(engine, pair, key, begun.nonce)?
    {
        return Ok((temp, begun.nonce, begun.pieces.clone()));
    }
    engine.remove_left(&pair.dst, key);
    if let Some(begun) = engine.take_begun(task, pair, version)?
        && let Some(temp) = found(engine, pair, key, begun.nonce)?
    {
        return Ok((temp, begun.nonce, begun.pieces));
    }
    let nonce = Nonce::new();
    let written = engine.journal.begin(key, version, nonce);
    written.map_err(destination("writing the transfer's journal"))?;
    let name = pieces_name(&engine.spec.id, key, nonce);
    Ok((Temp::create(&engine.sync, pair, name)?, nonce, HashSet::new()))
}

/// The temporary file with this name, if it is this transfer's.
fn found(engine: &Engine<'_>, pair: &Arc<Pair>, key: Key, nonce: Nonce) -> Tried<Option<Temp>> {
    let name = pieces_name(&engine.spec.id, key, nonce);
    let Ok(fd) = open_name(&pair.dst, &name, OFlags::RDWR) else { return Ok(None) };
    let stat = fs::fstat(&fd).map_err(destination("looking"))?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
    let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok((ours && file).then(|| Temp::of(fd, &engine.sync, pair, name)))
}
