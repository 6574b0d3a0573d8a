//! The state of the destination after a transfer says that it is done.

mod bed;

use std::path::Path;
use std::time::Duration;

use bed::{assert_same, done, file, grow, left_over, picture, run, spec};
use forebay_stage::{Control, Existing, Outcome, Overwrite, Phase, Place, Progress, Reason, What};

/// The report has the sizes of failed files, for listings of files that are not home.
#[test]
fn what_fails_is_told_with_its_size() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::write(from.join("a"), [1; 5000]).unwrap();
    std::fs::write(from.join("b"), [1; 70]).unwrap();
    std::fs::create_dir_all(to.join("a/in the way")).unwrap();
    let report = run(&spec("sized", &from, &to, What::Directory));
    let failed: Vec<_> = report.failures.iter().map(|f| (&*f.path.0, f.bytes)).collect();
    assert_eq!(failed, [(Path::new("a"), 5000)], "{report:#?}");
}

/// With a single file no other thread sees the stop.
#[test]
fn one_file_that_is_stopped_half_way_is_no_failure() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::write(&from, vec![7; 4 << 20]).unwrap();
    let mut asked = spec("stopped", &from, &to, What::File);
    asked.options.rate = 1 << 20;
    let control = Control::default();
    let begun = |told: &Progress| {
        if told.bytes_done > 0 {
            control.stop();
        }
    };
    let report = forebay_stage::run(&asked, &control, Duration::from_millis(20), begun).unwrap();
    assert_eq!((report.outcome, report.failed), (Outcome::Stopped, 0), "{report:#?}");
    assert_eq!((report.left_files, report.left_bytes), (1, 4 << 20), "{report:#?}");
    asked.options.rate = 0;
    done(&asked);
    assert!(std::fs::read(&to).unwrap() == vec![7; 4 << 20]);
}

/// The totals are known before the only file is copied, not only afterwards.
#[test]
fn the_time_that_one_file_takes_is_told_while_it_is_copied() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::write(&from, vec![7; 3 << 20]).unwrap();
    let mut asked = spec("eta", &from, &to, What::File);
    asked.options.rate = 1 << 20;
    let mut etas = Vec::new();
    let every = Duration::from_millis(50);
    let listen = |told: &Progress| {
        if told.phase == Phase::Copying && told.bytes_done < told.bytes_total {
            etas.extend(told.eta_seconds);
        }
    };
    forebay_stage::run(&asked, &Control::default(), every, listen).unwrap();
    assert!(etas.iter().any(|eta| (0.2..6.0).contains(eta)), "{etas:?}");
}

/// Random trees, copied anew, again, and over a part of themselves, are equal in all attributes.
#[test]
fn a_tree_of_everything_is_copied_exactly() {
    for seed in 1..=6 {
        let top = tempfile::tempdir().unwrap();
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        grow(&from, seed, 120);
        let mut spec = spec("model", &from, &to, What::Directory);
        spec.options.threads = [1, 2, 8][seed as usize % 3];
        spec.options.checksum = seed % 2 == 0;
        let report = done(&spec);
        assert!(report.files > 40 && report.kept == 0, "seed {seed}: {report:#?}");
        assert_same(&from, &to);
        assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new(), "seed {seed}");
        spec.options.checksum = false;
        let again = done(&spec);
        assert_eq!((again.kept, again.bytes_copied), (again.files, 0), "seed {seed}: {again:#?}");
        assert_same(&from, &to);
    }
}

/// Sparse files keep their holes whatever their size, and are compared with the holes in place.
#[test]
fn large_files_are_copied_in_pieces_and_keep_their_holes() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    file(&from.join("solid"), &bed::Rng::new(5).bytes(150 << 20));
    let holes = std::fs::File::create(from.join("holes")).unwrap();
    holes.set_len(5 << 30).unwrap();
    for at in [0, 100 << 20, (5 << 30) - 70_000] {
        use std::os::unix::fs::FileExt;
        holes.write_all_at(&[7; 70_000], at).unwrap();
    }
    let mut spec = spec("large", &from, &to, What::Directory);
    spec.options.checksum = true;
    let report = done(&spec);
    assert_eq!(report.bytes, (150 << 20) + (5 << 30));
    assert!(report.bytes_copied < 152 << 20, "{report:#?}");
    let bytes = |dir: &Path| std::fs::read(dir.join("solid")).unwrap();
    assert!(bytes(&from) == bytes(&to));
    let copy = std::fs::File::open(to.join("holes")).unwrap();
    let mut bytes = vec![0; 70_001];
    std::os::unix::fs::FileExt::read_exact_at(&copy, &mut bytes, (100 << 20) - 1).unwrap();
    assert!(bytes[0] == 0 && bytes[1..].iter().all(|&byte| byte == 7));
}

