//! The storage under redb: a file of the tier, or memory over a file that must not be changed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::media::MediaFile;
use forebay_base::lock::{Mutex, Rank};

/// redb on a file of the tier.
pub(super) struct Backend {
    pub file: Arc<dyn MediaFile>,
    /// A sync has failed: the kernel counts as written what it could not write, and a sync of the file, opened
    /// anew, would report success.
    pub doubt: Arc<AtomicBool>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.stat()?.len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.file.read_at(out, offset)? {
            n if n == out.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().inspect_err(|_| self.doubt.store(true, Relaxed))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(data, offset)
    }
}

/// redb on a copy in memory, so that a check changes nothing on the medium.
#[derive(Debug)]
pub(super) struct Overlay(Mutex<Vec<u8>>);

impl Overlay {
    pub fn over(file: Arc<dyn MediaFile>) -> io::Result<Overlay> {
        let mut bytes = vec![0; file.stat()?.len as usize];
        let n = file.read_at(&mut bytes, 0)?;
        bytes.truncate(n);
        Ok(Overlay(Mutex::new(Rank::Log, bytes)))
    }
}

impl redb::StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock();
        let at = offset as usize;
        let from = bytes.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock();
        let at = offset as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
}
