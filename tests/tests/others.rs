//! Root beside other users: a tier, a log, a mount point that another user has prepared or could
//! replace, and names that other users must not see.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_tests::{Bed, Out, Tier, binary, finish, needs_forebay, proof, sys, text};

/// The user `nobody`, who owns no files of the machine.
const EVE: u32 = 65534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
}

fn give(path: &Path, to: u32) {
    std::os::unix::fs::lchown(path, Some(to), Some(to)).expect("root may");
}

/// Gives a tree to another user, links and all.
fn give_all(path: &Path, to: u32) {
    give(path, to);
    if path.symlink_metadata().expect("it is there").is_dir() {
        let entries = fs::read_dir(path).expect("it can be listed");
        entries.for_each(|entry| give_all(&entry.expect("an entry").path(), to));
    }
}

/// Runs a program as another user.
#[track_caller]
fn as_eve(program: &str, args: &[&str]) -> Out {
    let id = EVE.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]).args(args);
    finish(&mut command, Duration::from_secs(60))
}

/// A tier with one dirty file, unmounted.
fn dirty(bed: &Bed) {
    let mounted = bed.mount(&[]);
    fs::write(mounted.at("file"), "new bytes").expect("a write");
    mounted.umount_with(&["--keep-dirty"]).ok();
    mounted.assert_gone();
}

#[track_caller]
fn refused(out: &Out, why: &str) {
    assert_eq!(out.code, Some(2), "{out:#?}");
    assert!(out.stderr.contains(why), "{why:?} is not in {out:#?}");
}

/// Goal: no other user prepares a tier, or the way to one, for root. Method: each place that another
/// user can influence, and the same places without that.
// S-11
#[test]
fn a_tier_that_somebody_else_prepared_or_could_exchange_is_refused() {
    needs_forebay!();
    let mut bed = Bed::new(Tier::Disk);
    let fast = bed.root.join("fast");
    let mount_in = |bed: &mut Bed, tier: &str| {
        bed.tier = fast.join(tier);
        bed.try_mount(&[])
    };
    mode(&fast, 0o1777);
    fs::create_dir(fast.join("hers")).expect("a directory");
    give(&fast.join("hers"), EVE);
    refused(&mount_in(&mut bed, "hers"), "has put it there");
    fs::create_dir(bed.root.join("empty")).expect("a directory");
    symlink(bed.root.join("empty"), fast.join("link")).expect("a link");
    give(&fast.join("link"), EVE);
    refused(&mount_in(&mut bed, "link"), "has put it there");
    assert_eq!(fs::read_dir(bed.root.join("empty")).expect("a listing").count(), 0);
    mode(&fast, 0o777);
    refused(&mount_in(&mut bed, "tier"), "others may write to");
    mode(&fast, 0o755);
    give(&fast, EVE);
    refused(&mount_in(&mut bed, "tier"), "owns");
    mode(&fast, 0o1777);
    give(&fast, 0);
    mount_in(&mut bed, "tier").ok();
    bed.mounted().umount();
    proof!("five ways refused, and the sticky directory of the tour served");
}

/// Goal: an object in a tier is opened only if it is a file of the tier's user, and is never waited
/// for. Method: everything that is opened by name, replaced in turn by every wrong kind of object;
/// mount, check and recover end, and a file beside the tier stays as it was.
// S-11
#[test]
fn a_fifo_a_link_or_a_foreign_file_in_a_tier_is_refused_and_never_waited_for() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    dirty(&bed);
    let precious = bed.root.join("precious");
    fs::write(&precious, "root's own\n").expect("a file");
    let tier = text(&bed.tier);
    let mut hung = 0;
    for name in ["forebay.json", "lock", "index.redb", "run/forebay.log", "run"] {
        let at = bed.tier.join(name);
        let kept = bed.root.join("kept");
        let had = fs::rename(&at, &kept).is_ok();
        for what in ["fifo", "link", "hard link", "hers"] {
            match what {
                "fifo" => sys::mkfifo(&at, 0o600).expect("a FIFO"),
                "link" => symlink(&precious, &at).expect("a link"),
                "hard link" => fs::hard_link(&precious, &at).expect("a hard link"),
                _ => {
                    fs::write(&at, "").expect("a file");
                    chown(&at, Some(EVE), Some(EVE)).expect("root may");
                }
            }
            let in_time = |out: Out| {
                assert_ne!(out.code, None, "{name} as a {what}: {out:#?}");
                assert_ne!(out.code, Some(0), "{name} as a {what}: {out:#?}");
            };
            in_time(bed.try_mount(&[]));
            if !name.starts_with("run") {
                in_time(limited(&["check", tier]));
            }
            hung += 1;
            fs::remove_file(&at).expect("it can be removed");
        }
        if had {
            fs::rename(&kept, &at).expect("back");
        }
    }
    for name in ["jobs.json", "attachment.json", "control.sock"] {
        let at = bed.tier.join("run").join(name);
        let _ = fs::remove_file(&at);
        sys::mkfifo(&at, 0o600).expect("a FIFO");
    }
    limited(&["recover", tier]).ok();
    assert_eq!(fs::read(bed.backing.join("file")).expect("it is there"), b"new bytes");
    bed.mount(&[]).umount();
    assert_eq!(fs::read_to_string(&precious).expect("it is there"), "root's own\n");
    proof!("{hung} replacements refused, none waited for");
}

