//! File systems in image files: made, mounted and unmounted.

use std::path::{Path, PathBuf};

use crate::cli::tool;
use crate::wait::{PATIENCE, eventually};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFs {
    Ext4,
    Xfs,
}

impl ImageFs {
    pub fn name(self) -> &'static str {
        match self {
            ImageFs::Ext4 => "ext4",
            ImageFs::Xfs => "xfs",
        }
    }
}

/// Makes a sparse image with an empty file system in it.
pub fn make(image: &Path, fs: ImageFs, mib: u64) {
    let file = std::fs::File::create(image).expect("image file");
    file.set_len(mib << 20).expect("size of the image");
    let path = image.to_str().expect("plain path");
    match fs {
        // No lazy initialization: a background writer would disturb the image under test.
        ImageFs::Ext4 => {
            tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", path])
        }
        ImageFs::Xfs => tool("mkfs.xfs", &["-q", "-f", "-m", "reflink=1", path]),
    }
    .ok();
}

/// A file as a block device, as `docs/BLOCK.md` has it; detached when dropped.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    pub fn attach(file: &Path) -> LoopDevice {
        let name = file.to_str().expect("plain path");
        let out = tool("losetup", &["--direct-io=on", "--find", "--show", name]).ok();
        LoopDevice(out.stdout.trim().into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let name = self.0.to_str().expect("plain path");
        tool("losetup", &["--detach", name]);
        // The loop device disappears with its last user, which may be a probe of udev.
        let state = Path::new("/sys/block").join(self.0.file_name().expect("name")).join("loop");
        eventually(PATIENCE, || !state.exists());
    }
}

/// A mounted file system that is unmounted when dropped.
pub struct MountedFs(PathBuf);

impl MountedFs {
    /// Mounts an image. The loop device detaches itself with the last unmount.
    pub fn image(image: &Path, at: &Path) -> MountedFs {
        MountedFs::try_image(image, at).unwrap_or_else(|why| panic!("{}: {why}", image.display()))
    }

    /// Mounts an image; an error is the message of `mount` about a file system it cannot use.
    pub fn try_image(image: &Path, at: &Path) -> Result<MountedFs, String> {
        MountedFs::mount(&["-o", "loop"], image, at)
    }

    /// Mounts the file system on a device.
    pub fn device(device: &Path, at: &Path) -> Result<MountedFs, String> {
        MountedFs::mount(&[], device, at)
    }

    /// Mounts the file system on a device, with options such as `prjquota`.
    pub fn device_with(options: &str, device: &Path, at: &Path) -> Result<MountedFs, String> {
        MountedFs::mount(&["-o", options], device, at)
    }

    fn mount(options: &[&str], what: &Path, at: &Path) -> Result<MountedFs, String> {
        std::fs::create_dir_all(at).expect("mount point");
        let names = [what, at].map(|p| p.to_str().expect("plain path"));
        let out = tool("mount", &[options, &names].concat());
        if out.code == Some(0) { Ok(MountedFs(at.to_path_buf())) } else { Err(out.text()) }
    }

    pub fn tmpfs(at: &Path, mib: u64) -> MountedFs {
        std::fs::create_dir_all(at).expect("mount point");
        let size = format!("size={mib}m");
        tool("mount", &["-t", "tmpfs", "-o", &size, "fbt", at.to_str().expect("plain path")]).ok();
        MountedFs(at.to_path_buf())
    }

    pub fn bind(from: &Path, at: &Path) -> MountedFs {
        let name = |p: &Path| p.to_str().expect("plain path").to_string();
        tool("mount", &["--bind", &name(from), &name(at)]).ok();
        MountedFs(at.to_path_buf())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MountedFs {
    fn drop(&mut self) {
        // A daemon that was just killed may hold the file system for a moment longer.
        let gone = eventually(PATIENCE, || unmount(&self.0, false).is_ok());
        if !gone {
            let _ = unmount(&self.0, true);
        }
    }
}

/// Unmounts with the system call, so that no helper program can hang on a dead mount.
pub fn unmount(at: &Path, lazy: bool) -> rustix::io::Result<()> {
    use rustix::mount::UnmountFlags;
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(at, flags) {
        // Not mounted: already unmounted.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// File system type and source of the mount at exactly this path, read without the crates under
/// test.
pub fn mounted_at(path: &Path) -> Option<(String, String)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let mut found = None;
    for line in table.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        if left.split(' ').nth(4).map(Path::new) == Some(path) {
            let mut right = right.split(' ');
            // The kernel writes a # as \043.
            let source = |text: &str| text.replace("\\043", "#");
            found = right.next().zip(right.next()).map(|(a, b)| (a.into(), source(b)));
        }
    }
    found
}
