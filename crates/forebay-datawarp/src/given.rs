//! Checked values from C, and values for C: strings, lists, descriptors, numbers, memory.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_base::{Error, Result};

use crate::place::invalid;
use crate::standing::Counts;

/// The longest path that the kernel accepts.
const PATH_MAX: usize = 4096;

/// The most files in one list: each is a transfer of its own.
const LIST_MAX: usize = 4096;

/// Does the work of one call. Returns its number, or -errno, which is in `errno`, too.
pub fn answer(work: impl FnOnce() -> Result<c_int>) -> c_int {
    match caught(work) {
        Ok(number) => number,
        Err(error) => -tell_errno(&error),
    }
}

pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    static QUIET: AtomicBool = AtomicBool::new(false);
    if !cfg!(test) && !QUIET.swap(true, Relaxed) {
        // The hook is set in this library's own copy of the standard library, not in the program's.
        set_hook(Box::new(|_| {}));
    }
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(Error::os(libc::EIO, "a fault of this library")))
}

pub fn tell_errno(error: &Error) -> c_int {
    let errno = error.errno();
    // SAFETY: it points to the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno };
    errno
}

pub fn done(outcome: Result<()>) -> Result<c_int> {
    outcome.map(|()| 0)
}

/// # Safety
///
/// `path` is null or a string of C.
pub unsafe fn path_of(path: *const c_char) -> Result<PathBuf> {
    if path.is_null() {
        return Err(invalid("a null path"));
    }
    // SAFETY: as the caller says.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let errno = match bytes.len() {
        0 => libc::ENOENT,
        PATH_MAX.. => libc::ENAMETOOLONG,
        // The registry's records are JSON, so a path must be UTF-8.
        _ if std::str::from_utf8(bytes).is_err() => libc::EILSEQ,
        _ => return Ok(OsStr::from_bytes(bytes).into()),
    };
    Err(Error::os(errno, "a path"))
}

/// # Safety
///
/// `list` is null or an array of strings of C that ends in null.
pub unsafe fn list_of(list: *const *const c_char) -> Result<Vec<PathBuf>> {
    if list.is_null() {
        return Err(invalid("a null list"));
    }
    let mut paths = Vec::new();
    // SAFETY: as the caller says; nothing behind the null is looked at.
    while let path = unsafe { *list.add(paths.len()) }
        && !path.is_null()
    {
        if paths.len() == LIST_MAX {
            return Err(Error::os(libc::E2BIG, "a list"));
        }
        // SAFETY: as the caller says.
        paths.push(unsafe { path_of(path) }?);
    }
    if paths.is_empty() { Err(invalid("an empty list")) } else { Ok(paths) }
}

/// The path of the file that a descriptor is open on.
pub fn path_of_fd(fd: c_int) -> Result<PathBuf> {
    let failed = |e| Error::io(e, format!("descriptor {fd}"));
    if fd < 0 {
        return Err(Error::os(libc::EBADF, "a descriptor"));
    }
    match std::fs::read_link(format!("/proc/self/fd/{fd}")) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::os(libc::EBADF, "a descriptor"))
        }
        Ok(path) if !path.is_absolute() => Err(invalid("no file")),
        found => found.map_err(failed),
    }
}

/// The places of the four numbers that C wants.
pub struct Numbers(pub [*mut c_int; 4]);

impl Numbers {
    /// # Safety
    ///
    /// Each pointer is null or points to an int.
    pub unsafe fn fill(&self, count: impl FnOnce() -> Result<Counts>) -> Result<c_int> {
        if self.0.iter().any(|number| number.is_null()) {
            return Err(invalid("a null number"));
        }
        let Counts { complete, pending, deferred, failed } = count()?;
        for (at, number) in self.0.iter().zip([complete, pending, deferred, failed]) {
            // SAFETY: not null, so an int.
            unsafe { **at = c_int::try_from(number).unwrap_or(c_int::MAX) };
        }
        Ok(0)
    }
}

/// The text in memory that C frees.
pub fn text_for_c(text: &[u8]) -> Result<*mut c_char> {
    // SAFETY: asks for memory.
    let memory = unsafe { libc::malloc(text.len() + 1) }.cast::<u8>();
    if memory.is_null() {
        return Err(Error::os(libc::ENOMEM, "a text"));
    }
    // SAFETY: there is room for the text and a NUL.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), memory, text.len());
        memory.add(text.len()).write(0);
    }
    Ok(memory.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(answer(|| panic!("as the test wishes")), -libc::EIO);
    }

    #[test]
    fn what_c_gives_is_checked_before_anybody_is_asked() {
        let text = |bytes: &'static [u8]| bytes.as_ptr().cast::<c_char>();
        let errno = |path| unsafe { path_of(path) }.map_err(|e| e.errno());
        assert_eq!(errno(ptr::null()), Err(libc::EINVAL));
        assert_eq!(errno(text(b"\0")), Err(libc::ENOENT));
        assert_eq!(errno(text(b"a\xff\0")), Err(libc::EILSEQ));
        assert_eq!(errno(text(b"/a\0")), Ok("/a".into()));
        let long = vec![b'x'; PATH_MAX].into_iter().chain([0]).collect::<Vec<u8>>();
        assert_eq!(errno(long.as_ptr().cast()), Err(libc::ENAMETOOLONG));
        let many = vec![text(b"/a\0"); LIST_MAX + 1];
        let list = |list: &[*const c_char]| unsafe { list_of(list.as_ptr()) };
        assert_eq!(list(&many).unwrap_err().errno(), libc::E2BIG);
        assert_eq!(list(&[ptr::null()]).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(list(&[text(b"/a\0"), ptr::null()]).unwrap().len(), 1);
        assert_eq!(path_of_fd(-1).unwrap_err().errno(), libc::EBADF);
        assert_eq!(path_of_fd(123_456).unwrap_err().errno(), libc::EBADF);
    }
}
