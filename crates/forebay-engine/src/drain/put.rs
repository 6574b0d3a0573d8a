//! Writes and holes that copies make in a backing file, each let through by the valve.

use forebay_backing::{BackingFile, Error, Kind, Result};

use crate::core::clock::What;
use crate::core::counters::add;
use crate::drain::Drain;
use crate::drain::parcel::Parcel;
use crate::drain::valve::Pass;
use crate::tier::media::torn;

impl Drain {
    /// Waits until a copy of `bytes` may begin.
    pub(super) fn pass(&self, parcel: &Parcel, bytes: u64) -> Result<Pass<'_>> {
        self.valve.pass(bytes, || parcel.is_wanted()).ok_or_else(given_up)
    }

    /// Makes a hole in the backing file. Beyond its old end it has nothing to overwrite: setting
    /// the size will do.
    pub(super) fn copy_hole(
        &self,
        parcel: &Parcel,
        target: &dyn BackingFile,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let end = if parcel.resumed { end } else { end.min(parcel.base.size) };
        let (mut at, holes) = (start, &self.holes);
        while at < end {
            let _pass = self.pass(parcel, 0)?;
            let began = self.files.time().now();
            let len = self.call_home(|| {
                let size = target.stat()?.size;
                let len = end.min(size).saturating_sub(at).min(holes.bytes());
                if len > 0 {
                    parcel.made.note_any();
                    target.punch(at, len)?;
                }
                Ok(len)
            })?;
            if len == 0 {
                break;
            }
            holes.note(len, self.files.time().since(began));
            at += len;
        }
        Ok(())
    }

    /// For a shadow file that is shorter than the range to copy: a truncate in the meantime is
    /// fine, since it is on record as a rewrite.
    pub(super) fn may_be_cut(&self, parcel: &Parcel) -> Result<()> {
        let cut = parcel.file.lock().changed(parcel.seen, What::Size);
        if cut { Ok(()) } else { self.files.note_tier(Err(torn())) }
    }

    /// Writes bytes to the backing file, let through by the valve.
    pub(super) fn send(
        &self,
        parcel: &Parcel,
        target: &dyn BackingFile,
        bytes: &[u8],
        at: u64,
    ) -> Result<()> {
        let n = bytes.len() as u64;
        parcel.made.note_any();
        let sent = self.call_home(|| target.write_at(bytes, at));
        let came = match sent {
            Ok(()) => n,
            Err(_) if at + n <= parcel.base.size => 0,
            Err(_) => self.call_home(|| common_start(target, bytes, at)).unwrap_or(n),
        };
        if came > 0 {
            parcel.made.note_reached(at + came);
        }
        sent?;
        self.files.landings().note_copied(n);
        add(&self.unsettled, n);
        add(&parcel.copied, n);
        if let Some(meter) = &parcel.meter {
            meter.add(n);
        }
        Ok(())
    }
}

/// Returns how many of the bytes to write are there already: others may have written at the same place.
fn common_start(target: &dyn BackingFile, bytes: &[u8], at: u64) -> Result<u64> {
    let mut found = vec![0; bytes.len()];
    let n = target.read_at(&mut found, at)?;
    let same = found[..n].iter().zip(bytes).take_while(|(found, sent)| found == sent);
    Ok(same.count() as u64)
}

pub(super) fn given_up() -> Error {
    Error::new(Kind::TimedOut, "given up")
}
