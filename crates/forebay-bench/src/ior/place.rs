//! The file system under a path, and the time, as IOR's head shows them.

use std::ffi::CString;
use std::path::Path;

use crate::{Error, Result};

/// Capacity and inodes of a file system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    pub total: u64,
    /// Bytes in no file, including reserved ones: IOR's "Used FS" counts the rest.
    pub unused: u64,
    /// Bytes that this user may use.
    pub free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The file system of the nearest directory above `path` that exists.
pub fn usage(path: &Path) -> Result<Usage> {
    let place = path.ancestors().find(|place| place.exists()).unwrap_or(Path::new("."));
    let name = CString::new(place.as_os_str().as_encoded_bytes())
        .map_err(|_| Error::usage(format!("{} holds a zero byte", path.display())))?;
    // SAFETY: all fields are integers; the call fills them.
    let (status, found) = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &raw mut found), found)
    };
    if status != 0 {
        return Err(Error::io("look at", place, &std::io::Error::last_os_error()));
    }
    Ok(Usage {
        total: found.f_blocks * found.f_frsize,
        unused: found.f_bfree * found.f_frsize,
        free: found.f_bavail * found.f_frsize,
        inodes: found.f_files,
        inodes_free: found.f_ffree,
    })
}

pub fn free(path: &Path) -> Result<u64> {
    usage(path).map(|usage| usage.free)
}

impl Usage {
    /// `252.0 GiB   Used FS: 9.9%   Inodes: 16.0 Mi   Used Inodes: 1.2%`
    pub fn line(self) -> String {
        const TIB: f64 = (1u64 << 40) as f64;
        let total = self.total as f64;
        let (size, unit) =
            if total >= TIB { (total / TIB, "TiB") } else { (total / TIB * 1024.0, "GiB") };
        format!(
            "{size:.1} {unit}   Used FS: {:.1}%   Inodes: {:.1} Mi   Used Inodes: {:.1}%",
            used(self.total, self.unused),
            self.inodes as f64 / 1_048_576.0,
            used(self.inodes, self.inodes_free)
        )
    }
}

fn used(total: u64, free: u64) -> f64 {
    (1.0 - free as f64 / total.max(1) as f64) * 100.0
}

/// `Tue Apr 29 14:12:28 2025`, local time.
pub fn now_text() -> String {
    local_time(c"%a %b %e %H:%M:%S %Y")
}

/// The local time in a format of `strftime`'s.
pub fn local_time(format: &std::ffi::CStr) -> String {
    let seconds = crate::clock::wall_seconds().cast_signed();
    let mut text = [0u8; 64];
    // SAFETY: every pointer is to a live local; the format and buffer are NUL-terminated and sized.
    let len = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&raw const seconds, &raw mut parts);
        libc::strftime(text.as_mut_ptr().cast(), 64, format.as_ptr(), &raw const parts)
    };
    String::from_utf8_lossy(&text[..len]).into_owned()
}

/// `Linux node17`.
pub fn machine() -> String {
    let read = |name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    let [system, host] = ["ostype", "hostname"].map(|name| read(name).unwrap_or_default());
    format!("{} {}", system.trim(), host.trim())
}
