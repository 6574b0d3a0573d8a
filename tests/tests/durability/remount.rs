//! The file system of the tier is shut down and mounted again while the machine stays up: unsynced
//! bytes are lost with it, and the boot id does not show that.
// S-2 S-4

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_tests::images::MountedFs;
use forebay_tests::{Bed, Mounted, Tier, binary, needs_forebay, needs_tools, proof, text, tool};

const LEN: usize = 50_000;

/// A bed whose daemon died with `never` overwritten by `N`, `synced` by `S`, and only the latter
/// synced; that sync makes the records of both durable.
fn died(tier: Tier) -> Bed {
    let bed = Bed::new(tier);
    for name in ["never", "synced"] {
        std::fs::write(bed.backing.join(name), [b'O'; LEN]).unwrap();
    }
    let mounted = bed.mount(&["--preset", "hold", "--passthrough", "off"]);
    overwrite(&mounted, "never", b'N');
    overwrite(&mounted, "synced", b'S').sync_all().unwrap();
    mounted.crash();
    bed
}

fn overwrite(mounted: &Mounted, name: &str, value: u8) -> File {
    let file = File::options().write(true).open(mounted.at(name)).unwrap();
    file.write_all_at(&vec![value; LEN], 0).unwrap();
    file
}

fn is_all(dir: &Path, name: &str, value: u8) {
    let found = std::fs::read(dir.join(name)).unwrap();
    let wrong = found.iter().position(|byte| *byte != value);
    assert!(found.len() == LEN && wrong.is_none(), "{name}: {} bytes, {wrong:?}", found.len());
}

/// Shuts a file system down without its journal, as a disappearing device does.
fn shut_down(at: &Path) {
    /// `_IOR('X', 125, __u32)`, for XFS and for ext4.
    const GOING_DOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
    static NO_LOG_FLUSH: u32 = 2;
    let dir = File::open(at).unwrap();
    // SAFETY: the call reads four bytes.
    let done = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&dir), GOING_DOWN, &raw const NO_LOG_FLUSH)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    assert!(File::create(at.join("x")).is_err(), "it is down");
}

fn never_synced_bytes_go_with_the_file_system(tier: Tier) {
    let mut bed = died(tier);
    let fast = bed.tier.parent().unwrap().to_path_buf();
    shut_down(&fast);
    drop(bed.take_fast());
    bed.set_fast(MountedFs::image(&bed.root.join("fast.img"), &fast));
    let check = bed.forebay(&["check", "--json", text(&bed.tier)]).ok().json();
    assert_eq!((&check["dirty_files"], &check["dropped_files"]), (&1.into(), &1.into()));
    let mounted = bed.mount(&[]);
    let recovery = mounted.status()["recovery"].clone();
    assert_eq!(recovery["same_boot"], true, "{recovery:#}");
    assert_eq!(recovery["remounted"], true, "{recovery:#}");
    assert_eq!(recovery["dropped_files"], 1, "{recovery:#}");
    is_all(&bed.mnt, "never", b'O');
    is_all(&bed.mnt, "synced", b'S');
    mounted.umount();
    is_all(&bed.backing, "never", b'O');
    is_all(&bed.backing, "synced", b'S');
    proof!("{LEN} bytes were dropped, {LEN} brought home");
}

#[test]
fn never_synced_bytes_go_with_an_ext4_that_was_shut_down() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    never_synced_bytes_go_with_the_file_system(Tier::Ext4(128));
}

#[test]
fn never_synced_bytes_go_with_an_xfs_that_was_shut_down() {
    needs_forebay!();
    needs_tools!("mkfs.xfs");
    never_synced_bytes_go_with_the_file_system(Tier::Xfs(400));
}

/// The mark of the mount is that of the file system, for every observer, and through every mount.
#[test]
fn never_synced_bytes_stay_for_a_daemon_in_another_mount_namespace() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "unshare");
    let bed = died(Tier::Ext4(128));
    let (again, fast) = (bed.dir("again"), bed.tier.parent().unwrap().to_path_buf());
    let script = format!(
        "mount --bind {} {again} && umount {0} && exec {} recover {again}/tier",
        fast.display(),
        binary().display(),
        again = again.display(),
    );
    tool("unshare", &["--mount", "--propagation", "private", "sh", "-c", &script]).ok();
    is_all(&bed.backing, "never", b'N');
    is_all(&bed.backing, "synced", b'S');
    proof!("2 * {LEN} bytes were brought home from another namespace");
}