#[track_caller]
fn limited(args: &[&str]) -> Out {
    finish(Command::new(binary()).args(args), Duration::from_secs(60))
}

/// Goal: root's `recover` and `check` of a tier do nothing that the tier's owner could not do. Method:
/// a tier given to another user, whose bytes would have to go to a place where only root may write.
// S-11
#[test]
fn root_recovers_and_checks_a_tier_with_its_owners_rights() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    dirty(&bed);
    give_all(&bed.tier, EVE);
    give(&bed.root.join("fast"), EVE);
    refused(&bed.try_mount(&[]), "owns");
    let tier = text(&bed.tier);
    let checked = limited(&["check", "--json", tier]).ok();
    assert!(checked.stderr.contains("acting as that user"), "{checked:#?}");
    assert_eq!(checked.json()["dirty_files"], 1);

    let out = limited(&["recover", tier]);
    assert!(!matches!(out.code, Some(0) | None), "{out:#?}");
    let at_home = fs::read(bed.backing.join("file")).unwrap_or_default();
    assert_ne!(at_home, b"new bytes", "root's directory was written for the owner");
    let secret = bed.root.join("secret");
    fs::create_dir(&secret).expect("a directory");
    let out = limited(&["recover", tier, "--to", text(&secret.join("out"))]);
    assert!(!matches!(out.code, Some(0) | None), "{out:#?}");
    assert!(!secret.join("out").exists());

    give_all(&bed.backing, EVE);
    limited(&["recover", tier]).ok();
    assert_eq!(fs::read(bed.backing.join("file")).expect("it is there"), b"new bytes");
    assert_eq!(bed.backing.join("file").metadata().expect("it is there").uid(), EVE);
    proof!("nothing of root's was written, and the owner's bytes came home");
}

/// Goal: names with newlines and escapes cannot command a terminal or forge log lines. Method: such a
/// name in everything that is printed about a dirty file.
#[test]
fn names_command_no_terminal_and_make_no_lines() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let name = "x\nforebay: all is well\u{1b}[2J\u{9b}1m";
    let mounted = bed.mount(&[]);
    fs::write(mounted.at(name), "bytes").expect("a write");
    fs::create_dir(mounted.at("d")).expect("a directory");
    let tame = |text: &str| {
        assert!(!text.contains('\u{1b}') && !text.contains('\u{9b}'), "{text:?}");
        assert!(!text.lines().any(|line| line.contains("all is well") && !line.contains('x')));
    };
    let listed = bed.forebay(&["ls", "-l", text(&bed.mnt)]).ok();
    assert!(listed.stdout.contains("x\\nforebay: all is well\\u{1b}[2J"), "{listed:#?}");
    tame(&listed.text());
    tame(&bed.forebay(&["evict", text(&mounted.at(name).join("not"))]).text());
    mounted.umount_with(&["--keep-dirty"]).ok();
    mounted.assert_gone();
    let checked = bed.forebay(&["check", text(&bed.tier)]).ok();
    assert!(checked.stdout.contains("all is well"), "{checked:#?}");
    tame(&checked.text());
    let json = bed.forebay(&["check", "--json", text(&bed.tier)]).ok();
    assert_eq!(json.json()["dirty"][0], name);
    proof!("listed and checked in one line each");
}

