//! Checks that a backing store is mounted: an empty mount point must not pass for a file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_base::mounts::{self, Mount};
use forebay_base::{Error, Kind, Result};

use crate::records::FileSystem;

fn usage(why: String) -> Error {
    Error::new(Kind::Usage, why)
}

/// The file system that holds an absolute path without links.
pub fn file_system_of(path: &Path) -> Result<FileSystem> {
    let seen = read()?;
    let holds = mounts::holding(&seen, path)
        .ok_or_else(|| usage(format!("{}: it is on no mount", path.display())))?;
    Ok(FileSystem {
        kind: holds.file_system.clone(),
        source: holds.source.to_string_lossy().into_owned(),
        at: holds.path.clone(),
    })
}

/// Refuses a path below a mount point on which nothing is mounted: a mount point of `must`, or one
/// that `/etc/fstab` names.
pub fn require_mounted(path: &Path, must: &[PathBuf]) -> Result<()> {
    let fstab = std::fs::read("/etc/fstab").unwrap_or_default();
    require_among(&read()?, path, must, &fstab)
}

/// Refuses a path that is on another file system here than on the node that was asked for it.
pub fn require_same(path: &Path, asked: &FileSystem) -> Result<()> {
    let here = file_system_of(path)?;
    // Mount points may differ, and devices of local file systems have names of their own on each node.
    let same = here.kind == asked.kind && (here.source == asked.source || is_local(&here));
    match same {
        true => Ok(()),
        false => Err(usage(format!(
            "{}: is on {} ({}) here, and was on {} ({}) where it was asked for: mount it on this node",
            path.display(),
            here.source,
            here.kind,
            asked.source,
            asked.kind
        ))),
    }
}

fn is_local(on: &FileSystem) -> bool {
    on.source.starts_with("/dev/") || on.source == on.kind
}

fn read() -> Result<Vec<Mount>> {
    mounts::read().map_err(|e| Error::io(e, "/proc/self/mountinfo"))
}

fn require_among(seen: &[Mount], path: &Path, must: &[PathBuf], fstab: &[u8]) -> Result<()> {
    let named = fstab_points(fstab);
    let below = |point: &&PathBuf| path.starts_with(point) && point.as_path() != Path::new("/");
    for point in must.iter().chain(&named).filter(below) {
        // The mount point may be a link to the place of the mount.
        let real = || point.canonicalize().ok().and_then(|real| mounts::at(seen, &real));
        if mounts::at(seen, point).or_else(real).is_none() {
            let (path, point) = (path.display(), point.display());
            return Err(usage(format!(
                "{path}: nothing is mounted at {point} on this node: mount it, then try again"
            )));
        }
    }
    Ok(())
}

fn fstab_points(fstab: &[u8]) -> Vec<PathBuf> {
    let lines = fstab.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#"));
    let point = |line: &[u8]| {
        let mut fields =
            line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|field| !field.is_empty());
        let point = fields.nth(1)?;
        // A `noauto` entry is mounted by those that want it.
        let mut options = fields.nth(1).unwrap_or_default().split(|byte| *byte == b',');
        let by_itself = !options.any(|option| option == b"noauto");
        (point.starts_with(b"/") && by_itself).then(|| PathBuf::from(OsStr::from_bytes(point)))
    };
    lines.filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] =
        b"20 1 8:1 / / rw - ext4 /dev/vda rw\n30 20 0:40 / /pfs rw - nfs4 s:/e rw\n";

    #[test]
    fn a_path_below_an_empty_mount_point_is_no_backing_store() {
        let seen = mounts::parse(TABLE);
        let fstab = b"# c\n/dev/vda / ext4 defaults 0 1\ns:/f\t/scratch nfs defaults\nUUID=1 none swap sw\n";
        let may = |path: &str, must: &[PathBuf]| require_among(&seen, Path::new(path), must, fstab);
        assert!(may("/pfs/a", &["/pfs".into()]).is_ok());
        assert!(may("/home/a", &[]).is_ok());
        let error = may("/scratch/a", &[]).unwrap_err().to_string();
        assert!(error.contains("nothing is mounted at /scratch"), "{error}");
        assert!(may("/scratchy/a", &[]).is_ok());
        assert!(may("/lustre/a", &["/lustre".into()]).is_err());
    }

    #[test]
    fn a_path_on_another_file_system_than_the_asker_saw_is_refused() {
        let here = file_system_of(Path::new("/proc/self")).unwrap();
        assert_eq!((here.kind.as_str(), here.at.as_path()), ("proc", Path::new("/proc")));
        assert!(require_same(Path::new("/proc/self"), &here).is_ok());
        let nfs = FileSystem { kind: "nfs4".into(), source: "s:/e".into(), at: "/proc".into() };
        let error = require_same(Path::new("/proc/self"), &nfs).unwrap_err().to_string();
        assert!(error.contains("mount it on this node"), "{error}");
    }
}
