//! Occupies memory so that the page cache has little: it moves the knee of a curve, no more.

use super::{Amount, meminfo};
use crate::progress::{Goal, Progress};
use crate::units::human_bytes;
use crate::{Error, Result, interrupt};

/// Memory held, every page of it written, until dropped. Forked tasks inherit it untouched.
pub struct Hog {
    start: *mut libc::c_void,
    len: usize,
}

/// The memory left to everything else, or the machine would stall instead of being measured.
const SPARE: u64 = 256 << 20;

/// Occupied between two looks for Ctrl-C: some tens of milliseconds.
const PIECE: usize = 64 << 20;

/// Returns a usage error if there is not that much memory to occupy.
pub(super) fn check(amount: Amount) -> Result<()> {
    let (wanted, free) = (amount.bytes(), meminfo("MemAvailable").unwrap_or(u64::MAX));
    if wanted.saturating_add(SPARE) > free {
        return Err(Error::usage(format!(
            "-M / --cache hog wants {}, but only {} of memory are available; ask for less",
            human_bytes(wanted),
            human_bytes(free)
        )));
    }
    Ok(())
}

impl Hog {
    /// Occupies memory, which is slow, as the kernel clears every page: a second for some gigabytes.
    pub fn occupy(amount: Amount) -> Result<Self> {
        let mut progress = Progress::new("occupy memory", Goal::Bytes(amount.bytes()));
        let hog = Self::occupy_while(amount, |bytes| {
            progress.tick(bytes, 0);
            !interrupt::seen()
        });
        progress.finish();
        hog
    }

    /// Occupies memory; asks `goes_on` now and then, with the bytes occupied so far.
    fn occupy_while(amount: Amount, goes_on: impl FnMut(u64) -> bool) -> Result<Self> {
        check(amount)?;
        let len = amount.bytes().max(1) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: an anonymous mapping touches no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(Error::failed(format!("cannot occupy {len} bytes of memory: {error}")));
        }
        let hog = Self { start, len };
        hog.touch(goes_on)?;
        Ok(hog)
    }

    /// Writes a different number to every page, so that none can be merged or compressed away.
    fn touch(&self, mut goes_on: impl FnMut(u64) -> bool) -> Result<()> {
        for at in (0..self.len).step_by(4096) {
            if at % PIECE == 0 && !goes_on(at as u64) {
                return Err(Error::Interrupted);
            }
            // SAFETY: within the mapping, and aligned.
            unsafe { self.start.cast::<u8>().add(at).cast::<u64>().write_volatile(at as u64 + 1) };
        }
        // Without the privilege the memory can be swapped, as the residency figures will show.
        // SAFETY: exactly this value's mapping.
        unsafe { libc::mlock(self.start, self.len) };
        Ok(())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `occupy`.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused() {
        assert_eq!(check(Amount::Bytes(1 << 60)).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_stop_is_obeyed_half_way() {
        let mut asked = Vec::new();
        let hog = Hog::occupy_while(Amount::Bytes(3 * PIECE as u64), |bytes| {
            asked.push(bytes);
            asked.len() < 2
        });
        assert_eq!(hog.err(), Some(Error::Interrupted));
        assert_eq!(asked, [0, PIECE as u64]);
    }

    /// Checks the mapping itself: the machine's free memory changes with other programs.
    #[test]
    fn every_page_is_in_memory() {
        let hog = Hog::occupy(Amount::Bytes(16 << 20)).unwrap();
        let mut pages = vec![0u8; hog.len / 4096];
        // SAFETY: exactly our mapping, with one byte for each of its pages.
        let status = unsafe { libc::mincore(hog.start, hog.len, pages.as_mut_ptr()) };
        assert_eq!(status, 0);
        assert!(pages.iter().all(|page| page & 1 == 1));
    }
}