/// Goal: an impossible log file is a wrong setting; one that another user chose is refused.
#[test]
fn a_log_file_is_not_written_through_somebody_elses_link() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let dir = bed.dir("logs");
    mode(&dir, 0o1777);
    let precious = bed.root.join("precious");
    fs::write(&precious, "").expect("a file");
    symlink(&precious, dir.join("log")).expect("a link");
    give(&dir.join("log"), EVE);
    refused(&bed.try_mount(&["--log-file", text(&dir.join("log"))]), "--log-file");
    refused(&bed.try_mount(&["--log-file", "/nonexist/x"]), "--log-file");
    assert_eq!(fs::metadata(&precious).expect("it is there").len(), 0);
    let own = dir.join("own");
    bed.try_mount(&["--log-file", text(&own)]).ok();
    bed.mounted().umount();
    let logged = own.metadata().expect("it was made");
    assert!(logged.len() > 0 && logged.mode() & 0o077 == 0, "names are in it");
    proof!("two refused, one written");
}

/// Goal: figures are for every user, names are not. Method: a file in a closed directory is the
/// busiest one; the part of `.forebay` that another user can read does not name it, root's part does.
#[test]
fn names_in_the_control_directory_are_for_whoever_mounted() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    fs::create_dir(mounted.at("closed")).expect("a directory");
    mode(&mounted.at("closed"), 0o700);
    fs::write(mounted.at("closed/secret-name"), vec![7; 1 << 20]).expect("a write");
    let control = mounted.at(".forebay");
    let mut read = 0;
    for entry in fs::read_dir(&control).expect("a listing") {
        let path = entry.expect("an entry").path();
        let out = as_eve("cat", &[text(&path)]);
        assert!(!out.stdout.contains("secret-name"), "{} tells it", path.display());
        read += u32::from(out.code == Some(0) && !out.stdout.is_empty());
    }
    assert!(read >= 4, "figures are for everybody: {read} files");
    let names = fs::read_to_string(control.join("names.json")).expect("root reads it");
    assert!(names.contains("secret-name"), "{names}");
    assert_ne!(as_eve("cat", &[text(&control.join("names.json"))]).code, Some(0));
    mounted.umount();
    proof!("{read} files read by another user, one by root alone");
}

/// Goal: two mounts of one directory are reported. Method: a second mount with a tier of its own.
// S-8
#[test]
fn a_second_mount_of_a_directory_names_the_first() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let first = bed.mount(&[]);
    let second = bed.dir("second");
    let tier = bed.root.join("fast/second");
    let (backing, at, tier) = (text(&bed.backing), text(&second), text(&tier));
    let out = bed.forebay(&["mount", backing, at, "--tier", tier]).ok();
    assert!(out.stderr.contains(text(&bed.mnt)), "it names the other: {out:#?}");
    bed.forebay(&["umount", at]).ok();
    first.umount();
    let alone = bed.try_mount(&[]).ok();
    assert!(!alone.stderr.contains("strangers"), "{alone:#?}");
    bed.mounted().umount();
    proof!("told once");
}

/// Goal: a tier in use, in a forebay mount, or with a socket that leads elsewhere is recognized.
/// Method: `check` and `recover` of a tier that is mounted; a tier in that mount; an order by way of a
/// tier of another user whose socket is a link to this one.
// S-11
#[test]
fn a_tier_in_use_in_a_mount_or_with_a_foreign_socket_is_told() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    for (command, remedy) in [("check", "forebay status"), ("recover", "forebay flush --wait")] {
        let out = limited(&[command, text(&bed.tier)]);
        refused(&out, remedy);
        assert!(!out.stderr.contains("--tier"), "{out:#?}");
    }
    let (other, at) = (bed.dir("other"), bed.dir("at"));
    let inside = bed.mnt.join("tier");
    refused(
        &bed.forebay(&["mount", text(&other), text(&at), "--tier", text(&inside)]),
        "is inside the forebay mount",
    );
    let hers = bed.root.join("hers");
    fs::create_dir_all(hers.join("run")).expect("a directory");
    let socket = "run/control.sock";
    symlink(bed.tier.join(socket), hers.join(socket)).expect("a link");
    give_all(&hers, EVE);
    let out = bed.forebay(&["set", text(&hers), "max-age=7s"]);
    assert_eq!(out.code, Some(3), "{out:#?}");
    assert!(out.stderr.contains("answers"), "{out:#?}");
    bed.forebay(&["set", text(&bed.tier), "max-age=7s"]).ok();
    mounted.umount();
    proof!("told what to do, and no order given through the link");
}
