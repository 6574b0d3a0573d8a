//! The conformance suite: the behaviour that every store, bare or in a wrapper, must have.
//!
//! Each check works in a directory of its own, so that checks do not disturb each other, and panics
//! with the expectation that failed. Checks of ownership need root; as another user they check the
//! rules for that user.

mod attrs;
mod data;
mod names;
mod single;
mod temp;
#[cfg(test)]
mod tests;
mod xattrs;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Access, BackingFile, BackingStore, Error, New, Result};
pub use single::run_single;
pub use temp::TempDir;

type Check = (&'static str, fn(&Bench<'_>));

macro_rules! checks {
    ($($module:ident: $($name:ident)*;)*) => {
        &[$($((concat!(stringify!($module), "-", stringify!($name)), $module::$name as fn(&Bench<'_>)),)*)*]
    };
}

const CHECKS: &[Check] = checks! {
    data:
        bytes_come_back
        reads_end_at_the_end
        a_gap_reads_as_zeros_and_stays_a_hole
        length_grows_and_shrinks
        a_punched_hole_reads_as_zeros
        offsets_reach_beyond_32_bits
        an_unlinked_file_stays_usable
        a_read_only_file_refuses_writes
        many_files_are_synced_at_once
        a_closed_file_keeps_its_bytes;
    names:
        create_is_exclusive
        missing_names_and_parents_are_told_apart
        directories_are_not_files
        a_full_directory_is_not_removed
        a_pinned_file_opens_whatever_becomes_of_its_name
        rename_replaces
        rename_can_refuse_to_replace
        rename_can_exchange
        a_directory_does_not_move_into_itself
        hard_links_share_a_key
        links_are_never_followed
        a_hard_link_to_a_symlink_is_one_too
        paths_stay_below_the_root
        names_are_bytes
        names_have_a_longest
        a_long_listing_is_complete
        a_deep_path_works
        the_root_is_a_directory
        special_files_keep_their_kind
        a_new_file_has_a_new_key;
    attrs:
        modes_are_exact_whatever_the_umask
        what_took_a_name_since_is_left_alone
        times_keep_their_nanoseconds
        times_of_a_link_are_its_own
        a_time_left_out_stays
        a_symlink_has_no_mode_to_change
        new_objects_belong_to_the_caller
        a_set_gid_directory_passes_its_group_on
        mode_survives_a_change_of_owner
        the_owner_may_open_what_its_mode_forbids
        a_write_changes_the_version
        the_store_describes_itself;
    xattrs:
        values_come_back
        create_and_replace_are_told_apart
        long_and_empty_values
        a_missing_one_is_enodata
        attributes_work_on_directories
        attributes_work_on_the_link_itself;
};

/// Runs every check in `store`, whose root must be empty, and returns their number.
pub fn run(store: &dyn BackingStore) -> usize {
    for (name, check) in CHECKS {
        let dir = PathBuf::from(name);
        store.mkdir(&dir, &mine(0o755)).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(&Bench { store, dir });
    }
    CHECKS.len()
}

/// A store and a directory to work in.
struct Bench<'a> {
    store: &'a dyn BackingStore,
    dir: PathBuf,
}

impl Bench<'_> {
    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes a new file with these bytes.
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        let (file, _) = self.store.create(&path, &mine(0o644)).expect("create");
        file.write_at(bytes, 0).expect("write");
        path
    }

    fn subdir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        self.store.mkdir(&path, &mine(0o755)).expect("mkdir");
        path
    }

    fn symlink(&self, name: &str, target: &str) -> PathBuf {
        let path = self.path(name);
        self.store.symlink(&path, target.as_ref(), &mine(0o777)).expect("symlink");
        path
    }

    fn open(&self, path: &Path) -> Arc<dyn BackingFile> {
        self.store.open(path, Access::ReadWrite).expect("open")
    }

    fn read(&self, path: &Path) -> Vec<u8> {
        let file = self.store.open(path, Access::Read).expect("open");
        let mut bytes = vec![0; file.stat().expect("stat").size as usize + 1];
        let len = file.read_at(&mut bytes, 0).expect("read");
        bytes.truncate(len);
        bytes
    }
}

/// An owner that any daemon may give: its own user.
fn mine(mode: u32) -> New {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    New { mode, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() }
}

fn am_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[track_caller]
fn fails<T>(result: Result<T>, errno: i32) -> Error {
    let Err(error) = result else { panic!("succeeded, not errno {errno}") };
    assert!(error.is(errno), "errno {errno} expected: {error}");
    error
}