#[test]
fn one_file_gets_the_name_it_shall_have() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    file(&from, b"bytes");
    std::os::unix::fs::symlink("from", top.path().join("link")).unwrap();
    done(&spec("a", &top.path().join("link"), &to, What::File));
    assert_eq!(std::fs::read(&to).unwrap(), b"bytes");
    assert!(!std::fs::symlink_metadata(&to).unwrap().is_symlink());
    std::fs::create_dir(top.path().join("dir")).unwrap();
    let report = run(&spec("a", &top.path().join("dir"), &to, What::File));
    assert_eq!(report.failures[0].reason, Reason::InTheWay);
    assert!(report.failures[0].text.contains("stage it as one"), "{report:#?}");
}

#[test]
fn a_list_names_files_and_trees_and_what_they_become() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    grow(&from.join("tree"), 3, 40);
    std::fs::create_dir_all(from.join("deep/down")).unwrap();
    file(&from.join("deep/down/one"), b"1");
    file(&from.join("two"), b"2");
    file(&from.join("not named"), b"");
    std::fs::create_dir(&to).unwrap();
    file(&top.path().join("list"), b"# data\ntree\ndeep/down/one\ntwo new/place/zwei\nmissing\n");
    let list = Place { root: top.path().into(), path: "list".into() };
    let report = run(&spec("list", &from, &to, What::List(list)));
    assert_eq!((report.outcome, report.failed), (Outcome::Failed, 1), "{report:#?}");
    assert_eq!(report.failures[0].path.0, Path::new("missing"));
    assert_eq!(report.failures[0].reason, Reason::Vanished);
    assert_same(&from.join("tree"), &to.join("tree"));
    assert_eq!(std::fs::read(to.join("deep/down/one")).unwrap(), b"1");
    assert_eq!(std::fs::read(to.join("new/place/zwei")).unwrap(), b"2");
    assert!(!to.join("not named").exists() && !to.join("two").exists());
}

#[test]
fn a_list_of_datawarp_has_whole_names() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    grow(&from.join("tree"), 2, 20);
    file(&from.join("one"), b"1");
    std::fs::create_dir(&to).unwrap();
    let text = b"/from/tree $DW_JOB_STRIPED/to/set/tree\n/from/one\n";
    file(&top.path().join("list"), text);
    let mut spec =
        spec("dw", &from, &to, What::List(Place { root: top.path().into(), path: "list".into() }));
    // The list is not in the directory of the files.
    spec.source = Place { root: top.path().into(), path: "to".into() };
    spec.destination = Place { root: top.path().into(), path: "to".into() };
    done(&spec);
    assert_same(&from.join("tree"), &to.join("set/tree"));
    assert_eq!(std::fs::read(to.join("one")).unwrap(), b"1");
    assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_tree_is_merged_into_one_that_is_there_or_takes_its_place() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    grow(&from, 8, 60);
    std::fs::create_dir(&to).unwrap();
    file(&to.join("stays"), b"old");
    done(&spec("m", &from, &to, What::Directory));
    assert_eq!(std::fs::read(to.join("stays")).unwrap(), b"old");
    assert_eq!(picture(&to).len(), picture(&from).len() + 1);
    let mut spec = spec("r", &from, &to, What::Directory);
    spec.options.existing = Existing::Replace;
    done(&spec);
    assert_same(&from, &to);
    assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new());
}

/// The bytes are unchanged, but new attributes that `--preserve` names are copied all the same.
#[test]
fn a_file_that_is_there_already_gets_what_its_source_has_got_since() {
    use std::os::unix::fs::MetadataExt;
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    file(&from.join("f"), b"bytes");
    done(&spec("one", &from, &to, What::Directory));
    let name = c"user.sum";
    let src = std::fs::File::open(from.join("f")).unwrap();
    rustix::fs::fsetxattr(&src, name, b"17", rustix::fs::XattrFlags::empty()).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(from.join("f"), Some(47110), Some(47110)).unwrap();
    }
    let report = done(&spec("two", &from, &to, What::Directory));
    assert_eq!((report.kept, report.bytes_copied), (1, 0), "{report:#?}");
    let dst = std::fs::File::open(to.join("f")).unwrap();
    let mut value = [0u8; 8];
    assert_eq!(rustix::fs::fgetxattr(&dst, name, &mut value[..]), Ok(2));
    if is_root {
        assert_eq!(dst.metadata().unwrap().uid(), 47110);
    }
}

