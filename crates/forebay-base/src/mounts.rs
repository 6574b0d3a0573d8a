//! The mounts that this process sees, from `/proc/self/mountinfo` alone: reading it never blocks,
//! while a request for attributes to a mount whose daemon died may wait for ever.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    /// The numbers of the device, such as `8:1`.
    pub device: String,
    /// The directory of the file system that is mounted at `path`; not `/` for a bind mount.
    pub root: PathBuf,
    pub path: PathBuf,
    /// The options of the mount, separated by commas.
    pub options: String,
    pub file_system: String,
    pub source: OsString,
    /// The options of the file system, separated by commas.
    pub system_options: String,
}

/// All mounts, oldest first.
pub fn read() -> io::Result<Vec<Mount>> {
    std::fs::read("/proc/self/mountinfo").map(|table| parse(&table))
}

pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// The mount that an absolute path without links is in: the longest prefix, and among equal ones
/// the newest.
pub fn holding<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let prefixes = mounts.iter().filter(|mount| path.starts_with(&mount.path));
    prefixes.max_by_key(|mount| mount.path.as_os_str().len())
}

/// The newest mount at exactly `path`, if there is one.
pub fn at<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    mounts.iter().rfind(|mount| mount.path == path)
}

impl Mount {
    /// The user who mounted, as the kernel reports it for FUSE mounts.
    pub fn owner(&self) -> Option<u32> {
        let mut options = self.system_options.split(',');
        options.find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source options`, with any number of
/// optional fields before the dash.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let text = |at: usize| String::from_utf8_lossy(fields.get(at).unwrap_or(&&b""[..])).into();
    Some(Mount {
        id: std::str::from_utf8(fields[0]).ok()?.parse().ok()?,
        device: text(2),
        root: unescaped(fields[3]).into(),
        path: unescaped(fields[4]).into(),
        options: text(5),
        file_system: text(dash + 1),
        source: unescaped(fields.get(dash + 2)?),
        system_options: text(dash + 3),
    })
}

/// Undoes the kernel's octal escapes of blanks, backslashes and `#`.
fn unescaped(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        match tail.get(..3).filter(|_| *first == b'\\').and_then(octal) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(plain)
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(OsStr::from_bytes(digits).to_str()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_newest_mount_is_the_one_a_path_is_in() {
        let mounts = parse(
            b"1 0 8:1 / / rw,relatime shared:1 master:3 - ext4 /dev/sda1 rw\n\
              2 1 0:5 / /data rw - tmpfs one rw\n\
              broken line\n\
              3 1 0:6 / /data rw,noatime - tmpfs two rw,user_id=7,size=1k\n\
              4 1 0:7 /deep /with\\040space rw - xfs /dev/sdb ro\n",
        );
        let of = |path: &str| holding(&mounts, Path::new(path)).unwrap();
        assert_eq!(of("/etc").source, "/dev/sda1");
        assert_eq!(of("/database").source, "/dev/sda1", "prefixes end at a slash");
        assert_eq!((of("/data/x").id, of("/data/x").owner()), (3, Some(7)));
        assert_eq!(
            (of("/data").options.as_str(), of("/data").device.as_str()),
            ("rw,noatime", "0:6")
        );
        assert_eq!((of("/").file_system.as_str(), of("/").owner()), ("ext4", None));
        assert_eq!(of("/with space/x").root, Path::new("/deep"));
        assert_eq!(at(&mounts, Path::new("/data")).unwrap().source, "two");
        assert_eq!(at(&mounts, Path::new("/data/x")), None);
    }

    #[test]
    fn what_the_kernel_escapes_is_read_as_it_was() {
        for (escaped, plain) in [
            ("forebay\\043/nvme/my\\040tier", "forebay#/nvme/my tier"),
            ("a\\134040b", "a\\040b"),
            ("a\\9b\\", "a\\9b\\"),
            ("plain", "plain"),
        ] {
            assert_eq!(unescaped(escaped.as_bytes()), plain);
        }
    }

    #[test]
    fn this_process_sees_a_root() {
        assert!(holding(&read().unwrap(), Path::new("/no/such")).is_some());
    }
}
