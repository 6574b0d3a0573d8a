//! File systems by their `s_magic` (linux/magic.h and each file system's own header), and known
//! properties of some.

use std::os::fd::AsFd;
use std::sync::LazyLock;

use rustix::fs::{StatFs, fstatfs};

pub const EXT: u32 = 0xef53;
pub const XFS: u32 = 0x5846_5342;
pub const BTRFS: u32 = 0x9123_683e;
pub const F2FS: u32 = 0xf2f5_2010;
pub const TMPFS: u32 = 0x0102_1994;
pub const NFS: u32 = 0x6969;

/// File systems through which the kernel shows its own state. They judge a write by the opener of the
/// file, and a daemon opens as root.
const OF_KERNEL: [(u32, &str); 27] = [
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x0765_5821, "resctrl"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x4341_5d53, "smackfs"),
    (0x5a3c_69f0, "apparmorfs"),
    (0x6265_6570, "configfs"),
    (0xcafe_4a11, "bpf"),
    (0x6165_676c, "pstore"),
    (0xde5e_81e4, "efivarfs"),
    (0x0000_1cd1, "devpts"),
    (0x1980_0202, "mqueue"),
    (0x9584_58f6, "hugetlbfs"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x6573_5543, "fusectl"),
    (0x6e73_6673, "nsfs"),
    (0x5049_4446, "pidfs"),
    (0x6759_6969, "rpc_pipefs"),
    (0x6e66_7364, "nfsd"),
    (0xabba_1974, "xenfs"),
    (0x6c6f_6f70, "binder"),
    (0x0a64_7361, "functionfs"),
];

/// The name of the file system of `fd`, if it is one that shows the kernel's state.
pub fn of_kernel(fd: &impl AsFd) -> Option<&'static str> {
    let magic = of(&fstatfs(fd).ok()?);
    OF_KERNEL.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// The field's type differs between architectures; the number fits 32 bits on all of them.
pub fn of(statfs: &StatFs) -> u32 {
    statfs.f_type as u32
}

/// Whether one `syncfs` makes all bytes durable that were written to the file system of `fd`, and reports
/// failures. A client of Lustre, FUSE and others return 0 and have sent the bytes at most; on a file
/// system that is not known to wait for the medium each file is synced.
pub fn honours_syncfs(fd: &impl AsFd) -> bool {
    fstatfs(fd).is_ok_and(|statfs| syncs(of(&statfs))) && reports_errors()
}

fn syncs(magic: u32) -> bool {
    matches!(magic, EXT | XFS | BTRFS | F2FS | TMPFS)
}

/// Before Linux 5.8 syncfs succeeded even if writes had failed.
fn reports_errors() -> bool {
    static NEW_ENOUGH: LazyLock<bool> = LazyLock::new(|| {
        let uname = rustix::system::uname();
        kernel_version(&uname.release().to_string_lossy()) >= (5, 8)
    });
    *NEW_ENOUGH
}

fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncfs_counts_where_it_is_known_to_reach_the_medium() {
        const LUSTRE: u32 = 0x0bd0_0bd0;
        const FUSE: u32 = 0x6573_5546;
        const OVERLAY: u32 = 0x794c_7630;
        assert!([EXT, XFS, BTRFS, F2FS, TMPFS].into_iter().all(syncs));
        assert!(![LUSTRE, FUSE, OVERLAY, NFS, 0].into_iter().any(syncs));
    }

    #[test]
    fn what_the_kernel_shows_of_itself_is_known_from_what_is_stored() {
        let of = |path: &str| of_kernel(&std::fs::File::open(path).unwrap());
        assert_eq!((of("/proc/self"), of("/sys/kernel")), (Some("proc"), Some("sysfs")));
        assert_eq!(of("/usr"), None);
    }

    #[test]
    fn a_kernels_version_is_its_first_two_numbers() {
        assert_eq!(kernel_version("6.18.44-fc"), (6, 18));
        assert_eq!(kernel_version("5.7"), (5, 7));
        assert_eq!(kernel_version("none"), (0, 0));
    }
}