/// As with the root of an instance: its owner may write into it, but not beside it.
#[test]
fn a_tree_is_added_to_a_root_that_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    grow(&from, 9, 60);
    std::fs::create_dir(&to).unwrap();
    std::fs::set_permissions(&to, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&from, PermissionsExt::from_mode(0o755)).unwrap();
    let mut spec = spec("root", &from, &to, What::Directory);
    spec.destination = Place { root: to.as_path().into(), path: "".into() };
    let report = done(&spec);
    assert!(report.files > 10, "{report:#?}");
    assert_eq!(to.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::set_permissions(&from, PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(picture(&to).len(), picture(&from).len());
    assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new());
    // `clean` finds the remains of a cancelled run there, too.
    file(&to.join(".forebay-stage-root.journal"), b"");
    assert_eq!(left_over(top.path()).len(), 1);
    forebay_stage::clean(&spec).unwrap();
    assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new());
    // A copy of a tree into itself is refused.
    spec.source = Place { root: to.as_path().into(), path: "".into() };
    assert_eq!(run(&spec).failed, 1);
}

#[test]
fn what_is_there_is_overwritten_by_rule() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    for (rule, newer, older) in [
        (Overwrite::Always, "new", "new"),
        (Overwrite::Older, "old", "new"),
        (Overwrite::Never, "old", "old"),
        (Overwrite::Fail, "old", "old"),
    ] {
        for dir in [&from, &to] {
            std::fs::create_dir_all(dir).unwrap();
            let text: &[u8] = if dir == &from { b"new" } else { b"old" };
            file(&dir.join("newer there"), text);
            file(&dir.join("older there"), text);
        }
        filetime(&from.join("newer there"), 1000);
        filetime(&to.join("newer there"), 2000);
        filetime(&from.join("older there"), 2000);
        filetime(&to.join("older there"), 1000);
        let mut spec = spec("o", &from, &to, What::Directory);
        spec.options.overwrite = rule;
        let report = run(&spec);
        let failed = if rule == Overwrite::Fail { 2 } else { 0 };
        assert_eq!(report.failed, failed, "{rule:?}: {report:#?}");
        assert_eq!(std::fs::read_to_string(to.join("newer there")).unwrap(), newer, "{rule:?}");
        assert_eq!(std::fs::read_to_string(to.join("older there")).unwrap(), older, "{rule:?}");
    }
}

fn filetime(path: &Path, seconds: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
}

/// Without `preserve` a file has the attributes of a new file, which no user may read who could not read
/// the source.
#[test]
fn nothing_is_preserved_that_is_not_asked_for() {
    use std::os::unix::fs::MetadataExt;
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    grow(&from, 11, 60);
    let mut spec = spec("n", &from, &to, What::Directory);
    let preserve = &mut spec.options.preserve;
    (preserve.times, preserve.mode, preserve.owner) = (false, false, false);
    (preserve.xattrs, preserve.acls, preserve.hard_links) = (false, false, false);
    spec.options.umask = 0o027;
    done(&spec);
    for (path, seen) in picture(&to) {
        let meta = std::fs::symlink_metadata(to.join(&path)).unwrap();
        let mode = std::fs::symlink_metadata(from.join(&path)).unwrap().mode() & 0o777 & !0o027;
        // The group's bits may be fewer: an access list may give the group less.
        let (is, more) = (meta.mode() & 0o7777, meta.mode() & 0o7777 & !mode);
        let alike = (is ^ mode) & !0o070 == 0 && more == 0;
        assert!(meta.is_symlink() || alike, "{path:?}: {is:o}, and not {mode:o}");
        assert_eq!((meta.uid(), meta.mtime() > 1_600_000_000), (0, true), "{path:?}");
        assert!(meta.is_dir() || seen.first == path, "{path:?} is linked");
    }
}

