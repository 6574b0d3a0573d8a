//! The identity that tells one file or device from every other, across restarts.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::{Medium, MediumKind};
use crate::dir::attr;
use crate::dir::root::stat_fd;
use crate::fd::Sys;

/// The files in sysfs that name a device, the most unique first.
const SERIALS: &[&str] =
    &["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid", "loop/backing_file"];

pub fn of(medium: &Medium) -> Sys<String> {
    match medium.kind {
        MediumKind::File => {
            attr::identity(medium.fd.as_fd(), &medium.path).map(|id| format!("file:{id}"))
        }
        MediumKind::Device => device(medium),
    }
}

/// The identity of a device by its serial number, which moves with it from slot to slot. A device
/// without one is known by its number and its size: a cheap guard against another device that took
/// the number.
fn device(medium: &Medium) -> Sys<String> {
    let stat = stat_fd(medium.fd.as_fd())?;
    let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    Ok(match fs::canonicalize(node).ok().and_then(|dir| serial(&dir)) {
        Some(serial) => format!("device:1:{serial}"),
        None => format!("device:1:{major}:{minor}:{}", medium.device_size),
    })
}

/// The serial number of a device; for a partition its disk's, and the partition's number.
fn serial(dir: &Path) -> Option<String> {
    match read(&dir.join("partition")) {
        Some(number) => Some(format!("{}:{number}", own_serial(dir.parent()?)?)),
        None => own_serial(dir),
    }
}

fn own_serial(dir: &Path) -> Option<String> {
    SERIALS.iter().find_map(|name| read(&dir.join(name)).map(|value| format!("{name}={value}")))
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
