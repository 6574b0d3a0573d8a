use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

struct Bed {
    dir: TempDir,
    folder: Folder,
}

/// A folder with a file and other objects, and next to it files that must not be reached.
fn bed() -> Bed {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("in/sub")).unwrap();
    std::fs::write(at("in/file"), "words").unwrap();
    std::fs::write(at("in/sub/file"), "below").unwrap();
    std::fs::write(at("outside"), "secret").unwrap();
    std::fs::hard_link(at("outside"), at("in/second-name")).unwrap();
    symlink("file", at("in/link")).unwrap();
    symlink("sub", at("in/link-dir")).unwrap();
    symlink("../outside", at("in/link-out")).unwrap();
    fs::mkfifoat(fs::CWD, at("in/fifo"), Mode::RWXU).unwrap();
    UnixListener::bind(at("in/socket")).unwrap();
    let open = File::open(at("in")).unwrap();
    let folder = Folder::of(open.as_fd(), &at("in")).unwrap();
    Bed { dir, folder }
}

/// F1, F2: for each way of opening.
#[test]
fn only_regular_files_of_the_directory_itself_are_opened_and_nothing_is_waited_for() {
    let Bed { dir: _dir, folder } = bed();
    assert_eq!(folder.read("file").unwrap(), b"words");
    assert_eq!(folder.read("sub/file").unwrap(), b"below");
    let names =
        ["second-name", "link", "link-out", "link-dir/file", "fifo", "socket", "sub", "../outside"];
    for name in names {
        for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR | OFlags::CREATE] {
            let opened = folder.open(name, flags, Wanted::File);
            assert!(opened.is_err(), "{name} with {flags:?}");
        }
        assert!(folder.append(name).is_err(), "{name}");
    }
    for (name, why) in [("fifo", "a FIFO"), ("sub", "a directory"), ("link", "a symbolic link")] {
        let error = folder.read(name).unwrap_err();
        assert!(is_refusal(&error) && error.to_string().contains(why), "{name}: {error}");
    }
    for name in ["file", "link-dir", "fifo", ".."] {
        assert!(folder.below(name).is_err(), "{name}");
    }
    assert_eq!(folder.below("sub").unwrap().read("file").unwrap(), b"below");
}

/// The resolver of old kernels agrees.
#[test]
fn without_openat2_the_same_names_are_refused() {
    let Bed { dir: _dir, folder } = bed();
    let walked = |name: &str| {
        walk(folder.as_fd(), OsStr::new(name), OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty())
    };
    assert!(walked("file").is_ok() && walked("sub/file").is_ok());
    for name in ["link", "link-out", "link-dir/file", "../outside", "sub/../file", "/etc/passwd"] {
        assert!(walked(name).is_err(), "{name}");
    }
}

#[test]
fn what_is_replaced_is_a_name_and_never_what_a_link_leads_to() {
    let Bed { dir, folder } = bed();
    symlink("../outside", dir.path().join("in/file.new")).unwrap();
    folder.replace("file", b"new words", Durable::Yes).unwrap();
    folder.replace("link-out", b"here", Durable::No).unwrap();
    assert_eq!(folder.read("file").unwrap(), b"new words");
    assert_eq!(folder.read("link-out").unwrap(), b"here");
    assert_eq!(std::fs::read(dir.path().join("outside")).unwrap(), b"secret");
    let mode = std::fs::metadata(dir.path().join("in/file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_belongs_to_another_user_is_refused() {
    let Bed { dir, folder } = bed();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give files away");
        return;
    }
    for name in ["in/file", "in/sub"] {
        std::os::unix::fs::chown(dir.path().join(name), Some(4711), None).unwrap();
    }
    let error = folder.read("file").unwrap_err();
    assert!(is_refusal(&error) && error.to_string().contains("uid 4711"), "{error}");
    assert!(folder.append("file").is_err());
    assert!(folder.below("sub").is_err() && folder.make_dir("sub").is_err());
}

#[test]
fn a_directory_that_is_there_is_closed_to_others() {
    let Bed { dir, folder } = bed();
    let sub = dir.path().join("in/sub");
    std::fs::set_permissions(&sub, std::fs::Permissions::from_mode(0o777)).unwrap();
    folder.make_dir("sub").unwrap();
    assert_eq!(sub.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert!(folder.make_dir("link-dir").is_err() && folder.make_dir("fifo").is_err());
}