/// With a list the group bits of the mode are its mask; without the list they would be the group's rights.
#[test]
fn without_its_access_list_a_file_gives_its_group_no_more_than_that_gave() {
    use std::os::unix::fs::MetadataExt;
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    file(&from.join("f"), b"1");
    let none = u32::MAX;
    // User 1234 may do everything, and the group nothing.
    let entries = [(1u16, 6u16, none), (2, 7, 1234), (4, 0, none), (16, 7, none), (32, 0, none)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(bits.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(from.join("f"), "system.posix_acl_access", &list, flags).unwrap();
    let mode = |dir: &Path| std::fs::metadata(dir.join("f")).unwrap().mode() & 0o7777;
    assert_eq!(mode(&from), 0o670);
    for (acls, expected) in [(true, 0o670), (false, 0o600)] {
        let to = to.join(acls.to_string());
        let mut spec = spec("l", &from, &to, What::Directory);
        spec.options.preserve.acls = acls;
        done(&spec);
        assert_eq!(mode(&to), expected, "with its list: {acls}");
        // The same for a file that exists already.
        std::fs::set_permissions(to.join("f"), std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .unwrap();
        done(&spec);
        let found = mode(&to) & !0o070;
        assert_eq!(found, 0o600, "with its list: {acls}");
        assert!(acls || mode(&to) == 0o600, "{:o}", mode(&to));
    }
}

#[test]
fn sockets_are_noted_and_left_overs_of_others_too() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    file(&from.join(".forebay-stage-other.journal"), b"");
    file(&from.join("file"), b"1");
    let report = done(&spec("s", &from, &to, What::Directory));
    assert_eq!((report.files, report.noted), (1, 2), "{report:#?}");
    assert!(report.notes.iter().any(|note| note.contains("socket is not copied")), "{report:#?}");
}

/// A tree that is copied into itself would never end.
#[test]
fn a_tree_does_not_go_into_itself() {
    let top = tempfile::tempdir().unwrap();
    let from = top.path().join("from");
    std::fs::create_dir_all(from.join("sub/to")).unwrap();
    file(&from.join("file"), b"1");
    let mut there = spec("i", &from, &from.join("sub/to"), What::Directory);
    let report = run(&there);
    assert_eq!((report.failed, report.files), (1, 1), "{report:#?}");
    there.destination.path = "new".into();
    assert_eq!(done(&there).files, 2);
    assert!(from.join("sub/new/sub/to/file").exists());
}

/// A kill between the exchange of two trees and the removal of the old one: the tree beside the place is
/// then the old one, and must not be taken for an unfinished new one. The journal is made by hand, since no
/// kill hits that moment reliably.
#[test]
fn a_replacement_that_was_cut_short_is_finished_or_undone() {
    use std::os::unix::fs::MetadataExt;
    let top = tempfile::tempdir().unwrap();
    let path = |name: &str| top.path().join(name);
    let (from, to) = (path("from"), path("to"));
    grow(&from, 21, 40);
    let mut spec = spec("cut", &from, &to, What::Directory);
    spec.options.existing = Existing::Replace;
    let cut = |inode: u64| {
        std::fs::write(path(".forebay-stage-cut.journal"), format!("x {inode:x}\n")).unwrap();
    };

    // After the exchange: the new tree is in its place, the old one beside.
    done(&spec);
    std::fs::create_dir(path(".forebay-stage-cut.tree")).unwrap();
    file(&path(".forebay-stage-cut.tree/old"), b"old");
    cut(std::fs::metadata(&to).unwrap().ino());
    done(&spec);
    assert_same(&from, &to);
    assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new());

    // Between two renames, where the trees cannot be exchanged at once: the place is empty.
    let between = || {
        std::fs::rename(&to, path(".forebay-stage-cut.tree")).unwrap();
        std::fs::create_dir(path(".forebay-stage-cut.old")).unwrap();
        file(&path(".forebay-stage-cut.old/old"), b"old");
        cut(std::fs::metadata(path(".forebay-stage-cut.tree")).unwrap().ino());
    };
    between();
    let report = done(&spec);
    assert_eq!((report.kept, report.bytes_copied), (report.files, 0), "{report:#?}");
    assert_same(&from, &to);
    assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new());
    between();
    forebay_stage::clean(&spec).unwrap();
    assert_eq!(std::fs::read(to.join("old")).unwrap(), b"old");
    assert_eq!(left_over(top.path()), Vec::<std::path::PathBuf>::new());
}
