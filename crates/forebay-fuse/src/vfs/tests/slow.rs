//! A fast tier that holds up the syncs of shadow files while a gate is closed.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Condvar;

use forebay_backing::Timestamp;
use forebay_engine::media::{MediaFile, MediaStat, Open, Space};

use super::*;

/// Holds syncs up, and counts those that came.
#[derive(Default)]
pub struct Gate {
    state: Mutex<(bool, u64)>,
    open: Condvar,
}

impl Gate {
    pub fn close(&self) {
        *lock(&self.state) = (true, 0);
    }

    pub fn open(&self) {
        lock(&self.state).0 = false;
        self.open.notify_all();
    }

    /// The number of syncs that came since the gate was closed.
    pub fn came(&self) -> u64 {
        lock(&self.state).1
    }

    fn pass(&self) {
        let mut state = lock(&self.state);
        state.1 += 1;
        drop(self.open.wait_while(state, |(closed, _)| *closed));
    }
}

pub struct SlowMedia {
    pub media: DirMedia,
    pub gate: Arc<Gate>,
}

struct SlowFile {
    file: Arc<dyn MediaFile>,
    gate: Arc<Gate>,
}

impl Media for SlowMedia {
    fn open(&self, name: &str, how: Open) -> io::Result<Arc<dyn MediaFile>> {
        let file = self.media.open(name, how)?;
        match name.starts_with("shadow/") {
            true => Ok(Arc::new(SlowFile { file, gate: self.gate.clone() })),
            false => Ok(file),
        }
    }

    fn stat(&self, name: &str) -> io::Result<MediaStat> {
        self.media.stat(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.media.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.media.rename(from, to)
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.media.make_dir(name)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.media.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.media.sync_dir(dir)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.media.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        self.media.space()
    }
}

impl MediaFile for SlowFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buf, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn stat(&self) -> io::Result<MediaStat> {
        self.file.stat()
    }

    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        self.file.set_mtime(mtime)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync_data()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.file.next_data(offset)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}
