//! Instances: failed stages, concurrency, stripes, servers, accounts.

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use forebay_base::Error;

use crate::account::{self, STRIPE_BYTES};
use crate::failed::Listing;
use crate::given::{answer, caught, done, path_of, path_of_fd, tell_errno, text_for_c};
use crate::place::{Site, invalid};
use crate::{concurrency, stage};

/// # Safety
///
/// `path` is null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_set_stage_concurrency(path: *const c_char, count: c_uint) -> c_int {
    answer(|| {
        // SAFETY: as the caller says.
        let path = unsafe { path_of(path) }?;
        if count == 0 {
            return Err(invalid("no files at once"));
        }
        path.metadata().map_err(|e| Error::io(e, path.display().to_string()))?;
        let site = Site::here()?;
        done(concurrency::set(&site.place(&path)?.instance.id, count))
    })
}

/// # Safety
///
/// `dw` is null or a string of C, `handle` null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_open_failed_stage(
    dw: *const c_char,
    handle: *mut *mut Listing,
) -> c_int {
    answer(|| {
        if handle.is_null() {
            return Err(invalid("a null handle"));
        }
        // SAFETY: as the caller says.
        let listing = Listing::open(&unsafe { path_of(dw) }?)?;
        // SAFETY: not null, so a place for a handle; `dw_close_failed_stage` takes it back.
        unsafe { *handle = Box::into_raw(Box::new(listing)) };
        Ok(0)
    })
}

/// # Safety
///
/// `handle` is null or from `dw_open_failed_stage` and not closed, `path` null or `size` bytes long,
/// `why` null or an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_read_failed_stage(
    handle: *mut Listing,
    path: *mut c_char,
    size: c_int,
    why: *mut c_int,
) -> c_int {
    answer(|| {
        if handle.is_null() || path.is_null() || why.is_null() {
            return Err(invalid("a null argument"));
        }
        let size = usize::try_from(size).map_err(|_| invalid("a negative size"))?;
        // SAFETY: not null, so a handle that is open.
        let listing = unsafe { &mut *handle };
        let Some(failed) = listing.first() else { return Ok(0) };
        let name = failed.path.as_os_str().as_bytes();
        if name.len() >= size {
            // The entry stays for a call with a larger buffer.
            return Err(Error::os(libc::ENAMETOOLONG, "a failed stage"));
        }
        // SAFETY: there is room for the name and a NUL; the int is not null.
        unsafe {
            ptr::copy_nonoverlapping(name.as_ptr().cast(), path, name.len());
            path.add(name.len()).write(0);
            *why = -failed.errno;
        }
        let len = name.len() as c_int;
        listing.pass();
        Ok(len)
    })
}

/// # Safety
///
/// `handle` is null or from `dw_open_failed_stage` and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_close_failed_stage(handle: *mut Listing) -> c_int {
    answer(|| {
        if handle.is_null() {
            return Err(invalid("a null handle"));
        }
        // SAFETY: not null, so made by `dw_open_failed_stage`, and nobody has it any more.
        drop(unsafe { Box::from_raw(handle) });
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn dw_set_stripe_configuration(fd: c_int, bytes: c_int, width: c_int) -> c_int {
    answer(|| done(account::set_stripes(&path_of_fd(fd)?, bytes, width)))
}

/// # Safety
///
/// The numbers are null or ints.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_get_stripe_configuration(
    fd: c_int,
    bytes: *mut c_int,
    width: *mut c_int,
    index: *mut c_int,
) -> c_int {
    answer(|| {
        let path = path_of_fd(fd)?;
        if bytes.is_null() || width.is_null() || index.is_null() {
            return Err(invalid("a null number"));
        }
        account::require_instance(&path)?;
        // SAFETY: not null, so ints.
        unsafe { (*bytes, *width, *index) = (STRIPE_BYTES, 1, 0) };
        Ok(0)
    })
}

/// # Safety
///
/// `root` is null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_get_mds_path(root: *const c_char, _key: u64) -> *mut c_char {
    let found = caught(|| {
        // SAFETY: as the caller says.
        let path = unsafe { path_of(root) }?;
        path.metadata().map_err(|e| Error::io(e, path.display().to_string()))?;
        account::require_instance(&path)?;
        // There is one server, so its prefix is the given path.
        text_for_c(path.as_os_str().as_bytes())
    });
    found.unwrap_or_else(|error| {
        tell_errno(&error);
        ptr::null_mut()
    })
}

/// # Safety
///
/// `path` is null or a string of C, `code` null or an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_get_accounting_data_json(
    path: *const c_char,
    code: *mut c_int,
) -> *mut c_char {
    let found = caught(|| {
        // SAFETY: as the caller says.
        let path = unsafe { path_of(path) }?;
        text_for_c(account::accounts(&path)?.to_string().as_bytes())
    });
    let (text, number) = match found {
        Ok(text) => (text, 0),
        Err(error) => (ptr::null_mut(), -tell_errno(&error)),
    };
    if !code.is_null() {
        // SAFETY: not null, so an int.
        unsafe { *code = number };
    }
    text
}

#[unsafe(no_mangle)]
pub extern "C" fn dw_wait_sync_complete(fd: c_int) -> c_int {
    answer(|| {
        let path = path_of_fd(fd)?;
        // SAFETY: it was open a moment ago; if it is not any more, fsync says so.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        done(stage::sync_complete(fd, &path))
    })
}
