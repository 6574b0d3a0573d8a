//! POSIX behaviour through the mount, on every kind of fast tier and with every choice of
//! passthrough. Each case works in a directory of its own and compares with the behaviour of a
//! local file system; plain mode (see the crate) proves the cases themselves.
// S-1
mod absent;
mod access;
mod data;
mod differential;
mod locks;
mod names;
mod open_files;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use forebay_tests::tree::{Times, Tree};
use forebay_tests::{Bed, Tier, is_root, proof, skip};

pub type Case = (&'static str, fn(&Path));

/// Lists functions with their names.
#[macro_export]
macro_rules! cases {
    ($($case:ident),* $(,)?) => { &[$((stringify!($case), $case as fn(&std::path::Path))),*] };
}

/// Runs every case, then compares mount and backing store after an orderly unmount.
fn run_all(tier: Tier, flags: &[&str]) {
    if !is_root() {
        skip!("needs root");
    }
    let bed = Bed::new(tier);
    let mounted = bed.mount(flags);
    let groups = [data::CASES, names::CASES, open_files::CASES, locks::CASES];
    let mut failed = Vec::new();
    let mut count = 0;
    for (name, case) in groups.iter().flat_map(|group| group.iter()) {
        let dir = mounted.at(name);
        std::fs::create_dir(&dir).expect("a directory for the case");
        count += 1;
        if catch_unwind(AssertUnwindSafe(|| case(&dir))).is_err() {
            forebay_tests::say(&format!("  FAILED {name} with {tier:?} {flags:?}"));
            failed.push(*name);
        }
    }
    let seen = Tree::read(&bed.mnt);
    mounted.umount();
    if failed.is_empty() {
        seen.assert_same(&Tree::read(&bed.backing), Times::Compare);
    }
    assert!(failed.is_empty(), "{} of {count} cases failed: {failed:?}", failed.len());
    proof!("{count} cases, then {} files equal on the backing store", seen.files());
}

macro_rules! variants {
    ($($name:ident: $tier:expr, $flags:expr;)*) => {
        $(#[test]
        fn $name() {
            run_all($tier, $flags);
        })*
    };
}

variants! {
    behaves_like_a_local_file_system_on_disk: Tier::Disk, &[];
    behaves_like_a_local_file_system_on_disk_with_passthrough_always: Tier::Disk, &["--passthrough", "always"];
    behaves_like_a_local_file_system_on_disk_without_passthrough: Tier::Disk, &["--passthrough", "off"];
    behaves_like_a_local_file_system_on_tmpfs: Tier::Tmpfs(512), &[];
    behaves_like_a_local_file_system_on_tmpfs_with_passthrough_always: Tier::Tmpfs(512), &["--passthrough", "always"];
    behaves_like_a_local_file_system_on_tmpfs_without_passthrough: Tier::Tmpfs(512), &["--passthrough", "off"];
    behaves_like_a_local_file_system_on_xfs: Tier::Xfs(512), &[];
    behaves_like_a_local_file_system_on_xfs_with_passthrough_always: Tier::Xfs(512), &["--passthrough", "always"];
    behaves_like_a_local_file_system_where_new_files_alone_are_passed: Tier::Disk, &["--passthrough", "new"];
    behaves_like_a_local_file_system_on_ext4: Tier::Ext4(512), &[];
    behaves_like_a_local_file_system_with_write_through: Tier::Disk, &["--policy", "write-through"];
    behaves_like_a_local_file_system_with_write_around: Tier::Disk, &["--policy", "write-around"];
}
